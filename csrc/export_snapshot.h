/* export_snapshot.h - a recording as the pickle that torch's MemoryViz opens.
 *
 * docs/formats/snapshot.md says what is in it.  Everything comes from the
 * tracker's lives and the events they were replayed from; nothing is replayed
 * here.  Knows nothing of Python. */
#ifndef MP_EXPORT_SNAPSHOT_H
#define MP_EXPORT_SNAPSHOT_H

#include "export.h"

typedef struct {
    const char *version; /* of memprof */
    const char *info;    /* UTF-8 JSON that goes with it; "": none */
    size_t info_length;
    uint64_t most_bytes; /* a file may have; 0: any number */
} mp_snapshot_options_t;

/* Numbers of 2^53 and more do not survive in JavaScript. */
#define MP_SNAPSHOT_NUMBERS (UINT64_C(1) << 53)

/* Write PATH, whole or not at all; *BYTES: how many.  MP_ERR_FULL: it would
 * have more than MOST_BYTES; MP_ERR_ARG: an address, a size or a stream is
 * MP_SNAPSHOT_NUMBERS or more; MP_ERR_IO: *SAVED_ERRNO; MP_ERR_NOMEM. */
mp_status_t mp_export_snapshot(const mp_export_t *source,
                               const mp_snapshot_options_t *options,
                               const char *path, uint64_t *bytes,
                               int *saved_errno);

#endif
