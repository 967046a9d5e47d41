/* chrome_device.c - the rows of one device's memory in a Chrome trace.
 *
 * A process of its own: counters, steps, phases, findings, the life spans of
 * the largest allocations, and of each host thread what it did on the
 * device. */
#include "chrome.h"
#include "cut.h"

#include <stdio.h>

enum {
    ROW_STEPS = MP_CHROME_ROW_COUNTERS,
    ROW_PHASES = 2,
    ROW_FINDINGS = MP_CHROME_ROW_FINDINGS,
    ROW_LARGEST = 4,
    ROW_THREADS = 100, /* and so many more as there are threads */
    LARGEST = 200,
    TEXT = 128
};

typedef struct {
    mp_chrome_t *chrome;
    int16_t device;
    int64_t pid;
    const mp_slices_t *slices;
    const mp_levels_t *levels;
    uint8_t *written; /* [slice] */
} writer_t;

/* Above any process of Linux: 2^22 is the highest there. */
static int64_t
device_pid(int16_t device)
{
    if (device == MP_DEVICE_CPU) {
        return 9000900;
    }
    return (device < 90 ? 9000000 : 9001000) + INT64_C(10) * device;
}

static void
write_names(const writer_t *writer)
{
    static const struct {
        uint64_t row;
        const char *name;
    } rows[] = {{ROW_STEPS, "steps"},
                {ROW_PHASES, "phases"},
                {ROW_FINDINGS, "findings"},
                {ROW_LARGEST, "largest allocations"}};
    mp_chrome_t *chrome = writer->chrome;
    char text[TEXT];
    if (writer->device == MP_DEVICE_CPU) {
        (void)snprintf(text, sizeof(text), "memprof CPU memory");
    }
    else {
        (void)snprintf(text, sizeof(text), "memprof GPU %d memory",
                       writer->device);
    }
    mp_chrome_metadata_text(chrome, writer->pid, ROW_STEPS, "process_name",
                            "name", text);
    /* Above the rows of GPUs, which Kineto has at 5000000 and up. */
    mp_chrome_metadata_int(chrome, writer->pid, ROW_STEPS,
                           "process_sort_index", "sort_index",
                           4999000 + writer->device);
    for (size_t i = 0; i < MP_ARRAY_LENGTH(rows); i++) {
        mp_chrome_metadata_text(chrome, writer->pid, rows[i].row,
                                "thread_name", "name", rows[i].name);
        mp_chrome_metadata_int(chrome, writer->pid, rows[i].row,
                               "thread_sort_index", "sort_index",
                               (int64_t)rows[i].row);
    }
    for (size_t i = 0; i < writer->slices->thread_count; i++) {
        (void)snprintf(text, sizeof(text), "thread %lu",
                       (unsigned long)writer->slices->threads[i]);
        mp_chrome_metadata_text(chrome, writer->pid, ROW_THREADS + i,
                                "thread_name", "name", text);
        mp_chrome_metadata_int(chrome, writer->pid, ROW_THREADS + i,
                               "thread_sort_index", "sort_index",
                               (int64_t)(ROW_THREADS + i));
    }
}

/* ---- counters -------------------------------------------------------------
 */

static void
write_counter(const writer_t *writer, const char *name, int64_t time_ns,
              int64_t bytes)
{
    mp_chrome_counter(writer->chrome, writer->pid, name, time_ns, bytes);
}

static const char *const category_names[] = {
#define X(name, number, text) text,
    MP_CATEGORY_LIST(X)
#undef X
};

static void
write_stacked(const writer_t *writer, int64_t time_ns, const mp_level_t *now)
{
    mp_chrome_t *chrome = writer->chrome;
    mp_chrome_begin(chrome, 'C', NULL, writer->pid, ROW_STEPS, time_ns);
    mp_chrome_name(chrome, "by category");
    mp_chrome_args(chrome);
    for (size_t i = 0; i < MP_CATEGORY_COUNT; i++) {
        mp_chrome_int(chrome, i == 0, category_names[i], now->category[i]);
    }
    mp_chrome_args_end(chrome);
}

