/* free_blocks.c - the largest stretch that torch could give away unasked.
 *
 * Every address at which a block or a segment ever begins or ends is a place;
 * places are sorted once.  A place that means something now is live, and has
 * the gap behind it up to the next live one; a tree holds the largest gap.
 * So each block that comes or goes changes two gaps. */
#include "free_blocks.h"

#include "life_walk.h"
#include "mem.h"

#include <stdlib.h>

#define UNIT 512 /* torch rounds up to it */
#define LEVELS 6 /* of bits: 64^6 places */
#define NONE SIZE_MAX

typedef struct {
    uint64_t block_end; /* of the block that begins here; 0: none does */
    uint32_t begins;    /* segments */
    uint32_t ends;
    int32_t edge; /* of mapped pages: 1 they begin, -1 they end, 0 neither */
} place_t;

typedef struct {
    const mp_export_t *source;
    int16_t device;
    uint64_t *addresses; /* of the places, rising */
    place_t *places;
    size_t count;
    uint64_t *bits[LEVELS]; /* live places; words that have any; ... */
    size_t words[LEVELS];
    uint64_t *tree; /* the largest gap below; the places from WIDTH on */
    size_t width;
    uint32_t *begins, *ends; /* [event] a life, or MP_NO_INDEX */
    bool odd;                /* segments do not add up */
} reader_t;

/* ---- which places are live ------------------------------------------------
 */

static void
set_live(reader_t *reader, size_t place, bool live)
{
    for (size_t level = 0; level < LEVELS; level++) {
        uint64_t *word = &reader->bits[level][place / 64];
        uint64_t bit = UINT64_C(1) << (place % 64);
        uint64_t before = *word;
        *word = live ? before | bit : before & ~bit;
        if ((before == 0) == (*word == 0)) {
            return;
        }
        place /= 64;
    }
}

/* The first live place above PLACE, or NONE. */
static size_t
next_live(const reader_t *reader, size_t place)
{
    for (size_t level = 0; level < LEVELS; level++) {
        size_t word = (place + 1) / 64;
        if (word >= reader->words[level]) {
            return NONE;
        }
        uint64_t bits =
            reader->bits[level][word] & (UINT64_MAX << ((place + 1) % 64));
        if (bits == 0) {
            place = word;
            continue;
        }
        place = word * 64 + (size_t)__builtin_ctzll(bits);
        while (level-- > 0) {
            bits = reader->bits[level][place];
            place = place * 64 + (size_t)__builtin_ctzll(bits);
        }
        return place;
    }
    return NONE;
}

/* The last live place below PLACE, or NONE. */
static size_t
previous_live(const reader_t *reader, size_t place)
{
    for (size_t level = 0; level < LEVELS; level++) {
        size_t word = place / 64;
        uint64_t below = (UINT64_C(1) << (place % 64)) - 1;
        uint64_t bits = reader->bits[level][word] & below;
        if (bits == 0) {
            place = word;
            continue;
        }
        place = word * 64 + 63 - (size_t)__builtin_clzll(bits);
        while (level-- > 0) {
            bits = reader->bits[level][place];
            place = place * 64 + 63 - (size_t)__builtin_clzll(bits);
        }
        return place;
    }
    return NONE;
}

/* ---- gaps -----------------------------------------------------------------
 */

static void
set_gap(reader_t *reader, size_t place, uint64_t gap)
{
    uint64_t *tree = reader->tree;
    size_t i = reader->width + place;
    gap = gap < INT64_MAX ? gap : INT64_MAX; /* of damaged files */
    for (tree[i] = gap; i > 1; i /= 2) {
        uint64_t larger = tree[i] > tree[i ^ 1] ? tree[i] : tree[i ^ 1];
        if (tree[i / 2] == larger) {
            return;
        }
        tree[i / 2] = larger;
    }
}

/* Whether memory of torch's lies behind the place. */
static bool
is_inside(const place_t *place)
{
    return place->block_end != 0 || place->begins != 0 || place->edge > 0;
}

