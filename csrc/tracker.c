/* tracker.c - the one replay: events in, lives and counters out.
 *
 * Nesting of the state:  tracker > device > (live table, ranges, counters)
 *                        tracker > thread > (open ops, open regions)
 *                        tracker > forward map (what made a backward node)
 * Knows nothing of hooks, files, categories or Python. */
#include "tracker.h"

#include "forward_map.h"
#include "mem.h"
#include "ranges.h"
#include "table.h"

#include <string.h>

#define MAX_SCOPES 64
#define MANY_THREADS 1024 /* from here on, idle ones make room */
#define MAX_STEP_ROWS (1u << 20)
#define DEFAULT_ALLOCATION_BUDGET ((size_t)1 << 31)

typedef struct {
    int16_t id;
    bool step_open;
    size_t step_row;
    mp_table_t *live; /* address -> row, until the free is completed */
    mp_ranges_t *segments;
    mp_device_stats_t stats;
    mp_device_stats_t scopes[MAX_SCOPES]; /* of the open scopes */
} device_t;

/* An op whose begin was logged: only ops that touched memory are. */
typedef struct {
    uint32_t op;
    uint32_t flags;
    uint64_t sequence;
    uint64_t forward_thread;
    uint64_t logical_thread;
    uint32_t module;
    uint32_t stack;
    mp_forward_t forward; /* of a backward node, if known */
} open_op_t;

typedef struct {
    uint32_t id;
    open_op_t *ops;
    uint32_t *regions;
    uint32_t op_count, op_capacity;
    uint32_t region_count, region_capacity;
    uint32_t optimizer_depth;
} thread_t;

struct mp_tracker {
    uint64_t session_id;
    bool keep_dead;
    bool recorded; /* inside a window */
    int32_t step;
    int64_t events; /* applied so far: the index of the next one */
    int64_t last_ns;

    mp_allocation_t *rows; /* reserved: never moves */
    size_t row_count, row_capacity, row_bytes;
    uint32_t free_row; /* chain of rows to use again; MP_NO_INDEX: none */

    device_t **devices; /* index 0: CPU, 1 + n: CUDA n; NULL: not seen */
    size_t device_capacity;

    mp_table_t *thread_index;
    thread_t *threads;
    uint32_t thread_count, thread_capacity;

    mp_forward_map_t *forward;

    mp_step_stats_t *steps; /* reserved */
    size_t step_count;

    uint64_t open_scopes; /* a bit each */
    mp_defects_t defects;
};

/* ---- life cycle --------------------------------------------------------- */

mp_status_t
mp_tracker_new(const mp_tracker_options_t *options, mp_tracker_t **out)
{
    mp_tracker_t *tracker = mp_calloc(1, sizeof(*tracker));
    if (tracker == NULL) {
        return MP_ERR_NOMEM;
    }
    tracker->session_id = options->session_id;
    tracker->keep_dead = options->keep_dead;
    tracker->free_row = MP_NO_INDEX;
    tracker->row_bytes = options->allocation_budget_bytes != 0
                             ? options->allocation_budget_bytes
                             : DEFAULT_ALLOCATION_BUDGET;
    tracker->row_capacity = tracker->row_bytes / sizeof(mp_allocation_t);
    if (tracker->row_capacity >= MP_NO_INDEX) {
        tracker->row_capacity = MP_NO_INDEX - 1;
    }
    tracker->rows = mp_reserve(tracker->row_bytes);
    tracker->steps = mp_reserve(MAX_STEP_ROWS * sizeof(mp_step_stats_t));
    tracker->thread_index = mp_table_new(0);
    if (tracker->rows == NULL || tracker->steps == NULL ||
        tracker->thread_index == NULL ||
        mp_forward_map_new(&tracker->forward) != MP_OK) {
        mp_tracker_free(tracker);
        return MP_ERR_NOMEM;
    }
    *out = tracker;
    return MP_OK;
}

static void
device_free(device_t *device)
{
    if (device != NULL) {
        mp_table_free(device->live);
        mp_ranges_free(device->segments);
        mp_free(device);
    }
}

void
mp_tracker_free(mp_tracker_t *tracker)
{
    if (tracker == NULL) {
        return;
    }
    for (size_t i = 0; i < tracker->device_capacity; i++) {
        device_free(tracker->devices[i]);
    }
    for (uint32_t i = 0; i < tracker->thread_count; i++) {
        mp_free(tracker->threads[i].ops);
        mp_free(tracker->threads[i].regions);
    }
    mp_free(tracker->devices);
    mp_free(tracker->threads);
    mp_table_free(tracker->thread_index);
    mp_forward_map_free(tracker->forward);
    mp_unreserve(tracker->rows, tracker->row_bytes);
    mp_unreserve(tracker->steps, MAX_STEP_ROWS * sizeof(mp_step_stats_t));
    mp_free(tracker);
}

