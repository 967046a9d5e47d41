/* drain.c - the one reader of the log: its lock and its thread. */
#include "drain.h"

#include "hook.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#define DRAIN_INTERVAL_NS 5000000 /* 5 ms: a full log is 260 000 events */
#define BATCH_EVENTS 8192

static struct {
    pthread_mutex_t lock; /* the session lock */
    mp_drain_receive_t receive;
    pthread_t thread;
    bool running;              /* the thread exists */
    uint64_t drained;          /* events taken out of the log */
    atomic_uint generation;    /* of the thread: another one ends it */
    pthread_mutex_t wake_lock; /* a leaf, only around the wait */
    pthread_cond_t wake;
} the_drain = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .wake_lock = PTHREAD_MUTEX_INITIALIZER,
    .wake = PTHREAD_COND_INITIALIZER,
};

void
mp_drain_lock(void)
{
    (void)pthread_mutex_lock(&the_drain.lock);
}

void
mp_drain_unlock(void)
{
    (void)pthread_mutex_unlock(&the_drain.lock);
}

bool
mp_drain_now(void)
{
    mp_log_t *log = mp_hook_log();
    size_t count;
    const mp_event_t *events;
    /* What comes meanwhile waits: producers must not keep us here. */
    uint64_t left = mp_log_appended(log) - the_drain.drained;
    bool any = left > 0;
    while (left > 0 && (events = mp_log_peek(log, &count), count > 0)) {
        count = count < BATCH_EVENTS ? count : BATCH_EVENTS;
        count = count < left ? count : (size_t)left;
        if (the_drain.receive != NULL) { /* NULL: nobody has started yet */
            the_drain.receive(events, count);
        }
        mp_log_consume(log, count);
        the_drain.drained += count;
        left -= count;
    }
    return any;
}

static _Atomic(void (*)(void)) the_errand;

void
mp_drain_set_errand(void (*errand)(void))
{
    atomic_store(&the_errand, errand);
}

static void
wake_thread(void)
{
    (void)pthread_cond_signal(&the_drain.wake);
}

static void *
drain_main(void *argument)
{
    uintptr_t mine = (uintptr_t)argument;
    while (atomic_load_explicit(&the_drain.generation, memory_order_acquire) ==
           mine) {
        struct timespec until;
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += DRAIN_INTERVAL_NS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        (void)pthread_mutex_lock(&the_drain.wake_lock);
        (void)pthread_cond_timedwait(&the_drain.wake, &the_drain.wake_lock,
                                     &until);
        (void)pthread_mutex_unlock(&the_drain.wake_lock);
        void (*errand)(void) = atomic_load(&the_errand);
        if (errand != NULL) {
            errand();
        }
        mp_drain_lock();
        if (!mp_drain_now() && the_drain.receive != NULL) {
            /* What was received may wait for its flush to the file. */
            the_drain.receive(NULL, 0);
        }
        mp_drain_unlock();
    }
    return NULL;
}

/* Signals are for the program's own threads. */
mp_status_t
mp_drain_start(mp_drain_receive_t receive)
{
    if (the_drain.running) {
        return MP_OK;
    }
    the_drain.receive = receive;
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    uintptr_t mine = atomic_load(&the_drain.generation);
    int failed =
        pthread_create(&the_drain.thread, NULL, drain_main, (void *)mine);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        return MP_ERR_NOMEM;
    }
    the_drain.running = true;
    mp_hook_set_wake(wake_thread);
    return MP_OK;
}

void
mp_drain_stop(void)
{
    if (!the_drain.running) {
        return;
    }
    pthread_t thread = the_drain.thread;
    the_drain.running = false;
    mp_hook_set_wake(NULL);
    atomic_fetch_add_explicit(&the_drain.generation, 1, memory_order_release);
    wake_thread();
    mp_drain_unlock();
    (void)pthread_join(thread, NULL);
    mp_drain_lock();
}

/* The thread that may have held the short lock or waited is not here. */
void
mp_drain_after_fork(void)
{
    the_drain.drained = mp_log_appended(mp_hook_log()); /* it is emptied */
    the_drain.running = false;
    atomic_fetch_add(&the_drain.generation, 1);
    mp_hook_set_wake(NULL);
    mp_hook_after_fork();
    (void)pthread_mutex_init(&the_drain.wake_lock, NULL);
    (void)pthread_cond_init(&the_drain.wake, NULL);
}
