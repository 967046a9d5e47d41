/* export_chrome.c - a recording as a Chrome trace, as Kineto would write it.
 *
 * The host's rows (ops, modules, regions, steps, [memory] instants) in
 * Kineto's own words, which is what other tools read; then a process for the
 * memory of each device (chrome_device.c). */
#include "export_chrome.h"

#include "chrome.h"
#include "cut.h"
#include "mem.h"

#include <stdio.h>

enum {
    BUNCHES = 2000,       /* of changes, for the counters of a device */
    MAX_SLICES = 200000,  /* of the host, and of all devices together */
    MAX_INSTANTS = 20000, /* unless all are asked for */
    /* A row of its own for steps that overlap what ran meanwhile: above any
     * thread of Linux. */
    ROW_STEPS = (1 << 22) + 1,
    TEXT = 128
};

/* ---- the host's rows ------------------------------------------------------
 */

static void
write_thread_name(mp_chrome_t *chrome, uint32_t thread)
{
    int64_t pid = chrome->options->pid;
    char text[TEXT];
    (void)snprintf(text, sizeof(text), "thread %lu (%s)",
                   (unsigned long)thread, thread == pid ? "main" : "python");
    mp_chrome_metadata_text(chrome, pid, thread, "thread_name", "name", text);
    mp_chrome_metadata_int(chrome, pid, thread, "thread_sort_index",
                           "sort_index", thread);
}

static void
write_host_names(mp_chrome_t *chrome, const mp_slices_t *slices)
{
    int64_t pid = chrome->options->pid;
    uint64_t main_thread = chrome->options->pid;
    mp_chrome_metadata_text(chrome, pid, main_thread, "process_name", "name",
                            chrome->options->pid_name);
    mp_chrome_metadata_text(chrome, pid, main_thread, "process_labels",
                            "labels", "CPU");
    mp_chrome_metadata_int(chrome, pid, main_thread, "process_sort_index",
                           "sort_index", pid);
    write_thread_name(chrome, chrome->options->pid);
    for (size_t i = 0; i < slices->thread_count; i++) {
        uint32_t thread = slices->threads[i];
        if (thread != 0 && thread != main_thread) {
            write_thread_name(chrome, thread);
        }
    }
}

/* A thread of 0 is none that viewers know. */
static uint64_t
host_thread(const mp_chrome_t *chrome, uint32_t thread)
{
    return thread != 0 ? thread : chrome->options->pid;
}

/* Whether a slice of the steps' thread holds a part of a step and not all of
 * it. */
static bool
overlaps_steps(const mp_spans_t *steps, const mp_slice_t *slice)
{
    size_t low = 0, high = steps->count; /* steps that begin behind it */
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (steps->spans[middle].begin_event > slice->begin_event) {
            high = middle;
        }
        else {
            low = middle + 1;
        }
    }
    /* The last that begins before it, and the first behind. */
    bool cut = low > 0 &&
               steps->spans[low - 1].end_event > slice->begin_event &&
               steps->spans[low - 1].end_event < slice->end_event;
    size_t last = low;
    while (last < steps->count &&
           steps->spans[last].begin_event < slice->end_event) {
        cut |= steps->spans[last].end_event > slice->end_event;
        last++;
    }
    return cut;
}

/* The thread that said step(); 0: not known.  The row of a step may begin
 * where its first device was seen, on whichever thread. */
static uint32_t
steps_thread(const mp_export_t *source, const mp_spans_t *steps)
{
    for (size_t i = 0; i < steps->count; i++) {
        size_t begin = (size_t)steps->spans[i].begin_event;
        if (begin < source->event_count &&
            source->events[begin].kind == MP_EVENT_STEP) {
            return source->events[begin].thread;
        }
    }
    return 0;
}

