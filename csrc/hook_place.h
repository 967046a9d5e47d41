/* hook_place.h - where a thread is, as the fields of an event.
 *
 * Ops are described here, when a fact first asks for them: that is what calls
 * the shim.  Called by hooks with their own thread's context, in_hook set; no
 * lock but the leaves of intern and log. */
#ifndef MP_HOOK_PLACE_H
#define MP_HOOK_PLACE_H

#include "event.h"
#include "hook_context.h"

/* Learn the name, the sequence and the thread of an op that runs. */
void mp_op_describe(mp_context_t *context, mp_op_entry_t *entry);

/* Learn of the ops that began since the last look.  Regions were described
 * when they began. */
void mp_ops_describe(mp_context_t *context);

/* The outermost op inside of the innermost backward node; NULL: no node, or
 * nothing in it. */
mp_op_entry_t *mp_op_inside_node(mp_context_t *context);

/* The fields that say where this thread is. */
void mp_place_fill(mp_context_t *context, mp_event_t *event);

/* Write the begins of the ops that this thread is inside of and that have
 * not been written, and find the op that counts: the innermost that is not a
 * mere allocator; if all are, the one that was called. */
void mp_ops_write(mp_context_t *context, mp_event_t *event);

#endif
