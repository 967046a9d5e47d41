/* op_table.h - memory by op: what each allocated, freed and needed at most.
 *
 * A row is a name, of one kind, and if asked for the innermost Python frames
 * that it was called from.  Its bytes are told for each device: `self` is what
 * happened in the op and in nothing inside it, the rest is the whole call.
 * Bytes are requested ones; a free counts where its request happened,
 * whichever op the block was born in.  An op that runs inside itself counts
 * once in the whole, and as one call if it is called by itself.
 *
 * Works on the rows of a tracker and the events they came from; builds arrays,
 * changes nothing. */
#ifndef MP_OP_TABLE_H
#define MP_OP_TABLE_H

#include "intern.h"
#include "life.h"

/* X(NAME, number, text) */
#define MP_OP_KIND_LIST(X)                                                    \
    X(OP, 0, "op")                                                            \
    X(BACKWARD, 1, "backward")                                                \
    X(REGION, 2, "region")                                                    \
    X(OUTSIDE, 3, "outside") /* no op: what happened in none */

typedef enum {
#define X(name, number, text) MP_OP_KIND_##name = (number),
    MP_OP_KIND_LIST(X)
#undef X
} mp_op_kind_t;

/* One row: 24 bytes, handed to NumPy as it is. */
typedef struct {
    uint32_t name;  /* string id; OUTSIDE: MP_NO_INDEX */
    uint32_t stack; /* a stack that begins with the row's frames, or
                       MP_NO_INDEX */
    uint8_t kind;   /* mp_op_kind_t */
    uint8_t top;    /* some call was inside no other op or region */
    uint16_t reserved[3];
    int64_t calls; /* in which memory was touched, on any device */
} mp_op_row_t;

/* A row on one device: 56 bytes.  A peak is the highest that a call's own
 * allocations less its own frees rose above its beginning; of all calls the
 * highest. */
typedef struct {
    int64_t self_allocated;
    int64_t self_freed;
    int64_t self_peak;
    int64_t allocated;
    int64_t freed;
    int64_t peak;
    int64_t calls; /* in which memory of this device was touched */
} mp_op_bytes_t;

_Static_assert(sizeof(mp_op_row_t) == 24, "the NumPy dtype says so");
_Static_assert(sizeof(mp_op_bytes_t) == 56, "the NumPy dtype says so");

typedef struct {
    size_t count;
    size_t device_count;
    mp_op_row_t *rows;    /* [count], in order of their first event */
    mp_op_bytes_t *bytes; /* [count * device_count], row-major */
} mp_op_table_t;

/* One pass over the events.  LIVES are the tracker's rows of these events, in
 * order of birth; memory of devices that are not among DEVICES is left out.
 * FRAMES: how many of the innermost Python frames divide a name; 0: none, and
 * INTERN is not asked. */
mp_status_t mp_op_table_build(const mp_event_t *events, size_t event_count,
                              const mp_allocation_t *lives, size_t life_count,
                              const int16_t *devices, size_t device_count,
                              uint32_t frames, const mp_intern_t *intern,
                              mp_op_table_t *out);
void mp_op_table_clear(mp_op_table_t *table); /* frees the arrays */

#endif