static void
write_steps(mp_chrome_t *chrome, const mp_slices_t *slices)
{
    const mp_spans_t *steps = &chrome->options->steps;
    const mp_export_t *source = chrome->source;
    if (steps->count == 0) {
        return;
    }
    uint64_t row = host_thread(chrome, steps_thread(source, steps));
    for (size_t i = 0; i < slices->count && row != ROW_STEPS; i++) {
        const mp_slice_t *slice = &slices->slices[i];
        if (host_thread(chrome, slices->threads[slice->thread]) == row &&
            overlaps_steps(steps, slice)) {
            row = ROW_STEPS;
        }
    }
    if (row == ROW_STEPS) {
        mp_chrome_metadata_text(chrome, chrome->options->pid, row,
                                "thread_name", "name", "steps");
    }
    char text[TEXT];
    for (size_t i = 0; i < steps->count; i++) {
        const mp_span_t *step = &steps->spans[i];
        (void)snprintf(text, sizeof(text), "ProfilerStep#%lld",
                       (long long)step->label);
        /* Two that touch overlap where ts + dur is added up in doubles. */
        bool apart =
            step->end_event > step->begin_event &&
            mp_chrome_time(chrome, step->end_event - 1) < step->end_ns;
        mp_chrome_begin(chrome, 'X', "user_annotation", chrome->options->pid,
                        row, step->begin_ns);
        mp_chrome_duration(chrome, step->begin_ns, step->end_ns - apart);
        mp_chrome_name(chrome, text);
        mp_chrome_args(chrome);
        mp_chrome_int(chrome, true, "Ev Idx", step->begin_event);
        mp_chrome_args_end(chrome);
    }
}

/* The module around a slice, as a number above 0; 0: none. */
static uint64_t
outer_module(const mp_slices_t *slices, uint32_t slice)
{
    while (slice != MP_NO_INDEX &&
           slices->slices[slice].kind != MP_SLICE_MODULE) {
        slice = slices->slices[slice].parent;
    }
    return slice == MP_NO_INDEX ? 0 : (uint64_t)slice + 1;
}

/* TensorBoard's reader takes a number behind this name for granted. */
static bool
looks_like_step(const mp_chrome_t *chrome, uint32_t name)
{
    const char *text;
    size_t length;
    return mp_intern_text(chrome->source->intern, name, &text, &length) &&
           strncmp(text, "ProfilerStep#", 13) == 0;
}

static void
write_host_slice(mp_chrome_t *chrome, const mp_slices_t *slices, uint32_t i)
{
    const mp_slice_t *slice = &slices->slices[i];
    const mp_event_t *event = &chrome->source->events[slice->begin_event];
    const char *cat = "cpu_op";
    if (slice->kind == MP_SLICE_MODULE) {
        cat = "python_function";
    }
    else if (slice->kind == MP_SLICE_REGION) {
        cat = "user_annotation";
    }
    if (slice->kind != MP_SLICE_MODULE &&
        looks_like_step(chrome, slice->name)) {
        cat = "memprof.region";
    }
    int64_t begin = mp_chrome_time(chrome, slice->begin_event);
    mp_chrome_begin(chrome, 'X', cat, chrome->options->pid,
                    host_thread(chrome, slices->threads[slice->thread]),
                    begin);
    mp_chrome_duration(chrome, begin,
                       mp_chrome_time(chrome, slice->end_event));
    mp_chrome_interned_name(
        chrome, slice->kind == MP_SLICE_MODULE ? "nn.Module: " : "",
        slice->name);
    mp_chrome_args(chrome);
    if (slice->kind == MP_SLICE_MODULE) {
        mp_chrome_uint(chrome, true, "Python id", (uint64_t)i + 1);
        uint64_t outer = outer_module(slices, slice->parent);
        if (outer == 0) {
            mp_outfile_text(chrome->file, ",\"Python parent id\":null");
        }
        else {
            mp_chrome_uint(chrome, false, "Python parent id", outer);
        }
        mp_chrome_uint(chrome, false, "Python module id", slice->name);
    }
    else {
        mp_chrome_uint(chrome, true, "External id", (uint64_t)i + 1);
        if (slice->kind == MP_SLICE_OP && event->addr != UINT64_MAX) {
            mp_chrome_uint(chrome, false, "Sequence number", event->addr);
            mp_chrome_uint(chrome, false, "Fwd thread id", event->size);
        }
    }
    mp_chrome_int(chrome, false, "Ev Idx", slice->begin_event);
    mp_chrome_args_end(chrome);
}

