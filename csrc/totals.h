/* totals.h - what the driver said, replayed from events.
 *
 * The series of all samples of a recording, and the last one of each device,
 * which is part of a tracker's state.  Knows nothing of who measured. */
#ifndef MP_TOTALS_H
#define MP_TOTALS_H

#include "total.h"

/* All zero: none yet. */
typedef struct mp_totals {
    struct mp_totals_last *last; /* of each device, in order of appearance */
    size_t count, capacity;
} mp_totals_t;

/* EVENT is one of TOTAL_*.  Part of a tracker: called by tracker.c only, under
 * whatever serialises the tracker, as is the rest but mp_totals_build. */
mp_status_t mp_totals_apply(mp_totals_t *totals, const mp_event_t *event);

/* The events of the last sample of the I-th device; returns how many. */
size_t mp_totals_last(const mp_totals_t *totals, size_t i,
                      const mp_event_t **events);

void mp_totals_clear(mp_totals_t *totals); /* frees, zeroes */
size_t mp_totals_bytes(const mp_totals_t *totals);

/* All samples among EVENTS in order, those that were the state at the start
 * included; the caller frees *ROWS with mp_free. */
mp_status_t mp_totals_build(const mp_event_t *events, size_t event_count,
                            mp_total_t **rows, size_t *count);

#endif
