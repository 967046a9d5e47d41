/* snapshot_reader.h - what the parts of a snapshot's reader share.
 *
 * Only for import_snapshot.c (entries, blocks, the whole), import_names.c and
 * import_order.c. */
#ifndef MP_SNAPSHOT_READER_H
#define MP_SNAPSHOT_READER_H

#include "import_snapshot.h"
#include "snapshot_state.h"
#include "snapshot_words.h"
#include "unpickle.h"

/* A place in the order of all traces. */
typedef struct {
    uint32_t part;   /* of the recording: how many steps of ours lie before */
    uint32_t device; /* 0: a step; 1 + n: of the n-th trace */
    int64_t time_ns; /* in its part */
    int64_t at_ns;   /* of a step: when it was */
    size_t index;    /* of the trace's entry, or the step's number */
} mp_snapshot_order_t;

typedef struct {
    mp_unpickled_t *pickle;
    mp_value_t top;
    mp_intern_t *intern;
    mp_import_facts_t *facts;
    int64_t cpu;                /* the trace that is the CPU's, or -1 */
    int64_t first_us;           /* the earliest time */
    int64_t start_ns, start_us; /* one moment on both clocks */
    uint32_t *strings;  /* of each text of the pickle, or MP_NO_INDEX */
    uint32_t *frames;   /* of each container that is a frame */
    uint32_t *stacks;   /* of each container that is a list of frames */
    uint32_t *forwards; /* of each that is a list of lines */
    mp_trace_t *traces;
    size_t trace_count;
    mp_snapshot_order_t *order;
    size_t order_count, order_capacity;
    mp_recording_data_t data;
    size_t event_capacity;
} mp_snapshot_reader_t;

static const mp_event_t mp_snapshot_blank = {
    .op = MP_NO_INDEX, .module = MP_NO_INDEX, .stack = MP_NO_INDEX};

/* import_names.c: MP_ERR_NOMEM; what is none has MP_NO_INDEX. */
mp_status_t mp_snapshot_intern_text(mp_snapshot_reader_t *reader,
                                    mp_value_t value, uint32_t *id);
/* The stack of a list of frames, innermost first: of torch's the Python frames
 * if there are any. */
mp_status_t mp_snapshot_intern_stack(mp_snapshot_reader_t *reader,
                                     mp_value_t value, uint32_t *id);
mp_status_t mp_snapshot_intern_forward(mp_snapshot_reader_t *reader,
                                       mp_value_t value, uint32_t *id);

/* import_order.c */
int64_t mp_snapshot_time_of(const mp_snapshot_reader_t *reader,
                            int64_t time_us);
mp_status_t mp_snapshot_order_all(mp_snapshot_reader_t *reader);
mp_status_t mp_snapshot_write_events(mp_snapshot_reader_t *reader);

#endif
