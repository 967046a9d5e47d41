/* fake_activity.h - the fake libcupti's activity API: buffers and records.
 *
 * Beside fake_cupti.h, which plays calls.  Records are laid out here from
 * CUPTI's manual, by version, without NVIDIA's headers. */
#ifndef FAKE_ACTIVITY_H
#define FAKE_ACTIVITY_H

#include "fake_cupti.h"

/* What the GPU did; written into a buffer of CUPTI's when it is told of. */
typedef struct {
    int kind; /* 10 kernel, 1 copy, 22 copy between peers, 2 set */
    uint64_t start, end, bytes;
    uint32_t device, stream, correlation;
    const char *name;              /* a kernel's */
    int copy_kind, source, target; /* a copy's */
} fakecupti_work_t;

/* Ask for a buffer if there is none, and write the record; 0: dropped. */
FAKE_API int fakecupti_work(const fakecupti_work_t *work);
/* The same without a struct, for ctypes: times are ns from now. */
FAKE_API int fakecupti_ran(int kind, const char *name, int64_t start,
                           int64_t end, uint64_t bytes, uint32_t device,
                           uint32_t stream, uint32_t correlation);
/* The number that the last played call had. */
FAKE_API uint32_t fakecupti_correlation(void);
/* Give the buffer back as it is, on a thread of CUPTI's own or (ITS 0) here.
 */
FAKE_API void fakecupti_give_back(int its);
/* Give back only this many bytes: the last record is cut. */
FAKE_API void fakecupti_give_back_cut(size_t bytes);
/* Threads that launch work ask for so many buffers, and keep them; how many
 * they got. */
FAKE_API int fakecupti_take_buffers(int count);
/* Flushes give nothing back: the buffer stays with CUPTI. */
FAKE_API void fakecupti_hold_buffers(int hold);
/* Bytes that every record is longer than its version says. */
FAKE_API void fakecupti_set_longer(size_t bytes);
/* CUPTI dropped so many. */
FAKE_API void fakecupti_drop(size_t count);
/* Nanoseconds that CUPTI's clock is set forward by. */
FAKE_API void fakecupti_set_clock(int64_t ns);
FAKE_API uint64_t fakecupti_now(void);
/* Kinds that are on. */
FAKE_API int fakecupti_kinds(void);
/* What Kineto does at a trace's beginning: the callbacks are its own now. */
FAKE_API void fakecupti_replace_callbacks(void);

#endif
