/* window.h - the events of a stretch of time, kept under a budget.
 *
 * A window holds events, a tracker that has seen them, and (when asked) the
 * writer that streams them to a file.  What is kept stays a whole prefix.
 * Knows nothing of sessions but the id that its options name.
 *
 * A window belongs to its session until mp_session_window_end or _copy gives
 * it away; until then session.c alone calls these, with the session lock
 * held.  Whoever owns it then (the edge, tests) needs mp_window_clear. */
#ifndef MP_WINDOW_H
#define MP_WINDOW_H

#include "recording.h"
#include "tracker.h"

/* The intern is the process's: it is never freed. */
typedef struct {
    mp_event_t *events; /* mp_reserve'd, RESERVED_BYTES */
    size_t count;
    size_t reserved_bytes;
    mp_tracker_t *tracker;
    mp_recording_writer_t *writer; /* NULL: not streamed */
    int stream_errno;              /* not 0: streaming failed with it */
    uint64_t dropped;
    int64_t start_ns;
    int64_t start_wall_ns;

    /* While it is open; window.c's. */
    size_t capacity;         /* events */
    bool full;               /* later events are counted, not kept */
    size_t streamed;         /* events given to the writer */
    int64_t flushed_ns;      /* the writer's last flush */
    uint64_t dropped_before; /* by the log, before the window */
} mp_window_t;

typedef struct {
    uint64_t session_id;
    size_t event_budget_bytes;      /* at least two events' */
    size_t allocation_budget_bytes; /* of the tracker */
} mp_window_options_t;

/* PATH: where to stream to; NULL: nowhere.  MP_ERR_IO: *SAVED_ERRNO.  On
 * failure the window is cleared. */
mp_status_t mp_window_open(mp_window_t *window,
                           const mp_window_options_t *options,
                           const char *path, int *saved_errno);

/* Keep one event, its step filled in.  False: the window is full, now and
 * later; the event is counted as dropped. */
bool mp_window_keep(mp_window_t *window, const mp_event_t *event);

/* Give the writer what it has not seen; FLUSH: to the file at once.  A
 * failure ends the streaming (stream_errno), not the recording. */
void mp_window_stream(mp_window_t *window, bool flush);

/* Give the writer, if there is one, what it says of the run should it never
 * be closed: UTF-8 JSON.  A failure is as one of mp_window_stream. */
void mp_window_describe(mp_window_t *window, const char *info,
                        size_t info_length);

/* Events that the budget or the log dropped so far. */
uint64_t mp_window_dropped(const mp_window_t *window);

/* Keep and stream MARK as the last event, for which there always is a place,
 * and give back what was not used. */
void mp_window_close(mp_window_t *window, const mp_event_t *mark);

/* *OUT: a copy so far, without writer and tracker... */
mp_status_t mp_window_copy(const mp_window_t *window, mp_window_t *out);
/* ...and its tracker.  Needs no lock, *WINDOW is a copy.  On failure it is
 * cleared. */
mp_status_t mp_window_replay(mp_window_t *window,
                             const mp_window_options_t *options);

/* Free all of it; a writer is abandoned. */
void mp_window_clear(mp_window_t *window);

#endif
