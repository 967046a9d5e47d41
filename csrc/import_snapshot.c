/* import_snapshot.c - a memory snapshot of torch's, or of ours, as a
 * recording.
 *
 * Each device's trace becomes events; the blocks and segments of the end go
 * back through them, and what is left was there before the first.  Trusts
 * nothing: a key may be missing or hold anything. */
#include "import_snapshot.h"

#include "life.h"
#include "mem.h"
#include "snapshot_reader.h"

#include <stdio.h>
#include <string.h>

#define MAX_DEVICES 256

static const char *const atoms[] = {
#define X(name, text) text,
    MP_WRITTEN_WORDS(X) MP_OTHER_WORDS(X)
#undef X
};

/* ---- entries -------------------------------------------------------------
 */

static uint16_t
pool_of(const mp_snapshot_reader_t *reader, mp_value_t value)
{
    const mp_unpickled_t *pickle = reader->pickle;
    if (mp_value_kind(pickle, value) != MP_VALUE_TUPLE ||
        mp_value_count(pickle, value) != 2) {
        return 0;
    }
    uint64_t first =
        (uint64_t)mp_value_int(pickle, mp_value_item(pickle, value, 0), 0);
    uint64_t second =
        (uint64_t)mp_value_int(pickle, mp_value_item(pickle, value, 1), 0);
    /* Private pools are (n, 0), those of the user (0, n): told apart. */
    return (uint16_t)(first == 0 ? second & 0x7FFFu
                                 : 0x8000u | (first & 0x7FFFu));
}

/* 1 + the category whose text it is; 0: none's. */
static uint8_t
category_of(mp_snapshot_reader_t *reader, mp_value_t value)
{
    static const char *const texts[] = {
#define X(name, number, text) [number] = text,
        MP_CATEGORY_LIST(X)
#undef X
    };
    const char *text;
    size_t length;
    if (mp_value_text(reader->pickle, value, &text, &length)) {
        for (size_t i = 0; i < MP_ARRAY_LENGTH(texts); i++) {
            if (strlen(texts[i]) == length &&
                memcmp(texts[i], text, length) == 0) {
                reader->facts->has_categories = true;
                return (uint8_t)(i + 1);
            }
        }
    }
    return 0;
}

static uint8_t
phase_of(const mp_snapshot_reader_t *reader, mp_value_t value)
{
    static const char *const texts[] = {
#define X(name, number, text) [number] = text,
        MP_PHASE_LIST(X)
#undef X
    };
    const char *text;
    size_t length;
    if (mp_value_text(reader->pickle, value, &text, &length)) {
        for (size_t i = 0; i < MP_ARRAY_LENGTH(texts); i++) {
            if (strlen(texts[i]) == length &&
                memcmp(texts[i], text, length) == 0) {
                return (uint8_t)i;
            }
        }
    }
    return MP_PHASE_OTHER;
}

/* What our user_metadata says; other's are theirs. */
static mp_status_t
read_metadata(mp_snapshot_reader_t *reader, mp_value_t value, mp_told_t *told)
{
    if (!reader->facts->ours ||
        mp_value_kind(reader->pickle, value) != MP_VALUE_DICT) {
        return MP_OK;
    }
    mp_status_t status = MP_OK;
    size_t count = mp_value_count(reader->pickle, value);
    for (size_t i = 0; status == MP_OK && i < count; i++) {
        mp_value_t key, item;
        mp_value_pair(reader->pickle, value, i, &key, &item);
        switch (mp_value_atom(reader->pickle, key)) {
        case MP_WORD_OP:
            status = mp_snapshot_intern_text(reader, item, &told->event.op);
            break;
        case MP_WORD_MODULE:
            status =
                mp_snapshot_intern_text(reader, item, &told->event.module);
            break;
        case MP_WORD_PHASE:
            told->event.phase = phase_of(reader, item);
            break;
        case MP_WORD_CATEGORY:
            told->category = category_of(reader, item);
            break;
        default:
            break;
        }
    }
    return status;
}

