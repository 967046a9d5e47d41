/* hook_thread.c - the calling thread's context, from first hook to its end. */
#include "hook_thread.h"

#include "clock.h"
#include "hook_ops.h"
#include "mem.h"

#include <pthread.h>
#include <string.h>

_Thread_local mp_context_t *mp_this_thread
    __attribute__((tls_model("initial-exec")));
/* The context is gone and must not come again: the thread is ending. */
static _Thread_local bool this_thread_ended
    __attribute__((tls_model("initial-exec")));
static pthread_key_t context_key;
static pthread_once_t context_once = PTHREAD_ONCE_INIT;

static void
context_free(void *pointer)
{
    mp_context_t *context = pointer;
    context->in_hook = true;
    mp_ops_end_thread(context);
    mp_this_thread = NULL;
    this_thread_ended = true;
    mp_pystack_cache_free(context->stack_cache);
    mp_free(context);
}

static void
make_key(void)
{
    (void)pthread_key_create(&context_key, context_free);
}

/* torch names the threads that run backward on a device. */
static bool
is_engine_thread(void)
{
    char name[16] = "";
    return pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
           strncmp(name, "pt_autograd", strlen("pt_autograd")) == 0;
}

/* A context that no thread has. */
static mp_context_t *
context_alone(void)
{
    mp_context_t *context = mp_calloc(1, sizeof(*context));
    if (context != NULL) {
        context->stack_cache = mp_pystack_cache_new(); /* NULL: no stacks */
        (void)pthread_once(&context_once, make_key);
    }
    return context;
}

/* Give CONTEXT, which may be NULL, to the calling thread. */
static mp_context_t *
context_adopt(mp_context_t *context)
{
    if (context == NULL) {
        return NULL;
    }
    context->number = mp_thread_number();
    context->engine = is_engine_thread();
    context->strays = mp_ops_strays();
    if (pthread_setspecific(context_key, context) != 0) {
        mp_pystack_cache_free(context->stack_cache);
        mp_free(context);
        return NULL;
    }
    mp_this_thread = context;
    return context;
}

mp_context_t *
mp_context_new(void)
{
    return this_thread_ended ? NULL : context_adopt(context_alone());
}

/* ---- spare ones ----------------------------------------------------------
 */

#define SPARES 8

static _Atomic(mp_context_t *) the_spares[SPARES];

mp_context_t *
mp_context_spare(void)
{
    for (int i = 0; i < SPARES && !this_thread_ended; i++) {
        mp_context_t *spare = atomic_exchange(&the_spares[i], NULL);
        if (spare != NULL) {
            return context_adopt(spare);
        }
    }
    return NULL;
}

void
mp_context_stock(bool wanted)
{
    for (int i = 0; i < SPARES; i++) {
        mp_context_t *spare = atomic_load(&the_spares[i]);
        if (wanted && spare == NULL) {
            atomic_store(&the_spares[i], context_alone());
        }
        else if (!wanted && spare != NULL) {
            spare = atomic_exchange(&the_spares[i], NULL);
            if (spare != NULL) {
                mp_pystack_cache_free(spare->stack_cache);
                mp_free(spare);
            }
        }
    }
}

void
mp_context_refresh(mp_context_t *context)
{
    context->news = atomic_load_explicit(&mp_the_news, memory_order_acquire);
    uint32_t generation =
        atomic_load_explicit(&mp_the_generation, memory_order_relaxed);
    if (context->generation != generation) {
        context->generation = generation;
        context->module_depth = 0;
        context->optimizer_depth = 0;
        for (uint32_t i = 0; i < MP_MAX_OPS && i < context->op_depth; i++) {
            context->ops[i].logged = false; /* not in this recording */
        }
    }
    mp_ops_leave_strays(context);
}

void
mp_context_after_fork(void)
{
    if (mp_this_thread != NULL) {
        mp_this_thread->number = mp_thread_number();
        mp_this_thread->op_depth = 0;
        mp_this_thread->described = 0;
        mp_this_thread->running_ops = 0;
        mp_this_thread->backward_depth = 0;
        mp_this_thread->optimizer_depth = 0;
        mp_this_thread->module_depth = 0;
        mp_this_thread->in_hook = false;
    }
}
