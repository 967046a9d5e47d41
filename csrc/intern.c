/* intern.c - every text, frame and stack once, behind a small number.
 *
 * The three sets are made the same way:
 *
 *   records   in chunks, each twice as long as the one before, that never
 *             move; id -> chunk and place in it is a bit scan
 *   slots     open addressing, linear probing, at most half full; a slot is
 *             one atomic word (hash << 32 | id + 1; 0: empty) that is
 *             written once
 *
 * Readers take no lock.  What they follow is published in this order, each
 * with release: the record (a plain write), the count, the slot; and a grown
 * table after all its slots.  So whoever finds an id in a slot finds the
 * record and a count above the id.  A reader that still holds an outgrown
 * table may miss a new record; it then looks again under the lock before it
 * adds.  Outgrown tables are therefore kept until the end; together they are
 * no larger than the one in use.
 *
 * Memory is asked for outside the lock and installed under it: see add(). */
#include "intern.h"

#include "mem.h"
#include "sync.h"

#include <stdatomic.h>
#include <string.h>

#define FIRST_RECORDS 64u /* in chunk 0; a power of two */
#define FIRST_RECORDS_LOG2 6
#define CHUNKS 25 /* 2^31 records, the most that half of 2^32 slots name */
#define MAX_RECORDS ((FIRST_RECORDS << CHUNKS) - FIRST_RECORDS)
#define FIRST_SLOTS 128
#define TEXT_CHUNK_BYTES 65536

typedef struct slots {
    struct slots *outgrown; /* the table before this one; for freeing */
    size_t mask;            /* number of slots - 1 */
    _Atomic uint64_t slot[];
} slots_t;

typedef struct {
    _Atomic(slots_t *) slots;
    _Atomic(char *) chunks[CHUNKS];
    atomic_uint count;
} set_t;

typedef struct {
    const char *text; /* in a text chunk, a NUL behind it */
    size_t length;
} string_t;

typedef struct text_chunk {
    struct text_chunk *next; /* the chunk before this one; for freeing */
    size_t used;
    size_t room;
    char bytes[];
} text_chunk_t;

/* Changed only under `lock`, which is a leaf.  Each change is complete with
 * one store, so that a child forked in the middle of one finds either the
 * state before or the state after it. */
struct mp_intern {
    set_t strings;      /* of string_t */
    set_t frames;       /* of mp_frame_t */
    set_t stacks;       /* of mp_stack_t */
    text_chunk_t *text; /* the newest chunk; NULL at first */
    atomic_size_t bytes;
    mp_spin_t lock;
};

/* A kind of record, known at compile time so that everything inlines. */
typedef struct {
    size_t record_bytes;
    bool (*equal)(const void *record, const void *key);
    bool has_text; /* the record is a string_t */
} kind_t;

/* What add() lacks. */
typedef enum {
    WANT_NOTHING,
    WANT_SLOTS,
    WANT_CHUNK,
    WANT_TEXT,
    WANT_FEWER_RECORDS /* no id is left: nothing helps */
} want_t;

/* --- hashes ------------------------------------------------------------- */

static inline uint64_t
mix(uint64_t value)
{
    value *= UINT64_C(0x9e3779b97f4a7c15);
    value ^= value >> 32;
    value *= UINT64_C(0xd6e8feb86659fd93);
    return value ^ (value >> 32);
}

static inline uint32_t
hash_pair(uint32_t first, uint32_t second)
{
    return (uint32_t)mix(((uint64_t)first << 32) | second);
}

static uint32_t
hash_text(const char *text, size_t length)
{
    uint64_t hash = length;
    uint64_t word;
    for (; length >= sizeof(word); length -= sizeof(word)) {
        memcpy(&word, text, sizeof(word));
        hash = mix(hash ^ word);
        text += sizeof(word);
    }
    word = 0;
    if (length > 0) {
        memcpy(&word, text, length);
    }
    return (uint32_t)mix(hash ^ word);
}

/* --- kinds -------------------------------------------------------------- */

static inline bool
string_equal(const void *record, const void *key)
{
    const string_t *a = record;
    const string_t *b = key;
    return a->length == b->length &&
           (a->length == 0 || memcmp(a->text, b->text, a->length) == 0);
}

static inline bool
frame_equal(const void *record, const void *key)
{
    const mp_frame_t *a = record;
    const mp_frame_t *b = key;
    return a->function == b->function && a->file == b->file &&
           a->line == b->line;
}

