/* ledger.h - what the process holds of the driver, whoever asked for it.
 *
 * Replays DRIVER_* events: one row a life of what was taken, the live ones by
 * family and address, handles with their references, gaps in the record.
 * What lies in a segment of torch's is marked, so that nobody counts it
 * twice.  Knows nothing of CUPTI, of names or of torch's blocks.  What was
 * taken before the first event is unknown here, always.
 *
 * Part of a tracker: made with the first driver event, called by tracker.c
 * and handover.c only, under whatever serialises the tracker. */
#ifndef MP_LEDGER_H
#define MP_LEDGER_H

#include "event.h"

typedef struct mp_ledger mp_ledger_t;

/* One life: 104 bytes, handed to NumPy as it is. */
typedef struct {
    int64_t born_event; /* -1: older than the recording */
    int64_t died_event; /* -1: held at the end */
    int64_t born_ns;    /* -1: as born_event */
    int64_t died_ns;    /* -1: as died_event */
    uint64_t address;   /* or a handle */
    uint64_t size;      /* bytes as the call said them */
    uint64_t handle;    /* MAPPING: what is mapped; else the context, or 0 */
    uint64_t token;     /* the number of the DRIVER_FREE that ended it */
    uint32_t thread;
    uint32_t op;
    uint32_t module;
    uint32_t stack;
    uint32_t owner; /* string id: the library that asked */
    int32_t born_step;
    int32_t died_step;
    uint32_t references; /* of a handle: its own, and one a mapping */
    int16_t device;      /* MP_DEVICE_CPU: host memory */
    uint16_t flags;      /* MP_FLAG_* at birth, MP_FLAG_TORCH */
    uint8_t group;       /* mp_driver_group_t */
    uint8_t phase;
    uint8_t is_torch; /* lies in a segment of torch's */
    uint8_t unused;
} mp_driver_life_t;

_Static_assert(sizeof(mp_driver_life_t) == 104, "the NumPy dtype says so");

/* The bytes that a life stands for in a sum. */
static inline uint64_t
mp_driver_bytes(const mp_driver_life_t *row)
{
    return row->flags & (MP_FLAG_FOREIGN | MP_FLAG_GRAPH) ? 0 : row->size;
}

/* A stretch in which nobody listened: 40 bytes, for NumPy. */
typedef struct {
    int64_t begin_event;
    int64_t end_event; /* -1: to the end */
    int64_t begin_ns;
    int64_t end_ns;
    uint32_t reason; /* string id */
    uint32_t unused;
} mp_driver_gap_t;

_Static_assert(sizeof(mp_driver_gap_t) == 40, "the NumPy dtype says so");

/* What did not fit together, and failures.  X(NAME, text) */
#define MP_LEDGER_COUNT_LIST(X)                                               \
    X(unknown_gives, "given back, but taken before the ledger")               \
    X(replaced, "taken where something was whose end nobody saw")             \
    X(disagreements, "in a segment of torch's, but another library asked")    \
    X(failed_gives, "given back in vain: put back")                           \
    X(lost_put_backs, "failed to be given back, and no longer known")         \
    X(ooms, "the driver had no memory left")                                  \
    X(gaps, "stretches in which nobody listened")

typedef struct {
#define X(name, text) uint64_t name;
    MP_LEDGER_COUNT_LIST(X)
#undef X
} mp_ledger_counts_t;

/* KEEP_DEAD: a row for every life; else rows are used again. */
mp_status_t mp_ledger_new(bool keep_dead, mp_ledger_t **out);
void mp_ledger_free(mp_ledger_t *ledger); /* accepts NULL */

/* Apply a DRIVER_* event, the tracker's event INDEX, in step STEP.
 * MP_ERR_NOMEM, MP_ERR_FULL: it was not applied. */
mp_status_t mp_ledger_apply(mp_ledger_t *ledger, const mp_event_t *event,
                            int64_t index, int32_t step);

/* torch tells of a segment, or of pages mapped into one. */
void mp_ledger_segment_born(mp_ledger_t *ledger, const mp_event_t *event);
/* Only in a gap does that end what lies there: else the driver's own call
 * was seen. */
void mp_ledger_segment_died(mp_ledger_t *ledger, const mp_event_t *event,
                            int64_t index, int32_t step);

/* Rows, births in order, the ones older than the start first (KEEP_DEAD).
 * NULL as LEDGER: none. */
const mp_driver_life_t *mp_ledger_rows(const mp_ledger_t *ledger,
                                       size_t *count);
const mp_driver_gap_t *mp_ledger_gaps(const mp_ledger_t *ledger,
                                      size_t *count);
void mp_ledger_counts(const mp_ledger_t *ledger, mp_ledger_counts_t *counts);

size_t mp_ledger_bytes(const mp_ledger_t *ledger); /* memory held */

/* The next live entry as an event, from *CURSOR = 0 on; false: there is no
 * other.  BLANK has what the event does not fill in. */
bool mp_ledger_next_seed(const mp_ledger_t *ledger, size_t *cursor,
                         const mp_event_t *blank, mp_event_t *seed);
/* Likewise the contexts whose device is known. */
bool mp_ledger_next_context(const mp_ledger_t *ledger, size_t *cursor,
                            const mp_event_t *blank, mp_event_t *event);
/* The gap that is open, as an event; false: there is none. */
bool mp_ledger_open_gap(const mp_ledger_t *ledger, const mp_event_t *blank,
                        mp_event_t *gap);

#endif
