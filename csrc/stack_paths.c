/* stack_paths.c - many stacks as one array of frames. */
#include "stack_paths.h"

#include "mem.h"

/* The frames of STACK, innermost first, to AT unless that is NULL; how many
 * there are.  A parent's id is smaller than its child's, so this ends. */
static size_t
walk(const mp_intern_t *intern, uint32_t stack, uint32_t *at)
{
    size_t depth = 0;
    mp_stack_t node;
    while (stack != MP_NO_INDEX && mp_intern_get_stack(intern, stack, &node)) {
        if (at != NULL) {
            at[depth] = node.frame;
        }
        depth++;
        stack = node.parent;
    }
    return depth;
}

mp_status_t
mp_stack_paths_build(const mp_intern_t *intern, const uint32_t *stacks,
                     size_t count, mp_stack_paths_t *out)
{
    mp_stack_paths_t paths = {0};
    paths.offsets = mp_calloc(count + 1, sizeof(*paths.offsets));
    if (paths.offsets == NULL) {
        return MP_ERR_NOMEM;
    }
    size_t total = 0;
    for (size_t i = 0; i < count; i++) {
        total += walk(intern, stacks[i], NULL);
        paths.offsets[i + 1] = (int64_t)total;
    }
    paths.frames = mp_calloc(total, sizeof(*paths.frames));
    if (paths.frames == NULL) {
        mp_stack_paths_clear(&paths);
        return MP_ERR_NOMEM;
    }
    for (size_t i = 0; i < count; i++) {
        (void)walk(intern, stacks[i], paths.frames + paths.offsets[i]);
    }
    *out = paths;
    return MP_OK;
}

void
mp_stack_paths_clear(mp_stack_paths_t *paths)
{
    mp_free(paths->offsets);
    mp_free(paths->frames);
    *paths = (mp_stack_paths_t){0};
}

mp_status_t
mp_stack_paths_frames(const mp_intern_t *intern, mp_frame_t **frames,
                      size_t *count)
{
    uint32_t known = mp_intern_frames(intern);
    mp_frame_t *rows = mp_calloc(known, sizeof(*rows));
    if (rows == NULL) {
        return MP_ERR_NOMEM;
    }
    for (uint32_t i = 0; i < known; i++) {
        (void)mp_intern_get_frame(intern, i, &rows[i]);
    }
    *frames = rows;
    *count = known;
    return MP_OK;
}
