/* event.h - the fact that a hook writes: one cache line.
 *
 * Our own stable kind numbers, never torch's enum values: numbers stored in
 * files never change meaning; new ones go at the end of their block.
 * Shared with the C++ shim, so it must stay valid C++17. */
#ifndef MP_EVENT_H
#define MP_EVENT_H

#include "common.h"

/* X(NAME, number, text) */
#define MP_EVENT_LIST(X)                                                      \
    /* facts of an allocator */                                               \
    X(ALLOC, 1, "alloc")                                                      \
    X(FREE_REQUESTED, 2, "free_requested")                                    \
    X(FREE_COMPLETED, 3, "free_completed")                                    \
    X(SEGMENT_ALLOC, 4, "segment_alloc")                                      \
    X(SEGMENT_FREE, 5, "segment_free")                                        \
    X(SEGMENT_MAP, 6, "segment_map")                                          \
    X(SEGMENT_UNMAP, 7, "segment_unmap")                                      \
    X(OOM, 8, "oom")                                                          \
    X(SNAPSHOT, 9, "snapshot")                                                \
    X(OTHER, 10, "other")                                                     \
    /* what the thread was doing */                                           \
    X(OP_BEGIN, 16, "op_begin")                                               \
    X(OP_END, 17, "op_end")                                                   \
    X(MODULE_BEGIN, 18, "module_begin")                                       \
    X(MODULE_END, 19, "module_end")                                           \
    X(REGION_BEGIN, 20, "region_begin")                                       \
    X(REGION_END, 21, "region_end")                                           \
    X(OPTIMIZER_BEGIN, 22, "optimizer_begin")                                 \
    X(OPTIMIZER_END, 23, "optimizer_end")                                     \
    X(NODE, 24, "node")                                                       \
    /* what the session says */                                               \
    X(STEP, 32, "step")                                                       \
    X(ROLE, 33, "role")                                                       \
    X(WINDOW_BEGIN, 34, "window_begin")                                       \
    X(WINDOW_END, 35, "window_end")                                           \
    X(SHAPE, 36, "shape")                                                     \
    /* the state at the start of a recording */                               \
    X(SEED_SEGMENT, 48, "seed_segment")                                       \
    X(SEED_BLOCK, 49, "seed_block")                                           \
    X(SEED_ORIGIN, 50, "seed_origin")

typedef enum {
#define X(name, number, text) MP_EVENT_##name = (number),
    MP_EVENT_LIST(X)
#undef X
} mp_event_kind_t;

/* What the thread was busy with.  X(NAME, number, text) */
#define MP_PHASE_LIST(X)                                                      \
    X(OTHER, 0, "other")                                                      \
    X(FORWARD, 1, "forward")                                                  \
    X(BACKWARD, 2, "backward")                                                \
    X(OPTIMIZER, 3, "optimizer")

typedef enum {
#define X(name, number, text) MP_PHASE_##name = (number),
    MP_PHASE_LIST(X)
#undef X
} mp_phase_t;

/* Direct evidence of what a storage is for.  X(NAME, number, text) */
#define MP_ROLE_LIST(X)                                                       \
    X(NONE, 0, "none")                                                        \
    X(PARAMETER, 1, "parameter")                                              \
    X(BUFFER, 2, "buffer")                                                    \
    X(GRADIENT, 3, "gradient")                                                \
    X(OPTIMIZER_STATE, 4, "optimizer_state")                                  \
    X(INPUT, 5, "input")                                                      \
    /* another file's word: MP_ROLE_TOLD + a category (life.h) */             \
    X(TOLD_PARAMETER, 6, "told parameter")                                    \
    X(TOLD_OPTIMIZER_STATE, 7, "told optimizer_state")                        \
    X(TOLD_INPUT, 8, "told input")                                            \
    X(TOLD_TEMPORARY, 9, "told temporary")                                    \
    X(TOLD_ACTIVATION, 10, "told activation")                                 \
    X(TOLD_GRADIENT, 11, "told gradient")                                     \
    X(TOLD_AUTOGRAD_DETAIL, 12, "told autograd_detail")                       \
    X(TOLD_UNKNOWN, 13, "told unknown")                                       \
    X(TOLD_WORKSPACE, 14, "told workspace")

typedef enum {
#define X(name, number, text) MP_ROLE_##name = (number),
    MP_ROLE_LIST(X)
#undef X
} mp_role_t;

#define MP_ROLE_TOLD MP_ROLE_TOLD_PARAMETER

