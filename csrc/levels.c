/* levels.c - two walks over the events: how many changes, then which count. */
#include "levels.h"

#include "mem.h"

#define NEARLY_PER_CENT 95

enum {
    FIRST,
    LOWEST,
    HIGHEST,
    MOST_RESERVED,
    LAST,
    KEPT
};

typedef struct {
    const mp_export_t *source;
    int16_t device;
    mp_life_walk_t *walk;
    mp_level_t now;
} reader_t;

/* Sizes in a damaged file may be anything: sums wrap, never overflow. */
static void
add(int64_t *value, uint64_t bytes)
{
    *value = (int64_t)((uint64_t)*value + bytes);
}

static void
count_life(mp_level_t *level, const mp_allocation_t *life, bool gone)
{
    uint64_t change = gone ? 0 - life->size : life->size;
    uint8_t category = life->category < MP_CATEGORY_COUNT
                           ? life->category
                           : (uint8_t)MP_CATEGORY_UNKNOWN;
    add(&level->allocated, change);
    add(&level->category[category], change);
}

/* The state when the recording began. */
static void
reader_rewind(reader_t *reader)
{
    const mp_export_t *source = reader->source;
    reader->walk->next = 0;
    reader->now = (mp_level_t){.event = -1};
    for (size_t i = 0; i < source->life_count; i++) {
        if (source->lives[i].device == reader->device &&
            source->lives[i].born_event < 0) {
            count_life(&reader->now, &source->lives[i], false);
        }
    }
    for (size_t i = 0; i < source->event_count; i++) {
        if (source->events[i].device == reader->device &&
            source->events[i].kind == MP_EVENT_SEED_SEGMENT) {
            add(&reader->now.reserved, source->events[i].size);
        }
    }
}

/* Apply event I; whether it changed anything. */
static bool
reader_apply(reader_t *reader, size_t i)
{
    const mp_event_t *event = &reader->source->events[i];
    if (event->device != reader->device || !mp_event_is_memory(event->kind)) {
        return false;
    }
    const mp_allocation_t *died = mp_life_walk_died(reader->walk, i);
    const mp_allocation_t *born = mp_life_walk_born(reader->walk, i);
    bool changed = died != NULL || born != NULL;
    if (died != NULL) {
        count_life(&reader->now, died, true);
    }
    if (born != NULL) {
        count_life(&reader->now, born, false);
    }
    switch (event->kind) {
    case MP_EVENT_SEGMENT_ALLOC:
    case MP_EVENT_SEGMENT_MAP:
        add(&reader->now.reserved, event->size);
        changed = true;
        break;
    case MP_EVENT_SEGMENT_FREE:
    case MP_EVENT_SEGMENT_UNMAP:
        add(&reader->now.reserved, 0 - event->size);
        changed = true;
        break;
    default:
        break;
    }
    reader->now.event = (int64_t)i;
    return changed;
}

/* ---- stretches ------------------------------------------------------------
 */

typedef struct {
    const mp_span_t *spans;
    mp_span_level_t *levels;
    size_t count;
    size_t next; /* the first that is not over */
    bool inside; /* of it */
} spans_t;

/* The next change comes with event I; BEFORE: what was allocated until
 * then.  Stretches that begin or end up to it. */
static void
spans_advance(spans_t *spans, int64_t i, int64_t before)
{
    for (; spans->next < spans->count; spans->next++) {
        const mp_span_t *span = &spans->spans[spans->next];
        mp_span_level_t *level = &spans->levels[spans->next];
        if (!spans->inside) {
            if (span->begin_event > i) {
                return;
            }
            level->begin = level->peak = before;
            spans->inside = true;
        }
        if (span->end_event >= i) {
            return;
        }
        level->end = before;
        spans->inside = false;
    }
}

static void
spans_raise(spans_t *spans, int64_t allocated)
{
    if (spans->inside && spans->levels[spans->next].peak < allocated) {
        spans->levels[spans->next].peak = allocated;
    }
}

/* ---- samples --------------------------------------------------------------
 */

typedef struct {
    mp_levels_t *out;
    size_t per_bunch, in_bunch;
    mp_level_t kept[KEPT];
} sampler_t;

/* What counts of the bunch that is over, in order, each once. */
static void
sampler_end(sampler_t *sampler)
{
    int64_t last = -2;
    while (sampler->in_bunch > 0) {
        const mp_level_t *next = NULL;
        for (int i = 0; i < KEPT; i++) {
            const mp_level_t *kept = &sampler->kept[i];
            if (kept->event > last &&
                (next == NULL || kept->event < next->event)) {
                next = kept;
            }
        }
        if (next == NULL) {
            break;
        }
        sampler->out->samples[sampler->out->count++] = *next;
        last = next->event;
    }
    sampler->in_bunch = 0;
}

