/* export_snapshot.c - a recording as the pickle that torch's MemoryViz opens.
 *
 * What must hold so that the page neither throws nor lies is told in
 * docs/formats/snapshot.md; survey.c has looked into what can be told. */
#include "export_snapshot.h"

#include "category.h"
#include "mem.h"
#include "pickle.h"
#include "snapshot_words.h"
#include "survey.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT_VERSION 1
#define SMALL_SEGMENT (UINT64_C(2) << 20) /* torch's pool of small blocks */

static const char *const words[] = {
#define X(name, text) text,
    MP_WRITTEN_WORDS(X)
#undef X
};
#define WRITTEN_WORDS MP_ARRAY_LENGTH(words)

static const char *const phases[] = {
#define X(name, number, text) [number] = text,
    MP_PHASE_LIST(X)
#undef X
};

/* What allocations in one place have in common. */
typedef struct {
    uint32_t op, module;
    int32_t step;
    uint8_t phase, category;
    uint32_t number; /* in the pickle; MP_NO_INDEX: a free slot */
} place_t;

typedef struct {
    size_t event; /* at which it began */
    int64_t number;
    int64_t time_ns, end_ns;
} step_t;

typedef struct {
    const mp_export_t *source;
    const mp_snapshot_options_t *options;
    mp_survey_t survey;
    mp_pickle_t pickle;
    uint32_t word_numbers[WRITTEN_WORDS + 1];
    uint32_t category_numbers[MP_CATEGORY_COUNT];
    uint32_t phase_numbers[MP_ARRAY_LENGTH(phases)];
    uint32_t nothing; /* the empty list */
    /* By id; MP_NO_INDEX: not written yet. */
    uint32_t *strings, *frames, *stacks, *forwards, *lines;
    uint32_t string_count, frame_count, stack_count;
    place_t *place_slots;
    size_t place_mask, place_count;
    uint32_t disguised; /* the life that is called unknown, or MP_NO_INDEX */
    step_t *steps;
    uint32_t *step_marks; /* a row a step: entries in each trace before it */
    size_t step_count;
    mp_status_t status; /* the first failure that is not the file's */
} writer_t;

static void
fail(writer_t *writer, mp_status_t status)
{
    if (writer->status == MP_OK) {
        writer->status = status;
    }
}

/* ---- small things --------------------------------------------------------
 */

static void
put_word(writer_t *writer, int word)
{
    mp_pickle_get(&writer->pickle, writer->word_numbers[word]);
}

static void
put_key(writer_t *writer, mp_pickle_items_t *items, int word)
{
    mp_pickle_item(&writer->pickle, items);
    put_word(writer, word);
}

static void
put_int(writer_t *writer, mp_pickle_items_t *items, int word, uint64_t value)
{
    put_key(writer, items, word);
    mp_pickle_int(&writer->pickle, (int64_t)value);
}

static void
put_literal(writer_t *writer, mp_pickle_items_t *items, const char *text)
{
    mp_pickle_item(&writer->pickle, items);
    mp_pickle_text(&writer->pickle, text, strlen(text));
}

/* The text of a string id, which is written once. */
static void
put_string(writer_t *writer, uint32_t id)
{
    const char *text = "";
    size_t length = 0;
    if (id >= writer->string_count) {
        mp_pickle_text(&writer->pickle, text, 0);
        return;
    }
    if (writer->strings[id] == MP_NO_INDEX) {
        (void)mp_intern_text(writer->source->intern, id, &text, &length);
        mp_pickle_text(&writer->pickle, text, length);
        writer->strings[id] = mp_pickle_keep(&writer->pickle);
    }
    else {
        mp_pickle_get(&writer->pickle, writer->strings[id]);
    }
}

/* Unix time in microseconds, never below 0. */
static int64_t
wall_us(const writer_t *writer, int64_t time_ns)
{
    const mp_export_t *source = writer->source;
    int64_t wall = (int64_t)((uint64_t)time_ns - (uint64_t)source->start_ns +
                             (uint64_t)source->start_wall_ns);
    int64_t us = wall / 1000;
    return us < 0 ? 0
           : us < (int64_t)MP_SNAPSHOT_NUMBERS
               ? us
               : (int64_t)MP_SNAPSHOT_NUMBERS - 1;
}

static void
put_pool(writer_t *writer, uint16_t pool)
{
    mp_pickle_int(&writer->pickle, 0);
    mp_pickle_int(&writer->pickle, pool);
    mp_pickle_pair(&writer->pickle);
}

/* ---- stacks --------------------------------------------------------------
 */