static uint8_t
kind_of(uint32_t action)
{
    switch (action) {
    case MP_WORD_ALLOC:
        return MP_EVENT_ALLOC;
    case MP_WORD_FREE_REQUESTED:
        return MP_EVENT_FREE_REQUESTED;
    case MP_WORD_FREE_COMPLETED:
        return MP_EVENT_FREE_COMPLETED;
    case MP_WORD_SEGMENT_ALLOC:
        return MP_EVENT_SEGMENT_ALLOC;
    case MP_WORD_SEGMENT_FREE:
        return MP_EVENT_SEGMENT_FREE;
    case MP_WORD_SEGMENT_MAP:
        return MP_EVENT_SEGMENT_MAP;
    case MP_WORD_SEGMENT_UNMAP:
        return MP_EVENT_SEGMENT_UNMAP;
    case MP_WORD_OOM:
        return MP_EVENT_OOM;
    case MP_WORD_SNAPSHOT:
        return MP_EVENT_SNAPSHOT;
    default:
        return MP_EVENT_OTHER;
    }
}

static uint64_t
number_of(const mp_snapshot_reader_t *reader, mp_value_t value)
{
    return (uint64_t)mp_value_int(reader->pickle, value, 0);
}

/* What ENTRY, a dict of a trace or a block, says of TOLD. */
static mp_status_t
read_dict(mp_snapshot_reader_t *reader, mp_value_t entry, mp_told_t *told,
          uint32_t *action, bool *timed)
{
    const mp_unpickled_t *pickle = reader->pickle;
    mp_event_t *event = &told->event;
    mp_value_t metadata = MP_NO_VALUE;
    uint64_t free_bytes = 0;
    mp_status_t status = MP_OK;
    size_t count = mp_value_count(pickle, entry);
    for (size_t i = 0; status == MP_OK && i < count; i++) {
        mp_value_t key, item;
        mp_value_pair(pickle, entry, i, &key, &item);
        switch (mp_value_atom(pickle, key)) {
        case MP_WORD_ACTION:
            *action = mp_value_atom(pickle, item);
            break;
        case MP_WORD_ADDR:
            event->addr = number_of(reader, item);
            break;
        case MP_WORD_SIZE:
            event->size = number_of(reader, item);
            break;
        case MP_WORD_STREAM:
            event->stream = number_of(reader, item);
            break;
        case MP_WORD_TIME_US:
            event->time_ns =
                mp_snapshot_time_of(reader, mp_value_int(pickle, item, 0));
            *timed = true;
            break;
        case MP_WORD_FRAMES:
            status = mp_snapshot_intern_stack(reader, item, &event->stack);
            break;
        case MP_WORD_FORWARD_FRAMES:
            status =
                mp_snapshot_intern_forward(reader, item, &told->forward_stack);
            break;
        case MP_WORD_CATEGORY:
            if (told->category == 0) {
                told->category = category_of(reader, item);
            }
            break;
        case MP_WORD_USER_METADATA:
            metadata = item;
            break;
        case MP_WORD_POOL_ID:
            event->pool = pool_of(reader, item);
            break;
        case MP_WORD_DEVICE_FREE:
            free_bytes = number_of(reader, item);
            break;
        default:
            break;
        }
    }
    if (*action == MP_WORD_OOM) {
        event->addr = free_bytes;
    }
    return status != MP_OK ? status : read_metadata(reader, metadata, told);
}

static int16_t
device_of(const mp_snapshot_reader_t *reader, size_t number)
{
    return (int16_t)((int64_t)number == reader->cpu ? MP_DEVICE_CPU
                                                    : (int)number);
}

