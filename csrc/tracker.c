/* tracker.c - the one replay: events in, lives and counters out.
 *
 * Gives every event to the part that it is a fact of, and keeps the rows of
 * lives itself:  tracker > devices > (live table, segments, counters)
 *                tracker > nesting > thread > (open ops, open regions)
 *                tracker > forward map (what made a backward node)
 *                tracker > steps
 *                tracker > ledger (what others took from the driver)
 *                tracker > totals (the last sample of each device)
 * Knows nothing of hooks, files, categories or Python. */
#include "tracker.h"

#include "devices.h"
#include "forward_map.h"
#include "mem.h"
#include "nesting.h"
#include "segments.h"
#include "steps.h"
#include "totals.h"

#define DEFAULT_ALLOCATION_BUDGET ((size_t)1 << 31)

struct mp_tracker {
    uint64_t session_id;
    bool keep_dead;
    int64_t events; /* applied so far: the index of the next one */
    int64_t last_ns;

    mp_allocation_t *rows; /* reserved: never moves */
    size_t row_count, row_capacity, row_bytes;
    uint32_t free_row; /* chain of rows to use again; MP_NO_INDEX: none */

    mp_devices_t devices;
    mp_nesting_t nesting;
    mp_forward_map_t *forward;
    mp_steps_t steps;
    mp_ledger_t *ledger; /* NULL: no driver event yet */
    mp_totals_t totals;
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
    if (tracker->rows == NULL || mp_steps_init(&tracker->steps) != MP_OK ||
        mp_nesting_init(&tracker->nesting) != MP_OK ||
        mp_forward_map_new(&tracker->forward) != MP_OK) {
        mp_tracker_free(tracker);
        return MP_ERR_NOMEM;
    }
    *out = tracker;
    return MP_OK;
}

void
mp_tracker_free(mp_tracker_t *tracker)
{
    if (tracker == NULL) {
        return;
    }
    mp_devices_clear(&tracker->devices);
    mp_nesting_clear(&tracker->nesting);
    mp_forward_map_free(tracker->forward);
    mp_steps_clear(&tracker->steps);
    mp_ledger_free(tracker->ledger);
    mp_totals_clear(&tracker->totals);
    mp_unreserve(tracker->rows, tracker->row_bytes);
    mp_free(tracker);
}

/* The device ID, seen now at the latest.  NULL: out of memory, or no device
 * has that number. */
static mp_device_t *
device_of(mp_tracker_t *tracker, int16_t id, int64_t time_ns)
{
    mp_device_t *device = mp_devices_find(&tracker->devices, id);
    if (MP_LIKELY(device != NULL) || id < MP_DEVICE_CPU) {
        return device;
    }
    device = mp_devices_add(&tracker->devices, id);
    if (device != NULL) {
        mp_steps_open(&tracker->steps, device, tracker->events, time_ns);
    }
    return device;
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

/* Whether EVENT is inside the outermost op that made the life. */
static bool
in_its_op(const mp_allocation_t *row, const mp_event_t *event)
{
    return (row->flags & MP_FLAG_IN_OP) && (event->flags & MP_FLAG_IN_OP) &&
           row->thread == event->thread &&
           row->op_instance == event->op_instance;
}

static void
life_end(mp_tracker_t *tracker, mp_device_t *device, mp_allocation_t *row,
         const mp_event_t *event)
{
    row->died_event = tracker->events;
    row->died_ns = event->time_ns;
    row->died_step = tracker->steps.number;
    row->died_phase = event->phase;
    row->died_in_op = in_its_op(row, event);
    if (event->phase == MP_PHASE_FORWARD && row->phase == MP_PHASE_FORWARD &&
        row->born_event >= 0) { /* an older one's forward is over */
        /* Without hooks on its root, one forward is like another. */
        const mp_thread_t *thread =
            mp_nesting_find(&tracker->nesting, row->thread);
        if (thread == NULL || row->forward == 0 ||
            row->forward == mp_thread_root_forward(thread)) {
            row->flags |= MP_FLAG_DIED_IN_FORWARD;
        }
    }
    MP_STAT_CHANGE(&tracker->devices, device, requested_bytes,
                   mp_minus(row->size));
    MP_STAT_CHANGE(&tracker->devices, device, allocated_blocks, -1);
}

static void
free_completed(mp_tracker_t *tracker, mp_device_t *device, uint32_t index,
               const mp_event_t *event)
{
    mp_allocation_t *row = &tracker->rows[index];
    if (row->died_event < 0) {
        life_end(tracker, device, row, event);
    }
    row->completed_event = tracker->events;
    MP_STAT_CHANGE(&tracker->devices, device, active_bytes,
                   mp_minus(row->size));
    MP_STAT_CHANGE(&tracker->devices, device, active_blocks, -1);
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
        .shape = MP_NO_INDEX,
        .op_instance = event->op_instance,
        .born_step = tracker->steps.number,
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
    const mp_thread_t *thread =
        mp_nesting_find(&tracker->nesting, row->thread);
    if (thread == NULL) {
        return;
    }
    row->region = mp_thread_region(thread);
    row->forward = mp_thread_root_forward(thread);
    const mp_forward_t *forward = mp_thread_forward(thread);
    if (forward != NULL) {
        row->forward_op = forward->op;
        row->forward_module = forward->module;
        row->forward_stack = forward->stack;
    }
}

static mp_status_t
block_born(mp_tracker_t *tracker, const mp_event_t *event, bool seeded)
{
    mp_device_t *device = device_of(tracker, event->device, event->time_ns);
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
    MP_STAT_CHANGE(&tracker->devices, device, active_bytes,
                   (int64_t)row->size);
    MP_STAT_CHANGE(&tracker->devices, device, active_blocks, 1);
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
        row->died_step = tracker->steps.number;
    }
    else {
        MP_STAT_CHANGE(&tracker->devices, device, requested_bytes,
                       (int64_t)row->size);
        MP_STAT_CHANGE(&tracker->devices, device, allocated_blocks, 1);
    }
    mp_steps_raise_peaks(&tracker->steps, device);
    mp_steps_add_allocated(&tracker->steps, device,
                           seeded ? 0 : (int64_t)row->size);
    return MP_OK;
}

