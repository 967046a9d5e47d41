/* sink.h - bytes on their way to a file.
 *
 * Knows nothing about recordings.  Buffered; every write is checked; the
 * first failure is remembered and every later call returns it, so that a
 * writer may check once at the end.  Not thread-safe. */
#ifndef MP_SINK_H
#define MP_SINK_H

#include "common.h"

typedef struct mp_sink mp_sink_t;

/* Create or truncate PATH.  MP_ERR_IO: *SAVED_ERRNO says why.  Also
 * MP_ERR_NOMEM, and then no file is touched. */
mp_status_t mp_sink_open(const char *path, mp_sink_t **out, int *saved_errno);
mp_status_t mp_sink_write(mp_sink_t *sink, const void *bytes, size_t length);
mp_status_t mp_sink_flush(mp_sink_t *sink); /* to the kernel */
/* Overwrite LENGTH bytes at OFFSET, then go on at the end.  MP_ERR_ARG: not
 * all of them have been written before; nothing is changed. */
mp_status_t mp_sink_patch(mp_sink_t *sink, uint64_t offset, const void *bytes,
                          size_t length);
uint64_t mp_sink_offset(const mp_sink_t *sink); /* bytes written so far */
int mp_sink_errno(const mp_sink_t *sink);       /* of the first failure */
/* Flush, close and free.  Returns the first failure of the sink's life, and
 * *SAVED_ERRNO says why (0: none).  Accepts NULL. */
mp_status_t mp_sink_close(mp_sink_t *sink, int *saved_errno);

#endif
