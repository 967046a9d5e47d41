/* import_snapshot.h - a memory snapshot of torch's, or of ours, as a
 * recording.
 *
 * Reads the pickles of every torch that has written any (docs/formats/
 * snapshot.md), without running anything in them.  What a snapshot holds is
 * the state at its end and, per device, what led to it: the state at the
 * beginning is found by going back.  Knows nothing of Python. */
#ifndef MP_IMPORT_SNAPSHOT_H
#define MP_IMPORT_SNAPSHOT_H

#include "recording.h"

/* What the file had and had not. */
typedef struct {
    bool whole; /* false: cut or damaged behind GOOD_BYTES */
    bool ours;  /* written by memprof */
    bool has_segments, has_traces, has_times, has_stacks, has_categories;
    bool has_host; /* pinned host memory, which is not read */
    uint64_t good_bytes;
    uint64_t entries; /* of all traces */
    uint64_t unknown; /* entries whose action means nothing to us */
    uint64_t older;   /* blocks that were there before the first entry */
    /* Blocks at the end that a cut trace does not tell of, taken to be older
     * than it, and those that cannot be. */
    uint64_t guessed, left_out;
} mp_import_facts_t;

/* LENGTH bytes of a pickle.  MP_ERR_FORMAT, MP_ERR_FULL (unpickle.h): ERROR
 * says why; it also says where a damaged one ends.  OUT and FACTS are set only
 * with MP_OK; the former is to be cleared then. */
mp_status_t mp_import_snapshot(const uint8_t *bytes, size_t length,
                               mp_recording_data_t *out,
                               mp_import_facts_t *facts, char *error,
                               size_t error_size);

#endif
