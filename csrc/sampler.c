/* sampler.c - the thread that measures while profiles run. */
#include "sampler.h"

#include "clock.h"
#include "drain.h"
#include "hook.h"
#include "measure.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#define SECOND_NS INT64_C(1000000000)
#define CLOCK_NS (SECOND_NS / 2) /* where CUDA is used none is older */
#define PEAK_NS (SECOND_NS / 20) /* torch grows by many segments in a row */
#define SHARE 10                 /* of its time that a sample may take: 1/10 */
#define LEAST_GAP_NS (SECOND_NS / 100)
#define MOST_GAP_NS CLOCK_NS
#define MOST_WAIT_NS (SECOND_NS / 2)
#define MOST_ROWS (MP_MEASURE_DEVICES + 1)

/* Everything is guarded by LOCK, a leaf, but for THREAD and GENERATION. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* the thread; monotonic clock */
    pthread_cond_t done; /* those in mp_sampler_wait; monotonic clock */
    bool is_set_up;
    bool running;
    unsigned generation; /* of the thread: another one ends it */
    unsigned causes;     /* a bit each: somebody wants a sample */
    uint64_t asked;      /* by mp_sampler_wait */
    uint64_t answered;   /* of these, in the log */
    uint32_t samples;
    pthread_t thread; /* the session lock */
} the_sampler = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct timespec
after(int64_t ns)
{
    int64_t at = mp_clock_now() + ns;
    return (struct timespec){.tv_sec = (time_t)(at / SECOND_NS),
                             .tv_nsec = (long)(at % SECOND_NS)};
}

/* ---- asking ------------------------------------------------------------- */

void
mp_sampler_want(mp_total_cause_t cause)
{
    (void)pthread_mutex_lock(&the_sampler.lock);
    if (the_sampler.running) {
        the_sampler.causes |= 1u << cause;
        (void)pthread_cond_signal(&the_sampler.wake);
    }
    (void)pthread_mutex_unlock(&the_sampler.lock);
}

void
mp_sampler_wait(void)
{
    (void)pthread_mutex_lock(&the_sampler.lock);
    if (the_sampler.running) {
        unsigned generation = the_sampler.generation;
        uint64_t ticket = ++the_sampler.asked;
        struct timespec until = after(MOST_WAIT_NS);
        the_sampler.causes |= 1u << MP_TOTAL_CAUSE_WINDOW;
        (void)pthread_cond_signal(&the_sampler.wake);
        while (the_sampler.generation == generation &&
               the_sampler.answered < ticket &&
               pthread_cond_timedwait(&the_sampler.done, &the_sampler.lock,
                                      &until) == 0) {
        }
    }
    (void)pthread_mutex_unlock(&the_sampler.lock);
}

/* ---- the thread --------------------------------------------------------- */

/* How long after the last sample, which took COST_NS, the next is due. */
static int64_t
gap(unsigned causes, int64_t cost_ns)
{
    int64_t share = cost_ns * (SHARE - 1);
    share = share > LEAST_GAP_NS ? share : LEAST_GAP_NS;
    share = share < MOST_GAP_NS ? share : MOST_GAP_NS;
    if ((causes & 1u << MP_TOTAL_CAUSE_WINDOW) != 0) {
        return 0; /* somebody waits */
    }
    if ((causes & (1u << MP_TOTAL_CAUSE_STEP | 1u << MP_TOTAL_CAUSE_REQUEST |
                   1u << MP_TOTAL_CAUSE_START)) != 0) {
        return share;
    }
    if (causes != 0) {
        return share > PEAK_NS ? share : PEAK_NS;
    }
    return CLOCK_NS;
}

/* Of several causes the one that readers look for. */
static uint8_t
main_cause(unsigned causes)
{
    static const uint8_t order[] = {
        MP_TOTAL_CAUSE_STEP, MP_TOTAL_CAUSE_WINDOW, MP_TOTAL_CAUSE_REQUEST,
        MP_TOTAL_CAUSE_PEAK, MP_TOTAL_CAUSE_START,
    };
    for (size_t i = 0; i < MP_ARRAY_LENGTH(order); i++) {
        if ((causes & 1u << order[i]) != 0) {
            return order[i];
        }
    }
    return MP_TOTAL_CAUSE_CLOCK;
}

