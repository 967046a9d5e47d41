/* export_timeline.c - torch.profiler's memory timeline, in its own shapes.
 *
 *   [times, sizes]   microseconds, and [0, bytes of each of eight categories]
 *                    after all events of that microsecond
 *   raw              [nanoseconds, action, bytes, category] of each event
 *
 * As in torch, what is older than the recording has the time -1, and its
 * sample has the time of the next one; events are in order of time, and at
 * one time births come before deaths.  Threads read the clock before they
 * enter the log, so times are made never to fall: the order of the log is the
 * truth.  torch's action 3, a change of category, is never written: here the
 * category of a life never changes. */
#include "export.h"
#include "json.h"
#include "life_walk.h"
#include "mem.h"

enum {
    PREEXISTING = 1,
    CREATE = 2,
    DESTROY = 4,
    CATEGORIES = MP_CATEGORY_UNKNOWN + 1 /* those that torch knows */
};

/* Lives that begin or end at one time. */
typedef struct {
    const mp_allocation_t **lives;
    size_t count, capacity;
} bunch_t;

typedef struct {
    const mp_export_t *source;
    int16_t device;
    mp_life_walk_t lives;
    size_t event;  /* the next one */
    int64_t clock; /* of the events so far */
    int64_t time_ns;
    bunch_t born, died; /* at time_ns */
} walk_t;

static mp_status_t
bunch_add(bunch_t *bunch, const mp_allocation_t *life)
{
    if (bunch->count == bunch->capacity) {
        size_t capacity = bunch->capacity == 0 ? 64 : bunch->capacity * 2;
        const mp_allocation_t **larger =
            mp_realloc(bunch->lives, capacity * sizeof(*larger));
        if (larger == NULL) {
            return MP_ERR_NOMEM;
        }
        bunch->lives = larger;
        bunch->capacity = capacity;
    }
    bunch->lives[bunch->count++] = life;
    return MP_OK;
}

static void
walk_rewind(walk_t *walk)
{
    walk->event = 0;
    walk->lives.next = 0;
    walk->clock = INT64_MIN;
}

/* Fill BORN and DIED with what changes next, at one time; both are empty at
 * the end. */
static mp_status_t
walk_next(walk_t *walk)
{
    const mp_export_t *source = walk->source;
    mp_status_t status = MP_OK;
    walk->born.count = walk->died.count = 0;
    for (; walk->event < source->event_count; walk->event++) {
        const mp_event_t *event = &source->events[walk->event];
        if (event->time_ns > walk->clock) {
            walk->clock = event->time_ns;
        }
        if (event->device != walk->device ||
            !mp_event_is_memory(event->kind)) {
            continue;
        }
        const mp_allocation_t *died =
            mp_life_walk_died(&walk->lives, walk->event);
        const mp_allocation_t *born =
            mp_life_walk_born(&walk->lives, walk->event);
        if (died == NULL && born == NULL) {
            continue;
        }
        if (walk->born.count + walk->died.count == 0) {
            walk->time_ns = walk->clock;
        }
        else if (walk->clock != walk->time_ns) {
            return MP_OK; /* this event is the next call's */
        }
        if (died != NULL) {
            status = bunch_add(&walk->died, died);
        }
        if (status == MP_OK && born != NULL) {
            status = bunch_add(&walk->born, born);
        }
        if (status != MP_OK) {
            return status;
        }
    }
    return MP_OK;
}

static bool
walk_is_over(const walk_t *walk)
{
    return walk->born.count + walk->died.count == 0;
}

static bool
is_older(const walk_t *walk, const mp_allocation_t *life)
{
    return life->device == walk->device && life->born_event < 0;
}

/* ---- times ----------------------------------------------------------------
 */

/* Since 1970, as torch counts. */
static int64_t
wall_ns(const walk_t *walk)
{
    int64_t time = mp_export_wall(walk->source, walk->time_ns);
    return time < 0 ? 0 : time;
}

/* int(TIME / 1000) as Python divides: the double that is nearest to the
 * quotient may be the next whole number.  At today's dates doubles are a
 * quarter of a microsecond apart, so one time in eight is rounded up. */
static int64_t
microseconds(int64_t time)
{
    uint64_t whole = (uint64_t)time / 1000, rest = (uint64_t)time % 1000;
    if (whole == 0) {
        return 0;
    }
    int exponent = 63 - __builtin_clzll(whole);
    if (exponent > 51) { /* hundreds of years away */
        return (int64_t)whole;
    }
    /* Doubles here are 2^(exponent - 52) apart; the next whole number is the
     * nearest if it is at most half of that away.  A tie goes there as well:
     * its last bit is 0. */
    bool up = (1000 - rest) << (53 - exponent) <= 1000;
    return (int64_t)(whole + up);
}

/* ---- [times, sizes] -------------------------------------------------------
 */

typedef struct {
    mp_outfile_t *file;
    int64_t bytes[CATEGORIES];
    size_t count; /* samples written */
} series_t;

