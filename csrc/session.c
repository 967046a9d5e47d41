/* session.c - who records, and the thread that empties the log.
 *
 * the_engine.lock (the session lock) guards the list of sessions, everything
 * inside a session, and the reader's side of the log: whoever holds it may
 * drain.  It is held while events are applied and written to a file, never
 * while calling Python or torch, with one exception that blocks on nothing:
 * installing the shim's callbacks. */
#include "session.h"

#include "clock.h"
#include "hook.h"
#include "mem.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define DRAIN_INTERVAL_NS 5000000 /* 5 ms: a full log is 260 000 events */
#define BATCH_EVENTS 8192
#define STREAM_FLUSH_NS 500000000
#define PENDING_BYTES ((size_t)256 << 20)
#define DEFAULT_EVENT_BYTES ((size_t)2 << 30)
#define LEAST_BYTES ((size_t)1 << 20)

struct mp_session {
    uint64_t id;
    mp_session_options_t options;
    mp_session_t *next; /* in the list of running ones */
    bool running, forked;
    bool used;              /* the follower has seen a start */
    mp_tracker_t *follower; /* start to stop, dead rows used again */
    uint64_t events;
    uint64_t dropped_before; /* by the log, before the start */
    uint64_t dropped_after;  /* by the log, at the stop */

    bool seeding; /* events wait in `pending` for mp_session_seed */
    uint32_t seeding_thread;
    mp_event_t *pending;
    size_t pending_count;

    bool recording; /* a window is open */
    mp_window_t window;
    size_t window_capacity; /* events */
    size_t streamed;        /* events given to the writer */
    int64_t flushed_ns;
    bool window_full; /* later events are counted, not kept */
    uint64_t window_dropped_before;
    int last_stream_errno;
};

static struct {
    pthread_mutex_t lock;
    mp_session_t *sessions;
    uint64_t next_id;
    pthread_t drain;
    bool draining;          /* the thread exists */
    uint64_t drained;       /* events taken out of the log */
    atomic_uint generation; /* of the drain thread: another one ends it */
    bool cpu_installed;
    int ops_installed; /* 0, 1, 2 as the option */
    bool atfork_set;
    pthread_mutex_t wake_lock; /* a leaf, only around the wait */
    pthread_cond_t wake;
} the_engine = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .wake_lock = PTHREAD_MUTEX_INITIALIZER,
    .wake = PTHREAD_COND_INITIALIZER,
    .next_id = 1,
};

static void
lock(void)
{
    (void)pthread_mutex_lock(&the_engine.lock);
}

static void
unlock(void)
{
    (void)pthread_mutex_unlock(&the_engine.lock);
}

/* ---- windows ---------------------------------------------------------------
 */

/* Address space of at most *BYTES; less if the system grants no more. */
static void *
reserve_up_to(size_t *bytes)
{
    size_t wanted = *bytes;
    void *memory = mp_reserve(wanted);
    while (memory == NULL && wanted / 2 >= LEAST_BYTES) {
        wanted /= 2;
        memory = mp_reserve(wanted);
    }
    *bytes = wanted;
    return memory;
}

void
mp_window_clear(mp_window_t *window)
{
    mp_unreserve(window->events, window->reserved_bytes);
    mp_tracker_free(window->tracker);
    mp_recording_writer_abandon(window->writer);
    *window = (mp_window_t){0};
}

/* Keep one event of the window, its step filled in. */
static bool
window_keep(mp_session_t *session, const mp_event_t *event, size_t capacity)
{
    mp_window_t *window = &session->window;
    if (session->window_full || window->count >= capacity ||
        mp_tracker_apply(window->tracker, event) != MP_OK) {
        /* What is kept stays a whole prefix: a gap would make every later
         * number wrong. */
        session->window_full = true;
        window->dropped++;
        return false;
    }
    window->events[window->count++] = *event;
    return true;
}

static bool
keep_state_event(void *context, const mp_event_t *event)
{
    mp_session_t *session = context;
    mp_event_t copy = *event;
    copy.step = mp_tracker_step(session->follower);
    return window_keep(session, &copy, session->window_capacity - 1);
}

