/* window.c - the events of a stretch of time, kept under a budget. */
#include "window.h"

#include "clock.h"
#include "hook.h"
#include "mem.h"

#include <errno.h>
#include <string.h>

#define STREAM_FLUSH_NS 500000000
#define LEAST_BYTES ((size_t)1 << 20)

/* ---- life cycle --------------------------------------------------------- */

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

static mp_status_t
tracker_new(mp_window_t *window, const mp_window_options_t *options)
{
    mp_tracker_options_t of_tracker = {
        .session_id = options->session_id,
        .keep_dead = true,
        .allocation_budget_bytes = options->allocation_budget_bytes,
    };
    return mp_tracker_new(&of_tracker, &window->tracker);
}

mp_status_t
mp_window_open(mp_window_t *window, const mp_window_options_t *options,
               const char *path, int *saved_errno)
{
    *window = (mp_window_t){
        .start_ns = mp_clock_now(),
        .start_wall_ns = mp_clock_wall_now(),
        .reserved_bytes = options->event_budget_bytes,
    };
    window->events = reserve_up_to(&window->reserved_bytes);
    mp_status_t status = window->events == NULL ? MP_ERR_NOMEM : MP_OK;
    if (status == MP_OK) {
        status = tracker_new(window, options);
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
    window->capacity = window->reserved_bytes / sizeof(mp_event_t);
    window->flushed_ns = window->start_ns;
    window->dropped_before = mp_log_dropped(mp_hook_log());
    return MP_OK;
}

void
mp_window_clear(mp_window_t *window)
{
    mp_unreserve(window->events, window->reserved_bytes);
    mp_tracker_free(window->tracker);
    mp_recording_writer_abandon(window->writer);
    *window = (mp_window_t){0};
}

/* ---- keeping ------------------------------------------------------------ */

static bool
keep_below(mp_window_t *window, const mp_event_t *event, size_t capacity)
{
    if (window->full || window->count >= capacity ||
        mp_tracker_apply(window->tracker, event) != MP_OK) {
        /* What is kept stays a whole prefix: a gap would make every later
         * number wrong. */
        window->full = true;
        window->dropped++;
        return false;
    }
    window->events[window->count++] = *event;
    return true;
}

bool
mp_window_keep(mp_window_t *window, const mp_event_t *event)
{
    /* One place is kept for the end. */
    return keep_below(window, event, window->capacity - 1);
}

uint64_t
mp_window_dropped(const mp_window_t *window)
{
    return window->dropped + mp_log_dropped(mp_hook_log()) -
           window->dropped_before;
}

/* ---- streaming ---------------------------------------------------------- */

static void
stream_failed(mp_window_t *window, int saved_errno)
{
    window->stream_errno = saved_errno != 0 ? saved_errno : EIO;
    /* After a failure a close writes nothing more. */
    int ignored;
    (void)mp_recording_writer_close(window->writer, "", 0, 0, &ignored);
    window->writer = NULL;
}

void
mp_window_stream(mp_window_t *window, bool flush)
{
    if (window->writer == NULL) {
        return;
    }
    errno = 0;
    mp_status_t status = mp_recording_writer_append(
        window->writer, window->events + window->streamed,
        window->count - window->streamed);
    window->streamed = window->count;
    int64_t now = mp_clock_now();
    if (status == MP_OK &&
        (flush || now - window->flushed_ns > STREAM_FLUSH_NS)) {
        status = mp_recording_writer_flush(window->writer);
        window->flushed_ns = now;
    }
    if (status != MP_OK) {
        stream_failed(window, status == MP_ERR_NOMEM ? ENOMEM : errno);
    }
}

void
mp_window_describe(mp_window_t *window, const char *info, size_t info_length)
{
    if (window->writer == NULL) {
        return;
    }
    errno = 0;
    mp_status_t status =
        mp_recording_writer_info(window->writer, info, info_length);
    if (status != MP_OK) {
        stream_failed(window, status == MP_ERR_NOMEM ? ENOMEM : errno);
    }
}

/* ---- the end ------------------------------------------------------------ */

/* Give back the address space that was not used. */
static void
trim(mp_window_t *window)
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

void
mp_window_close(mp_window_t *window, const mp_event_t *mark)
{
    window->full = false;
    (void)keep_below(window, mark, window->capacity);
    mp_window_stream(window, true);
    window->dropped = mp_window_dropped(window);
    trim(window);
}

mp_status_t
mp_window_copy(const mp_window_t *window, mp_window_t *out)
{
    *out = (mp_window_t){
        .count = window->count,
        .reserved_bytes = (window->count + 1) * sizeof(mp_event_t),
        .dropped = mp_window_dropped(window),
        .start_ns = window->start_ns,
        .start_wall_ns = window->start_wall_ns,
        .stream_errno = window->stream_errno,
    };
    out->events = mp_reserve(out->reserved_bytes);
    if (out->events == NULL) {
        return MP_ERR_NOMEM;
    }
    memcpy(out->events, window->events, out->count * sizeof(mp_event_t));
    return MP_OK;
}

mp_status_t
mp_window_replay(mp_window_t *window, const mp_window_options_t *options)
{
    mp_status_t status = tracker_new(window, options);
    for (size_t i = 0; status == MP_OK && i < window->count; i++) {
        status = mp_tracker_apply(window->tracker, &window->events[i]);
    }
    if (status != MP_OK) {
        mp_window_clear(window);
    }
    return status;
}
