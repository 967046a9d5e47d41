/* export_snapshot.c - a recording as the pickle that torch's MemoryViz opens.
 *
 * What must hold so that the page neither throws nor lies is told in
 * docs/formats/snapshot.md; survey.c has looked into what can be told. */
#include "export_snapshot.h"

#include "category.h"
#include "mem.h"
#include "snapshot_writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define FORMAT_VERSION 1

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

_Static_assert(MP_ARRAY_LENGTH(phases) == MP_SNAPSHOT_PHASES, "all of them");

/* ---- traces --------------------------------------------------------------
 */

static void
entry_begin(mp_snapshot_writer_t *writer, mp_pickle_items_t *trace,
            mp_pickle_items_t *entry, int action)
{
    mp_pickle_item(&writer->pickle, trace);
    mp_pickle_dict(&writer->pickle, entry);
    mp_snapshot_put_key(writer, entry, MP_WORD_ACTION);
    mp_snapshot_put_word(writer, action);
}

static void
entry_end(mp_snapshot_writer_t *writer, mp_pickle_items_t *entry,
          uint64_t size, uint64_t stream, uint32_t stack, int64_t time_ns)
{
    mp_snapshot_put_int(writer, entry, MP_WORD_SIZE, size);
    mp_snapshot_put_int(writer, entry, MP_WORD_STREAM, stream);
    mp_snapshot_put_key(writer, entry, MP_WORD_FRAMES);
    mp_snapshot_put_frames(writer, stack);
    mp_snapshot_put_key(writer, entry, MP_WORD_TIME_US);
    mp_pickle_int(&writer->pickle, mp_snapshot_wall_us(writer, time_ns));
    mp_pickle_close(&writer->pickle, entry);
}

static void
put_alloc(mp_snapshot_writer_t *writer, mp_pickle_items_t *trace, uint32_t row,
          const mp_event_t *event)
{
    const mp_allocation_t *life = &writer->source->lives[row];
    mp_pickle_items_t entry;
    entry_begin(writer, trace, &entry, MP_WORD_ALLOC);
    mp_snapshot_put_int(writer, &entry, MP_WORD_ADDR, life->address);
    mp_snapshot_put_key(writer, &entry, MP_WORD_CATEGORY);
    mp_pickle_get(&writer->pickle, mp_snapshot_shown_category(writer, row));
    mp_snapshot_put_known(writer, &entry, life);
    if (life->pool != 0) {
        mp_snapshot_put_key(writer, &entry, MP_WORD_POOL_ID);
        mp_snapshot_put_pool(writer, life->pool);
    }
    entry_end(writer, &entry, life->size, life->stream, life->stack,
              event->time_ns);
}

/* A free carries what the block was made with: going back needs it. */
static void
put_free(mp_snapshot_writer_t *writer, mp_pickle_items_t *trace, int action,
         const mp_allocation_t *life, const mp_event_t *event, bool tell)
{
    mp_pickle_items_t entry;
    entry_begin(writer, trace, &entry, action);
    mp_snapshot_put_int(writer, &entry, MP_WORD_ADDR, life->address);
    if (tell) { /* there is no alloc that does */
        mp_snapshot_put_known(writer, &entry, life);
    }
    entry_end(writer, &entry, life->size, life->stream, life->stack,
              event->time_ns);
}

/* What the event at INDEX ends; how many entries. */
static uint32_t
put_ends(mp_snapshot_writer_t *writer, mp_pickle_items_t *trace, size_t index)
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
put_segment_event(mp_snapshot_writer_t *writer, mp_pickle_items_t *trace,
                  int action, const mp_event_t *event, uint64_t stream)
{
    mp_pickle_items_t entry;
    entry_begin(writer, trace, &entry, action);
    mp_snapshot_put_int(writer, &entry, MP_WORD_ADDR, event->addr);
    entry_end(writer, &entry, event->size, stream, event->stack,
              event->time_ns);
}

/* One event of PLACE; how many entries it made. */
static uint32_t
put_event(mp_snapshot_writer_t *writer, const mp_place_t *place,
          mp_pickle_items_t *trace, size_t index)
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
        mp_snapshot_put_int(writer, &entry, MP_WORD_DEVICE_FREE, event->addr);
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
goes_on(mp_snapshot_writer_t *writer)
{
    uint64_t most = writer->options->most_bytes;
    if (most != 0 && mp_outfile_length(writer->pickle.file) > most) {
        mp_snapshot_fail(writer, MP_ERR_FULL);
    }
    return writer->status == MP_OK &&
           mp_outfile_status(writer->pickle.file) == MP_OK;
}

static void
put_trace(mp_snapshot_writer_t *writer, size_t number)
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

/* ---- steps ---------------------------------------------------------------
 */

/* The steps of the recording's own session, which is that of the first. */
static mp_status_t
find_steps(mp_snapshot_writer_t *writer)
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
            mp_snapshot_step_t *steps =
                mp_realloc(writer->steps, capacity * sizeof(*steps));
            if (steps == NULL) {
                return MP_ERR_NOMEM;
            }
            writer->steps = steps;
        }
        session = event->addr;
        writer->steps[writer->step_count++] = (mp_snapshot_step_t){
            i, (int64_t)event->size, event->time_ns, INT64_MIN};
    }
    writer->step_marks = mp_calloc(
        writer->step_count * writer->survey.place_count + 1, sizeof(uint32_t));
    return writer->step_marks == NULL ? MP_ERR_NOMEM : MP_OK;
}

