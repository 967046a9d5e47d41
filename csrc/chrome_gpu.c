/* chrome_gpu.c - what ran on GPUs in a Chrome trace, as Kineto would write it.
 *
 * A process for each GPU, a row for each stream; a slice without extent for
 * each launch, on the host's row; and a flow from there to what it launched.
 * Work of one stream that overlaps gets rows beside the stream's. */
#include "chrome.h"
#include "cut.h"
#include "gpu_work.h"
#include "mem.h"

#include <stdio.h>

enum {
    MAX_WORK = 200000,
    MOST_STREAM = 1000000,   /* a higher number of one is no row's */
    ROW_BESIDE = 2000000000, /* and the rows beside streams' */
    INSTEAD = 8000000,       /* for a GPU whose number is the host's */
    SORT = 5000000,
    TEXT = 64
};

typedef struct {
    int16_t device;
    uint32_t stream;
    uint64_t row;
    int64_t end_ns; /* of the last on it */
} row_t;

typedef struct {
    mp_chrome_t *chrome;
    row_t *rows;
    size_t count, capacity;
} writer_t;

static const char *const cats[] = {
#define X(name, number, text) [number] = (text),
    MP_GPU_KIND_LIST(X)
#undef X
};

static int64_t
gpu_pid(const mp_chrome_t *chrome, int16_t device)
{
    return (uint32_t)device == chrome->options->pid ? INSTEAD + device
                                                    : device;
}

static void
write_row_name(const writer_t *writer, const row_t *row, bool beside)
{
    mp_chrome_t *chrome = writer->chrome;
    int64_t pid = gpu_pid(chrome, row->device);
    char text[TEXT];
    (void)snprintf(text, sizeof(text), "stream %lu%s",
                   (unsigned long)row->stream, beside ? " (overlapping)" : "");
    mp_chrome_metadata_text(chrome, pid, row->row, "thread_name", "name",
                            text);
    mp_chrome_metadata_int(chrome, pid, row->row, "thread_sort_index",
                           "sort_index", row->stream);
}

static void
write_gpu_name(const writer_t *writer, const row_t *row)
{
    mp_chrome_t *chrome = writer->chrome;
    int64_t pid = gpu_pid(chrome, row->device);
    char text[TEXT];
    (void)snprintf(text, sizeof(text), "GPU %d", row->device);
    mp_chrome_metadata_text(chrome, pid, row->row, "process_name", "name",
                            chrome->options->pid_name);
    mp_chrome_metadata_text(chrome, pid, row->row, "process_labels", "labels",
                            text);
    mp_chrome_metadata_int(chrome, pid, row->row, "process_sort_index",
                           "sort_index", SORT + row->device);
}

/* The row for WORK, which begins after all that were asked for before; 0: no
 * memory. */
static uint64_t
row_for(writer_t *writer, const mp_gpu_work_t *work)
{
    bool gpu_known = false, stream_known = false;
    for (size_t i = 0; i < writer->count; i++) {
        row_t *row = &writer->rows[i];
        gpu_known |= row->device == work->device;
        if (row->device == work->device && row->stream == work->stream) {
            stream_known = true;
            if (row->end_ns <= work->start_ns) {
                row->end_ns = work->end_ns;
                return row->row;
            }
        }
    }
    if (writer->count == writer->capacity) {
        size_t capacity = writer->capacity * 2 + 16;
        row_t *rows = mp_realloc(writer->rows, capacity * sizeof(*rows));
        if (rows == NULL) {
            return 0;
        }
        writer->rows = rows;
        writer->capacity = capacity;
    }
    bool own = !stream_known && work->stream > 0 && work->stream < MOST_STREAM;
    row_t *row = &writer->rows[writer->count];
    *row = (row_t){
        .device = work->device,
        .stream = work->stream,
        .row = own ? work->stream : ROW_BESIDE + writer->count,
        .end_ns = work->end_ns,
    };
    writer->count++;
    if (!gpu_known) {
        write_gpu_name(writer, row);
    }
    write_row_name(writer, row, stream_known);
    return row->row;
}

static void
write_flow(mp_chrome_t *chrome, char ph, int64_t pid, uint64_t row,
           int64_t time_ns, int64_t id)
{
    mp_chrome_begin(chrome, ph, "ac2g", pid, row, time_ns);
    mp_chrome_name(chrome, "ac2g");
    mp_outfile_text(chrome->file, ",\"id\":");
    mp_json_int(chrome->file, id);
    if (ph == 'f') {
        mp_outfile_text(chrome->file, ",\"bp\":\"e\"");
    }
    mp_chrome_end(chrome);
}

