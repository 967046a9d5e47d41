/* snapshot_state.c - one device of a snapshot: its trace, and its state. */
#include "snapshot_state.h"

#include "mem.h"

#include <stdlib.h>
#include <string.h>

mp_status_t
mp_trace_add_block(mp_trace_t *trace, const mp_told_t *told)
{
    if (trace->there == NULL && (trace->there = mp_table_new(256)) == NULL) {
        return MP_ERR_NOMEM;
    }
    if (mp_table_get(trace->there, told->event.addr) != MP_NO_INDEX ||
        trace->block_count >= MP_NO_INDEX - 1) {
        return MP_OK;
    }
    if (trace->block_count == trace->block_capacity) {
        size_t capacity = trace->block_capacity * 2 + 64;
        mp_told_t *blocks =
            mp_realloc(trace->blocks, capacity * sizeof(*blocks));
        if (blocks == NULL) {
            return MP_ERR_NOMEM;
        }
        trace->blocks = blocks;
        bool *gone = mp_realloc(trace->gone, capacity * sizeof(*gone));
        if (gone == NULL) {
            return MP_ERR_NOMEM;
        }
        trace->gone = gone;
        trace->block_capacity = capacity;
    }
    uint32_t previous, index = (uint32_t)trace->block_count;
    mp_status_t status =
        mp_table_put(trace->there, told->event.addr, index, &previous);
    if (status == MP_OK) {
        trace->blocks[index] = *told;
        trace->gone[index] = false;
        trace->block_count++;
    }
    return status;
}

/* What of RANGE is not there already. */
mp_status_t
mp_trace_add_segment(mp_trace_t *trace, const mp_range_t *range)
{
    if (trace->segments == NULL &&
        (trace->segments = mp_ranges_new()) == NULL) {
        return MP_ERR_NOMEM;
    }
    if (range->end <= range->begin) {
        return MP_OK;
    }
    uint64_t taken;
    mp_status_t status = mp_ranges_take(trace->segments, range->begin,
                                        range->end - range->begin, &taken);
    return status == MP_OK ? mp_ranges_put(trace->segments, range) : status;
}

/* ---- a trace that is cut -------------------------------------------------
 */

typedef struct {
    uint64_t begin, end;
} stretch_t;

static int
by_begin(const void *left, const void *right)
{
    const stretch_t *a = left, *b = right;
    return a->begin < b->begin ? -1 : a->begin > b->begin;
}

static bool
is_block_event(const mp_event_t *event)
{
    return event->kind == MP_EVENT_ALLOC ||
           event->kind == MP_EVENT_FREE_REQUESTED ||
           event->kind == MP_EVENT_FREE_COMPLETED;
}

static uint64_t
end_of(const mp_event_t *event)
{
    uint64_t end = event->addr + (event->size == 0 ? 1 : event->size);
    return end < event->addr ? UINT64_MAX : end;
}

/* The addresses that blocks of the trace lie at, in order and joined. */
static mp_status_t
find_used(const mp_trace_t *trace, stretch_t **out, size_t *count)
{
    stretch_t *used = mp_calloc(trace->count + 1, sizeof(*used));
    size_t found = 0, joined = 0;
    if (used == NULL) {
        return MP_ERR_NOMEM;
    }
    for (size_t i = 0; i < trace->count; i++) {
        const mp_event_t *event = &trace->entries[i].event;
        if (is_block_event(event)) {
            used[found++] = (stretch_t){event->addr, end_of(event)};
        }
    }
    qsort(used, found, sizeof(*used), by_begin);
    for (size_t i = 0; i < found; i++) {
        if (joined > 0 && used[i].begin <= used[joined - 1].end) {
            if (used[i].end > used[joined - 1].end) {
                used[joined - 1].end = used[i].end;
            }
        }
        else {
            used[joined++] = used[i];
        }
    }
    *out = used;
    *count = joined;
    return MP_OK;
}

static bool
is_used(const stretch_t *used, size_t count, const mp_event_t *block)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (used[middle].end > block->addr) {
            high = middle;
        }
        else {
            low = middle + 1;
        }
    }
    return low < count && used[low].begin < end_of(block);
}

/* The state is that of an end which the trace does not reach.  What lies where
 * no block of the trace ever was may be older than it, all else is newer. */
static mp_status_t
guess(mp_trace_t *trace)
{
    stretch_t *used;
    size_t count;
    mp_status_t status = find_used(trace, &used, &count);
    if (status != MP_OK) {
        return status;
    }
    for (size_t i = 0; i < trace->block_count; i++) {
        if (is_used(used, count, &trace->blocks[i].event)) {
            trace->gone[i] = true;
            trace->left_out++;
            (void)mp_table_take(trace->there, trace->blocks[i].event.addr);
        }
        else {
            trace->guessed++;
        }
    }
    mp_free(used);
    return MP_OK;
}

/* ---- going back ----------------------------------------------------------
 */

static uint32_t
block_at(const mp_trace_t *trace, uint64_t addr)
{
    return trace->there == NULL ? MP_NO_INDEX
                                : mp_table_get(trace->there, addr);
}

/* Before its free was FLAGS (MP_FLAG_PENDING: completed only) a block was
 * there. */
