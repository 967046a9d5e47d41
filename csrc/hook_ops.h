/* hook_ops.h - the ops and regions that a thread is inside of: in and out.
 *
 * Called with the thread's own context.  What ended on another thread than it
 * began on goes through a short list that all threads share, under a lock of
 * its own, a leaf. */
#ifndef MP_HOOK_OPS_H
#define MP_HOOK_OPS_H

#include "hook_context.h"
#include "shim_api.h"

/* A new innermost entry; NULL: too deep to be kept. */
static inline mp_op_entry_t *
mp_ops_push(mp_context_t *context, const void *op, mp_op_scope_t scope)
{
    uint32_t depth = context->op_depth++;
    if (depth >= MP_MAX_OPS) {
        return NULL;
    }
    mp_op_entry_t *entry = &context->ops[depth];
    entry->op = op;
    entry->name = MP_NO_INDEX;
    entry->scope = (uint8_t)scope;
    entry->logged = false;
    entry->instance = 0;
    return entry;
}

/* Enter OP.  A region is described and written at once. */
void mp_ops_enter_region(mp_context_t *context, mp_op_entry_t *entry);

static inline void
mp_ops_enter(mp_context_t *context, const void *op, mp_op_scope_t scope)
{
    uint32_t depth = context->op_depth;
    mp_op_entry_t *entry = mp_ops_push(context, op, scope);
    if (entry == NULL) {
        return;
    }
    if (scope == MP_OP_SCOPE_USER) {
        mp_ops_enter_region(context, entry);
        return;
    }
    if (context->running_ops++ == 0) {
        context->op_instance = ++context->instances;
        context->outermost = depth;
    }
}

/* Enter the region NAME, which torch does not tell of; OP stands for it. */
void mp_ops_enter_named(mp_context_t *context, const void *op, uint32_t name);

/* Leave the op ops[DEPTH] and what is still open inside it. */
void mp_ops_leave(mp_context_t *context, uint32_t depth);

/* Leave the region ops[INDEX]; what began inside it goes on. */
void mp_ops_leave_region(mp_context_t *context, uint32_t index);

/* The thread ends: so do its regions.  Its ops are gone already. */
void mp_ops_end_thread(mp_context_t *context);

/* ---- ends on other threads -------------------------------------------------
 */

/* OP, of which the calling thread is not inside, ended on it. */
void mp_ops_stray_end(const void *op);

/* How many there ever were: a new thread need not look at those. */
uint32_t mp_ops_strays(void);

/* Leave the regions of this thread that ended on another one. */
void mp_ops_leave_strays(mp_context_t *context);

/* In a child after fork: nobody holds the lock. */
void mp_ops_after_fork(void);

#endif