static void
stream_failed(mp_session_t *session, int saved_errno)
{
    session->window.stream_errno = saved_errno != 0 ? saved_errno : EIO;
    session->last_stream_errno = session->window.stream_errno;
    /* After a failure a close writes nothing more. */
    int ignored;
    (void)mp_recording_writer_close(session->window.writer, "", 0, 0,
                                    &ignored);
    session->window.writer = NULL;
}

/* Give the writer what it has not seen.  A failure ends the streaming, not
 * the recording. */
static void
stream(mp_session_t *session, bool flush)
{
    mp_window_t *window = &session->window;
    if (window->writer == NULL) {
        return;
    }
    errno = 0;
    mp_status_t status = mp_recording_writer_append(
        window->writer, window->events + session->streamed,
        window->count - session->streamed);
    session->streamed = window->count;
    int64_t now = mp_clock_now();
    if (status == MP_OK &&
        (flush || now - session->flushed_ns > STREAM_FLUSH_NS)) {
        status = mp_recording_writer_flush(window->writer);
        session->flushed_ns = now;
    }
    if (status != MP_OK) {
        stream_failed(session, status == MP_ERR_NOMEM ? ENOMEM : errno);
    }
}

static uint64_t
log_dropped_since(uint64_t before)
{
    return mp_log_dropped(mp_hook_log()) - before;
}

/* ---- draining
 * --------------------------------------------------------------- */

static void
deliver(mp_session_t *session, const mp_event_t *event)
{
    mp_event_t copy = *event;
    if ((copy.kind == MP_EVENT_STEP || copy.kind == MP_EVENT_WINDOW_BEGIN ||
         copy.kind == MP_EVENT_WINDOW_END) &&
        copy.addr != session->id) {
        return; /* another session's */
    }
    (void)mp_tracker_apply(session->follower, &copy); /* counts failures */
    session->events++;
    if (session->recording) {
        copy.step = mp_tracker_step(session->follower);
        (void)window_keep(session, &copy, session->window_capacity - 1);
    }
}

static void
hold_back(mp_session_t *session, const mp_event_t *event)
{
    if (session->pending_count < PENDING_BYTES / sizeof(mp_event_t)) {
        session->pending[session->pending_count++] = *event;
    }
    else {
        session->dropped_before--; /* shows as one more dropped */
    }
}

/* Apply all events that are in the log now.  The session lock is held. */
static void
drain_locked(void)
{
    mp_log_t *log = mp_hook_log();
    size_t count;
    const mp_event_t *events;
    /* What comes meanwhile waits: producers must not keep us here. */
    uint64_t left = mp_log_appended(log) - the_engine.drained;
    while (left > 0 && (events = mp_log_peek(log, &count), count > 0)) {
        count = count < BATCH_EVENTS ? count : BATCH_EVENTS;
        count = count < left ? count : (size_t)left;
        for (mp_session_t *session = the_engine.sessions; session != NULL;
             session = session->next) {
            for (size_t i = 0; i < count; i++) {
                if (session->seeding) {
                    hold_back(session, &events[i]);
                }
                else {
                    deliver(session, &events[i]);
                }
            }
            if (session->recording) {
                stream(session, false);
            }
        }
        mp_log_consume(log, count);
        the_engine.drained += count;
        left -= count;
    }
}

static void
wake_drain(void)
{
    (void)pthread_cond_signal(&the_engine.wake);
}

static void *
drain_main(void *argument)
{
    uintptr_t mine = (uintptr_t)argument;
    while (atomic_load_explicit(&the_engine.generation,
                                memory_order_acquire) == mine) {
        struct timespec until;
        (void)clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += DRAIN_INTERVAL_NS;
        if (until.tv_nsec >= 1000000000) {
            until.tv_sec++;
            until.tv_nsec -= 1000000000;
        }
        (void)pthread_mutex_lock(&the_engine.wake_lock);
        (void)pthread_cond_timedwait(&the_engine.wake, &the_engine.wake_lock,
                                     &until);
        (void)pthread_mutex_unlock(&the_engine.wake_lock);
        lock();
        drain_locked();
        unlock();
    }
    return NULL;
}

