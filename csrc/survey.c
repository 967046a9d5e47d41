/* survey.c - what a walk over a recording finds before it is exported. */
#include "survey.h"

#include "mem.h"

#include <string.h>

typedef struct {
    const mp_export_t *source;
    mp_survey_t *survey;
} walk_t;

mp_place_t *
mp_survey_place(const mp_survey_t *survey, int16_t device)
{
    if (device == MP_DEVICE_CPU) {
        return survey->has_cpu ? &survey->places[survey->gpu_count] : NULL;
    }
    return device >= 0 && (size_t)device < survey->gpu_count
               ? &survey->places[device]
               : NULL;
}

/* ---- spans ---------------------------------------------------------------
 */

/* The first span that ends behind ADDR. */
static size_t
span_from(const mp_place_t *place, uint64_t addr)
{
    size_t low = 0, high = place->span_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (place->spans[middle].end > addr) {
            high = middle;
        }
        else {
            low = middle + 1;
        }
    }
    return low;
}

/* The span in which all of [BEGIN, END) lies, or NULL. */
static mp_span_t *
span_around(const mp_place_t *place, uint64_t begin, uint64_t end)
{
    size_t index = span_from(place, begin);
    if (index == place->span_count || place->spans[index].begin > begin ||
        end > place->spans[index].end) {
        return NULL;
    }
    return &place->spans[index];
}

static mp_status_t
span_insert(mp_place_t *place, size_t index, const mp_span_t *span)
{
    if (place->spans == NULL || place->span_count == place->span_capacity) {
        size_t capacity = place->span_capacity * 2 + 16;
        mp_span_t *spans = mp_realloc(place->spans, capacity * sizeof(*spans));
        if (spans == NULL) {
            return MP_ERR_NOMEM;
        }
        place->spans = spans;
        place->span_capacity = capacity;
    }
    memmove(place->spans + index + 1, place->spans + index,
            (place->span_count - index) * sizeof(*span));
    place->spans[index] = *span;
    place->span_count++;
    return MP_OK;
}

static void
span_remove(mp_place_t *place, size_t index)
{
    place->span_count--;
    memmove(place->spans + index, place->spans + index + 1,
            (place->span_count - index) * sizeof(*place->spans));
}

static bool
joins(const mp_span_t *left, const mp_span_t *right)
{
    return left->end == right->begin && left->stream == right->stream;
}

/* A segment, or pages of one, came.  What overlaps, or lies beside something
 * that it must not be joined with, makes the device odd. */
static mp_status_t
span_came(mp_place_t *place, const mp_event_t *event)
{
    bool map = event->kind == MP_EVENT_SEGMENT_MAP;
    bool seed = event->kind == MP_EVENT_SEED_SEGMENT;
    mp_span_t span = {
        .begin = event->addr,
        .end = event->addr + event->size,
        .stream = event->stream,
        .pool = event->pool,
        .mapped = map || (seed && (event->flags & MP_FLAG_PENDING) != 0),
        .solid = event->kind == MP_EVENT_SEGMENT_ALLOC,
    };
    size_t index = span_from(place, span.begin);
    mp_span_t *next = index < place->span_count ? &place->spans[index] : NULL;
    mp_span_t *last = index > 0 ? &place->spans[index - 1] : NULL;
    if (event->size == 0 || (next != NULL && next->begin < span.end)) {
        place->odd = true;
        return MP_OK;
    }
    if (!map && !(seed && span.mapped)) {
        return span_insert(place, index, &span);
    }
    bool join_next = next != NULL && joins(&span, next);
    bool join_last = last != NULL && joins(last, &span);
    if (seed) { /* as torch lists them: a stretch of pages each */
        join_next = join_next && next->mapped;
        join_last = join_last && last->mapped;
    }
    if ((join_next && next->solid) || (join_last && last->solid)) {
        place->odd = true;
        return MP_OK;
    }
    if (join_last) {
        last->end = span.end;
        last->mapped = true;
        if (join_next) {
            last->end = next->end;
            last->live += next->live;
            span_remove(place, index);
        }
        return MP_OK;
    }
    if (join_next) {
        next->begin = span.begin;
        next->mapped = true;
        return MP_OK;
    }
    return span_insert(place, index, &span);
}