/* The life at an event's address whose free is not completed, or NULL. */
static mp_allocation_t *
active_row(mp_tracker_t *tracker, const mp_event_t *event)
{
    mp_device_t *device = mp_devices_find(&tracker->devices, event->device);
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
    life_end(tracker, mp_devices_find(&tracker->devices, event->device), row,
             event);
}

static void
block_free_completed(mp_tracker_t *tracker, const mp_event_t *event)
{
    mp_device_t *device = mp_devices_find(&tracker->devices, event->device);
    uint32_t index = device == NULL ? MP_NO_INDEX
                                    : mp_table_take(device->live, event->addr);
    if (index != MP_NO_INDEX) {
        free_completed(tracker, device, index, event);
    }
    else if (event->device == MP_DEVICE_CPU) {
        tracker->defects.foreign_frees++;
    } /* CUDA: its request was counted */
}

static mp_status_t
segment_born(mp_tracker_t *tracker, const mp_event_t *event)
{
    mp_device_t *device = device_of(tracker, event->device, event->time_ns);
    if (device == NULL) {
        return MP_ERR_NOMEM;
    }
    bool matched;
    mp_status_t status =
        mp_segments_born(&tracker->devices, device, event, &matched);
    if (status != MP_OK) {
        return status;
    }
    tracker->defects.unmatched_segments += !matched;
    mp_steps_raise_peaks(&tracker->steps, device);
    if (tracker->ledger != NULL) {
        mp_ledger_segment_born(tracker->ledger, event);
    }
    return MP_OK;
}

static mp_status_t
segment_died(mp_tracker_t *tracker, const mp_event_t *event)
{
    mp_device_t *device = mp_devices_find(&tracker->devices, event->device);
    bool matched = false;
    mp_status_t status =
        device == NULL
            ? MP_OK
            : mp_segments_died(&tracker->devices, device, event, &matched);
    if (status == MP_OK) {
        tracker->defects.unmatched_segments += !matched;
        if (tracker->ledger != NULL) {
            mp_ledger_segment_died(tracker->ledger, event, tracker->events,
                                   tracker->steps.number);
        }
    }
    return status;
}

static mp_status_t
driver_fact(mp_tracker_t *tracker, const mp_event_t *event)
{
    mp_status_t status = MP_OK;
    if (tracker->ledger == NULL) {
        status = mp_ledger_new(tracker->keep_dead, &tracker->ledger);
    }
    return status != MP_OK
               ? status
               : mp_ledger_apply(tracker->ledger, event, tracker->events,
                                 tracker->steps.number);
}

/* ---- facts that Python knows -------------------------------------------- */

/* Which role wins where two are claimed for one storage: a parameter that is
 * also an input stays a parameter. */
