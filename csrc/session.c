/* session.c - who records: profiles from start to stop.
 *
 * The session lock (drain.h) guards the list of running sessions and
 * everything inside a session.  It is held while events are applied and
 * written to a file, never while calling Python or torch, with one exception
 * that blocks on nothing: installing the shim's callbacks. */
#include "session.h"

#include "callbacks.h"
#include "clock.h"
#include "drain.h"
#include "hook.h"
#include "libraries.h"
#include "mem.h"
#include "sampler.h"
#include "seeding.h"

#include <pthread.h>
#include <string.h>

#define DEFAULT_EVENT_BYTES ((size_t)2 << 30)

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

    mp_seeding_t seeding; /* events wait for mp_session_seed */

    bool recording; /* a window is open */
    mp_window_t window;
    int last_stream_errno; /* of a window since the start */
};

static struct {
    mp_session_t *sessions; /* the running ones */
    uint64_t next_id;
    bool atfork_set;
} the_engine = {.next_id = 1}; /* the session lock */

/* ---- events ------------------------------------------------------------- */

static void
note_stream_errno(mp_session_t *session)
{
    if (session->window.stream_errno != 0) {
        session->last_stream_errno = session->window.stream_errno;
    }
}

/* Give the open window's writer what it has not seen. */
static void
stream(mp_session_t *session, bool flush)
{
    mp_window_stream(&session->window, flush);
    note_stream_errno(session);
}

/* Torch took memory from the driver: perhaps more than ever, and then what the
 * process holds near the peak is of interest. */
static void
note_segment(const mp_session_t *session, int16_t device)
{
    mp_device_stats_t stats;
    if (session->options.totals &&
        mp_tracker_stats(session->follower, device, &stats) &&
        stats.reserved_bytes.current == stats.reserved_bytes.peak) {
        mp_sampler_want(MP_TOTAL_CAUSE_PEAK);
    }
}

/* A library's image or a context came: what it took is the difference. */
static void
note_mark(const mp_session_t *session, const mp_event_t *event)
{
    if (session->options.totals &&
        (event->pool == MP_DRIVER_MARK_IMAGE_LOADED ||
         event->pool == MP_DRIVER_MARK_CONTEXT_CREATED)) {
        mp_sampler_want(MP_TOTAL_CAUSE_REQUEST);
    }
}

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
    if (copy.kind == MP_EVENT_SEGMENT_ALLOC ||
        copy.kind == MP_EVENT_SEGMENT_MAP) {
        note_segment(session, copy.device);
    }
    else if (copy.kind == MP_EVENT_DRIVER_MARK) {
        note_mark(session, &copy);
    }
    if (session->recording) {
        copy.step = mp_tracker_step(session->follower);
        (void)mp_window_keep(&session->window, &copy);
    }
}

static void
receive(mp_session_t *session, const mp_event_t *event)
{
    mp_event_t named;
    if (MP_UNLIKELY(mp_event_is_driver(event->kind))) {
        named = *event; /* who asked could not be said in the callback */
        mp_libraries_name_event(mp_hook_intern(), &named);
        event = &named;
    }
    if (MP_UNLIKELY(mp_event_is_gpu(event->kind)) &&
        !session->options.kernels) {
        return; /* another session's wish */
    }
    if (!session->seeding.waiting) {
        deliver(session, event);
    }
    else if (!mp_seeding_hold(&session->seeding, event)) {
        session->dropped_before--; /* shows as one more dropped */
    }
}

/* What the log held, for every running session.  The lock is held. */
static void
receive_all(const mp_event_t *events, size_t count)
{
    for (mp_session_t *session = the_engine.sessions; session != NULL;
         session = session->next) {
        for (size_t i = 0; i < count; i++) {
            receive(session, &events[i]);
        }
        if (session->recording) {
            stream(session, false);
        }
    }
    if (mp_totals_requested()) {
        mp_sampler_want(MP_TOTAL_CAUSE_REQUEST);
    }
}

/* ---- fork --------------------------------------------------------------- */

