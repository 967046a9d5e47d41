/* hook.c - the facts: of the allocators, of ops, of roles.
 *
 * The thread's context is its own; what is shared lies in hook_shared.h,
 * hook_pools.h and hook_ops.h. */
#include "hook.h"

#include "clock.h"
#include "hook_ops.h"
#include "hook_place.h"
#include "hook_pools.h"
#include "hook_shape.h"
#include "hook_thread.h"
#include "pystack.h"

/* Modules met on a stack that Python's side should hear of. */
static atomic_uint_fast64_t the_unnamed, the_unhooked;

/* ---- an allocation ---------------------------------------------------------
 */

static inline void
remember(atomic_uint_fast64_t *slot, uint64_t addr)
{
    /* Seldom another one: no write that other threads would wait for. */
    if (addr != 0 &&
        atomic_load_explicit(slot, memory_order_relaxed) != addr) {
        atomic_store_explicit(slot, addr, memory_order_relaxed);
    }
}

/* The stack says that a module's forward runs here. */
static void
place_in_module(mp_context_t *context, mp_event_t *event,
                const mp_pystack_t *python)
{
    event->module = python->module;
    event->flags |= MP_FLAG_IN_MODULE;
    if (event->phase == MP_PHASE_OTHER) {
        event->phase = MP_PHASE_FORWARD;
    }
    else if (event->phase == MP_PHASE_BACKWARD) {
        event->flags |= MP_FLAG_RECOMPUTE;
    }
    remember(&the_unnamed, python->unnamed);
    if (context->module_depth == 0) {
        remember(&the_unhooked, python->root);
    }
}

/* Say where the thread's Python is. */
static void
fill_python(mp_context_t *context, mp_event_t *event)
{
    uint32_t look = mp_hook_wanted() & (MP_HOOK_STACKS | MP_HOOK_MODULES);
    if (look != 0 && context->stack_cache != NULL) {
        mp_pystack_t python;
        mp_pystack_current(context->stack_cache, mp_the_intern,
                           mp_the_module_names, &python);
        if (look & MP_HOOK_STACKS) {
            event->stack = python.stack;
        }
        if (python.backward && event->phase != MP_PHASE_OPTIMIZER) {
            event->phase = MP_PHASE_BACKWARD;
            if (look & MP_HOOK_MODULES) {
                /* A model that runs a backward in its forward, for forces,
                 * computes nothing again: that is for the stack to say. */
                event->flags &= (uint16_t)~MP_FLAG_RECOMPUTE;
            }
        }
        if ((look & MP_HOOK_MODULES) && python.module != MP_NO_INDEX) {
            place_in_module(context, event, &python);
        }
    }
}

static void
write_alloc(mp_context_t *context, mp_event_t *event)
{
    const mp_shim_api_t *shim = mp_hook_shim();
    if (shim != NULL && shim->grad_mode()) {
        event->flags |= MP_FLAG_GRAD_MODE;
    }
    fill_python(context, event);
    if (event->flags & MP_FLAG_RECOMPUTE) {
        /* A checkpoint's node runs a whole forward: each op of it is one. */
        mp_op_entry_t *inside = mp_op_inside_node(context);
        if (inside != NULL) {
            if (inside->instance == 0) {
                inside->instance = ++context->instances;
            }
            event->op_instance = inside->instance;
        }
    }
    if (context->op_depth > 0) {
        mp_ops_write(context, event);
    }
    (void)mp_hook_append(event, 1);
}

/* A thread without a context (it is ending, or memory ran out) still tells
 * the fact: a free that nobody saw would be a wrong answer. */
static void
write_bare(mp_event_t *event)
{
    event->time_ns = mp_clock_now();
    event->thread = mp_thread_number();
    event->op = MP_NO_INDEX;
    event->module = MP_NO_INDEX;
    event->stack = MP_NO_INDEX;
    (void)mp_hook_append(event, 1);
}

/* ---- facts of the allocators -----------------------------------------------
 */

