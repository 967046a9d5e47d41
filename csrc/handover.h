/* handover.h - the state as events that a new tracker can be fed with.
 *
 * A window begins with them, and a session that starts beside another one.
 * Reads a tracker's parts and changes none.  Called by tracker.c only
 * (mp_tracker_write_state), under whatever serialises the tracker. */
#ifndef MP_HANDOVER_H
#define MP_HANDOVER_H

#include "ledger.h"
#include "life.h"

/* Called for each event in order; false: stop. */
typedef bool (*mp_emit_t)(void *context, const mp_event_t *event);

/* What there is to tell.  Borrowed for the call. */
typedef struct {
    const struct mp_devices *devices;
    const mp_allocation_t *rows;
    size_t row_count;
    const struct mp_nesting *nesting;
    const mp_ledger_t *ledger; /* or NULL */
    const struct mp_totals *totals;
    uint64_t session_id;
    int32_t step;
    int64_t time_ns; /* that all events get but those of totals */
} mp_handover_t;

/* Segments, live blocks each with its origin and role, what is held of the
 * driver, open regions and ops, the step, the last totals of each device with
 * the time at which they were measured.  MP_ERR_FULL: EMIT stopped it. */
mp_status_t mp_handover_write(const mp_handover_t *state, mp_emit_t emit,
                              void *context);

#endif