static mp_status_t
read_trace(mp_snapshot_reader_t *reader, mp_value_t list, size_t number)
{
    const mp_unpickled_t *pickle = reader->pickle;
    mp_trace_t *trace = &reader->traces[number];
    size_t count = mp_value_count(pickle, list);
    if (mp_value_kind(pickle, list) != MP_VALUE_LIST) {
        return MP_OK;
    }
    trace->is_cut = mp_value_is_cut(pickle, list);
    trace->entries = mp_calloc(count + 1, sizeof(mp_told_t));
    if (trace->entries == NULL) {
        return MP_ERR_NOMEM;
    }
    mp_status_t status = MP_OK;
    int64_t now = mp_snapshot_time_of(reader, reader->first_us);
    for (size_t i = 0; status == MP_OK && i < count; i++) {
        mp_told_t *told = &trace->entries[trace->count];
        uint32_t action = 0;
        bool timed = false;
        mp_value_t entry = mp_value_item(pickle, list, i);
        if (mp_value_is_cut(pickle, entry)) {
            break; /* the last one, and half of it is worse than none */
        }
        *told = (mp_told_t){.event = mp_snapshot_blank,
                            .forward_stack = MP_NO_INDEX};
        status = read_dict(reader, entry, told, &action, &timed);
        told->event.kind = kind_of(action);
        told->event.device = trace->device;
        told->event.flags = reader->facts->ours ? 0 : MP_FLAG_UNTOLD;
        if (action == MP_WORD_SNAPSHOT) {
            told->event.device = 0;
        }
        if (told->event.kind == MP_EVENT_OTHER) {
            reader->facts->unknown += action != MP_WORD_ANNOTATE;
        }
        if (timed) {
            reader->facts->has_times = true;
            now = told->event.time_ns > now ? told->event.time_ns : now;
        }
        else {
            now += 1000;
        }
        told->event.time_ns = now;
        trace->count++; /* entries that mean nothing keep their place */
    }
    reader->facts->entries += trace->count;
    return status;
}

/* ---- the state at the end ------------------------------------------------
 */

static uint32_t
state_of(const mp_snapshot_reader_t *reader, mp_value_t block)
{
    return mp_value_atom(reader->pickle,
                         mp_value_find(reader->pickle, block, MP_WORD_STATE));
}

/* A block of the end, at ADDR unless it says another; *SIZE: what it takes of
 * the segment. */
static mp_status_t
read_block(mp_snapshot_reader_t *reader, mp_value_t block,
           const mp_told_t *segment, uint64_t addr, mp_trace_t *trace,
           uint64_t *size)
{
    const mp_unpickled_t *pickle = reader->pickle;
    mp_told_t told = *segment;
    uint32_t action = 0;
    bool timed = false;
    told.event.stack = MP_NO_INDEX;
    mp_status_t status = read_dict(reader, block, &told, &action, &timed);
    if (status != MP_OK) {
        return status;
    }
    *size = told.event.size;
    mp_value_t value = mp_value_find(pickle, block, MP_WORD_ADDRESS);
    told.event.addr = (uint64_t)mp_value_int(pickle, value, (int64_t)addr);
    value = mp_value_find(pickle, block, MP_WORD_REQUESTED_SIZE);
    told.event.size =
        (uint64_t)mp_value_int(pickle, value, (int64_t)told.event.size);
    mp_value_t history = mp_value_find(pickle, block, MP_WORD_HISTORY);
    if (mp_value_count(pickle, history) > 0 &&
        mp_value_kind(pickle, history) == MP_VALUE_LIST) { /* of 2.0 */
        mp_value_t latest = mp_value_item(pickle, history, 0);
        value = mp_value_find(pickle, latest, MP_WORD_REAL_SIZE);
        told.event.size =
            (uint64_t)mp_value_int(pickle, value, (int64_t)told.event.size);
        status = mp_snapshot_intern_stack(
            reader, mp_value_find(pickle, latest, MP_WORD_FRAMES),
            &told.event.stack);
    }
    uint32_t state = state_of(reader, block);
    bool pending = state == MP_WORD_ACTIVE_PENDING_FREE ||
                   state == MP_WORD_ACTIVE_AWAITING_FREE;
    if (status != MP_OK || (state != MP_WORD_ACTIVE_ALLOCATED && !pending)) {
        return status;
    }
    told.event.flags = pending ? MP_FLAG_PENDING : 0;
    return mp_trace_add_block(trace, &told);
}