void
mp_hook_memory(const mp_memory_fact_t *fact)
{
    if (!mp_hook_wants(MP_HOOK_CUDA)) {
        return;
    }
    mp_context_t *context = mp_context_get();
    if (context != NULL && context->in_hook) {
        return;
    }
    mp_event_t event = {
        .kind = fact->kind,
        .addr = fact->addr,
        .size = fact->size,
        .stream = fact->stream,
        .device = fact->device,
        .pool = mp_pool_index(context == NULL ? NULL : &context->last_pool,
                              fact->pool_first, fact->pool_second),
    };
    if (context == NULL) {
        write_bare(&event);
        return;
    }
    context->in_hook = true;
    mp_place_fill(context, &event);
    if (fact->kind == MP_EVENT_ALLOC) {
        context->optimizer_net++;
        write_alloc(context, &event);
    }
    else {
        context->optimizer_net -= fact->kind == MP_EVENT_FREE_REQUESTED;
        (void)mp_hook_append(&event, 1);
    }
    context->in_hook = false;
}

void
mp_hook_cpu_alloc(void *pointer, size_t bytes)
{
    if (!mp_hook_wants(MP_HOOK_CPU)) {
        return;
    }
    mp_context_t *context = mp_context_get();
    if (context != NULL && context->in_hook) {
        return;
    }
    mp_event_t event = {
        .kind = MP_EVENT_ALLOC,
        .addr = (uintptr_t)pointer,
        .size = bytes,
        .device = MP_DEVICE_CPU,
    };
    if (context == NULL) {
        write_bare(&event);
        return;
    }
    context->in_hook = true;
    mp_place_fill(context, &event);
    context->optimizer_net++;
    write_alloc(context, &event);
    context->in_hook = false;
}

void
mp_hook_cpu_free(void *pointer)
{
    if (!mp_hook_wants(MP_HOOK_CPU) ||
        pointer == NULL) { /* freeing NULL is legal */
        return;
    }
    mp_context_t *context = mp_context_get();
    if (context != NULL && context->in_hook) {
        return;
    }
    mp_event_t event = {
        .kind = MP_EVENT_FREE_COMPLETED,
        .addr = (uintptr_t)pointer,
        .device = MP_DEVICE_CPU,
    };
    if (context == NULL) {
        write_bare(&event);
        return;
    }
    context->in_hook = true;
    mp_place_fill(context, &event);
    context->optimizer_net--;
    (void)mp_hook_append(&event, 1);
    context->in_hook = false;
}

/* The name of the op that counts here: as mp_ops_write finds it, without
 * telling of the ops, which need not have touched torch's memory. */
static uint32_t
op_that_counts(const mp_context_t *context)
{
    uint32_t outermost = MP_NO_INDEX, counting = MP_NO_INDEX;
    for (uint32_t i = 0; i < mp_kept_ops(context); i++) {
        const mp_op_entry_t *entry = &context->ops[i];
        if (entry->scope == MP_OP_SCOPE_USER) {
            continue;
        }
        outermost = outermost == MP_NO_INDEX ? entry->name : outermost;
        counting = entry->plain_allocator ? counting : entry->name;
    }
    return counting != MP_NO_INDEX ? counting : outermost;
}

void
mp_hook_driver(mp_event_t *event, bool taken)
{
    if (mp_hook_wanted() == 0) {
        return;
    }
    mp_context_t *context =
        mp_this_thread != NULL ? mp_context_get() : mp_context_spare();
    if (context == NULL || context->in_hook) {
        write_bare(event);
        return;
    }
    uint32_t owner = event->op_instance;
    uint16_t flags = event->flags;
    context->in_hook = true;
    event->flags = 0;
    mp_place_fill(context, event);
    if (taken) {
        fill_python(context, event);
    }
    event->op = op_that_counts(context);
    event->op_instance = owner;
    event->flags |= flags;
    (void)mp_hook_append(event, 1);
    context->in_hook = false;
}

void
mp_hook_launch(mp_event_t *event)
{
    if (mp_hook_wanted() == 0) {
        return;
    }
    mp_context_t *context =
        mp_this_thread != NULL ? mp_context_get() : mp_context_spare();
    if (context == NULL || context->in_hook) {
        event->op_instance = MP_NO_INDEX;
        write_bare(event);
        return;
    }
    context->in_hook = true;
    mp_place_fill(context, event);
    fill_python(context, event);
    if (context->op_depth > 0) {
        mp_ops_write(context, event);
    }
    (void)mp_hook_append(event, 1);
    context->in_hook = false;
}

