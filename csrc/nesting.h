/* nesting.h - which logged ops and regions every thread is inside of.
 *
 * Only ops that touched memory are logged, so only those are here.  Tells the
 * forward map of forward ops, and asks it about backward nodes.  Knows
 * nothing of devices and lives.
 *
 * Part of a tracker: called by tracker.c and handover.c only, under whatever
 * serialises the tracker (for a session's follower that is the session lock).
 * What every allocation needs is inline. */
#ifndef MP_NESTING_H
#define MP_NESTING_H

#include "event.h"
#include "forward_map.h"
#include "table.h"

/* An op whose begin was logged. */
typedef struct {
    uint32_t op;
    uint32_t flags;
    uint64_t sequence;
    uint64_t forward_thread;
    uint64_t logical_thread;
    uint32_t module;
    uint32_t stack;
    mp_forward_t forward; /* of a backward node, if known */
} mp_open_op_t;

typedef struct {
    uint32_t id;
    mp_open_op_t *ops; /* innermost last */
    uint32_t *regions; /* string ids, as they began */
    uint32_t op_count, op_capacity;
    uint32_t region_count, region_capacity;
    uint32_t root;     /* string id: the root module that runs, or none */
    uint32_t forwards; /* root forwards begun */
} mp_thread_t;

typedef struct mp_nesting {
    mp_table_t *index; /* thread number -> its place */
    mp_thread_t *threads;
    uint32_t count, capacity;
} mp_nesting_t;

/* NESTING is all zero. */
mp_status_t mp_nesting_init(mp_nesting_t *nesting);
void mp_nesting_clear(mp_nesting_t *nesting); /* accepts all zero */

/* OP_BEGIN, OP_END, REGION_BEGIN, REGION_END.  MP_ERR_NOMEM: it is not open.
 * An end without its begin changes nothing. */
mp_status_t mp_nesting_op_begin(mp_nesting_t *nesting,
                                mp_forward_map_t *forward,
                                const mp_event_t *event);
void mp_nesting_op_end(mp_nesting_t *nesting, const mp_event_t *event);
/* NODE: of an op that is over; an open one around it with the same number
 * counts more. */
void mp_nesting_node_made(mp_nesting_t *nesting, mp_forward_map_t *forward,
                          const mp_event_t *event);
mp_status_t mp_nesting_region_begin(mp_nesting_t *nesting,
                                    const mp_event_t *event);
void mp_nesting_region_end(mp_nesting_t *nesting, const mp_event_t *event);

/* MODULE_BEGIN, MODULE_END: counts root forwards. */
mp_status_t mp_nesting_module_begin(mp_nesting_t *nesting,
                                    const mp_event_t *event);
void mp_nesting_module_end(mp_nesting_t *nesting, const mp_event_t *event);

/* NULL: a thread of which nothing was heard. */
static inline mp_thread_t *
mp_nesting_find(const mp_nesting_t *nesting, uint32_t id)
{
    uint32_t index = mp_table_get(nesting->index, id);
    return index == MP_NO_INDEX ? NULL : &nesting->threads[index];
}

/* The innermost region; MP_NO_INDEX: none. */
static inline uint32_t
mp_thread_region(const mp_thread_t *thread)
{
    return thread->region_count > 0 ? thread->regions[thread->region_count - 1]
                                    : MP_NO_INDEX;
}

/* The number of the root forward that runs; 0: none. */
static inline uint32_t
mp_thread_root_forward(const mp_thread_t *thread)
{
    return thread->root == MP_NO_INDEX ? 0 : thread->forwards;
}

/* What caused the innermost backward node of known cause; NULL: none. */
static inline const mp_forward_t *
mp_thread_forward(const mp_thread_t *thread)
{
    for (uint32_t i = thread->op_count; i-- > 0;) {
        if (mp_forward_known(&thread->ops[i].forward)) {
            return &thread->ops[i].forward;
        }
    }
    return NULL;
}

#endif
