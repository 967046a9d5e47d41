/* totals.c - what the driver said, replayed from events. */
#include "totals.h"

#include "mem.h"

typedef struct mp_totals_last {
    int16_t device;
    uint16_t count;
    mp_event_t events[MP_TOTAL_EVENTS];
} last_t;

static last_t *
last_of(mp_totals_t *totals, int16_t device)
{
    for (size_t i = 0; i < totals->count; i++) {
        if (totals->last[i].device == device) {
            return &totals->last[i];
        }
    }
    if (totals->count == totals->capacity) {
        size_t capacity = 2 * totals->capacity + 2;
        last_t *grown = mp_realloc(totals->last, capacity * sizeof(*grown));
        if (grown == NULL) {
            return NULL;
        }
        totals->last = grown;
        totals->capacity = capacity;
    }
    last_t *last = &totals->last[totals->count++];
    last->device = device;
    last->count = 0;
    return last;
}

mp_status_t
mp_totals_apply(mp_totals_t *totals, const mp_event_t *event)
{
    last_t *last = last_of(totals, event->device);
    if (last == NULL) {
        return MP_ERR_NOMEM;
    }
    if (event->kind == MP_EVENT_TOTAL_PROCESS) {
        last->count = 0;
    }
    if (last->count < MP_TOTAL_EVENTS) {
        last->events[last->count++] = *event;
    }
    return MP_OK;
}

size_t
mp_totals_last(const mp_totals_t *totals, size_t i, const mp_event_t **events)
{
    if (i >= totals->count) {
        return 0;
    }
    *events = totals->last[i].events;
    return totals->last[i].count;
}

void
mp_totals_clear(mp_totals_t *totals)
{
    mp_free(totals->last);
    *totals = (mp_totals_t){0};
}

size_t
mp_totals_bytes(const mp_totals_t *totals)
{
    return totals->capacity * sizeof(last_t);
}

/* The parts of a row follow each other, but other threads' events may be
 * between them where a writer appends them one by one. */
static mp_total_t *
row_of(mp_total_t *rows, size_t count, const mp_event_t *event)
{
    while (count > 0) {
        mp_total_t *row = &rows[--count];
        if (row->device == event->device) {
            return row->sample == event->op_instance ? row : NULL;
        }
    }
    return NULL;
}

mp_status_t
mp_totals_build(const mp_event_t *events, size_t event_count,
                mp_total_t **rows, size_t *count)
{
    size_t wanted = 0;
    for (size_t i = 0; i < event_count; i++) {
        wanted += events[i].kind == MP_EVENT_TOTAL_PROCESS;
    }
    *count = 0;
    *rows = mp_calloc(wanted + 1, sizeof(**rows));
    if (*rows == NULL) {
        return MP_ERR_NOMEM;
    }
    for (size_t i = 0; i < event_count; i++) {
        const mp_event_t *event = &events[i];
        if (event->kind == MP_EVENT_TOTAL_PROCESS) {
            mp_total_t *row = &(*rows)[(*count)++];
            mp_total_read(event, row);
            row->event = (int64_t)i;
        }
        else if (mp_total_is(event->kind)) {
            mp_total_t *row = row_of(*rows, *count, event);
            if (row != NULL) {
                mp_total_read(event, row);
            }
        }
    }
    return MP_OK;
}
