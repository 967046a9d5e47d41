/* cut_recording.c - a part of a recording, as a recording.
 *
 * A life that the part does not have as a whole loses evidence of what it was
 * for: it gets the whole recording's word (MP_ROLE_TOLD). */
#include "cut_recording.h"

#include "mem.h"
#include "table.h"
#include "tracker.h"

#include <string.h>

typedef struct {
    const mp_export_t *source;
    const mp_cut_t *cut;
    uint32_t *born;       /* the life that each event of the part begins */
    uint32_t *ended;      /* and the one whose end it tells of */
    uint32_t *state_rows; /* lives that are active where it begins, in order */
    size_t state_count, state_next;
    bool leave_out; /* the state's last block is not kept */
    bool in_window; /* where the part begins, which this began: */
    mp_event_t window;
    mp_recording_data_t data;
    size_t capacity;
    mp_status_t status;
} cutter_t;

static bool
is_kept(const cutter_t *cutter, uint32_t row)
{
    return row == MP_NO_INDEX || cutter->cut->keep == NULL ||
           cutter->cut->keep[row] != 0;
}

static bool
add_event(cutter_t *cutter, const mp_event_t *event)
{
    mp_recording_data_t *data = &cutter->data;
    if (data->count == cutter->capacity) {
        size_t capacity = data->count + data->count / 2 + 256;
        mp_event_t *events =
            mp_realloc(data->events, capacity * sizeof(*events));
        if (events == NULL) {
            cutter->status = MP_ERR_NOMEM;
            return false;
        }
        data->events = events;
        cutter->capacity = capacity;
    }
    data->events[data->count++] = *event;
    return true;
}

/* The whole recording's word on a life: its role, or its category. */
static bool
add_told(cutter_t *cutter, uint32_t row, int64_t time_ns)
{
    const mp_allocation_t *life = &cutter->source->lives[row];
    bool role =
        life->role != MP_ROLE_NONE &&
        (life->role != MP_ROLE_INPUT || life->category == MP_CATEGORY_INPUT);
    mp_event_t told = {
        .addr = life->address,
        .size = role ? life->role : (uint64_t)MP_ROLE_TOLD + life->category,
        .time_ns = time_ns,
        .op = role ? life->owner : MP_NO_INDEX,
        .module = MP_NO_INDEX,
        .stack = MP_NO_INDEX,
        .kind = MP_EVENT_ROLE,
        .device = life->device,
    };
    return add_event(cutter, &told);
}

/* What caused a life, if the part does not have it. */
static bool
add_origin(cutter_t *cutter, uint32_t row, int64_t time_ns)
{
    const mp_allocation_t *life = &cutter->source->lives[row];
    if (life->forward_op == MP_NO_INDEX &&
        life->forward_module == MP_NO_INDEX &&
        life->forward_stack == MP_NO_INDEX) {
        return true;
    }
    mp_event_t origin = {
        .addr = life->address,
        .time_ns = time_ns,
        .op = life->forward_op,
        .module = life->forward_module,
        .stack = life->forward_stack,
        .op_instance = life->region,
        .kind = MP_EVENT_SEED_ORIGIN,
        .flags = MP_FLAG_ANY_LIFE,
        .device = life->device,
    };
    return add_event(cutter, &origin);
}

/* Blocks come in the order of STATE_ROWS, each before what is said of it. */
static bool
take_state(void *context, const mp_event_t *event)
{
    cutter_t *cutter = context;
    bool of_block = event->kind == MP_EVENT_SEED_ORIGIN ||
                    event->kind == MP_EVENT_ROLE ||
                    event->kind == MP_EVENT_SHAPE;
    if (event->kind != MP_EVENT_SEED_BLOCK) {
        return (of_block && cutter->leave_out) || add_event(cutter, event);
    }
    uint32_t row = cutter->state_next < cutter->state_count
                       ? cutter->state_rows[cutter->state_next++]
                       : MP_NO_INDEX;
    cutter->leave_out = !is_kept(cutter, row);
    return cutter->leave_out ||
           (add_event(cutter, event) &&
            (row == MP_NO_INDEX || add_told(cutter, row, event->time_ns)));
}

static void
note(const cutter_t *cutter, uint32_t *rows, int64_t event, size_t row)
{
    const mp_cut_t *cut = cutter->cut;
    if (event >= (int64_t)cut->begin && event < (int64_t)cut->end) {
        rows[(size_t)event - cut->begin] = (uint32_t)row;
    }
}

/* The lives that SEED_BLOCK events of the part tell of: both are in order. */
static void
find_seeds(cutter_t *cutter)
{
    const mp_export_t *source = cutter->source;
    size_t row = 0;
    for (size_t i = 0; i < cutter->cut->end; i++) {
        const mp_event_t *event = &source->events[i];
        if (event->kind != MP_EVENT_SEED_BLOCK) {
            continue;
        }
        while (row < source->life_count &&
               source->lives[row].born_event >= 0 &&
               source->events[source->lives[row].born_event].kind !=
                   MP_EVENT_SEED_BLOCK) {
            row++;
        }
        if (row < source->life_count &&
            source->lives[row].device == event->device &&
            source->lives[row].address == event->addr) {
            note(cutter, cutter->born, (int64_t)i, row++);
        }
    }
}