static void
put_frame(writer_t *writer, uint32_t id)
{
    mp_pickle_t *pickle = &writer->pickle;
    mp_frame_t frame;
    if (writer->frames[id] != MP_NO_INDEX) {
        mp_pickle_get(pickle, writer->frames[id]);
        return;
    }
    if (!mp_intern_get_frame(writer->source->intern, id, &frame)) {
        frame = (mp_frame_t){MP_NO_INDEX, MP_NO_INDEX, 0};
    }
    mp_pickle_items_t dict;
    mp_pickle_dict(pickle, &dict);
    put_key(writer, &dict, MP_WORD_FILENAME);
    put_string(writer, frame.file);
    put_int(writer, &dict, MP_WORD_LINE, frame.line);
    put_key(writer, &dict, MP_WORD_NAME);
    put_string(writer, frame.function);
    mp_pickle_close(pickle, &dict);
    writer->frames[id] = mp_pickle_keep(pickle);
}

/* A stack as a list of frames, innermost first; equal ones are one list. */
static void
put_frames(writer_t *writer, uint32_t stack)
{
    mp_pickle_t *pickle = &writer->pickle;
    if (stack >= writer->stack_count) {
        mp_pickle_get(pickle, writer->nothing);
        return;
    }
    if (writer->stacks[stack] != MP_NO_INDEX) {
        mp_pickle_get(pickle, writer->stacks[stack]);
        return;
    }
    mp_pickle_items_t list;
    mp_pickle_list(pickle, &list);
    mp_stack_t level;
    for (uint32_t id = stack;
         mp_intern_get_stack(writer->source->intern, id, &level) &&
         level.frame < writer->frame_count;
         id = level.parent) {
        mp_pickle_item(pickle, &list);
        put_frame(writer, level.frame);
    }
    mp_pickle_close(pickle, &list);
    writer->stacks[stack] = mp_pickle_keep(pickle);
}

/* A frame as one text, "file:line:function". */
static void
put_line(writer_t *writer, uint32_t id)
{
    const mp_intern_t *intern = writer->source->intern;
    if (writer->lines[id] != MP_NO_INDEX) {
        mp_pickle_get(&writer->pickle, writer->lines[id]);
        return;
    }
    mp_frame_t frame = {0};
    const char *file = "", *function = "";
    size_t file_length = 0, function_length = 0;
    if (mp_intern_get_frame(intern, id, &frame)) {
        (void)mp_intern_text(intern, frame.file, &file, &file_length);
        (void)mp_intern_text(intern, frame.function, &function,
                             &function_length);
    }
    char digits[16];
    size_t digits_length =
        (size_t)snprintf(digits, sizeof(digits), ":%" PRIu32 ":", frame.line);
    size_t length = file_length + digits_length + function_length;
    char *text = mp_realloc(NULL, length + 1);
    if (text == NULL) {
        fail(writer, MP_ERR_NOMEM);
        mp_pickle_none(&writer->pickle);
        return;
    }
    memcpy(text, file, file_length);
    memcpy(text + file_length, digits, digits_length);
    memcpy(text + file_length + digits_length, function, function_length);
    mp_pickle_text(&writer->pickle, text, length);
    mp_free(text);
    writer->lines[id] = mp_pickle_keep(&writer->pickle);
}

static void
put_forward_frames(writer_t *writer, uint32_t stack)
{
    mp_pickle_t *pickle = &writer->pickle;
    if (writer->forwards[stack] != MP_NO_INDEX) {
        mp_pickle_get(pickle, writer->forwards[stack]);
        return;
    }
    mp_pickle_items_t list;
    mp_pickle_list(pickle, &list);
    mp_stack_t level;
    for (uint32_t id = stack;
         mp_intern_get_stack(writer->source->intern, id, &level) &&
         level.frame < writer->frame_count;
         id = level.parent) {
        mp_pickle_item(pickle, &list);
        put_line(writer, level.frame);
    }
    mp_pickle_close(pickle, &list);
    writer->forwards[stack] = mp_pickle_keep(pickle);
}

/* ---- what is known of an allocation --------------------------------------
 */

static size_t
place_slot(const writer_t *writer, const place_t *place)
{
    uint64_t hash = place->op * UINT64_C(0x9E3779B97F4A7C15);
    hash = (hash ^ place->module) * UINT64_C(0xBF58476D1CE4E5B9);
    hash = (hash ^ (uint32_t)place->step) * UINT64_C(0x94D049BB133111EB);
    hash = (hash ^ place->phase ^ (unsigned)place->category << 8) *
           UINT64_C(0x9E3779B97F4A7C15);
    size_t slot = (size_t)(hash >> 32) & writer->place_mask;
    for (;; slot = (slot + 1) & writer->place_mask) {
        const place_t *there = &writer->place_slots[slot];
        if (there->number == MP_NO_INDEX ||
            (there->op == place->op && there->module == place->module &&
             there->step == place->step && there->phase == place->phase &&
             there->category == place->category)) {
            return slot;
        }
    }
}

