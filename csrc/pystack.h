/* pystack.h - the Python stack of the calling thread, without the GIL.
 *
 * Only a thread pushes or pops its own frames, and while it is inside a C
 * call its chain of frames is frozen and each frame holds its code object;
 * so the thread itself may read the chain without the GIL.  It takes no
 * reference and calls no API that does.
 *
 * Names, files and lines are copied out of a code object the first time one
 * of its positions is seen; a later object at the same address is told apart
 * by its fingerprint (name, file, first line, length, generation).
 *
 * The same walk finds the module whose forward the thread is in: a call of
 * torch.nn.Module.__call__ passes through one function of torch's, and the
 * first argument of its frame is the module.  So no hook has to run for every
 * module, and modules run at full speed. */
#ifndef MP_PYSTACK_H
#define MP_PYSTACK_H

#include "intern.h"
#include "names.h"

/* The last stack of one thread: most of it is also the next one's. */
typedef struct mp_pystack_cache mp_pystack_cache_t;

#define MP_PYSTACK_MAX_DEPTH 128

mp_pystack_cache_t *mp_pystack_cache_new(void); /* NULL: out of memory */
void mp_pystack_cache_free(mp_pystack_cache_t *cache); /* accepts NULL */

/* Once, with the GIL, before the first walk: checks that the layout of this
 * interpreter is the one compiled for.  False: *WHY says what differs (a
 * static text) and every later walk returns MP_NO_INDEX. */
bool mp_pystack_init(const char **why);

#define MP_PYSTACK_BACKWARD_CODES 4

/* Code objects whose frames mean something; the caller keeps them alive.
 * MODULE: what every module call passes through, with the module as its first
 * argument (`torch.nn.Module._call_impl.__code__`); NULL: look for none.
 * BACKWARD: what runs a backward (`torch.autograd.backward` and its like). */
void mp_pystack_set_codes(const void *module, const void *const *backward,
                          size_t backward_count);

typedef struct {
    uint32_t stack;   /* of the innermost Python frame; MP_NO_INDEX: the thread
                         runs no Python, or memory ran out */
    uint32_t module;  /* name of the innermost module whose forward runs; one
                         without a name has that of its class; MP_NO_INDEX:
                         none, or none is looked for */
    uint64_t unnamed; /* address of an innermost module without a name; or 0 */
    uint64_t root;    /* address of the outermost module whose forward runs */
    bool backward; /* inside a backward; modules outside of it do not count */
} mp_pystack_t;

/* The calling thread's Python stack.  Deeper than MP_PYSTACK_MAX_DEPTH: the
 * outermost frames are left off.  NAMES are those of modules; NULL: none.
 * Safe in a hook; the cache must belong to the calling thread. */
void mp_pystack_current(mp_pystack_cache_t *cache, mp_intern_t *intern,
                        const mp_names_t *names, mp_pystack_t *out);

#endif