static mp_status_t
find_rows(cutter_t *cutter)
{
    const mp_export_t *source = cutter->source;
    size_t count = cutter->cut->end - cutter->cut->begin;
    size_t bytes = (count + 1) * sizeof(uint32_t);
    cutter->born = mp_realloc(NULL, bytes);
    cutter->ended = mp_realloc(NULL, bytes);
    if (cutter->born == NULL || cutter->ended == NULL) {
        return MP_ERR_NOMEM;
    }
    memset(cutter->born, 0xFF, bytes);
    memset(cutter->ended, 0xFF, bytes);
    for (size_t i = 0; i < source->life_count; i++) {
        const mp_allocation_t *life = &source->lives[i];
        note(cutter, cutter->born, life->born_event, i);
        note(cutter, cutter->ended, life->died_event, i);
        note(cutter, cutter->ended, life->completed_event, i);
    }
    find_seeds(cutter);
    return MP_OK;
}

/* Replay what precedes the part and write down the state. */
static mp_status_t
write_state(cutter_t *cutter)
{
    const mp_export_t *source = cutter->source;
    size_t births = 1;
    mp_tracker_options_t options = {.keep_dead = true};
    for (size_t i = source->event_count; i-- > 0;) {
        uint8_t kind = source->events[i].kind;
        births += kind == MP_EVENT_ALLOC || kind == MP_EVENT_SEED_BLOCK;
        if (kind == MP_EVENT_STEP || kind == MP_EVENT_WINDOW_BEGIN) {
            options.session_id = source->events[i].addr;
        }
    }
    options.allocation_budget_bytes = births * sizeof(mp_allocation_t);
    mp_tracker_t *tracker;
    mp_status_t status = mp_tracker_new(&options, &tracker);
    if (status != MP_OK) {
        return status;
    }
    for (size_t i = 0; status == MP_OK && i < cutter->cut->begin; i++) {
        const mp_event_t *event = &source->events[i];
        status = mp_tracker_apply(tracker, event);
        if (event->addr == options.session_id &&
            (event->kind == MP_EVENT_WINDOW_BEGIN ||
             event->kind == MP_EVENT_WINDOW_END)) {
            cutter->in_window = event->kind == MP_EVENT_WINDOW_BEGIN;
            cutter->window = *event;
        }
    }
    size_t rows = 0;
    const mp_allocation_t *lives = mp_tracker_allocations(tracker, &rows);
    cutter->state_rows = mp_calloc(rows + 1, sizeof(uint32_t));
    if (cutter->state_rows == NULL) {
        status = MP_ERR_NOMEM;
    }
    /* The same events made the same rows there. */
    for (size_t i = 0; status == MP_OK && i < rows; i++) {
        if (lives[i].id >= 0 && lives[i].completed_event < 0) {
            cutter->state_rows[cutter->state_count++] = (uint32_t)i;
        }
    }
    if (status == MP_OK) {
        status = mp_tracker_write_state(tracker, take_state, cutter);
        status = cutter->status != MP_OK ? cutter->status : status;
    }
    mp_tracker_free(tracker);
    return status;
}

/* Whether all of a life's evidence lies in the part. */
static bool
is_whole(const cutter_t *cutter, const mp_allocation_t *life)
{
    return life->died_event >= 0 &&
           life->died_event < (int64_t)cutter->cut->end &&
           life->forward_stack == MP_NO_INDEX &&
           life->forward_module == MP_NO_INDEX;
}

/* A fact about a block: that of which life?  Only asked where some are left
 * out; the tracker of the part ignores what is about none. */
static mp_status_t
write_part(cutter_t *cutter)
{
    const mp_export_t *source = cutter->source;
    const mp_cut_t *cut = cutter->cut;
    bool fine = true;
    for (size_t i = cut->begin; fine && i < cut->end; i++) {
        const mp_event_t *event = &source->events[i];
        /* What is before a step that begins the part is no step of it. */
        if (cutter->in_window &&
            (i > cut->begin || event->kind != MP_EVENT_STEP)) {
            cutter->in_window = false;
            cutter->window.time_ns = event->time_ns;
            fine = add_event(cutter, &cutter->window);
        }
        uint32_t born = cutter->born[i - cut->begin];
        uint32_t ended = cutter->ended[i - cut->begin];
        bool of_block = event->kind == MP_EVENT_ALLOC ||
                        event->kind == MP_EVENT_SEED_BLOCK ||
                        event->kind == MP_EVENT_FREE_REQUESTED ||
                        event->kind == MP_EVENT_FREE_COMPLETED;
        bool kept = born != MP_NO_INDEX    ? is_kept(cutter, born)
                    : ended != MP_NO_INDEX ? is_kept(cutter, ended)
                                           : cut->keep == NULL || !of_block;
        if (cut->places != NULL) {
            cut->places[i - cut->begin] =
                kept ? (int64_t)cutter->data.count : -1;
        }
        if (!kept) {
            continue;
        }
        fine = add_event(cutter, event);
        if (fine && born != MP_NO_INDEX && event->kind == MP_EVENT_ALLOC &&
            (cut->keep != NULL || !is_whole(cutter, &source->lives[born]))) {
            fine = add_origin(cutter, born, event->time_ns) &&
                   add_told(cutter, born, event->time_ns);
        }
    }
    if (fine && cutter->in_window) {
        fine = add_event(cutter, &cutter->window);
    }
    return fine ? MP_OK : cutter->status;
}

