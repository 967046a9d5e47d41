/* timeline.h - bytes over time, and the highest moment.
 *
 * Works on the rows of a tracker and the events they came from; builds
 * arrays, changes nothing. */
#ifndef MP_TIMELINE_H
#define MP_TIMELINE_H

#include "tracker.h"

/* A sample is taken after every event that changes the bytes of DEVICE. */
typedef struct {
    size_t count;
    size_t columns;
    int64_t *event;   /* [count] index of the event */
    int64_t *time_ns; /* [count] */
    int64_t *bytes;   /* [count * columns], row-major */
} mp_timeline_t;

typedef enum {
    MP_TIMELINE_TOTALS = 0,  /* columns: requested, active, reserved */
    MP_TIMELINE_CATEGORY = 1 /* columns: one per category, in order */
} mp_timeline_kind_t;

/* The first sample is the state at the start: event -1, the time of the
 * first event.  EVENTS are only needed for the segments (TOTALS). */
mp_status_t mp_timeline_build(const mp_event_t *events, size_t event_count,
                              const mp_allocation_t *rows, size_t row_count,
                              int16_t device, mp_timeline_kind_t kind,
                              mp_timeline_t *out);
void mp_timeline_clear(mp_timeline_t *timeline); /* frees the arrays */

#endif