/* Whether a block that is not completely freed lies in [BEGIN, END). */
static bool
in_use(const mp_place_t *place, const mp_export_t *source, uint64_t begin,
       uint64_t end, uint32_t *below, uint64_t middle)
{
    size_t cursor = 0;
    uint64_t addr;
    uint32_t row;
    *below = 0;
    while (mp_table_next(place->active, &cursor, &addr, &row)) {
        uint64_t size = source->lives[row].size;
        if (addr < end && addr + (size == 0 ? 1 : size) > begin) {
            return true;
        }
        *below += addr >= middle && addr < begin;
    }
    return false;
}

/* Pages of a span were unmapped: it is cut, or in two. */
static mp_status_t
span_cut(mp_place_t *place, const mp_export_t *source, const mp_event_t *event)
{
    uint64_t begin = event->addr, end = event->addr + event->size;
    size_t index = span_from(place, begin);
    mp_span_t *span = span_around(place, begin, end);
    if (event->size == 0 || span == NULL || span->stream != event->stream) {
        place->odd = true;
        return MP_OK;
    }
    /* Going backwards the pages are joined with whatever lies beside them. */
    const mp_span_t *last = index > 0 ? span - 1 : NULL;
    const mp_span_t *next = index + 1 < place->span_count ? span + 1 : NULL;
    uint32_t below = 0;
    if ((begin == span->begin && last != NULL && joins(last, span)) ||
        (end == span->end && next != NULL && joins(span, next)) ||
        (span->live != 0 &&
         in_use(place, source, begin, end, &below, span->begin))) {
        place->odd = true;
        return MP_OK;
    }
    mp_span_t rest = *span;
    rest.begin = end;
    rest.live = span->live - below;
    if (begin == span->begin) {
        span->begin = end;
        if (end == span->end) {
            span_remove(place, index);
        }
        return MP_OK;
    }
    span->end = begin;
    if (end == rest.end) {
        return MP_OK;
    }
    span->live = below;
    return span_insert(place, index + 1, &rest);
}

static void
span_went(mp_place_t *place, const mp_event_t *event)
{
    uint64_t end = event->addr + event->size;
    const mp_span_t *span = span_around(place, event->addr, end);
    if (span != NULL && span->begin == event->addr && span->end == end &&
        span->live == 0) {
        span_remove(place, (size_t)(span - place->spans));
    }
    else {
        place->odd = true;
    }
}

static mp_status_t
segment(walk_t *walk, mp_place_t *place, const mp_event_t *event)
{
    if (place->odd) {
        return MP_OK;
    }
    switch (event->kind) {
    case MP_EVENT_SEGMENT_FREE:
        span_went(place, event);
        return MP_OK;
    case MP_EVENT_SEGMENT_UNMAP:
        return span_cut(place, walk->source, event);
    case MP_EVENT_SEED_SEGMENT:
        if (place->started) { /* was it there all the time? */
            place->odd = true;
            return MP_OK;
        }
        return span_came(place, event);
    default:
        return span_came(place, event);
    }
}

/* ---- blocks --------------------------------------------------------------
 */

static void
widen(mp_place_t *place, const mp_allocation_t *life)
{
    /* As torch rounds sizes up; the CPU's allocator is not torch's. */
    uint64_t unit = place->device == MP_DEVICE_CPU ? 1 : 512;
    uint64_t size = (life->size + unit - 1) / unit * unit;
    uint64_t end = life->address + (size == 0 ? unit : size);
    if (!place->has_blocks || life->address < place->low) {
        place->low = life->address;
    }
    if (!place->has_blocks || end > place->high) {
        place->high = end;
    }
    place->has_blocks = true;
}

static mp_status_t
block_born(walk_t *walk, mp_place_t *place, uint32_t row, uint32_t *previous)
{
    const mp_allocation_t *life = &walk->source->lives[row];
    widen(place, life);
    mp_status_t status =
        mp_table_put(place->active, life->address, row, previous);
    if (status == MP_OK && !place->odd) {
        uint64_t size = life->size == 0 ? 1 : life->size;
        mp_span_t *span =
            span_around(place, life->address, life->address + size);
        if (span == NULL) {
            place->odd = true;
        }
        else {
            span->live++;
        }
    }
    return status;
}

static void
block_gone(mp_place_t *place, uint64_t addr)
{
    mp_span_t *span = place->odd ? NULL : span_around(place, addr, addr);
    if (span != NULL && span->live > 0) {
        span->live--;
    }
}

/* ROW is said to have been alive all the time, and another was at its
 * address: it is taken to have been born when it was told of. */
