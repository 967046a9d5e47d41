/* hook_pools.h - small numbers for the private pools of torch's allocator.
 *
 * A pool is a pair of numbers; one that was met keeps its index for the life
 * of the process.  Any thread; adding takes a lock of its own, a leaf. */
#ifndef MP_HOOK_POOLS_H
#define MP_HOOK_POOLS_H

#include "common.h"

/* 0: no private pool.  LAST is the caller's hint, kept from call to call;
 * NULL: it has none. */
uint16_t mp_pool_index(uint32_t *last, uint64_t first, uint64_t second);

/* In a child after fork: nobody holds the lock. */
void mp_pools_after_fork(void);

#endif