static bool
places_grow(writer_t *writer)
{
    size_t capacity =
        writer->place_slots == NULL ? 1024 : (writer->place_mask + 1) * 2;
    place_t *old = writer->place_slots;
    size_t old_capacity = old == NULL ? 0 : writer->place_mask + 1;
    place_t *slots = mp_realloc(NULL, capacity * sizeof(*slots));
    if (slots == NULL) {
        return false;
    }
    for (size_t i = 0; i < capacity; i++) {
        slots[i].number = MP_NO_INDEX;
    }
    writer->place_slots = slots;
    writer->place_mask = capacity - 1;
    for (size_t i = 0; i < old_capacity; i++) {
        if (old[i].number != MP_NO_INDEX) {
            slots[place_slot(writer, &old[i])] = old[i];
        }
    }
    mp_free(old);
    return true;
}

/* user_metadata: flat, and one dict for all that have the same. */
static void
put_metadata(writer_t *writer, const mp_allocation_t *life)
{
    mp_pickle_t *pickle = &writer->pickle;
    place_t place = {
        .op = life->op,
        .module = life->module,
        .step = life->born_step,
        .phase = life->phase < MP_ARRAY_LENGTH(phases) ? life->phase : 0,
        .category = life->category < MP_CATEGORY_COUNT ? life->category
                                                       : MP_CATEGORY_UNKNOWN,
    };
    if (writer->place_count * 2 >= writer->place_mask &&
        !places_grow(writer)) {
        fail(writer, MP_ERR_NOMEM);
        mp_pickle_none(pickle);
        return;
    }
    size_t slot = place_slot(writer, &place);
    if (writer->place_slots[slot].number != MP_NO_INDEX) {
        mp_pickle_get(pickle, writer->place_slots[slot].number);
        return;
    }
    mp_pickle_items_t dict;
    mp_pickle_dict(pickle, &dict);
    if (place.module != MP_NO_INDEX) {
        put_key(writer, &dict, MP_WORD_MODULE);
        put_string(writer, place.module);
    }
    if (place.op != MP_NO_INDEX) {
        put_key(writer, &dict, MP_WORD_OP);
        put_string(writer, place.op);
    }
    if (place.step >= 0) {
        put_int(writer, &dict, MP_WORD_STEP, (uint64_t)place.step);
    }
    put_key(writer, &dict, MP_WORD_PHASE);
    mp_pickle_get(pickle, writer->phase_numbers[place.phase]);
    put_key(writer, &dict, MP_WORD_CATEGORY);
    mp_pickle_get(pickle, writer->category_numbers[place.category]);
    mp_pickle_close(pickle, &dict);
    place.number = mp_pickle_keep(pickle);
    writer->place_slots[slot] = place;
    writer->place_count++;
}

/* Where a life was made, and because of what. */
static void
put_known(writer_t *writer, mp_pickle_items_t *entry,
          const mp_allocation_t *life)
{
    put_key(writer, entry, MP_WORD_USER_METADATA);
    put_metadata(writer, life);
    if (life->forward_stack < writer->stack_count) {
        put_key(writer, entry, MP_WORD_FORWARD_FRAMES);
        put_forward_frames(writer, life->forward_stack);
    }
}

/* The category for the page, which has torch's eight. */
static uint32_t
shown_category(const writer_t *writer, uint32_t row)
{
    uint8_t category = writer->source->lives[row].category;
    if (category >= MP_CATEGORY_WORKSPACE || row == writer->disguised) {
        category = MP_CATEGORY_UNKNOWN;
    }
    return writer->category_numbers[category];
}

/* The page has to find `unknown` on an alloc, or throws: the smallest is
 * called that if no other is. */
static uint32_t
find_disguised(const writer_t *writer)
{
    const mp_export_t *source = writer->source;
    uint32_t smallest = MP_NO_INDEX;
    for (size_t i = 0; i < source->event_count; i++) {
        uint32_t row = writer->survey.born[i];
        if (row == MP_NO_INDEX) {
            continue;
        }
        if (shown_category(writer, row) ==
            writer->category_numbers[MP_CATEGORY_UNKNOWN]) {
            return MP_NO_INDEX;
        }
        if (smallest == MP_NO_INDEX ||
            source->lives[row].size < source->lives[smallest].size) {
            smallest = row;
        }
    }
    return smallest;
}

/* ---- traces --------------------------------------------------------------
 */

static void
entry_begin(writer_t *writer, mp_pickle_items_t *trace,
            mp_pickle_items_t *entry, int action)
{
    mp_pickle_item(&writer->pickle, trace);
    mp_pickle_dict(&writer->pickle, entry);
    put_key(writer, entry, MP_WORD_ACTION);
    put_word(writer, action);
}

