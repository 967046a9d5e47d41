/* pystack.c - the Python stack of the calling thread, without the GIL.
 *
 * Two steps:
 *
 *   walk     from the innermost frame outwards.  Frames that lie where they
 *            lay at the thread's last walk, at the same instruction of the
 *            same code, are passed over; if that holds down to the
 *            outermost, they keep their stack ids.  The others' code,
 *            instruction and fingerprint go into an array
 *   look up  those: (code, instruction) -> frame id in the positions below,
 *            or out of the code object itself; then (parent, frame) -> stack
 *            id in the intern
 *
 * The walk is what an allocation costs: a frame that is passed over touches
 * one line of memory each of the frame, its code object and the cache.
 *
 * Knows the layout of frames only through pystack_layout.h.  Everything here
 * is a plain read of what the thread's own frames keep alive: no reference
 * is taken, nothing of Python's is written, no Python API runs but
 * PyGILState_GetThisThreadState(), which reads a thread-local. */
#include "pystack.h"

#include "mem.h"
#include "pystack_layout.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* How a frame is known again without a look into its code: whoever lies at
 * the same place, at the same instruction of a code object with the same
 * address and generation, has the same position. */
typedef struct {
    const void *frame;
    const void *code; /* NULL: its generation says nothing */
    uintptr_t at;     /* mp_pyframe_at() */
    uint32_t generation;
    bool is_module; /* the frame calls a module: compare that, too */
} place_t;

/* One frame of a stack.  The position is the same as an earlier one if code,
 * fingerprint and index are: addresses of code objects are used again.  So is
 * a module's, but one that dies is forgotten, and that changes the names'
 * generation. */
typedef struct {
    const void *code;
    uint64_t fingerprint;
    const void *module; /* whose call this frame is; NULL: of none */
    int32_t index;      /* in code units; 3.10: -1 before the first */
    bool backward;      /* cache only: here or further out */
    /* cache only: */
    uint32_t stack;
    uint32_t module_name; /* of the innermost module from here outwards */
    uint64_t unnamed;     /* its address if it has no name of its own */
    uint64_t root;        /* the outermost module */
} level_t;

struct mp_pystack_cache {
    uint64_t salt;           /* of the intern that the ids are from */
    const void *module_code; /* what calls modules */
    uint32_t names;          /* generation of the modules' names */
    uint32_t depth;          /* 0: nothing known */
    place_t places[MP_PYSTACK_MAX_DEPTH]; /* outermost first, as the levels */
    level_t levels[MP_PYSTACK_MAX_DEPTH];
};

mp_pystack_cache_t *
mp_pystack_cache_new(void)
{
    return mp_calloc(1, sizeof(mp_pystack_cache_t));
}

void
mp_pystack_cache_free(mp_pystack_cache_t *cache)
{
    mp_free(cache);
}

#ifdef MP_PYSTACK_UNSUPPORTED

bool
mp_pystack_init(const char **why)
{
    *why = MP_PYSTACK_UNSUPPORTED;
    return false;
}

void
mp_pystack_set_codes(const void *module, const void *const *backward,
                     size_t backward_count)
{
    (void)module;
    (void)backward;
    (void)backward_count;
}

void
mp_pystack_current(mp_pystack_cache_t *cache, mp_intern_t *intern,
                   const mp_names_t *names, mp_pystack_t *out)
{
    (void)cache;
    (void)intern;
    (void)names;
    *out = (mp_pystack_t){.stack = MP_NO_INDEX, .module = MP_NO_INDEX};
}

#else

/* -- fingerprint: what the object at an address is ------------------------ */

/* Odd numbers without pattern, to spread bits with. */
#define MIX_A UINT64_C(0x9E3779B97F4A7C15)
#define MIX_B UINT64_C(0xC2B2AE3D27D4EB4F)
#define MIX_C UINT64_C(0xD6E8FEB86659FD93)
#define MIX_D UINT64_C(0xA0761D6478BD642F)
#define MIX_E UINT64_C(0xE7037ED1A0B428DB)