/* Grow *ARRAY so that COUNT + 1 elements fit. */
static bool
grow(void **array, uint32_t *capacity, uint32_t count, size_t element)
{
    if (count < *capacity) {
        return true;
    }
    uint32_t wanted = *capacity == 0 ? 8 : *capacity * 2;
    void *larger = mp_realloc(*array, wanted * element);
    if (larger == NULL) {
        return false;
    }
    *array = larger;
    *capacity = wanted;
    return true;
}

/* ---- steps -------------------------------------------------------------- */

static void
step_close(mp_tracker_t *tracker, device_t *device, int64_t time_ns)
{
    if (!device->step_open) {
        return;
    }
    mp_step_stats_t *row = &tracker->steps[device->step_row];
    row->end_event = tracker->events;
    row->end_ns = time_ns;
    row->requested_bytes_at_end = device->stats.requested_bytes.current;
    device->step_open = false;
}

static void
step_open(mp_tracker_t *tracker, device_t *device, int64_t time_ns)
{
    if (tracker->step_count >= MAX_STEP_ROWS) {
        return; /* the run goes on; its later steps have no row */
    }
    device->step_row = tracker->step_count++;
    device->step_open = true;
    tracker->steps[device->step_row] = (mp_step_stats_t){
        .number = tracker->step,
        .device = device->id,
        .recorded = tracker->recorded,
        .begin_event = tracker->events,
        .end_event = -1,
        .begin_ns = time_ns,
        .end_ns = -1,
        .requested_bytes_at_end = device->stats.requested_bytes.current,
        .requested_bytes_peak = device->stats.requested_bytes.current,
        .active_bytes_peak = device->stats.active_bytes.current,
        .reserved_bytes_peak = device->stats.reserved_bytes.current,
    };
}

/* ---- devices and their counters ----------------------------------------- */

static device_t *
device_find(const mp_tracker_t *tracker, int16_t id)
{
    size_t index = (size_t)(id + 1);
    if (id < MP_DEVICE_CPU || index >= tracker->device_capacity) {
        return NULL;
    }
    return tracker->devices[index];
}

static device_t *
device_of(mp_tracker_t *tracker, int16_t id, int64_t time_ns)
{
    device_t *device = device_find(tracker, id);
    if (MP_LIKELY(device != NULL) || id < MP_DEVICE_CPU) {
        return device;
    }
    size_t index = (size_t)(id + 1);
    if (index >= tracker->device_capacity) {
        size_t wanted = index + 8;
        device_t **larger =
            mp_realloc(tracker->devices, wanted * sizeof(*larger));
        if (larger == NULL) {
            return NULL;
        }
        memset(larger + tracker->device_capacity, 0,
               (wanted - tracker->device_capacity) * sizeof(*larger));
        tracker->devices = larger;
        tracker->device_capacity = wanted;
    }
    device = mp_calloc(1, sizeof(*device));
    if (device == NULL) {
        return NULL;
    }
    device->id = id;
    device->live = mp_table_new(1024);
    device->segments = mp_ranges_new();
    if (device->live == NULL || device->segments == NULL) {
        device_free(device);
        return NULL;
    }
    tracker->devices[index] = device;
    step_open(tracker, device, time_ns);
    return device;
}

static inline void
raise_peak(int64_t *peak, int64_t value)
{
    if (value > *peak) {
        *peak = value;
    }
}

/* Sizes in a damaged file may be anything: sums wrap, never overflow. */
static inline int64_t
sum(int64_t value, int64_t delta)
{
    return (int64_t)((uint64_t)value + (uint64_t)delta);
}

static inline int64_t
minus(uint64_t bytes)
{
    return (int64_t)(0 - bytes);
}

/* Add DELTA to one counter of a device, its high-water marks included. */
#define STAT_CHANGE(tracker, dev, name, delta)                                \
    do {                                                                      \
        mp_stat_t *stat_ = &(dev)->stats.name;                                \
        int64_t delta_ = (delta);                                             \
        stat_->current = sum(stat_->current, delta_);                         \
        if (delta_ > 0) {                                                     \
            stat_->total = sum(stat_->total, delta_);                         \
            raise_peak(&stat_->peak, stat_->current);                         \
            for (uint64_t open_ = (tracker)->open_scopes; open_ != 0;         \
                 open_ &= open_ - 1) {                                        \
                int bit_ = __builtin_ctzll(open_);                            \
                raise_peak(&(dev)->scopes[bit_].name.peak, stat_->current);   \
            }                                                                 \
        }                                                                     \
    } while (0)

static void
step_raise_peaks(mp_tracker_t *tracker, device_t *device)
{
    if (device->step_open) {
        mp_step_stats_t *row = &tracker->steps[device->step_row];
        raise_peak(&row->requested_bytes_peak,
                   device->stats.requested_bytes.current);
        raise_peak(&row->active_bytes_peak,
                   device->stats.active_bytes.current);
        raise_peak(&row->reserved_bytes_peak,
                   device->stats.reserved_bytes.current);
    }
}