static inline bool
stack_equal(const void *record, const void *key)
{
    const mp_stack_t *a = record;
    const mp_stack_t *b = key;
    return a->parent == b->parent && a->frame == b->frame;
}

static const kind_t string_kind = {sizeof(string_t), string_equal, true};
static const kind_t frame_kind = {sizeof(mp_frame_t), frame_equal, false};
static const kind_t stack_kind = {sizeof(mp_stack_t), stack_equal, false};

/* --- records and slots -------------------------------------------------- */

/* The chunk that ID is in; *PLACE: which of its records. */
static inline size_t
chunk_of(uint32_t id, size_t *place)
{
    uint64_t number = (uint64_t)id + FIRST_RECORDS;
    unsigned log2 = 63 - (unsigned)__builtin_clzll(number);
    *place = (size_t)(number - (UINT64_C(1) << log2));
    return log2 - FIRST_RECORDS_LOG2;
}

static inline size_t
chunk_records(size_t chunk)
{
    return (size_t)FIRST_RECORDS << chunk;
}

/* The record of ID, which must exist or be the next one to be added. */
static inline char *
record_at(const set_t *set, size_t record_bytes, uint32_t id)
{
    size_t place;
    size_t chunk = chunk_of(id, &place);
    /* Relaxed: the count or slot that ID was learned from was acquired. */
    char *records =
        atomic_load_explicit(&set->chunks[chunk], memory_order_relaxed);
    return records + place * record_bytes;
}

static inline uint32_t
count_of(const set_t *set)
{
    return atomic_load_explicit(&set->count, memory_order_acquire);
}

/* The record of ID, or NULL if there is none. */
static inline const void *
record_or_null(const set_t *set, size_t record_bytes, uint32_t id)
{
    return id < count_of(set) ? record_at(set, record_bytes, id) : NULL;
}

/* The id of KEY; MP_NO_INDEX: not there, or not yet seen by this thread. */
static inline uint32_t
find(const set_t *set, const kind_t *kind, uint32_t hash, const void *key)
{
    const slots_t *slots =
        atomic_load_explicit(&set->slots, memory_order_acquire);
    for (size_t at = hash & slots->mask;; at = (at + 1) & slots->mask) {
        uint64_t slot =
            atomic_load_explicit(&slots->slot[at], memory_order_acquire);
        if (slot == 0) {
            return MP_NO_INDEX;
        }
        uint32_t id = (uint32_t)slot - 1;
        if ((uint32_t)(slot >> 32) == hash &&
            kind->equal(record_at(set, kind->record_bytes, id), key)) {
            return id;
        }
    }
}

/* Write SLOT into the first empty place of its run. */
static void
put_slot(slots_t *slots, uint64_t slot)
{
    size_t at = (size_t)(slot >> 32) & slots->mask;
    while (atomic_load_explicit(&slots->slot[at], memory_order_relaxed) != 0) {
        at = (at + 1) & slots->mask;
    }
    atomic_store_explicit(&slots->slot[at], slot, memory_order_release);
}

/* --- adding ------------------------------------------------------------- */

/* Under the lock: the first thing that lacks for adding a record, and the
 * BYTES it takes. */
static want_t
what_lacks(const mp_intern_t *intern, const set_t *set, const kind_t *kind,
           size_t text_bytes, size_t *bytes)
{
    uint32_t count = count_of(set);
    if (count >= MAX_RECORDS) {
        return WANT_FEWER_RECORDS;
    }
    const slots_t *slots =
        atomic_load_explicit(&set->slots, memory_order_relaxed);
    if ((size_t)count * 2 > slots->mask) {
        *bytes = sizeof(slots_t) + (slots->mask + 1) * 2 * sizeof(uint64_t);
        return WANT_SLOTS;
    }
    size_t place;
    size_t chunk = chunk_of(count, &place);
    if (atomic_load_explicit(&set->chunks[chunk], memory_order_relaxed) ==
        NULL) {
        *bytes = chunk_records(chunk) * kind->record_bytes;
        return WANT_CHUNK;
    }
    const text_chunk_t *text = intern->text;
    if (kind->has_text &&
        (text == NULL || text_bytes > text->room - text->used)) {
        size_t room =
            text_bytes > TEXT_CHUNK_BYTES ? text_bytes : TEXT_CHUNK_BYTES;
        *bytes = sizeof(text_chunk_t) + room;
        return WANT_TEXT;
    }
    return WANT_NOTHING;
}

/* Publish a table of twice the size.  The one long stretch under the lock
 * (some 2 ns a record), which readers do not notice. */
