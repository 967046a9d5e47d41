/* nesting.c - which logged ops and regions every thread is inside of. */
#include "nesting.h"

#include "mem.h"

#include <string.h>

#define MANY_THREADS 1024 /* from here on, idle ones make room */

mp_status_t
mp_nesting_init(mp_nesting_t *nesting)
{
    nesting->index = mp_table_new(0);
    return nesting->index == NULL ? MP_ERR_NOMEM : MP_OK;
}

void
mp_nesting_clear(mp_nesting_t *nesting)
{
    for (uint32_t i = 0; i < nesting->count; i++) {
        mp_free(nesting->threads[i].ops);
        mp_free(nesting->threads[i].regions);
    }
    mp_free(nesting->threads);
    mp_table_free(nesting->index);
    *nesting = (mp_nesting_t){0};
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

/* A program may start threads without end: one that is inside of nothing
 * gives its place away. */
static uint32_t
thread_place(const mp_nesting_t *nesting)
{
    if (nesting->count >= MANY_THREADS) {
        for (uint32_t i = 0; i < nesting->count; i++) {
            const mp_thread_t *thread = &nesting->threads[i];
            if (thread->op_count == 0 && thread->region_count == 0) {
                return i;
            }
        }
    }
    return nesting->count;
}

static mp_thread_t *
thread_of(mp_nesting_t *nesting, uint32_t id)
{
    uint32_t index = mp_table_get(nesting->index, id);
    if (MP_LIKELY(index != MP_NO_INDEX)) {
        return &nesting->threads[index];
    }
    uint32_t previous, place = thread_place(nesting);
    if (!grow((void **)&nesting->threads, &nesting->capacity, place,
              sizeof(mp_thread_t)) ||
        mp_table_put(nesting->index, id, place, &previous) != MP_OK) {
        return NULL;
    }
    mp_thread_t *thread = &nesting->threads[place];
    if (place == nesting->count) {
        memset(thread, 0, sizeof(*thread));
        nesting->count++;
    }
    else { /* an idle one's: its arrays come along */
        (void)mp_table_take(nesting->index, thread->id);
    }
    thread->id = id;
    thread->root = MP_NO_INDEX;
    return thread;
}

/* ---- ops ---------------------------------------------------------------- */

/* Whether OP runs inside a forward op, of the outermost DEPTH, that has its
 * sequence number: that one counts. */
static bool
is_inside(const mp_thread_t *thread, uint32_t depth, const mp_open_op_t *op)
{
    for (uint32_t i = depth; i-- > 0;) {
        const mp_open_op_t *outer = &thread->ops[i];
        if (outer->sequence == op->sequence &&
            outer->logical_thread == op->logical_thread &&
            (outer->flags & MP_FLAG_BACKWARD_OP) == 0) {
            return true;
        }
    }
    return false;
}

mp_status_t
mp_nesting_op_begin(mp_nesting_t *nesting, mp_forward_map_t *forward,
                    const mp_event_t *event)
{
    mp_thread_t *thread = thread_of(nesting, event->thread);
    if (thread == NULL || !grow((void **)&thread->ops, &thread->op_capacity,
                                thread->op_count, sizeof(mp_open_op_t))) {
        return MP_ERR_NOMEM;
    }
    mp_open_op_t *op = &thread->ops[thread->op_count++];
    *op = (mp_open_op_t){
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
        mp_forward_map_find(forward, event->size, event->addr, &op->forward);
    }
    else if (!is_inside(thread, thread->op_count - 1, op)) {
        mp_forward_t made_by = {event->op, event->module, event->stack};
        mp_forward_map_put_op(forward, event->stream, event->addr, &made_by);
    }
    return MP_OK;
}

void
mp_nesting_node_made(mp_nesting_t *nesting, mp_forward_map_t *forward,
                     const mp_event_t *event)
{
    const mp_thread_t *thread = mp_nesting_find(nesting, event->thread);
    const mp_open_op_t op = {.sequence = event->addr,
                             .logical_thread = event->stream};
    if (thread != NULL && is_inside(thread, thread->op_count, &op)) {
        return;
    }
    mp_forward_t made_by = {event->op, event->module, event->stack};
    mp_forward_map_put_op(forward, event->stream, event->addr, &made_by);
}

void
mp_nesting_op_end(mp_nesting_t *nesting, const mp_event_t *event)
{
    mp_thread_t *thread = mp_nesting_find(nesting, event->thread);
    if (thread == NULL) {
        return;
    }
    for (uint32_t i = thread->op_count; i-- > 0;) {
        const mp_open_op_t *op = &thread->ops[i];
        if (op->op == event->op) {
            thread->op_count = i; /* and what was left open inside it */
            if (i > 0 && (op->flags & MP_FLAG_BACKWARD_OP) &&
                mp_forward_known(&op->forward)) {
                /* The engine sums and accumulates gradients after the node,
                 * in the frame that it ran the node in. */
                thread->ops[i - 1].forward = op->forward;
            }
            return;
        }
    }
}

/* ---- regions ------------------------------------------------------------ */

mp_status_t
mp_nesting_region_begin(mp_nesting_t *nesting, const mp_event_t *event)
{
    mp_thread_t *thread = thread_of(nesting, event->thread);
    if (thread == NULL ||
        !grow((void **)&thread->regions, &thread->region_capacity,
              thread->region_count, sizeof(uint32_t))) {
        return MP_ERR_NOMEM;
    }
    thread->regions[thread->region_count++] = event->op;
    return MP_OK;
}

void
mp_nesting_region_end(mp_nesting_t *nesting, const mp_event_t *event)
{
    mp_thread_t *thread = mp_nesting_find(nesting, event->thread);
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

mp_status_t
mp_nesting_module_begin(mp_nesting_t *nesting, const mp_event_t *event)
{
    mp_thread_t *thread = thread_of(nesting, event->thread);
    if (thread == NULL) {
        return MP_ERR_NOMEM;
    }
    if (thread->root == MP_NO_INDEX) {
        thread->root = event->module;
        thread->forwards++;
    }
    return MP_OK;
}

void
mp_nesting_module_end(mp_nesting_t *nesting, const mp_event_t *event)
{
    uint32_t index = mp_table_get(nesting->index, event->thread);
    if (index != MP_NO_INDEX &&
        nesting->threads[index].root == event->module) {
        nesting->threads[index].root = MP_NO_INDEX;
    }
}
