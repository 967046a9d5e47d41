/* tracker.h - from events to lives: what is alive, and each one's story.
 *
 * Fed with events in log order, by one thread at a time.  Knows nothing of
 * hooks, files or Python.  The same code runs behind the drain thread and
 * behind a file that is loaded: there is one replay.
 *
 * Two lives are told apart by their birth, not by their address.  A block's
 * life ends when its free is requested (that is when torch's
 * allocated_bytes falls); until the free is completed it still counts as
 * active.
 *
 * With `keep_dead` the tracker keeps a row for every life (a recording);
 * without it rows of dead blocks are used again (following along in steps
 * that are not recorded). */
#ifndef MP_TRACKER_H
#define MP_TRACKER_H

#include "counters.h"
#include "handover.h"
#include "ledger.h"
#include "life.h"

typedef struct mp_tracker mp_tracker_t;

typedef struct {
    uint64_t session_id; /* STEP and WINDOW events of others are ignored */
    bool keep_dead;
    size_t allocation_budget_bytes; /* rows beyond it: MP_ERR_FULL */
} mp_tracker_options_t;

mp_status_t mp_tracker_new(const mp_tracker_options_t *options,
                           mp_tracker_t **out);
void mp_tracker_free(mp_tracker_t *tracker); /* accepts NULL */

/* Apply one event.  EVENT->step is ignored: the tracker counts steps.
 * Unknown frees and the like are counted, not errors.
 * MP_ERR_NOMEM, MP_ERR_FULL: the event was not applied and has no index; it
 * is counted as a defect. */
mp_status_t mp_tracker_apply(mp_tracker_t *tracker, const mp_event_t *event);

int32_t mp_tracker_step(const mp_tracker_t *tracker); /* the current one */

/* Rows of lives, births in order, the ones older than the start first.
 * *COUNT rows; the array does not move, later rows are added behind. */
const mp_allocation_t *mp_tracker_allocations(const mp_tracker_t *tracker,
                                              size_t *count);
mp_allocation_t *mp_tracker_allocations_mutable(mp_tracker_t *tracker,
                                                size_t *count);

/* Devices seen: CPU first if seen, then CUDA by index. */
size_t mp_tracker_devices(const mp_tracker_t *tracker, int16_t *devices,
                          size_t capacity);
bool mp_tracker_stats(const mp_tracker_t *tracker, int16_t device,
                      mp_device_stats_t *stats);

/* One row a step and device, in order. */
const mp_step_stats_t *mp_tracker_steps(const mp_tracker_t *tracker,
                                        size_t *count);

/* What the process holds of the driver; NULL: nothing was told of it. */
const mp_ledger_t *mp_tracker_ledger(const mp_tracker_t *tracker);

void mp_tracker_defects(const mp_tracker_t *tracker, mp_defects_t *defects);

/* The state as events that a new tracker can be fed with: segments, live
 * blocks with their origin and role, open ops and regions, the step, the last
 * totals.  EMIT is called for each in order and returns false to stop. */
mp_status_t mp_tracker_write_state(const mp_tracker_t *tracker, mp_emit_t emit,
                                   void *context);

/* Scopes: an optimizer, module, region or backward run, say, with high-water
 * marks of its own (devices.h). */
mp_status_t mp_tracker_scope_open(mp_tracker_t *tracker, mp_scope_t *scope);
mp_status_t mp_tracker_scope_peak(const mp_tracker_t *tracker,
                                  mp_scope_t scope, int16_t device,
                                  mp_device_stats_t *stats);
void mp_tracker_scope_close(mp_tracker_t *tracker, mp_scope_t scope);

size_t mp_tracker_bytes(const mp_tracker_t *tracker); /* memory held */

#endif