static mp_status_t
block_is_late(walk_t *walk, mp_place_t *place, uint32_t row)
{
    uint64_t addr = walk->source->lives[row].address;
    walk->survey->left_out[row] = true;
    if (place->late == NULL && (place->late = mp_table_new(16)) == NULL) {
        return MP_ERR_NOMEM;
    }
    uint32_t previous;
    mp_status_t status = mp_table_put(place->late, addr, row, &previous);
    if (status == MP_OK && previous != MP_NO_INDEX) { /* first come */
        status = mp_table_put(place->late, addr, previous, &previous);
    }
    return status;
}

/* A birth at an event: an ALLOC, or the SEED_BLOCK of one that is late. */
static mp_status_t
birth(walk_t *walk, mp_place_t *place, uint32_t row)
{
    uint32_t previous;
    mp_status_t status = block_born(walk, place, row, &previous);
    if (status == MP_OK && previous != MP_NO_INDEX) {
        block_gone(place, walk->source->lives[row].address);
        status = block_is_late(walk, place, previous);
    }
    return status;
}

static bool
is_early(const mp_export_t *source, const mp_allocation_t *life)
{
    return life->born_event < 0 ||
           (size_t)life->born_event >= source->event_count ||
           source->events[life->born_event].kind != MP_EVENT_ALLOC;
}

static void
note_event(const walk_t *walk, uint32_t *rows, int64_t event, uint32_t row)
{
    if (event >= 0 && (size_t)event < walk->source->event_count &&
        walk->source->events[event].kind != MP_EVENT_SEED_BLOCK) {
        rows[event] = row;
    }
}

/* Fill in born and ended; blocks older than the recording are there. */
static mp_status_t
meet_lives(walk_t *walk)
{
    const mp_export_t *source = walk->source;
    mp_survey_t *survey = walk->survey;
    mp_status_t status = MP_OK;
    for (size_t i = 0; status == MP_OK && i < source->life_count; i++) {
        const mp_allocation_t *life = &source->lives[i];
        uint32_t row = (uint32_t)i, previous;
        mp_place_t *place = mp_survey_place(survey, life->device);
        if (place == NULL || !place->met || life->id < 0) {
            survey->left_out[i] = true;
            continue;
        }
        note_event(walk, survey->ended, life->died_event, row);
        note_event(walk, survey->ended, life->completed_event, row);
        if (!is_early(source, life)) {
            survey->born[life->born_event] = row;
        }
        else if (mp_table_get(place->active, life->address) != MP_NO_INDEX) {
            status = block_is_late(walk, place, row);
        }
        else {
            status = block_born(walk, place, row, &previous);
        }
    }
    return status;
}

/* One event that is about a block or segment of PLACE, in order. */
static mp_status_t
walk_event(walk_t *walk, mp_place_t *place, size_t index)
{
    const mp_export_t *source = walk->source;
    mp_survey_t *survey = walk->survey;
    const mp_event_t *event = &source->events[index];
    uint32_t row = survey->ended[index];
    if (row != MP_NO_INDEX && !survey->left_out[row] &&
        source->lives[row].completed_event == (int64_t)index &&
        mp_table_take(place->active, source->lives[row].address) !=
            MP_NO_INDEX) {
        block_gone(place, source->lives[row].address);
    }
    switch (event->kind) {
    case MP_EVENT_ALLOC:
        row = survey->born[index];
        return row == MP_NO_INDEX ? MP_OK : birth(walk, place, row);
    case MP_EVENT_SEED_BLOCK:
        if (place->late == NULL ||
            mp_table_get(place->active, event->addr) != MP_NO_INDEX ||
            (row = mp_table_take(place->late, event->addr)) == MP_NO_INDEX) {
            return MP_OK;
        }
        survey->left_out[row] = false;
        survey->born[index] = row;
        return birth(walk, place, row);
    case MP_EVENT_SEGMENT_ALLOC:
    case MP_EVENT_SEGMENT_FREE:
    case MP_EVENT_SEGMENT_MAP:
    case MP_EVENT_SEGMENT_UNMAP:
        return segment(walk, place, event);
    default:
        return MP_OK;
    }
}

/* ---- the whole -----------------------------------------------------------
 */

static bool
is_of_device(const mp_event_t *event)
{
    return mp_event_is_memory(event->kind) &&
           event->kind != MP_EVENT_SNAPSHOT && event->kind != MP_EVENT_OTHER &&
           event->kind != MP_EVENT_SEED_ORIGIN &&
           event->device >= MP_DEVICE_CPU;
}