/* PLACE is live: what lies between it and the next one. */
static void
find_gap(reader_t *reader, size_t place)
{
    const place_t *here = &reader->places[place];
    size_t next = next_live(reader, place);
    uint64_t from =
        here->block_end != 0 ? here->block_end : reader->addresses[place];
    uint64_t to = next != NONE ? reader->addresses[next] : 0;
    set_gap(reader, place, is_inside(here) && to > from ? to - from : 0);
}

/* What stands at PLACE has changed. */
static void
update(reader_t *reader, size_t place)
{
    const place_t *here = &reader->places[place];
    bool live = is_inside(here) || here->ends != 0 || here->edge < 0;
    set_live(reader, place, live);
    if (live) {
        find_gap(reader, place);
    }
    else {
        set_gap(reader, place, 0);
    }
    size_t before = previous_live(reader, place);
    if (before != NONE) {
        find_gap(reader, before);
    }
}

static size_t
place_of(const reader_t *reader, uint64_t address)
{
    size_t low = 0, high = reader->count - 1;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (reader->addresses[middle] < address) {
            low = middle + 1;
        }
        else {
            high = middle;
        }
    }
    return low;
}

/* ---- blocks and segments --------------------------------------------------
 */

static uint64_t
end_of(const mp_allocation_t *life)
{
    return (life->address + life->size + UNIT - 1) / UNIT * UNIT;
}

static bool
counts(const reader_t *reader, const mp_allocation_t *life)
{
    return life->device == reader->device && life->size != 0 &&
           !mp_life_is_over(life) && end_of(life) > life->address;
}

static void
block_begins(reader_t *reader, const mp_allocation_t *life)
{
    size_t place = place_of(reader, life->address);
    place_t *here = &reader->places[place];
    if (!is_inside(here)) {
        size_t before = previous_live(reader, place);
        if (here->ends != 0 || here->edge < 0 || before == NONE ||
            !is_inside(&reader->places[before])) {
            reader->odd = true;
        }
    }
    here->block_end = end_of(life);
    update(reader, place);
}

static void
block_ends(reader_t *reader, const mp_allocation_t *life)
{
    size_t place = place_of(reader, life->address);
    reader->places[place].block_end = 0;
    update(reader, place);
}

/* The segment of EVENT comes, or goes. */
static void
change_segment(reader_t *reader, const mp_event_t *event, bool comes)
{
    bool mapped = event->kind == MP_EVENT_SEGMENT_MAP ||
                  event->kind == MP_EVENT_SEGMENT_UNMAP ||
                  (event->kind == MP_EVENT_SEED_SEGMENT &&
                   (event->flags & MP_FLAG_PENDING) != 0);
    size_t first = place_of(reader, event->addr);
    size_t last = place_of(reader, event->addr + event->size);
    place_t *from = &reader->places[first], *to = &reader->places[last];
    if (mapped) {
        from->edge += comes ? 1 : -1;
        to->edge -= comes ? 1 : -1;
    }
    else if (comes) {
        from->begins++;
        to->ends++;
    }
    else {
        reader->odd |= from->begins == 0 || to->ends == 0;
        from->begins -= from->begins != 0;
        to->ends -= to->ends != 0;
    }
    /* Pages of a segment that was never told to be of pages are gone: where
     * it begins and ends now cannot be told from its neighbours. */
    reader->odd |= (from->begins != 0 && from->edge < 0) ||
                   (to->ends != 0 && to->edge > 0);
    reader->odd |=
        from->edge > 1 || from->edge < -1 || to->edge > 1 || to->edge < -1;
    update(reader, first);
    update(reader, last);
    if (!comes) { /* then nothing may lie in it */
        size_t inside = next_live(reader, first);
        reader->odd |= from->block_end != 0 || (inside < last);
    }
}