/* ---- threads: what each was busy with ----------------------------------- */

static thread_t *
thread_find(const mp_tracker_t *tracker, uint32_t id)
{
    uint32_t index = mp_table_get(tracker->thread_index, id);
    return index == MP_NO_INDEX ? NULL : &tracker->threads[index];
}

/* A program may start threads without end: one that is inside of nothing
 * gives its place away. */
static uint32_t
thread_place(const mp_tracker_t *tracker)
{
    if (tracker->thread_count >= MANY_THREADS) {
        for (uint32_t i = 0; i < tracker->thread_count; i++) {
            const thread_t *thread = &tracker->threads[i];
            if (thread->op_count == 0 && thread->region_count == 0) {
                return i;
            }
        }
    }
    return tracker->thread_count;
}

static thread_t *
thread_of(mp_tracker_t *tracker, uint32_t id)
{
    uint32_t index = mp_table_get(tracker->thread_index, id);
    if (MP_LIKELY(index != MP_NO_INDEX)) {
        return &tracker->threads[index];
    }
    uint32_t previous, place = thread_place(tracker);
    if (!grow((void **)&tracker->threads, &tracker->thread_capacity, place,
              sizeof(thread_t)) ||
        mp_table_put(tracker->thread_index, id, place, &previous) != MP_OK) {
        return NULL;
    }
    thread_t *thread = &tracker->threads[place];
    if (place == tracker->thread_count) {
        memset(thread, 0, sizeof(*thread));
        tracker->thread_count++;
    }
    else { /* an idle one's: its arrays come along */
        (void)mp_table_take(tracker->thread_index, thread->id);
    }
    thread->id = id;
    return thread;
}

static bool
forward_known(const mp_forward_t *forward)
{
    return forward->op != MP_NO_INDEX || forward->module != MP_NO_INDEX;
}

/* Whether OP runs inside a forward op that has its sequence number: that one
 * counts. */
static bool
is_inner(const thread_t *thread, const open_op_t *op)
{
    for (const open_op_t *outer = op; outer-- > thread->ops;) {
        if (outer->sequence == op->sequence &&
            outer->logical_thread == op->logical_thread &&
            (outer->flags & MP_FLAG_BACKWARD_OP) == 0) {
            return true;
        }
    }
    return false;
}

static mp_status_t
op_begin(mp_tracker_t *tracker, const mp_event_t *event)
{
    thread_t *thread = thread_of(tracker, event->thread);
    if (thread == NULL || !grow((void **)&thread->ops, &thread->op_capacity,
                                thread->op_count, sizeof(open_op_t))) {
        return MP_ERR_NOMEM;
    }
    open_op_t *op = &thread->ops[thread->op_count++];
    *op = (open_op_t){
        .op = event->op,
        .flags = event->flags,
        .sequence = event->addr,
        .forward_thread = event->size,
        .logical_thread = event->stream,
        .module = event->module,
        .stack = event->stack,
        .forward = {MP_NO_INDEX, MP_NO_INDEX, MP_NO_INDEX},
    };
    if (event->addr == UINT64_MAX) {
        return MP_OK;
    }
    if (event->flags & MP_FLAG_BACKWARD_OP) {
        mp_forward_map_find(tracker->forward, event->size, event->addr,
                            &op->forward);
    }
    else if (!is_inner(thread, op)) {
        mp_forward_t forward = {event->op, event->module, event->stack};
        mp_forward_map_put_op(tracker->forward, event->stream, event->addr,
                              &forward);
    }
    return MP_OK;
}

static void
op_end(mp_tracker_t *tracker, const mp_event_t *event)
{
    thread_t *thread = thread_find(tracker, event->thread);
    if (thread == NULL) {
        return;
    }
    for (uint32_t i = thread->op_count; i-- > 0;) {
        const open_op_t *op = &thread->ops[i];
        if (op->op == event->op) {
            thread->op_count = i; /* and what was left open inside it */
            if (i > 0 && (op->flags & MP_FLAG_BACKWARD_OP) &&
                forward_known(&op->forward)) {
                /* The engine sums and accumulates gradients after the node,
                 * in the frame that it ran the node in. */
                thread->ops[i - 1].forward = op->forward;
            }
            return;
        }
    }
}

static mp_status_t
region_begin(mp_tracker_t *tracker, const mp_event_t *event)
{
    thread_t *thread = thread_of(tracker, event->thread);
    if (thread == NULL ||
        !grow((void **)&thread->regions, &thread->region_capacity,
              thread->region_count, sizeof(uint32_t))) {
        return MP_ERR_NOMEM;
    }
    thread->regions[thread->region_count++] = event->op;
    return MP_OK;
}

