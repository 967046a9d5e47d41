/* snapshot_parts.c - what entries and blocks of a snapshot are made of: texts,
 * stacks, and what is known of a life.  Each is written once. */
#include "category.h"
#include "mem.h"
#include "snapshot_writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void
mp_snapshot_fail(mp_snapshot_writer_t *writer, mp_status_t status)
{
    if (writer->status == MP_OK) {
        writer->status = status;
    }
}

/* ---- small things --------------------------------------------------------
 */

void
mp_snapshot_put_word(mp_snapshot_writer_t *writer, int word)
{
    mp_pickle_get(&writer->pickle, writer->word_numbers[word]);
}

void
mp_snapshot_put_key(mp_snapshot_writer_t *writer, mp_pickle_items_t *items,
                    int word)
{
    mp_pickle_item(&writer->pickle, items);
    mp_snapshot_put_word(writer, word);
}

void
mp_snapshot_put_int(mp_snapshot_writer_t *writer, mp_pickle_items_t *items,
                    int word, uint64_t value)
{
    mp_snapshot_put_key(writer, items, word);
    mp_pickle_int(&writer->pickle, (int64_t)value);
}

void
mp_snapshot_put_literal(mp_snapshot_writer_t *writer, mp_pickle_items_t *items,
                        const char *text)
{
    mp_pickle_item(&writer->pickle, items);
    mp_pickle_text(&writer->pickle, text, strlen(text));
}

/* The text of a string id, which is written once. */
void
mp_snapshot_put_string(mp_snapshot_writer_t *writer, uint32_t id)
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
int64_t
mp_snapshot_wall_us(const mp_snapshot_writer_t *writer, int64_t time_ns)
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

void
mp_snapshot_put_pool(mp_snapshot_writer_t *writer, uint16_t pool)
{
    mp_pickle_int(&writer->pickle, 0);
    mp_pickle_int(&writer->pickle, pool);
    mp_pickle_pair(&writer->pickle);
}

/* ---- stacks --------------------------------------------------------------
 */

static void
put_frame(mp_snapshot_writer_t *writer, uint32_t id)
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
    mp_snapshot_put_key(writer, &dict, MP_WORD_FILENAME);
    mp_snapshot_put_string(writer, frame.file);
    mp_snapshot_put_int(writer, &dict, MP_WORD_LINE, frame.line);
    mp_snapshot_put_key(writer, &dict, MP_WORD_NAME);
    mp_snapshot_put_string(writer, frame.function);
    mp_pickle_close(pickle, &dict);
    writer->frames[id] = mp_pickle_keep(pickle);
}

/* A stack as a list of frames, innermost first; equal ones are one list. */
void
mp_snapshot_put_frames(mp_snapshot_writer_t *writer, uint32_t stack)
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
put_line(mp_snapshot_writer_t *writer, uint32_t id)
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
        mp_snapshot_fail(writer, MP_ERR_NOMEM);
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
put_forward_frames(mp_snapshot_writer_t *writer, uint32_t stack)
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
place_slot(const mp_snapshot_writer_t *writer,
           const mp_snapshot_place_t *place)
{
    uint64_t hash = place->op * UINT64_C(0x9E3779B97F4A7C15);
    hash = (hash ^ place->module) * UINT64_C(0xBF58476D1CE4E5B9);
    hash = (hash ^ place->region) * UINT64_C(0xD6E8FEB86659FD93);
    hash = (hash ^ (uint32_t)place->step) * UINT64_C(0x94D049BB133111EB);
    hash = (hash ^ place->phase ^ (unsigned)place->category << 8) *
           UINT64_C(0x9E3779B97F4A7C15);
    size_t slot = (size_t)(hash >> 32) & writer->place_mask;
    for (;; slot = (slot + 1) & writer->place_mask) {
        const mp_snapshot_place_t *there = &writer->place_slots[slot];
        if (there->number == MP_NO_INDEX ||
            (there->op == place->op && there->module == place->module &&
             there->region == place->region && there->step == place->step &&
             there->phase == place->phase &&
             there->category == place->category)) {
            return slot;
        }
    }
}

