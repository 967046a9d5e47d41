/* export_timeline.h - torch.profiler's memory timeline. */
#ifndef MP_EXPORT_TIMELINE_H
#define MP_EXPORT_TIMELINE_H

#include "export.h"

/* What torch.profiler's export_memory_timeline writes.  RAW: each event, else
 * the bytes of each category over time.  A device that was not seen gives an
 * empty file.  MP_ERR_IO: *SAVED_ERRNO. */
mp_status_t mp_export_timeline(const mp_export_t *source, int16_t device,
                               bool raw, const char *path, bool gzip,
                               int *saved_errno);

#endif
