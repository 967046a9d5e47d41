/* hook.c - the thread's context and the facts it writes.
 *
 * Shared state: the_log and the_intern (made once, never freed), atomics,
 * the_pools and the_strays (a lock each, leaves).  Everything else belongs
 * to one thread. */
#include "hook.h"

#include "clock.h"
#include "mem.h"
#include "pystack.h"
#include "sync.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MAX_OPS 256
#define MAX_MODULES 256
#define MAX_POOLS 4096
#define MAX_STRAYS 64
#define NAME_CACHE 256 /* a power of two */
#define DEFAULT_LOG_BYTES ((size_t)16 << 20)

/* An op that this thread is inside of. */
typedef struct {
    const void *op;
    uint32_t name; /* string id; MP_NO_INDEX: not asked for yet */
    uint8_t scope; /* mp_op_scope_t */
    bool logged;
    bool plain_allocator; /* aten::empty and its kin: the op above counts */
    bool engine;          /* the autograd engine's frame of a node */
    uint64_t sequence;
    uint64_t thread;
    uint64_t forward_thread;
    uint32_t instance; /* its own number, if not the outermost's; 0: none */
} op_entry_t;

typedef struct {
    const char *pointer;
    uint32_t name;
    bool plain_allocator;
    bool engine;
} name_entry_t;

typedef struct {
    uint32_t number;         /* kernel thread id */
    bool in_hook;            /* we caused this ourselves */
    bool engine;             /* a thread of the autograd engine */
    uint32_t op_depth;       /* may exceed MAX_OPS: the rest is not kept */
    uint32_t running_ops;    /* entries that are not regions */
    uint32_t outermost;      /* the first of them */
    uint32_t described;      /* of the entries kept: the first so many */
    uint32_t backward_depth; /* backward nodes among those */
    uint32_t optimizer_depth;
    uint32_t optimizer_name; /* of the outermost; and how deep it began: */
    uint32_t optimizer_modules, optimizer_backwards;
    uint32_t module_depth;
    uint32_t op_instance;              /* of the outermost op */
    uint32_t instances;                /* given out */
    uint32_t news, generation, strays; /* what it knows of the shared ones */
    uint32_t last_pool;
    int64_t optimizer_net;
    mp_pystack_cache_t *stack_cache;
    op_entry_t ops[MAX_OPS];
    uint32_t modules[MAX_MODULES];
    name_entry_t names[NAME_CACHE];
} context_t;

static mp_log_t *the_log;
static mp_intern_t *the_intern;
static mp_names_t *the_module_names;
/* Modules met on a stack that Python's side should hear of. */
static atomic_uint_fast64_t the_unnamed, the_unhooked;
static _Atomic(const mp_shim_api_t *) the_shim; /* read by mp_hook_shim */
static atomic_uint the_wanted;
static _Atomic(void (*)(void)) the_wake;
/* Rises when recording begins: what a thread knew of modules and optimizers
 * from before is stale. */
static atomic_uint the_generation;
/* Rises with the_generation and the_strays: one look for both. */
static atomic_uint the_news;

/* Read by the shim before anything else; both sides use the compiler's
 * atomics on it, for the shim's C++ has no C11 ones. */
static volatile uint32_t the_active;

/* Ends of ops that the ending thread was not inside of: a record_function
 * region may end on another thread than it began on, which finds it here. */
static struct {
    mp_spin_t lock;
    uint32_t count; /* ever; the last MAX_STRAYS are kept */
    const void *ops[MAX_STRAYS];
} the_strays;

static struct {
    mp_spin_t lock; /* a leaf: adding */
    atomic_uint count;
    uint64_t first[MAX_POOLS];
    uint64_t second[MAX_POOLS];
} the_pools;

/* One pointer in static TLS: a dlopen'ed library may use that much, and it
 * saves a call for each look. */
static _Thread_local context_t *this_thread
    __attribute__((tls_model("initial-exec")));
/* The context is gone and must not come again: the thread is ending. */
static _Thread_local bool this_thread_ended
    __attribute__((tls_model("initial-exec")));
static pthread_key_t context_key;
static pthread_once_t context_once = PTHREAD_ONCE_INIT;

