/* import_order.c - the traces of a snapshot as one log of events.
 *
 * Entries of one device keep their order; devices and steps are put in between
 * by time, or, in our own files, exactly where they were. */
#include "mem.h"
#include "snapshot_reader.h"

#include <stdlib.h>
#include <string.h>

#define SESSION 1 /* the id of an imported recording's steps */

int64_t
mp_snapshot_time_of(const mp_snapshot_reader_t *reader, int64_t time_us)
{
    return (int64_t)(((uint64_t)time_us - (uint64_t)reader->start_us) * 1000u +
                     (uint64_t)reader->start_ns);
}

/* ---- order ---------------------------------------------------------------
 */

static int
by_place(const void *left, const void *right)
{
    const mp_snapshot_order_t *a = left, *b = right;
    if (a->part != b->part) {
        return a->part < b->part ? -1 : 1;
    }
    if (a->time_ns != b->time_ns) {
        return a->time_ns < b->time_ns ? -1 : 1;
    }
    if (a->device != b->device) {
        return a->device < b->device ? -1 : 1;
    }
    return a->index < b->index ? -1 : a->index > b->index;
}

static mp_status_t
order_add(mp_snapshot_reader_t *reader, const mp_snapshot_order_t *place)
{
    if (reader->order_count == reader->order_capacity) {
        size_t capacity = reader->order_capacity * 2 + 64;
        mp_snapshot_order_t *order =
            mp_realloc(reader->order, capacity * sizeof(*order));
        if (order == NULL) {
            return MP_ERR_NOMEM;
        }
        reader->order = order;
        reader->order_capacity = capacity;
    }
    reader->order[reader->order_count++] = *place;
    return MP_OK;
}

/* Our steps, each with how many entries of every trace lie before it. */
static mp_status_t
order_our_steps(mp_snapshot_reader_t *reader, mp_value_t steps)
{
    const mp_unpickled_t *pickle = reader->pickle;
    mp_status_t status = MP_OK;
    size_t count = mp_value_count(pickle, steps);
    for (size_t i = 0; status == MP_OK && i < count && i < UINT32_MAX; i++) {
        mp_value_t step = mp_value_item(pickle, steps, i);
        if (mp_value_kind(pickle, step) != MP_VALUE_LIST ||
            mp_value_count(pickle, step) != 3) {
            continue;
        }
        mp_snapshot_order_t place = {
            .part = (uint32_t)i + 1,
            .time_ns = INT64_MIN, /* before what follows it */
            .at_ns = mp_snapshot_time_of(
                reader,
                mp_value_int(pickle, mp_value_item(pickle, step, 1), 0)),
            .index = (size_t)mp_value_int(pickle,
                                          mp_value_item(pickle, step, 0), 0)};
        mp_value_t marks = mp_value_item(pickle, step, 2);
        size_t traces = mp_value_kind(pickle, marks) == MP_VALUE_LIST
                            ? mp_value_count(pickle, marks)
                            : 0;
        for (size_t k = 0; k < traces && k < reader->trace_count; k++) {
            uint64_t mark = (uint64_t)mp_value_int(
                pickle, mp_value_item(pickle, marks, k), 0);
            mp_trace_t *trace = &reader->traces[k];
            for (; trace->parted < mark && trace->parted < trace->count;
                 trace->parted++) {
                trace->entries[trace->parted].part = (uint32_t)i;
            }
        }
        status = order_add(reader, &place);
    }
    for (size_t k = 0; k < reader->trace_count; k++) {
        mp_trace_t *trace = &reader->traces[k];
        for (; trace->parted < trace->count; trace->parted++) {
            trace->entries[trace->parted].part = (uint32_t)count;
        }
    }
    return status;
}

/* The steps of torch.profiler, which it tells of as annotations. */
static mp_status_t
order_annotated_steps(mp_snapshot_reader_t *reader, mp_value_t list)
{
    static const char prefix[] = "ProfilerStep#";
    const mp_unpickled_t *pickle = reader->pickle;
    mp_status_t status = MP_OK;
    int64_t last = -1;
    size_t count = mp_value_kind(pickle, list) == MP_VALUE_LIST
                       ? mp_value_count(pickle, list)
                       : 0;
    for (size_t i = 0; status == MP_OK && i < count; i++) {
        mp_value_t entry = mp_value_item(pickle, list, i);
        const char *text;
        size_t length;
        if (mp_value_atom(pickle,
                          mp_value_find(pickle, entry, MP_WORD_STAGE)) !=
                MP_WORD_START ||
            !mp_value_text(pickle, mp_value_find(pickle, entry, MP_WORD_NAME),
                           &text, &length) ||
            length < sizeof(prefix) || length > sizeof(prefix) + 9 ||
            memcmp(text, prefix, sizeof(prefix) - 1) != 0) {
            continue;
        }
        int64_t number = 0;
        for (size_t k = sizeof(prefix) - 1; k < length; k++) {
            bool digit = text[k] >= '0' && text[k] <= '9';
            number = digit && number >= 0 ? number * 10 + (text[k] - '0') : -1;
        }
        if (number <= last || number > INT32_MAX) {
            continue; /* each device tells of it */
        }
        last = number;
        mp_snapshot_order_t place = {
            .time_ns = mp_snapshot_time_of(
                reader,
                mp_value_int(
                    pickle, mp_value_find(pickle, entry, MP_WORD_TIME_US), 0)),
            .index = (size_t)number};
        place.at_ns = place.time_ns;
        status = order_add(reader, &place);
    }
    return status;
}

