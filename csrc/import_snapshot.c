/* import_snapshot.c - a memory snapshot of torch's, or of ours, as a
 * recording.
 *
 * Each device's trace becomes events; the blocks and segments of the end go
 * back through them, and what is left was there before the first.  Trusts
 * nothing: a key may be missing or hold anything. */
#include "import_snapshot.h"

#include "life.h"
#include "mem.h"
#include "snapshot_state.h"
#include "snapshot_words.h"
#include "unpickle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SESSION 1 /* the id of an imported recording's steps */
#define MAX_DEVICES 256

static const char *const atoms[] = {
#define X(name, text) text,
    MP_WRITTEN_WORDS(X) MP_OTHER_WORDS(X)
#undef X
};

/* A place in the order of all traces. */
typedef struct {
    uint32_t part;   /* of the recording: how many steps of ours lie before */
    uint32_t device; /* 0: a step; 1 + n: of the n-th trace */
    int64_t time_ns; /* in its part */
    int64_t at_ns;   /* of a step: when it was */
    size_t index;    /* of the trace's entry, or the step's number */
} place_t;

typedef struct {
    mp_unpickled_t *pickle;
    mp_value_t top;
    mp_intern_t *intern;
    mp_import_facts_t *facts;
    int64_t cpu;                /* the trace that is the CPU's, or -1 */
    int64_t first_us;           /* the earliest time */
    int64_t start_ns, start_us; /* one moment on both clocks */
    uint32_t *strings;  /* of each text of the pickle, or MP_NO_INDEX */
    uint32_t *frames;   /* of each container that is a frame */
    uint32_t *stacks;   /* of each container that is a list of frames */
    uint32_t *forwards; /* of each that is a list of lines */
    mp_trace_t *traces;
    size_t trace_count;
    place_t *order;
    size_t order_count, order_capacity;
    mp_recording_data_t data;
    size_t event_capacity;
} reader_t;

/* ---- texts and stacks ----------------------------------------------------
 */

static mp_status_t
intern_text(reader_t *reader, mp_value_t value, uint32_t *id)
{
    const char *text;
    size_t length;
    *id = MP_NO_INDEX;
    if (!mp_value_text(reader->pickle, value, &text, &length)) {
        return MP_OK;
    }
    uint32_t *known = &reader->strings[mp_value_number(value)];
    if (*known == MP_NO_INDEX) {
        *known = mp_intern_string(reader->intern, text, length);
    }
    *id = *known;
    return *id == MP_NO_INDEX ? MP_ERR_NOMEM : MP_OK;
}

/* Whether a frame is of Python: it has a .py file, or "<string>", say. */
static bool
is_python(const reader_t *reader, mp_value_t frame)
{
    const char *text;
    size_t length;
    mp_value_t file = mp_value_find(reader->pickle, frame, MP_WORD_FILENAME);
    return mp_value_text(reader->pickle, file, &text, &length) &&
           ((length >= 3 && memcmp(text + length - 3, ".py", 3) == 0) ||
            (length >= 1 && text[length - 1] == '>'));
}

static mp_status_t
intern_frame(reader_t *reader, mp_value_t value, uint32_t *id)
{
    uint32_t *known = &reader->frames[mp_value_number(value)];
    if (*known != MP_NO_INDEX) {
        *id = *known;
        return MP_OK;
    }
    const mp_unpickled_t *pickle = reader->pickle;
    uint32_t function, file;
    mp_status_t status = intern_text(
        reader, mp_value_find(pickle, value, MP_WORD_NAME), &function);
    if (status == MP_OK) {
        status = intern_text(
            reader, mp_value_find(pickle, value, MP_WORD_FILENAME), &file);
    }
    if (status != MP_OK) {
        return status;
    }
    uint32_t empty = mp_intern_string(reader->intern, "", 0);
    function = function == MP_NO_INDEX ? empty : function;
    file = file == MP_NO_INDEX ? empty : file;
    int64_t line =
        mp_value_int(pickle, mp_value_find(pickle, value, MP_WORD_LINE), 0);
    *known =
        mp_intern_frame(reader->intern, function, file,
                        line < 0 || line > UINT32_MAX ? 0 : (uint32_t)line);
    *id = *known;
    return *id == MP_NO_INDEX ? MP_ERR_NOMEM : MP_OK;
}

/* The stack of a list of frames, innermost first: of torch's the Python frames
 * if there are any. */
