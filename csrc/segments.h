/* segments.h - a device's segments: what torch took from the driver.
 *
 * Keeps the device's ranges and its two counters of segments in step.  Knows
 * nothing of blocks.  Part of a tracker: called by tracker.c only, under
 * whatever serialises the tracker. */
#ifndef MP_SEGMENTS_H
#define MP_SEGMENTS_H

#include "devices.h"

/* A segment was taken, mapped or seeded.  *MATCHED: false if it lies where
 * one is whose free was never seen.  On failure it is not there. */
mp_status_t mp_segments_born(mp_devices_t *devices, mp_device_t *device,
                             const mp_event_t *event, bool *matched);

/* A segment, or some pages of one, was given back.  *MATCHED: false if not
 * all of it was known.  MP_ERR_NOMEM: nothing has changed. */
mp_status_t mp_segments_died(mp_devices_t *devices, mp_device_t *device,
                             const mp_event_t *event, bool *matched);

#endif