/* Names, files and line tables die with the code they belong to, and their
 * addresses are used again like its own: a loop that makes and drops
 * functions sees the same pointers each time.  So every code object has a
 * generation as well, another one than all that lay at its address before. */
#if PY_VERSION_HEX >= 0x030C0000

/* Python numbers its code objects.  (When its 32 bits have run out, new ones
 * have 0, and the pointers must do.) */
#define GENERATION_TELLS(number) ((number) != 0)

static inline uint32_t
generation(const PyCodeObject *code)
{
    return code->co_version;
}

static void
watch_code(void)
{
}

#else

/* Python numbers nothing, so deaths are counted, by a few bits of the
 * address.  They happen under the GIL, and whoever runs new code at an old
 * address has had it since. */
#define GENERATION_TELLS(number) true
static atomic_uint deaths[1 << 12];
static destructor dealloc_code; /* Python's own; set once, with the GIL */

static inline atomic_uint *
deaths_at(const void *code)
{
    return &deaths[(uint64_t)(uintptr_t)code * MIX_A >> 52];
}

static inline uint32_t
generation(const PyCodeObject *code)
{
    return atomic_load_explicit(deaths_at(code), memory_order_relaxed);
}

static void
count_death(PyObject *code)
{
    atomic_fetch_add_explicit(deaths_at(code), 1, memory_order_relaxed);
    dealloc_code(code);
}

/* For good: an extension is never unloaded. */
static void
watch_code(void)
{
    if (dealloc_code == NULL) {
        dealloc_code = PyCode_Type.tp_dealloc;
        PyCode_Type.tp_dealloc = count_death;
    }
}

#endif

/* Cheap: computed for every frame of every walk. */
static inline uint64_t
fingerprint(const PyCodeObject *code)
{
    return (uint64_t)(uintptr_t)mp_pycode_name(code) * MIX_A +
           (uint64_t)(uintptr_t)code->co_filename * MIX_B +
           (uint64_t)(uintptr_t)code->co_linetable * MIX_C +
           (((uint64_t)(uint32_t)code->co_firstlineno << 32) ^
            mp_pycode_length(code)) *
               MIX_D +
           generation(code) * MIX_E;
}

/* -- positions: (code, instruction) -> frame id --------------------------- */

/* Shared by all threads, never locked, and only a cache: an entry may be
 * overwritten, or lost while the table grows, and is then found out again.
 * `check` is the signature of the position (address, instruction and
 * fingerprint) with the frame mixed in: an entry that two writers left
 * half-written, or that another object at the same address left, does not
 * match its signature.  So each field can be read and written by itself. */
typedef struct {
    _Atomic uint64_t check;
    _Atomic uint32_t tag; /* of (code, instruction); 0: empty */
    _Atomic uint32_t frame;
} position_t;

#define WAYS 4 /* a bucket is one cache line */

typedef struct positions {
    struct positions *smaller; /* what it replaced; readers may be in there */
    position_t *entries;
    uint32_t mask;         /* of the bucket number */
    _Atomic uint32_t used; /* entries, about */
} positions_t;

/* 4 Ki entries to begin with (64 KiB), 1 Mi at the most (16 MiB).  Full:
 * new positions overwrite old ones. */
#define FIRST_BUCKETS (UINT32_C(1) << 10)
#define MAX_BUCKETS (UINT32_C(1) << 18)
#define GROWTH 4

/* Kept for the life of the process: a walk may be under way at any time. */
static _Atomic(positions_t *) the_positions;
static atomic_flag growing = ATOMIC_FLAG_INIT;

static positions_t *
positions_new(uint32_t buckets)
{
    const size_t line = WAYS * sizeof(position_t);
    positions_t *table =
        mp_calloc(1, sizeof(*table) + (size_t)buckets * line + line);
    if (table != NULL) {
        uintptr_t end = (uintptr_t)(table + 1);
        table->entries = (position_t *)((end + line - 1) & ~(line - 1));
        table->mask = buckets - 1;
    }
    return table;
}

static inline position_t *
bucket_of(const positions_t *table, uint32_t tag)
{
    return &table->entries[(size_t)(tag & table->mask) * WAYS];
}

