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

/* What the pools of the device reserve that were told of by _pool_made. */
uint64_t mp_gpu_driver_made_pools(int device);

/* The program has made POOL, or is about to destroy it: then it is not asked
 * any more after this returns, which waits 10 ms for a question that is being
 * asked.  In a driver's callback, on any thread.  More than 64 are not known.
 */
void mp_gpu_driver_pool_made(uint64_t pool, int16_t device);
void mp_gpu_driver_pool_gone(uint64_t pool);
/* None of them is known any more: their ends will not be told. */
void mp_gpu_driver_forget_pools(void);

/* After fork, in the child: the parent's driver is of no use. */
void mp_gpu_driver_after_fork(void);
bool mp_gpu_driver_is_forked(void); /* and it had one: no devices here */

/* Tests only: where symbols come from, instead of a library. */
void mp_gpu_driver_use(void *(*lookup)(const char *name));

#endif
