/* recording.h - the recording: events, names and facts, in memory and file.
 *
 * The layout on disk is in recording_format.h and docs/formats/recording.md.
 * A recording holds events in log order; everything else (lives, categories,
 * timelines) follows from them by the one replay in tracker.c. */
#ifndef MP_RECORDING_H
#define MP_RECORDING_H

#include "event.h"
#include "intern.h"

/* ---- writing: a stream that a kill leaves readable --------------------- */

typedef struct mp_recording_writer mp_recording_writer_t;

/* Create PATH.  A stream must be readable after a kill, so the header comes
 * first, marked unfinished, and nothing is renamed into place.
 * MP_ERR_IO: *SAVED_ERRNO says why. */
mp_status_t mp_recording_writer_open(const char *path,
                                     const mp_intern_t *intern,
                                     int64_t start_ns, int64_t start_wall_ns,
                                     mp_recording_writer_t **out,
                                     int *saved_errno);

/* Append events.  Names that the intern gained since the last block are
 * written before the events that use them.  Blocks of 64 Ki events are
 * compressed and flushed to the kernel as they fill.
 * MP_ERR_ARG: an event has an id that the intern does not know; none of them
 * is appended.  Every other failure, here and in flush, is final: nothing
 * more is written, and every later call returns it. */
mp_status_t mp_recording_writer_append(mp_recording_writer_t *writer,
                                       const mp_event_t *events, size_t count);

/* Write what is pending as a block now (end of a step, say). */
mp_status_t mp_recording_writer_flush(mp_recording_writer_t *writer);

/* Write INFO (UTF-8 JSON) now, for readers of a file that is never closed;
 * the one given to close counts instead.  Failures are final, as of append. */
mp_status_t mp_recording_writer_info(mp_recording_writer_t *writer,
                                     const char *info, size_t info_length);

/* Finish: last block, INFO (UTF-8 JSON), directory, footer, header.  Frees
 * the writer in any case and returns its first failure; MP_ERR_IO:
 * *SAVED_ERRNO.  After a failure the file stays readable up to its last whole
 * block. */
mp_status_t mp_recording_writer_close(mp_recording_writer_t *writer,
                                      const char *info, size_t info_length,
                                      uint64_t dropped, int *saved_errno);

/* After fork, in the child: free without writing or closing cleanly.  Accepts
 * NULL.  The parent's file is not touched. */
void mp_recording_writer_abandon(mp_recording_writer_t *writer);

/* ---- reading ------------------------------------------------------------ */

typedef struct {
    mp_event_t *events; /* one array, owned; NULL if there are none */
    size_t count;
    size_t mapped_bytes; /* of mp_reserve; 0: events came from mem.h's heap */
    mp_intern_t *intern; /* owned */
    char *info;          /* UTF-8 JSON, NUL after it; "" if not reached */
    size_t info_length;
    int64_t start_ns;
    int64_t start_wall_ns;
    uint64_t dropped; /* 0 if unfinished: not known */
    uint32_t format_version;
    bool finished; /* false: the writer was killed or the end is cut */
    uint64_t damaged_bytes; /* behind the last good block */
} mp_recording_data_t;

/* Read PATH.  A file cut or damaged after its header gives all whole blocks
 * before the damage, with finished = false.  MP_ERR_FORMAT: not a recording,
 * or damaged in its header; MP_ERR_NEWER: needs a newer reader;
 * MP_ERR_IO: *SAVED_ERRNO.  ERROR (ERROR_SIZE may be 0) gets a sentence that
 * names what is wrong, also with MP_OK when the recording is unfinished; else
 * "".  Never allocates more than the file can justify.  *OUT is set only on
 * success. */
mp_status_t mp_recording_read(const char *path, mp_recording_data_t *out,
                              int *saved_errno, char *error,
                              size_t error_size);
void mp_recording_data_clear(mp_recording_data_t *data); /* frees, zeroes */

#endif
