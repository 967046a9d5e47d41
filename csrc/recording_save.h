/* recording_save.h - a recording that is whole, as a file that is whole. */
#ifndef MP_RECORDING_SAVE_H
#define MP_RECORDING_SAVE_H

#include "event.h"
#include "intern.h"

/* All that such a file holds. */
typedef struct {
    const mp_event_t *events;
    size_t count;
    const mp_intern_t *intern;
    int64_t start_ns;
    int64_t start_wall_ns;
    uint64_t dropped;
    const char *info;
    size_t info_length;
} mp_recording_content_t;

/* Write CONTENT beside PATH and move it there; a file that is there keeps its
 * mode, and stays as it is if this fails.  *SAVED_ERRNO: why, with MP_ERR_IO.
 */
mp_status_t mp_recording_save(const mp_recording_content_t *content,
                              const char *path, int *saved_errno);

#endif