/* The lock is held.  Signals are for the program's own threads. */
static mp_status_t
drain_start(void)
{
    if (the_engine.draining) {
        return MP_OK;
    }
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    uintptr_t mine = atomic_load(&the_engine.generation);
    int failed =
        pthread_create(&the_engine.drain, NULL, drain_main, (void *)mine);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed != 0) {
        return MP_ERR_NOMEM;
    }
    the_engine.draining = true;
    mp_hook_set_wake(wake_drain);
    return MP_OK;
}

/* ---- fork
 * -------------------------------------------------------------------- */

/* The child has no drain thread and no CUDA; recordings stay with the
 * parent. */
static void
fork_prepare(void)
{
    lock();
}

static void
fork_parent(void)
{
    unlock();
}

static void
fork_child(void)
{
    for (mp_session_t *session = the_engine.sessions; session != NULL;
         session = session->next) {
        session->running = false;
        session->forked = true;
        session->recording = false;
        session->seeding = false;
        session->dropped_after = mp_log_dropped(mp_hook_log());
        mp_recording_writer_abandon(session->window.writer);
        session->window.writer = NULL;
    }
    the_engine.sessions = NULL;
    the_engine.drained = mp_log_appended(mp_hook_log()); /* it is emptied */
    the_engine.draining = false;
    atomic_fetch_add(&the_engine.generation, 1);
    mp_hook_set_wake(NULL);
    mp_hook_after_fork();
    (void)pthread_mutex_init(&the_engine.wake_lock, NULL);
    (void)pthread_cond_init(&the_engine.wake, NULL);
    unlock();
}

/* ---- switching the hooks
 * ------------------------------------------------------ */

static uint32_t
all_wanted(int *ops)
{
    uint32_t flags = 0;
    *ops = 0;
    for (mp_session_t *session = the_engine.sessions; session != NULL;
         session = session->next) {
        const mp_session_options_t *options = &session->options;
        flags |= options->cuda ? MP_HOOK_CUDA : 0;
        flags |= options->cpu ? MP_HOOK_CPU : 0;
        flags |= options->stacks ? MP_HOOK_STACKS : 0;
        flags |= options->modules ? MP_HOOK_MODULES : 0;
        flags |= options->ops > 0 ? MP_HOOK_OPS : 0;
        flags |= MP_HOOK_SESSION;
        *ops = options->ops > *ops ? options->ops : *ops;
    }
    return flags;
}

/* Make the hooks what the running sessions want.  The lock is held. */
static mp_status_t
switch_hooks(char *error, size_t error_size)
{
    const mp_shim_api_t *shim = mp_hook_shim();
    int ops;
    uint32_t flags = all_wanted(&ops);
    mp_status_t status = MP_OK;
    mp_hook_set_wanted(flags);
    if (shim == NULL) {
        return MP_OK; /* facts come from elsewhere */
    }
    bool cpu = (flags & MP_HOOK_CPU) != 0;
    if (cpu != the_engine.cpu_installed) {
        if (!cpu) {
            (void)shim->remove_cpu(); /* false: somebody wrapped ours */
        }
        else if (shim->install_cpu(error, error_size) != 0) {
            status = MP_ERR_LOAD;
            cpu = false;
        }
        the_engine.cpu_installed = cpu;
    }
    if (ops != the_engine.ops_installed) {
        if (the_engine.ops_installed != 0) {
            shim->remove_ops();
            the_engine.ops_installed = 0;
        }
        if (ops != 0) {
            if (shim->install_ops(ops == 2, error, error_size) != 0) {
                status = MP_ERR_LOAD;
            }
            else {
                the_engine.ops_installed = ops;
            }
        }
    }
    return status;
}

/* ---- life cycle
 * ---------------------------------------------------------------- */

/* A follower that has seen nothing.  On failure the old one stays. */
static mp_status_t
follower_new(mp_session_t *session)
{
    mp_tracker_options_t options = {
        .session_id = session->id,
        .allocation_budget_bytes = session->options.allocation_budget_bytes,
    };
    mp_tracker_t *follower;
    mp_status_t status = mp_tracker_new(&options, &follower);
    if (status == MP_OK) {
        mp_tracker_free(session->follower);
        session->follower = follower;
        session->events = 0;
        session->used = false;
    }
    return status;
}

