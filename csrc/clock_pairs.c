/* clock_pairs.c - the times of another clock on ours. */
#include "clock_pairs.h"

#include "clock.h"

#include <string.h>

#define READINGS 5
#define SHORTEST 1000000 /* ns: two pairs that are closer tell no rate */

bool
mp_clock_pair_read(int (*read)(uint64_t *time), mp_clock_pair_t *pair)
{
    pair->width = INT64_MAX;
    for (int i = 0; i < READINGS; i++) {
        uint64_t theirs = 0;
        int64_t before = mp_clock_now();
        if (read(&theirs) != 0) {
            return false;
        }
        int64_t width = mp_clock_now() - before;
        if (width < pair->width) {
            *pair = (mp_clock_pair_t){before + width / 2, theirs, width};
        }
    }
    return true;
}

/* On the line through A and B; of pairs that tell no rate: a nanosecond is a
 * nanosecond. */
static int64_t
on_line(const mp_clock_pair_t *a, const mp_clock_pair_t *b, uint64_t theirs)
{
    double away = (double)(int64_t)(theirs - a->theirs);
    double rate = 1.0;
    if (b->ours - a->ours >= SHORTEST && b->theirs > a->theirs) {
        rate = (double)(b->ours - a->ours) / (double)(b->theirs - a->theirs);
    }
    return a->ours + (int64_t)(away * rate);
}

/* The first pair of the two that a time lies between, or is nearest to. */
static size_t
segment(const mp_clock_pairs_t *pairs, uint64_t theirs)
{
    size_t first = 0;
    while (first + 2 < pairs->count &&
           pairs->pairs[first + 1].theirs <= theirs) {
        first++;
    }
    return first;
}

void
mp_clock_pairs_add(mp_clock_pairs_t *pairs, const mp_clock_pair_t *pair)
{
    size_t count = pairs->count;
    if (count > 0 && pair->ours <= pairs->pairs[count - 1].ours) {
        return;
    }
    if (pair->width > pairs->widest) {
        pairs->widest = pair->width;
    }
    if (count >= 2) {
        const mp_clock_pair_t *middle = &pairs->pairs[count - 1];
        int64_t bend =
            on_line(&pairs->pairs[count - 2], pair, middle->theirs) -
            middle->ours;
        bend = bend < 0 ? -bend : bend;
        pairs->bend = bend > pairs->bend ? bend : pairs->bend;
    }
    if (count == MP_CLOCK_PAIRS) {
        memmove(&pairs->pairs[0], &pairs->pairs[1],
                (count - 1) * sizeof(pairs->pairs[0]));
        count--;
    }
    pairs->pairs[count] = *pair;
    pairs->count = count + 1;
}

int64_t
mp_clock_pairs_ours(const mp_clock_pairs_t *pairs, uint64_t theirs)
{
    if (pairs->count == 0) {
        return (int64_t)theirs;
    }
    if (pairs->count == 1) {
        return on_line(&pairs->pairs[0], &pairs->pairs[0], theirs);
    }
    size_t first = segment(pairs, theirs);
    return on_line(&pairs->pairs[first], &pairs->pairs[first + 1], theirs);
}

int64_t
mp_clock_pairs_error(const mp_clock_pairs_t *pairs)
{
    return (pairs->widest + 1) / 2 + pairs->bend;
}