static bool
takes_time(const mp_chrome_t *chrome, const mp_slice_t *slice)
{
    return mp_chrome_time(chrome, slice->begin_event) <
           mp_chrome_time(chrome, slice->end_event);
}

/* TensorBoard's reader needs one op or step that takes time: of a recording
 * without, the recording as a whole. */
static void
write_something(mp_chrome_t *chrome, const mp_slices_t *slices)
{
    const mp_spans_t *steps = &chrome->options->steps;
    for (size_t i = 0; i < steps->count; i++) {
        if (steps->spans[i].begin_ns < steps->spans[i].end_ns) {
            return;
        }
    }
    for (size_t i = 0; i < slices->count; i++) {
        const mp_slice_t *slice = &slices->slices[i];
        if (slice->kind == MP_SLICE_OP && takes_time(chrome, slice)) {
            return;
        }
    }
    int64_t begin = mp_chrome_time(chrome, -1);
    mp_chrome_begin(chrome, 'X', "cpu_op", chrome->options->pid,
                    chrome->options->pid, begin);
    mp_chrome_duration(chrome, begin, chrome->end_ns + 1000);
    mp_chrome_name(chrome, "memprof: the recording");
    mp_chrome_end(chrome);
}

static mp_status_t
write_host(mp_chrome_t *chrome, const mp_slices_t *slices)
{
    mp_cut_t cut = {0};
    mp_status_t status = MP_OK;
    write_host_names(chrome, slices);
    write_something(chrome, slices);
    write_steps(chrome, slices);
    for (size_t i = 0; i < slices->count; i++) {
        const mp_slice_t *slice = &slices->slices[i];
        mp_cut_count(&cut, slice->allocated / 2 + slice->freed / 2);
    }
    mp_cut_decide(&cut, MAX_SLICES);
    for (size_t i = 0; i < slices->count && status == MP_OK; i++) {
        const mp_slice_t *slice = &slices->slices[i];
        if (mp_cut_keeps(&cut, slice->allocated / 2 + slice->freed / 2)) {
            write_host_slice(chrome, slices, (uint32_t)i);
            status = mp_chrome_status(chrome);
        }
    }
    chrome->ops_out += cut.left_out;
    return status;
}

/* ---- [memory] -------------------------------------------------------------
 */

typedef struct {
    int64_t allocated, reserved;
} total_t;

/* The totals of DEVICE; NULL: not one of those seen. */
static total_t *
total_of(const mp_export_t *source, total_t totals[MP_EXPORT_DEVICES],
         int16_t device)
{
    for (size_t i = 0; i < source->device_count; i++) {
        if (source->devices[i] == device) {
            return &totals[i];
        }
    }
    return NULL;
}

static void
add(int64_t *value, uint64_t bytes)
{
    *value = (int64_t)((uint64_t)*value + bytes);
}