static void
region_end(mp_tracker_t *tracker, const mp_event_t *event)
{
    thread_t *thread = thread_find(tracker, event->thread);
    if (thread == NULL) {
        return;
    }
    for (uint32_t i = thread->region_count; i-- > 0;) {
        if (thread->regions[i] == event->op) {
            memmove(&thread->regions[i], &thread->regions[i + 1],
                    (thread->region_count - i - 1) * sizeof(uint32_t));
            thread->region_count--;
            return;
        }
    }
}

/* ---- lives -------------------------------------------------------------- */

static mp_allocation_t *
row_new(mp_tracker_t *tracker, uint32_t *index)
{
    if (tracker->free_row != MP_NO_INDEX) {
        *index = tracker->free_row;
        tracker->free_row = tracker->rows[*index].op;
    }
    else if (tracker->row_count < tracker->row_capacity) {
        *index = (uint32_t)tracker->row_count++;
    }
    else {
        return NULL;
    }
    return &tracker->rows[*index];
}

static void
row_release(mp_tracker_t *tracker, uint32_t index)
{
    if (!tracker->keep_dead) {
        tracker->rows[index].size = 0;
        tracker->rows[index].id = -1; /* not a life */
        tracker->rows[index].op = tracker->free_row;
        tracker->free_row = index;
    }
}

static void
life_end(mp_tracker_t *tracker, device_t *device, mp_allocation_t *row,
         const mp_event_t *event)
{
    row->died_event = tracker->events;
    row->died_ns = event->time_ns;
    row->died_step = tracker->step;
    row->died_phase = event->phase;
    row->died_in_op =
        (row->flags & MP_FLAG_IN_OP) && (event->flags & MP_FLAG_IN_OP) &&
        row->thread == event->thread && row->op_instance == event->op_instance;
    STAT_CHANGE(tracker, device, requested_bytes, minus(row->size));
    STAT_CHANGE(tracker, device, allocated_blocks, -1);
}

static void
free_completed(mp_tracker_t *tracker, device_t *device, uint32_t index,
               const mp_event_t *event)
{
    mp_allocation_t *row = &tracker->rows[index];
    if (row->died_event < 0) {
        life_end(tracker, device, row, event);
    }
    row->completed_event = tracker->events;
    STAT_CHANGE(tracker, device, active_bytes, minus(row->size));
    STAT_CHANGE(tracker, device, active_blocks, -1);
    row_release(tracker, index);
}

/* What an event says about the life that begins with it. */
static void
row_fill(const mp_tracker_t *tracker, mp_allocation_t *row, uint32_t index,
         const mp_event_t *event)
{
    *row = (mp_allocation_t){
        .id = index,
        .address = event->addr,
        .size = event->size,
        .stream = event->stream,
        .born_event = tracker->events,
        .died_event = -1,
        .born_ns = event->time_ns,
        .died_ns = -1,
        .completed_event = -1,
        .thread = event->thread,
        .op = event->op,
        .module = event->module,
        .stack = event->stack,
        .forward_op = MP_NO_INDEX,
        .forward_module = MP_NO_INDEX,
        .forward_stack = MP_NO_INDEX,
        .owner = MP_NO_INDEX,
        .region = MP_NO_INDEX,
        .op_instance = event->op_instance,
        .born_step = tracker->step,
        .died_step = -1,
        .device = event->device,
        .pool = event->pool,
        .flags = event->flags,
        .phase = event->phase,
        .category = MP_CATEGORY_UNKNOWN,
        .reason = MP_REASON_NONE,
    };
}

static void
row_add_context(mp_tracker_t *tracker, mp_allocation_t *row)
{
    const thread_t *thread = thread_find(tracker, row->thread);
    if (thread == NULL) {
        return;
    }
    if (thread->region_count > 0) {
        row->region = thread->regions[thread->region_count - 1];
    }
    for (uint32_t i = thread->op_count; i-- > 0;) {
        const mp_forward_t *forward = &thread->ops[i].forward;
        if (forward_known(forward)) {
            row->forward_op = forward->op;
            row->forward_module = forward->module;
            row->forward_stack = forward->stack;
            break;
        }
    }
}

