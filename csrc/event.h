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
    X(SEED_ORIGIN, 50, "seed_origin")                                         \
    /* the driver's memory, whoever asked for it */                           \
    X(DRIVER_ALLOC, 64, "driver_alloc")                                       \
    X(DRIVER_FREE, 65, "driver_free")                                         \
    X(DRIVER_OOM, 66, "driver_oom")                                           \
    X(DRIVER_MARK, 67, "driver_mark")                                         \
    X(DRIVER_GAP, 68, "driver_gap")                                           \
    X(DRIVER_PUT_BACK, 69, "driver_put_back")                                 \
    X(DRIVER_CONTEXT, 70, "driver_context")                                   \
    /* what the driver says that process and device hold: total.h */          \
    X(TOTAL_PROCESS, 80, "total_process")                                     \
    X(TOTAL_DEVICE, 81, "total_device")                                       \
    X(TOTAL_POOL, 82, "total_pool")                                           \
    /* what ran on the GPU, and who launched it: gpu_work.h */                \
    X(GPU_LAUNCH, 96, "gpu_launch")                                           \
    X(GPU_WORK, 97, "gpu_work")                                               \
    X(GPU_LOST, 98, "gpu_lost")

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

/* What was taken from the driver: mp_event_t.pool of DRIVER_*.
 * X(NAME, number, text) */
#define MP_DRIVER_GROUP_LIST(X)                                               \
    X(DEVICE, 0, "device")                 /* cuMemAlloc */                   \
    X(MANAGED, 1, "managed")               /* virtual: its pages move */      \
    X(PHYSICAL, 2, "physical")             /* cuMemCreate; addr: a handle */  \
    X(MAPPING, 3, "mapping")               /* of a handle to addresses */     \
    X(ADDRESS_RANGE, 4, "address_range")   /* no memory */                    \
    X(STREAM_ORDERED, 5, "stream_ordered") /* use of a pool */                \
    X(POOL, 6, "pool")                     /* size 0: reserved by sampling */ \
    X(HOST, 7, "host")                     /* pinned */                       \
    X(HOST_REGISTERED, 8, "host_registered")                                  \
    X(HOST_PHYSICAL, 9, "host_physical") /* cuMemCreate in host memory */     \
    X(IPC, 10, "ipc") /* another process's, or another API's buffer */        \
    X(MULTICAST, 11, "multicast") /* its bytes are the handles' */            \
    X(ARRAY, 12, "array")         /* estimated from its descriptor */         \
    X(EXTERNAL, 13, "external")   /* another API's object */

typedef enum {
#define X(name, number, text) MP_DRIVER_##name = (number),
    MP_DRIVER_GROUP_LIST(X)
#undef X
    MP_DRIVER_GROUP_COUNT
} mp_driver_group_t;

/* What a DRIVER_MARK tells of: its pool.  X(NAME, number, text) */
#define MP_DRIVER_MARK_LIST(X)                                                \
    X(IMAGE_LOADED, 1, "image_loaded")                                        \
    X(IMAGE_UNLOADED, 2, "image_unloaded")                                    \
    X(CONTEXT_CREATED, 3, "context_created")                                  \
    X(CONTEXT_DESTROYED, 4, "context_destroyed")                              \
    X(LIMIT_SET, 5, "limit_set")                                              \
    X(GRAPH_MADE, 6, "graph_made")                                            \
    X(GRAPH_TRIMMED, 7, "graph_trimmed")                                      \
    X(CAPTURE_BEGUN, 8, "capture_begun")                                      \
    X(CAPTURE_ENDED, 9, "capture_ended")                                      \
    X(POOL_TRIMMED, 10, "pool_trimmed")                                       \
    X(MULTICAST_BOUND, 11, "multicast_bound")                                 \
    X(MULTICAST_UNBOUND, 12, "multicast_unbound")