/* Sizes in a damaged file may be anything: sums wrap, never overflow. */
static void
count_life(series_t *series, const mp_allocation_t *life, bool gone)
{
    int64_t *bytes = &series->bytes[mp_export_category(life->category)];
    uint64_t change = gone ? 0 - life->size : life->size;
    *bytes = (int64_t)((uint64_t)*bytes + change);
}

static void
write_sizes(series_t *series)
{
    mp_outfile_text(series->file, series->count++ > 0 ? ",\n[0" : "[0");
    for (size_t i = 0; i < CATEGORIES; i++) {
        mp_outfile_byte(series->file, ',');
        mp_json_int(series->file, series->bytes[i]);
    }
    mp_outfile_byte(series->file, ']');
}

static void
write_time(series_t *series, int64_t time)
{
    if (series->count++ > 0) {
        mp_outfile_byte(series->file, ',');
    }
    mp_json_int(series->file, time);
}

/* One of the two lists; both have as many elements. */
static mp_status_t
write_series(walk_t *walk, mp_outfile_t *file, bool sizes)
{
    series_t series = {.file = file};
    const mp_export_t *source = walk->source;
    walk_rewind(walk);
    bool any_older = false;
    for (size_t i = 0; i < source->life_count; i++) {
        if (is_older(walk, &source->lives[i])) {
            count_life(&series, &source->lives[i], false);
            any_older = true;
        }
    }
    mp_status_t status = walk_next(walk);
    if (any_older) {
        if (walk_is_over(walk)) { /* nothing follows: the start it is */
            walk->time_ns = source->start_ns;
        }
        if (sizes) {
            write_sizes(&series);
        }
        else {
            write_time(&series, microseconds(wall_ns(walk)));
        }
    }
    while (status == MP_OK && !walk_is_over(walk)) {
        int64_t now = microseconds(wall_ns(walk));
        if (!sizes) {
            write_time(&series, now);
        }
        do { /* all of this microsecond */
            for (size_t i = 0; i < walk->born.count; i++) {
                count_life(&series, walk->born.lives[i], false);
            }
            for (size_t i = 0; i < walk->died.count; i++) {
                count_life(&series, walk->died.lives[i], true);
            }
            status = walk_next(walk);
        } while (status == MP_OK && !walk_is_over(walk) &&
                 microseconds(wall_ns(walk)) == now);
        if (sizes) {
            write_sizes(&series);
        }
        if (status == MP_OK) {
            status = mp_outfile_status(file);
        }
    }
    return status;
}

/* ---- raw ------------------------------------------------------------------
 */

static void
write_row(mp_outfile_t *file, bool *any, int64_t time, int action,
          const mp_allocation_t *life)
{
    int64_t bytes = (int64_t)life->size;
    mp_outfile_text(file, *any ? ",\n[" : "[");
    *any = true;
    mp_json_int(file, time);
    mp_outfile_byte(file, ',');
    mp_json_int(file, action);
    mp_outfile_byte(file, ',');
    mp_json_int(file,
                action == DESTROY ? (int64_t)(0 - (uint64_t)bytes) : bytes);
    mp_outfile_byte(file, ',');
    mp_json_int(file, mp_export_category(life->category));
    mp_outfile_byte(file, ']');
}

static mp_status_t
write_raw(walk_t *walk, mp_outfile_t *file)
{
    const mp_export_t *source = walk->source;
    bool any = false;
    mp_outfile_byte(file, '[');
    for (size_t i = 0; i < source->life_count; i++) {
        if (is_older(walk, &source->lives[i])) {
            write_row(file, &any, -1, PREEXISTING, &source->lives[i]);
        }
    }
    walk_rewind(walk);
    mp_status_t status = walk_next(walk);
    while (status == MP_OK && !walk_is_over(walk)) {
        int64_t now = wall_ns(walk);
        for (size_t i = 0; i < walk->born.count; i++) {
            write_row(file, &any, now, CREATE, walk->born.lives[i]);
        }
        for (size_t i = 0; i < walk->died.count; i++) {
            write_row(file, &any, now, DESTROY, walk->died.lives[i]);
        }
        status = walk_next(walk);
        if (status == MP_OK) {
            status = mp_outfile_status(file);
        }
    }
    mp_outfile_byte(file, ']');
    return status;
}

mp_status_t
mp_export_timeline(const mp_export_t *source, int16_t device, bool raw,
                   const char *path, bool gzip, int *saved_errno)
{
    walk_t walk = {.source = source, .device = device};
    mp_outfile_t *file;
    mp_status_t status = mp_outfile_open(path, gzip, &file, saved_errno);
    if (status != MP_OK) {
        return status;
    }
    status = mp_life_walk_open(&walk.lives, source->event_count, source->lives,
                               source->life_count, device);
    if (status == MP_OK && raw) {
        status = write_raw(&walk, file);
    }
    else if (status == MP_OK) {
        mp_outfile_text(file, "[[");
        status = write_series(&walk, file, false);
        mp_outfile_text(file, "],\n[");
        if (status == MP_OK) {
            status = write_series(&walk, file, true);
        }
        mp_outfile_text(file, "]]");
    }
    mp_life_walk_close(&walk.lives);
    mp_free(walk.born.lives);
    mp_free(walk.died.lives);
    return mp_outfile_close(file, status, saved_errno);
}
