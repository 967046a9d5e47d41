/* gpu_activity.h - what runs on GPUs, recorded by CUPTI's activity API.
 *
 * For cupti_listener.c, which holds its control mutex around all of these but
 * for the launch; CUPTI's own callbacks take no lock.  Buffers lie in one
 * reservation that is made once and never freed, for CUPTI may give one back
 * after the end.  Costs nothing before the first start. */
#ifndef MP_GPU_ACTIVITY_H
#define MP_GPU_ACTIVITY_H

#include "cupti_library.h"
#include "gpu_work.h"

/* Bytes of buffers that CUPTI gets at most. */
#define MP_ACTIVITY_BUDGET ((size_t)32 << 20)

typedef struct {
    bool running;
    uint64_t records;               /* told of, since the start */
    uint64_t launches;              /* likewise */
    uint64_t lost[MP_GPU_LOST_END]; /* likewise */
    uint32_t outstanding;           /* buffers that CUPTI has */
    int64_t clock_error_ns;
} mp_activity_status_t;

/* Begin.  MP_ERR_LOAD: it cannot be, for the reason WHY; *CODE is CUPTI's
 * answer, 0 where it was not asked.  Nothing stays on then. */
mp_status_t mp_activity_start(const mp_cupti_library_t *library, int *code,
                              char *why, size_t size);

/* End: every record that CUPTI has is told of, or counted as lost. */
void mp_activity_stop(const mp_cupti_library_t *library);

/* Give CUPTI's buffers up without asking it anything: it is gone. */
void mp_activity_abandon(void);

/* Tell of the records in buffers that CUPTI has given back.  FLUSH: have it
 * give back those whose work is done.  False: there may be more, for
 * somebody should empty the log first. */
bool mp_activity_collect(const mp_cupti_library_t *library, bool flush);

bool mp_activity_running(void);
/* Whether a buffer waits for mp_activity_collect. */
bool mp_activity_waits(void);

/* Whether a function of the driver launches work for a GPU. */
bool mp_activity_is_launch(const char *function);

/* In CUPTI's callback of such a function, before it is called. */
void mp_activity_launch(uint32_t correlation, int16_t device);

void mp_activity_status(mp_activity_status_t *out);

#endif
