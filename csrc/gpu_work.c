/* gpu_work.c - what ran on GPUs, and who launched it. */
#include "gpu_work.h"

#include "mem.h"
#include "table.h"

#include <stdlib.h>

#define LATEST ((uint64_t)1 << 62) /* ns: 146 years after the start */

mp_event_t
mp_gpu_work_event(const mp_gpu_work_t *work, int64_t time_ns)
{
    return (mp_event_t){
        .kind = MP_EVENT_GPU_WORK,
        .addr = (uint64_t)work->start_ns,
        .stream = (uint64_t)work->end_ns,
        .size = work->bytes,
        .time_ns = time_ns,
        .thread = work->stream,
        .op = work->name,
        .op_instance = work->correlation,
        .module = MP_NO_INDEX,
        .stack = MP_NO_INDEX,
        .device = work->device,
        .pool = work->kind,
    };
}

static mp_gpu_work_t
row_of(const mp_event_t *events, size_t at, uint32_t launch)
{
    const mp_event_t *event = &events[at];
    mp_gpu_work_t row = {
        .start_ns = (int64_t)event->addr,
        .end_ns = (int64_t)event->stream,
        .launch_ns = -1,
        .bytes = event->size,
        .event = (int64_t)at,
        .launch_event = -1,
        .name = event->op,
        .op = MP_NO_INDEX,
        .module = MP_NO_INDEX,
        .stack = MP_NO_INDEX,
        .stream = event->thread,
        .correlation = event->op_instance,
        .step = -1,
        .device = event->device,
        .kind = (uint8_t)event->pool,
    };
    if (launch != MP_NO_INDEX) {
        const mp_event_t *begun = &events[launch];
        row.launch_ns = begun->time_ns;
        row.launch_event = launch;
        row.op = begun->op;
        row.module = begun->module;
        row.stack = begun->stack;
        row.thread = begun->thread;
        row.step = begun->step;
        row.phase = begun->phase;
    }
    return row;
}

static int
by_start(const void *left, const void *right)
{
    const mp_gpu_work_t *a = left, *b = right;
    if (a->start_ns != b->start_ns) {
        return a->start_ns < b->start_ns ? -1 : 1;
    }
    return (a->event > b->event) - (a->event < b->event);
}

/* A file may hold anything: what no GPU can have done is left out. */
static bool
is_work(const mp_event_t *event)
{
    return event->kind == MP_EVENT_GPU_WORK && event->pool <= MP_GPU_MEMSET &&
           event->device >= 0 && event->stream >= event->addr &&
           event->stream <= LATEST;
}

mp_status_t
mp_gpu_work_rows(const mp_event_t *events, size_t count, mp_gpu_work_t **rows,
                 size_t *row_count)
{
    size_t wanted = 0;
    *rows = NULL;
    *row_count = 0;
    for (size_t i = 0; i < count; i++) {
        wanted += is_work(&events[i]);
    }
    if (wanted == 0) {
        return MP_OK;
    }
    mp_gpu_work_t *found = mp_calloc(wanted, sizeof(*found));
    mp_table_t *launches = mp_table_new(wanted);
    mp_status_t status =
        found == NULL || launches == NULL ? MP_ERR_NOMEM : MP_OK;
    size_t written = 0;
    for (size_t i = 0; i < count && status == MP_OK; i++) {
        if (events[i].kind == MP_EVENT_GPU_LAUNCH && i < MP_NO_INDEX) {
            uint32_t before;
            status =
                mp_table_put(launches, events[i].addr, (uint32_t)i, &before);
        }
        else if (is_work(&events[i])) {
            found[written++] = row_of(
                events, i, mp_table_get(launches, events[i].op_instance));
        }
    }
    mp_table_free(launches);
    if (status != MP_OK) {
        mp_free(found);
        return status;
    }
    qsort(found, written, sizeof(*found), by_start);
    *rows = found;
    *row_count = written;
    return MP_OK;
}

void
mp_gpu_work_lost(const mp_event_t *events, size_t count,
                 uint64_t lost[MP_GPU_LOST_END])
{
    for (size_t i = 0; i < MP_GPU_LOST_END; i++) {
        lost[i] = 0;
    }
    for (size_t i = 0; i < count; i++) {
        if (events[i].kind == MP_EVENT_GPU_LOST &&
            events[i].addr < MP_GPU_LOST_END) {
            lost[events[i].addr] += events[i].size;
        }
    }
}
