/* snapshot_state.h - one device of a snapshot: its trace, and its state.
 *
 * The state at the end is given, that at the beginning is what is left of it
 * after going back through the trace.  Knows nothing of pickles. */
#ifndef MP_SNAPSHOT_STATE_H
#define MP_SNAPSHOT_STATE_H

#include "event.h"
#include "ranges.h"
#include "table.h"

/* An entry of a trace, or a block, and what was told of it. */
typedef struct {
    mp_event_t event;
    uint32_t forward_stack; /* or MP_NO_INDEX */
    uint32_t part;          /* which stretch between two steps it is of */
    uint8_t category;       /* 1 + its number; 0: not told */
} mp_told_t;

typedef struct {
    int16_t device;
    bool is_cut;
    mp_told_t *entries; /* owned, as all */
    size_t count;
    size_t parted; /* entries whose part is known */
    mp_told_t *blocks;
    bool *gone; /* of each block: it came later */
    size_t block_count, block_capacity;
    mp_table_t *there; /* address -> block */
    mp_ranges_t *segments;
    uint64_t older, guessed, left_out; /* import_snapshot.h */
} mp_trace_t;

/* Takes an event; a failure ends the writing and is returned. */
typedef mp_status_t (*mp_told_emit_t)(void *context, const mp_event_t *event);

/* A block, or segment, of the state at the end; of two blocks at one address
 * the first counts. */
mp_status_t mp_trace_add_block(mp_trace_t *trace, const mp_told_t *told);
mp_status_t mp_trace_add_segment(mp_trace_t *trace, const mp_range_t *range);

/* Make it the state at the beginning.  STACKS: the stack of a free is that of
 * its block's birth. */
mp_status_t mp_trace_go_back(mp_trace_t *trace, bool stacks);

/* The state as SEED_SEGMENT and SEED_BLOCK events and what was told. */
mp_status_t mp_trace_write_state(const mp_trace_t *trace, int64_t time_ns,
                                 mp_told_emit_t emit, void *context);

/* An event, and after a birth what was told of it. */
mp_status_t mp_told_write(const mp_told_t *told, mp_told_emit_t emit,
                          void *context);

void mp_trace_clear(mp_trace_t *trace);

#endif