/* The child has no drain thread and no CUDA; recordings stay with the
 * parent. */
static void
fork_prepare(void)
{
    mp_drain_lock();
}

static void
fork_parent(void)
{
    mp_drain_unlock();
}

static void
fork_child(void)
{
    for (mp_session_t *session = the_engine.sessions; session != NULL;
         session = session->next) {
        session->running = false;
        session->forked = true;
        session->recording = false;
        session->seeding.waiting = false;
        session->dropped_after = mp_log_dropped(mp_hook_log());
        mp_recording_writer_abandon(session->window.writer);
        session->window.writer = NULL;
    }
    the_engine.sessions = NULL;
    mp_sampler_after_fork();
    mp_drain_after_fork();
    mp_drain_unlock();
}

/* ---- the hooks ---------------------------------------------------------- */

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
        flags |= options->shapes ? MP_HOOK_SHAPES : 0;
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
    int ops;
    uint32_t flags = all_wanted(&ops);
    return mp_callbacks_switch(flags, ops, error, error_size);
}

/* ---- life cycle --------------------------------------------------------- */

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
    mp_drain_lock();
    session->id = the_engine.next_id++;
    if (!the_engine.atfork_set) {
        the_engine.atfork_set =
            pthread_atfork(fork_prepare, fork_parent, fork_child) == 0;
    }
    mp_drain_unlock();
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

/* Whether a running session wants totals.  The lock is held. */
static bool
totals_wanted(void)
{
    for (const mp_session_t *session = the_engine.sessions; session != NULL;
         session = session->next) {
        if (session->options.totals) {
            return true;
        }
    }
    return false;
}

/* The lock is held; it is given up while waiting for the threads. */
static void
stop_locked(mp_session_t *session)
{
    char ignored[256];
    (void)mp_drain_now();
    leave_list(session);
    session->running = false;
    mp_seeding_end(&session->seeding);
    session->dropped_after = mp_log_dropped(mp_hook_log());
    (void)switch_hooks(ignored, sizeof(ignored));
    if (!totals_wanted()) {
        mp_sampler_stop();
    }
    if (the_engine.sessions == NULL) {
        mp_drain_stop();
    }
}

void
mp_session_free(mp_session_t *session)
{
    if (session == NULL) {
        return;
    }
    mp_drain_lock();
    if (session->running) {
        stop_locked(session);
    }
    mp_window_clear(&session->window);
    mp_seeding_end(&session->seeding);
    mp_drain_unlock();
    mp_tracker_free(session->follower);
    mp_free(session);
}

uint64_t
mp_session_id(const mp_session_t *session)
{
    return session->id;
}

bool
mp_session_totals(const mp_session_t *session)
{
    return session->options.totals;
}

bool
mp_session_kernels(const mp_session_t *session)
{
    return session->options.kernels;
}

/* In place of an option, which may change between a stop and a start. */
static mp_status_t
set_option(mp_session_t *session, bool *option, bool wanted)
{
    mp_drain_lock();
    bool running = session->running;
    if (!running) {
        *option = wanted;
    }
    mp_drain_unlock();
    return running ? MP_ERR_STATE : MP_OK;
}

mp_status_t
mp_session_set_totals(mp_session_t *session, bool wanted)
{
    return set_option(session, &session->options.totals, wanted);
}

