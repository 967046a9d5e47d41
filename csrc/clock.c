/* clock.c - the one clock and the thread's number. */
#include "clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int64_t
read_clock(clockid_t clock)
{
    struct timespec now;
    (void)clock_gettime(clock, &now); /* fails only for an unknown clock */
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t
mp_clock_now(void)
{
    return read_clock(CLOCK_MONOTONIC);
}

int64_t
mp_clock_wall_now(void)
{
    return read_clock(CLOCK_REALTIME);
}

uint32_t
mp_thread_number(void)
{
    return (uint32_t)syscall(SYS_gettid); /* gettid(): only since glibc 2.30 */
}