static mp_status_t
intern_stack(reader_t *reader, mp_value_t value, uint32_t *id)
{
    const mp_unpickled_t *pickle = reader->pickle;
    *id = MP_NO_INDEX;
    size_t count = mp_value_count(pickle, value);
    if (mp_value_kind(pickle, value) != MP_VALUE_LIST || count == 0) {
        return MP_OK;
    }
    uint32_t *known = &reader->stacks[mp_value_number(value)];
    if (*known != MP_NO_INDEX) {
        *id = *known;
        return MP_OK;
    }
    bool choose = false;
    for (size_t i = 0; i < count && !reader->facts->ours && !choose; i++) {
        choose = is_python(reader, mp_value_item(pickle, value, i));
    }
    for (size_t i = count; i-- > 0;) {
        mp_value_t item = mp_value_item(pickle, value, i);
        uint32_t frame;
        if (mp_value_kind(pickle, item) != MP_VALUE_DICT ||
            (choose && !is_python(reader, item))) {
            continue;
        }
        mp_status_t status = intern_frame(reader, item, &frame);
        if (status != MP_OK) {
            return status;
        }
        *id = mp_intern_stack(reader->intern, *id, frame);
        if (*id == MP_NO_INDEX) {
            return MP_ERR_NOMEM;
        }
    }
    reader->facts->has_stacks |= *id != MP_NO_INDEX;
    *known = *id;
    return MP_OK;
}

/* "file:line:function" as a frame. */
static mp_status_t
intern_line(reader_t *reader, const char *text, size_t length, uint32_t *id)
{
    size_t digits = 0, colon = length; /* the ':' before the function */
    uint32_t line = 0;
    for (size_t i = length; i-- > 0;) {
        if (text[i] >= '0' && text[i] <= '9') {
            digits++;
            continue;
        }
        if (text[i] == ':' && digits > 0 && digits < 10 &&
            i + 1 + digits == colon) {
            for (size_t k = i + 1; k < colon; k++) {
                line = line * 10 + (uint32_t)(text[k] - '0');
            }
            uint32_t file = mp_intern_string(reader->intern, text, i);
            uint32_t function = mp_intern_string(
                reader->intern, text + colon + 1, length - colon - 1);
            *id = mp_intern_frame(reader->intern, function, file, line);
            return *id == MP_NO_INDEX ? MP_ERR_NOMEM : MP_OK;
        }
        digits = 0;
        colon = text[i] == ':' ? i : length;
    }
    uint32_t function = mp_intern_string(reader->intern, text, length);
    *id = mp_intern_frame(reader->intern, function,
                          mp_intern_string(reader->intern, "", 0), 0);
    return *id == MP_NO_INDEX ? MP_ERR_NOMEM : MP_OK;
}

static mp_status_t
intern_forward(reader_t *reader, mp_value_t value, uint32_t *id)
{
    const mp_unpickled_t *pickle = reader->pickle;
    *id = MP_NO_INDEX;
    if (mp_value_kind(pickle, value) != MP_VALUE_LIST) {
        return MP_OK;
    }
    uint32_t *known = &reader->forwards[mp_value_number(value)];
    for (size_t i = mp_value_count(pickle, value);
         *known == MP_NO_INDEX && i-- > 0;) {
        const char *text;
        size_t length;
        uint32_t frame;
        if (!mp_value_text(pickle, mp_value_item(pickle, value, i), &text,
                           &length)) {
            continue;
        }
        mp_status_t status = intern_line(reader, text, length, &frame);
        if (status == MP_OK) {
            *id = mp_intern_stack(reader->intern, *id, frame);
            status = *id == MP_NO_INDEX ? MP_ERR_NOMEM : MP_OK;
        }
        if (status != MP_OK) {
            return status;
        }
    }
    if (*known == MP_NO_INDEX) {
        *known = *id;
    }
    *id = *known;
    return MP_OK;
}

/* ---- entries -------------------------------------------------------------
 */

static int64_t
time_of(const reader_t *reader, int64_t time_us)
{
    return (int64_t)(((uint64_t)time_us - (uint64_t)reader->start_us) * 1000u +
                     (uint64_t)reader->start_ns);
}

static uint16_t
pool_of(const reader_t *reader, mp_value_t value)
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
category_of(reader_t *reader, mp_value_t value)
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
phase_of(const reader_t *reader, mp_value_t value)
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
read_metadata(reader_t *reader, mp_value_t value, mp_told_t *told)
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
            status = intern_text(reader, item, &told->event.op);
            break;
        case MP_WORD_MODULE:
            status = intern_text(reader, item, &told->event.module);
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
number_of(const reader_t *reader, mp_value_t value)
{
    return (uint64_t)mp_value_int(reader->pickle, value, 0);
}

