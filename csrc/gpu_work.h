/* gpu_work.h - what ran on GPUs: kernels, copies, sets; and who launched it.
 *
 * GPU_WORK events tell of each piece when CUPTI has told of it, which may be
 * long after it ran; GPU_LAUNCH events tell where the thread was that launched
 * it.  Both carry the number by which CUPTI puts them together.  A graph's
 * launch is that of all its kernels. */
#ifndef MP_GPU_WORK_H
#define MP_GPU_WORK_H

#include "event.h"

/* X(NAME, number, text): the texts are Kineto's categories. */
#define MP_GPU_KIND_LIST(X)                                                   \
    X(KERNEL, 0, "kernel")                                                    \
    X(MEMCPY, 1, "gpu_memcpy")                                                \
    X(MEMSET, 2, "gpu_memset")

typedef enum {
#define X(name, number, text) MP_GPU_##name = (number),
    MP_GPU_KIND_LIST(X)
#undef X
} mp_gpu_kind_t;

/* Why a record is missing: addr of GPU_LOST.  X(NAME, number, text) */
#define MP_GPU_LOST_LIST(X)                                                   \
    X(DROPPED, 1, "dropped")       /* CUPTI had nowhere to put it */          \
    X(NO_BUFFER, 2, "no_buffer")   /* it came into one that was not ours */   \
    X(INCOMPLETE, 3, "incomplete") /* without its times */                    \
    X(UNKNOWN, 4, "unknown")       /* of a kind or shape we do not know */    \
    X(LATE, 5, "late")             /* told of when nobody listened any more */

typedef enum {
#define X(name, number, text) MP_GPU_LOST_##name = (number),
    MP_GPU_LOST_LIST(X)
#undef X
    MP_GPU_LOST_END
} mp_gpu_lost_t;

/* One piece of work: 88 bytes, handed to NumPy as it is. */
typedef struct {
    int64_t start_ns, end_ns;   /* on our clock */
    int64_t launch_ns;          /* when its launch began; -1: not seen */
    uint64_t bytes;             /* of a copy or set; 0: a kernel */
    int64_t event;              /* its GPU_WORK... */
    int64_t launch_event;       /* ...and its GPU_LAUNCH; -1: not seen */
    uint32_t name;              /* string id */
    uint32_t op, module, stack; /* of the launch */
    uint32_t thread;            /* likewise; 0: not known */
    uint32_t stream;            /* CUPTI's number of it */
    uint32_t correlation;
    int32_t step; /* of the launch; -1: not known */
    int16_t device;
    uint8_t kind;  /* mp_gpu_kind_t */
    uint8_t phase; /* of the launch */
    uint32_t unused;
} mp_gpu_work_t;

_Static_assert(sizeof(mp_gpu_work_t) == 88, "the NumPy dtype says so");

/* WORK (start_ns, end_ns, bytes, name, stream, correlation, device, kind) as
 * an event. */
mp_event_t mp_gpu_work_event(const mp_gpu_work_t *work, int64_t time_ns);

/* All work that COUNT events tell of, by start, each with its launch: the last
 * of its number before it.  *ROWS is mp_free'd by the caller; NULL if there is
 * none. */
mp_status_t mp_gpu_work_rows(const mp_event_t *events, size_t count,
                             mp_gpu_work_t **rows, size_t *row_count);

/* Records that are missing in COUNT events, by mp_gpu_lost_t. */
void mp_gpu_work_lost(const mp_event_t *events, size_t count,
                      uint64_t lost[MP_GPU_LOST_END]);

#endif