static void
sampler_add(sampler_t *sampler, const mp_level_t *now)
{
    mp_level_t *kept = sampler->kept;
    if (sampler->in_bunch++ == 0) {
        for (int i = 0; i < KEPT; i++) {
            kept[i] = *now;
        }
    }
    else {
        if (now->allocated < kept[LOWEST].allocated) {
            kept[LOWEST] = *now;
        }
        if (now->allocated > kept[HIGHEST].allocated) {
            kept[HIGHEST] = *now;
        }
        if (now->reserved > kept[MOST_RESERVED].reserved) {
            kept[MOST_RESERVED] = *now;
        }
        kept[LAST] = *now;
    }
    if (sampler->in_bunch == sampler->per_bunch) {
        sampler_end(sampler);
    }
}

/* ---- the whole ------------------------------------------------------------
 */

/* How many changes there are; the peak, too. */
static size_t
find_peak(reader_t *reader, mp_levels_t *out)
{
    size_t changes = 0;
    reader_rewind(reader);
    out->peak = reader->now.allocated;
    out->peak_event = -1;
    for (size_t i = 0; i < reader->source->event_count; i++) {
        if (reader_apply(reader, i)) {
            changes++;
            if (reader->now.allocated > out->peak) {
                out->peak = reader->now.allocated;
                out->peak_event = (int64_t)i;
            }
        }
    }
    return changes;
}

static void
walk_all(reader_t *reader, sampler_t *sampler, spans_t lists[MP_SPAN_LISTS],
         mp_levels_t *out)
{
    int64_t nearly = out->peak / 100 * NEARLY_PER_CENT;
    int64_t last = (int64_t)reader->source->event_count - 1;
    int64_t high = -1; /* since this event it has been that high */
    bool found = false;
    reader_rewind(reader);
    out->samples[out->count++] = reader->now;
    bool is_high = reader->now.allocated >= nearly;
    for (size_t i = 0; i < reader->source->event_count; i++) {
        int64_t before = reader->now.allocated;
        if (!reader_apply(reader, i)) {
            continue;
        }
        for (int j = 0; j < MP_SPAN_LISTS; j++) {
            spans_advance(&lists[j], (int64_t)i, before);
            spans_raise(&lists[j], reader->now.allocated);
        }
        sampler_add(sampler, &reader->now);
        bool was_high = is_high;
        is_high = reader->now.allocated >= nearly;
        if (is_high && !was_high) {
            high = (int64_t)i;
        }
        if (was_high && !is_high && !found && high <= out->peak_event &&
            out->peak_event <= (int64_t)i) {
            found = true;
            out->high_begin = high;
            out->high_end = (int64_t)i;
        }
    }
    if (!found) {
        out->high_begin = high;
        out->high_end = last;
    }
    sampler_end(sampler);
    for (int j = 0; j < MP_SPAN_LISTS; j++) {
        spans_advance(&lists[j], INT64_MAX, reader->now.allocated);
    }
}

mp_status_t
mp_levels_build(const mp_export_t *source, int16_t device,
                mp_life_walk_t *walk, size_t bunches,
                const mp_spans_t lists[MP_SPAN_LISTS], mp_levels_t *out)
{
    *out = (mp_levels_t){0};
    reader_t reader = {.source = source, .device = device, .walk = walk};
    size_t changes = find_peak(&reader, out);
    sampler_t sampler = {.out = out, .per_bunch = changes / bunches + 1};
    size_t room = (changes / sampler.per_bunch + 1) * KEPT + 1;
    out->samples = mp_calloc(room, sizeof(mp_level_t));
    bool failed = out->samples == NULL;
    spans_t spans[MP_SPAN_LISTS] = {0};
    for (int i = 0; i < MP_SPAN_LISTS; i++) {
        out->span_levels[i] =
            mp_calloc(lists[i].count + 1, sizeof(mp_span_level_t));
        failed |= out->span_levels[i] == NULL;
        spans[i].spans = lists[i].spans;
        spans[i].count = lists[i].count;
        spans[i].levels = out->span_levels[i];
    }
    if (failed) {
        mp_levels_clear(out);
        return MP_ERR_NOMEM;
    }
    walk_all(&reader, &sampler, spans, out);
    return MP_OK;
}

void
mp_levels_clear(mp_levels_t *levels)
{
    mp_free(levels->samples);
    for (int i = 0; i < MP_SPAN_LISTS; i++) {
        mp_free(levels->span_levels[i]);
    }
    *levels = (mp_levels_t){0};
}
