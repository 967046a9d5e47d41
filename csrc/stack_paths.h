/* stack_paths.h - many stacks as one array of frames.
 *
 * For writers, which need the frames of thousands of stacks at once.  Reads an
 * intern; holds no state. */
#ifndef MP_STACK_PATHS_H
#define MP_STACK_PATHS_H

#include "intern.h"

typedef struct {
    int64_t *offsets; /* [stacks + 1]: where each one's frames begin */
    uint32_t *frames; /* [offsets[stacks]] frame ids, innermost first */
} mp_stack_paths_t;

/* The frames of COUNT stack ids.  An id that does not exist, MP_NO_INDEX
 * among them, has none.  MP_ERR_NOMEM. */
mp_status_t mp_stack_paths_build(const mp_intern_t *intern,
                                 const uint32_t *stacks, size_t count,
                                 mp_stack_paths_t *out);
void mp_stack_paths_clear(mp_stack_paths_t *paths); /* frees the arrays */

/* All frames of INTERN, COUNT of them, to be freed with mp_free.
 * MP_ERR_NOMEM. */
mp_status_t mp_stack_paths_frames(const mp_intern_t *intern,
                                  mp_frame_t **frames, size_t *count);

#endif