static bool
is_segment(const mp_event_t *event)
{
    switch (event->kind) {
    case MP_EVENT_SEGMENT_ALLOC:
    case MP_EVENT_SEGMENT_FREE:
    case MP_EVENT_SEGMENT_MAP:
    case MP_EVENT_SEGMENT_UNMAP:
    case MP_EVENT_SEED_SEGMENT:
        return event->size != 0 && event->addr + event->size > event->addr;
    default:
        return false;
    }
}

/* ---- all of it ------------------------------------------------------------
 */

static int
by_value(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* How many places there may be; 0: no segments at all. */
static size_t
count_places(const reader_t *reader)
{
    const mp_export_t *source = reader->source;
    size_t count = 0;
    for (size_t i = 0; i < source->event_count; i++) {
        const mp_event_t *event = &source->events[i];
        if (event->device == reader->device && is_segment(event)) {
            count += 2;
        }
    }
    for (size_t i = 0; count != 0 && i < source->life_count; i++) {
        count += counts(reader, &source->lives[i]);
    }
    return count;
}

static void
find_places(reader_t *reader)
{
    const mp_export_t *source = reader->source;
    uint64_t *addresses = reader->addresses;
    size_t count = 0;
    for (size_t i = 0; i < source->event_count; i++) {
        const mp_event_t *event = &source->events[i];
        if (event->device == reader->device && is_segment(event)) {
            addresses[count++] = event->addr;
            addresses[count++] = event->addr + event->size;
        }
    }
    for (size_t i = 0; i < source->life_count; i++) {
        if (counts(reader, &source->lives[i])) {
            addresses[count++] = source->lives[i].address;
        }
    }
    qsort(addresses, count, sizeof(*addresses), by_value);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (kept == 0 || addresses[kept - 1] != addresses[i]) {
            addresses[kept++] = addresses[i];
        }
    }
    reader->count = kept;
}

static mp_status_t
reader_open(reader_t *reader, size_t most_places)
{
    const mp_export_t *source = reader->source;
    size_t events = source->event_count + 1;
    reader->addresses = mp_calloc(most_places, sizeof(uint64_t));
    reader->begins = mp_calloc(events, sizeof(uint32_t));
    reader->ends = mp_calloc(events, sizeof(uint32_t));
    if (reader->addresses == NULL || reader->begins == NULL ||
        reader->ends == NULL) {
        return MP_ERR_NOMEM;
    }
    find_places(reader);
    reader->width = 1;
    while (reader->width < reader->count) {
        reader->width *= 2;
    }
    reader->places = mp_calloc(reader->count, sizeof(place_t));
    reader->tree = mp_calloc(2 * reader->width, sizeof(uint64_t));
    bool failed = reader->places == NULL || reader->tree == NULL;
    size_t words = reader->count;
    for (size_t level = 0; level < LEVELS; level++) {
        words = words / 64 + 1;
        reader->words[level] = words;
        reader->bits[level] = mp_calloc(words, sizeof(uint64_t));
        failed |= reader->bits[level] == NULL;
    }
    for (size_t i = 0; i < events; i++) {
        reader->begins[i] = reader->ends[i] = MP_NO_INDEX;
    }
    for (size_t i = 0; i < source->life_count; i++) {
        const mp_allocation_t *life = &source->lives[i];
        if (!counts(reader, life)) {
            continue;
        }
        if (life->born_event >= 0) {
            reader->begins[life->born_event] = (uint32_t)i;
        }
        if (life->completed_event >= 0) {
            reader->ends[life->completed_event] = (uint32_t)i;
        }
    }
    return failed ? MP_ERR_NOMEM : MP_OK;
}

static void
reader_close(reader_t *reader)
{
    mp_free(reader->addresses);
    mp_free(reader->places);
    mp_free(reader->tree);
    mp_free(reader->begins);
    mp_free(reader->ends);
    for (size_t level = 0; level < LEVELS; level++) {
        mp_free(reader->bits[level]);
    }
}

