/* export.h - what files for other tools are made from.
 *
 * Exporters read a recording's rows and write one file, whole or not at all
 * (outfile.h).  They replay nothing: what lives, when and why is the
 * tracker's and category.c's word.  Pure functions of what they are given:
 * equal recordings give equal files.  None of them needs Python or a lock. */
#ifndef MP_EXPORT_H
#define MP_EXPORT_H

#include "event.h"
#include "intern.h"
#include "life.h"

#define MP_EXPORT_DEVICES 256

typedef struct {
    const mp_event_t *events;
    size_t event_count;
    const mp_allocation_t *lives; /* with their categories */
    size_t life_count;
    const mp_intern_t *intern;
    int16_t devices[MP_EXPORT_DEVICES]; /* those seen, the CPU first */
    size_t device_count;
    int64_t start_ns;      /* on the events' clock */
    int64_t start_wall_ns; /* the same moment, since 1970 */
} mp_export_t;

/* Which of torch's eight categories a life counts in, in files that have
 * no others: a library's workspace is unknown to torch. */
static inline uint8_t
mp_export_category(uint8_t category)
{
    return category < MP_CATEGORY_UNKNOWN ? category : MP_CATEGORY_UNKNOWN;
}

/* Nanoseconds since 1970 of a time on the events' clock. */
static inline int64_t
mp_export_wall(const mp_export_t *source, int64_t time_ns)
{
    return (int64_t)((uint64_t)time_ns - (uint64_t)source->start_ns +
                     (uint64_t)source->start_wall_ns);
}

/* What torch.profiler's export_memory_timeline writes (export_timeline.c).
 * RAW: each event, else the bytes of each category over time.  A device that
 * was not seen gives an empty file.  MP_ERR_IO: *SAVED_ERRNO. */
mp_status_t mp_export_timeline(const mp_export_t *source, int16_t device,
                               bool raw, const char *path, bool gzip,
                               int *saved_errno);

#endif
