/* steps.h - one row a step and device: when it ran and what it reached.
 *
 * Knows the devices' counters, nothing of lives.  Part of a tracker: called
 * by tracker.c only, under whatever serialises the tracker.  What every
 * allocation needs is inline. */
#ifndef MP_STEPS_H
#define MP_STEPS_H

#include "counters.h"
#include "devices.h"

typedef struct {
    mp_step_stats_t *rows; /* reserved: never moves */
    size_t count;
    int32_t number; /* of the present step */
    bool recorded;  /* inside a window */
} mp_steps_t;

/* STEPS is all zero. */
mp_status_t mp_steps_init(mp_steps_t *steps);
void mp_steps_clear(mp_steps_t *steps); /* accepts all zero */

/* DEVICE was seen first: EVENT is the next event's index. */
void mp_steps_open(mp_steps_t *steps, mp_device_t *device, int64_t event,
                   int64_t time_ns);

/* Step NUMBER begins on all devices. */
void mp_steps_begin(mp_steps_t *steps, mp_devices_t *devices, int32_t number,
                    int64_t event, int64_t time_ns);

/* A window begins: the open rows are inside it. */
void mp_steps_window_begin(mp_steps_t *steps, const mp_devices_t *devices);
/* It ends, and the present step with it: the next one opens new rows. */
void mp_steps_window_end(mp_steps_t *steps, mp_devices_t *devices,
                         int64_t event, int64_t time_ns);

/* All rows in order; those of the open step show where it stands. */
const mp_step_stats_t *mp_steps_rows(const mp_steps_t *steps,
                                     const mp_devices_t *devices,
                                     size_t *count);

/* DEVICE's counters grew. */
static inline void
mp_steps_raise_peaks(mp_steps_t *steps, const mp_device_t *device)
{
    if (device->step_open) {
        mp_step_stats_t *row = &steps->rows[device->step_row];
        mp_raise_peak(&row->requested_bytes_peak,
                      device->stats.requested_bytes.current);
        mp_raise_peak(&row->active_bytes_peak,
                      device->stats.active_bytes.current);
        mp_raise_peak(&row->reserved_bytes_peak,
                      device->stats.reserved_bytes.current);
    }
}

/* BYTES were allocated on DEVICE. */
static inline void
mp_steps_add_allocated(mp_steps_t *steps, const mp_device_t *device,
                       int64_t bytes)
{
    if (device->step_open) {
        int64_t *total = &steps->rows[device->step_row].allocated_total;
        *total = mp_sum(*total, bytes);
    }
}

#endif