/* A counter holds its value, so what has not changed since BEFORE (NULL:
 * nothing was written) is not written again. */
static void
write_level(const writer_t *writer, int64_t time_ns, const mp_level_t *now,
            const mp_level_t *before)
{
    static const char *const names[] = {
#define X(name, number, text) "cat/" text,
        MP_CATEGORY_LIST(X)
#undef X
    };
    if (before == NULL || before->allocated != now->allocated) {
        write_counter(writer, "allocated", time_ns, now->allocated);
    }
    if (writer->device != MP_DEVICE_CPU && /* which keeps no segments */
        (before == NULL || before->reserved != now->reserved)) {
        write_counter(writer, "reserved", time_ns, now->reserved);
    }
    for (size_t i = 0; i < MP_CATEGORY_COUNT; i++) {
        if (before == NULL || before->category[i] != now->category[i]) {
            write_counter(writer, names[i], time_ns, now->category[i]);
        }
    }
    if (writer->chrome->options->stacked) {
        write_stacked(writer, time_ns, now);
    }
}

static mp_status_t
write_counters(const writer_t *writer)
{
    const mp_levels_t *levels = writer->levels;
    mp_chrome_t *chrome = writer->chrome;
    mp_status_t status = MP_OK;
    for (size_t i = 0; i < levels->count && status == MP_OK; i++) {
        const mp_level_t *now = &levels->samples[i];
        write_level(writer, mp_chrome_time(chrome, now->event), now,
                    i == 0 ? NULL : now - 1);
        status = mp_chrome_status(chrome);
    }
    /* Viewers draw no more than up to the last sample. */
    write_level(writer, chrome->end_ns + 1000,
                &levels->samples[levels->count - 1], NULL);
    return status;
}

/* ---- steps, phases, the peak ----------------------------------------------
 */

static void
write_span(const writer_t *writer, const char *cat, uint64_t row,
           const char *name, const mp_span_t *span,
           const mp_span_level_t *level)
{
    mp_chrome_t *chrome = writer->chrome;
    mp_chrome_begin(chrome, 'X', cat, writer->pid, row, span->begin_ns);
    mp_chrome_duration(chrome, span->begin_ns, span->end_ns);
    mp_chrome_name(chrome, name);
    mp_chrome_args(chrome);
    mp_chrome_int(chrome, true, "peak_bytes", level->peak);
    mp_chrome_int(chrome, false, "retained_bytes", level->end);
    mp_chrome_int(chrome, false, "delta_bytes",
                  (int64_t)((uint64_t)level->end - (uint64_t)level->begin));
    mp_chrome_args_end(chrome);
}

static mp_status_t
write_spans(const writer_t *writer)
{
    static const char *const phases[] = {
#define X(name, number, text) text,
        MP_PHASE_LIST(X)
#undef X
    };
    const mp_chrome_options_t *options = writer->chrome->options;
    char text[TEXT];
    for (size_t i = 0; i < options->steps.count; i++) {
        const mp_span_t *step = &options->steps.spans[i];
        (void)snprintf(text, sizeof(text), "step %lld",
                       (long long)step->label);
        write_span(writer, "memprof.step", ROW_STEPS, text, step,
                   &writer->levels->span_levels[0][i]);
    }
    mp_status_t status = MP_OK;
    for (size_t i = 0; i < options->phases.count && status == MP_OK; i++) {
        const mp_span_t *phase = &options->phases.spans[i];
        size_t label = (size_t)phase->label;
        write_span(writer, "memprof.phase", ROW_PHASES,
                   phases[label < MP_ARRAY_LENGTH(phases) ? label : 0], phase,
                   &writer->levels->span_levels[1][i]);
        status = mp_chrome_status(writer->chrome);
    }
    return status;
}