static void
entry_end(writer_t *writer, mp_pickle_items_t *entry, uint64_t size,
          uint64_t stream, uint32_t stack, int64_t time_ns)
{
    put_int(writer, entry, MP_WORD_SIZE, size);
    put_int(writer, entry, MP_WORD_STREAM, stream);
    put_key(writer, entry, MP_WORD_FRAMES);
    put_frames(writer, stack);
    put_key(writer, entry, MP_WORD_TIME_US);
    mp_pickle_int(&writer->pickle, wall_us(writer, time_ns));
    mp_pickle_close(&writer->pickle, entry);
}

static void
put_alloc(writer_t *writer, mp_pickle_items_t *trace, uint32_t row,
          const mp_event_t *event)
{
    const mp_allocation_t *life = &writer->source->lives[row];
    mp_pickle_items_t entry;
    entry_begin(writer, trace, &entry, MP_WORD_ALLOC);
    put_int(writer, &entry, MP_WORD_ADDR, life->address);
    put_key(writer, &entry, MP_WORD_CATEGORY);
    mp_pickle_get(&writer->pickle, shown_category(writer, row));
    put_known(writer, &entry, life);
    if (life->pool != 0) {
        put_key(writer, &entry, MP_WORD_POOL_ID);
        put_pool(writer, life->pool);
    }
    entry_end(writer, &entry, life->size, life->stream, life->stack,
              event->time_ns);
}

/* A free carries what the block was made with: going back needs it. */
static void
put_free(writer_t *writer, mp_pickle_items_t *trace, int action,
         const mp_allocation_t *life, const mp_event_t *event, bool tell)
{
    mp_pickle_items_t entry;
    entry_begin(writer, trace, &entry, action);
    put_int(writer, &entry, MP_WORD_ADDR, life->address);
    if (tell) { /* there is no alloc that does */
        put_known(writer, &entry, life);
    }
    entry_end(writer, &entry, life->size, life->stream, life->stack,
              event->time_ns);
}

/* What the event at INDEX ends; how many entries. */
static uint32_t
put_ends(writer_t *writer, mp_pickle_items_t *trace, size_t index)
{
    uint32_t row = writer->survey.ended[index];
    if (row == MP_NO_INDEX || writer->survey.left_out[row]) {
        return 0;
    }
    const mp_allocation_t *life = &writer->source->lives[row];
    const mp_event_t *event = &writer->source->events[index];
    uint32_t entries = 0;
    bool older = life->born_event < 0;
    if (life->died_event == (int64_t)index) {
        put_free(writer, trace, MP_WORD_FREE_REQUESTED, life, event, older);
        entries++;
    }
    if (life->completed_event == (int64_t)index) {
        bool first = writer->source->events[life->died_event].kind ==
                     MP_EVENT_SEED_BLOCK;
        put_free(writer, trace, MP_WORD_FREE_COMPLETED, life, event, first);
        entries++;
    }
    return entries;
}

static void
put_segment_event(writer_t *writer, mp_pickle_items_t *trace, int action,
                  const mp_event_t *event, uint64_t stream)
{
    mp_pickle_items_t entry;
    entry_begin(writer, trace, &entry, action);
    put_int(writer, &entry, MP_WORD_ADDR, event->addr);
    entry_end(writer, &entry, event->size, stream, event->stack,
              event->time_ns);
}

/* One event of PLACE; how many entries it made. */
static uint32_t
put_event(writer_t *writer, const mp_place_t *place, mp_pickle_items_t *trace,
          size_t index)
{
    const mp_event_t *event = &writer->source->events[index];
    uint32_t entries = put_ends(writer, trace, index);
    uint32_t row = writer->survey.born[index];
    mp_pickle_items_t entry;
    switch (event->kind) {
    case MP_EVENT_ALLOC:
    case MP_EVENT_SEED_BLOCK:
        if (row != MP_NO_INDEX && !writer->survey.left_out[row]) {
            put_alloc(writer, trace, row, event);
            entries++;
        }
        break;
    case MP_EVENT_SEGMENT_ALLOC:
    case MP_EVENT_SEGMENT_FREE:
    case MP_EVENT_SEGMENT_MAP:
    case MP_EVENT_SEGMENT_UNMAP:
        if (!place->odd) {
            put_segment_event(writer, trace,
                              MP_WORD_SEGMENT_ALLOC +
                                  (event->kind - MP_EVENT_SEGMENT_ALLOC),
                              event, event->stream);
            entries++;
        }
        break;
    case MP_EVENT_OOM:
        entry_begin(writer, trace, &entry, MP_WORD_OOM);
        put_int(writer, &entry, MP_WORD_DEVICE_FREE, event->addr);
        entry_end(writer, &entry, event->size, event->stream, event->stack,
                  event->time_ns);
        entries++;
        break;
    default:
        break;
    }
    return entries;
}

