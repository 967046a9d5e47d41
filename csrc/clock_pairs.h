/* clock_pairs.h - the times of another clock on ours, by pairs that were read
 * together.
 *
 * The other clock may run at another rate, and may be set while we look:
 * times are placed between the two pairs around them.  Not thread-safe: the
 * owner serialises access. */
#ifndef MP_CLOCK_PAIRS_H
#define MP_CLOCK_PAIRS_H

#include "common.h"

#define MP_CLOCK_PAIRS 64

typedef struct {
    int64_t ours;    /* CLOCK_MONOTONIC, the middle of the reading */
    uint64_t theirs; /* in the other's units */
    int64_t width;   /* nanoseconds that the reading took */
} mp_clock_pair_t;

/* All zero: none. */
typedef struct {
    mp_clock_pair_t pairs[MP_CLOCK_PAIRS]; /* the last ones, in order */
    size_t count;
    int64_t widest;
    int64_t bend; /* how far a pair lay from the line between its neighbours */
} mp_clock_pairs_t;

/* Read both clocks a few times; the closest reading.  READ answers 0, or the
 * other clock cannot be read: false. */
bool mp_clock_pair_read(int (*read)(uint64_t *time), mp_clock_pair_t *pair);

/* Add a later pair; one that does not come later is left out.  The oldest goes
 * if there is no room. */
void mp_clock_pairs_add(mp_clock_pairs_t *pairs, const mp_clock_pair_t *pair);

/* A time of the other clock on ours; before the first pair and behind the last
 * at the rate of their neighbours, of a single pair in nanoseconds. */
int64_t mp_clock_pairs_ours(const mp_clock_pairs_t *pairs, uint64_t theirs);

/* How far that may be wrong, in nanoseconds: half of the widest reading, and
 * the largest bend, which is what a clock that was set shows as. */
int64_t mp_clock_pairs_error(const mp_clock_pairs_t *pairs);

#endif
