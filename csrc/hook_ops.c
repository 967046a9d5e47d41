/* hook_ops.c - the ops and regions that a thread is inside of: in and out. */
#include "hook_ops.h"

#include "hook_place.h"
#include "hook_shared.h"
#include "sync.h"

#include <string.h>

#define MAX_STRAYS 64

/* Ends of ops that the ending thread was not inside of: a record_function
 * region may end on another thread than it began on, which finds it here. */
static struct {
    mp_spin_t lock;
    uint32_t count; /* ever; the last MAX_STRAYS are kept */
    const void *ops[MAX_STRAYS];
} the_strays;

static void
write_region(mp_context_t *context, const mp_op_entry_t *entry)
{
    mp_event_t event = {.kind = MP_EVENT_REGION_BEGIN,
                        .device = MP_DEVICE_CPU};
    mp_place_fill(context, &event);
    event.op = entry->name;
    (void)mp_hook_append(&event, 1);
}

/* It may end on another thread, and then its address is no longer good here:
 * ask now. */
void
mp_ops_enter_region(mp_context_t *context, mp_op_entry_t *entry)
{
    context->in_hook = true;
    mp_op_describe(context, entry);
    write_region(context, entry);
    context->in_hook = false;
}

void
mp_ops_enter_named(mp_context_t *context, const void *op, uint32_t name)
{
    mp_op_entry_t *entry = mp_ops_push(context, op, MP_OP_SCOPE_USER);
    if (entry == NULL) {
        return;
    }
    entry->name = name;
    entry->plain_allocator = false;
    entry->engine = false;
    entry->sequence = UINT64_MAX;
    entry->thread = 0;
    entry->forward_thread = 0;
    context->in_hook = true;
    write_region(context, entry);
    context->in_hook = false;
}

static void
write_end(mp_context_t *context, uint8_t kind, uint32_t name)
{
    if (mp_hook_wanted() != 0) {
        mp_event_t event = {.kind = kind, .device = MP_DEVICE_CPU};
        mp_place_fill(context, &event);
        event.op = name;
        (void)mp_hook_append(&event, 1);
    }
}

void
mp_ops_leave(mp_context_t *context, uint32_t depth)
{
    uint32_t kept = mp_kept_ops(context);
    for (uint32_t i = kept; i-- > depth;) {
        const mp_op_entry_t *entry = &context->ops[i];
        if (i < context->described) {
            context->described = i;
            context->backward_depth -= entry->engine;
        }
        context->op_depth = i; /* before the end is written: nothing asks
                                  about what is over */
        if (entry->scope == MP_OP_SCOPE_USER) {
            write_end(context, MP_EVENT_REGION_END, entry->name);
            continue;
        }
        context->running_ops--;
        if (entry->logged) {
            write_end(context, MP_EVENT_OP_END, entry->name);
        }
    }
    context->op_depth = depth;
}

void
mp_ops_leave_region(mp_context_t *context, uint32_t index)
{
    uint32_t name = context->ops[index].name;
    uint32_t kept = mp_kept_ops(context);
    memmove(&context->ops[index], &context->ops[index + 1],
            (kept - index - 1) * sizeof(mp_op_entry_t));
    context->op_depth--;
    context->described -= context->described > index;
    if (context->outermost > index) {
        context->outermost--;
    }
    write_end(context, MP_EVENT_REGION_END, name);
}

void
mp_ops_end_thread(mp_context_t *context)
{
    /* The frames of ops are gone; only regions outlive their thread. */
    uint32_t kept = mp_kept_ops(context);
    uint32_t regions = 0;
    for (uint32_t i = 0; i < kept; i++) {
        if (context->ops[i].scope == MP_OP_SCOPE_USER) {
            context->ops[regions++] = context->ops[i];
        }
    }
    context->op_depth = regions;
    context->described = regions;
    context->running_ops = 0;
    context->backward_depth = 0;
    while (context->op_depth > 0) {
        mp_ops_leave_region(context, context->op_depth - 1);
    }
}

void
mp_ops_leave_strays(mp_context_t *context)
{
    const void *ops[MAX_STRAYS];
    uint32_t count = 0;
    mp_spin_lock(&the_strays.lock);
    uint32_t now = the_strays.count, new = now - context->strays;
    for (uint32_t i = new < MAX_STRAYS ? new : MAX_STRAYS; i > 0; i--) {
        ops[count++] = the_strays.ops[(now - i) % MAX_STRAYS];
    }
    context->strays = now;
    mp_spin_unlock(&the_strays.lock);
    context->in_hook = true;
    for (uint32_t i = context->op_depth <= MP_MAX_OPS ? context->op_depth : 0;
         count > 0 && i-- > 0;) {
        for (uint32_t k = 0; k < count; k++) {
            if (context->ops[i].scope == MP_OP_SCOPE_USER &&
                context->ops[i].op == ops[k]) {
                mp_ops_leave_region(context, i);
                break;
            }
        }
    }
    context->in_hook = false;
}

void
mp_ops_stray_end(const void *op)
{
    if (mp_hook_wanted() != 0) {
        mp_spin_lock(&the_strays.lock);
        the_strays.ops[the_strays.count++ % MAX_STRAYS] = op;
        mp_spin_unlock(&the_strays.lock);
        atomic_fetch_add_explicit(&mp_the_news, 1, memory_order_release);
    }
}

uint32_t
mp_ops_strays(void)
{
    mp_spin_lock(&the_strays.lock);
    uint32_t count = the_strays.count;
    mp_spin_unlock(&the_strays.lock);
    return count;
}

void
mp_ops_after_fork(void)
{
    atomic_store(&the_strays.lock.held, 0);
}
