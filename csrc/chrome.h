/* chrome.h - the words of the Chrome trace format, for its writers.
 *
 * An event is begun, gets what belongs to its kind, and is ended.  Between
 * export_chrome.c (the file, the host's rows), chrome_device.c (the rows of a
 * device's memory) and chrome_sampled.c (counters beside them). */
#ifndef MP_CHROME_H
#define MP_CHROME_H

#include "export_chrome.h"
#include "json.h"
#include "slices.h"

#define MP_CHROME_ROW_COUNTERS 1 /* they belong to no row, but have one */
#define MP_CHROME_ROW_FINDINGS 3

typedef struct {
    const mp_export_t *source;
    const mp_chrome_options_t *options;
    mp_outfile_t *file;
    int64_t *clock;   /* [event] its time, made never to fall */
    int64_t end_ns;   /* of the last event */
    bool any;         /* event written */
    uint64_t ops_out; /* slices left out for the sake of size */
    uint64_t memory_out;
} mp_chrome_t;

/* `{"ph": PH, "cat": CAT, "pid": PID, "tid": TID, "ts": ...`; CAT may be
 * NULL.  TIME_NS is on the events' clock. */
void mp_chrome_begin(mp_chrome_t *chrome, char ph, const char *cat,
                     int64_t pid, uint64_t tid, int64_t time_ns);
/* The duration until END_NS of what began at BEGIN_NS. */
void mp_chrome_duration(mp_chrome_t *chrome, int64_t begin_ns, int64_t end_ns);
void mp_chrome_name(mp_chrome_t *chrome, const char *name);
/* PREFIX and the string TEXT of the intern. */
void mp_chrome_interned_name(mp_chrome_t *chrome, const char *prefix,
                             uint32_t text);
void mp_chrome_args(mp_chrome_t *chrome); /* `, "args": {` */
/* One of them; FIRST: no comma before it. */
void mp_chrome_int(mp_chrome_t *chrome, bool first, const char *key,
                   int64_t value);
void mp_chrome_uint(mp_chrome_t *chrome, bool first, const char *key,
                    uint64_t value);
void mp_chrome_text(mp_chrome_t *chrome, bool first, const char *key,
                    const char *text, size_t length);
void mp_chrome_interned(mp_chrome_t *chrome, bool first, const char *key,
                        uint32_t text);
void mp_chrome_args_end(mp_chrome_t *chrome); /* `}}` */
void mp_chrome_end(mp_chrome_t *chrome);      /* `}`, of one without args */

/* A metadata event: NAME, and one argument. */
void mp_chrome_metadata_int(mp_chrome_t *chrome, int64_t pid, uint64_t tid,
                            const char *name, const char *key, int64_t value);
void mp_chrome_metadata_text(mp_chrome_t *chrome, int64_t pid, uint64_t tid,
                             const char *name, const char *key,
                             const char *value);

/* A sample of a counter with the one argument `bytes`. */
void mp_chrome_counter(mp_chrome_t *chrome, int64_t pid, const char *name,
                       int64_t time_ns, int64_t bytes);

/* Time of an event; -1: of the start. */
int64_t mp_chrome_time(const mp_chrome_t *chrome, int64_t event);

/* MP_OK, what failed, or MP_ERR_FULL: the file is larger than allowed. */
mp_status_t mp_chrome_status(const mp_chrome_t *chrome);

/* chrome_gpu.c: what ran on GPUs, if that was recorded. */
mp_status_t mp_chrome_gpu(mp_chrome_t *chrome);

/* chrome_device.c: the process of DEVICE.  SLICES and LEVELS are its; WRITTEN
 * has a place for each slice, all zero. */
mp_status_t mp_chrome_device(mp_chrome_t *chrome, int16_t device,
                             const mp_slices_t *slices,
                             const mp_levels_t *levels, uint8_t *written,
                             size_t max_slices);

/* chrome_sampled.c: the counters of DEVICE that no tracker counts, and when
 * memory was given back to the driver; in the process PID. */
mp_status_t mp_chrome_sampled(mp_chrome_t *chrome, int16_t device,
                              int64_t pid);

#endif
