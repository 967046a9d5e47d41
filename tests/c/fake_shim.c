/* fake_shim.c - a torch of a few lines. */
#include "fake_shim.h"

#include "mp_test.h"

#include <stdio.h>

_Thread_local bool fake_grad_mode;
_Thread_local uint64_t fake_sequence;
_Thread_local const mp_node_fact_t *fake_node;
void (*fake_in_describe)(void);
int fake_cpu_installed, fake_ops_installed;
bool fake_cpu_fails, fake_ops_fail;

static void
describe_op(const void *op, mp_op_fact_t *fact)
{
    fake_op_t *fake = (fake_op_t *)op;
    MP_CHECK(!fake->over); /* torch's would be gone from the stack */
    __atomic_fetch_add(&fake->described, 1, __ATOMIC_RELAXED);
    *fact = fake->fact;
    if (fake_in_describe != NULL) {
        fake_in_describe();
    }
}

static bool
current_node(mp_node_fact_t *fact)
{
    if (fake_node == NULL) {
        return false;
    }
    *fact = *fake_node;
    return true;
}

static bool
grad_mode(void)
{
    return fake_grad_mode;
}

static uint64_t
sequence_peek(void)
{
    return fake_sequence;
}

static uint64_t
logical_thread(void)
{
    return 1;
}

static int
install_cpu(char *error, size_t error_size)
{
    if (fake_cpu_fails) {
        (void)snprintf(error, error_size, "no CPU allocator here");
        return 1;
    }
    fake_cpu_installed++;
    return 0;
}

static bool
remove_cpu(void)
{
    fake_cpu_installed--;
    return true;
}

static int
install_ops(bool outputs, char *error, size_t error_size)
{
    if (fake_ops_fail) {
        (void)snprintf(error, error_size, "no ops here");
        return 1;
    }
    MP_CHECK_EQ(fake_ops_installed, 0);
    fake_ops_installed = outputs ? 3 : 2;
    return 0;
}

static void
remove_ops(void)
{
    fake_ops_installed = 0;
}

const mp_shim_api_t *
fake_shim(void)
{
    static const mp_shim_api_t api = {
        .version = MP_SHIM_API_VERSION,
        .size = sizeof(api),
        .torch_version = "0.0.0",
        .build_stamp = "",
        .describe_op = describe_op,
        .current_node = current_node,
        .grad_mode = grad_mode,
        .sequence_peek = sequence_peek,
        .logical_thread = logical_thread,
        .install_cpu = install_cpu,
        .remove_cpu = remove_cpu,
        .install_ops = install_ops,
        .remove_ops = remove_ops,
    };
    return &api;
}