/* mp_event_t.flags */
#define MP_FLAG_GRAD_MODE 0x01u /* autograd was recording */
#define MP_FLAG_IN_MODULE 0x02u /* inside a module's forward */
#define MP_FLAG_RECOMPUTE 0x04u /* a forward inside a backward */
#define MP_FLAG_PENDING                                                       \
    0x08u                         /* SEED_BLOCK: free requested, not done;    \
                                     SEED_SEGMENT: an expandable one */
#define MP_FLAG_BACKWARD_OP 0x10u /* OP_*: the scope is a backward node */
#define MP_FLAG_IN_OP 0x20u       /* op_instance names a running op */
#define MP_FLAG_MADE_NODE 0x40u   /* its op has made an autograd node */
#define MP_FLAG_DIED_IN_FORWARD                                               \
    0x80u /* of a life: freed in the root forward that made it */
#define MP_FLAG_UNTOLD                                                        \
    0x100u /* read from a file that does not tell what was running */
#define MP_FLAG_ANY_LIFE                                                      \
    0x200u /* SEED_ORIGIN: also of a block that was seen born */

#define MP_DEVICE_CPU (-1)

/* 64 bytes.  The order of events is their order in the log; there is no
 * sequence field.  Fields without a meaning for a kind are 0, ids without a
 * value are MP_NO_INDEX. */
typedef struct {
    uint64_t addr;
    uint64_t size;        /* bytes; see the table below */
    int64_t time_ns;      /* CLOCK_MONOTONIC */
    uint64_t stream;      /* the driver's handle; 0: default stream, or CPU */
    uint32_t thread;      /* kernel thread id */
    uint32_t op;          /* string id: the innermost op that is not a mere
                             allocator (aten::empty and its kin) */
    uint32_t module;      /* string id: qualified name */
    uint32_t stack;       /* stack id */
    int32_t step;         /* filled in by the session as it drains the log */
    uint32_t op_instance; /* counts a thread's outermost ops: equal only inside
                             one run of one op.  A forward that is run again
                             inside a backward node counts its own */
    uint8_t kind;         /* mp_event_kind_t */
    uint8_t phase;        /* mp_phase_t */
    int16_t device;       /* CUDA index, or MP_DEVICE_CPU */
    uint16_t pool;        /* index of the memory pool; 0: default */
    uint16_t flags;       /* MP_FLAG_* */
} mp_event_t;

#if !defined(__cplusplus)
_Static_assert(sizeof(mp_event_t) == 64, "one cache line");
#endif

/* kind             addr            size              others
 * ALLOC            block           requested bytes
 * FREE_*           block           requested bytes; the CPU writes only
 *                                  FREE_COMPLETED, size 0
 * SEGMENT_*        segment         its bytes
 * OOM              free bytes      rounded request
 * SNAPSHOT         0               active bytes      device: always 0
 * OP_BEGIN         autograd        logical thread    stream: logical thread
 *                  sequence number that ran the      that runs it; op: its
 *                  (UINT64_MAX:    forward; 0: not   own name
 *                  none)           a backward node
 * OP_END           0               0                 op: its own name
 * NODE             autograd        0                 stream: logical thread;
 *                  sequence number                   op: what made a node and
 *                                                    touched no memory
 * MODULE_BEGIN     next autograd sequence number of the thread; stream: its
 * MODULE_END       logical number; module: the module itself
 * REGION_*         0               0                 op: the region's name
 * OPTIMIZER_*      0               0                 op: its class name
 * STEP             session id      step number that begins now
 * ROLE             storage         mp_role_t         op: owner's name (string
 *                                                    id); pool: 0
 * WINDOW_*         session id      0
 * SHAPE            storage         bytes of a tensor op: its text (string
 *                                  in it             id); only with
 *                                                    record_shapes
 * SEED_SEGMENT     segment         its bytes
 * SEED_BLOCK       block           requested bytes   all context fields as at
 *                                                    its birth if known
 * SEED_ORIGIN      block           0                 forward op, module and
 *                                                    stack of a backward
 *                                                    block, before its
 *                                                    SEED_BLOCK's ROLE */

/* Whether a kind is a fact about blocks or segments of a device. */
static inline bool
mp_event_is_memory(uint8_t kind)
{
    return (kind >= MP_EVENT_ALLOC && kind <= MP_EVENT_OTHER) ||
           kind >= MP_EVENT_SEED_SEGMENT;
}

#endif