static int
role_rank(uint64_t role)
{
    switch (role) {
    case MP_ROLE_PARAMETER:
        return 6;
    case MP_ROLE_BUFFER:
        return 5;
    case MP_ROLE_OPTIMIZER_STATE:
        return 4;
    case MP_ROLE_GRADIENT:
        return 3;
    case MP_ROLE_INPUT:
        return 2;
    default:
        return role >= MP_ROLE_TOLD && role <= MP_ROLE_TOLD_WORKSPACE;
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

/* Of the tensors seen in a block the largest counts, and of equals the first;
 * but as long as the op that made it runs, the last: an op's own result comes
 * after those of the ops inside it. */
static void
shape_given(mp_tracker_t *tracker, const mp_event_t *event)
{
    mp_allocation_t *row = active_row(tracker, event);
    if (row == NULL || row->died_event >= 0 || event->size > row->size) {
        return; /* larger: an expanded view */
    }
    uint64_t less = row->size - event->size;
    uint32_t less32 = less < UINT32_MAX ? (uint32_t)less : UINT32_MAX;
    if (row->shape == MP_NO_INDEX || less32 < row->shape_short ||
        (less32 == row->shape_short && in_its_op(row, event))) {
        row->shape = event->op;
        row->shape_short = less32;
    }
}

static void
origin_given(mp_tracker_t *tracker, const mp_event_t *event)
{
    mp_allocation_t *row = active_row(tracker, event);
    bool seeded = row != NULL && row->born_ns < 0;
    if (row != NULL && (seeded || (event->flags & MP_FLAG_ANY_LIFE))) {
        row->forward_op = event->op;
        row->forward_module = event->module;
        row->forward_stack = event->stack;
        if (seeded || event->op_instance != MP_NO_INDEX) {
            row->region = event->op_instance;
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
        return mp_nesting_op_begin(&tracker->nesting, tracker->forward, event);
    case MP_EVENT_OP_END:
        mp_nesting_op_end(&tracker->nesting, event);
        return MP_OK;
    case MP_EVENT_NODE:
        mp_nesting_node_made(&tracker->nesting, tracker->forward, event);
        return MP_OK;
    case MP_EVENT_REGION_BEGIN:
        return mp_nesting_region_begin(&tracker->nesting, event);
    case MP_EVENT_REGION_END:
        mp_nesting_region_end(&tracker->nesting, event);
        return MP_OK;
    case MP_EVENT_MODULE_BEGIN: {
        mp_status_t status = mp_nesting_module_begin(&tracker->nesting, event);
        return status != MP_OK
                   ? status
                   : mp_forward_map_module_begin(tracker->forward,
                                                 event->stream, event->addr,
                                                 event->module);
    }
    case MP_EVENT_MODULE_END:
        mp_nesting_module_end(&tracker->nesting, event);
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
    case MP_EVENT_SHAPE:
        shape_given(tracker, event);
        return MP_OK;
    case MP_EVENT_STEP:
        if (ours) {
            mp_steps_begin(&tracker->steps, &tracker->devices,
                           (int32_t)event->size, tracker->events,
                           event->time_ns);
        }
        return MP_OK;
    case MP_EVENT_WINDOW_BEGIN:
        if (ours) {
            mp_steps_window_begin(&tracker->steps, &tracker->devices);
        }
        return MP_OK;
    case MP_EVENT_WINDOW_END:
        if (ours) {
            mp_steps_window_end(&tracker->steps, &tracker->devices,
                                tracker->events, event->time_ns);
        }
        return MP_OK;
    case MP_EVENT_TOTAL_PROCESS:
    case MP_EVENT_TOTAL_DEVICE:
    case MP_EVENT_TOTAL_POOL:
        return mp_totals_apply(&tracker->totals, event);
    default: /* most of them change nothing that is alive */
        return mp_event_is_driver(event->kind) ? driver_fact(tracker, event)
                                               : MP_OK;
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
    return tracker->steps.number;
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
    for (size_t i = 0; i < tracker->devices.capacity; i++) {
        if (tracker->devices.at[i] != NULL) {
            if (count < capacity) {
                devices[count] = tracker->devices.at[i]->id;
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
    const mp_device_t *found = mp_devices_find(&tracker->devices, device);
    if (found == NULL) {
        return false;
    }
    *stats = found->stats;
    return true;
}

const mp_step_stats_t *
mp_tracker_steps(const mp_tracker_t *tracker, size_t *count)
{
    return mp_steps_rows(&tracker->steps, &tracker->devices, count);
}

const mp_ledger_t *
mp_tracker_ledger(const mp_tracker_t *tracker)
{
    return tracker->ledger;
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
           tracker->steps.count * sizeof(mp_step_stats_t) +
           mp_totals_bytes(&tracker->totals) +
           mp_ledger_bytes(tracker->ledger) +
           mp_forward_map_bytes(tracker->forward);
}

mp_status_t
mp_tracker_write_state(const mp_tracker_t *tracker, mp_emit_t emit,
                       void *context)
{
    mp_handover_t state = {
        .devices = &tracker->devices,
        .rows = tracker->rows,
        .row_count = tracker->row_count,
        .nesting = &tracker->nesting,
        .ledger = tracker->ledger,
        .totals = &tracker->totals,
        .session_id = tracker->session_id,
        .step = tracker->steps.number,
        .time_ns = tracker->last_ns,
    };
    return mp_handover_write(&state, emit, context);
}

/* ---- scopes ------------------------------------------------------------- */

mp_status_t
mp_tracker_scope_open(mp_tracker_t *tracker, mp_scope_t *scope)
{
    return mp_devices_scope_open(&tracker->devices, scope);
}

mp_status_t
mp_tracker_scope_peak(const mp_tracker_t *tracker, mp_scope_t scope,
                      int16_t device, mp_device_stats_t *stats)
{
    return mp_devices_scope_peak(&tracker->devices, scope, device, stats);
}

void
mp_tracker_scope_close(mp_tracker_t *tracker, mp_scope_t scope)
{
    mp_devices_scope_close(&tracker->devices, scope);
}