/* ---- contexts ------------------------------------------------------------
 */

static void leave_region(context_t *context, uint32_t index);
static void leave_strays(context_t *context);

static void
context_free(void *pointer)
{
    context_t *context = pointer;
    context->in_hook = true;
    /* The frames of ops are gone; only regions outlive their thread. */
    uint32_t kept = context->op_depth < MAX_OPS ? context->op_depth : MAX_OPS;
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
        leave_region(context, context->op_depth - 1);
    }
    this_thread = NULL;
    this_thread_ended = true;
    mp_pystack_cache_free(context->stack_cache);
    mp_free(context);
}

static void
make_key(void)
{
    (void)pthread_key_create(&context_key, context_free);
}

/* torch names the threads that run backward on a device. */
static bool
is_engine_thread(void)
{
    char name[16] = "";
    return pthread_getname_np(pthread_self(), name, sizeof(name)) == 0 &&
           strncmp(name, "pt_autograd", strlen("pt_autograd")) == 0;
}

static context_t *
context_new(void)
{
    if (this_thread_ended) {
        return NULL;
    }
    context_t *context = mp_calloc(1, sizeof(*context));
    if (context == NULL) {
        return NULL;
    }
    context->number = mp_thread_number();
    context->engine = is_engine_thread();
    mp_spin_lock(&the_strays.lock);
    context->strays = the_strays.count;
    mp_spin_unlock(&the_strays.lock);
    context->stack_cache = mp_pystack_cache_new(); /* NULL: no stacks */
    (void)pthread_once(&context_once, make_key);
    if (pthread_setspecific(context_key, context) != 0) {
        mp_pystack_cache_free(context->stack_cache);
        mp_free(context);
        return NULL;
    }
    this_thread = context;
    return context;
}

/* Something changed: a recording began, or regions ended elsewhere. */
static void
context_refresh(context_t *context)
{
    context->news = atomic_load_explicit(&the_news, memory_order_acquire);
    uint32_t generation =
        atomic_load_explicit(&the_generation, memory_order_relaxed);
    if (context->generation != generation) {
        context->generation = generation;
        context->module_depth = 0;
        context->optimizer_depth = 0;
        for (uint32_t i = 0; i < MAX_OPS && i < context->op_depth; i++) {
            context->ops[i].logged = false; /* not in this recording */
        }
    }
    leave_strays(context);
}

static inline context_t *
context_get(void)
{
    context_t *context = this_thread;
    if (MP_UNLIKELY(context == NULL)) {
        context = context_new();
        if (context == NULL) {
            return NULL;
        }
    }
    uint32_t news = atomic_load_explicit(&the_news, memory_order_relaxed);
    if (MP_UNLIKELY(context->news != news) && !context->in_hook) {
        context_refresh(context);
    }
    return context;
}

static inline bool
wanted(uint32_t flag)
{
    return (atomic_load_explicit(&the_wanted, memory_order_relaxed) & flag) !=
           0;
}

/* ---- names, pools --------------------------------------------------------
 */

