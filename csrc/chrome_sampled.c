/* chrome_sampled.c - the counters of a Chrome trace that no tracker counts.
 *
 * What the driver said now and then, what of that is not torch's, and how
 * large a stretch torch could give away without asking the driver; and when
 * it gave memory back. */
#include "chrome.h"
#include "cut.h"
#include "free_blocks.h"
#include "mem.h"
#include "totals.h"

#define MOST_SAMPLES 20000
#define MOST_GIVEN 1000

/* Of a series that is drawn as steps; the last value once more at the end. */
typedef struct {
    mp_chrome_t *chrome;
    const char *name;
    int64_t pid;
    int64_t last;
    bool any;
} series_t;

static void
put(series_t *series, int64_t time_ns, int64_t bytes)
{
    mp_chrome_counter(series->chrome, series->pid, series->name, time_ns,
                      bytes);
    series->last = bytes;
    series->any = true;
}

static void
finish(series_t *series)
{
    if (series->any) {
        put(series, series->chrome->end_ns + 1000, series->last);
    }
}

/* What was reserved on DEVICE after each event that a row is of: OUT, one a
 * row, rows in the order of events. */
static void
reserved_at(const mp_export_t *source, int16_t device, const mp_total_t *rows,
            size_t count, int64_t *out)
{
    uint64_t reserved = 0;
    for (size_t i = 0; i < source->event_count; i++) {
        const mp_event_t *event = &source->events[i];
        if (event->device == device && event->kind == MP_EVENT_SEED_SEGMENT) {
            reserved += event->size; /* there from the start */
        }
    }
    size_t row = 0;
    for (size_t i = 0; i < source->event_count && row < count; i++) {
        const mp_event_t *event = &source->events[i];
        if (event->device == device) {
            switch (event->kind) {
            case MP_EVENT_SEGMENT_ALLOC:
            case MP_EVENT_SEGMENT_MAP:
                reserved += event->size;
                break;
            case MP_EVENT_SEGMENT_FREE:
            case MP_EVENT_SEGMENT_UNMAP:
                reserved -= event->size;
                break;
            default:
                break;
            }
        }
        for (; row < count && rows[row].event <= (int64_t)i; row++) {
            out[row] = (int64_t)reserved;
        }
    }
}

/* Rows beyond MOST_SAMPLES: every so many-th.  They come some twice a second.
 */
static mp_status_t
write_totals(mp_chrome_t *chrome, int16_t device, int64_t pid)
{
    const mp_export_t *source = chrome->source;
    mp_total_t *rows;
    size_t count;
    mp_status_t status =
        mp_totals_build(source->events, source->event_count, &rows, &count);
    if (status != MP_OK) {
        return status;
    }
    int64_t *reserved = mp_calloc(count + 1, sizeof(*reserved));
    if (reserved == NULL) {
        mp_free(rows);
        return MP_ERR_NOMEM;
    }
    reserved_at(source, device, rows, count, reserved);
    size_t every = count / MOST_SAMPLES + 1;
    series_t used = {.chrome = chrome, .name = "device used", .pid = pid};
    series_t outside = {.chrome = chrome, .name = "outside torch", .pid = pid};
    for (size_t i = 0; i < count; i += every) {
        const mp_total_t *row = &rows[i];
        if (row->device == device && row->device_used_bytes >= 0) {
            put(&used, mp_chrome_time(chrome, row->event),
                row->device_used_bytes);
        }
    }
    finish(&used);
    /* Of the CPU not: what torch asked for may never have been touched, and
     * then the process does not hold it. */
    for (size_t i = 0; device != MP_DEVICE_CPU && i < count; i += every) {
        const mp_total_t *row = &rows[i];
        if (row->device == device && row->process_bytes >= 0) {
            int64_t rest = row->process_bytes - reserved[i];
            /* Below: torch took it while the driver was asked. */
            put(&outside, mp_chrome_time(chrome, row->event),
                rest > 0 ? rest : 0);
        }
    }
    finish(&outside);
    mp_free(reserved);
    mp_free(rows);
    return mp_chrome_status(chrome);
}

static mp_status_t
write_free(mp_chrome_t *chrome, int16_t device, int64_t pid)
{
    mp_free_level_t *levels;
    size_t count;
    mp_status_t status = mp_free_blocks_build(chrome->source, device,
                                              MOST_SAMPLES, &levels, &count);
    series_t series = {
        .chrome = chrome, .name = "largest free block", .pid = pid};
    for (size_t i = 0; i < count && status == MP_OK; i++) {
        put(&series, mp_chrome_time(chrome, levels[i].event), levels[i].bytes);
        status = mp_chrome_status(chrome);
    }
    finish(&series);
    mp_free(levels);
    return status;
}

/* Segments freed one after the other: torch.cuda.empty_cache(), a retry
 * before an allocation fails, or torch's own collection.  torch does not tell
 * which. */
typedef struct {
    size_t event; /* the last */
    uint64_t bytes;
    uint64_t segments;
} given_t;

/* The next at or behind *I; false: there is none. */
static bool
next_given(const mp_export_t *source, int16_t device, size_t *i,
           given_t *given)
{
    *given = (given_t){0};
    for (; *i < source->event_count; (*i)++) {
        const mp_event_t *event = &source->events[*i];
        if (event->device != device || !mp_event_is_memory(event->kind)) {
            continue;
        }
        if (event->kind == MP_EVENT_SEGMENT_FREE ||
            event->kind == MP_EVENT_SEGMENT_UNMAP) {
            given->event = *i;
            given->bytes += event->size;
            given->segments++;
        }
        else if (given->segments != 0) {
            return true;
        }
    }
    return given->segments != 0;
}

static mp_status_t
write_given(mp_chrome_t *chrome, int16_t device, int64_t pid)
{
    const mp_export_t *source = chrome->source;
    mp_cut_t cut = {0};
    given_t given;
    for (size_t i = 0; next_given(source, device, &i, &given);) {
        mp_cut_count(&cut, given.bytes);
    }
    mp_cut_decide(&cut, MOST_GIVEN);
    for (size_t i = 0; next_given(source, device, &i, &given);) {
        if (!mp_cut_keeps(&cut, given.bytes)) {
            continue;
        }
        mp_chrome_begin(chrome, 'i', "memprof.given_back", pid,
                        MP_CHROME_ROW_FINDINGS,
                        mp_chrome_time(chrome, (int64_t)given.event));
        mp_chrome_name(chrome, "given back to the driver");
        mp_outfile_text(chrome->file, ",\"s\":\"g\"");
        mp_chrome_args(chrome);
        mp_chrome_uint(chrome, true, "bytes", given.bytes);
        mp_chrome_uint(chrome, false, "segments", given.segments);
        mp_chrome_args_end(chrome);
    }
    return mp_chrome_status(chrome);
}

mp_status_t
mp_chrome_sampled(mp_chrome_t *chrome, int16_t device, int64_t pid)
{
    mp_status_t status = write_totals(chrome, device, pid);
    if (status == MP_OK && device != MP_DEVICE_CPU) {
        status = write_free(chrome, device, pid);
    }
    if (status == MP_OK) {
        status = write_given(chrome, device, pid);
    }
    return status;
}