static void
write_launch(mp_chrome_t *chrome, const mp_gpu_work_t *work, uint64_t thread)
{
    static const char *const names[] = {"launch of a kernel",
                                        "launch of a copy", "launch of a set"};
    int64_t begin = mp_chrome_time(chrome, work->launch_event);
    mp_chrome_begin(chrome, 'X', "cuda_driver", chrome->options->pid, thread,
                    begin);
    mp_chrome_duration(chrome, begin, begin);
    mp_chrome_name(chrome, names[work->kind]);
    mp_chrome_args(chrome);
    mp_chrome_uint(chrome, true, "correlation", work->correlation);
    mp_chrome_args_end(chrome);
}

static void
write_work(mp_chrome_t *chrome, const mp_gpu_work_t *work, uint64_t row)
{
    int64_t pid = gpu_pid(chrome, work->device);
    mp_chrome_begin(chrome, 'X', cats[work->kind], pid, row, work->start_ns);
    mp_chrome_duration(chrome, work->start_ns, work->end_ns);
    mp_chrome_interned_name(chrome, work->name == MP_NO_INDEX ? "?" : "",
                            work->name);
    mp_chrome_args(chrome);
    mp_chrome_int(chrome, true, "device", work->device);
    mp_chrome_uint(chrome, false, "stream", work->stream);
    mp_chrome_uint(chrome, false, "correlation", work->correlation);
    if (work->kind != MP_GPU_KERNEL) {
        mp_chrome_uint(chrome, false, "bytes", work->bytes);
    }
    if (work->op != MP_NO_INDEX) {
        mp_chrome_interned(chrome, false, "op", work->op);
    }
    if (work->module != MP_NO_INDEX) {
        mp_chrome_interned(chrome, false, "module", work->module);
    }
    mp_chrome_args_end(chrome);
}

/* FRESH: its launch was not written yet. */
static bool
write_one(writer_t *writer, const mp_gpu_work_t *work, bool fresh)
{
    mp_chrome_t *chrome = writer->chrome;
    uint64_t row = row_for(writer, work);
    if (row == 0) {
        return false;
    }
    write_work(chrome, work, row);
    if (work->launch_event >= 0) {
        uint64_t thread =
            work->thread != 0 ? work->thread : chrome->options->pid;
        if (fresh) {
            write_launch(chrome, work, thread);
        }
        int64_t begin = mp_chrome_time(chrome, work->launch_event);
        if (begin <= work->start_ns) { /* two clocks may say otherwise */
            write_flow(chrome, 's', chrome->options->pid, thread, begin,
                       work->event);
            write_flow(chrome, 'f', gpu_pid(chrome, work->device), row,
                       work->start_ns, work->event);
        }
    }
    return true;
}

mp_status_t
mp_chrome_gpu(mp_chrome_t *chrome)
{
    const mp_export_t *source = chrome->source;
    mp_gpu_work_t *work;
    size_t count;
    mp_status_t status =
        mp_gpu_work_rows(source->events, source->event_count, &work, &count);
    if (status != MP_OK || count == 0) {
        return status;
    }
    writer_t writer = {.chrome = chrome};
    uint8_t *launched = mp_calloc(source->event_count, 1);
    mp_cut_t cut = {0};
    for (size_t i = 0; i < count; i++) {
        mp_cut_count(&cut, (uint64_t)(work[i].end_ns - work[i].start_ns));
    }
    mp_cut_decide(&cut, MAX_WORK);
    status = launched == NULL ? MP_ERR_NOMEM : MP_OK;
    for (size_t i = 0; i < count && status == MP_OK; i++) {
        if (!mp_cut_keeps(&cut,
                          (uint64_t)(work[i].end_ns - work[i].start_ns))) {
            continue;
        }
        int64_t launch = work[i].launch_event;
        bool fresh = launch >= 0 && launched[launch] == 0;
        if (fresh) {
            launched[launch] = 1;
        }
        status = write_one(&writer, &work[i], fresh) ? mp_chrome_status(chrome)
                                                     : MP_ERR_NOMEM;
    }
    chrome->ops_out += cut.left_out;
    mp_free(launched);
    mp_free(writer.rows);
    mp_free(work);
    return status;
}