/* Looked at now and then: a file that is too long ends early. */
static bool
goes_on(writer_t *writer)
{
    uint64_t most = writer->options->most_bytes;
    if (most != 0 && mp_outfile_length(writer->pickle.file) > most) {
        fail(writer, MP_ERR_FULL);
    }
    return writer->status == MP_OK &&
           mp_outfile_status(writer->pickle.file) == MP_OK;
}

static void
put_trace(writer_t *writer, size_t number)
{
    const mp_export_t *source = writer->source;
    const mp_place_t *place = &writer->survey.places[number];
    mp_pickle_items_t trace;
    mp_pickle_list(&writer->pickle, &trace);
    uint32_t entries = 0;
    size_t step = 0;
    size_t count = place->met ? source->event_count : 0;
    for (size_t i = 0; i < count; i++) {
        const mp_event_t *event = &source->events[i];
        if (step < writer->step_count && i == writer->steps[step].event) {
            writer->step_marks[step * writer->survey.place_count + number] =
                entries;
            step++;
        }
        else if (event->device == place->device &&
                 mp_event_is_memory(event->kind)) {
            entries += put_event(writer, place, &trace, i);
        }
        if (i % 4096 == 0 && !goes_on(writer)) {
            break;
        }
    }
    mp_pickle_close(&writer->pickle, &trace);
}

/* ---- segments ------------------------------------------------------------
 */

static int
by_address(const void *left, const void *right)
{
    const mp_allocation_t *a = *(const mp_allocation_t *const *)left;
    const mp_allocation_t *b = *(const mp_allocation_t *const *)right;
    return a->address < b->address ? -1 : a->address > b->address;
}

static void
put_gap(writer_t *writer, mp_pickle_items_t *blocks, uint64_t from,
        uint64_t to)
{
    if (from >= to) {
        return;
    }
    mp_pickle_items_t block;
    mp_pickle_item(&writer->pickle, blocks);
    mp_pickle_dict(&writer->pickle, &block);
    put_int(writer, &block, MP_WORD_ADDRESS, from);
    put_int(writer, &block, MP_WORD_SIZE, to - from);
    put_int(writer, &block, MP_WORD_REQUESTED_SIZE, 0);
    put_key(writer, &block, MP_WORD_STATE);
    put_word(writer, MP_WORD_INACTIVE);
    put_key(writer, &block, MP_WORD_FRAMES);
    mp_pickle_get(&writer->pickle, writer->nothing);
    mp_pickle_close(&writer->pickle, &block);
}

static void
put_block(writer_t *writer, mp_pickle_items_t *blocks,
          const mp_allocation_t *life, uint64_t size)
{
    mp_pickle_items_t block;
    mp_pickle_item(&writer->pickle, blocks);
    mp_pickle_dict(&writer->pickle, &block);
    put_int(writer, &block, MP_WORD_ADDRESS, life->address);
    put_int(writer, &block, MP_WORD_SIZE, size);
    put_int(writer, &block, MP_WORD_REQUESTED_SIZE, life->size);
    put_key(writer, &block, MP_WORD_STATE);
    put_word(writer, life->died_event >= 0 ? MP_WORD_ACTIVE_PENDING_FREE
                                           : MP_WORD_ACTIVE_ALLOCATED);
    put_key(writer, &block, MP_WORD_FRAMES);
    put_frames(writer, life->stack);
    put_int(writer, &block, MP_WORD_STREAM, life->stream);
    put_known(writer, &block, life);
    mp_pickle_close(&writer->pickle, &block);
}

/* How many bytes of the segment the block takes: its own, rounded up as torch
 * does, as far as there is room. */
static uint64_t
block_size(const mp_place_t *place, const mp_allocation_t *life, uint64_t next)
{
    uint64_t unit = place->device == MP_DEVICE_CPU ? 1 : 512;
    uint64_t size = (life->size + unit - 1) / unit * unit;
    size = size == 0 && unit > 1 ? unit : size;
    return size < next - life->address ? size : next - life->address;
}