static mp_status_t
read_segment(mp_snapshot_reader_t *reader, mp_value_t segment)
{
    const mp_unpickled_t *pickle = reader->pickle;
    mp_told_t told = {.event = mp_snapshot_blank,
                      .forward_stack = MP_NO_INDEX};
    uint64_t number =
        number_of(reader, mp_value_find(pickle, segment, MP_WORD_DEVICE));
    if (number >= reader->trace_count || mp_value_is_cut(pickle, segment)) {
        return MP_OK;
    }
    mp_trace_t *trace = &reader->traces[number];
    told.event.device = trace->device;
    told.event.stream =
        number_of(reader, mp_value_find(pickle, segment, MP_WORD_STREAM));
    told.event.pool = pool_of(
        reader, mp_value_find(pickle, segment, MP_WORD_SEGMENT_POOL_ID));
    uint64_t addr =
        number_of(reader, mp_value_find(pickle, segment, MP_WORD_ADDRESS));
    uint64_t total =
        number_of(reader, mp_value_find(pickle, segment, MP_WORD_TOTAL_SIZE));
    bool made =
        mp_value_int(pickle, mp_value_find(pickle, segment, MP_WORD_MADE),
                     0) != 0;
    mp_status_t status = MP_OK;
    if (!made) {
        mp_range_t range = {
            .begin = addr,
            .end = addr + total < addr ? UINT64_MAX : addr + total,
            .stream = told.event.stream,
            .pool = told.event.pool,
            .mapped = mp_value_int(pickle,
                                   mp_value_find(pickle, segment,
                                                 MP_WORD_IS_EXPANDABLE),
                                   0) != 0};
        status = mp_trace_add_segment(trace, &range);
        reader->facts->has_segments = true;
    }
    mp_value_t blocks = mp_value_find(pickle, segment, MP_WORD_BLOCKS);
    size_t count = mp_value_kind(pickle, blocks) == MP_VALUE_LIST
                       ? mp_value_count(pickle, blocks)
                       : 0;
    for (size_t i = 0; status == MP_OK && i < count; i++) {
        uint64_t size = 0;
        status = read_block(reader, mp_value_item(pickle, blocks, i), &told,
                            addr, trace, &size);
        addr += size;
    }
    return status;
}

/* ---- the whole -----------------------------------------------------------
 */

/* The earliest time of all entries. */
static void
find_first_time(mp_snapshot_reader_t *reader, mp_value_t traces)
{
    const mp_unpickled_t *pickle = reader->pickle;
    bool found = false;
    for (size_t i = 0; i < reader->trace_count; i++) {
        mp_value_t list = i < mp_value_count(pickle, traces)
                              ? mp_value_item(pickle, traces, i)
                              : MP_NO_VALUE;
        if (mp_value_kind(pickle, list) != MP_VALUE_LIST) {
            continue;
        }
        /* A trace is in order: only entries without a time come first. */
        for (size_t k = 0; k < mp_value_count(pickle, list); k++) {
            mp_value_t time = mp_value_find(
                pickle, mp_value_item(pickle, list, k), MP_WORD_TIME_US);
            if (mp_value_kind(pickle, time) == MP_VALUE_INT) {
                int64_t us = mp_value_int(pickle, time, 0);
                if (!found || us < reader->first_us) {
                    reader->first_us = us;
                }
                found = true;
                break;
            }
        }
    }
}

static bool
numbers_new(uint32_t count, uint32_t **out)
{
    size_t bytes = ((size_t)count + 1) * sizeof(uint32_t);
    *out = mp_realloc(NULL, bytes);
    if (*out != NULL) {
        memset(*out, 0xFF, bytes);
    }
    return *out != NULL;
}