/* The state when the recording began. */
static void
start(reader_t *reader)
{
    const mp_export_t *source = reader->source;
    for (size_t i = 0; i < source->event_count; i++) {
        const mp_event_t *event = &source->events[i];
        if (event->device == reader->device &&
            event->kind == MP_EVENT_SEED_SEGMENT && is_segment(event)) {
            change_segment(reader, event, true);
        }
    }
    for (size_t i = 0; i < source->life_count; i++) {
        if (source->lives[i].born_event < 0 &&
            counts(reader, &source->lives[i])) {
            block_begins(reader, &source->lives[i]);
        }
    }
}

static void
apply(reader_t *reader, size_t i)
{
    const mp_export_t *source = reader->source;
    const mp_event_t *event = &source->events[i];
    if (reader->ends[i] != MP_NO_INDEX) {
        block_ends(reader, &source->lives[reader->ends[i]]);
    }
    if (event->device == reader->device && is_segment(event) &&
        event->kind != MP_EVENT_SEED_SEGMENT) {
        change_segment(reader, event,
                       event->kind == MP_EVENT_SEGMENT_ALLOC ||
                           event->kind == MP_EVENT_SEGMENT_MAP);
    }
    if (reader->begins[i] != MP_NO_INDEX) {
        block_begins(reader, &source->lives[reader->begins[i]]);
    }
}

/* Of LEVELS[FROM, TO) those that count, to where *KEPT says. */
static void
keep_bunch(mp_free_level_t *levels, size_t from, size_t to, size_t *kept)
{
    size_t low = from, high = from;
    for (size_t i = from; i < to; i++) {
        low = levels[i].bytes < levels[low].bytes ? i : low;
        high = levels[i].bytes > levels[high].bytes ? i : high;
    }
    for (size_t i = from; i < to; i++) { /* never above what is still read */
        if (i == from || i == low || i == high || i + 1 == to) {
            levels[(*kept)++] = levels[i];
        }
    }
}

static size_t
thin_out(mp_free_level_t *levels, size_t count, size_t most)
{
    if (count <= most) {
        return count;
    }
    size_t bunch = count / (most / 4 + 1) + 1, kept = 0;
    for (size_t from = 0; from < count; from += bunch) {
        keep_bunch(levels, from, from + bunch < count ? from + bunch : count,
                   &kept);
    }
    return kept;
}

static mp_status_t
walk(reader_t *reader, size_t most, mp_free_level_t **out, size_t *count)
{
    size_t room = 1024, used = 0;
    mp_free_level_t *levels = mp_calloc(room, sizeof(*levels));
    if (levels == NULL) {
        return MP_ERR_NOMEM;
    }
    start(reader);
    levels[used++] = (mp_free_level_t){-1, (int64_t)reader->tree[1]};
    for (size_t i = 0; i < reader->source->event_count && !reader->odd; i++) {
        apply(reader, i);
        int64_t bytes = (int64_t)reader->tree[1];
        if (bytes == levels[used - 1].bytes) {
            continue;
        }
        if (used == room) {
            room *= 2;
            mp_free_level_t *grown =
                mp_realloc(levels, room * sizeof(*levels));
            if (grown == NULL) {
                mp_free(levels);
                return MP_ERR_NOMEM;
            }
            levels = grown;
        }
        levels[used++] = (mp_free_level_t){(int64_t)i, bytes};
    }
    if (reader->odd) {
        mp_free(levels);
        return MP_OK;
    }
    *count = thin_out(levels, used, most);
    *out = levels;
    return MP_OK;
}

mp_status_t
mp_free_blocks_build(const mp_export_t *source, int16_t device, size_t most,
                     mp_free_level_t **out, size_t *count)
{
    *out = NULL;
    *count = 0;
    reader_t reader = {.source = source, .device = device};
    size_t most_places = count_places(&reader);
    if (most_places == 0) {
        return MP_OK;
    }
    mp_status_t status = reader_open(&reader, most_places);
    if (status == MP_OK) {
        status = walk(&reader, most, out, count);
    }
    reader_close(&reader);
    return status;
}
