/* ranges.h - stretches of a device's address space, sorted by address.
 *
 * Knows nothing about profiling.  Made for segments: taken whole, or (where
 * pages are mapped and unmapped one by one) taken in pieces.  Not
 * thread-safe. */
#ifndef MP_RANGES_H
#define MP_RANGES_H

#include "common.h"

typedef struct {
    uint64_t begin;
    uint64_t end; /* behind the last byte */
    uint64_t stream;
    uint16_t pool;
    bool mapped; /* part of an expandable segment */
} mp_range_t;

typedef struct mp_ranges mp_ranges_t;

mp_ranges_t *mp_ranges_new(void);         /* NULL: out of memory */
void mp_ranges_free(mp_ranges_t *ranges); /* accepts NULL */

/* Add RANGE.  It stays apart from its neighbours. */
mp_status_t mp_ranges_put(mp_ranges_t *ranges, const mp_range_t *range);

/* Remove SIZE bytes from BEGIN on, wherever they lie.  *TAKEN: how many of
 * them were there.  MP_ERR_NOMEM (a range had to be split): unchanged. */
mp_status_t mp_ranges_take(mp_ranges_t *ranges, uint64_t begin, uint64_t size,
                           uint64_t *taken);

size_t mp_ranges_count(const mp_ranges_t *ranges);
const mp_range_t *mp_ranges_at(const mp_ranges_t *ranges, size_t index);

#endif