/* What memprof wrote for itself. */
static mp_status_t
read_ours(mp_snapshot_reader_t *reader)
{
    const mp_unpickled_t *pickle = reader->pickle;
    mp_value_t ours = mp_value_find(pickle, reader->top, MP_WORD_MEMPROF);
    if (mp_value_kind(pickle, ours) != MP_VALUE_DICT ||
        mp_value_int(pickle, mp_value_find(pickle, ours, MP_WORD_FORMAT), 0) <
            1) {
        return MP_OK;
    }
    reader->facts->ours = true;
    reader->cpu =
        mp_value_int(pickle, mp_value_find(pickle, ours, MP_WORD_CPU), -1);
    reader->start_ns =
        mp_value_int(pickle, mp_value_find(pickle, ours, MP_WORD_START_NS), 0);
    reader->start_us = mp_value_int(
        pickle, mp_value_find(pickle, ours, MP_WORD_START_WALL_US), 0);
    const char *text;
    size_t length;
    if (mp_value_text(pickle, mp_value_find(pickle, ours, MP_WORD_INFO), &text,
                      &length)) {
        reader->data.info = mp_calloc(length + 1, 1);
        if (reader->data.info == NULL) {
            return MP_ERR_NOMEM;
        }
        memcpy(reader->data.info, text, length);
        reader->data.info_length = length;
    }
    return MP_OK;
}

static mp_status_t
make_traces(mp_snapshot_reader_t *reader, mp_value_t segments,
            mp_value_t traces)
{
    const mp_unpickled_t *pickle = reader->pickle;
    size_t count = mp_value_kind(pickle, traces) == MP_VALUE_LIST
                       ? mp_value_count(pickle, traces)
                       : 0;
    reader->facts->has_traces = count > 0;
    for (size_t i = 0; mp_value_kind(pickle, segments) == MP_VALUE_LIST &&
                       i < mp_value_count(pickle, segments);
         i++) {
        uint64_t device = number_of(
            reader, mp_value_find(pickle, mp_value_item(pickle, segments, i),
                                  MP_WORD_DEVICE));
        count = device < MAX_DEVICES && device >= count ? (size_t)device + 1
                                                        : count;
    }
    count = count > MAX_DEVICES ? MAX_DEVICES : count;
    reader->traces = mp_calloc(count + 1, sizeof(mp_trace_t));
    if (reader->traces == NULL) {
        return MP_ERR_NOMEM;
    }
    reader->trace_count = count;
    for (size_t i = 0; i < count; i++) {
        reader->traces[i].device = device_of(reader, i);
    }
    return MP_OK;
}

static mp_status_t
read_all(mp_snapshot_reader_t *reader)
{
    const mp_unpickled_t *pickle = reader->pickle;
    mp_value_t top = reader->top;
    mp_value_t segments = top, traces = MP_NO_VALUE;
    mp_status_t status = MP_OK;
    if (mp_value_kind(pickle, top) == MP_VALUE_DICT) {
        segments = mp_value_find(pickle, top, MP_WORD_SEGMENTS);
        traces = mp_value_find(pickle, top, MP_WORD_DEVICE_TRACES);
        reader->facts->has_host =
            mp_value_count(
                pickle, mp_value_find(pickle, top, MP_WORD_HOST_TRACES)) > 0 ||
            mp_value_count(
                pickle, mp_value_find(pickle, top, MP_WORD_HOST_SEGMENTS)) > 0;
        status = read_ours(reader);
    }
    if (status == MP_OK) {
        status = make_traces(reader, segments, traces);
    }
    if (status != MP_OK) {
        return status;
    }
    find_first_time(reader, traces);
    if (!reader->facts->ours) {
        reader->start_us = reader->first_us;
    }
    if (!reader->facts->has_traces && reader->facts->ours) {
        reader->first_us = reader->start_us;
    }
    size_t listed = mp_value_kind(pickle, traces) == MP_VALUE_LIST
                        ? mp_value_count(pickle, traces)
                        : 0;
    for (size_t i = 0; status == MP_OK && i < reader->trace_count; i++) {
        status = i < listed
                     ? read_trace(reader, mp_value_item(pickle, traces, i), i)
                     : MP_OK;
    }
    size_t count = mp_value_kind(pickle, segments) == MP_VALUE_LIST
                       ? mp_value_count(pickle, segments)
                       : 0;
    for (size_t i = 0; status == MP_OK && i < count; i++) {
        status = read_segment(reader, mp_value_item(pickle, segments, i));
    }
    if (status == MP_OK) {
        status = mp_snapshot_order_all(reader);
    }
    return status == MP_OK ? mp_snapshot_write_events(reader) : status;
}

