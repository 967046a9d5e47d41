/* libraries.h - which library asked: from return addresses to a name.
 *
 * Reads the process's map of files (not the loader's list: that has a lock
 * which the program may hold while it waits for us).  Knows the names of the
 * libraries that take GPU memory.  Called outside of callbacks, with the
 * session lock held. */
#ifndef MP_LIBRARIES_H
#define MP_LIBRARIES_H

#include "event.h"
#include "intern.h"

/* The name that a file goes by: "NCCL", "cuBLAS", "torch", the package of a
 * Python extension, else its own.  *TORCH: it is torch's.  False: it is never
 * the one that asked (the driver, CUDA's runtime, CUPTI). */
bool mp_library_name(const char *path, char *name, size_t size, bool *torch);

/* Who asked: the first of COUNT addresses, innermost first, that is above the
 * driver, CUDA's runtime, CUPTI and ourselves.  MP_NO_INDEX: unknown. */
uint32_t mp_libraries_owner(const uintptr_t *pcs, size_t count,
                            mp_intern_t *intern, bool *torch);

/* A driver event with MP_FLAG_NATIVE gets its owner's name for its native
 * stack. */
void mp_libraries_name_event(mp_intern_t *intern, mp_event_t *event);

#endif
