/* shim_host.c - a core that writes down what a real torch shim tells it.
 *
 * For tests/integration/test_shim_stamp.py, which loads it with ctypes.  In C
 * because the shim calls on every thread, without the GIL and until after
 * Python has ended.  Contains the real loader. */
#include "shim_loader.c"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    HOST_CPU_ALLOC = 100,
    HOST_CPU_FREE = 101,
    HOST_OP_BEGIN = 102,
    HOST_OP_END = 103,
    HOST_TENSOR = 104
};

typedef struct {
    uint64_t addr;
    uint64_t size;
    int64_t sequence;
    uint64_t op_thread;
    int64_t node_sequence;
    uint64_t node_thread;
    uint64_t logical_thread; /* at the event */
    uint32_t thread;
    uint32_t kind;
    uint32_t scope;
    uint32_t grad_mode;
    uint32_t in_node;
    char name[96];
} host_event_t;

#define HOST_CAPACITY 200000u

volatile uint32_t host_active;
host_event_t host_events[HOST_CAPACITY];
atomic_uint host_count;
const mp_shim_api_t *host_shim;

static host_event_t *
next_event(uint32_t kind)
{
    uint32_t index = atomic_fetch_add(&host_count, 1);
    if (index >= HOST_CAPACITY) {
        abort();
    }
    host_event_t *event = &host_events[index];
    memset(event, 0, sizeof(*event));
    event->kind = kind;
    event->thread = (uint32_t)gettid();
    return event;
}

static void
host_memory(const mp_memory_fact_t *fact)
{
    host_event_t *event = next_event(fact->kind);
    event->addr = fact->addr;
    event->size = fact->size;
}

static void
host_cpu_alloc(void *pointer, size_t bytes)
{
    host_event_t *event = next_event(HOST_CPU_ALLOC);
    event->addr = (uintptr_t)pointer;
    event->size = bytes;
}

static void
host_cpu_free(void *pointer)
{
    next_event(HOST_CPU_FREE)->addr = (uintptr_t)pointer;
}

static void
host_op_begin(const void *op, mp_op_scope_t scope)
{
    mp_op_fact_t fact;
    host_shim->describe_op(op, &fact);
    host_event_t *event = next_event(HOST_OP_BEGIN);
    event->addr = (uintptr_t)op;
    event->scope = (uint32_t)scope;
    event->sequence = fact.sequence;
    event->op_thread = fact.thread;
    mp_node_fact_t node = {.sequence = 0};
    event->in_node = host_shim->current_node(&node);
    event->node_sequence = node.sequence;
    event->node_thread = node.thread;
    event->logical_thread = host_shim->logical_thread();
    event->grad_mode = host_shim->grad_mode();
    snprintf(event->name, sizeof(event->name), "%s", fact.name);
}

static void
host_op_end(const void *op)
{
    next_event(HOST_OP_END)->addr = (uintptr_t)op;
}

bool host_wants_outputs; /* set by tests */

static bool
host_op_wants_outputs(const void *op)
{
    (void)op;
    return host_wants_outputs;
}

/* The text in `name`: sizes, then the type. */
static void
host_tensor(const mp_tensor_fact_t *fact)
{
    host_event_t *event = next_event(HOST_TENSOR);
    event->addr = fact->addr;
    event->size = fact->item_size;
    event->scope = (uint32_t)fact->device;
    size_t length = 0;
    for (size_t i = 0; i < fact->dimensions; i++) {
        length += (size_t)snprintf(event->name + length,
                                   sizeof(event->name) - length, "%lld ",
                                   (long long)fact->sizes[i]);
    }
    snprintf(event->name + length, sizeof(event->name) - length, "%s",
             fact->scalar);
}

/* Not const: tests give it a wrong version. */
mp_core_api_t host_core = {
    .version = MP_SHIM_API_VERSION,
    .size = sizeof(mp_core_api_t),
    .active = &host_active,
    .memory = host_memory,
    .cpu_alloc = host_cpu_alloc,
    .cpu_free = host_cpu_free,
    .op_begin = host_op_begin,
    .op_end = host_op_end,
    .op_wants_outputs = host_op_wants_outputs,
    .tensor = host_tensor,
};

mp_status_t
host_load(const char *path, const char *torch_version, const char *stamp,
          uint32_t cxx11_abi, char *error, size_t error_size)
{
    return mp_shim_load(path, &host_core, torch_version, stamp, cxx11_abi,
                        &host_shim, error, error_size);
}

uint32_t
host_event_size(void)
{
    return sizeof(host_event_t);
}

int
host_attach_cuda(char *error, size_t error_size)
{
    return host_shim->attach_cuda(error, error_size);
}

int
host_install_cpu(char *error, size_t error_size)
{
    return host_shim->install_cpu(error, error_size);
}

bool
host_remove_cpu(void)
{
    return host_shim->remove_cpu();
}

bool
host_adopt_cpu(void *storage, void **pointer, size_t *bytes)
{
    return host_shim->adopt_cpu(storage, pointer, bytes);
}

int
host_install_ops(bool outputs, char *error, size_t error_size)
{
    return host_shim->install_ops(outputs, error, error_size);
}

void
host_remove_ops(void)
{
    host_shim->remove_ops();
}

uint64_t
host_sequence_peek(void)
{
    return host_shim->sequence_peek();
}

uint64_t
host_logical_thread(void)
{
    return host_shim->logical_thread();
}

bool
host_grad_mode(void)
{
    return host_shim->grad_mode();
}
