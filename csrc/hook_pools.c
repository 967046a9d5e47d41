/* hook_pools.c - small numbers for the private pools of torch's allocator. */
#include "hook_pools.h"

#include "sync.h"

#include <stdatomic.h>

#define MAX_POOLS 4096

static struct {
    mp_spin_t lock; /* a leaf: adding */
    atomic_uint count;
    uint64_t first[MAX_POOLS];
    uint64_t second[MAX_POOLS];
} the_pools;

uint16_t
mp_pool_index(uint32_t *last_pool, uint64_t first, uint64_t second)
{
    if ((first | second) == 0) {
        return 0;
    }
    uint32_t count =
        atomic_load_explicit(&the_pools.count, memory_order_acquire);
    uint32_t last = last_pool == NULL ? MAX_POOLS : *last_pool;
    if (last < count && the_pools.first[last] == first &&
        the_pools.second[last] == second) {
        return (uint16_t)(last + 1);
    }
    mp_spin_lock(&the_pools.lock);
    uint32_t i = 0;
    count = atomic_load_explicit(&the_pools.count, memory_order_relaxed);
    while (i < count &&
           (the_pools.first[i] != first || the_pools.second[i] != second)) {
        i++;
    }
    if (i == count && count < MAX_POOLS) {
        the_pools.first[i] = first;
        the_pools.second[i] = second;
        atomic_store_explicit(&the_pools.count, count + 1,
                              memory_order_release);
    }
    mp_spin_unlock(&the_pools.lock);
    if (last_pool != NULL) {
        *last_pool = i;
    }
    return (uint16_t)(i < MAX_POOLS ? i + 1 : MAX_POOLS);
}

void
mp_pools_after_fork(void)
{
    atomic_store(&the_pools.lock.held, 0);
}