typedef enum {
#define X(name, number, text) MP_DRIVER_MARK_##name = (number),
    MP_DRIVER_MARK_LIST(X)
#undef X
} mp_driver_mark_t;
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
/* Of DRIVER_* only: */
#define MP_FLAG_FOREIGN 0x100u  /* counts 0 bytes: somebody else's memory */
#define MP_FLAG_GRAPH 0x200u    /* in a captured stream: 0 bytes by itself */
#define MP_FLAG_RETAINED 0x400u /* one more reference to a handle */
#define MP_FLAG_TORCH 0x800u    /* lies in a segment of torch's */
#define MP_FLAG_SEED 0x1000u    /* from the state at a recording's start */
#define MP_FLAG_TORCH_ASKED 0x2000u /* the owner is torch's own library */
#define MP_FLAG_NATIVE                                                        \
    0x8000u /* op_instance is a native stack, which is not in files */
#define MP_FLAG_UNTOLD                                                        \
    0x100u /* read from a file that does not tell what was running */
#define MP_FLAG_ANY_LIFE                                                      \
    0x200u /* SEED_ORIGIN: also of a block that was seen born */

#define MP_DEVICE_CPU (-1)
#define MP_DEVICE_UNKNOWN (-2) /* DRIVER_*: until its DRIVER_CONTEXT */

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
 *                                                    SEED_BLOCK's ROLE
 * DRIVER_*         all: op_instance is the owner, the library that asked
 *                  (string id; MP_NO_INDEX: unknown)
 * DRIVER_ALLOC     address or      bytes             pool: mp_driver_group_t;
 *                  handle                            stream: the context; of
 *                                                    a MAPPING the handle;
 *                                                    with MP_FLAG_SEED of a
 *                                                    handle its references
 * DRIVER_FREE      the same        0; MAPPING: bytes pool: as the alloc, or
 *                                                    one of its family;
 *                                                    stream: a number of its
 *                                                    own
 * DRIVER_PUT_BACK  the same        0                 stream: the number of the
 *                                                    DRIVER_FREE that failed
 * DRIVER_OOM       0               bytes asked for   pool: the group
 * DRIVER_MARK      module,         IMAGE_*: ns it    pool: mp_driver_mark_t;
 *                  context,        took; LIMIT_SET:  stream: the context; of
 *                  stream, ...     the value         MULTICAST_* the handle
 * DRIVER_GAP       1: begins,      0                 op: the reason (string
 *                  0: ends                           id)
 * DRIVER_CONTEXT   context         0                 device: the one that it
 *                                                    is of
 * TOTAL_PROCESS    what it took    bytes that the    pool: method; flags:
 *                  to measure, ns  process holds     cause, 256 x why not
 * TOTAL_DEVICE     bytes it has    bytes in use      stream: bytes reserved;
 *                                                    pool: method; flags:
 *                                                    memory, 256 x why not
 * TOTAL_POOL       bytes in use    bytes reserved    the default memory pool;
 *                                                    stream: bytes reserved by
 *                                                    pools the program made
 * TOTAL_*: UINT64_MAX is not measured; the numbers are those of total.h;
 * op_instance: equal for what was measured in one go.
 * GPU_LAUNCH       correlation     0                 where the thread is, as
 *                                                    of an ALLOC
 * GPU_WORK         when it began,  bytes of a copy   stream: when it ended,
 *                  on our clock    or set            ns; thread: the stream;
 *                                                    op: its name (string
 *                                                    id); op_instance:
 *                                                    correlation; pool:
 *                                                    mp_gpu_kind_t; time_ns:
 *                                                    when CUPTI told of it
 * GPU_LOST         mp_gpu_lost_t   how many records */

/* Whether a kind is a fact about blocks or segments of a device. */
static inline bool
mp_event_is_memory(uint8_t kind)
{
    return (kind >= MP_EVENT_ALLOC && kind <= MP_EVENT_OTHER) ||
           (kind >= MP_EVENT_SEED_SEGMENT && kind <= MP_EVENT_SEED_ORIGIN);
}

/* Whether a kind is a fact about the driver's memory. */
static inline bool
mp_event_is_driver(uint8_t kind)
{
    return kind >= MP_EVENT_DRIVER_ALLOC && kind <= MP_EVENT_DRIVER_CONTEXT;
}

/* Whether a kind is a fact about what ran on a GPU. */
static inline bool
mp_event_is_gpu(uint8_t kind)
{
    return kind >= MP_EVENT_GPU_LAUNCH && kind <= MP_EVENT_GPU_LOST;
}

#endif