static inline uint64_t
position_hash(const level_t *level)
{
    uint64_t hash = (uint64_t)(uintptr_t)level->code * MIX_A +
                    (uint64_t)(uint32_t)level->index * MIX_B;
    hash ^= hash >> 32;
    return hash * MIX_C;
}

static inline uint32_t
position_tag(uint64_t hash)
{
    uint32_t tag = (uint32_t)(hash >> 32);
    return tag != 0 ? tag : 1;
}

static inline uint64_t
position_check(uint64_t signature, uint32_t frame)
{
    return signature ^ ((uint64_t)frame + 1) * MIX_E;
}

static uint32_t
positions_find(uint32_t tag, uint64_t signature)
{
    const positions_t *table =
        atomic_load_explicit(&the_positions, memory_order_acquire);
    position_t *entry = bucket_of(table, tag);
    for (int i = 0; i < WAYS; i++, entry++) {
        if (atomic_load_explicit(&entry->tag, memory_order_relaxed) != tag) {
            continue;
        }
        uint32_t frame =
            atomic_load_explicit(&entry->frame, memory_order_relaxed);
        if (atomic_load_explicit(&entry->check, memory_order_relaxed) ==
            position_check(signature, frame)) {
            return frame;
        }
    }
    return MP_NO_INDEX;
}

/* The entry to write TAG into: its own, an empty one, or NULL. */
static position_t *
entry_for(const positions_t *table, uint32_t tag)
{
    position_t *bucket = bucket_of(table, tag);
    position_t *empty = NULL;
    for (int i = 0; i < WAYS; i++) {
        uint32_t there =
            atomic_load_explicit(&bucket[i].tag, memory_order_relaxed);
        if (there == tag) {
            return &bucket[i];
        }
        if (there == 0 && empty == NULL) {
            empty = &bucket[i];
        }
    }
    return empty;
}

static void
entry_set(positions_t *table, position_t *entry, uint32_t tag, uint64_t check,
          uint32_t frame)
{
    if (atomic_load_explicit(&entry->tag, memory_order_relaxed) == 0) {
        atomic_fetch_add_explicit(&table->used, 1, memory_order_relaxed);
    }
    atomic_store_explicit(&entry->check, check, memory_order_relaxed);
    atomic_store_explicit(&entry->frame, frame, memory_order_relaxed);
    atomic_store_explicit(&entry->tag, tag, memory_order_relaxed);
}

/* A larger table in place of TABLE, unless another thread is at it, memory
 * is out or the table is as large as it gets. */
static void
positions_grow(positions_t *table)
{
    if (table->mask + 1 >= MAX_BUCKETS ||
        atomic_flag_test_and_set_explicit(&growing, memory_order_acquire)) {
        return;
    }
    if (atomic_load_explicit(&the_positions, memory_order_relaxed) == table) {
        positions_t *larger = positions_new((table->mask + 1) * GROWTH);
        if (larger != NULL) {
            for (size_t i = 0; i < ((size_t)table->mask + 1) * WAYS; i++) {
                position_t *from = &table->entries[i];
                uint32_t tag =
                    atomic_load_explicit(&from->tag, memory_order_relaxed);
                position_t *entry = tag != 0 ? entry_for(larger, tag) : NULL;
                if (entry != NULL) {
                    entry_set(larger, entry, tag,
                              atomic_load_explicit(&from->check,
                                                   memory_order_relaxed),
                              atomic_load_explicit(&from->frame,
                                                   memory_order_relaxed));
                }
            }
            larger->smaller = table;
            atomic_store_explicit(&the_positions, larger,
                                  memory_order_release);
        }
    }
    atomic_flag_clear_explicit(&growing, memory_order_release);
}

static void
positions_put(uint32_t tag, uint64_t signature, uint32_t frame)
{
    positions_t *table =
        atomic_load_explicit(&the_positions, memory_order_acquire);
    position_t *entry = entry_for(table, tag);
    if (entry == NULL) {
        /* A crowded bucket in an empty table is chance; else grow. */
        uint32_t used =
            atomic_load_explicit(&table->used, memory_order_relaxed);
        if (used >= table->mask + 1) {
            positions_grow(table);
            table = atomic_load_explicit(&the_positions, memory_order_acquire);
            entry = entry_for(table, tag);
        }
    }
    if (entry == NULL) {
        entry = bucket_of(table, tag) + (signature >> 32) % WAYS;
    }
    entry_set(table, entry, tag, position_check(signature, frame), frame);
}

