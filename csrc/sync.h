/* sync.h - the short lock.
 *
 * Held for a few dozen instructions and never across a call that can block.
 * Spins briefly, then yields: a holder that lost its processor gets it
 * back.  Header only. */
#ifndef MP_SYNC_H
#define MP_SYNC_H

#include "common.h"

#include <sched.h>
#include <stdatomic.h>

typedef struct {
    atomic_uint held;
} mp_spin_t;

static inline void
mp_spin_lock(mp_spin_t *lock)
{
    for (unsigned tries = 0;; tries++) {
        if (atomic_load_explicit(&lock->held, memory_order_relaxed) == 0 &&
            atomic_exchange_explicit(&lock->held, 1, memory_order_acquire) ==
                0) {
            return;
        }
        if (tries < 64) {
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        else {
            sched_yield();
        }
    }
}

static inline void
mp_spin_unlock(mp_spin_t *lock)
{
    atomic_store_explicit(&lock->held, 0, memory_order_release);
}

#endif