static void
write_instant(mp_chrome_t *chrome, const char *name, size_t i,
              const mp_allocation_t *life, uint64_t bytes,
              const total_t *total)
{
    const mp_event_t *event = &chrome->source->events[i];
    mp_chrome_begin(chrome, 'i', "cpu_instant_event", chrome->options->pid,
                    host_thread(chrome, event->thread), chrome->clock[i]);
    mp_chrome_name(chrome, name);
    mp_outfile_text(chrome->file, ",\"s\":\"t\"");
    mp_chrome_args(chrome);
    mp_chrome_int(chrome, true, "Total Reserved", total->reserved);
    mp_chrome_int(chrome, false, "Total Allocated", total->allocated);
    mp_chrome_int(chrome, false, "Bytes", (int64_t)bytes);
    mp_chrome_int(chrome, false, "Device Id", event->device);
    mp_chrome_int(chrome, false, "Device Type",
                  event->device == MP_DEVICE_CPU ? 0 : 1);
    if (life != NULL) {
        mp_chrome_uint(chrome, false, "Addr", life->address);
    }
    mp_chrome_int(chrome, false, "Ev Idx", (int64_t)i);
    mp_chrome_args_end(chrome);
}

static void
cut_instants(const mp_chrome_t *chrome, mp_cut_t *cut)
{
    const mp_export_t *source = chrome->source;
    for (size_t i = 0; i < source->life_count; i++) {
        const mp_allocation_t *life = &source->lives[i];
        if (!mp_life_is_over(life)) {
            if (life->born_event >= 0) {
                mp_cut_count(cut, life->size);
            }
            if (life->died_event >= 0) {
                mp_cut_count(cut, life->size);
            }
        }
    }
    mp_cut_decide(cut, MAX_INSTANTS);
}

static mp_status_t
write_memory(mp_chrome_t *chrome, mp_life_walk_t *walk)
{
    const mp_export_t *source = chrome->source;
    bool full = chrome->options->full;
    total_t totals[MP_EXPORT_DEVICES] = {0};
    mp_cut_t cut = {0};
    mp_status_t status = MP_OK;
    for (size_t i = 0; i < source->life_count; i++) {
        const mp_allocation_t *life = &source->lives[i];
        total_t *total = total_of(source, totals, life->device);
        if (total != NULL && life->born_event < 0) {
            add(&total->allocated, life->size);
        }
    }
    cut_instants(chrome, &cut);
    for (size_t i = 0; i < source->event_count && status == MP_OK; i++) {
        const mp_event_t *event = &source->events[i];
        if (!mp_event_is_memory(event->kind)) {
            continue;
        }
        total_t *total = total_of(source, totals, event->device);
        if (total == NULL) {
            continue;
        }
        const mp_allocation_t *changed[2] = {mp_life_walk_died(walk, i),
                                             mp_life_walk_born(walk, i)};
        for (int born = 0; born < 2; born++) {
            const mp_allocation_t *life = changed[born];
            if (life == NULL) {
                continue;
            }
            uint64_t bytes = born ? life->size : 0 - life->size;
            add(&total->allocated, bytes);
            if (full || mp_cut_keeps(&cut, life->size)) {
                write_instant(chrome, "[memory]", i, life, bytes, total);
            }
        }
        if (event->kind == MP_EVENT_OOM) {
            write_instant(chrome, "[OutOfMemory]", i, NULL, event->size,
                          total);
        }
        else if (event->kind == MP_EVENT_SEGMENT_ALLOC ||
                 event->kind == MP_EVENT_SEGMENT_MAP ||
                 event->kind == MP_EVENT_SEED_SEGMENT) {
            add(&total->reserved, event->size);
        }
        else if (event->kind == MP_EVENT_SEGMENT_FREE ||
                 event->kind == MP_EVENT_SEGMENT_UNMAP) {
            add(&total->reserved, 0 - event->size);
        }
        status = mp_chrome_status(chrome);
    }
    chrome->memory_out = cut.left_out;
    return status;
}

/* ---- the whole ------------------------------------------------------------
 */