/* As people read it: "11.84 GiB". */
static void
format_bytes(char text[TEXT], const char *prefix, int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    double value = (double)bytes;
    while (value >= 1024 && unit + 1 < MP_ARRAY_LENGTH(units)) {
        value /= 1024;
        unit++;
    }
    int length =
        snprintf(text, TEXT, "%s%.*f", prefix, unit == 0 ? 0 : 2, value);
    for (int i = 0; i < length; i++) {
        if (text[i] == ',') { /* the locale's */
            text[i] = '.';
        }
    }
    (void)snprintf(text + length, TEXT - (size_t)length, " %s", units[unit]);
}

static void
write_findings(const writer_t *writer)
{
    mp_chrome_t *chrome = writer->chrome;
    const mp_levels_t *levels = writer->levels;
    const mp_export_t *source = chrome->source;
    char text[TEXT];
    if (levels->peak > 0 && source->event_count > 0) {
        int64_t begin = mp_chrome_time(chrome, levels->high_begin);
        int64_t end = mp_chrome_time(chrome, levels->high_end);
        format_bytes(text, "peak: ", levels->peak);
        mp_chrome_begin(chrome, 'X', "memprof.finding", writer->pid,
                        ROW_FINDINGS, begin);
        mp_chrome_duration(chrome, begin, end);
        mp_chrome_name(chrome, text);
        mp_chrome_args(chrome);
        mp_chrome_int(chrome, true, "peak_bytes", levels->peak);
        mp_chrome_args_end(chrome);
    }
    for (size_t i = 0; i < source->event_count; i++) {
        const mp_event_t *event = &source->events[i];
        if (event->kind != MP_EVENT_OOM || event->device != writer->device) {
            continue;
        }
        mp_chrome_begin(chrome, 'i', "memprof.oom", writer->pid, ROW_FINDINGS,
                        chrome->clock[i]);
        mp_chrome_name(chrome, "out of memory");
        mp_outfile_text(chrome->file, ",\"s\":\"g\"");
        mp_chrome_args(chrome);
        mp_chrome_uint(chrome, true, "asked_bytes", event->size);
        mp_chrome_uint(chrome, false, "device_free_bytes", event->addr);
        mp_chrome_args_end(chrome);
    }
}

/* ---- what threads did -----------------------------------------------------
 */

static mp_status_t
write_slices(writer_t *writer, size_t max_slices)
{
    static const char *const cats[] = {
        [MP_SLICE_OP] = "memprof.op",
        [MP_SLICE_MODULE] = "memprof.module",
        [MP_SLICE_REGION] = "memprof.region",
    };
    const mp_slices_t *slices = writer->slices;
    mp_chrome_t *chrome = writer->chrome;
    mp_cut_t cut = {0};
    for (size_t i = 0; i < slices->count; i++) {
        const mp_slice_t *slice = &slices->slices[i];
        if (slice->touched) {
            mp_cut_count(&cut, slice->allocated / 2 + slice->freed / 2);
        }
    }
    mp_cut_decide(&cut, max_slices);
    mp_status_t status = MP_OK;
    for (size_t i = 0; i < slices->count && status == MP_OK; i++) {
        const mp_slice_t *slice = &slices->slices[i];
        if (!slice->touched ||
            !mp_cut_keeps(&cut, slice->allocated / 2 + slice->freed / 2)) {
            continue;
        }
        writer->written[i] = 1;
        int64_t begin = mp_chrome_time(chrome, slice->begin_event);
        mp_chrome_begin(chrome, 'X', cats[slice->kind], writer->pid,
                        ROW_THREADS + slice->thread, begin);
        mp_chrome_duration(chrome, begin,
                           mp_chrome_time(chrome, slice->end_event));
        mp_chrome_interned_name(chrome, "", slice->name);
        mp_chrome_args(chrome);
        mp_chrome_int(chrome, true, "peak_bytes", slice->peak);
        mp_chrome_int(chrome, false, "retained_bytes", slice->retained);
        mp_chrome_int(chrome, false, "delta_bytes",
                      (int64_t)(slice->allocated - slice->freed));
        mp_chrome_args_end(chrome);
        status = mp_chrome_status(chrome);
    }
    chrome->ops_out += cut.left_out;
    return status;
}

/* ---- life spans -----------------------------------------------------------
 */