static void
install_slots(set_t *set, slots_t *grown)
{
    slots_t *old = atomic_load_explicit(&set->slots, memory_order_relaxed);
    grown->outgrown = old;
    grown->mask = old->mask * 2 + 1;
    for (size_t i = 0; i <= old->mask; i++) {
        uint64_t slot =
            atomic_load_explicit(&old->slot[i], memory_order_relaxed);
        if (slot != 0) {
            put_slot(grown, slot);
        }
    }
    atomic_store_explicit(&set->slots, grown, memory_order_release);
}

/* Under the lock: put MEMORY (BYTES zeros, asked for as WANT) where it
 * lacks. */
static void
install(mp_intern_t *intern, set_t *set, want_t want, void *memory,
        size_t bytes)
{
    if (want == WANT_SLOTS) {
        install_slots(set, memory);
    }
    else if (want == WANT_CHUNK) {
        size_t place;
        size_t chunk = chunk_of(count_of(set), &place);
        atomic_store_explicit(&set->chunks[chunk], (char *)memory,
                              memory_order_release);
    }
    else {
        text_chunk_t *chunk = memory;
        chunk->next = intern->text;
        chunk->room = bytes - sizeof(*chunk);
        intern->text = chunk;
    }
    atomic_fetch_add_explicit(&intern->bytes, bytes, memory_order_relaxed);
}

/* Under the lock, with nothing lacking: add KEY and return its id. */
static uint32_t
publish(mp_intern_t *intern, set_t *set, const kind_t *kind, uint32_t hash,
        const void *key)
{
    uint32_t id = count_of(set);
    void *record = record_at(set, kind->record_bytes, id);
    memcpy(record, key, kind->record_bytes);
    if (kind->has_text) {
        string_t *string = record;
        char *text = intern->text->bytes + intern->text->used;
        if (string->length > 0) {
            memcpy(text, string->text, string->length);
        }
        text[string->length] = '\0';
        string->text = text;
        intern->text->used += string->length + 1;
    }
    atomic_store_explicit(&set->count, id + 1, memory_order_release);
    put_slot(atomic_load_explicit(&set->slots, memory_order_relaxed),
             ((uint64_t)hash << 32) | (id + 1));
    return id;
}

/* Add KEY unless another thread just did.  The allocator may block, and the
 * lock must not be held while it does: so each round finds out under the
 * lock what lacks and gets it outside; the next one installs it, or gives
 * it back if another thread was first.  A round that ends without a record
 * has changed nothing. */
static uint32_t
add(mp_intern_t *intern, set_t *set, const kind_t *kind, uint32_t hash,
    const void *key)
{
    size_t text_bytes =
        kind->has_text ? ((const string_t *)key)->length + 1 : 0;
    void *memory = NULL;
    want_t memory_is = WANT_NOTHING;
    size_t memory_bytes = 0;
    for (;;) {
        want_t want = WANT_NOTHING;
        size_t bytes = 0;

        mp_spin_lock(&intern->lock);
        uint32_t id = find(set, kind, hash, key);
        if (id == MP_NO_INDEX) {
            want = what_lacks(intern, set, kind, text_bytes, &bytes);
            if (memory != NULL && want == memory_is && bytes == memory_bytes) {
                install(intern, set, want, memory, bytes);
                memory = NULL;
                want = what_lacks(intern, set, kind, text_bytes, &bytes);
            }
            if (want == WANT_NOTHING) {
                id = publish(intern, set, kind, hash, key);
            }
        }
        mp_spin_unlock(&intern->lock);

        mp_free(memory); /* another thread was first */
        if (want == WANT_NOTHING || want == WANT_FEWER_RECORDS) {
            return id;
        }
        memory = mp_calloc(1, bytes);
        memory_is = want;
        memory_bytes = bytes;
        if (memory == NULL) {
            return MP_NO_INDEX;
        }
    }
}

/* --- the interface ------------------------------------------------------ */

static bool
set_init(set_t *set)
{
    slots_t *slots =
        mp_calloc(1, sizeof(*slots) + FIRST_SLOTS * sizeof(uint64_t));
    if (slots == NULL) {
        return false;
    }
    slots->mask = FIRST_SLOTS - 1;
    atomic_store_explicit(&set->slots, slots, memory_order_release);
    return true;
}

static void
set_clear(set_t *set)
{
    slots_t *slots = atomic_load_explicit(&set->slots, memory_order_acquire);
    while (slots != NULL) {
        slots_t *outgrown = slots->outgrown;
        mp_free(slots);
        slots = outgrown;
    }
    for (size_t i = 0; i < CHUNKS; i++) {
        mp_free(atomic_load_explicit(&set->chunks[i], memory_order_acquire));
    }
}