/* -- text: from Python's strings to UTF-8 --------------------------------- */

static size_t
utf8_put(char *out, uint32_t character)
{
    if (character < 0x80) {
        out[0] = (char)character;
        return 1;
    }
    if (character < 0x800) {
        out[0] = (char)(0xC0 | character >> 6);
        out[1] = (char)(0x80 | (character & 0x3F));
        return 2;
    }
    if (character >= 0xD800 && character < 0xE000) {
        character = 0xFFFD; /* half of a pair, as in undecodable file names */
    }
    if (character < 0x10000) {
        out[0] = (char)(0xE0 | character >> 12);
        out[1] = (char)(0x80 | (character >> 6 & 0x3F));
        out[2] = (char)(0x80 | (character & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | character >> 18);
    out[1] = (char)(0x80 | (character >> 12 & 0x3F));
    out[2] = (char)(0x80 | (character >> 6 & 0x3F));
    out[3] = (char)(0x80 | (character & 0x3F));
    return 4;
}

/* The id of a Python text.  Not PyUnicode_AsUTF8(), which needs the GIL: it
 * stores what it made in the string. */
static uint32_t
intern_text(mp_intern_t *intern, PyObject *text)
{
    if (!mp_pytext_is_ready(text)) {
        return mp_intern_string(intern, "?", 1);
    }
    size_t length = (size_t)PyUnicode_GET_LENGTH(text);
    int kind = (int)PyUnicode_KIND(text);
    const void *data = PyUnicode_DATA(text);
    if (PyUnicode_IS_ASCII(text)) {
        return mp_intern_string(intern, data, length);
    }
    char small[512] = "";
    char *utf8 = small;
    if (length > sizeof(small) / 4) {
        utf8 = mp_calloc(length, 4);
        if (utf8 == NULL) {
            return MP_NO_INDEX;
        }
    }
    size_t size = 0;
    for (size_t i = 0; i < length; i++) {
        size +=
            utf8_put(utf8 + size, PyUnicode_READ(kind, data, (Py_ssize_t)i));
    }
    uint32_t id = mp_intern_string(intern, utf8, size);
    if (utf8 != small) {
        mp_free(utf8);
    }
    return id;
}

/* -- lines: from an instruction to a line number -------------------------- */

/* Not PyCode_Addr2Line(), which may use an array that another thread is
 * about to build.  0: the instruction belongs to no line. */

#if PY_VERSION_HEX >= 0x030B0000

/* The location table: entries of a first byte with its high bit set (kind in
 * bits 3-6, length less one in bits 0-2) and more bytes without it. */
enum {
    LINE_PLUS_0 = 10, /* to 12: the next 0, 1 or 2 lines */
    LINE_PLUS_2 = 12,
    LINE_NO_COLUMNS = 13,
    LINE_LONG = 14,
    LINE_NONE = 15,
};

/* A signed number: 6 bits a byte, lowest first, bit 6 says that more follow;
 * bit 0 of the whole is the sign. */
static int64_t
read_delta(const uint8_t *at, const uint8_t *end)
{
    uint64_t value = 0;
    for (unsigned shift = 0; at < end && shift < 36; shift += 6) {
        value |= (uint64_t)(*at & 0x3F) << shift;
        if ((*at++ & 0x40) == 0) {
            break;
        }
    }
    int64_t magnitude = (int64_t)(value >> 1);
    return (value & 1) != 0 ? -magnitude : magnitude;
}

static uint32_t
line_of(const PyCodeObject *code, int32_t index)
{
    const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(code->co_linetable);
    const uint8_t *end = at + PyBytes_GET_SIZE(code->co_linetable);
    int64_t line = code->co_firstlineno;
    int64_t next = 0; /* first instruction after the entry */
    while (at < end && index >= 0) {
        int kind = *at >> 3 & 15;
        next += (*at++ & 7) + 1;
        if (kind == LINE_NO_COLUMNS || kind == LINE_LONG) {
            line += read_delta(at, end);
        }
        else if (kind >= LINE_PLUS_0 && kind <= LINE_PLUS_2) {
            line += kind - LINE_PLUS_0;
        }
        if (index < next) {
            return kind != LINE_NONE && line > 0 ? (uint32_t)line : 0;
        }
        while (at < end && (*at & 0x80) == 0) {
            at++;
        }
    }
    return index < 0 && line > 0 ? (uint32_t)line : 0;
}

#else /* 3.10, PEP 626 */

/* Pairs of bytes: how far the entry reaches (in bytes of bytecode), and the
 * signed step to its line; -128: it has none. */
static uint32_t
line_of(const PyCodeObject *code, int32_t index)
{
    const uint8_t *at = (const uint8_t *)PyBytes_AS_STRING(code->co_linetable);
    const uint8_t *end = at + PyBytes_GET_SIZE(code->co_linetable);
    int64_t line = code->co_firstlineno;
    int64_t next = 0;
    int64_t offset = (int64_t)index * 2;
    for (; end - at >= 2 && index >= 0; at += 2) {
        int step = (int8_t)at[1];
        next += at[0];
        line += step != -128 ? step : 0;
        if (offset < next) {
            return step != -128 && line > 0 ? (uint32_t)line : 0;
        }
    }
    return index < 0 && line > 0 ? (uint32_t)line : 0;
}

#endif

/* -- interns: whose ids are they? ----------------------------------------- */

/* Ids kept here and in the threads' caches are those of one intern.  Another
 * one has another address or, at the address of a dead one, fewer frames
 * than were handed out: then everything known is void, by a new epoch. */
static atomic_uint the_epoch;
static atomic_uint frames_known; /* highest frame id handed out, plus one */

static inline uint64_t
salt_of(const mp_intern_t *intern)
{
    /* In this order: a frame is in its intern before it is known here. */
    uint32_t known = atomic_load_explicit(&frames_known, memory_order_acquire);
    if (MP_UNLIKELY(mp_intern_frames(intern) < known)) {
        atomic_store_explicit(&frames_known, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&the_epoch, 1, memory_order_relaxed);
    }
    uint32_t epoch = atomic_load_explicit(&the_epoch, memory_order_relaxed);
    return (uint64_t)(uintptr_t)intern * MIX_B + (uint64_t)epoch * MIX_C;
}

static void
note_frame(uint32_t frame)
{
    uint32_t known = atomic_load_explicit(&frames_known, memory_order_relaxed);
    while (frame >= known && !atomic_compare_exchange_weak_explicit(
                                 &frames_known, &known, frame + 1,
                                 memory_order_release, memory_order_relaxed)) {
    }
}

/* -- the walk ------------------------------------------------------------- */

static atomic_bool ready;
static _Atomic(const void *) module_code; /* NULL: modules are not asked for */
static _Atomic(const void *) backward_codes[MP_PYSTACK_BACKWARD_CODES];
static PyInterpreterState *main_interpreter; /* set before `ready` */

/* The frame of a position, out of the code object: its first sight. */
static uint32_t
resolve(mp_intern_t *intern, const level_t *level)
{
    const PyCodeObject *code = level->code;
    uint32_t function = intern_text(intern, mp_pycode_name(code));
    uint32_t file = intern_text(intern, code->co_filename);
    if (function == MP_NO_INDEX || file == MP_NO_INDEX) {
        return MP_NO_INDEX;
    }
    return mp_intern_frame(intern, function, file,
                           line_of(code, level->index));
}

static uint32_t
frame_of(mp_intern_t *intern, uint64_t salt, const level_t *level)
{
    uint64_t hash = position_hash(level);
    uint32_t tag = position_tag(hash);
    uint64_t signature = hash + level->fingerprint * MIX_A + salt;
    uint32_t frame = positions_find(tag, signature);
    if (MP_UNLIKELY(frame == MP_NO_INDEX)) {
        frame = resolve(intern, level);
        if (frame != MP_NO_INDEX) {
            note_frame(frame);
            positions_put(tag, signature, frame);
        }
    }
    return frame;
}

void
mp_pystack_set_codes(const void *module, const void *const *backward,
                     size_t backward_count)
{
    atomic_store_explicit(&module_code, module, memory_order_release);
    for (size_t i = 0; i < MP_PYSTACK_BACKWARD_CODES; i++) {
        atomic_store_explicit(&backward_codes[i],
                              i < backward_count ? backward[i] : NULL,
                              memory_order_release);
    }
}

static bool
runs_backward(const void *code)
{
    for (size_t i = 0; i < MP_PYSTACK_BACKWARD_CODES; i++) {
        if (code ==
            atomic_load_explicit(&backward_codes[i], memory_order_relaxed)) {
            return true;
        }
    }
    return false;
}

/* The frames that a walk found new, innermost first. */
typedef struct {
    uint32_t count;
    place_t places[MP_PYSTACK_MAX_DEPTH];
    level_t levels[MP_PYSTACK_MAX_DEPTH];
} walk_t;

static void
walk_add(walk_t *walk, const mp_pyframe_t *frame, const PyCodeObject *code,
         const void *module_call)
{
    uint32_t number = generation(code);
    bool is_module = code == module_call;
    walk->places[walk->count] = (place_t){
        .frame = frame,
        .code = GENERATION_TELLS(number) ? code : NULL,
        .at = mp_pyframe_at(frame),
        .generation = number,
        .is_module = is_module,
    };
    level_t *level = &walk->levels[walk->count++];
    level->code = code;
    level->fingerprint = fingerprint(code);
    level->index = mp_pyframe_index(frame, code);
    level->module = is_module ? mp_pyframe_self(frame, code) : NULL;
}

static inline bool
is_at(const mp_pystack_cache_t *cache, uint32_t i, const mp_pyframe_t *frame,
      const void *code)
{
    const place_t *place = &cache->places[i];
    return place->frame == frame && place->code == code &&
           place->at == mp_pyframe_at(frame) &&
           place->generation == generation(code) &&
           (MP_LIKELY(!place->is_module) ||
            cache->levels[i].module == mp_pyframe_self(frame, code));
}

/* The index below LEFT of the cached level that may be FRAME; LEFT: none. */
static inline uint32_t
find_place(const mp_pystack_cache_t *cache, uint32_t *left,
           const mp_pyframe_t *frame)
{
    while (*left > 0 &&
           mp_pyframe_is_inside(cache->places[*left - 1].frame, frame)) {
        (*left)--; /* that frame is gone */
    }
    for (uint32_t i = *left; i-- > 0;) {
        const void *other = cache->places[i].frame;
        if (other == frame) {
            return i;
        }
        if (mp_pyframe_is_inside(frame, other)) {
            break;
        }
    }
    return *left;
}

/* What was passed over is new after all: levels [LEFT, LEFT + RUN). */
static void
walk_take(walk_t *walk, const mp_pystack_cache_t *cache, uint32_t left,
          uint32_t run)
{
    for (uint32_t i = left + run; i-- > left;) {
        walk->places[walk->count] = cache->places[i];
        walk->levels[walk->count++] = cache->levels[i];
    }
}

/* Of all the frames of a walk, those at its outermost end that equal the
 * cache's leave it.  For frames that moved: a generator's, or a stack that
 * reached another chunk. */
static uint32_t
walk_share(walk_t *walk, const mp_pystack_cache_t *cache)
{
    uint32_t shared = 0;
    for (; walk->count > 0 && shared < cache->depth; shared++) {
        const level_t *now = &walk->levels[walk->count - 1];
        const level_t *last = &cache->levels[shared];
        if (now->code != last->code || now->index != last->index ||
            now->fingerprint != last->fingerprint ||
            now->module != last->module) {
            break;
        }
        walk->count--;
    }
    return shared;
}

/* Walk THREAD's frames.  Returns how many of the cache's levels, from the
 * outermost, still hold; the frames inside of those are in WALK. */
static uint32_t
walk_frames(const PyThreadState *thread, const mp_pystack_cache_t *cache,
            const void *module_call, walk_t *walk)
{
    walk->count = 0;
    uint32_t left = cache->depth; /* levels that may still be met */
    uint32_t run = 0;             /* levels from LEFT on that were met */
    const mp_pyframe_t *frame = mp_pyframe_first(thread);
    for (; frame != NULL && walk->count + run < MP_PYSTACK_MAX_DEPTH;
         frame = mp_pyframe_next(frame)) {
        const void *executable = mp_pyframe_executable(frame);
        if (executable == NULL) {
            continue;
        }
        if (run > 0) {
            if (left > 0 && is_at(cache, left - 1, frame, executable)) {
                left--;
                run++;
                continue;
            }
        }
        else {
            uint32_t found = find_place(cache, &left, frame);
            if (found < left && is_at(cache, found, frame, executable)) {
                left = found;
                run = 1;
                continue;
            }
        }
        const PyCodeObject *code = mp_pyframe_code(frame);
        if (code == NULL) {
            continue;
        }
        /* The function that looked known was called from elsewhere. */
        walk_take(walk, cache, left, run);
        run = 0;
        walk_add(walk, frame, code, module_call);
    }
    if (left == 0) {
        return run;
    }
    walk_take(walk, cache, left, run);
    return walk_share(walk, cache);
}

/* The name that a module without one goes by: its class's. */
static uint32_t
class_name(mp_intern_t *intern, const void *module)
{
    const char *name = Py_TYPE((PyObject *)module)->tp_name;
    const char *dot = strrchr(name, '.');
    name = dot == NULL ? name : dot + 1;
    return mp_intern_string(intern, name, strlen(name));
}

/* Whether NAME is that of a root that is a graph, not one's place in a model.
 */
static bool
is_class_name(const mp_intern_t *intern, uint32_t name)
{
    const char *text;
    size_t length;
    return mp_intern_text(intern, name, &text, &length) &&
           strncmp(text, "GraphModule", 11) == 0;
}

/* Whether MODULE may be what torch.compile made of one. */
static bool
is_compiled_graph(const void *module)
{
    const char *name = Py_TYPE((PyObject *)module)->tp_name;
    const char *dot = strrchr(name, '.');
    return strncmp(dot == NULL ? name : dot + 1, "GraphModule", 11) == 0;
}

/* What LEVEL says of modules, given the level outside of it (or NULL). */
static void
level_modules(level_t *level, const level_t *outside, mp_intern_t *intern,
              const mp_names_t *names)
{
    level->module_name = outside == NULL ? MP_NO_INDEX : outside->module_name;
    level->unnamed = outside == NULL ? 0 : outside->unnamed;
    level->root = outside == NULL ? 0 : outside->root;
    level->backward = outside != NULL && outside->backward;
    if (MP_UNLIKELY(runs_backward(level->code))) {
        level->backward = true;
        level->module_name = MP_NO_INDEX;
        level->unnamed = 0;
        level->root = 0;
    }
    if (MP_LIKELY(level->module == NULL) || names == NULL) {
        return;
    }
    uint64_t addr = (uintptr_t)level->module;
    uint32_t name = mp_names_get(names, addr);
    if (outside != NULL && level->root != 0 &&
        is_compiled_graph(level->module) &&
        (name == MP_NO_INDEX || is_class_name(intern, name))) {
        return; /* it stands for the module that was compiled */
    }
    level->module_name =
        name != MP_NO_INDEX ? name : class_name(intern, level->module);
    level->unnamed = name != MP_NO_INDEX ? 0 : addr;
    if (level->root == 0) {
        level->root = addr;
    }
}

void
mp_pystack_current(mp_pystack_cache_t *cache, mp_intern_t *intern,
                   const mp_names_t *names, mp_pystack_t *out)
{
    *out = (mp_pystack_t){.stack = MP_NO_INDEX, .module = MP_NO_INDEX};
    if (!atomic_load_explicit(&ready, memory_order_acquire)) {
        return;
    }
    /* Not PyThreadState_GetUnchecked() and its like: NULL, or another
     * thread's, while this thread does not hold the GIL. */
    const PyThreadState *thread = PyGILState_GetThisThreadState();
    if (thread == NULL || thread->interp != main_interpreter) {
        return;
    }
    uint64_t salt = salt_of(intern);
    uint32_t generation = names == NULL ? 0 : mp_names_generation(names);
    const void *module_call =
        atomic_load_explicit(&module_code, memory_order_acquire);
    if (MP_UNLIKELY(cache->salt != salt || cache->names != generation ||
                    cache->module_code != module_call)) {
        cache->salt = salt;
        cache->names = generation;
        cache->module_code = module_call;
        cache->depth = 0;
    }
    walk_t walk;
    uint32_t depth = walk_frames(thread, cache, module_call, &walk);

    const level_t *outside = depth > 0 ? &cache->levels[depth - 1] : NULL;
    for (uint32_t i = walk.count; i-- > 0; depth++) {
        level_t *level = &walk.levels[i];
        uint32_t frame = frame_of(intern, salt, level);
        uint32_t parent = outside == NULL ? MP_NO_INDEX : outside->stack;
        level->stack = frame != MP_NO_INDEX
                           ? mp_intern_stack(intern, parent, frame)
                           : MP_NO_INDEX;
        if (level->stack == MP_NO_INDEX) {
            cache->depth = depth;
            return;
        }
        level_modules(level, outside, intern, names);
        cache->places[depth] = walk.places[i];
        cache->levels[depth] = *level;
        outside = &cache->levels[depth];
    }
    cache->depth = depth;
    if (outside != NULL) {
        *out = (mp_pystack_t){
            .stack = outside->stack,
            .module = outside->module_name,
            .unnamed = outside->unnamed,
            .root = outside->root,
            .backward = outside->backward,
        };
    }
}

/* -- start ---------------------------------------------------------------- */

/* The calling thread's stack, read both ways: by the walk and by the public
 * API.  Holds the GIL, so the API may make its frame objects. */
static bool
walk_agrees(PyThreadState *thread)
{
    static const mp_pystack_cache_t nothing;
    walk_t walk;
    (void)walk_frames(thread, &nothing, NULL, &walk);
    uint32_t seen = 0;
    bool same = true;
    PyFrameObject *frame = PyThreadState_GetFrame(thread);
    while (frame != NULL && same && seen < MP_PYSTACK_MAX_DEPTH) {
        PyCodeObject *code = PyFrame_GetCode(frame);
#if PY_VERSION_HEX >= 0x030B0000
        int offset = PyFrame_GetLasti(frame);
#else
        int offset = frame->f_lasti * 2;
#endif
        int line = PyCode_Addr2Line(code, offset);
        same = seen < walk.count && walk.levels[seen].code == code &&
               line_of(code, walk.levels[seen].index) ==
                   (uint32_t)(line > 0 ? line : 0);
        seen++;
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
    return same && seen == walk.count;
}

bool
mp_pystack_init(const char **why)
{
    int major = 0;
    int minor = 0;
    if (sscanf(Py_GetVersion(), "%d.%d", &major, &minor) != 2 ||
        major != PY_MAJOR_VERSION || minor != PY_MINOR_VERSION) {
        *why = "this memprof was compiled for Python " PY_VERSION;
        return false;
    }
    if (!mp_pystack_offsets_match()) {
        *why = "this Python keeps its frames elsewhere than the " PY_VERSION
               " that memprof was compiled for";
        return false;
    }
    if (!walk_agrees(PyThreadState_Get())) {
        *why = "the frames of this Python do not read as its own traceback";
        return false;
    }
    if (atomic_load_explicit(&the_positions, memory_order_relaxed) == NULL) {
        positions_t *table = positions_new(FIRST_BUCKETS);
        if (table == NULL) {
            *why = "out of memory";
            return false;
        }
        atomic_store_explicit(&the_positions, table, memory_order_release);
    }
    watch_code();
    main_interpreter = PyInterpreterState_Main();
    atomic_store_explicit(&ready, true, memory_order_release);
    return true;
}

#endif