mp_status_t
mp_snapshot_order_all(mp_snapshot_reader_t *reader)
{
    const mp_unpickled_t *pickle = reader->pickle;
    mp_value_t steps =
        mp_value_find(pickle, reader->top, MP_WORD_MEMPROF_STEPS);
    mp_status_t status =
        mp_value_kind(pickle, steps) == MP_VALUE_LIST
            ? order_our_steps(reader, steps)
            : order_annotated_steps(
                  reader, mp_value_find(pickle, reader->top,
                                        MP_WORD_EXTERNAL_ANNOTATIONS));
    for (size_t k = 0; k < reader->trace_count; k++) {
        const mp_trace_t *trace = &reader->traces[k];
        for (size_t i = 0; status == MP_OK && i < trace->count; i++) {
            mp_snapshot_order_t place = {.part = trace->entries[i].part,
                                         .device = (uint32_t)k + 1,
                                         .time_ns =
                                             trace->entries[i].event.time_ns,
                                         .index = i};
            status = order_add(reader, &place);
        }
    }
    bool sorted = true;
    for (size_t i = 1; i < reader->order_count && sorted; i++) {
        sorted = by_place(&reader->order[i - 1], &reader->order[i]) <= 0;
    }
    if (status == MP_OK && !sorted) {
        qsort(reader->order, reader->order_count, sizeof(mp_snapshot_order_t),
              by_place);
    }
    return status;
}

/* ---- the recording -------------------------------------------------------
 */

static mp_status_t
emit(void *context, const mp_event_t *event)
{
    mp_snapshot_reader_t *reader = context;
    mp_recording_data_t *data = &reader->data;
    if (data->count == reader->event_capacity) {
        size_t capacity = data->count + data->count / 2 + 256;
        mp_event_t *events =
            mp_realloc(data->events, capacity * sizeof(*events));
        if (events == NULL) {
            return MP_ERR_NOMEM;
        }
        data->events = events;
        reader->event_capacity = capacity;
    }
    data->events[data->count++] = *event;
    return MP_OK;
}

static mp_status_t
emit_step(mp_snapshot_reader_t *reader, uint64_t number, int64_t time_ns,
          bool first)
{
    mp_event_t event = mp_snapshot_blank;
    event.kind = MP_EVENT_STEP;
    event.addr = SESSION;
    event.size = number;
    event.time_ns = time_ns;
    mp_status_t status = emit(reader, &event);
    if (status == MP_OK && first) {
        event.kind = MP_EVENT_WINDOW_BEGIN;
        event.size = 0;
        status = emit(reader, &event);
    }
    return status;
}

mp_status_t
mp_snapshot_write_events(mp_snapshot_reader_t *reader)
{
    mp_status_t status = MP_OK;
    int64_t begin = mp_snapshot_time_of(reader, reader->first_us);
    int64_t now = begin;
    for (size_t i = 0; status == MP_OK && i < reader->trace_count; i++) {
        mp_trace_t *trace = &reader->traces[i];
        status = mp_trace_go_back(trace, reader->facts->ours);
        if (status == MP_OK) {
            status = mp_trace_write_state(trace, begin, emit, reader);
        }
        reader->facts->older += trace->older;
        reader->facts->guessed += trace->guessed;
        reader->facts->left_out += trace->left_out;
    }
    bool stepped = false;
    int32_t step = 0;
    for (size_t i = 0; status == MP_OK && i < reader->order_count; i++) {
        const mp_snapshot_order_t *place = &reader->order[i];
        if (place->device == 0) {
            now = place->at_ns > now ? place->at_ns : now;
            step = (int32_t)place->index;
            status = emit_step(reader, place->index, now, !stepped);
            stepped = true;
            continue;
        }
        mp_told_t *told =
            &reader->traces[place->device - 1].entries[place->index];
        now = told->event.time_ns > now ? told->event.time_ns : now;
        if (told->event.kind != MP_EVENT_OTHER) {
            told->event.step = step;
            status = mp_told_write(told, emit, reader);
        }
    }
    if (status == MP_OK && stepped) {
        mp_event_t event = mp_snapshot_blank;
        event.kind = MP_EVENT_WINDOW_END;
        event.addr = SESSION;
        event.time_ns = now;
        status = emit(reader, &event);
    }
    return status;
}