bool
mp_snapshot_places_grow(mp_snapshot_writer_t *writer)
{
    size_t capacity =
        writer->place_slots == NULL ? 1024 : (writer->place_mask + 1) * 2;
    mp_snapshot_place_t *old = writer->place_slots;
    size_t old_capacity = old == NULL ? 0 : writer->place_mask + 1;
    mp_snapshot_place_t *slots = mp_realloc(NULL, capacity * sizeof(*slots));
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
put_metadata(mp_snapshot_writer_t *writer, const mp_allocation_t *life)
{
    mp_pickle_t *pickle = &writer->pickle;
    mp_snapshot_place_t place = {
        .op = life->op,
        .module = life->module,
        .region = life->region,
        .step = life->born_step,
        .phase = life->phase < MP_SNAPSHOT_PHASES ? life->phase : 0,
        .category = life->category < MP_CATEGORY_COUNT ? life->category
                                                       : MP_CATEGORY_UNKNOWN,
    };
    if (writer->place_count * 2 >= writer->place_mask &&
        !mp_snapshot_places_grow(writer)) {
        mp_snapshot_fail(writer, MP_ERR_NOMEM);
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
        mp_snapshot_put_key(writer, &dict, MP_WORD_MODULE);
        mp_snapshot_put_string(writer, place.module);
    }
    if (place.op != MP_NO_INDEX) {
        mp_snapshot_put_key(writer, &dict, MP_WORD_OP);
        mp_snapshot_put_string(writer, place.op);
    }
    if (place.region != MP_NO_INDEX) {
        mp_snapshot_put_key(writer, &dict, MP_WORD_REGION);
        mp_snapshot_put_string(writer, place.region);
    }
    if (place.step >= 0) {
        mp_snapshot_put_int(writer, &dict, MP_WORD_STEP, (uint64_t)place.step);
    }
    mp_snapshot_put_key(writer, &dict, MP_WORD_PHASE);
    mp_pickle_get(pickle, writer->phase_numbers[place.phase]);
    mp_snapshot_put_key(writer, &dict, MP_WORD_CATEGORY);
    mp_pickle_get(pickle, writer->category_numbers[place.category]);
    mp_pickle_close(pickle, &dict);
    place.number = mp_pickle_keep(pickle);
    writer->place_slots[slot] = place;
    writer->place_count++;
}

/* Where a life was made, and because of what. */
void
mp_snapshot_put_known(mp_snapshot_writer_t *writer, mp_pickle_items_t *entry,
                      const mp_allocation_t *life)
{
    mp_snapshot_put_key(writer, entry, MP_WORD_USER_METADATA);
    put_metadata(writer, life);
    if (life->forward_stack < writer->stack_count) {
        mp_snapshot_put_key(writer, entry, MP_WORD_FORWARD_FRAMES);
        put_forward_frames(writer, life->forward_stack);
    }
}

/* The category for the page, which has torch's eight. */
uint32_t
mp_snapshot_shown_category(const mp_snapshot_writer_t *writer, uint32_t row)
{
    uint8_t category = writer->source->lives[row].category;
    if (category >= MP_CATEGORY_WORKSPACE || row == writer->disguised) {
        category = MP_CATEGORY_UNKNOWN;
    }
    return writer->category_numbers[category];
}

/* The page has to find `unknown` on an alloc, or throws: the smallest is
 * called that if no other is. */
uint32_t
mp_snapshot_find_disguised(const mp_snapshot_writer_t *writer)
{
    const mp_export_t *source = writer->source;
    uint32_t smallest = MP_NO_INDEX;
    for (size_t i = 0; i < source->event_count; i++) {
        uint32_t row = writer->survey.born[i];
        if (row == MP_NO_INDEX) {
            continue;
        }
        if (mp_snapshot_shown_category(writer, row) ==
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
