/* pystack.c - the Python stack of the calling thread, without the GIL.
 *
 * Two steps:
 *
 *   walk     from the innermost frame outwards.  Frames that lie where they
 *            lay at the thread's last walk, at the same instruction of the
 *            same code, are passed over; if that holds down to the
 *            outermost, they keep their stack ids.  The others' code,
 *            instruction and fingerprint go into an array
 *   look up  those: (code, instruction) -> frame id in pystack_positions.h,
 *            or out of the code object itself (pystack_code.h); then
 *            (parent, frame) -> stack id in the intern
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
#include "pystack_code.h"
#include "pystack_layout.h"
#include "pystack_positions.h"

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
    uint32_t function = mp_pycode_text(intern, mp_pycode_name(code));
    uint32_t file = mp_pycode_text(intern, code->co_filename);
    if (function == MP_NO_INDEX || file == MP_NO_INDEX) {
        return MP_NO_INDEX;
    }
    return mp_intern_frame(intern, function, file,
                           mp_pycode_line(code, level->index));
}

static uint32_t
frame_of(mp_intern_t *intern, uint64_t salt, const level_t *level)
{
    uint64_t hash = mp_position_hash(level->code, level->index);
    uint32_t tag = mp_position_tag(hash);
    uint64_t signature = hash + level->fingerprint * MP_MIX_A + salt;
    uint32_t frame = mp_positions_find(tag, signature);
    if (MP_UNLIKELY(frame == MP_NO_INDEX)) {
        frame = resolve(intern, level);
        if (frame != MP_NO_INDEX) {
            mp_positions_note(frame);
            mp_positions_put(tag, signature, frame);
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
    uint32_t number = mp_pycode_generation(code);
    bool is_module = code == module_call;
    walk->places[walk->count] = (place_t){
        .frame = frame,
        .code = MP_PYCODE_GENERATION_TELLS(number) ? code : NULL,
        .at = mp_pyframe_at(frame),
        .generation = number,
        .is_module = is_module,
    };
    level_t *level = &walk->levels[walk->count++];
    level->code = code;
    level->fingerprint = mp_pycode_fingerprint(code);
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
           place->generation == mp_pycode_generation(code) &&
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
    uint64_t salt = mp_positions_salt(intern);
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
               mp_pycode_line(code, walk.levels[seen].index) ==
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
    if (!mp_positions_init()) {
        *why = "out of memory";
        return false;
    }
    mp_pycode_watch();
    main_interpreter = PyInterpreterState_Main();
    atomic_store_explicit(&ready, true, memory_order_release);
    return true;
}

#endif
