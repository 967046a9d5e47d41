/* mem.c - the profiler's own memory, counted.
 *
 * malloc with a small header in front that remembers the size, so that what
 * is given back is subtracted exactly.  torch's CPU allocator is hooked
 * above malloc, never in it: nothing here is seen by our own hooks. */
#include "mem.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

/* In front of every block; keeps malloc's alignment. */
typedef struct {
    _Alignas(16) size_t size; /* what the caller asked for */
} header_t;

static atomic_size_t held_bytes;
static atomic_long fail_countdown; /* 0 or less: off */

/* Whether a test wants this allocation to fail. */
static bool
must_fail(void)
{
    if (MP_LIKELY(atomic_load_explicit(&fail_countdown,
                                       memory_order_relaxed) <= 0)) {
        return false;
    }
    return atomic_fetch_sub_explicit(&fail_countdown, 1,
                                     memory_order_relaxed) == 1;
}

static void
count_bytes(size_t now, size_t before)
{
    /* Unsigned wrap makes one addition of a gain or a loss. */
    atomic_fetch_add_explicit(&held_bytes, now - before, memory_order_relaxed);
}

void *
mp_calloc(size_t count, size_t size)
{
    size_t bytes;
    size_t with_header;
    if (__builtin_mul_overflow(count, size, &bytes) ||
        __builtin_add_overflow(bytes, sizeof(header_t), &with_header) ||
        must_fail()) {
        return NULL;
    }
    header_t *header = calloc(1, with_header);
    if (header == NULL) {
        return NULL;
    }
    header->size = bytes;
    count_bytes(bytes, 0);
    return header + 1;
}

void *
mp_realloc(void *memory, size_t size)
{
    size_t with_header;
    if (__builtin_add_overflow(size, sizeof(header_t), &with_header) ||
        must_fail()) {
        return NULL;
    }
    header_t *old = memory == NULL ? NULL : (header_t *)memory - 1;
    size_t old_size = old == NULL ? 0 : old->size;
    header_t *header = realloc(old, with_header);
    if (header == NULL) {
        return NULL;
    }
    header->size = size;
    count_bytes(size, old_size);
    return header + 1;
}

void
mp_free(void *memory)
{
    if (memory == NULL) {
        return;
    }
    header_t *header = (header_t *)memory - 1;
    count_bytes(0, header->size);
    free(header);
}

void *
mp_reserve(size_t bytes)
{
    if (must_fail()) {
        return NULL;
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void
mp_unreserve(void *memory, size_t bytes)
{
    if (memory != NULL) {
        (void)munmap(memory, bytes);
    }
}

size_t
mp_mem_bytes(void)
{
    return atomic_load_explicit(&held_bytes, memory_order_relaxed);
}

void
mp_mem_fail_after(long n)
{
    atomic_store_explicit(&fail_countdown, n, memory_order_relaxed);
}
