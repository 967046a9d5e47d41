/* hook_thread.h - the calling thread's context: made when a hook first runs
 * there, kept up to date, gone with the thread.
 *
 * For hooks; no lock is held. */
#ifndef MP_HOOK_THREAD_H
#define MP_HOOK_THREAD_H

#include "hook_context.h"
#include "hook_shared.h"

/* The context, NULL before the first hook.  One pointer in static TLS: a
 * dlopen'ed library may use that much, and it saves a call for each look. */
extern _Thread_local mp_context_t *mp_this_thread
    __attribute__((tls_model("initial-exec")));

/* NULL: memory ran out, or the thread is ending. */
mp_context_t *mp_context_new(void);

/* For a thread that has none and must not allocate: one of a few made before;
 * NULL: they are used up, or the thread is ending. */
mp_context_t *mp_context_spare(void);
/* Make spare ones again (WANTED), or free them.  One caller at a time, not
 * from a hook. */
void mp_context_stock(bool wanted);

/* Something changed: a recording began, or regions ended elsewhere. */
void mp_context_refresh(mp_context_t *context);

/* In a child after fork: the calling thread is inside nothing. */
void mp_context_after_fork(void);

static inline mp_context_t *
mp_context_get(void)
{
    mp_context_t *context = mp_this_thread;
    if (MP_UNLIKELY(context == NULL)) {
        context = mp_context_new();
        if (context == NULL) {
            return NULL;
        }
    }
    uint32_t news = atomic_load_explicit(&mp_the_news, memory_order_relaxed);
    if (MP_UNLIKELY(context->news != news) && !context->in_hook) {
        mp_context_refresh(context);
    }
    return context;
}

#endif
