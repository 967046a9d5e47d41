/* native_stack.h - the return addresses of the calling thread, interned.
 *
 * For callbacks inside somebody else's call: takes no lock of ours, allocates
 * nothing, calls nobody back.  The unwinder finds its tables without the
 * loader's lock where the C library has _dl_find_object (glibc 2.35); it is
 * used once at the start, so that its own first use does not lie in a
 * callback.  What library an address belongs to is for libraries.h to say,
 * later.
 *
 * The table is made once and never freed.  Full: no stack. */
#ifndef MP_NATIVE_STACK_H
#define MP_NATIVE_STACK_H

#include "common.h"

#define MP_NATIVE_DEPTH 32
#define MP_NATIVE_STACKS 8192

/* Make the table and use the unwinder once.  Again: does nothing.  Not from a
 * callback. */
mp_status_t mp_native_init(void);

/* The calling thread's stack, innermost first, this function's own frame left
 * off; MP_NO_INDEX: none, or the table is full. */
uint32_t mp_native_stack(void);

/* The addresses of a stack, how many in *COUNT; NULL: there is none. */
const uintptr_t *mp_native_get(uint32_t id, size_t *count);

#endif
