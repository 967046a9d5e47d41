/* slices.h - what threads were inside of, as stretches that nest.
 *
 * Ops, modules and regions of every thread, in the order in
 * which they began, with the bytes of one device.  On one thread two of them
 * are apart or one holds the other: what lost its end ends with what is around
 * it, and a region that ends before what began inside it ends with that.
 *
 * Reads events and lives; knows nothing of files. */
#ifndef MP_SLICES_H
#define MP_SLICES_H

#include "export.h"
#include "life_walk.h"

typedef enum {
    MP_SLICE_OP,
    MP_SLICE_MODULE,
    MP_SLICE_REGION
} mp_slice_kind_t;

typedef struct {
    int64_t begin_event; /* -1: before the recording */
    int64_t end_event;   /* the last one, if its end is not there */
    /* What its own thread did on the device in it: */
    uint64_t allocated, freed;
    int64_t retained; /* born in it, alive at its end */
    int64_t peak;     /* highest bytes of the device, of all threads */
    uint32_t name;    /* string id */
    uint32_t thread;  /* index into threads */
    uint32_t parent;  /* slice, or MP_NO_INDEX */
    uint8_t kind;
    bool touched;  /* its thread had events of the device in it */
    bool is_open;  /* while they are built */
    bool is_ended; /* likewise: but something inside it is not */
} mp_slice_t;

typedef struct {
    mp_slice_t *slices;
    size_t count;
    uint32_t *threads; /* numbers of the system's, as they appeared */
    size_t thread_count;
    uint32_t *born_in; /* [life] slice that it was born in, or MP_NO_INDEX */
    uint32_t *died_in; /* [life] likewise */
} mp_slices_t;

/* Of DEVICE, which WALK is opened for and stands at its beginning.  Fewer
 * than 4 Gi slices.  MP_ERR_NOMEM: *OUT is empty. */
mp_status_t mp_slices_build(const mp_export_t *source, int16_t device,
                            mp_life_walk_t *walk, mp_slices_t *out);
void mp_slices_clear(mp_slices_t *slices); /* frees, zeroes */

#endif