/* What ran on a GPU is told of later than it was launched: what was launched
 * in the part is of it.  At the part's last time, which it must not make
 * later. */
static mp_status_t
write_late_work(cutter_t *cutter)
{
    const mp_export_t *source = cutter->source;
    const mp_cut_t *cut = cutter->cut;
    mp_table_t *launches = mp_table_new(64);
    if (launches == NULL) {
        return MP_ERR_NOMEM;
    }
    uint32_t before;
    mp_status_t status = MP_OK;
    for (size_t i = cut->begin; status == MP_OK && i < cut->end; i++) {
        if (source->events[i].kind == MP_EVENT_GPU_LAUNCH) {
            status =
                mp_table_put(launches, source->events[i].addr, 0, &before);
        }
    }
    bool fine = true;
    for (size_t i = cut->end;
         status == MP_OK && fine && i < source->event_count &&
         mp_table_count(launches) > 0;
         i++) {
        mp_event_t event = source->events[i];
        if (event.kind == MP_EVENT_GPU_LAUNCH) { /* another of its number */
            (void)mp_table_take(launches, event.addr);
        }
        else if (event.kind == MP_EVENT_GPU_WORK &&
                 mp_table_get(launches, event.op_instance) != MP_NO_INDEX) {
            event.time_ns = source->events[cut->end - 1].time_ns;
            event.step = source->events[cut->end - 1].step;
            fine = add_event(cutter, &event);
        }
    }
    mp_table_free(launches);
    return fine ? status : cutter->status;
}

/* The same names behind the same ids. */
static mp_status_t
copy_intern(const mp_intern_t *from, mp_intern_t **out)
{
    /* Stacks first: what they are made of is there when they are. */
    uint32_t stacks = mp_intern_stacks(from);
    uint32_t frames = mp_intern_frames(from);
    uint32_t strings = mp_intern_strings(from);
    mp_intern_t *to;
    mp_status_t status = mp_intern_new(&to);
    if (status != MP_OK) {
        return status;
    }
    bool fine = true;
    for (uint32_t i = 0; fine && i < strings; i++) {
        const char *text;
        size_t length;
        fine = mp_intern_text(from, i, &text, &length) &&
               mp_intern_string(to, text, length) == i;
    }
    for (uint32_t i = 0; fine && i < frames; i++) {
        mp_frame_t frame;
        fine =
            mp_intern_get_frame(from, i, &frame) &&
            mp_intern_frame(to, frame.function, frame.file, frame.line) == i;
    }
    for (uint32_t i = 0; fine && i < stacks; i++) {
        mp_stack_t stack;
        fine = mp_intern_get_stack(from, i, &stack) &&
               mp_intern_stack(to, stack.parent, stack.frame) == i;
    }
    if (!fine) {
        mp_intern_free(to);
        return MP_ERR_NOMEM;
    }
    *out = to;
    return MP_OK;
}

mp_status_t
mp_cut_recording(const mp_export_t *source, const mp_cut_t *cut,
                 mp_recording_data_t *out)
{
    cutter_t cutter = {.source = source, .cut = cut};
    if (cut->begin > cut->end || cut->end > source->event_count) {
        return MP_ERR_ARG;
    }
    mp_status_t status = find_rows(&cutter);
    if (status == MP_OK) {
        status = write_state(&cutter);
    }
    if (status == MP_OK) {
        status = write_part(&cutter);
    }
    if (status == MP_OK) {
        status = write_late_work(&cutter);
    }
    if (status == MP_OK) {
        status = copy_intern(source->intern, &cutter.data.intern);
    }
    mp_free(cutter.born);
    mp_free(cutter.ended);
    mp_free(cutter.state_rows);
    if (status != MP_OK) {
        mp_free(cutter.data.events);
        return status;
    }
    cutter.data.finished = true;
    cutter.data.start_ns = source->start_ns;
    cutter.data.start_wall_ns = source->start_wall_ns;
    *out = cutter.data;
    return MP_OK;
}
