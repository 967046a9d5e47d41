/* export_chrome.h - a recording as a Chrome trace.
 *
 * The file is the caller's HEAD, our events, and the caller's TAIL: of a file
 * of our own those are what stands around the events; to merge into a trace of
 * another's they are that trace, cut where our events belong. */
#ifndef MP_EXPORT_CHROME_H
#define MP_EXPORT_CHROME_H

#include "export.h"
#include "levels.h"

typedef struct {
    const char *head, *tail;
    size_t head_length, tail_length;
    bool comma_before, comma_after; /* events stand there */

    bool host;    /* write rows of the host, too: ops, modules, regions */
    bool memory;  /* write [memory] instants */
    bool full;    /* all of them */
    bool stacked; /* one counter more, of all categories */

    uint32_t pid;         /* of the host */
    const char *pid_name; /* what ran there */
    int64_t base_ns;      /* times are since this one, since 1970 */
    uint64_t max_bytes;   /* before they are compressed; 0: any number */
    mp_spans_t steps;     /* label: number */
    mp_spans_t phases;    /* label: mp_phase_t */
    const char *const *libraries; /* folders whose frames are not the user's */
    size_t library_count;
} mp_chrome_options_t;

/* What became of it. */
typedef struct {
    uint64_t bytes;      /* before they were compressed */
    uint64_t ops_out;    /* ops left out for the sake of size */
    uint64_t memory_out; /* [memory] instants likewise */
} mp_chrome_result_t;

/* MP_ERR_FULL: it would be larger than max_bytes.  MP_ERR_IO: *SAVED_ERRNO.
 */
mp_status_t mp_export_chrome(const mp_export_t *source,
                             const mp_chrome_options_t *options,
                             const char *path, bool gzip,
                             mp_chrome_result_t *result, int *saved_errno);

#endif
