/* fake_shim.h - a torch of a few lines, for the tests of hooks and sessions.
 *
 * An op is a struct; what describe_op would ask torch is in it. */
#ifndef FAKE_SHIM_H
#define FAKE_SHIM_H

#include "shim_api.h"

typedef struct {
    mp_op_fact_t fact;
    int described; /* how often describe_op asked; set it to 0 */
    bool over;     /* describe_op must not be asked any more */
} fake_op_t;

#define FAKE_OP(text)                                                         \
    {                                                                         \
        .fact = {.name = (text), .sequence = -1, .thread = 1 }                \
    }

/* The frame in which the engine runs a backward node. */
#define FAKE_NODE(text) FAKE_OP("autograd::engine::evaluate_function: " text)

/* Per thread, what torch would answer. */
extern _Thread_local bool fake_grad_mode;
extern _Thread_local uint64_t fake_sequence;
extern _Thread_local const mp_node_fact_t *fake_node; /* NULL: it runs none */

/* Called inside describe_op, if set: what torch might do there. */
extern void (*fake_in_describe)(void);

/* Calls counted; what install_* answers. */
extern int fake_cpu_installed,
    fake_ops_installed; /* ops: 1, 2 as the option; 3: with outputs */
extern bool fake_cpu_fails, fake_ops_fail;

const mp_shim_api_t *fake_shim(void);

#endif
