/* nvml.h - NVIDIA's management library: what it says of a device's memory.
 *
 * Opened when first asked, initialised once and never shut down: torch and
 * others in the process use it too.  Knows devices by their UUID, never by an
 * index: CUDA_VISIBLE_DEVICES reorders those.  It needs no CUDA and makes no
 * context.  Never from a hook; callers take turns (measure.c). */
#ifndef MP_NVML_H
#define MP_NVML_H

#include "gpu_driver.h"
#include "total.h"

typedef void *mp_nvml_device_t;

/* MP_TOTAL_WHY_NOTHING: it is ready.  What fails once is not tried again. */
mp_total_why_t mp_nvml_open(void);

/* A GPU, or an instance of one (MIG). */
mp_total_why_t mp_nvml_device(const uint8_t uuid[MP_GPU_UUID_BYTES],
                              mp_nvml_device_t *device);

typedef struct {
    uint64_t total, free;
    int64_t reserved; /* by driver and firmware; -1: this NVML does not say */
} mp_nvml_memory_t;

mp_total_why_t mp_nvml_memory(mp_nvml_device_t device, mp_nvml_memory_t *out);

/* What this process holds.  IN_USE: it has a context on the device, so that
 * an only entry must be its own.  *METHOD: how *BYTES were had.
 *
 * In a container the number of this process may by chance be one of the
 * host's numbers: nothing here can tell. */
mp_total_why_t mp_nvml_process(mp_nvml_device_t device, bool in_use,
                               uint64_t *bytes, mp_total_method_t *method);

/* After fork, in the child: the parent's handles are not ours to use. */
void mp_nvml_after_fork(void);

/* Tests only: begin anew; where symbols come from, instead of a library
 * (NULL: there is no library). */
void mp_nvml_use(void *(*lookup)(const char *name));

#endif