/* ---- facts of ops ----------------------------------------------------------
 */

void
mp_hook_op_begin(const void *op, mp_op_scope_t scope)
{
    mp_context_t *context = mp_context_get();
    if (context != NULL && !context->in_hook) {
        mp_ops_enter(context, op, scope);
    }
}

void
mp_hook_region_begin(const void *object, uint32_t name)
{
    mp_context_t *context = mp_context_get();
    if (context != NULL && !context->in_hook &&
        mp_hook_wants(MP_HOOK_REGIONS)) {
        mp_ops_enter_named(context, object, name);
    }
}

/* The op ENTRY ends, the innermost of this thread.  If it has made an
 * autograd node and touched no memory, nothing has told of it, and its
 * backward may need a lot: of a slice, a whole tensor. */
static void
tell_of_node(mp_context_t *context, mp_op_entry_t *entry)
{
    if (mp_hook_wanted() == 0) {
        return;
    }
    uint64_t next = mp_hook_shim()->sequence_peek();
    if (MP_LIKELY(next == context->next_sequence)) {
        return;
    }
    if (entry->logged) { /* what is inside of it told before */
        context->next_sequence = next;
        return;
    }
    mp_ops_describe(context);
    if (entry == &context->ops[context->outermost]) {
        context->next_sequence = next;
    }
    if (entry->engine || entry->sequence == UINT64_MAX ||
        entry->sequence >= next) {
        return;
    }
    context->next_sequence = next;
    mp_event_t event = {.kind = MP_EVENT_NODE, .device = MP_DEVICE_CPU};
    mp_place_fill(context, &event);
    fill_python(context, &event);
    event.addr = entry->sequence;
    event.stream = entry->thread;
    event.op = entry->name;
    (void)mp_hook_append(&event, 1);
}

/* End OP, if this thread is inside of it. */
static bool
end_here(mp_context_t *context, const void *op)
{
    uint32_t depth = context->op_depth;
    if (depth > MP_MAX_OPS) {
        context->op_depth--; /* deeper than we keep: assume it is the last */
        return true;
    }
    for (uint32_t i = depth; i-- > 0;) {
        if (context->ops[i].op == op) {
            context->in_hook = true;
            if (context->ops[i].scope == MP_OP_SCOPE_USER) {
                mp_ops_leave_region(context, i);
            }
            else {
                if (i + 1 == depth) {
                    tell_of_node(context, &context->ops[i]);
                }
                mp_ops_leave(context, i);
            }
            context->in_hook = false;
            return true;
        }
    }
    return false;
}

void
mp_hook_op_end(const void *op)
{
    mp_context_t *context = mp_this_thread;
    if (context != NULL && (context->in_hook || end_here(context, op))) {
        return;
    }
    mp_ops_stray_end(op); /* began before us, or on another thread */
}

void
mp_hook_region_end(const void *object)
{
    mp_context_t *context = mp_this_thread;
    /* A callback, or nobody, told of its begin: then this is not its end. */
    bool told = mp_hook_wants(MP_HOOK_REGIONS);
    if (context != NULL && !told && context->op_depth > MP_MAX_OPS) {
        return;
    }
    if (context != NULL && (context->in_hook || end_here(context, object))) {
        return;
    }
    if (told) {
        mp_ops_stray_end(object);
    }
}

bool
mp_hook_op_wants_outputs(const void *op)
{
    const mp_context_t *context = mp_this_thread;
    if (context == NULL || context->in_hook ||
        !mp_hook_wants(MP_HOOK_SHAPES) || context->op_depth == 0 ||
        context->op_depth > MP_MAX_OPS) {
        return false;
    }
    const mp_op_entry_t *entry = &context->ops[context->op_depth - 1];
    return entry->op == op && entry->logged;
}

