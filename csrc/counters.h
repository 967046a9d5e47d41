/* counters.h - what is counted: of a device, of a step, of what went wrong.
 *
 * Rows and lists only, for whoever counts (tracker, devices, steps), keeps
 * (session) or shows them.  Holds no state. */
#ifndef MP_COUNTERS_H
#define MP_COUNTERS_H

#include "common.h"

/* What is counted per device.  X(NAME, text) */
#define MP_STAT_LIST(X)                                                       \
    X(requested_bytes, "bytes asked for, in blocks whose free was not asked") \
    X(active_bytes, "the same, until the free is completed")                  \
    X(reserved_bytes, "bytes in segments taken from the driver")              \
    X(allocated_blocks, "blocks whose free was not asked")                    \
    X(active_blocks, "blocks whose free is not completed")                    \
    X(segments, "segments")

typedef struct {
    int64_t current;
    int64_t peak;  /* highest current */
    int64_t total; /* sum of all increases */
} mp_stat_t;

typedef struct {
#define X(name, text) mp_stat_t name;
    MP_STAT_LIST(X)
#undef X
} mp_device_stats_t;

/* A step on one device: its own high-water marks. */
typedef struct {
    int32_t number; /* of the step */
    int16_t device;
    uint16_t recorded; /* 1: inside a recording window */
    int64_t begin_event;
    int64_t end_event; /* -1: still open */
    int64_t begin_ns;
    int64_t end_ns;
    int64_t requested_bytes_at_end;
    int64_t requested_bytes_peak;
    int64_t active_bytes_peak;
    int64_t reserved_bytes_peak;
    int64_t allocated_total; /* bytes allocated in it */
} mp_step_stats_t;

/* An open stretch with high-water marks of its own. */
typedef uint32_t mp_scope_t;

/* Defects seen.  X(NAME, text) */
#define MP_DEFECT_LIST(X)                                                     \
    X(unmatched_frees, "frees of CUDA blocks nobody saw born")                \
    X(foreign_frees, "frees of CPU blocks older than the recording")          \
    X(replaced_blocks, "allocations at the address of a live block")          \
    X(unmatched_segments, "segments whose birth or free nobody saw")          \
    X(unapplied_events, "events lost for want of memory or budget")

typedef struct {
#define X(name, text) uint64_t name;
    MP_DEFECT_LIST(X)
#undef X
} mp_defects_t;

#endif
