/* mem.h - the profiler's own memory, counted.
 *
 * Never taken from an allocator that memprof hooks.  Thread-safe. */
#ifndef MP_MEM_H
#define MP_MEM_H

#include "common.h"

/* Aligned to 16 bytes.  A size of 0 is a block like any other.  What
 * mp_realloc adds at the end is not zeroed. */
void *mp_calloc(size_t count, size_t size);  /* NULL: out of memory */
void *mp_realloc(void *memory, size_t size); /* NULL: unchanged */
void mp_free(void *memory);                  /* accepts NULL */

/* Address space of BYTES bytes whose pages cost nothing until touched.  The
 * address never changes, so readers may look while the owner appends.
 * NULL: the address space is not to be had. */
void *mp_reserve(size_t bytes);
void mp_unreserve(void *memory, size_t bytes); /* accepts NULL */

/* Bytes held through mp_calloc/mp_realloc right now (not reservations). */
size_t mp_mem_bytes(void);

/* Tests only: the N-th allocation or reservation from now (1 = the next)
 * fails, once.  0 switches failing off. */
void mp_mem_fail_after(long n);

#endif