static void
put_segment(writer_t *writer, mp_pickle_items_t *segments,
            const mp_place_t *place, const mp_span_t *span,
            const mp_allocation_t *const *lives, size_t count)
{
    mp_pickle_t *pickle = &writer->pickle;
    uint64_t allocated = 0, active = 0, requested = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t next = i + 1 < count ? lives[i + 1]->address : span->end;
        uint64_t size = block_size(place, lives[i], next);
        active += size;
        requested += lives[i]->size;
        allocated += lives[i]->died_event < 0 ? size : 0;
    }
    mp_pickle_items_t segment, blocks;
    mp_pickle_item(pickle, segments);
    mp_pickle_dict(pickle, &segment);
    put_int(writer, &segment, MP_WORD_DEVICE,
            (uint64_t)(place - writer->survey.places));
    put_int(writer, &segment, MP_WORD_ADDRESS, span->begin);
    put_int(writer, &segment, MP_WORD_TOTAL_SIZE, span->end - span->begin);
    put_int(writer, &segment, MP_WORD_ALLOCATED_SIZE, allocated);
    put_int(writer, &segment, MP_WORD_ACTIVE_SIZE, active);
    put_int(writer, &segment, MP_WORD_REQUESTED_SIZE, requested);
    put_int(writer, &segment, MP_WORD_STREAM, span->stream);
    put_key(writer, &segment, MP_WORD_SEGMENT_TYPE);
    put_word(writer, span->end - span->begin > SMALL_SEGMENT ? MP_WORD_LARGE
                                                             : MP_WORD_SMALL);
    put_key(writer, &segment, MP_WORD_SEGMENT_POOL_ID);
    put_pool(writer, span->pool);
    put_key(writer, &segment, MP_WORD_IS_EXPANDABLE);
    mp_pickle_bool(pickle, span->mapped);
    if (place->odd) { /* nothing of it is true but what lies in it */
        put_key(writer, &segment, MP_WORD_MADE);
        mp_pickle_bool(pickle, true);
    }
    put_key(writer, &segment, MP_WORD_FRAMES);
    mp_pickle_get(pickle, writer->nothing);
    put_key(writer, &segment, MP_WORD_BLOCKS);
    mp_pickle_list(pickle, &blocks);
    uint64_t at = span->begin;
    for (size_t i = 0; i < count; i++) {
        uint64_t next = i + 1 < count ? lives[i + 1]->address : span->end;
        put_gap(writer, &blocks, at, lives[i]->address);
        uint64_t size = block_size(place, lives[i], next);
        put_block(writer, &blocks, lives[i], size);
        at = lives[i]->address + size;
    }
    put_gap(writer, &blocks, at, span->end);
    mp_pickle_close(pickle, &blocks);
    mp_pickle_close(pickle, &segment);
}

/* All segments of PLACE; LIVES has room for every block that is there. */
static void
put_segments_of(writer_t *writer, mp_pickle_items_t *segments,
                const mp_place_t *place, const mp_allocation_t **lives)
{
    size_t count = 0, cursor = 0, from = 0;
    uint64_t addr;
    uint32_t row;
    while (mp_table_next(place->active, &cursor, &addr, &row)) {
        if (!writer->survey.left_out[row]) {
            lives[count++] = &writer->source->lives[row];
        }
    }
    if (count > 0) {
        qsort(lives, count, sizeof(*lives), by_address);
    }
    if (place->odd) {
        mp_span_t all = {.begin = place->low, .end = place->high};
        if (place->has_blocks) {
            put_segment(writer, segments, place, &all, lives, count);
        }
        return;
    }
    for (size_t i = 0; i < place->span_count; i++) {
        const mp_span_t *span = &place->spans[i];
        size_t to = from;
        while (to < count && lives[to]->address < span->end) {
            to++;
        }
        put_segment(writer, segments, place, span, lives + from, to - from);
        from = to;
    }
}

static void
put_segments(writer_t *writer)
{
    const mp_survey_t *survey = &writer->survey;
    size_t most = 0;
    for (size_t i = 0; i < survey->place_count; i++) {
        const mp_table_t *active = survey->places[i].active;
        size_t count = active == NULL ? 0 : mp_table_count(active);
        most = count > most ? count : most;
    }
    const mp_allocation_t **lives =
        mp_realloc(NULL, (most + 1) * sizeof(*lives));
    if (lives == NULL) {
        fail(writer, MP_ERR_NOMEM);
        mp_pickle_none(&writer->pickle);
        return;
    }
    mp_pickle_items_t segments;
    mp_pickle_list(&writer->pickle, &segments);
    for (size_t i = 0; i < survey->place_count; i++) {
        if (!survey->places[i].met) {
            continue;
        }
        put_segments_of(writer, &segments, &survey->places[i], lives);
    }
    mp_pickle_close(&writer->pickle, &segments);
    mp_free((void *)lives);
}

/* ---- steps ---------------------------------------------------------------
 */

