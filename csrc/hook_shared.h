/* hook_shared.h - what all hooks share: the log, the intern, the shim, and
 * what is wanted of them.
 *
 * The log, the intern and the modules' names are made once and never freed,
 * so that no hook in flight can meet a dead one; the rest are atomics.  No
 * lock.  The switches are turned by sessions, under the session lock; hooks
 * read them on any thread.  The inline functions and the variables are for
 * the hook's own files. */
#ifndef MP_HOOK_SHARED_H
#define MP_HOOK_SHARED_H

#include "intern.h"
#include "log.h"
#include "names.h"
#include "shim_api.h"

#include <stdatomic.h>

/* ---- the variables -------------------------------------------------------
 */

extern mp_log_t *mp_the_log;
extern mp_intern_t *mp_the_intern;
extern mp_names_t *mp_the_module_names;
extern _Atomic(const mp_shim_api_t *) mp_the_shim; /* read by mp_hook_shim */
extern atomic_uint mp_the_wanted;
/* Rises when recording begins: what a thread knew of modules and optimizers
 * from before is stale. */
extern atomic_uint mp_the_generation;
/* Rises with mp_the_generation and with every end of a region that its thread
 * does not know of (hook_ops.h): one look for both. */
extern atomic_uint mp_the_news;
/* The same as mp_the_wanted, for the shim, which reads it before anything
 * else; both sides use the compiler's atomics on it, for C++ has no C11 ones.
 */
extern volatile uint32_t mp_the_active;

/* ---- once ----------------------------------------------------------------
 */

/* Make the process's log and intern.  They live for ever, so that no hook in
 * flight can meet a dead log.  May be called again: does nothing. */
mp_status_t mp_hook_init(void);

mp_log_t *mp_hook_log(void);
mp_intern_t *mp_hook_intern(void);
mp_names_t *mp_hook_module_names(void); /* filled by Python's side */

/* The shim, once loaded; NULL before. */
void mp_hook_set_shim(const mp_shim_api_t *shim);

static inline const mp_shim_api_t *
mp_hook_shim(void)
{
    return atomic_load_explicit(&mp_the_shim, memory_order_acquire);
}

/* ---- switches ------------------------------------------------------------
 */

#define MP_HOOK_CUDA 0x01u
#define MP_HOOK_CPU 0x02u
#define MP_HOOK_OPS 0x04u
#define MP_HOOK_STACKS 0x08u
#define MP_HOOK_SESSION 0x10u /* somebody records at all */
#define MP_HOOK_MODULES 0x20u /* modules are found on the Python stack */
#define MP_HOOK_SHAPES 0x40u  /* of the tensors that ops return */
#define MP_HOOK_REGIONS 0x80u /* told by Python, and by no callback */

/* What the running sessions want, all together; 0: nobody records. */
void mp_hook_set_wanted(uint32_t flags);

static inline uint32_t
mp_hook_wanted(void)
{
    return atomic_load_explicit(&mp_the_wanted, memory_order_relaxed);
}

/* Called when the log passes half of its capacity. */
void mp_hook_set_wake(void (*wake)(void));

/* ---- for the hook's own files ---------------------------------------------
 */

/* The log is half full: wake its reader. */
void mp_hook_wake(void);

static inline bool
mp_hook_wants(uint32_t flag)
{
    return (atomic_load_explicit(&mp_the_wanted, memory_order_relaxed) &
            flag) != 0;
}

static inline bool
mp_hook_append(const mp_event_t *events, size_t count)
{
    bool half_full = false;
    bool fits = mp_log_append(mp_the_log, events, count, &half_full);
    if (MP_UNLIKELY(half_full)) {
        mp_hook_wake();
    }
    return fits;
}

#endif
