/* gzip_sink.h - bytes on their way to a sink as one gzip member.
 *
 * Level 5, no name, mtime 0.  Equal bytes give an equal file, however they
 * are cut into writes and however many processors there are: the bytes are
 * divided into pieces of 128 KiB that are compressed side by side, each with
 * the 32 KiB before it as its dictionary.  Threads live between open and
 * close only, and only for what is longer than one piece.
 *
 * Knows nothing of files and formats.  Called by one thread. */
#ifndef MP_GZIP_SINK_H
#define MP_GZIP_SINK_H

#include "sink.h"

typedef struct mp_gzip_sink mp_gzip_sink_t;

/* SINK stays the caller's and outlives this.  MP_ERR_NOMEM. */
mp_status_t mp_gzip_sink_open(mp_sink_t *sink, mp_gzip_sink_t **out);
/* The first failure is remembered and returned by every later call. */
mp_status_t mp_gzip_sink_write(mp_gzip_sink_t *gzip, const void *bytes,
                               size_t length);
/* Write what is left and the trailer, unless something failed before or
 * COMPLETE is false; end the threads and free.  Returns the first failure.
 * Accepts NULL. */
mp_status_t mp_gzip_sink_close(mp_gzip_sink_t *gzip, bool complete);

#endif