/* The steps of the recording's own session, which is that of the first. */
static mp_status_t
find_steps(writer_t *writer)
{
    const mp_export_t *source = writer->source;
    size_t capacity = 0;
    uint64_t session = 0;
    for (size_t i = 0; i < source->event_count; i++) {
        const mp_event_t *event = &source->events[i];
        bool first = writer->step_count == 0;
        bool ends = !first && event->addr == session &&
                    (event->kind == MP_EVENT_STEP ||
                     event->kind == MP_EVENT_WINDOW_END);
        if (ends &&
            writer->steps[writer->step_count - 1].end_ns == INT64_MIN) {
            writer->steps[writer->step_count - 1].end_ns = event->time_ns;
        }
        if (event->kind != MP_EVENT_STEP ||
            (!first && event->addr != session)) {
            continue;
        }
        if (writer->step_count == capacity) {
            capacity = capacity * 2 + 64;
            step_t *steps =
                mp_realloc(writer->steps, capacity * sizeof(*steps));
            if (steps == NULL) {
                return MP_ERR_NOMEM;
            }
            writer->steps = steps;
        }
        session = event->addr;
        writer->steps[writer->step_count++] =
            (step_t){i, (int64_t)event->size, event->time_ns, INT64_MIN};
    }
    writer->step_marks = mp_calloc(
        writer->step_count * writer->survey.place_count + 1, sizeof(uint32_t));
    return writer->step_marks == NULL ? MP_ERR_NOMEM : MP_OK;
}

static void
put_annotation(writer_t *writer, mp_pickle_items_t *list, const char *name,
               int stage, size_t device, int64_t time_ns)
{
    mp_pickle_items_t entry;
    mp_pickle_item(&writer->pickle, list);
    mp_pickle_dict(&writer->pickle, &entry);
    put_key(writer, &entry, MP_WORD_NAME);
    mp_pickle_text(&writer->pickle, name, strlen(name));
    put_key(writer, &entry, MP_WORD_STAGE);
    put_word(writer, stage);
    put_int(writer, &entry, MP_WORD_DEVICE, device);
    put_key(writer, &entry, MP_WORD_TIME_US);
    mp_pickle_int(&writer->pickle, wall_us(writer, time_ns));
    mp_pickle_close(&writer->pickle, &entry);
}

static void
put_annotations(writer_t *writer)
{
    mp_pickle_items_t list;
    mp_pickle_list(&writer->pickle, &list);
    for (size_t i = 0; i < writer->step_count; i++) {
        const step_t *step = &writer->steps[i];
        char name[40];
        (void)snprintf(name, sizeof(name), "ProfilerStep#%" PRId64,
                       step->number);
        for (size_t place = 0; place < writer->survey.place_count; place++) {
            put_annotation(writer, &list, name, MP_WORD_START, place,
                           step->time_ns);
            if (step->end_ns != INT64_MIN) {
                put_annotation(writer, &list, name, MP_WORD_END, place,
                               step->end_ns);
            }
        }
    }
    mp_pickle_close(&writer->pickle, &list);
}

/* ---- memprof's own -------------------------------------------------------
 */

static uint32_t
put_kept(writer_t *writer, mp_pickle_items_t *list, const char *text)
{
    put_literal(writer, list, text);
    return mp_pickle_keep(&writer->pickle);
}

/* Facts that only memprof's reader asks for, and every word that comes often,
 * so that it has a small number. */
static void
put_memprof(writer_t *writer)
{
    const mp_survey_t *survey = &writer->survey;
    mp_pickle_t *pickle = &writer->pickle;
    mp_pickle_items_t dict, list;
    mp_pickle_dict(pickle, &dict);
    put_literal(writer, &dict, "words");
    mp_pickle_list(pickle, &list);
    for (size_t i = 0; i < WRITTEN_WORDS; i++) {
        writer->word_numbers[i + 1] = put_kept(writer, &list, words[i]);
    }
    for (size_t i = 0; i < MP_CATEGORY_COUNT; i++) {
        writer->category_numbers[i] =
            put_kept(writer, &list, mp_category_text((uint8_t)i));
    }
    for (size_t i = 0; i < MP_ARRAY_LENGTH(phases); i++) {
        writer->phase_numbers[i] = put_kept(writer, &list, phases[i]);
    }
    mp_pickle_close(pickle, &list);
    put_literal(writer, &dict, "nothing");
    mp_pickle_items_t nothing;
    mp_pickle_list(pickle, &nothing);
    mp_pickle_close(pickle, &nothing);
    writer->nothing = mp_pickle_keep(pickle);
    put_literal(writer, &dict, "format");
    mp_pickle_int(pickle, FORMAT_VERSION);
    put_literal(writer, &dict, "version");
    mp_pickle_text(pickle, writer->options->version,
                   strlen(writer->options->version));
    put_literal(writer, &dict, "cpu");
    if (survey->has_cpu) {
        mp_pickle_int(pickle, (int64_t)survey->gpu_count);
    }
    else {
        mp_pickle_none(pickle);
    }
    put_literal(writer, &dict, "start_ns");
    mp_pickle_int(pickle, writer->source->start_ns);
    put_literal(writer, &dict, "start_wall_us");
    mp_pickle_int(pickle, writer->source->start_wall_ns / 1000);
    put_literal(writer, &dict, "info");
    mp_pickle_text(pickle, writer->options->info,
                   writer->options->info_length);
    mp_pickle_close(pickle, &dict);
}