static mp_status_t
block_born(mp_tracker_t *tracker, const mp_event_t *event, bool seeded)
{
    device_t *device = device_of(tracker, event->device, event->time_ns);
    if (device == NULL) {
        return MP_ERR_NOMEM;
    }
    if (seeded && mp_table_get(device->live, event->addr) != MP_NO_INDEX) {
        return MP_OK; /* known already: we saw its birth */
    }
    uint32_t index, previous;
    mp_allocation_t *row = row_new(tracker, &index);
    if (row == NULL) {
        return MP_ERR_FULL;
    }
    row_fill(tracker, row, index, event);
    if (mp_table_put(device->live, event->addr, index, &previous) != MP_OK) {
        if (tracker->keep_dead) {
            tracker->row_count--; /* it was the last */
        }
        row_release(tracker, index);
        return MP_ERR_NOMEM;
    }
    if (previous != MP_NO_INDEX) { /* its free was never seen */
        if (tracker->rows[previous].died_event < 0) {
            tracker->defects.replaced_blocks++;
        }
        free_completed(tracker, device, previous, event);
    }
    STAT_CHANGE(tracker, device, active_bytes, (int64_t)row->size);
    STAT_CHANGE(tracker, device, active_blocks, 1);
    if (seeded) {
        row->born_event = -1;
        row->born_ns = -1;
        row->born_step = -1;
    }
    else {
        row_add_context(tracker, row);
    }
    if (seeded && (event->flags & MP_FLAG_PENDING)) {
        /* Its free was asked for before: active still, alive at no event. */
        row->born_event = tracker->events;
        row->died_event = tracker->events;
        row->died_ns = event->time_ns;
        row->died_step = tracker->step;
    }
    else {
        STAT_CHANGE(tracker, device, requested_bytes, (int64_t)row->size);
        STAT_CHANGE(tracker, device, allocated_blocks, 1);
    }
    step_raise_peaks(tracker, device);
    if (device->step_open) {
        int64_t *total = &tracker->steps[device->step_row].allocated_total;
        *total = sum(*total, seeded ? 0 : (int64_t)row->size);
    }
    return MP_OK;
}

/* The life at an event's address whose free is not completed, or NULL. */
static mp_allocation_t *
active_row(mp_tracker_t *tracker, const mp_event_t *event)
{
    device_t *device = device_find(tracker, event->device);
    uint32_t index =
        device == NULL ? MP_NO_INDEX : mp_table_get(device->live, event->addr);
    return index == MP_NO_INDEX ? NULL : &tracker->rows[index];
}

static void
block_free_requested(mp_tracker_t *tracker, const mp_event_t *event)
{
    mp_allocation_t *row = active_row(tracker, event);
    if (row == NULL || row->died_event >= 0) {
        tracker->defects.unmatched_frees++;
        return;
    }
    life_end(tracker, device_find(tracker, event->device), row, event);
}

static void
block_free_completed(mp_tracker_t *tracker, const mp_event_t *event)
{
    device_t *device = device_find(tracker, event->device);
    uint32_t index = device == NULL ? MP_NO_INDEX
                                    : mp_table_take(device->live, event->addr);
    if (index != MP_NO_INDEX) {
        free_completed(tracker, device, index, event);
    }
    else if (event->device == MP_DEVICE_CPU) {
        tracker->defects.foreign_frees++;
    } /* CUDA: its request was counted */
}

/* The last byte's follower, at most the end of all addresses. */
static uint64_t
segment_end(const mp_event_t *event)
{
    uint64_t end = event->addr + event->size;
    return end < event->addr ? UINT64_MAX : end;
}

/* Forget SIZE bytes of segments from ADDR on; *TAKEN were there. */
static mp_status_t
segments_take(mp_tracker_t *tracker, device_t *device, const mp_event_t *event,
              uint64_t *taken)
{
    int64_t count = (int64_t)mp_ranges_count(device->segments);
    mp_status_t status =
        mp_ranges_take(device->segments, event->addr,
                       segment_end(event) - event->addr, taken);
    if (status == MP_OK) {
        STAT_CHANGE(tracker, device, reserved_bytes, minus(*taken));
        STAT_CHANGE(tracker, device, segments,
                    (int64_t)mp_ranges_count(device->segments) - count);
    }
    return status;
}

static mp_status_t
segment_born(mp_tracker_t *tracker, const mp_event_t *event)
{
    device_t *device = device_of(tracker, event->device, event->time_ns);
    if (device == NULL) {
        return MP_ERR_NOMEM;
    }
    mp_range_t range = {
        .begin = event->addr,
        .end = segment_end(event),
        .stream = event->stream,
        .pool = event->pool,
        .mapped = event->kind == MP_EVENT_SEGMENT_MAP ||
                  (event->flags & MP_FLAG_PENDING) != 0,
    };
    uint64_t replaced; /* their frees were never seen */
    mp_status_t status = segments_take(tracker, device, event, &replaced);
    if (status == MP_OK) {
        status = mp_ranges_put(device->segments, &range);
    }
    if (status != MP_OK) {
        return status;
    }
    if (replaced > 0 && event->kind != MP_EVENT_SEED_SEGMENT) {
        tracker->defects.unmatched_segments++;
    }
    STAT_CHANGE(tracker, device, reserved_bytes,
                (int64_t)(range.end - range.begin));
    STAT_CHANGE(tracker, device, segments, 1);
    step_raise_peaks(tracker, device);
    return MP_OK;
}