mp_status_t
mp_session_new(const mp_session_options_t *options, mp_session_t **out)
{
    mp_status_t status = mp_hook_init();
    if (status != MP_OK) {
        return status;
    }
    mp_session_t *session = mp_calloc(1, sizeof(*session));
    if (session == NULL) {
        return MP_ERR_NOMEM;
    }
    session->options = *options;
    if (session->options.event_budget_bytes == 0) {
        session->options.event_budget_bytes = DEFAULT_EVENT_BYTES;
    }
    if (session->options.event_budget_bytes < 2 * sizeof(mp_event_t)) {
        session->options.event_budget_bytes = 2 * sizeof(mp_event_t);
    }
    lock();
    session->id = the_engine.next_id++;
    if (!the_engine.atfork_set) {
        the_engine.atfork_set =
            pthread_atfork(fork_prepare, fork_parent, fork_child) == 0;
    }
    unlock();
    status = follower_new(session);
    if (status != MP_OK) {
        mp_free(session);
        return status;
    }
    *out = session;
    return MP_OK;
}

static void
leave_list(mp_session_t *session)
{
    mp_session_t **link = &the_engine.sessions;
    while (*link != NULL && *link != session) {
        link = &(*link)->next;
    }
    if (*link != NULL) {
        *link = session->next;
    }
    session->next = NULL;
}

/* The lock is held; it is given up while waiting for the drain thread. */
static void
stop_locked(mp_session_t *session)
{
    char ignored[256];
    drain_locked();
    leave_list(session);
    session->running = false;
    session->seeding = false;
    mp_unreserve(session->pending, PENDING_BYTES);
    session->pending = NULL;
    session->dropped_after = mp_log_dropped(mp_hook_log());
    (void)switch_hooks(ignored, sizeof(ignored));
    if (the_engine.sessions == NULL && the_engine.draining) {
        pthread_t thread = the_engine.drain;
        the_engine.draining = false;
        mp_hook_set_wake(NULL);
        atomic_fetch_add_explicit(&the_engine.generation, 1,
                                  memory_order_release);
        wake_drain();
        unlock();
        (void)pthread_join(thread, NULL);
        lock();
    }
}

void
mp_session_free(mp_session_t *session)
{
    if (session == NULL) {
        return;
    }
    lock();
    if (session->running) {
        stop_locked(session);
    }
    mp_window_clear(&session->window);
    mp_unreserve(session->pending, PENDING_BYTES);
    unlock();
    mp_tracker_free(session->follower);
    mp_free(session);
}

uint64_t
mp_session_id(const mp_session_t *session)
{
    return session->id;
}

static bool
apply_to_follower(void *context, const mp_event_t *event)
{
    mp_session_t *session = context;
    mp_event_t copy = *event;
    if (copy.kind == MP_EVENT_STEP) {
        copy.addr = session->id;
        copy.size = 0; /* its steps are its own */
    }
    return mp_tracker_apply(session->follower, &copy) == MP_OK;
}

static mp_status_t
start_locked(mp_session_t *session, bool seeding, bool *took_over, char *error,
             size_t error_size)
{
    *took_over = false;
    if (session->running || session->forked) {
        return MP_ERR_STATE;
    }
    mp_status_t status = session->used ? follower_new(session) : MP_OK;
    if (status != MP_OK) {
        return status;
    }
    session->used = true;
    drain_locked();
    for (mp_session_t *other = the_engine.sessions; other != NULL;
         other = other->next) {
        if (other->seeding ||
            (session->options.cuda && !other->options.cuda) ||
            (session->options.cpu && !other->options.cpu)) {
            continue;
        }
        status = mp_tracker_write_state(other->follower, apply_to_follower,
                                        session);
        if (status != MP_OK) {
            return MP_ERR_NOMEM;
        }
        *took_over = true;
        break;
    }
    session->seeding = seeding && !*took_over;
    if (session->seeding) {
        session->pending = mp_reserve(PENDING_BYTES);
        session->pending_count = 0;
        session->seeding_thread = mp_thread_number();
        if (session->pending == NULL) {
            session->seeding = false;
            return MP_ERR_NOMEM;
        }
    }
    status = drain_start();
    if (status != MP_OK) {
        mp_unreserve(session->pending, PENDING_BYTES);
        session->pending = NULL;
        session->seeding = false;
        return status;
    }
    session->running = true;
    session->last_stream_errno = 0;
    session->dropped_before = mp_log_dropped(mp_hook_log());
    session->next = the_engine.sessions;
    the_engine.sessions = session;
    status = switch_hooks(error, error_size);
    if (status != MP_OK) {
        stop_locked(session);
    }
    return status;
}

