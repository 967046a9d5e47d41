/* levels.h - how high the memory of one device stood, for drawing.
 *
 * The bytes of each category, and what was taken from the driver, at so many
 * moments as can be drawn: of each bunch of changes the first, the lowest and
 * the highest, the highest of what was taken, and the last.  Beside them the
 * peak, and what given stretches reached.
 *
 * Reads events and lives; knows nothing of files. */
#ifndef MP_LEVELS_H
#define MP_LEVELS_H

#include "export.h"
#include "life_walk.h"

typedef struct {
    int64_t event; /* after which it holds; -1: the start */
    int64_t allocated;
    int64_t reserved;
    int64_t category[MP_CATEGORY_COUNT]; /* the sum is allocated */
} mp_level_t;

/* A stretch of events, both included. */
typedef struct {
    int64_t label; /* the caller's */
    int64_t begin_ns, end_ns;
    int64_t begin_event, end_event;
} mp_span_t;

/* Stretches in order and apart. */
typedef struct {
    const mp_span_t *spans;
    size_t count;
} mp_spans_t;

#define MP_SPAN_LISTS 2

/* Allocated bytes in a stretch. */
typedef struct {
    int64_t begin, end, peak;
} mp_span_level_t;

typedef struct {
    mp_level_t *samples; /* the first is that of the start */
    size_t count;
    int64_t peak;
    int64_t peak_event;           /* the first of that height; -1: start */
    int64_t high_begin, high_end; /* around it: events between which nearly
                                     as much was allocated */
    mp_span_level_t *span_levels[MP_SPAN_LISTS]; /* of each list, in order */
} mp_levels_t;

/* Of DEVICE, which WALK is opened for.  At most about 5 * BUNCHES samples.
 * MP_ERR_NOMEM: *OUT is empty. */
mp_status_t mp_levels_build(const mp_export_t *source, int16_t device,
                            mp_life_walk_t *walk, size_t bunches,
                            const mp_spans_t lists[MP_SPAN_LISTS],
                            mp_levels_t *out);
void mp_levels_clear(mp_levels_t *levels); /* frees, zeroes */

#endif