static mp_status_t
segment_died(mp_tracker_t *tracker, const mp_event_t *event)
{
    device_t *device = device_find(tracker, event->device);
    if (device == NULL) {
        tracker->defects.unmatched_segments++;
        return MP_OK;
    }
    uint64_t taken;
    mp_status_t status = segments_take(tracker, device, event, &taken);
    if (status == MP_OK && taken != event->size) {
        tracker->defects.unmatched_segments++;
    }
    return status;
}

/* ---- facts that Python knows -------------------------------------------- */

/* Which role wins where two are claimed for one storage: a parameter that is
 * also an input stays a parameter. */
static int
role_rank(uint64_t role)
{
    switch (role) {
    case MP_ROLE_PARAMETER:
        return 5;
    case MP_ROLE_BUFFER:
        return 4;
    case MP_ROLE_OPTIMIZER_STATE:
        return 3;
    case MP_ROLE_GRADIENT:
        return 2;
    case MP_ROLE_INPUT:
        return 1;
    default:
        return 0;
    }
}

static void
role_given(mp_tracker_t *tracker, const mp_event_t *event)
{
    mp_allocation_t *row = active_row(tracker, event);
    if (row != NULL && role_rank(event->size) > role_rank(row->role)) {
        row->role = (uint8_t)event->size;
        row->owner = event->op;
    }
}

static void
origin_given(mp_tracker_t *tracker, const mp_event_t *event)
{
    mp_allocation_t *row = active_row(tracker, event);
    if (row != NULL && row->born_ns < 0) { /* it was seeded */
        row->forward_op = event->op;
        row->forward_module = event->module;
        row->forward_stack = event->stack;
        row->region = event->op_instance;
    }
}

static void
step_begin(mp_tracker_t *tracker, const mp_event_t *event)
{
    for (size_t i = 0; i < tracker->device_capacity; i++) {
        if (tracker->devices[i] != NULL) {
            step_close(tracker, tracker->devices[i], event->time_ns);
        }
    }
    tracker->step = (int32_t)event->size;
    for (size_t i = 0; i < tracker->device_capacity; i++) {
        if (tracker->devices[i] != NULL) {
            step_open(tracker, tracker->devices[i], event->time_ns);
        }
    }
}

static void
window_end(mp_tracker_t *tracker, const mp_event_t *event)
{
    for (size_t i = 0; i < tracker->device_capacity; i++) {
        if (tracker->devices[i] != NULL) {
            step_close(tracker, tracker->devices[i], event->time_ns);
        }
    }
    tracker->recorded = false;
}

static void
window_begin(mp_tracker_t *tracker)
{
    tracker->recorded = true;
    for (size_t i = 0; i < tracker->device_capacity; i++) {
        device_t *device = tracker->devices[i];
        if (device != NULL && device->step_open) {
            tracker->steps[device->step_row].recorded = 1;
        }
    }
}

/* ---- the one replay ----------------------------------------------------- */

static mp_status_t
apply(mp_tracker_t *tracker, const mp_event_t *event)
{
    bool ours = event->addr == tracker->session_id;
    switch (event->kind) {
    case MP_EVENT_ALLOC:
        return block_born(tracker, event, false);
    case MP_EVENT_FREE_REQUESTED:
        block_free_requested(tracker, event);
        return MP_OK;
    case MP_EVENT_FREE_COMPLETED:
        block_free_completed(tracker, event);
        return MP_OK;
    case MP_EVENT_SEGMENT_ALLOC:
    case MP_EVENT_SEGMENT_MAP:
    case MP_EVENT_SEED_SEGMENT:
        return segment_born(tracker, event);
    case MP_EVENT_SEGMENT_FREE:
    case MP_EVENT_SEGMENT_UNMAP:
        return segment_died(tracker, event);
    case MP_EVENT_OP_BEGIN:
        return op_begin(tracker, event);
    case MP_EVENT_OP_END:
        op_end(tracker, event);
        return MP_OK;
    case MP_EVENT_REGION_BEGIN:
        return region_begin(tracker, event);
    case MP_EVENT_REGION_END:
        region_end(tracker, event);
        return MP_OK;
    case MP_EVENT_MODULE_BEGIN:
        return mp_forward_map_module_begin(tracker->forward, event->stream,
                                           event->addr, event->module);
    case MP_EVENT_MODULE_END:
        mp_forward_map_module_end(tracker->forward, event->stream, event->addr,
                                  event->module);
        return MP_OK;
    case MP_EVENT_SEED_BLOCK:
        return block_born(tracker, event, true);
    case MP_EVENT_SEED_ORIGIN:
        origin_given(tracker, event);
        return MP_OK;
    case MP_EVENT_ROLE:
        role_given(tracker, event);
        return MP_OK;
    case MP_EVENT_STEP:
        if (ours) {
            step_begin(tracker, event);
        }
        return MP_OK;
    case MP_EVENT_WINDOW_BEGIN:
        if (ours) {
            window_begin(tracker);
        }
        return MP_OK;
    case MP_EVENT_WINDOW_END:
        if (ours) {
            window_end(tracker, event);
        }
        return MP_OK;
    default: /* nothing that changes what is alive */
        return MP_OK;
    }
}