/* [number, time_us, entries of each device's trace before it] */
static void
put_steps(writer_t *writer)
{
    mp_pickle_t *pickle = &writer->pickle;
    mp_pickle_items_t list, step, marks;
    size_t places = writer->survey.place_count;
    mp_pickle_list(pickle, &list);
    for (size_t i = 0; i < writer->step_count; i++) {
        mp_pickle_item(pickle, &list);
        mp_pickle_list(pickle, &step);
        mp_pickle_item(pickle, &step);
        mp_pickle_int(pickle, writer->steps[i].number);
        mp_pickle_item(pickle, &step);
        mp_pickle_int(pickle, wall_us(writer, writer->steps[i].time_ns));
        mp_pickle_item(pickle, &step);
        mp_pickle_list(pickle, &marks);
        for (size_t k = 0; k < places; k++) {
            mp_pickle_item(pickle, &marks);
            mp_pickle_int(pickle, writer->step_marks[i * places + k]);
        }
        mp_pickle_close(pickle, &marks);
        mp_pickle_close(pickle, &step);
    }
    mp_pickle_close(pickle, &list);
}

/* ---- the whole -----------------------------------------------------------
 */

static void
put_snapshot(writer_t *writer)
{
    mp_pickle_items_t top, list;
    mp_pickle_dict(&writer->pickle, &top);
    put_literal(writer, &top, "memprof");
    put_memprof(writer);
    writer->disguised = find_disguised(writer);
    put_literal(writer, &top, "segments");
    put_segments(writer);
    put_literal(writer, &top, "device_traces");
    mp_pickle_list(&writer->pickle, &list);
    for (size_t i = 0; i < writer->survey.place_count; i++) {
        mp_pickle_item(&writer->pickle, &list);
        put_trace(writer, i);
    }
    mp_pickle_close(&writer->pickle, &list);
    put_literal(writer, &top, "allocator_settings");
    mp_pickle_items_t settings;
    mp_pickle_dict(&writer->pickle, &settings);
    mp_pickle_close(&writer->pickle, &settings);
    put_literal(writer, &top, "external_annotations");
    put_annotations(writer);
    put_literal(writer, &top, "memprof_steps");
    put_steps(writer);
    mp_pickle_close(&writer->pickle, &top);
    mp_pickle_end(&writer->pickle);
    (void)goes_on(writer);
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

static mp_status_t
prepare(writer_t *writer)
{
    const mp_intern_t *intern = writer->source->intern;
    /* Stacks first: what they are made of is there when they are. */
    writer->stack_count = mp_intern_stacks(intern);
    writer->frame_count = mp_intern_frames(intern);
    writer->string_count = mp_intern_strings(intern);
    mp_status_t status = mp_survey(writer->source, &writer->survey);
    if (status != MP_OK) {
        return status;
    }
    if (!numbers_new(writer->string_count, &writer->strings) ||
        !numbers_new(writer->frame_count, &writer->frames) ||
        !numbers_new(writer->frame_count, &writer->lines) ||
        !numbers_new(writer->stack_count, &writer->stacks) ||
        !numbers_new(writer->stack_count, &writer->forwards) ||
        !places_grow(writer)) {
        return MP_ERR_NOMEM;
    }
    return find_steps(writer);
}

static void
release(writer_t *writer)
{
    mp_survey_clear(&writer->survey);
    mp_free(writer->strings);
    mp_free(writer->frames);
    mp_free(writer->lines);
    mp_free(writer->stacks);
    mp_free(writer->forwards);
    mp_free(writer->place_slots);
    mp_free(writer->steps);
    mp_free(writer->step_marks);
}

mp_status_t
mp_export_snapshot(const mp_export_t *source,
                   const mp_snapshot_options_t *options, const char *path,
                   uint64_t *bytes, int *saved_errno)
{
    writer_t writer = {
        .source = source, .options = options, .disguised = MP_NO_INDEX};
    mp_outfile_t *file = NULL;
    *saved_errno = 0;
    mp_status_t status = prepare(&writer);
    if (status == MP_OK) {
        status = mp_outfile_open(path, false, &file, saved_errno);
    }
    if (status == MP_OK) {
        mp_pickle_begin(&writer.pickle, file);
        put_snapshot(&writer);
        *bytes = mp_outfile_length(file);
        status = mp_outfile_close(file, writer.status, saved_errno);
    }
    release(&writer);
    return status;
}
