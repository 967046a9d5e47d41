/* cut_recording.h - a part of a recording, as a recording.
 *
 * The state where the part begins goes before its events (as it does in a
 * window), so that what is alive at each of them is what was.  Knows nothing
 * of Python. */
#ifndef MP_CUT_RECORDING_H
#define MP_CUT_RECORDING_H

#include "export.h"
#include "recording.h"

typedef struct {
    size_t begin, end;   /* events of the part; END is behind the last */
    const uint8_t *keep; /* for each life: not 0; or NULL: all of them */
    int64_t *places;     /* or NULL: room for END - BEGIN numbers, which get
                            where each event is in the part; -1: nowhere */
} mp_cut_t;

/* *OUT (only with MP_OK) is to be cleared.  MP_ERR_ARG: no such part. */
mp_status_t mp_cut_recording(const mp_export_t *source, const mp_cut_t *cut,
                             mp_recording_data_t *out);

#endif