mp_status_t
mp_tracker_apply(mp_tracker_t *tracker, const mp_event_t *event)
{
    mp_status_t status = apply(tracker, event);
    if (status != MP_OK) {
        tracker->defects.unapplied_events++;
        return status;
    }
    tracker->events++;
    tracker->last_ns = event->time_ns;
    return MP_OK;
}

/* ---- answers ------------------------------------------------------------ */

int32_t
mp_tracker_step(const mp_tracker_t *tracker)
{
    return tracker->step;
}

const mp_allocation_t *
mp_tracker_allocations(const mp_tracker_t *tracker, size_t *count)
{
    *count = tracker->row_count;
    return tracker->rows;
}

mp_allocation_t *
mp_tracker_allocations_mutable(mp_tracker_t *tracker, size_t *count)
{
    *count = tracker->row_count;
    return tracker->rows;
}

size_t
mp_tracker_devices(const mp_tracker_t *tracker, int16_t *devices,
                   size_t capacity)
{
    size_t count = 0;
    for (size_t i = 0; i < tracker->device_capacity; i++) {
        if (tracker->devices[i] != NULL) {
            if (count < capacity) {
                devices[count] = tracker->devices[i]->id;
            }
            count++;
        }
    }
    return count;
}

bool
mp_tracker_stats(const mp_tracker_t *tracker, int16_t device,
                 mp_device_stats_t *stats)
{
    const device_t *found = device_find(tracker, device);
    if (found == NULL) {
        return false;
    }
    *stats = found->stats;
    return true;
}

const mp_step_stats_t *
mp_tracker_steps(const mp_tracker_t *tracker, size_t *count)
{
    /* The open step's row shows where it stands. */
    for (size_t i = 0; i < tracker->device_capacity; i++) {
        const device_t *device = tracker->devices[i];
        if (device != NULL && device->step_open) {
            tracker->steps[device->step_row].requested_bytes_at_end =
                device->stats.requested_bytes.current;
        }
    }
    *count = tracker->step_count;
    return tracker->steps;
}

void
mp_tracker_defects(const mp_tracker_t *tracker, mp_defects_t *defects)
{
    *defects = tracker->defects;
}

size_t
mp_tracker_bytes(const mp_tracker_t *tracker)
{
    return tracker->row_count * sizeof(mp_allocation_t) +
           tracker->step_count * sizeof(mp_step_stats_t) +
           mp_forward_map_bytes(tracker->forward);
}

/* ---- the state as events ------------------------------------------------ */

typedef struct {
    mp_emit_t emit;
    void *context;
    mp_event_t blank;
    bool stopped;
} emitter_t;

static void
emit(emitter_t *emitter, const mp_event_t *event)
{
    if (!emitter->stopped && !emitter->emit(emitter->context, event)) {
        emitter->stopped = true;
    }
}

static void
emit_segments(emitter_t *emitter, const device_t *device)
{
    size_t count = mp_ranges_count(device->segments);
    for (size_t i = 0; i < count; i++) {
        const mp_range_t *range = mp_ranges_at(device->segments, i);
        mp_event_t event = emitter->blank;
        event.kind = MP_EVENT_SEED_SEGMENT;
        event.device = device->id;
        event.addr = range->begin;
        event.size = range->end - range->begin;
        event.stream = range->stream;
        event.pool = range->pool;
        event.flags = range->mapped ? MP_FLAG_PENDING : 0;
        emit(emitter, &event);
    }
}

static void
emit_block(emitter_t *emitter, const mp_allocation_t *row)
{
    mp_event_t event = emitter->blank;
    event.kind = MP_EVENT_SEED_BLOCK;
    event.addr = row->address;
    event.size = row->size;
    event.stream = row->stream;
    event.thread = row->thread;
    event.op = row->op;
    event.module = row->module;
    event.stack = row->stack;
    event.op_instance = row->op_instance;
    event.phase = row->phase;
    event.device = row->device;
    event.pool = row->pool;
    event.flags = (uint16_t)(row->flags & ~MP_FLAG_PENDING);
    if (row->died_event >= 0) {
        event.flags |= MP_FLAG_PENDING;
    }
    emit(emitter, &event);
    if (row->forward_op != MP_NO_INDEX || row->forward_module != MP_NO_INDEX ||
        row->forward_stack != MP_NO_INDEX || row->region != MP_NO_INDEX) {
        mp_event_t origin = emitter->blank;
        origin.kind = MP_EVENT_SEED_ORIGIN;
        origin.addr = row->address;
        origin.device = row->device;
        origin.op = row->forward_op;
        origin.module = row->forward_module;
        origin.stack = row->forward_stack;
        origin.op_instance = row->region;
        emit(emitter, &origin);
    }
    if (row->role != MP_ROLE_NONE) {
        mp_event_t role = emitter->blank;
        role.kind = MP_EVENT_ROLE;
        role.addr = row->address;
        role.size = row->role;
        role.device = row->device;
        role.op = row->owner;
        emit(emitter, &role);
    }
}

