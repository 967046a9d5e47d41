/* hook_context.h - what one thread is inside of: ops, modules, optimizers.
 *
 * Belongs to its thread: nobody else reads or writes it, so there is no lock.
 * For the hook's own files. */
#ifndef MP_HOOK_CONTEXT_H
#define MP_HOOK_CONTEXT_H

#include "hook_names.h"
#include "pystack.h"

#define MP_MAX_OPS 256
#define MP_MAX_MODULES 256

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
} mp_op_entry_t;

typedef struct {
    uint32_t number;         /* kernel thread id */
    bool in_hook;            /* we caused this ourselves */
    bool engine;             /* a thread of the autograd engine */
    uint32_t op_depth;       /* may exceed MP_MAX_OPS: the rest is not kept */
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
    uint64_t next_sequence; /* the nodes below this one are known */
    mp_pystack_cache_t *stack_cache;
    mp_op_entry_t ops[MP_MAX_OPS];
    uint32_t modules[MP_MAX_MODULES];
    mp_op_names_t names;
} mp_context_t;

/* The entries of ops that are kept: the rest lie too deep. */
static inline uint32_t
mp_kept_ops(const mp_context_t *context)
{
    return context->op_depth < MP_MAX_OPS ? context->op_depth : MP_MAX_OPS;
}

#endif
