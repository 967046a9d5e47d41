/* shim_api.h - the two tables that memprof._core and the torch shim swap.
 *
 * The shim (csrc/shim/torch_shim.cpp) is compiled against one torch release
 * and has no logic: it registers with torch, turns each callback into plain
 * C values and calls the core.  The core never sees a torch header.
 *
 * A table begins with its version and size.  A side that meets another
 * version, or a smaller size than it was compiled with, refuses. */
#ifndef MP_SHIM_API_H
#define MP_SHIM_API_H

#include "common.h"
#include "event.h"

#define MP_SHIM_API_VERSION 4u

/* A fact of the CUDA caching allocator, as torch tells it. */
typedef struct {
    uint64_t addr;
    uint64_t size;
    uint64_t stream;
    uint64_t pool_first; /* MempoolId_t; {0, 0}: default, or torch < 2.8 */
    uint64_t pool_second;
    int16_t device;
    uint8_t kind; /* mp_event_kind_t */
} mp_memory_fact_t;

/* What the shim tells about one running op, on demand. */
typedef struct {
    const char *name; /* valid until the op ends */
    int64_t sequence; /* autograd sequence number; -1: none */
    uint64_t thread;  /* logical thread that runs the op */
} mp_op_fact_t;

/* A tensor that an op returns: plain memory of the CPU or of a GPU. */
typedef struct {
    uint64_t addr; /* of its storage's memory */
    const int64_t *sizes;
    size_t dimensions;
    size_t item_size;   /* bytes */
    const char *scalar; /* c10's name of the type: "Float", "BFloat16" */
    int16_t device;     /* CUDA index, or MP_DEVICE_CPU */
} mp_tensor_fact_t;

/* The backward node that a thread runs. */
typedef struct {
    int64_t sequence; /* that of the forward op that made it; -1: none */
    uint64_t thread;  /* logical thread that made it */
} mp_node_fact_t;

typedef enum {
    MP_OP_SCOPE_FUNCTION = 0,
    MP_OP_SCOPE_USER = 1 /* record_function; may end on another thread */
} mp_op_scope_t;

/* core -> shim.  Everything here may be called on any thread, with any lock
 * of torch held, with or without the GIL; nothing blocks or throws. */
typedef struct {
    uint32_t version;
    uint32_t size;
    /* Not 0 while somebody records.  Read before anything else, with a
     * relaxed atomic load (the core writes it with an atomic store). */
    const volatile uint32_t *active;
    void (*memory)(const mp_memory_fact_t *fact);
    void (*cpu_alloc)(void *pointer, size_t bytes);
    void (*cpu_free)(void *pointer); /* before the memory goes back */
    /* OP is the address of the at::RecordFunction: it names the op until
     * op_end.  For scope USER the core asks describe_op at once; for the
     * others, which end on the thread that began them, perhaps later or
     * never.  op_begin only while *active; op_end always. */
    void (*op_begin)(const void *op, mp_op_scope_t scope);
    void (*op_end)(const void *op);
    /* Before op_end, while *active, if outputs were asked for: whether the
     * core wants those of OP, and then each of them.  Nothing of a fact is
     * kept. */
    bool (*op_wants_outputs)(const void *op);
    void (*tensor)(const mp_tensor_fact_t *fact);
} mp_core_api_t;

/* shim -> core.  Called by the core outside hooks unless said otherwise. */
typedef struct {
    uint32_t version;
    uint32_t size;
    const char *torch_version; /* TORCH_VERSION it was compiled for */
    const char *build_stamp;   /* whole version string and git hash given at
                                  compile time; "" for a plain release */
    uint32_t cxx11_abi;        /* _GLIBCXX_USE_CXX11_ABI, 0 or 1 */

    /* In hooks: */
    void (*describe_op)(const void *op, mp_op_fact_t *fact);
    /* false: the calling thread runs no backward node. */
    bool (*current_node)(mp_node_fact_t *fact);
    bool (*grad_mode)(void);
    uint64_t (*sequence_peek)(void); /* next autograd sequence number */
    uint64_t (*logical_thread)(void);

    /* CUDA allocator.  0: attached (also when it already was).  1: no CUDA
     * in this torch.  2: not possible, among others because CUDA is not
     * initialised yet (torch would attach to no device and not say so).
     * ERROR says why, for 1 too. */
    int (*attach_cuda)(char *error, size_t error_size);

    /* CPU allocator wrapper.  install: 0 done, else ERROR says why.
     * remove restores the inner allocator if ours is still the current one
     * (true) and otherwise leaves it (false: somebody wrapped ours). */
    int (*install_cpu)(char *error, size_t error_size);
    bool (*remove_cpu)(void);

    /* Make a CPU storage that existed before us tell of its death.  STORAGE
     * is a c10::StorageImpl* (`UntypedStorage._cdata`).  True: its address
     * and size are in *POINTER and *BYTES and its free will be seen.  False:
     * its memory is not the CPU allocator's (shared, from NumPy, ...).
     * The caller holds the GIL and knows that nobody resizes the storage. */
    bool (*adopt_cpu)(void *storage, void **pointer, size_t *bytes);

    /* RecordFunction callbacks, for ops and record_function regions.
     * OUTPUTS: ask torch for the outputs of ops, which costs something for
     * every op.  Inputs are never asked for.  0 done, else ERROR says why. */
    int (*install_ops)(bool outputs, char *error, size_t error_size);
    void (*remove_ops)(void);
} mp_shim_api_t;

/* The shim's one exported symbol.  NULL: CORE's version is not known; the
 * message is in ERROR.  The core's table must live for ever. */
#define MP_SHIM_ENTRY_NAME "mp_shim_entry"
typedef const mp_shim_api_t *(*mp_shim_entry_t)(const mp_core_api_t *core,
                                                char *error,
                                                size_t error_size);

#endif
