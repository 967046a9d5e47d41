/* segments.c - a device's segments: what torch took from the driver. */
#include "segments.h"

/* The last byte's follower, at most the end of all addresses. */
static uint64_t
segment_end(const mp_event_t *event)
{
    uint64_t end = event->addr + event->size;
    return end < event->addr ? UINT64_MAX : end;
}

/* Forget SIZE bytes of segments from ADDR on; *TAKEN were there. */
static mp_status_t
segments_take(mp_devices_t *devices, mp_device_t *device,
              const mp_event_t *event, uint64_t *taken)
{
    int64_t count = (int64_t)mp_ranges_count(device->segments);
    mp_status_t status =
        mp_ranges_take(device->segments, event->addr,
                       segment_end(event) - event->addr, taken);
    if (status == MP_OK) {
        MP_STAT_CHANGE(devices, device, reserved_bytes, mp_minus(*taken));
        MP_STAT_CHANGE(devices, device, segments,
                       (int64_t)mp_ranges_count(device->segments) - count);
    }
    return status;
}

mp_status_t
mp_segments_born(mp_devices_t *devices, mp_device_t *device,
                 const mp_event_t *event, bool *matched)
{
    mp_range_t range = {
        .begin = event->addr,
        .end = segment_end(event),
        .stream = event->stream,
        .pool = event->pool,
        .mapped = event->kind == MP_EVENT_SEGMENT_MAP ||
                  (event->flags & MP_FLAG_PENDING) != 0,
    };
    uint64_t replaced; /* their frees were never seen */
    mp_status_t status = segments_take(devices, device, event, &replaced);
    if (status == MP_OK) {
        status = mp_ranges_put(device->segments, &range);
    }
    if (status != MP_OK) {
        return status;
    }
    *matched = replaced == 0 || event->kind == MP_EVENT_SEED_SEGMENT;
    MP_STAT_CHANGE(devices, device, reserved_bytes,
                   (int64_t)(range.end - range.begin));
    MP_STAT_CHANGE(devices, device, segments, 1);
    return MP_OK;
}

mp_status_t
mp_segments_died(mp_devices_t *devices, mp_device_t *device,
                 const mp_event_t *event, bool *matched)
{
    uint64_t taken;
    mp_status_t status = segments_take(devices, device, event, &taken);
    if (status == MP_OK) {
        *matched = taken == event->size;
    }
    return status;
}