/* A list of segments, or a dict with one or with traces. */
static bool
is_snapshot(const mp_unpickled_t *pickle, mp_value_t top)
{
    if (mp_value_kind(pickle, top) == MP_VALUE_DICT) {
        return mp_value_find(pickle, top, MP_WORD_SEGMENTS) != MP_NO_VALUE ||
               mp_value_find(pickle, top, MP_WORD_DEVICE_TRACES) !=
                   MP_NO_VALUE;
    }
    if (mp_value_kind(pickle, top) != MP_VALUE_LIST) {
        return false;
    }
    return mp_value_count(pickle, top) == 0
               ? mp_unpickled_is_whole(pickle)
               : mp_value_find(pickle, mp_value_item(pickle, top, 0),
                               MP_WORD_BLOCKS) != MP_NO_VALUE;
}

static mp_status_t
prepare(mp_snapshot_reader_t *reader)
{
    uint32_t texts = mp_unpickled_texts(reader->pickle);
    uint32_t containers = mp_unpickled_containers(reader->pickle);
    if (!numbers_new(texts, &reader->strings) ||
        !numbers_new(containers, &reader->frames) ||
        !numbers_new(containers, &reader->stacks) ||
        !numbers_new(containers, &reader->forwards)) {
        return MP_ERR_NOMEM;
    }
    return mp_intern_new(&reader->intern);
}

mp_status_t
mp_import_snapshot(const uint8_t *bytes, size_t length,
                   mp_recording_data_t *out, mp_import_facts_t *facts,
                   char *error, size_t error_size)
{
    mp_unpickle_options_t options = {.atoms = atoms,
                                     .atom_count = MP_ARRAY_LENGTH(atoms)};
    mp_import_facts_t found = {0};
    mp_snapshot_reader_t reader = {.facts = &found, .cpu = -1};
    mp_status_t status = mp_unpickle(bytes, length, &options, &reader.pickle,
                                     error, error_size);
    if (status != MP_OK) {
        return status;
    }
    reader.top = mp_unpickled_root(reader.pickle);
    found.whole = mp_unpickled_is_whole(reader.pickle);
    found.good_bytes = mp_unpickled_read(reader.pickle);
    if (!is_snapshot(reader.pickle, reader.top)) {
        if (found.whole) { /* else it is said where it ends */
            (void)snprintf(error, error_size,
                           "a pickle, but no memory snapshot: it has neither "
                           "segments nor device_traces");
        }
        status = MP_ERR_FORMAT;
    }
    if (status == MP_OK) {
        status = prepare(&reader);
    }
    if (status == MP_OK) {
        status = read_all(&reader);
    }
    if (status == MP_OK) {
        reader.data.intern = reader.intern;
        reader.data.start_ns = reader.start_ns;
        reader.data.start_wall_ns =
            (int64_t)((uint64_t)reader.start_us * 1000u);
        reader.data.finished = found.whole;
        reader.data.damaged_bytes = length - found.good_bytes;
        *out = reader.data;
        *facts = found;
    }
    else {
        mp_free(reader.data.events);
        mp_free(reader.data.info);
        mp_intern_free(reader.intern);
    }
    for (size_t i = 0; i < reader.trace_count; i++) {
        mp_trace_clear(&reader.traces[i]);
    }
    mp_free(reader.traces);
    mp_free(reader.order);
    mp_free(reader.strings);
    mp_free(reader.frames);
    mp_free(reader.stacks);
    mp_free(reader.forwards);
    mp_unpickled_free(reader.pickle);
    return status;
}
