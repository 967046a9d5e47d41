/* steps.c - one row a step and device: when it ran and what it reached. */
#include "steps.h"

#include "mem.h"

#define MAX_ROWS (1u << 20)

mp_status_t
mp_steps_init(mp_steps_t *steps)
{
    steps->rows = mp_reserve(MAX_ROWS * sizeof(mp_step_stats_t));
    return steps->rows == NULL ? MP_ERR_NOMEM : MP_OK;
}

void
mp_steps_clear(mp_steps_t *steps)
{
    mp_unreserve(steps->rows, MAX_ROWS * sizeof(mp_step_stats_t));
    *steps = (mp_steps_t){0};
}

static void
step_close(mp_steps_t *steps, mp_device_t *device, int64_t event,
           int64_t time_ns)
{
    if (!device->step_open) {
        return;
    }
    mp_step_stats_t *row = &steps->rows[device->step_row];
    row->end_event = event;
    row->end_ns = time_ns;
    row->requested_bytes_at_end = device->stats.requested_bytes.current;
    device->step_open = false;
}

static void
close_all(mp_steps_t *steps, mp_devices_t *devices, int64_t event,
          int64_t time_ns)
{
    for (size_t i = 0; i < devices->capacity; i++) {
        if (devices->at[i] != NULL) {
            step_close(steps, devices->at[i], event, time_ns);
        }
    }
}

void
mp_steps_open(mp_steps_t *steps, mp_device_t *device, int64_t event,
              int64_t time_ns)
{
    if (steps->count >= MAX_ROWS) {
        return; /* the run goes on; its later steps have no row */
    }
    device->step_row = steps->count++;
    device->step_open = true;
    steps->rows[device->step_row] = (mp_step_stats_t){
        .number = steps->number,
        .device = device->id,
        .recorded = steps->recorded,
        .begin_event = event,
        .end_event = -1,
        .begin_ns = time_ns,
        .end_ns = -1,
        .requested_bytes_at_end = device->stats.requested_bytes.current,
        .requested_bytes_peak = device->stats.requested_bytes.current,
        .active_bytes_peak = device->stats.active_bytes.current,
        .reserved_bytes_peak = device->stats.reserved_bytes.current,
    };
}

void
mp_steps_begin(mp_steps_t *steps, mp_devices_t *devices, int32_t number,
               int64_t event, int64_t time_ns)
{
    close_all(steps, devices, event, time_ns);
    steps->number = number;
    for (size_t i = 0; i < devices->capacity; i++) {
        if (devices->at[i] != NULL) {
            mp_steps_open(steps, devices->at[i], event, time_ns);
        }
    }
}

void
mp_steps_window_begin(mp_steps_t *steps, const mp_devices_t *devices)
{
    steps->recorded = true;
    for (size_t i = 0; i < devices->capacity; i++) {
        const mp_device_t *device = devices->at[i];
        if (device != NULL && device->step_open) {
            steps->rows[device->step_row].recorded = 1;
        }
    }
}

void
mp_steps_window_end(mp_steps_t *steps, mp_devices_t *devices, int64_t event,
                    int64_t time_ns)
{
    close_all(steps, devices, event, time_ns);
    steps->recorded = false;
}

const mp_step_stats_t *
mp_steps_rows(const mp_steps_t *steps, const mp_devices_t *devices,
              size_t *count)
{
    for (size_t i = 0; i < devices->capacity; i++) {
        const mp_device_t *device = devices->at[i];
        if (device != NULL && device->step_open) {
            steps->rows[device->step_row].requested_bytes_at_end =
                device->stats.requested_bytes.current;
        }
    }
    *count = steps->count;
    return steps->rows;
}
