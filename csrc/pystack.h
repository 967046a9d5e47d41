/* pystack.h - the Python stack of the calling thread, without the GIL.
 *
 * Only a thread pushes or pops its own frames, and while it is inside a C
 * call its chain of frames is frozen and each frame holds its code object;
 * so the thread itself may read the chain without the GIL.  It takes no
 * reference and calls no API that does.
 *
 * Names, files and lines are copied out of a code object the first time one
 * of its positions is seen; a later object at the same address is told apart
 * by its fingerprint (name, file, first line, length). */
#ifndef MP_PYSTACK_H
#define MP_PYSTACK_H

#include "intern.h"

/* The last stack of one thread: most of it is also the next one's. */
typedef struct mp_pystack_cache mp_pystack_cache_t;

#define MP_PYSTACK_MAX_DEPTH 128

mp_pystack_cache_t *mp_pystack_cache_new(void); /* NULL: out of memory */
void mp_pystack_cache_free(mp_pystack_cache_t *cache); /* accepts NULL */

/* Once, with the GIL, before the first walk: checks that the layout of this
 * interpreter is the one compiled for.  False: *WHY says what differs (a
 * static text) and every later walk returns MP_NO_INDEX. */
bool mp_pystack_init(const char **why);

/* The stack id of the calling thread's innermost Python frame; MP_NO_INDEX:
 * the thread runs no Python, or memory ran out.  Deeper than
 * MP_PYSTACK_MAX_DEPTH: the outermost frames are left off.  Safe in a hook;
 * the cache must belong to the calling thread. */
uint32_t mp_pystack_current(mp_pystack_cache_t *cache, mp_intern_t *intern);

#endif
