/* session.h - one profile, from start to stop.
 *
 * Process-wide there is one log and one drain thread; any number of sessions
 * may run at a time, each with a tracker of its own, and each event is given
 * to all of them.  A session follows every block from its start on; while a
 * window is open it also keeps the events (and streams them to a file when
 * asked).
 *
 * Lock order: GIL -> session -> log.  Every function here takes the session
 * lock and may wait for the drain thread's present batch: call without the
 * GIL.  None may be called from a hook. */
#ifndef MP_SESSION_H
#define MP_SESSION_H

#include "event.h"
#include "tracker.h"
#include "window.h"

typedef struct mp_session mp_session_t;

typedef struct {
    int ops; /* 2: all; 1: record_function regions; 0: none */
    bool stacks;
    bool modules; /* find them on the Python stack */
    bool shapes;  /* of the tensors that ops return; with ops 2 */
    bool cpu;
    bool cuda;
    bool kernels; /* what runs on GPUs is wanted */
    bool totals;  /* what process and devices hold is measured meanwhile */
    size_t event_budget_bytes;      /* of a window */
    size_t allocation_budget_bytes; /* of its lives */
} mp_session_options_t;

mp_status_t mp_session_new(const mp_session_options_t *options,
                           mp_session_t **out);
/* Stops it first if it still runs.  Accepts NULL. */
void mp_session_free(mp_session_t *session);

uint64_t mp_session_id(const mp_session_t *session);

bool mp_session_totals(const mp_session_t *session);
/* In place of the option.  MP_ERR_STATE: it runs. */
mp_status_t mp_session_set_totals(mp_session_t *session, bool wanted);
/* Likewise. */
bool mp_session_kernels(const mp_session_t *session);
mp_status_t mp_session_set_kernels(mp_session_t *session, bool wanted);

/* Switch the hooks on.  A session that was stopped begins anew.  SEEDING: hold
 * events back until mp_session_seed. If another session runs (and is not
 * seeding), its state is taken over and *TOOK_OVER is set; then SEEDING is
 * ignored.  ERROR names the source that could not be installed (MP_ERR_LOAD).
 */
mp_status_t mp_session_start(mp_session_t *session, bool seeding,
                             bool *took_over, char *error, size_t error_size);

/* SEED_SEGMENT and SEED_BLOCK events of CUDA devices, grouped by device in
 * any order.  The k-th SNAPSHOT event of this thread is device k's cut:
 * memory events of that device before it are dropped (the snapshot knows
 * them), its seeds are put there, and what came later is replayed. */
mp_status_t mp_session_seed(mp_session_t *session, const mp_event_t *events,
                            size_t count);

mp_status_t mp_session_step(mp_session_t *session, int32_t number);

/* MP_ERR_IO: *SAVED_ERRNO; no window is open then. */
mp_status_t mp_session_window_begin(mp_session_t *session, const char *path,
                                    int *saved_errno);

/* What the open window's file says of the run should it never be closed:
 * UTF-8 JSON.  MP_ERR_STATE: no window is open. */
mp_status_t mp_session_window_describe(mp_session_t *session, const char *info,
                                       size_t info_length);

/* Give the window away; the caller owns all of it. */
mp_status_t mp_session_window_end(mp_session_t *session, mp_window_t *out);
/* A copy of the open window so far (without a writer). */
mp_status_t mp_session_window_copy(mp_session_t *session, mp_window_t *out);

/* MP_ERR_STATE: not running, or a window is open. */
mp_status_t mp_session_stop(mp_session_t *session);

/* Apply every event written before the call; a streamed file has it then. */
mp_status_t mp_session_flush(mp_session_t *session);

typedef struct {
    bool running, seeding, recording, forked;
    uint64_t events;  /* applied since the start */
    uint64_t dropped; /* by the log, and by the window's budget */
    size_t own_bytes;
    int stream_errno;
    mp_defects_t defects;
} mp_session_status_t;

void mp_session_status(mp_session_t *session, mp_session_status_t *out);

/* Rows of all steps since the start, copied; the caller frees *ROWS with
 * mp_free. */
mp_status_t mp_session_steps(mp_session_t *session, mp_step_stats_t **rows,
                             size_t *count);

/* MP_ERR_ARG: no such device (or scope). */
mp_status_t mp_session_stats(mp_session_t *session, int16_t device,
                             mp_device_stats_t *out);
mp_status_t mp_session_scope_open(mp_session_t *session, mp_scope_t *scope);
mp_status_t mp_session_scope_peak(mp_session_t *session, mp_scope_t scope,
                                  int16_t device, mp_device_stats_t *out);
mp_status_t mp_session_scope_close(mp_session_t *session, mp_scope_t scope);

#endif
