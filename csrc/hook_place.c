/* hook_place.c - where a thread is, as the fields of an event. */
#include "hook_place.h"

#include "clock.h"
#include "hook_shared.h"

void
mp_op_describe(mp_context_t *context, mp_op_entry_t *entry)
{
    mp_op_fact_t fact = {.name = NULL, .sequence = -1};
    mp_hook_shim()->describe_op(entry->op, &fact);
    const mp_op_name_t *name = mp_op_name_find(&context->names, fact.name);
    bool region = entry->scope == MP_OP_SCOPE_USER;
    entry->name = name->name;
    entry->plain_allocator = name->plain_allocator;
    entry->engine = name->engine && !region;
    entry->sequence = fact.sequence < 0 ? UINT64_MAX : (uint64_t)fact.sequence;
    entry->thread = fact.thread;
    entry->forward_thread = 0;
}

/* Whether an op that runs here has made an autograd node: torch makes it
 * before it computes, so the thread's count has left the op's number. */
static bool
made_node(const mp_context_t *context)
{
    uint32_t kept = mp_kept_ops(context);
    for (uint32_t i = kept; i-- > 0;) {
        const mp_op_entry_t *entry = &context->ops[i];
        if (entry->scope == MP_OP_SCOPE_USER) {
            continue;
        }
        if (entry->engine) {
            return false;
        }
        if (entry->sequence != UINT64_MAX) {
            return mp_hook_shim()->sequence_peek() > entry->sequence;
        }
    }
    return false;
}

mp_op_entry_t *
mp_op_inside_node(mp_context_t *context)
{
    uint32_t kept = mp_kept_ops(context);
    mp_op_entry_t *found = NULL;
    for (uint32_t i = kept; i-- > 0;) {
        mp_op_entry_t *entry = &context->ops[i];
        if (entry->engine) {
            return found;
        }
        if (entry->scope != MP_OP_SCOPE_USER) {
            found = entry;
        }
    }
    return NULL;
}

void
mp_ops_describe(mp_context_t *context)
{
    uint32_t kept = mp_kept_ops(context);
    if (MP_LIKELY(context->described == kept)) {
        return;
    }
    mp_op_entry_t *frame = NULL;
    for (uint32_t i = context->described; i < kept; i++) {
        mp_op_entry_t *entry = &context->ops[i];
        if (entry->scope != MP_OP_SCOPE_USER) {
            mp_op_describe(context, entry);
            if (entry->engine) {
                context->backward_depth++;
                frame = entry;
            }
        }
    }
    context->described = kept;
    mp_node_fact_t node;
    /* torch knows the innermost node that runs.  Further out there may be
     * another one that touched no memory yet: it stays without a number. */
    if (frame != NULL && mp_hook_shim()->current_node(&node)) {
        frame->sequence =
            node.sequence < 0 ? UINT64_MAX : (uint64_t)node.sequence;
        frame->forward_thread = node.thread;
    }
}

/* In an optimizer's step and in nothing that began inside it: an optimizer
 * may run inside a backward, and a closure inside an optimizer. */
static bool
in_optimizer(const mp_context_t *context)
{
    return context->optimizer_depth > 0 &&
           context->module_depth <= context->optimizer_modules &&
           context->backward_depth <= context->optimizer_backwards;
}

void
mp_place_fill(mp_context_t *context, mp_event_t *event)
{
    mp_ops_describe(context);
    event->time_ns = mp_clock_now();
    event->thread = context->number;
    event->op = MP_NO_INDEX;
    event->stack = MP_NO_INDEX;
    uint32_t depth = context->module_depth;
    event->module =
        depth == 0
            ? MP_NO_INDEX
            : context->modules[depth <= MP_MAX_MODULES ? depth - 1
                                                       : MP_MAX_MODULES - 1];
    event->op_instance = context->op_instance;
    if (context->running_ops > 0) {
        event->flags |= MP_FLAG_IN_OP;
    }
    if (depth > 0) {
        event->flags |= MP_FLAG_IN_MODULE;
    }
    bool node = context->running_ops > 0 && made_node(context);
    if (node) {
        event->flags |= MP_FLAG_MADE_NODE;
    }
    if (context->backward_depth > 0) {
        const mp_op_entry_t *inside = mp_op_inside_node(context);
        if (inside != NULL && inside->instance != 0) {
            event->op_instance = inside->instance;
        }
    }
    /* An optimizer's step makes no graph: its closure does. */
    if (in_optimizer(context) && !node) {
        event->phase = MP_PHASE_OPTIMIZER;
    }
    else if (context->backward_depth > 0 || context->engine) {
        event->phase = MP_PHASE_BACKWARD;
        if (depth > 0) {
            event->flags |= MP_FLAG_RECOMPUTE;
        }
    }
    else if (depth > 0 || node) {
        event->phase = MP_PHASE_FORWARD;
    }
}

void
mp_ops_write(mp_context_t *context, mp_event_t *event)
{
    uint32_t depth = mp_kept_ops(context);
    mp_event_t begins[16];
    size_t count = 0;
    uint32_t outermost = MP_NO_INDEX, counting = MP_NO_INDEX;
    for (uint32_t i = 0; i < depth; i++) {
        mp_op_entry_t *entry = &context->ops[i];
        if (entry->scope == MP_OP_SCOPE_USER) {
            continue; /* a region: written when it began */
        }
        if (outermost == MP_NO_INDEX) {
            outermost = entry->name;
        }
        if (!entry->plain_allocator) {
            counting = entry->name;
        }
        if (entry->logged) {
            continue;
        }
        if (count == MP_ARRAY_LENGTH(begins)) {
            (void)mp_hook_append(begins, count);
            count = 0;
        }
        mp_event_t *begin = &begins[count++];
        *begin = (mp_event_t){
            .kind = MP_EVENT_OP_BEGIN,
            .addr = entry->sequence,
            .size = entry->forward_thread,
            .stream = entry->thread,
            .time_ns = event->time_ns,
            .thread = event->thread,
            .op = entry->name,
            .module = event->module,
            .stack = event->stack,
            .op_instance = event->op_instance,
            .phase = event->phase,
            .device = MP_DEVICE_CPU,
            .flags = event->flags,
        };
        if (entry->engine) {
            begin->flags |= MP_FLAG_BACKWARD_OP;
        }
        entry->logged = true;
    }
    if (count > 0) {
        (void)mp_hook_append(begins, count);
    }
    event->op = counting != MP_NO_INDEX ? counting : outermost;
}