static mp_status_t
write_device(mp_chrome_t *chrome, int16_t device, bool with_host,
             bool with_memory)
{
    const mp_export_t *source = chrome->source;
    mp_life_walk_t walk = {0};
    mp_slices_t slices = {0};
    mp_levels_t levels = {0};
    const mp_spans_t lists[MP_SPAN_LISTS] = {chrome->options->steps,
                                             chrome->options->phases};
    uint8_t *written = NULL;
    mp_status_t status = mp_life_walk_open(
        &walk, source->event_count, source->lives, source->life_count, device);
    if (status == MP_OK) {
        status =
            mp_levels_build(source, device, &walk, BUNCHES, lists, &levels);
    }
    if (status == MP_OK) {
        walk.next = 0;
        status = mp_slices_build(source, device, &walk, &slices);
    }
    mp_life_walk_close(&walk);
    if (status == MP_OK && with_host) {
        status = write_host(chrome, &slices);
    }
    if (status == MP_OK && with_memory) {
        written = mp_calloc(slices.count + 1, 1);
        status =
            written == NULL
                ? MP_ERR_NOMEM
                : mp_chrome_device(chrome, device, &slices, &levels, written,
                                   MAX_SLICES / source->device_count);
    }
    mp_free(written);
    mp_levels_clear(&levels);
    mp_slices_clear(&slices);
    return status;
}

static mp_status_t
write_events(mp_chrome_t *chrome)
{
    const mp_export_t *source = chrome->source;
    const mp_chrome_options_t *options = chrome->options;
    mp_status_t status = MP_OK;
    if (source->device_count == 0 && options->host) {
        status = write_device(chrome, MP_DEVICE_CPU, true, false);
    }
    /* The host's rows come with the last device: the GPU's bytes, not the
     * CPU's, say which ops count if there are too many. */
    for (size_t i = source->device_count; i-- > 0 && status == MP_OK;) {
        status =
            write_device(chrome, source->devices[i],
                         options->host && i + 1 == source->device_count, true);
    }
    if (status == MP_OK && options->host) {
        status = mp_chrome_gpu(chrome); /* else the other trace has it */
    }
    if (status == MP_OK && options->memory) {
        mp_life_walk_t walk = {0};
        status = mp_life_walk_open(&walk, source->event_count, source->lives,
                                   source->life_count, MP_WALK_ALL);
        if (status == MP_OK) {
            status = write_memory(chrome, &walk);
        }
        mp_life_walk_close(&walk);
    }
    return status;
}

static bool
make_clock(mp_chrome_t *chrome)
{
    const mp_export_t *source = chrome->source;
    chrome->clock = mp_calloc(source->event_count + 1, sizeof(int64_t));
    if (chrome->clock == NULL) {
        return false;
    }
    int64_t now =
        source->event_count > 0 ? source->events[0].time_ns : source->start_ns;
    for (size_t i = 0; i < source->event_count; i++) {
        now =
            source->events[i].time_ns > now ? source->events[i].time_ns : now;
        chrome->clock[i] = now;
    }
    chrome->end_ns = now;
    return true;
}

mp_status_t
mp_export_chrome(const mp_export_t *source, const mp_chrome_options_t *options,
                 const char *path, bool gzip, mp_chrome_result_t *result,
                 int *saved_errno)
{
    mp_chrome_t chrome = {.source = source, .options = options};
    mp_status_t status =
        mp_outfile_open(path, gzip, &chrome.file, saved_errno);
    if (status != MP_OK) {
        return status;
    }
    if (!make_clock(&chrome)) {
        status = MP_ERR_NOMEM;
    }
    if (status == MP_OK) {
        mp_outfile_write(chrome.file, options->head, options->head_length);
        status = write_events(&chrome);
    }
    if (status == MP_OK) {
        if (chrome.any && options->comma_after) {
            mp_outfile_text(chrome.file, ",\n");
        }
        mp_outfile_write(chrome.file, options->tail, options->tail_length);
        status = mp_chrome_status(&chrome);
    }
    *result = (mp_chrome_result_t){
        .bytes = mp_outfile_length(chrome.file),
        .ops_out = chrome.ops_out,
        .memory_out = chrome.memory_out,
    };
    mp_free(chrome.clock);
    return mp_outfile_close(chrome.file, status, saved_errno);
}