static mp_status_t
undo_free(mp_trace_t *trace, const mp_told_t *entry, bool stacks,
          uint16_t flags)
{
    uint32_t index = block_at(trace, entry->event.addr);
    if (index != MP_NO_INDEX) {
        if (flags == 0) {
            trace->blocks[index].event.flags &= (uint16_t)~MP_FLAG_PENDING;
        }
        if (trace->blocks[index].category == 0) {
            trace->blocks[index].category = entry->category;
            trace->blocks[index].forward_stack = entry->forward_stack;
            trace->blocks[index].event.op = entry->event.op;
            trace->blocks[index].event.module = entry->event.module;
            trace->blocks[index].event.phase = entry->event.phase;
        }
        return MP_OK;
    }
    mp_told_t block = *entry;
    block.event.flags = flags;
    if (!stacks) {
        block.event.stack = MP_NO_INDEX;
    }
    return mp_trace_add_block(trace, &block);
}

static mp_status_t
undo_segment(mp_trace_t *trace, const mp_event_t *event)
{
    uint64_t taken;
    mp_range_t range = {.begin = event->addr,
                        .end = end_of(event),
                        .stream = event->stream,
                        .pool = event->pool,
                        .mapped = event->kind == MP_EVENT_SEGMENT_UNMAP};
    if (event->kind == MP_EVENT_SEGMENT_ALLOC ||
        event->kind == MP_EVENT_SEGMENT_MAP) {
        return trace->segments == NULL
                   ? MP_OK
                   : mp_ranges_take(trace->segments, event->addr, event->size,
                                    &taken);
    }
    return event->size == 0 ? MP_OK : mp_trace_add_segment(trace, &range);
}

static mp_status_t
undo(mp_trace_t *trace, const mp_told_t *entry, bool stacks)
{
    uint32_t index;
    switch (entry->event.kind) {
    case MP_EVENT_ALLOC:
        index = block_at(trace, entry->event.addr);
        if (index != MP_NO_INDEX) {
            trace->gone[index] = true;
            (void)mp_table_take(trace->there, entry->event.addr);
        }
        return MP_OK;
    case MP_EVENT_FREE_COMPLETED:
        return undo_free(trace, entry, stacks, MP_FLAG_PENDING);
    case MP_EVENT_FREE_REQUESTED:
        return undo_free(trace, entry, stacks, 0);
    case MP_EVENT_SEGMENT_ALLOC:
    case MP_EVENT_SEGMENT_FREE:
    case MP_EVENT_SEGMENT_MAP:
    case MP_EVENT_SEGMENT_UNMAP:
        return undo_segment(trace, &entry->event);
    default:
        return MP_OK;
    }
}

mp_status_t
mp_trace_go_back(mp_trace_t *trace, bool stacks)
{
    mp_status_t status = trace->is_cut ? guess(trace) : MP_OK;
    for (size_t i = trace->count; status == MP_OK && i-- > 0;) {
        status = undo(trace, &trace->entries[i], stacks);
    }
    for (size_t i = 0; i < trace->block_count; i++) {
        trace->older += !trace->gone[i];
    }
    return status;
}

/* ---- writing -------------------------------------------------------------
 */

mp_status_t
mp_told_write(const mp_told_t *told, mp_told_emit_t emit, void *context)
{
    mp_status_t status = emit(context, &told->event);
    if (told->event.kind != MP_EVENT_ALLOC &&
        told->event.kind != MP_EVENT_SEED_BLOCK) {
        return status;
    }
    mp_event_t fact = {
        .addr = told->event.addr,
        .time_ns = told->event.time_ns,
        .op = MP_NO_INDEX,
        .module = MP_NO_INDEX,
        .stack = MP_NO_INDEX,
        .step = told->event.step,
        .device = told->event.device,
    };
    if (status == MP_OK && told->forward_stack != MP_NO_INDEX) {
        mp_event_t origin = fact;
        origin.kind = MP_EVENT_SEED_ORIGIN;
        origin.stack = told->forward_stack;
        origin.op_instance = MP_NO_INDEX; /* no region */
        origin.flags = MP_FLAG_ANY_LIFE;
        status = emit(context, &origin);
    }
    if (status == MP_OK && told->category != 0) {
        fact.kind = MP_EVENT_ROLE;
        fact.size = MP_ROLE_TOLD + told->category - 1u;
        status = emit(context, &fact);
    }
    return status;
}

mp_status_t
mp_trace_write_state(const mp_trace_t *trace, int64_t time_ns,
                     mp_told_emit_t emit, void *context)
{
    mp_status_t status = MP_OK;
    size_t count =
        trace->segments == NULL ? 0 : mp_ranges_count(trace->segments);
    for (size_t i = 0; status == MP_OK && i < count; i++) {
        const mp_range_t *range = mp_ranges_at(trace->segments, i);
        mp_event_t event = {
            .addr = range->begin,
            .size = range->end - range->begin,
            .time_ns = time_ns,
            .stream = range->stream,
            .op = MP_NO_INDEX,
            .module = MP_NO_INDEX,
            .stack = MP_NO_INDEX,
            .kind = MP_EVENT_SEED_SEGMENT,
            .device = trace->device,
            .pool = range->pool,
            .flags = range->mapped ? MP_FLAG_PENDING : 0,
        };
        status = emit(context, &event);
    }
    for (size_t i = 0; status == MP_OK && i < trace->block_count; i++) {
        if (!trace->gone[i]) {
            mp_told_t told = trace->blocks[i];
            told.event.kind = MP_EVENT_SEED_BLOCK;
            told.event.time_ns = time_ns;
            told.event.step = 0;
            status = mp_told_write(&told, emit, context);
        }
    }
    return status;
}

void
mp_trace_clear(mp_trace_t *trace)
{
    mp_free(trace->entries);
    mp_free(trace->blocks);
    mp_free(trace->gone);
    mp_table_free(trace->there);
    mp_ranges_free(trace->segments);
    *trace = (mp_trace_t){0};
}
