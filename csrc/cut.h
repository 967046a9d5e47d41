/* cut.h - the largest of many, without sorting them.
 *
 * Count all values first, then ask of each, in any one order, whether it is
 * among the largest `keep`.  Values are told apart to a sixteenth; of the
 * last that find room the first asked do.  Holds 4 KiB, no memory. */
#ifndef MP_CUT_H
#define MP_CUT_H

#include "common.h"

#define MP_CUT_CLASSES (64 * 16)

/* All zero: nothing counted. */
typedef struct {
    uint32_t counts[MP_CUT_CLASSES];
    size_t lowest; /* class that has room for some only */
    size_t room;   /* for so many of them */
    uint64_t left_out;
} mp_cut_t;

static inline size_t
mp_cut_class(uint64_t value)
{
    if (value < 16) {
        return (size_t)value;
    }
    unsigned int exponent = 63 - (unsigned int)__builtin_clzll(value);
    return (size_t)exponent * 16 + ((value >> (exponent - 4)) & 15);
}

static inline void
mp_cut_count(mp_cut_t *cut, uint64_t value)
{
    cut->counts[mp_cut_class(value)]++;
}

/* All are counted: KEEP of them may stay. */
static inline void
mp_cut_decide(mp_cut_t *cut, size_t keep)
{
    cut->lowest = MP_CUT_CLASSES;
    while (cut->lowest > 0 && cut->counts[cut->lowest - 1] <= keep) {
        keep -= cut->counts[--cut->lowest];
    }
    cut->room = keep;
}

static inline bool
mp_cut_keeps(mp_cut_t *cut, uint64_t value)
{
    size_t of = mp_cut_class(value);
    if (of >= cut->lowest) {
        return true;
    }
    if (of + 1 == cut->lowest && cut->room > 0) {
        cut->room--;
        return true;
    }
    cut->left_out++;
    return false;
}

#endif