mp_status_t
mp_intern_new(mp_intern_t **out)
{
    mp_intern_t *intern = mp_calloc(1, sizeof(*intern));
    if (intern == NULL) {
        return MP_ERR_NOMEM;
    }
    if (!set_init(&intern->strings) || !set_init(&intern->frames) ||
        !set_init(&intern->stacks)) {
        mp_intern_free(intern);
        return MP_ERR_NOMEM;
    }
    atomic_store_explicit(
        &intern->bytes,
        sizeof(*intern) +
            3 * (sizeof(slots_t) + FIRST_SLOTS * sizeof(uint64_t)),
        memory_order_relaxed);
    *out = intern;
    return MP_OK;
}

void
mp_intern_free(mp_intern_t *intern)
{
    if (intern == NULL) {
        return;
    }
    set_clear(&intern->strings);
    set_clear(&intern->frames);
    set_clear(&intern->stacks);
    while (intern->text != NULL) {
        text_chunk_t *next = intern->text->next;
        mp_free(intern->text);
        intern->text = next;
    }
    mp_free(intern);
}

uint32_t
mp_intern_string(mp_intern_t *intern, const char *text, size_t length)
{
    if (length >= PTRDIFF_MAX) {
        return MP_NO_INDEX;
    }
    string_t key = {text, length};
    uint32_t hash = hash_text(text, length);
    uint32_t id = find(&intern->strings, &string_kind, hash, &key);
    if (MP_LIKELY(id != MP_NO_INDEX)) {
        return id;
    }
    return add(intern, &intern->strings, &string_kind, hash, &key);
}

uint32_t
mp_intern_frame(mp_intern_t *intern, uint32_t function, uint32_t file,
                uint32_t line)
{
    mp_frame_t key = {function, file, line};
    uint32_t hash = hash_pair(hash_pair(function, file), line);
    uint32_t id = find(&intern->frames, &frame_kind, hash, &key);
    if (MP_LIKELY(id != MP_NO_INDEX)) {
        return id;
    }
    uint32_t strings = count_of(&intern->strings);
    if (function >= strings || file >= strings) {
        return MP_NO_INDEX;
    }
    return add(intern, &intern->frames, &frame_kind, hash, &key);
}

uint32_t
mp_intern_stack(mp_intern_t *intern, uint32_t parent, uint32_t frame)
{
    mp_stack_t key = {parent, frame};
    uint32_t hash = hash_pair(parent, frame);
    uint32_t id = find(&intern->stacks, &stack_kind, hash, &key);
    if (MP_LIKELY(id != MP_NO_INDEX)) {
        return id;
    }
    if (frame >= count_of(&intern->frames) ||
        (parent != MP_NO_INDEX && parent >= count_of(&intern->stacks))) {
        return MP_NO_INDEX;
    }
    return add(intern, &intern->stacks, &stack_kind, hash, &key);
}

uint32_t
mp_intern_strings(const mp_intern_t *intern)
{
    return count_of(&intern->strings);
}

uint32_t
mp_intern_frames(const mp_intern_t *intern)
{
    return count_of(&intern->frames);
}

uint32_t
mp_intern_stacks(const mp_intern_t *intern)
{
    return count_of(&intern->stacks);
}

bool
mp_intern_text(const mp_intern_t *intern, uint32_t id, const char **text,
               size_t *length)
{
    const string_t *string =
        record_or_null(&intern->strings, sizeof(*string), id);
    if (string == NULL) {
        return false;
    }
    *text = string->text;
    *length = string->length;
    return true;
}

bool
mp_intern_get_frame(const mp_intern_t *intern, uint32_t id, mp_frame_t *frame)
{
    const mp_frame_t *record =
        record_or_null(&intern->frames, sizeof(*record), id);
    if (record == NULL) {
        return false;
    }
    *frame = *record;
    return true;
}

bool
mp_intern_get_stack(const mp_intern_t *intern, uint32_t id, mp_stack_t *stack)
{
    const mp_stack_t *record =
        record_or_null(&intern->stacks, sizeof(*record), id);
    if (record == NULL) {
        return false;
    }
    *stack = *record;
    return true;
}

size_t
mp_intern_bytes(const mp_intern_t *intern)
{
    return atomic_load_explicit(&intern->bytes, memory_order_relaxed);
}

void
mp_intern_reset_lock(mp_intern_t *intern)
{
    mp_spin_unlock(&intern->lock);
}