/* What ENTRY, a dict of a trace or a block, says of TOLD. */
static mp_status_t
read_dict(reader_t *reader, mp_value_t entry, mp_told_t *told,
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
            event->time_ns = time_of(reader, mp_value_int(pickle, item, 0));
            *timed = true;
            break;
        case MP_WORD_FRAMES:
            status = intern_stack(reader, item, &event->stack);
            break;
        case MP_WORD_FORWARD_FRAMES:
            status = intern_forward(reader, item, &told->forward_stack);
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

static const mp_event_t blank = {
    .op = MP_NO_INDEX, .module = MP_NO_INDEX, .stack = MP_NO_INDEX};

static int16_t
device_of(const reader_t *reader, size_t number)
{
    return (int16_t)((int64_t)number == reader->cpu ? MP_DEVICE_CPU
                                                    : (int)number);
}

static mp_status_t
read_trace(reader_t *reader, mp_value_t list, size_t number)
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
    int64_t now = time_of(reader, reader->first_us);
    for (size_t i = 0; status == MP_OK && i < count; i++) {
        mp_told_t *told = &trace->entries[trace->count];
        uint32_t action = 0;
        bool timed = false;
        mp_value_t entry = mp_value_item(pickle, list, i);
        if (mp_value_is_cut(pickle, entry)) {
            break; /* the last one, and half of it is worse than none */
        }
        *told = (mp_told_t){.event = blank, .forward_stack = MP_NO_INDEX};
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
state_of(const reader_t *reader, mp_value_t block)
{
    return mp_value_atom(reader->pickle,
                         mp_value_find(reader->pickle, block, MP_WORD_STATE));
}

/* A block of the end, at ADDR unless it says another; *SIZE: what it takes of
 * the segment. */
static mp_status_t
read_block(reader_t *reader, mp_value_t block, const mp_told_t *segment,
           uint64_t addr, mp_trace_t *trace, uint64_t *size)
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
        status =
            intern_stack(reader, mp_value_find(pickle, latest, MP_WORD_FRAMES),
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
read_segment(reader_t *reader, mp_value_t segment)
{
    const mp_unpickled_t *pickle = reader->pickle;
    mp_told_t told = {.event = blank, .forward_stack = MP_NO_INDEX};
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

/* ---- order ---------------------------------------------------------------
 */

static int
by_place(const void *left, const void *right)
{
    const place_t *a = left, *b = right;
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
order_add(reader_t *reader, const place_t *place)
{
    if (reader->order_count == reader->order_capacity) {
        size_t capacity = reader->order_capacity * 2 + 64;
        place_t *order = mp_realloc(reader->order, capacity * sizeof(*order));
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
order_our_steps(reader_t *reader, mp_value_t steps)
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
        place_t place = {
            .part = (uint32_t)i + 1,
            .time_ns = INT64_MIN, /* before what follows it */
            .at_ns = time_of(
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
order_annotated_steps(reader_t *reader, mp_value_t list)
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
        place_t place = {
            .time_ns = time_of(
                reader,
                mp_value_int(
                    pickle, mp_value_find(pickle, entry, MP_WORD_TIME_US), 0)),
            .index = (size_t)number};
        place.at_ns = place.time_ns;
        status = order_add(reader, &place);
    }
    return status;
}

static mp_status_t
order_all(reader_t *reader)
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
            place_t place = {.part = trace->entries[i].part,
                             .device = (uint32_t)k + 1,
                             .time_ns = trace->entries[i].event.time_ns,
                             .index = i};
            status = order_add(reader, &place);
        }
    }
    bool sorted = true;
    for (size_t i = 1; i < reader->order_count && sorted; i++) {
        sorted = by_place(&reader->order[i - 1], &reader->order[i]) <= 0;
    }
    if (status == MP_OK && !sorted) {
        qsort(reader->order, reader->order_count, sizeof(place_t), by_place);
    }
    return status;
}

/* ---- the recording -------------------------------------------------------
 */

static mp_status_t
emit(void *context, const mp_event_t *event)
{
    reader_t *reader = context;
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
emit_step(reader_t *reader, uint64_t number, int64_t time_ns, bool first)
{
    mp_event_t event = blank;
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

static mp_status_t
write_events(reader_t *reader)
{
    mp_status_t status = MP_OK;
    int64_t begin = time_of(reader, reader->first_us);
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
        const place_t *place = &reader->order[i];
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
        mp_event_t event = blank;
        event.kind = MP_EVENT_WINDOW_END;
        event.addr = SESSION;
        event.time_ns = now;
        status = emit(reader, &event);
    }
    return status;
}

/* ---- the whole -----------------------------------------------------------
 */

/* The earliest time of all entries. */
static void
find_first_time(reader_t *reader, mp_value_t traces)
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
read_ours(reader_t *reader)
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
make_traces(reader_t *reader, mp_value_t segments, mp_value_t traces)
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
read_all(reader_t *reader)
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
        status = order_all(reader);
    }
    return status == MP_OK ? write_events(reader) : status;
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
prepare(reader_t *reader)
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
    reader_t reader = {.facts = &found, .cpu = -1};
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