static void
emit_thread(emitter_t *emitter, const thread_t *thread)
{
    for (uint32_t i = 0; i < thread->region_count; i++) {
        mp_event_t event = emitter->blank;
        event.kind = MP_EVENT_REGION_BEGIN;
        event.thread = thread->id;
        event.op = thread->regions[i];
        emit(emitter, &event);
    }
    for (uint32_t i = 0; i < thread->op_count; i++) {
        const open_op_t *op = &thread->ops[i];
        mp_event_t event = emitter->blank;
        event.kind = MP_EVENT_OP_BEGIN;
        event.thread = thread->id;
        event.op = op->op;
        event.module = op->module;
        event.stack = op->stack;
        event.addr = op->sequence;
        event.size = op->forward_thread;
        event.stream = op->logical_thread;
        event.flags = (uint16_t)op->flags;
        emit(emitter, &event);
    }
}

mp_status_t
mp_tracker_write_state(const mp_tracker_t *tracker, mp_emit_t emit_event,
                       void *context)
{
    emitter_t emitter = {
        .emit = emit_event,
        .context = context,
        .blank = {.op = MP_NO_INDEX,
                  .module = MP_NO_INDEX,
                  .stack = MP_NO_INDEX,
                  .time_ns = tracker->last_ns},
    };
    for (size_t i = 0; i < tracker->device_capacity; i++) {
        if (tracker->devices[i] != NULL) {
            emit_segments(&emitter, tracker->devices[i]);
        }
    }
    /* Rows, not the tables: births keep their order, so a state written
     * twice is the same twice. */
    for (size_t i = 0; i < tracker->row_count; i++) {
        const mp_allocation_t *row = &tracker->rows[i];
        if (row->id >= 0 && row->completed_event < 0) {
            emit_block(&emitter, row);
        }
    }
    for (uint32_t i = 0; i < tracker->thread_count; i++) {
        emit_thread(&emitter, &tracker->threads[i]);
    }
    mp_event_t step = emitter.blank;
    step.kind = MP_EVENT_STEP;
    step.addr = tracker->session_id;
    step.size = (uint64_t)tracker->step;
    emit(&emitter, &step);
    return emitter.stopped ? MP_ERR_FULL : MP_OK;
}

/* ---- scopes ------------------------------------------------------------- */

mp_status_t
mp_tracker_scope_open(mp_tracker_t *tracker, mp_scope_t *scope)
{
    if (tracker->open_scopes == UINT64_MAX) {
        return MP_ERR_FULL;
    }
    uint32_t bit = (uint32_t)__builtin_ctzll(~tracker->open_scopes);
    tracker->open_scopes |= (uint64_t)1 << bit;
    for (size_t i = 0; i < tracker->device_capacity; i++) {
        device_t *device = tracker->devices[i];
        if (device == NULL) {
            continue;
        }
        device->scopes[bit] = device->stats;
#define X(name, text)                                                         \
    device->scopes[bit].name.peak = device->stats.name.current;
        MP_STAT_LIST(X)
#undef X
    }
    *scope = bit;
    return MP_OK;
}

mp_status_t
mp_tracker_scope_peak(const mp_tracker_t *tracker, mp_scope_t scope,
                      int16_t device, mp_device_stats_t *stats)
{
    const device_t *found = device_find(tracker, device);
    if (scope >= MAX_SCOPES ||
        (tracker->open_scopes & ((uint64_t)1 << scope)) == 0 ||
        found == NULL) {
        return MP_ERR_ARG;
    }
    const mp_device_stats_t *begin = &found->scopes[scope];
#define X(name, text)                                                         \
    stats->name.current = found->stats.name.current;                          \
    stats->name.peak = begin->name.peak;                                      \
    stats->name.total = found->stats.name.total - begin->name.total;
    MP_STAT_LIST(X)
#undef X
    return MP_OK;
}

void
mp_tracker_scope_close(mp_tracker_t *tracker, mp_scope_t scope)
{
    if (scope < MAX_SCOPES) {
        tracker->open_scopes &= ~((uint64_t)1 << scope);
        for (size_t i = 0; i < tracker->device_capacity; i++) {
            if (tracker->devices[i] != NULL) {
                memset(&tracker->devices[i]->scopes[scope], 0,
                       sizeof(mp_device_stats_t));
            }
        }
    }
}
