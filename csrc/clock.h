/* clock.h - the one clock and the thread's number. */
#ifndef MP_CLOCK_H
#define MP_CLOCK_H

#include "common.h"

int64_t mp_clock_now(void);      /* CLOCK_MONOTONIC, nanoseconds */
int64_t mp_clock_wall_now(void); /* since the epoch, nanoseconds */
uint32_t mp_thread_number(void); /* the kernel's thread id; uncached */

#endif