mp_status_t
mp_session_start(mp_session_t *session, bool seeding, bool *took_over,
                 char *error, size_t error_size)
{
    if (error_size > 0) {
        error[0] = '\0';
    }
    lock();
    mp_status_t status =
        start_locked(session, seeding, took_over, error, error_size);
    unlock();
    return status;
}

/* Put the seeds of DEVICE where its cut is. */
static void
deliver_seeds(mp_session_t *session, const mp_event_t *seeds, size_t count,
              int16_t device, int64_t time_ns)
{
    for (size_t i = 0; i < count; i++) {
        if (seeds[i].device == device) {
            mp_event_t event = seeds[i];
            event.time_ns = time_ns;
            deliver(session, &event);
        }
    }
}

mp_status_t
mp_session_seed(mp_session_t *session, const mp_event_t *events, size_t count)
{
    lock();
    if (!session->running || !session->seeding) {
        unlock();
        return MP_ERR_STATE;
    }
    drain_locked();
    session->seeding = false;
    /* The SNAPSHOTs of this thread are ours, one a device, in order. */
    int16_t next_device = 0;
    uint64_t cut = 0; /* bit per device: its seeds are in */
    for (size_t i = 0; i < session->pending_count; i++) {
        const mp_event_t *event = &session->pending[i];
        if (event->kind == MP_EVENT_SNAPSHOT) {
            if (event->thread == session->seeding_thread && next_device < 64) {
                deliver_seeds(session, events, count, next_device,
                              event->time_ns);
                cut |= (uint64_t)1 << next_device++;
            }
            continue;
        }
        bool covered = event->device >= 0 && event->device < 64 &&
                       (cut >> event->device & 1) == 0 &&
                       event->kind <= MP_EVENT_OTHER;
        if (!covered) {
            deliver(session, event);
        }
    }
    /* No cut was seen (an old torch, or nothing to see): the seeds are the
     * state now. */
    for (int16_t device = next_device; device < 64; device++) {
        deliver_seeds(session, events, count, device, mp_clock_now());
    }
    mp_unreserve(session->pending, PENDING_BYTES);
    session->pending = NULL;
    session->pending_count = 0;
    unlock();
    return MP_OK;
}

mp_status_t
mp_session_step(mp_session_t *session, int32_t number)
{
    mp_event_t event = {
        .kind = MP_EVENT_STEP,
        .addr = session->id,
        .size = (uint64_t)number,
        .time_ns = mp_clock_now(),
        .thread = mp_thread_number(),
        .op = MP_NO_INDEX,
        .module = MP_NO_INDEX,
        .stack = MP_NO_INDEX,
        .device = MP_DEVICE_CPU,
    };
    lock();
    bool running = session->running;
    unlock();
    if (!running || number < 0) {
        return running ? MP_ERR_ARG : MP_ERR_STATE;
    }
    while (!mp_hook_feed(&event, 1)) { /* a step must not be lost */
        lock();
        drain_locked();
        unlock();
    }
    return MP_OK;
}

/* ---- windows, from outside
 * ------------------------------------------------------ */

