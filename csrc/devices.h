/* devices.h - the devices seen, and what is counted of each.
 *
 * A device has its live blocks (address -> row), its segments, its counters,
 * and its high-water marks of every open scope.  Knows nothing of what a
 * block's life is, nor of steps but where its present row is.
 *
 * Part of a tracker: called by tracker.c, segments.c, steps.c and handover.c
 * only, under whatever serialises the tracker (for a session's follower that
 * is the session lock).  What every event needs is inline. */
#ifndef MP_DEVICES_H
#define MP_DEVICES_H

#include "counters.h"
#include "event.h"
#include "ranges.h"
#include "table.h"

#define MP_MAX_SCOPES 64

typedef struct {
    int16_t id;
    bool step_open;   /* steps.c's: its present row is open */
    size_t step_row;  /* steps.c's */
    mp_table_t *live; /* address -> row, until the free is completed */
    mp_ranges_t *segments;
    mp_device_stats_t stats;
    mp_device_stats_t scopes[MP_MAX_SCOPES]; /* of the open scopes */
} mp_device_t;

/* All zero: none seen. */
typedef struct mp_devices {
    mp_device_t **at; /* index 0: CPU, 1 + n: CUDA n; NULL: not seen */
    size_t capacity;
    uint64_t open_scopes; /* a bit each */
} mp_devices_t;

void mp_devices_clear(mp_devices_t *devices); /* frees, zeroes */

/* NULL: not seen. */
static inline mp_device_t *
mp_devices_find(const mp_devices_t *devices, int16_t id)
{
    size_t index = (size_t)(id + 1);
    if (id < MP_DEVICE_CPU || index >= devices->capacity) {
        return NULL;
    }
    return devices->at[index];
}

/* A device not seen before; ID is MP_DEVICE_CPU or more.  NULL: out of
 * memory, nothing has changed. */
mp_device_t *mp_devices_add(mp_devices_t *devices, int16_t id);

/* Scopes: high-water marks of nested stretches.  Opening one never disturbs
 * another; they are closed in any order.  MP_ERR_FULL: MP_MAX_SCOPES are
 * open. */
mp_status_t mp_devices_scope_open(mp_devices_t *devices, mp_scope_t *scope);
/* *STATS gets what DEVICE reached since.  MP_ERR_ARG: no such device, or the
 * scope is not open. */
mp_status_t mp_devices_scope_peak(const mp_devices_t *devices,
                                  mp_scope_t scope, int16_t device,
                                  mp_device_stats_t *stats);
void mp_devices_scope_close(mp_devices_t *devices, mp_scope_t scope);

/* ---- counting ----------------------------------------------------------- */

static inline void
mp_raise_peak(int64_t *peak, int64_t value)
{
    if (value > *peak) {
        *peak = value;
    }
}

/* Sizes in a damaged file may be anything: sums wrap, never overflow. */
static inline int64_t
mp_sum(int64_t value, int64_t delta)
{
    return (int64_t)((uint64_t)value + (uint64_t)delta);
}

static inline int64_t
mp_minus(uint64_t bytes)
{
    return (int64_t)(0 - bytes);
}

/* Add DELTA to the counter NAME of DEVICE, its high-water marks included. */
#define MP_STAT_CHANGE(devices, device, name, delta)                          \
    do {                                                                      \
        mp_stat_t *stat_ = &(device)->stats.name;                             \
        int64_t delta_ = (delta);                                             \
        stat_->current = mp_sum(stat_->current, delta_);                      \
        if (delta_ > 0) {                                                     \
            stat_->total = mp_sum(stat_->total, delta_);                      \
            mp_raise_peak(&stat_->peak, stat_->current);                      \
            for (uint64_t open_ = (devices)->open_scopes; open_ != 0;         \
                 open_ &= open_ - 1) {                                        \
                int bit_ = __builtin_ctzll(open_);                            \
                mp_raise_peak(&(device)->scopes[bit_].name.peak,              \
                              stat_->current);                                \
            }                                                                 \
        }                                                                     \
    } while (0)

#endif