static bool
starts_with(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Ops that only make memory for the op that called them. */
static bool
is_plain_allocator(const char *name)
{
    static const char *const names[] = {
        "aten::empty",
        "aten::empty_like",
        "aten::empty_strided",
        "aten::empty_permuted",
        "aten::new_empty",
        "aten::new_empty_strided",
        "aten::resize_",
        "aten::_empty_affine_quantized",
        "aten::zeros",
        "aten::zeros_like",
        "aten::new_zeros",
        "aten::zero_",
        "aten::fill_",
        "aten::full",
        "aten::ones",
        "aten::ones_like",
        "aten::full_like",
        "aten::resize_output",
        "aten::clone",
        "aten::contiguous",
        "aten::copy_",
        "aten::_to_copy",
        "aten::to",
    };
    for (size_t i = 0; i < MP_ARRAY_LENGTH(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Names of ops that have a schema stay where they are for ever, so the
 * pointer finds the id; others die with the op, so the text is compared.  The
 * frame in which the autograd engine runs a node goes by the node's name. */
static const name_entry_t *
name_find(context_t *context, const char *text)
{
    static const name_entry_t none = {NULL, MP_NO_INDEX, false, false};
    static const char engine_prefix[] =
        "autograd::engine::evaluate_function: ";
    if (text == NULL) {
        return &none;
    }
    bool engine = starts_with(text, engine_prefix);
    if (engine) {
        text += sizeof(engine_prefix) - 1;
    }
    size_t slot =
        ((uintptr_t)text >> 3 ^ (uintptr_t)text >> 11) & (NAME_CACHE - 1);
    name_entry_t *entry = &context->names[slot];
    if (entry->pointer == text && entry->engine == engine) {
        const char *known;
        size_t length;
        if (mp_intern_text(the_intern, entry->name, &known, &length) &&
            strcmp(known, text) == 0) {
            return entry;
        }
    }
    uint32_t name = mp_intern_string(the_intern, text, strlen(text));
    *entry = (name_entry_t){
        .pointer = text,
        .name = name,
        .plain_allocator = is_plain_allocator(text),
        .engine = engine,
    };
    return name == MP_NO_INDEX ? &none : entry;
}

static uint16_t
pool_index(context_t *context, uint64_t first, uint64_t second)
{
    if ((first | second) == 0) {
        return 0;
    }
    uint32_t count =
        atomic_load_explicit(&the_pools.count, memory_order_acquire);
    uint32_t last = context == NULL ? MAX_POOLS : context->last_pool;
    if (last < count && the_pools.first[last] == first &&
        the_pools.second[last] == second) {
        return (uint16_t)(last + 1);
    }
    mp_spin_lock(&the_pools.lock);
    uint32_t i = 0;
    count = atomic_load_explicit(&the_pools.count, memory_order_relaxed);
    while (i < count &&
           (the_pools.first[i] != first || the_pools.second[i] != second)) {
        i++;
    }
    if (i == count && count < MAX_POOLS) {
        the_pools.first[i] = first;
        the_pools.second[i] = second;
        atomic_store_explicit(&the_pools.count, count + 1,
                              memory_order_release);
    }
    mp_spin_unlock(&the_pools.lock);
    if (context != NULL) {
        context->last_pool = i;
    }
    return (uint16_t)(i < MAX_POOLS ? i + 1 : MAX_POOLS);
}

/* ---- writing ---------------------------------------------------------------
 */

static bool
append(const mp_event_t *events, size_t count)
{
    bool half_full = false;
    bool fits = mp_log_append(the_log, events, count, &half_full);
    if (MP_UNLIKELY(half_full)) {
        void (*wake)(void) =
            atomic_load_explicit(&the_wake, memory_order_acquire);
        if (wake != NULL) {
            wake();
        }
    }
    return fits;
}

static op_entry_t *
kept_op(context_t *context, uint32_t depth)
{
    return depth < MAX_OPS ? &context->ops[depth] : NULL;
}

static void
describe(context_t *context, op_entry_t *entry)
{
    mp_op_fact_t fact = {.name = NULL, .sequence = -1};
    mp_hook_shim()->describe_op(entry->op, &fact);
    const name_entry_t *name = name_find(context, fact.name);
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
made_node(const context_t *context)
{
    uint32_t kept = context->op_depth < MAX_OPS ? context->op_depth : MAX_OPS;
    for (uint32_t i = kept; i-- > 0;) {
        const op_entry_t *entry = &context->ops[i];
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

/* The outermost op inside of the innermost backward node; NULL: no node, or
 * nothing in it. */
static op_entry_t *
op_inside_node(context_t *context)
{
    uint32_t kept = context->op_depth < MAX_OPS ? context->op_depth : MAX_OPS;
    op_entry_t *found = NULL;
    for (uint32_t i = kept; i-- > 0;) {
        op_entry_t *entry = &context->ops[i];
        if (entry->engine) {
            return found;
        }
        if (entry->scope != MP_OP_SCOPE_USER) {
            found = entry;
        }
    }
    return NULL;
}

/* Learn of the ops that began since the last look.  Regions were described
 * when they began. */
static inline void
describe_ops(context_t *context)
{
    uint32_t kept = context->op_depth < MAX_OPS ? context->op_depth : MAX_OPS;
    if (MP_LIKELY(context->described == kept)) {
        return;
    }
    op_entry_t *frame = NULL;
    for (uint32_t i = context->described; i < kept; i++) {
        op_entry_t *entry = &context->ops[i];
        if (entry->scope != MP_OP_SCOPE_USER) {
            describe(context, entry);
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
in_optimizer(const context_t *context)
{
    return context->optimizer_depth > 0 &&
           context->module_depth <= context->optimizer_modules &&
           context->backward_depth <= context->optimizer_backwards;
}

/* The fields that say where this thread is. */
static void
fill_place(context_t *context, mp_event_t *event)
{
    describe_ops(context);
    event->time_ns = mp_clock_now();
    event->thread = context->number;
    event->op = MP_NO_INDEX;
    event->stack = MP_NO_INDEX;
    uint32_t depth = context->module_depth;
    event->module =
        depth == 0 ? MP_NO_INDEX
                   : context->modules[depth <= MAX_MODULES ? depth - 1
                                                           : MAX_MODULES - 1];
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
        const op_entry_t *inside = op_inside_node(context);
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

/* Write the begins of the ops that this thread is inside of and that have
 * not been written, and find the op that counts: the innermost that is not a
 * mere allocator; if all are, the one that was called. */
static void
write_ops(context_t *context, mp_event_t *event)
{
    uint32_t depth = context->op_depth < MAX_OPS ? context->op_depth : MAX_OPS;
    mp_event_t begins[16];
    size_t count = 0;
    uint32_t outermost = MP_NO_INDEX, counting = MP_NO_INDEX;
    for (uint32_t i = 0; i < depth; i++) {
        op_entry_t *entry = &context->ops[i];
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
            (void)append(begins, count);
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
        (void)append(begins, count);
    }
    event->op = counting != MP_NO_INDEX ? counting : outermost;
}

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
place_in_module(context_t *context, mp_event_t *event,
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

static void
write_alloc(context_t *context, mp_event_t *event)
{
    const mp_shim_api_t *shim = mp_hook_shim();
    if (shim != NULL && shim->grad_mode()) {
        event->flags |= MP_FLAG_GRAD_MODE;
    }
    uint32_t look = mp_hook_wanted() & (MP_HOOK_STACKS | MP_HOOK_MODULES);
    if (look != 0 && context->stack_cache != NULL) {
        mp_pystack_t python;
        mp_pystack_current(context->stack_cache, the_intern, the_module_names,
                           &python);
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
    if (event->flags & MP_FLAG_RECOMPUTE) {
        /* A checkpoint's node runs a whole forward: each op of it is one. */
        op_entry_t *inside = op_inside_node(context);
        if (inside != NULL) {
            if (inside->instance == 0) {
                inside->instance = ++context->instances;
            }
            event->op_instance = inside->instance;
        }
    }
    if (context->op_depth > 0) {
        write_ops(context, event);
    }
    (void)append(event, 1);
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
    (void)append(event, 1);
}

/* ---- facts of the allocators
 * ------------------------------------------------ */

void
mp_hook_memory(const mp_memory_fact_t *fact)
{
    if (!wanted(MP_HOOK_CUDA)) {
        return;
    }
    context_t *context = context_get();
    if (context != NULL && context->in_hook) {
        return;
    }
    mp_event_t event = {
        .kind = fact->kind,
        .addr = fact->addr,
        .size = fact->size,
        .stream = fact->stream,
        .device = fact->device,
        .pool = pool_index(context, fact->pool_first, fact->pool_second),
    };
    if (context == NULL) {
        write_bare(&event);
        return;
    }
    context->in_hook = true;
    fill_place(context, &event);
    if (fact->kind == MP_EVENT_ALLOC) {
        context->optimizer_net++;
        write_alloc(context, &event);
    }
    else {
        context->optimizer_net -= fact->kind == MP_EVENT_FREE_REQUESTED;
        (void)append(&event, 1);
    }
    context->in_hook = false;
}

void
mp_hook_cpu_alloc(void *pointer, size_t bytes)
{
    if (!wanted(MP_HOOK_CPU)) {
        return;
    }
    context_t *context = context_get();
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
    fill_place(context, &event);
    context->optimizer_net++;
    write_alloc(context, &event);
    context->in_hook = false;
}

void
mp_hook_cpu_free(void *pointer)
{
    if (!wanted(MP_HOOK_CPU) || pointer == NULL) { /* freeing NULL is legal */
        return;
    }
    context_t *context = context_get();
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
    fill_place(context, &event);
    context->optimizer_net--;
    (void)append(&event, 1);
    context->in_hook = false;
}

/* ---- where a thread is
 * ------------------------------------------------------ */

void
mp_hook_op_begin(const void *op, mp_op_scope_t scope)
{
    context_t *context = context_get();
    if (context == NULL || context->in_hook) {
        return;
    }
    op_entry_t *entry = kept_op(context, context->op_depth);
    context->op_depth++;
    if (entry == NULL) {
        return;
    }
    entry->op = op;
    entry->name = MP_NO_INDEX;
    entry->scope = (uint8_t)scope;
    entry->logged = false;
    entry->instance = 0;
    if (scope == MP_OP_SCOPE_USER) {
        /* It may end on another thread, and then its address is no longer
         * good here: ask now. */
        context->in_hook = true;
        describe(context, entry);
        mp_event_t event = {.kind = MP_EVENT_REGION_BEGIN,
                            .device = MP_DEVICE_CPU};
        fill_place(context, &event);
        event.op = entry->name;
        (void)append(&event, 1);
        context->in_hook = false;
        return;
    }
    if (context->running_ops++ == 0) {
        context->op_instance = ++context->instances;
        context->outermost = context->op_depth - 1;
    }
}

static void
write_end(context_t *context, uint8_t kind, uint32_t name)
{
    if (mp_hook_wanted() != 0) {
        mp_event_t event = {.kind = kind, .device = MP_DEVICE_CPU};
        fill_place(context, &event);
        event.op = name;
        (void)append(&event, 1);
    }
}

/* Leave the op ops[DEPTH] and what is still open inside it. */
static void
leave_ops(context_t *context, uint32_t depth)
{
    uint32_t kept = context->op_depth < MAX_OPS ? context->op_depth : MAX_OPS;
    for (uint32_t i = kept; i-- > depth;) {
        const op_entry_t *entry = &context->ops[i];
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

/* Leave the region ops[INDEX]; what began inside it goes on. */
static void
leave_region(context_t *context, uint32_t index)
{
    uint32_t name = context->ops[index].name;
    uint32_t kept = context->op_depth < MAX_OPS ? context->op_depth : MAX_OPS;
    memmove(&context->ops[index], &context->ops[index + 1],
            (kept - index - 1) * sizeof(op_entry_t));
    context->op_depth--;
    context->described -= context->described > index;
    if (context->outermost > index) {
        context->outermost--;
    }
    write_end(context, MP_EVENT_REGION_END, name);
}

/* Leave the regions of this thread that ended on another one. */
static void
leave_strays(context_t *context)
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
    for (uint32_t i = context->op_depth <= MAX_OPS ? context->op_depth : 0;
         count > 0 && i-- > 0;) {
        for (uint32_t k = 0; k < count; k++) {
            if (context->ops[i].scope == MP_OP_SCOPE_USER &&
                context->ops[i].op == ops[k]) {
                leave_region(context, i);
                break;
            }
        }
    }
    context->in_hook = false;
}

static void
stray_end(const void *op)
{
    if (mp_hook_wanted() != 0) {
        mp_spin_lock(&the_strays.lock);
        the_strays.ops[the_strays.count++ % MAX_STRAYS] = op;
        mp_spin_unlock(&the_strays.lock);
        atomic_fetch_add_explicit(&the_news, 1, memory_order_release);
    }
}

void
mp_hook_op_end(const void *op)
{
    context_t *context = this_thread;
    if (context != NULL && context->in_hook) {
        return;
    }
    uint32_t depth = context == NULL ? 0 : context->op_depth;
    if (depth > MAX_OPS) {
        context->op_depth--; /* deeper than we keep: assume it is the last */
        return;
    }
    for (uint32_t i = depth; i-- > 0;) {
        if (context->ops[i].op == op) {
            context->in_hook = true;
            if (context->ops[i].scope == MP_OP_SCOPE_USER) {
                leave_region(context, i);
            }
            else {
                leave_ops(context, i);
            }
            context->in_hook = false;
            return;
        }
    }
    stray_end(op); /* began before us, or on another thread */
}

static void
write_mark(context_t *context, uint8_t kind, uint32_t module, uint32_t op)
{
    mp_event_t event = {.kind = kind, .device = MP_DEVICE_CPU};
    fill_place(context, &event);
    event.op = op;
    if (kind == MP_EVENT_MODULE_BEGIN || kind == MP_EVENT_MODULE_END) {
        event.module = module;
        const mp_shim_api_t *shim = mp_hook_shim();
        if (shim != NULL) {
            event.addr = shim->sequence_peek();
            event.stream = shim->logical_thread();
        }
    }
    (void)append(&event, 1);
}

void
mp_hook_module_begin(uint32_t module)
{
    context_t *context = context_get();
    if (context == NULL || mp_hook_wanted() == 0) {
        return;
    }
    if (context->module_depth > 0 && context->modules[0] == module) {
        /* torch skips the hooks of a forward that a KeyboardInterrupt (or
         * any BaseException) left; the root's next call starts afresh. */
        mp_hook_module_end(module);
        context->module_depth = 0;
    }
    if (context->module_depth < MAX_MODULES) {
        context->modules[context->module_depth] = module;
    }
    context->module_depth++;
    write_mark(context, MP_EVENT_MODULE_BEGIN, module, MP_NO_INDEX);
}

void
mp_hook_module_end(uint32_t module)
{
    context_t *context = this_thread;
    if (context == NULL || context->module_depth == 0) {
        return;
    }
    uint32_t depth = context->module_depth;
    if (depth > MAX_MODULES) {
        context->module_depth--;
    }
    else {
        /* An exception that skips hooks leaves modules open: leave them
         * with the first one that does end. */
        uint32_t i = depth;
        while (i > 0 && context->modules[i - 1] != module) {
            i--;
        }
        if (i == 0) {
            return;
        }
        context->module_depth = i - 1;
    }
    if (mp_hook_wanted() != 0) {
        write_mark(context, MP_EVENT_MODULE_END, module, MP_NO_INDEX);
    }
}

bool
mp_hook_in_module(void)
{
    const context_t *context = context_get();
    return context != NULL && context->module_depth > 0;
}

void
mp_hook_optimizer_begin(uint32_t name)
{
    context_t *context = context_get();
    if (context == NULL || mp_hook_wanted() == 0) {
        return;
    }
    if (context->optimizer_depth > 0 && context->optimizer_name == name) {
        context->optimizer_depth = 0; /* an exception left its last step */
    }
    describe_ops(context);
    if (context->optimizer_depth++ == 0) {
        context->optimizer_name = name;
        context->optimizer_modules = context->module_depth;
        context->optimizer_backwards = context->backward_depth;
        context->optimizer_net = 0;
    }
    write_mark(context, MP_EVENT_OPTIMIZER_BEGIN, MP_NO_INDEX, name);
}

int64_t
mp_hook_optimizer_end(uint32_t name)
{
    context_t *context = this_thread;
    if (context == NULL || context->optimizer_depth == 0) {
        return 0;
    }
    if (mp_hook_wanted() != 0) {
        write_mark(context, MP_EVENT_OPTIMIZER_END, MP_NO_INDEX, name);
    }
    context->optimizer_depth--;
    return context->optimizer_net;
}

void
mp_hook_role(uint64_t addr, int16_t device, mp_role_t role, uint32_t owner)
{
    context_t *context = context_get();
    if (context == NULL || mp_hook_wanted() == 0) {
        return;
    }
    mp_event_t event = {
        .kind = MP_EVENT_ROLE, .addr = addr, .size = role, .device = device};
    fill_place(context, &event);
    event.op = owner;
    (void)append(&event, 1);
}

void
mp_hook_seed_cpu(uint64_t addr, uint64_t bytes)
{
    if (mp_hook_wanted() == 0) {
        return;
    }
    mp_event_t event = {
        .kind = MP_EVENT_SEED_BLOCK,
        .addr = addr,
        .size = bytes,
        .time_ns = mp_clock_now(),
        .op = MP_NO_INDEX,
        .module = MP_NO_INDEX,
        .stack = MP_NO_INDEX,
        .device = MP_DEVICE_CPU,
    };
    (void)append(&event, 1);
}

bool
mp_hook_feed(const mp_event_t *events, size_t count)
{
    return append(events, count);
}

uint32_t
mp_hook_stack(void)
{
    context_t *context = context_get();
    if (context == NULL || context->stack_cache == NULL) {
        return MP_NO_INDEX;
    }
    mp_pystack_t python;
    mp_pystack_current(context->stack_cache, the_intern, the_module_names,
                       &python);
    return python.stack;
}

void
mp_hook_take_strangers(uint64_t *unnamed, uint64_t *unhooked)
{
    *unnamed = atomic_exchange(&the_unnamed, 0);
    *unhooked = atomic_exchange(&the_unhooked, 0);
}

/* ---- once, switches
 * ---------------------------------------------------------- */

mp_status_t
mp_hook_init(void)
{
    mp_status_t status = MP_OK;
    if (the_intern == NULL) {
        status = mp_intern_new(&the_intern);
    }
    if (status == MP_OK && the_module_names == NULL) {
        the_module_names = mp_names_new();
        status = the_module_names == NULL ? MP_ERR_NOMEM : MP_OK;
    }
    if (status == MP_OK && the_log == NULL) {
        status = mp_log_new(DEFAULT_LOG_BYTES, &the_log);
    }
    return status;
}

mp_log_t *
mp_hook_log(void)
{
    return the_log;
}

mp_intern_t *
mp_hook_intern(void)
{
    return the_intern;
}

mp_names_t *
mp_hook_module_names(void)
{
    return the_module_names;
}

const mp_core_api_t *
mp_hook_core_api(void)
{
    static const mp_core_api_t api = {
        .version = MP_SHIM_API_VERSION,
        .size = sizeof(mp_core_api_t),
        .active = &the_active,
        .memory = mp_hook_memory,
        .cpu_alloc = mp_hook_cpu_alloc,
        .cpu_free = mp_hook_cpu_free,
        .op_begin = mp_hook_op_begin,
        .op_end = mp_hook_op_end,
    };
    return &api;
}

void
mp_hook_set_shim(const mp_shim_api_t *shim)
{
    atomic_store_explicit(&the_shim, shim, memory_order_release);
}

const mp_shim_api_t *
mp_hook_shim(void)
{
    return atomic_load_explicit(&the_shim, memory_order_acquire);
}

void
mp_hook_set_wanted(uint32_t flags)
{
    if (flags != 0 && mp_hook_wanted() == 0) {
        atomic_fetch_add_explicit(&the_generation, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&the_news, 1, memory_order_release);
    }
    atomic_store_explicit(&the_wanted, flags, memory_order_release);
    __atomic_store_n(&the_active, flags, __ATOMIC_RELAXED);
}

uint32_t
mp_hook_wanted(void)
{
    return atomic_load_explicit(&the_wanted, memory_order_relaxed);
}

void
mp_hook_set_wake(void (*wake)(void))
{
    atomic_store_explicit(&the_wake, wake, memory_order_release);
}

void
mp_hook_after_fork(void)
{
    mp_hook_set_wanted(0);
    if (the_log != NULL) {
        mp_log_reset(the_log);
    }
    if (the_intern != NULL) {
        mp_intern_reset_lock(the_intern);
    }
    atomic_store(&the_pools.lock.held, 0);
    atomic_store(&the_strays.lock.held, 0);
    if (this_thread != NULL) {
        this_thread->number = mp_thread_number();
        this_thread->op_depth = 0;
        this_thread->described = 0;
        this_thread->running_ops = 0;
        this_thread->backward_depth = 0;
        this_thread->optimizer_depth = 0;
        this_thread->module_depth = 0;
        this_thread->in_hook = false;
    }
}