static mp_event_t
window_mark(const mp_session_t *session, uint8_t kind)
{
    return (mp_event_t){
        .kind = kind,
        .addr = session->id,
        .time_ns = mp_clock_now(),
        .thread = mp_thread_number(),
        .op = MP_NO_INDEX,
        .module = MP_NO_INDEX,
        .stack = MP_NO_INDEX,
        .step = mp_tracker_step(session->follower),
        .device = MP_DEVICE_CPU,
    };
}

static mp_status_t
window_open(mp_session_t *session, const char *path, int *saved_errno)
{
    mp_window_t *window = &session->window;
    *window = (mp_window_t){
        .start_ns = mp_clock_now(),
        .start_wall_ns = mp_clock_wall_now(),
        .reserved_bytes = session->options.event_budget_bytes,
    };
    mp_tracker_options_t options = {
        .session_id = session->id,
        .keep_dead = true,
        .allocation_budget_bytes = session->options.allocation_budget_bytes,
    };
    window->events = reserve_up_to(&window->reserved_bytes);
    mp_status_t status = window->events == NULL ? MP_ERR_NOMEM : MP_OK;
    if (status == MP_OK) {
        status = mp_tracker_new(&options, &window->tracker);
    }
    if (status == MP_OK && path != NULL) {
        status = mp_recording_writer_open(
            path, mp_hook_intern(), window->start_ns, window->start_wall_ns,
            &window->writer, saved_errno);
    }
    if (status != MP_OK) {
        mp_window_clear(window);
        return status;
    }
    session->window_capacity = window->reserved_bytes / sizeof(mp_event_t);
    session->window_full = false;
    session->streamed = 0;
    session->flushed_ns = window->start_ns;
    session->window_dropped_before = mp_log_dropped(mp_hook_log());
    return MP_OK;
}

mp_status_t
mp_session_window_begin(mp_session_t *session, const char *path,
                        int *saved_errno)
{
    *saved_errno = 0;
    lock();
    if (!session->running || session->recording || session->seeding) {
        unlock();
        return MP_ERR_STATE;
    }
    drain_locked();
    mp_status_t status = window_open(session, path, saved_errno);
    if (status == MP_OK) {
        /* A budget too small for what is alive shows as dropped events. */
        (void)mp_tracker_write_state(session->follower, keep_state_event,
                                     session);
        mp_event_t mark = window_mark(session, MP_EVENT_WINDOW_BEGIN);
        (void)window_keep(session, &mark, session->window_capacity - 1);
        (void)mp_tracker_apply(session->follower, &mark);
        session->recording = true;
        stream(session, true);
    }
    unlock();
    return status;
}

/* Give back the address space that was not used. */
static void
window_trim(mp_window_t *window)
{
    size_t page = 4096;
    size_t used =
        (window->count * sizeof(mp_event_t) + page - 1) & ~(page - 1);
    used = used == 0 ? page : used;
    if (used < window->reserved_bytes) {
        mp_unreserve((char *)window->events + used,
                     window->reserved_bytes - used);
        window->reserved_bytes = used;
    }
}

mp_status_t
mp_session_window_end(mp_session_t *session, mp_window_t *out)
{
    lock();
    if (!session->recording) {
        unlock();
        return MP_ERR_STATE;
    }
    drain_locked();
    mp_event_t mark = window_mark(session, MP_EVENT_WINDOW_END);
    (void)mp_tracker_apply(session->follower, &mark);
    session->window_full = false; /* one place was kept for the end */
    (void)window_keep(session, &mark, session->window_capacity);
    stream(session, true);
    session->recording = false;
    *out = session->window;
    session->window = (mp_window_t){0};
    out->dropped += log_dropped_since(session->window_dropped_before);
    window_trim(out);
    unlock();
    return MP_OK;
}

