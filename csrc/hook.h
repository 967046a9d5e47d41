/* hook.h - what runs inside somebody else's call: write a fact and leave.
 *
 * Process-wide.  The functions of the first part are called by the torch
 * shim or by hooks on modules and optimizers, on any thread, with locks of
 * torch held; they take no GIL, block on nothing, cannot fail.  A full log
 * counts the drop.
 *
 * Every thread has a context of its own: the ops, modules and optimizer
 * steps it is inside of.  An op is written to the log only when memory is
 * touched inside it, so ops that touch none cost one push and one pop. */
#ifndef MP_HOOK_H
#define MP_HOOK_H

#include "hook_shared.h"

/* The table that the shim gets. */
const mp_core_api_t *mp_hook_core_api(void);

/* After fork, in the child: nobody records, this thread is inside nothing. */
void mp_hook_after_fork(void);

/* ---- facts ----------------------------------------------------------------
 */

void mp_hook_memory(const mp_memory_fact_t *fact);
void mp_hook_cpu_alloc(void *pointer, size_t bytes);
void mp_hook_cpu_free(void *pointer);
void mp_hook_op_begin(const void *op, mp_op_scope_t scope);
void mp_hook_op_end(const void *op);
/* A record_function region, told by Python: OBJECT names it until its end,
 * NAME is a string id.  Nothing while a callback tells of regions. */
void mp_hook_region_begin(const void *object, uint32_t name);
void mp_hook_region_end(const void *object);
/* Whether the outputs of OP are wanted: it touched memory, and somebody
 * records shapes. */
bool mp_hook_op_wants_outputs(const void *op);
/* A tensor lies in a block; nothing if shapes are not recorded, or if it has
 * fewer bytes than MP_SHAPE_MIN_BYTES (hook_shape.h). */
void mp_hook_tensor(const mp_tensor_fact_t *fact);

/* A fact about the driver's memory, all but for place and time filled in;
 * op_instance and the driver's flags stay as they are.  TAKEN: say where
 * Python is as well.  Allocates nothing: a thread that no hook has met gets a
 * spare context (hook_thread.h), or none and tells the bare fact. */
void mp_hook_driver(mp_event_t *event, bool taken);

/* Work for a GPU is launched here: EVENT (kind, addr, device) gets the place,
 * and the ops around it are told of, as those that touch memory are.
 * Allocates nothing, as mp_hook_driver. */
void mp_hook_launch(mp_event_t *event);

/* MODULE, NAME and OWNER are string ids.  A root module that begins inside
 * itself, and an optimizer likewise, is taken for one that an exception left
 * before. */
void mp_hook_module_begin(uint32_t module);
void mp_hook_module_end(uint32_t module);
bool mp_hook_in_module(void); /* this thread is inside a module's forward */
void mp_hook_optimizer_begin(uint32_t name);
/* Returns allocations minus frees of this thread since the begin. */
int64_t mp_hook_optimizer_end(uint32_t name);
void mp_hook_role(uint64_t addr, int16_t device, mp_role_t role,
                  uint32_t owner);
void mp_hook_seed_cpu(uint64_t addr, uint64_t bytes);

/* Append events as they are (imports and tests). */
bool mp_hook_feed(const mp_event_t *events, size_t count);

/* An event that happens now, on this thread, at no place in the program. */
mp_event_t mp_hook_own_event(uint8_t kind);

/* The Python stack of this thread, interned; MP_NO_INDEX: none. */
uint32_t mp_hook_stack(void);

/* Addresses of a module without a name, and of an outermost one that told of
 * its forward by no hook, met on a stack since the last call; 0: none.  They
 * may be dead by now. */
void mp_hook_take_strangers(uint64_t *unnamed, uint64_t *unhooked);

#endif