mp_status_t
mp_session_set_kernels(mp_session_t *session, bool wanted)
{
    return set_option(session, &session->options.kernels, wanted);
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
    (void)mp_drain_now();
    for (mp_session_t *other = the_engine.sessions; other != NULL;
         other = other->next) {
        if (other->seeding.waiting ||
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
    if (seeding && !*took_over) {
        status = mp_seeding_begin(&session->seeding);
        if (status != MP_OK) {
            return status;
        }
    }
    status = mp_drain_start(receive_all);
    if (status != MP_OK) {
        mp_seeding_end(&session->seeding);
        return status;
    }
    session->running = true;
    session->last_stream_errno = 0;
    session->dropped_before = mp_log_dropped(mp_hook_log());
    session->next = the_engine.sessions;
    the_engine.sessions = session;
    status = switch_hooks(error, error_size);
    if (status == MP_OK && session->options.totals) {
        status = mp_sampler_start();
    }
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
    mp_drain_lock();
    mp_status_t status =
        start_locked(session, seeding, took_over, error, error_size);
    mp_drain_unlock();
    return status;
}

static void
deliver_to(void *context, const mp_event_t *event)
{
    deliver(context, event);
}

mp_status_t
mp_session_seed(mp_session_t *session, const mp_event_t *events, size_t count)
{
    mp_drain_lock();
    if (!session->running || !session->seeding.waiting) {
        mp_drain_unlock();
        return MP_ERR_STATE;
    }
    (void)mp_drain_now();
    mp_seeding_finish(&session->seeding, events, count, deliver_to, session);
    mp_drain_unlock();
    return MP_OK;
}

/* What a session says of itself, now. */
static mp_event_t
own_event(const mp_session_t *session, uint8_t kind)
{
    mp_event_t event = mp_hook_own_event(kind);
    event.addr = session->id;
    return event;
}

mp_status_t
mp_session_step(mp_session_t *session, int32_t number)
{
    mp_event_t event = own_event(session, MP_EVENT_STEP);
    event.size = (uint64_t)number;
    mp_drain_lock();
    bool running = session->running;
    mp_drain_unlock();
    if (!running || number < 0) {
        return running ? MP_ERR_ARG : MP_ERR_STATE;
    }
    while (!mp_hook_feed(&event, 1)) { /* a step must not be lost */
        mp_drain_lock();
        (void)mp_drain_now();
        mp_drain_unlock();
    }
    mp_sampler_want(MP_TOTAL_CAUSE_STEP);
    return MP_OK;
}

/* ---- windows ------------------------------------------------------------ */

static mp_window_options_t
window_options(const mp_session_t *session)
{
    return (mp_window_options_t){
        .session_id = session->id,
        .event_budget_bytes = session->options.event_budget_bytes,
        .allocation_budget_bytes = session->options.allocation_budget_bytes,
    };
}

static bool
keep_state_event(void *context, const mp_event_t *event)
{
    mp_session_t *session = context;
    mp_event_t copy = *event;
    copy.step = mp_tracker_step(session->follower);
    return mp_window_keep(&session->window, &copy);
}

/* Have what is held now in the log. */
static void
measure(const mp_session_t *session)
{
    if (session->options.totals) {
        mp_sampler_wait();
    }
}

mp_status_t
mp_session_window_begin(mp_session_t *session, const char *path,
                        int *saved_errno)
{
    *saved_errno = 0;
    measure(session);
    mp_drain_lock();
    if (!session->running || session->recording || session->seeding.waiting) {
        mp_drain_unlock();
        return MP_ERR_STATE;
    }
    (void)mp_drain_now();
    mp_window_options_t options = window_options(session);
    mp_status_t status =
        mp_window_open(&session->window, &options, path, saved_errno);
    if (status == MP_OK) {
        /* A budget too small for what is alive shows as dropped events. */
        (void)mp_tracker_write_state(session->follower, keep_state_event,
                                     session);
        mp_event_t mark = own_event(session, MP_EVENT_WINDOW_BEGIN);
        mark.step = mp_tracker_step(session->follower);
        (void)mp_window_keep(&session->window, &mark);
        (void)mp_tracker_apply(session->follower, &mark);
        session->recording = true;
        stream(session, true);
    }
    mp_drain_unlock();
    return status;
}

mp_status_t
mp_session_window_describe(mp_session_t *session, const char *info,
                           size_t info_length)
{
    mp_drain_lock();
    mp_status_t status = session->recording ? MP_OK : MP_ERR_STATE;
    if (status == MP_OK) {
        mp_window_describe(&session->window, info, info_length);
        note_stream_errno(session);
    }
    mp_drain_unlock();
    return status;
}

mp_status_t
mp_session_window_end(mp_session_t *session, mp_window_t *out)
{
    measure(session);
    mp_drain_lock();
    if (!session->recording) {
        mp_drain_unlock();
        return MP_ERR_STATE;
    }
    (void)mp_drain_now();
    mp_event_t mark = own_event(session, MP_EVENT_WINDOW_END);
    mark.step = mp_tracker_step(session->follower);
    (void)mp_tracker_apply(session->follower, &mark);
    mp_window_close(&session->window, &mark);
    note_stream_errno(session);
    session->recording = false;
    *out = session->window;
    session->window = (mp_window_t){0};
    mp_drain_unlock();
    return MP_OK;
}

mp_status_t
mp_session_window_copy(mp_session_t *session, mp_window_t *out)
{
    measure(session);
    mp_drain_lock();
    if (!session->recording) {
        mp_drain_unlock();
        return MP_ERR_STATE;
    }
    (void)mp_drain_now();
    mp_status_t status = mp_window_copy(&session->window, out);
    mp_window_options_t options = window_options(session);
    mp_drain_unlock();
    return status == MP_OK ? mp_window_replay(out, &options) : status;
}

mp_status_t
mp_session_stop(mp_session_t *session)
{
    mp_drain_lock();
    if (!session->running || session->recording) {
        mp_drain_unlock();
        return MP_ERR_STATE;
    }
    stop_locked(session);
    mp_drain_unlock();
    return MP_OK;
}

/* Take the lock, with all that was written before. */
static void
lock_drained(const mp_session_t *session)
{
    mp_drain_lock();
    if (session->running) {
        (void)mp_drain_now();
    }
}

mp_status_t
mp_session_flush(mp_session_t *session)
{
    lock_drained(session);
    bool running = session->running;
    if (session->recording) {
        stream(session, true);
    }
    mp_drain_unlock();
    return running ? MP_OK : MP_ERR_STATE;
}

/* ---- questions ---------------------------------------------------------- */

void
mp_session_status(mp_session_t *session, mp_session_status_t *out)
{
    lock_drained(session);
    uint64_t dropped_now = session->running ? mp_log_dropped(mp_hook_log())
                                            : session->dropped_after;
    *out = (mp_session_status_t){
        .running = session->running,
        .seeding = session->seeding.waiting,
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
    mp_drain_unlock();
}

mp_status_t
mp_session_steps(mp_session_t *session, mp_step_stats_t **rows, size_t *count)
{
    mp_status_t status = MP_OK;
    lock_drained(session);
    const mp_step_stats_t *steps = mp_tracker_steps(session->follower, count);
    *rows = mp_calloc(*count + 1, sizeof(mp_step_stats_t));
    if (*rows == NULL) {
        status = MP_ERR_NOMEM;
    }
    else {
        memcpy(*rows, steps, *count * sizeof(mp_step_stats_t));
    }
    mp_drain_unlock();
    return status;
}

mp_status_t
mp_session_stats(mp_session_t *session, int16_t device, mp_device_stats_t *out)
{
    lock_drained(session);
    bool found = mp_tracker_stats(session->follower, device, out);
    mp_drain_unlock();
    return found ? MP_OK : MP_ERR_ARG;
}

mp_status_t
mp_session_scope_open(mp_session_t *session, mp_scope_t *scope)
{
    lock_drained(session);
    mp_status_t status = session->running
                             ? mp_tracker_scope_open(session->follower, scope)
                             : MP_ERR_STATE;
    mp_drain_unlock();
    return status;
}

mp_status_t
mp_session_scope_peak(mp_session_t *session, mp_scope_t scope, int16_t device,
                      mp_device_stats_t *out)
{
    lock_drained(session);
    mp_status_t status =
        mp_tracker_scope_peak(session->follower, scope, device, out);
    mp_drain_unlock();
    return status;
}

mp_status_t
mp_session_scope_close(mp_session_t *session, mp_scope_t scope)
{
    lock_drained(session);
    mp_tracker_scope_close(session->follower, scope);
    mp_drain_unlock();
    return MP_OK;
}