mp_status_t
mp_session_window_copy(mp_session_t *session, mp_window_t *out)
{
    lock();
    if (!session->recording) {
        unlock();
        return MP_ERR_STATE;
    }
    drain_locked();
    *out = (mp_window_t){
        .count = session->window.count,
        .reserved_bytes = (session->window.count + 1) * sizeof(mp_event_t),
        .dropped = session->window.dropped +
                   log_dropped_since(session->window_dropped_before),
        .start_ns = session->window.start_ns,
        .start_wall_ns = session->window.start_wall_ns,
        .stream_errno = session->window.stream_errno,
    };
    out->events = mp_reserve(out->reserved_bytes);
    if (out->events == NULL) {
        unlock();
        return MP_ERR_NOMEM;
    }
    memcpy(out->events, session->window.events,
           out->count * sizeof(mp_event_t));
    unlock();
    mp_tracker_options_t options = {
        .session_id = session->id,
        .keep_dead = true,
        .allocation_budget_bytes = session->options.allocation_budget_bytes,
    };
    mp_status_t status = mp_tracker_new(&options, &out->tracker);
    for (size_t i = 0; status == MP_OK && i < out->count; i++) {
        status = mp_tracker_apply(out->tracker, &out->events[i]);
    }
    if (status != MP_OK) {
        mp_window_clear(out);
    }
    return status;
}

mp_status_t
mp_session_stop(mp_session_t *session)
{
    lock();
    if (!session->running || session->recording) {
        unlock();
        return MP_ERR_STATE;
    }
    stop_locked(session);
    unlock();
    return MP_OK;
}

mp_status_t
mp_session_flush(mp_session_t *session)
{
    lock();
    bool running = session->running;
    if (running) {
        drain_locked();
    }
    unlock();
    return running ? MP_OK : MP_ERR_STATE;
}

/* ---- questions
 * ---------------------------------------------------------------- */

void
mp_session_status(mp_session_t *session, mp_session_status_t *out)
{
    lock();
    if (session->running) {
        drain_locked();
    }
    uint64_t dropped_now = session->running ? mp_log_dropped(mp_hook_log())
                                            : session->dropped_after;
    *out = (mp_session_status_t){
        .running = session->running,
        .seeding = session->seeding,
        .recording = session->recording,
        .forked = session->forked,
        .events = session->events,
        .dropped =
            dropped_now - session->dropped_before + session->window.dropped,
        .own_bytes = mp_mem_bytes() + mp_tracker_bytes(session->follower) +
                     session->window.count * sizeof(mp_event_t) +
                     (session->window.tracker == NULL
                          ? 0
                          : mp_tracker_bytes(session->window.tracker)),
        .stream_errno = session->last_stream_errno,
    };
    mp_tracker_defects(session->follower, &out->defects);
    unlock();
}

mp_status_t
mp_session_steps(mp_session_t *session, mp_step_stats_t **rows, size_t *count)
{
    mp_status_t status = MP_OK;
    lock();
    if (session->running) {
        drain_locked();
    }
    const mp_step_stats_t *steps = mp_tracker_steps(session->follower, count);
    *rows = mp_calloc(*count + 1, sizeof(mp_step_stats_t));
    if (*rows == NULL) {
        status = MP_ERR_NOMEM;
    }
    else {
        memcpy(*rows, steps, *count * sizeof(mp_step_stats_t));
    }
    unlock();
    return status;
}

mp_status_t
mp_session_stats(mp_session_t *session, int16_t device, mp_device_stats_t *out)
{
    lock();
    if (session->running) {
        drain_locked();
    }
    bool found = mp_tracker_stats(session->follower, device, out);
    unlock();
    return found ? MP_OK : MP_ERR_ARG;
}

mp_status_t
mp_session_scope_open(mp_session_t *session, mp_scope_t *scope)
{
    lock();
    if (session->running) {
        drain_locked();
    }
    mp_status_t status = session->running
                             ? mp_tracker_scope_open(session->follower, scope)
                             : MP_ERR_STATE;
    unlock();
    return status;
}

mp_status_t
mp_session_scope_peak(mp_session_t *session, mp_scope_t scope, int16_t device,
                      mp_device_stats_t *out)
{
    lock();
    if (session->running) {
        drain_locked();
    }
    mp_status_t status =
        mp_tracker_scope_peak(session->follower, scope, device, out);
    unlock();
    return status;
}

mp_status_t
mp_session_scope_close(mp_session_t *session, mp_scope_t scope)
{
    lock();
    if (session->running) {
        drain_locked();
    }
    mp_tracker_scope_close(session->follower, scope);
    unlock();
    return MP_OK;
}