/* What devices there are, and whether their numbers may be written. */
static mp_status_t
find_places(walk_t *walk)
{
    const mp_export_t *source = walk->source;
    mp_survey_t *survey = walk->survey;
    bool fits = true;
    for (size_t i = 0; i < source->event_count; i++) {
        const mp_event_t *event = &source->events[i];
        if (!is_of_device(event)) {
            continue;
        }
        fits = fits && event->addr < MP_SNAPSHOT_NUMBERS &&
               event->size < MP_SNAPSHOT_NUMBERS - event->addr &&
               event->stream < MP_SNAPSHOT_NUMBERS;
        if (event->device == MP_DEVICE_CPU) {
            survey->has_cpu = true;
        }
        else if ((size_t)event->device >= survey->gpu_count) {
            survey->gpu_count = (size_t)event->device + 1;
        }
    }
    if (!fits) {
        return MP_ERR_ARG;
    }
    size_t count = survey->gpu_count + survey->has_cpu;
    survey->places = mp_calloc(count + 1, sizeof(mp_place_t));
    if (survey->places == NULL) {
        return MP_ERR_NOMEM;
    }
    survey->place_count = count;
    for (size_t i = 0; i < count; i++) {
        mp_place_t *place = &survey->places[i];
        bool cpu = i == survey->gpu_count;
        place->device = (int16_t)(cpu ? MP_DEVICE_CPU : (int)i);
        place->odd = cpu;
    }
    return MP_OK;
}

/* PLACE has an event. */
static mp_status_t
meet_place(mp_place_t *place)
{
    if (!place->met) {
        place->met = true;
        place->active = mp_table_new(256);
    }
    return place->active == NULL ? MP_ERR_NOMEM : MP_OK;
}

static mp_status_t
meet_seeded_segments(walk_t *walk)
{
    mp_status_t status = MP_OK;
    for (size_t i = 0; status == MP_OK && i < walk->source->event_count; i++) {
        const mp_event_t *event = &walk->source->events[i];
        mp_place_t *place = is_of_device(event)
                                ? mp_survey_place(walk->survey, event->device)
                                : NULL;
        if (place == NULL) {
            continue;
        }
        status = meet_place(place);
        if (status != MP_OK || event->kind == MP_EVENT_OOM) {
            continue;
        }
        if (event->kind == MP_EVENT_SEED_SEGMENT) {
            status = segment(walk, place, event);
        }
        else if (event->kind != MP_EVENT_SEED_BLOCK) {
            place->started = true;
        }
    }
    return status;
}

static bool
rows_new(size_t count, uint32_t **out)
{
    *out = mp_realloc(NULL, (count + 1) * sizeof(uint32_t));
    if (*out != NULL) {
        memset(*out, 0xFF, (count + 1) * sizeof(uint32_t));
    }
    return *out != NULL;
}

mp_status_t
mp_survey(const mp_export_t *source, mp_survey_t *survey)
{
    *survey = (mp_survey_t){0};
    walk_t walk = {.source = source, .survey = survey};
    survey->left_out = mp_calloc(source->life_count + 1, sizeof(bool));
    if (survey->left_out == NULL ||
        !rows_new(source->event_count, &survey->born) ||
        !rows_new(source->event_count, &survey->ended)) {
        return MP_ERR_NOMEM;
    }
    mp_status_t status = find_places(&walk);
    if (status == MP_OK) {
        status = meet_seeded_segments(&walk);
    }
    if (status == MP_OK) {
        status = meet_lives(&walk);
    }
    for (size_t i = 0; status == MP_OK && i < source->event_count; i++) {
        if (is_of_device(&source->events[i])) {
            mp_place_t *place =
                mp_survey_place(survey, source->events[i].device);
            status = place == NULL ? MP_OK : walk_event(&walk, place, i);
        }
    }
    return status;
}

void
mp_survey_clear(mp_survey_t *survey)
{
    for (size_t i = 0; i < survey->place_count; i++) {
        mp_free(survey->places[i].spans);
        mp_table_free(survey->places[i].active);
        mp_table_free(survey->places[i].late);
    }
    mp_free(survey->places);
    mp_free(survey->born);
    mp_free(survey->ended);
    mp_free(survey->left_out);
    *survey = (mp_survey_t){0};
}