void
mp_hook_tensor(const mp_tensor_fact_t *fact)
{
    uint64_t bytes;
    if (!mp_hook_wants(MP_HOOK_SHAPES) ||
        !mp_hook_wants(fact->device == MP_DEVICE_CPU ? MP_HOOK_CPU
                                                     : MP_HOOK_CUDA) ||
        !mp_shape_bytes(fact, &bytes) || bytes < MP_SHAPE_MIN_BYTES) {
        return;
    }
    mp_context_t *context = mp_context_get();
    if (context == NULL || context->in_hook) {
        return;
    }
    char text[MP_SHAPE_TEXT];
    size_t length = mp_shape_text(fact, text, sizeof(text));
    uint32_t shape = mp_intern_string(mp_the_intern, text, length);
    if (shape == MP_NO_INDEX) {
        return;
    }
    mp_event_t event = {.kind = MP_EVENT_SHAPE,
                        .addr = fact->addr,
                        .size = bytes,
                        .device = fact->device};
    context->in_hook = true;
    mp_place_fill(context, &event);
    event.op = shape;
    (void)mp_hook_append(&event, 1);
    context->in_hook = false;
}

/* ---- facts of Python's side ------------------------------------------------
 */

void
mp_hook_role(uint64_t addr, int16_t device, mp_role_t role, uint32_t owner)
{
    mp_context_t *context = mp_context_get();
    if (context == NULL || mp_hook_wanted() == 0) {
        return;
    }
    mp_event_t event = {
        .kind = MP_EVENT_ROLE, .addr = addr, .size = role, .device = device};
    mp_place_fill(context, &event);
    event.op = owner;
    (void)mp_hook_append(&event, 1);
}

void
mp_hook_seed_cpu(uint64_t addr, uint64_t bytes)
{
    if (mp_hook_wanted() == 0) {
        return;
    }
    mp_event_t event = mp_hook_own_event(MP_EVENT_SEED_BLOCK);
    event.thread = 0; /* whoever made it is not known */
    event.addr = addr;
    event.size = bytes;
    (void)mp_hook_append(&event, 1);
}

mp_event_t
mp_hook_own_event(uint8_t kind)
{
    return (mp_event_t){
        .kind = kind,
        .time_ns = mp_clock_now(),
        .thread = mp_thread_number(),
        .op = MP_NO_INDEX,
        .module = MP_NO_INDEX,
        .stack = MP_NO_INDEX,
        .device = MP_DEVICE_CPU,
    };
}

bool
mp_hook_feed(const mp_event_t *events, size_t count)
{
    return mp_hook_append(events, count);
}

uint32_t
mp_hook_stack(void)
{
    mp_context_t *context = mp_context_get();
    if (context == NULL || context->stack_cache == NULL) {
        return MP_NO_INDEX;
    }
    mp_pystack_t python;
    mp_pystack_current(context->stack_cache, mp_the_intern,
                       mp_the_module_names, &python);
    return python.stack;
}

void
mp_hook_take_strangers(uint64_t *unnamed, uint64_t *unhooked)
{
    *unnamed = atomic_exchange(&the_unnamed, 0);
    *unhooked = atomic_exchange(&the_unhooked, 0);
}

/* ---- once ------------------------------------------------------------------
 */

const mp_core_api_t *
mp_hook_core_api(void)
{
    static const mp_core_api_t api = {
        .version = MP_SHIM_API_VERSION,
        .size = sizeof(mp_core_api_t),
        .active = &mp_the_active,
        .memory = mp_hook_memory,
        .cpu_alloc = mp_hook_cpu_alloc,
        .cpu_free = mp_hook_cpu_free,
        .op_begin = mp_hook_op_begin,
        .op_end = mp_hook_op_end,
        .op_wants_outputs = mp_hook_op_wants_outputs,
        .tensor = mp_hook_tensor,
    };
    return &api;
}

void
mp_hook_after_fork(void)
{
    mp_hook_set_wanted(0);
    if (mp_the_log != NULL) {
        mp_log_reset(mp_the_log);
    }
    if (mp_the_intern != NULL) {
        mp_intern_reset_lock(mp_the_intern);
    }
    mp_pools_after_fork();
    mp_ops_after_fork();
    mp_context_after_fork();
}