/* The largest that were alive at the peak, the largest first. */
static size_t
find_largest(const writer_t *writer, const mp_allocation_t *found[LARGEST])
{
    const mp_export_t *source = writer->chrome->source;
    int64_t at = writer->levels->peak_event;
    size_t count = 0;
    for (size_t i = 0; i < source->life_count; i++) {
        const mp_allocation_t *life = &source->lives[i];
        if (life->device != writer->device || life->size == 0 ||
            life->born_event > at ||
            (life->died_event >= 0 && life->died_event <= at)) {
            continue;
        }
        if (count == LARGEST && found[LARGEST - 1]->size >= life->size) {
            continue;
        }
        size_t place = count < LARGEST ? count++ : LARGEST - 1;
        for (; place > 0 && found[place - 1]->size < life->size; place--) {
            found[place] = found[place - 1];
        }
        found[place] = life;
    }
    return count;
}

static bool
begins_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

/* Whether FILE is of none of the libraries; false if its name is not known. */
static bool
is_users(const writer_t *writer, uint32_t file)
{
    const mp_chrome_options_t *options = writer->chrome->options;
    const char *text;
    size_t length;
    if (!mp_intern_text(writer->chrome->source->intern, file, &text,
                        &length)) {
        return false;
    }
    for (size_t i = 0; i < options->library_count; i++) {
        if (begins_with(text, options->libraries[i])) {
            return false;
        }
    }
    return text[0] != '<'; /* <frozen ...> */
}

/* The innermost frame of the user's, else the innermost. */
static bool
find_frame(const writer_t *writer, uint32_t stack, mp_frame_t *found)
{
    const mp_intern_t *intern = writer->chrome->source->intern;
    mp_stack_t node;
    mp_frame_t frame;
    bool any = false;
    while (stack != MP_NO_INDEX && mp_intern_get_stack(intern, stack, &node) &&
           mp_intern_get_frame(intern, node.frame, &frame)) {
        if (!any) {
            *found = frame;
            any = true;
        }
        if (is_users(writer, frame.file)) {
            *found = frame;
            return true;
        }
        stack = node.parent;
    }
    return any;
}

static void
write_where(const writer_t *writer, const mp_allocation_t *life)
{
    mp_chrome_t *chrome = writer->chrome;
    const mp_intern_t *intern = chrome->source->intern;
    mp_frame_t frame;
    const char *function, *file;
    size_t function_length, file_length;
    uint32_t stack =
        life->forward_stack != MP_NO_INDEX ? life->forward_stack : life->stack;
    if (!find_frame(writer, stack, &frame) ||
        !mp_intern_text(intern, frame.function, &function, &function_length) ||
        !mp_intern_text(intern, frame.file, &file, &file_length)) {
        return;
    }
    mp_outfile_text(chrome->file, ",\"where\":\"");
    mp_json_characters(chrome->file, function, function_length);
    mp_outfile_text(chrome->file, " (");
    mp_json_characters(chrome->file, file, file_length);
    mp_outfile_byte(chrome->file, ':');
    mp_json_uint(chrome->file, frame.line);
    mp_outfile_text(chrome->file, ")\"");
}

static void
write_life_name(const writer_t *writer, const mp_allocation_t *life)
{
    uint32_t what = life->owner;
    what = what == MP_NO_INDEX ? life->module : what;
    what = what == MP_NO_INDEX ? life->forward_module : what;
    what = what == MP_NO_INDEX ? life->op : what;
    char prefix[TEXT];
    (void)snprintf(
        prefix, sizeof(prefix), "%s%s",
        category_names[life->category < MP_CATEGORY_COUNT ? life->category
                                                          : 7],
        what == MP_NO_INDEX ? "" : " ");
    mp_chrome_interned_name(writer->chrome, prefix, what);
}

