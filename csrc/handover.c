/* handover.c - the state as events that a new tracker can be fed with. */
#include "handover.h"

#include "devices.h"
#include "nesting.h"
#include "totals.h"

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
emit_segments(emitter_t *emitter, const mp_device_t *device)
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
    if (row->shape != MP_NO_INDEX && row->died_event < 0) {
        mp_event_t shape = emitter->blank;
        shape.kind = MP_EVENT_SHAPE;
        shape.addr = row->address;
        shape.size = row->size - row->shape_short;
        shape.device = row->device;
        shape.op = row->shape;
        emit(emitter, &shape);
    }
}

static void
emit_ledger(emitter_t *emitter, const mp_ledger_t *ledger)
{
    mp_event_t event;
    size_t cursor = 0;
    while (mp_ledger_next_context(ledger, &cursor, &emitter->blank, &event)) {
        emit(emitter, &event);
    }
    cursor = 0;
    while (mp_ledger_next_seed(ledger, &cursor, &emitter->blank, &event)) {
        emit(emitter, &event);
    }
    if (mp_ledger_open_gap(ledger, &emitter->blank, &event)) {
        emit(emitter, &event);
    }
}

static void
emit_thread(emitter_t *emitter, const mp_thread_t *thread)
{
    for (uint32_t i = 0; i < thread->region_count; i++) {
        mp_event_t event = emitter->blank;
        event.kind = MP_EVENT_REGION_BEGIN;
        event.thread = thread->id;
        event.op = thread->regions[i];
        emit(emitter, &event);
    }
    for (uint32_t i = 0; i < thread->op_count; i++) {
        const mp_open_op_t *op = &thread->ops[i];
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

static void
emit_totals(emitter_t *emitter, const mp_totals_t *totals)
{
    const mp_event_t *events;
    size_t count;
    for (size_t i = 0; (count = mp_totals_last(totals, i, &events)) > 0; i++) {
        for (size_t k = 0; k < count; k++) {
            emit(emitter, &events[k]);
        }
    }
}

mp_status_t
mp_handover_write(const mp_handover_t *state, mp_emit_t emit_event,
                  void *context)
{
    emitter_t emitter = {
        .emit = emit_event,
        .context = context,
        .blank = {.op = MP_NO_INDEX,
                  .module = MP_NO_INDEX,
                  .stack = MP_NO_INDEX,
                  .time_ns = state->time_ns},
    };
    for (size_t i = 0; i < state->devices->capacity; i++) {
        if (state->devices->at[i] != NULL) {
            emit_segments(&emitter, state->devices->at[i]);
        }
    }
    /* Rows, not the tables: births keep their order, so a state written
     * twice is the same twice. */
    for (size_t i = 0; i < state->row_count; i++) {
        const mp_allocation_t *row = &state->rows[i];
        if (row->id >= 0 && row->completed_event < 0) {
            emit_block(&emitter, row);
        }
    }
    emit_ledger(&emitter, state->ledger);
    for (uint32_t i = 0; i < state->nesting->count; i++) {
        emit_thread(&emitter, &state->nesting->threads[i]);
    }
    mp_event_t step = emitter.blank;
    step.kind = MP_EVENT_STEP;
    step.addr = state->session_id;
    step.size = (uint64_t)state->step;
    emit(&emitter, &step);
    emit_totals(&emitter, state->totals);
    return emitter.stopped ? MP_ERR_FULL : MP_OK;
}