static void
take_sample(unsigned causes, uint32_t number)
{
    mp_total_t rows[MOST_ROWS];
    /* What came before is before it in the log; and there is room then. */
    mp_drain_lock();
    (void)mp_drain_now();
    mp_drain_unlock();
    size_t count = mp_measure_all(rows, MOST_ROWS);
    for (size_t i = 0; i < count; i++) {
        mp_event_t events[MP_TOTAL_EVENTS];
        rows[i].cause = main_cause(causes);
        rows[i].sample = number;
        size_t length = mp_total_write(&rows[i], events);
        for (size_t k = 0; k < length; k++) {
            events[k].thread = mp_thread_number();
        }
        (void)mp_hook_feed(events, length); /* a full log counts them */
    }
}

/* The lock is held, but while a sample is taken. */
static void
run(unsigned mine)
{
    int64_t ended_ns = -CLOCK_NS, cost_ns = 0;
    while (the_sampler.generation == mine) {
        int64_t left =
            ended_ns + gap(the_sampler.causes, cost_ns) - mp_clock_now();
        if (left > 0) {
            struct timespec until = after(left);
            (void)pthread_cond_timedwait(&the_sampler.wake, &the_sampler.lock,
                                         &until);
            continue;
        }
        unsigned causes = the_sampler.causes;
        uint64_t asked = the_sampler.asked;
        uint32_t number = ++the_sampler.samples;
        the_sampler.causes = 0;
        (void)pthread_mutex_unlock(&the_sampler.lock);
        int64_t began_ns = mp_clock_now();
        take_sample(causes, number);
        ended_ns = mp_clock_now();
        cost_ns = ended_ns - began_ns;
        (void)pthread_mutex_lock(&the_sampler.lock);
        the_sampler.answered = asked;
        (void)pthread_cond_broadcast(&the_sampler.done);
    }
}

static void *
sampler_main(void *argument)
{
    (void)pthread_mutex_lock(&the_sampler.lock);
    run((unsigned)(uintptr_t)argument);
    (void)pthread_mutex_unlock(&the_sampler.lock);
    return NULL;
}

/* ---- life cycle --------------------------------------------------------- */

static void
set_up(void)
{
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&the_sampler.wake, &monotonic);
    (void)pthread_cond_init(&the_sampler.done, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    the_sampler.is_set_up = true;
}

mp_status_t
mp_sampler_start(void)
{
    (void)pthread_mutex_lock(&the_sampler.lock);
    bool failed = false;
    if (!the_sampler.is_set_up) {
        set_up();
    }
    if (!the_sampler.running) {
        uintptr_t mine = the_sampler.generation;
        sigset_t all, before;
        (void)sigfillset(&all); /* they are for the program's own threads */
        (void)pthread_sigmask(SIG_SETMASK, &all, &before);
        failed = pthread_create(&the_sampler.thread, NULL, sampler_main,
                                (void *)mine) != 0;
        (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
        the_sampler.running = !failed;
    }
    if (!failed) {
        the_sampler.causes |= 1u << MP_TOTAL_CAUSE_START;
        (void)pthread_cond_signal(&the_sampler.wake);
    }
    (void)pthread_mutex_unlock(&the_sampler.lock);
    return failed ? MP_ERR_NOMEM : MP_OK;
}

void
mp_sampler_stop(void)
{
    (void)pthread_mutex_lock(&the_sampler.lock);
    bool was_running = the_sampler.running;
    pthread_t thread = the_sampler.thread;
    if (was_running) {
        the_sampler.running = false;
        the_sampler.generation++;
        the_sampler.causes = 0;
        (void)pthread_cond_broadcast(&the_sampler.wake);
        (void)pthread_cond_broadcast(&the_sampler.done);
    }
    (void)pthread_mutex_unlock(&the_sampler.lock);
    if (was_running) {
        mp_drain_unlock();
        (void)pthread_join(thread, NULL);
        mp_drain_lock();
    }
}

/* The thread that may have held the lock or waited is not here. */
void
mp_sampler_after_fork(void)
{
    (void)pthread_mutex_init(&the_sampler.lock, NULL);
    the_sampler.is_set_up = false;
    the_sampler.running = false;
    the_sampler.generation++;
    the_sampler.causes = 0;
    the_sampler.answered = the_sampler.asked;
}