static void
put_annotation(mp_snapshot_writer_t *writer, mp_pickle_items_t *list,
               const char *name, int stage, size_t device, int64_t time_ns)
{
    mp_pickle_items_t entry;
    mp_pickle_item(&writer->pickle, list);
    mp_pickle_dict(&writer->pickle, &entry);
    mp_snapshot_put_key(writer, &entry, MP_WORD_NAME);
    mp_pickle_text(&writer->pickle, name, strlen(name));
    mp_snapshot_put_key(writer, &entry, MP_WORD_STAGE);
    mp_snapshot_put_word(writer, stage);
    mp_snapshot_put_int(writer, &entry, MP_WORD_DEVICE, device);
    mp_snapshot_put_key(writer, &entry, MP_WORD_TIME_US);
    mp_pickle_int(&writer->pickle, mp_snapshot_wall_us(writer, time_ns));
    mp_pickle_close(&writer->pickle, &entry);
}

static void
put_annotations(mp_snapshot_writer_t *writer)
{
    mp_pickle_items_t list;
    mp_pickle_list(&writer->pickle, &list);
    for (size_t i = 0; i < writer->step_count; i++) {
        const mp_snapshot_step_t *step = &writer->steps[i];
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
put_kept(mp_snapshot_writer_t *writer, mp_pickle_items_t *list,
         const char *text)
{
    mp_snapshot_put_literal(writer, list, text);
    return mp_pickle_keep(&writer->pickle);
}

/* Facts that only memprof's reader asks for, and every word that comes often,
 * so that it has a small number. */
static void
put_memprof(mp_snapshot_writer_t *writer)
{
    const mp_survey_t *survey = &writer->survey;
    mp_pickle_t *pickle = &writer->pickle;
    mp_pickle_items_t dict, list;
    mp_pickle_dict(pickle, &dict);
    mp_snapshot_put_literal(writer, &dict, "words");
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
    mp_snapshot_put_literal(writer, &dict, "nothing");
    mp_pickle_items_t nothing;
    mp_pickle_list(pickle, &nothing);
    mp_pickle_close(pickle, &nothing);
    writer->nothing = mp_pickle_keep(pickle);
    mp_snapshot_put_literal(writer, &dict, "format");
    mp_pickle_int(pickle, FORMAT_VERSION);
    mp_snapshot_put_literal(writer, &dict, "version");
    mp_pickle_text(pickle, writer->options->version,
                   strlen(writer->options->version));
    mp_snapshot_put_literal(writer, &dict, "cpu");
    if (survey->has_cpu) {
        mp_pickle_int(pickle, (int64_t)survey->gpu_count);
    }
    else {
        mp_pickle_none(pickle);
    }
    mp_snapshot_put_literal(writer, &dict, "start_ns");
    mp_pickle_int(pickle, writer->source->start_ns);
    mp_snapshot_put_literal(writer, &dict, "start_wall_us");
    mp_pickle_int(pickle, writer->source->start_wall_ns / 1000);
    mp_snapshot_put_literal(writer, &dict, "info");
    mp_pickle_text(pickle, writer->options->info,
                   writer->options->info_length);
    mp_pickle_close(pickle, &dict);
}

/* [number, time_us, entries of each device's trace before it] */
static void
put_steps(mp_snapshot_writer_t *writer)
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
        mp_pickle_int(pickle,
                      mp_snapshot_wall_us(writer, writer->steps[i].time_ns));
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
put_snapshot(mp_snapshot_writer_t *writer)
{
    mp_pickle_items_t top, list;
    mp_pickle_dict(&writer->pickle, &top);
    mp_snapshot_put_literal(writer, &top, "memprof");
    put_memprof(writer);
    writer->disguised = mp_snapshot_find_disguised(writer);
    mp_snapshot_put_literal(writer, &top, "segments");
    mp_snapshot_put_segments(writer);
    mp_snapshot_put_literal(writer, &top, "device_traces");
    mp_pickle_list(&writer->pickle, &list);
    for (size_t i = 0; i < writer->survey.place_count; i++) {
        mp_pickle_item(&writer->pickle, &list);
        put_trace(writer, i);
    }
    mp_pickle_close(&writer->pickle, &list);
    mp_snapshot_put_literal(writer, &top, "allocator_settings");
    mp_pickle_items_t settings;
    mp_pickle_dict(&writer->pickle, &settings);
    mp_pickle_close(&writer->pickle, &settings);
    mp_snapshot_put_literal(writer, &top, "external_annotations");
    put_annotations(writer);
    mp_snapshot_put_literal(writer, &top, "memprof_steps");
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
prepare(mp_snapshot_writer_t *writer)
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
        !mp_snapshot_places_grow(writer)) {
        return MP_ERR_NOMEM;
    }
    return find_steps(writer);
}

static void
release(mp_snapshot_writer_t *writer)
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
    mp_snapshot_writer_t writer = {
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
