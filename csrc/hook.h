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

#include "intern.h"
#include "log.h"
#include "names.h"
#include "shim_api.h"

/* ---- once ----------------------------------------------------------------
 */

/* Make the process's log and intern.  They live for ever, so that no hook in
 * flight can meet a dead log.  May be called again: does nothing. */
mp_status_t mp_hook_init(void);

mp_log_t *mp_hook_log(void);
mp_intern_t *mp_hook_intern(void);
mp_names_t *mp_hook_module_names(void); /* filled by Python's side */

/* The table that the shim gets. */
const mp_core_api_t *mp_hook_core_api(void);

/* The shim, once loaded; NULL before. */
void mp_hook_set_shim(const mp_shim_api_t *shim);
const mp_shim_api_t *mp_hook_shim(void);

/* ---- switches ------------------------------------------------------------
 */

#define MP_HOOK_CUDA 0x01u
#define MP_HOOK_CPU 0x02u
#define MP_HOOK_OPS 0x04u
#define MP_HOOK_STACKS 0x08u
#define MP_HOOK_SESSION 0x10u /* somebody records at all */
#define MP_HOOK_MODULES 0x20u /* modules are found on the Python stack */

/* What the running sessions want, all together; 0: nobody records. */
void mp_hook_set_wanted(uint32_t flags);
uint32_t mp_hook_wanted(void);

/* Called when the log passes half of its capacity. */
void mp_hook_set_wake(void (*wake)(void));

/* After fork, in the child: nobody records, this thread is inside nothing. */
void mp_hook_after_fork(void);

/* ---- facts ----------------------------------------------------------------
 */

void mp_hook_memory(const mp_memory_fact_t *fact);
void mp_hook_cpu_alloc(void *pointer, size_t bytes);
void mp_hook_cpu_free(void *pointer);
void mp_hook_op_begin(const void *op, mp_op_scope_t scope);
void mp_hook_op_end(const void *op);

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

/* The Python stack of this thread, interned; MP_NO_INDEX: none. */
uint32_t mp_hook_stack(void);

/* Addresses of a module without a name, and of an outermost one that told of
 * its forward by no hook, met on a stack since the last call; 0: none.  They
 * may be dead by now. */
void mp_hook_take_strangers(uint64_t *unnamed, uint64_t *unhooked);

#endif