static void
write_life_args(const writer_t *writer, const mp_allocation_t *life)
{
    mp_chrome_t *chrome = writer->chrome;
    const char *category =
        category_names[life->category < MP_CATEGORY_COUNT ? life->category
                                                          : 7];
    static const char *const phases[] = {
#define X(name, number, text) text,
        MP_PHASE_LIST(X)
#undef X
    };
    const char *phase =
        phases[life->phase < MP_ARRAY_LENGTH(phases) ? life->phase : 0];
    mp_chrome_args(chrome);
    mp_chrome_uint(chrome, true, "bytes", life->size);
    mp_chrome_text(chrome, false, "category", category, strlen(category));
    mp_chrome_interned(chrome, false, "module",
                       life->module != MP_NO_INDEX ? life->module
                                                   : life->forward_module);
    mp_chrome_interned(chrome, false, "op", life->op);
    write_where(writer, life);
    mp_chrome_int(chrome, false, "step", life->born_step);
    mp_chrome_text(chrome, false, "phase", phase, strlen(phase));
}

/* The innermost slice at or around SLICE that stands in the file. */
static uint32_t
written_slice(const writer_t *writer, uint32_t slice)
{
    while (slice != MP_NO_INDEX && !writer->written[slice]) {
        slice = writer->slices->slices[slice].parent;
    }
    return slice;
}

static void
write_flow(const writer_t *writer, char ph, const mp_allocation_t *life,
           uint32_t slice, int64_t event)
{
    mp_chrome_t *chrome = writer->chrome;
    mp_chrome_begin(chrome, ph, "alloc2free", writer->pid,
                    ROW_THREADS + writer->slices->slices[slice].thread,
                    mp_chrome_time(chrome, event));
    mp_chrome_name(chrome, "alloc2free");
    mp_outfile_text(chrome->file, ",\"id\":");
    mp_json_int(chrome->file, life->id + 1);
    if (ph == 'f') {
        mp_outfile_text(chrome->file, ",\"bp\":\"e\"");
    }
    mp_chrome_end(chrome);
}

static void
write_life(const writer_t *writer, const mp_allocation_t *life)
{
    mp_chrome_t *chrome = writer->chrome;
    bool died = life->died_event >= 0;
    int64_t end = died ? mp_chrome_time(chrome, life->died_event)
                       : chrome->end_ns + 1000;
    for (int i = 0; i < 2; i++) {
        mp_chrome_begin(chrome, i == 0 ? 'b' : 'e', "memprof.alloc",
                        writer->pid, ROW_LARGEST,
                        i == 0 ? mp_chrome_time(chrome, life->born_event)
                               : end);
        write_life_name(writer, life);
        mp_outfile_text(chrome->file, ",\"id\":");
        mp_json_hex(chrome->file, (uint64_t)life->id + 1);
        if (i == 0) {
            write_life_args(writer, life);
            mp_outfile_byte(chrome->file, '}');
        }
        mp_chrome_end(chrome);
    }
    uint32_t from = written_slice(writer, writer->slices->born_in[life->id]);
    uint32_t to = written_slice(writer, writer->slices->died_in[life->id]);
    if (died && from != MP_NO_INDEX && to != MP_NO_INDEX) {
        write_flow(writer, 's', life, from, life->born_event);
        write_flow(writer, 'f', life, to, life->died_event);
    }
}

mp_status_t
mp_chrome_device(mp_chrome_t *chrome, int16_t device,
                 const mp_slices_t *slices, const mp_levels_t *levels,
                 uint8_t *written, size_t max_slices)
{
    writer_t writer = {
        .chrome = chrome,
        .device = device,
        .pid = device_pid(device),
        .slices = slices,
        .levels = levels,
        .written = written,
    };
    write_names(&writer);
    mp_status_t status = write_counters(&writer);
    if (status == MP_OK) {
        status = mp_chrome_sampled(chrome, device, writer.pid);
    }
    if (status == MP_OK) {
        status = write_spans(&writer);
    }
    if (status == MP_OK) {
        write_findings(&writer);
        status = write_slices(&writer, max_slices);
    }
    if (status == MP_OK) {
        const mp_allocation_t *largest[LARGEST];
        size_t count = find_largest(&writer, largest);
        for (size_t i = 0; i < count; i++) {
            write_life(&writer, largest[i]);
        }
        status = mp_chrome_status(chrome);
    }
    return status;
}
