/* gpu_driver.h - the few questions that a running CUDA driver is asked.
 *
 * Finds the libcuda that the process has mapped; loads none, initialises none
 * and makes no context.  Every call may be made on any thread, also while a
 * stream is captured; never from a hook.  Callers take turns (measure.c). */
#ifndef MP_GPU_DRIVER_H
#define MP_GPU_DRIVER_H

#include "total.h"

#define MP_GPU_UUID_BYTES 16

/* How many devices the process sees; 0: CUDA is not up. */
int mp_gpu_driver_devices(void);

/* Whether the device's primary context is there. */
bool mp_gpu_driver_in_use(int device);

/* Of a MIG device that of the instance.  False: the driver does not say. */
bool mp_gpu_driver_uuid(int device, uint8_t uuid[MP_GPU_UUID_BYTES]);

mp_total_memory_t mp_gpu_driver_memory_kind(int device);

/* cuMemGetInfo.  False: it failed, or the device has no primary context. */
bool mp_gpu_driver_memory(int device, uint64_t *free_bytes,
                          uint64_t *total_bytes);

/* Of the device's default memory pool.  False: it has none. */
bool mp_gpu_driver_pool(int device, uint64_t *reserved_bytes,
                        uint64_t *used_bytes);

/* After fork, in the child: the parent's driver is of no use. */
void mp_gpu_driver_after_fork(void);
bool mp_gpu_driver_is_forked(void); /* and it had one: no devices here */

/* Tests only: where symbols come from, instead of a library. */
void mp_gpu_driver_use(void *(*lookup)(const char *name));

#endif
