/* timeline.c - one walk over the events, with the rows beside it. */
#include "timeline.h"

#include "mem.h"

#include <string.h>

enum {
    REQUESTED,
    ACTIVE,
    RESERVED,
    TOTAL_COLUMNS
};

/* Which rows an event ends.  An event ends at most one life of its own, and
 * one more if a birth replaced a block whose free was lost. */
typedef struct {
    uint32_t *died;      /* [event] row, or MP_NO_INDEX */
    uint32_t *completed; /* [event] row, or MP_NO_INDEX */
} ends_t;

static bool
ends_build(ends_t *ends, size_t event_count, const mp_allocation_t *rows,
           size_t row_count, int16_t device)
{
    ends->died = mp_calloc(event_count + 1, sizeof(uint32_t));
    ends->completed = mp_calloc(event_count + 1, sizeof(uint32_t));
    if (ends->died == NULL || ends->completed == NULL) {
        return false;
    }
    memset(ends->died, 0xff, event_count * sizeof(uint32_t));
    memset(ends->completed, 0xff, event_count * sizeof(uint32_t));
    for (size_t i = 0; i < row_count; i++) {
        const mp_allocation_t *row = &rows[i];
        if (row->device != device) {
            continue;
        }
        if (row->died_event >= 0 && row->died_event != row->born_event &&
            (size_t)row->died_event < event_count) {
            ends->died[row->died_event] = (uint32_t)i;
        }
        if (row->completed_event >= 0 &&
            (size_t)row->completed_event < event_count) {
            ends->completed[row->completed_event] = (uint32_t)i;
        }
    }
    return true;
}

static void
ends_clear(ends_t *ends)
{
    mp_free(ends->died);
    mp_free(ends->completed);
}

static mp_status_t
timeline_alloc(mp_timeline_t *out, size_t capacity, size_t columns)
{
    *out = (mp_timeline_t){.columns = columns};
    out->event = mp_calloc(capacity, sizeof(int64_t));
    out->time_ns = mp_calloc(capacity, sizeof(int64_t));
    out->bytes = mp_calloc(capacity * columns, sizeof(int64_t));
    if (out->event == NULL || out->time_ns == NULL || out->bytes == NULL) {
        mp_timeline_clear(out);
        return MP_ERR_NOMEM;
    }
    return MP_OK;
}

void
mp_timeline_clear(mp_timeline_t *timeline)
{
    mp_free(timeline->event);
    mp_free(timeline->time_ns);
    mp_free(timeline->bytes);
    *timeline = (mp_timeline_t){0};
}

static void
push(mp_timeline_t *timeline, int64_t event, int64_t time_ns,
     const int64_t *now)
{
    size_t i = timeline->count++;
    timeline->event[i] = event;
    timeline->time_ns[i] = time_ns;
    memcpy(&timeline->bytes[i * timeline->columns], now,
           timeline->columns * sizeof(int64_t));
}

/* Sizes in a damaged file may be anything: sums wrap, never overflow. */
static void
add(int64_t *value, uint64_t bytes)
{
    *value = (int64_t)((uint64_t)*value + bytes);
}

static void
take(int64_t *value, uint64_t bytes)
{
    add(value, 0 - bytes);
}

/* Where the bytes of a life count while it lives. */
static int64_t *
life_column(int64_t *now, mp_timeline_kind_t kind, const mp_allocation_t *row)
{
    return &now[kind == MP_TIMELINE_CATEGORY ? row->category : REQUESTED];
}

mp_status_t
mp_timeline_build(const mp_event_t *events, size_t event_count,
                  const mp_allocation_t *rows, size_t row_count,
                  int16_t device, mp_timeline_kind_t kind, mp_timeline_t *out)
{
    size_t columns =
        kind == MP_TIMELINE_CATEGORY ? MP_CATEGORY_COUNT : TOTAL_COLUMNS;
    bool totals = kind == MP_TIMELINE_TOTALS;
    bool cpu = device == MP_DEVICE_CPU; /* keeps no segments */
    size_t capacity = 1;
    for (size_t i = 0; i < event_count; i++) {
        capacity +=
            events[i].device == device && mp_event_is_memory(events[i].kind);
    }
    ends_t ends = {NULL, NULL};
    mp_status_t status = timeline_alloc(out, capacity, columns);
    if (status != MP_OK) {
        return status;
    }
    if (!ends_build(&ends, event_count, rows, row_count, device)) {
        ends_clear(&ends);
        mp_timeline_clear(out);
        return MP_ERR_NOMEM;
    }
    int64_t now[MP_CATEGORY_COUNT] = {0};
    for (size_t i = 0; i < row_count; i++) { /* what was there at the start */
        if (rows[i].device == device && rows[i].born_event < 0) {
            add(life_column(now, kind, &rows[i]), rows[i].size);
            if (totals) {
                add(&now[ACTIVE], rows[i].size);
            }
        }
    }
    for (size_t i = 0; totals && i < event_count; i++) {
        if (events[i].device == device &&
            events[i].kind == MP_EVENT_SEED_SEGMENT) {
            add(&now[RESERVED], events[i].size);
        }
    }
    if (totals && cpu) {
        now[RESERVED] = now[ACTIVE];
    }
    push(out, -1, event_count > 0 ? events[0].time_ns : 0, now);

    size_t next_row = 0; /* rows are in order of birth */
    for (size_t i = 0; i < event_count; i++) {
        const mp_event_t *event = &events[i];
        if (event->device != device || !mp_event_is_memory(event->kind)) {
            continue;
        }
        bool changed = false;
        if (ends.died[i] != MP_NO_INDEX) {
            const mp_allocation_t *row = &rows[ends.died[i]];
            take(life_column(now, kind, row), row->size);
            changed = true;
        }
        if (totals && ends.completed[i] != MP_NO_INDEX) {
            take(&now[ACTIVE], rows[ends.completed[i]].size);
            changed = true;
        }
        while (next_row < row_count &&
               (rows[next_row].born_event < (int64_t)i ||
                (rows[next_row].born_event == (int64_t)i &&
                 rows[next_row].device != device))) {
            next_row++;
        }
        if (next_row < row_count && rows[next_row].born_event == (int64_t)i) {
            const mp_allocation_t *row = &rows[next_row++];
            if (row->died_event != row->born_event) {
                add(life_column(now, kind, row), row->size);
            }
            if (totals) {
                add(&now[ACTIVE], row->size);
            }
            changed = true;
        }
        if (totals && !cpu) {
            switch (event->kind) {
            case MP_EVENT_SEGMENT_ALLOC:
            case MP_EVENT_SEGMENT_MAP:
                add(&now[RESERVED], event->size);
                changed = true;
                break;
            case MP_EVENT_SEGMENT_FREE:
            case MP_EVENT_SEGMENT_UNMAP:
                take(&now[RESERVED], event->size);
                changed = true;
                break;
            default:
                break;
            }
        }
        if (changed) {
            if (totals && cpu) {
                now[RESERVED] = now[ACTIVE];
            }
            push(out, (int64_t)i, event->time_ns, now);
        }
    }
    ends_clear(&ends);
    return MP_OK;
}
