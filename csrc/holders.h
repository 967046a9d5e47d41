/* holders.h - a part of Python's heap as a graph, while one call lasts.
 *
 * Private to the files that make it: holders.c (objects and references),
 * variables.c (frames), saved.c (autograd), references.c (the answer).  The
 * GIL is held throughout. */
#ifndef MP_HOLDERS_H
#define MP_HOLDERS_H

#include "state.h"
#include "table.h"

#include <Python.h>

/* X(NAME, text): what holds, or is held.  A wanted tensor is "object", too. */
#define MP_NODE_LIST(X)                                                       \
    X(OBJECT, "object")                                                       \
    X(DICT, "dict")                                                           \
    X(SEQUENCE, "sequence")                                                   \
    X(CELL, "cell")                                                           \
    X(FUNCTION, "function")                                                   \
    X(FRAME, "frame")         /* not running: of a traceback */               \
    X(GENERATOR, "generator") /* or coroutine */                              \
    X(TRACEBACK, "traceback")                                                 \
    X(EXCEPTION, "exception")                                                 \
    X(GRAPH, "graph") /* a node of autograd's */                              \
    X(TYPE, "type")                                                           \
    X(MODULE, "module")                                                       \
    X(GLOBALS, "globals") /* a module's dict */                               \
    X(RUNNING, "running") /* the frame of a running function */               \
    X(HANDLED, "handled") /* an except block that runs */

typedef enum {
#define X(name, text) MP_NODE_##name,
    MP_NODE_LIST(X)
#undef X
} mp_node_kind_t;

typedef struct {
    PyObject *object; /* borrowed; NULL: nothing that Python has */
    PyObject *title;  /* text, or NULL */
    uint64_t storage; /* of a tensor: its address, or 0 */
    uint64_t bytes;   /* of the storage */
    uint64_t thread;  /* RUNNING, HANDLED: as threading counts them */
    uint32_t part;    /* its place in the answer; MP_NO_INDEX: not in it */
    uint8_t kind;
    bool tensor, wanted, garbage, ours;
} mp_node_t;

typedef struct {
    uint32_t holder, held;
    PyObject *label; /* text, or NULL */
} mp_link_t;

typedef struct {
    mp_table_t *index; /* object -> its node */
    mp_node_t *nodes;  /* those of the collector first */
    size_t count, capacity;
    uint32_t *edges; /* the collector's: what node i refers to lies from */
    uint64_t *first; /* edges[first[i]] to edges[first[i + 1]] */
    size_t edge_count, edge_capacity;
    mp_link_t *links; /* those that it does not see */
    size_t link_count, link_capacity;
    uint64_t *by_target; /* who refers to node i: sources[by_target[i]] ... */
    uint32_t *sources;
    uint32_t *parts; /* nodes of the answer, in its order */
    size_t part_count;
    PyObject *all;    /* keeps all objects up to Python 3.11; or NULL */
    PyObject *ours;   /* frames of files below this folder hold nothing */
    bool failed;      /* out of memory, or an exception is set */
    bool cut;         /* the limit was reached */
    bool in_backward; /* a thread is: graphs must not be looked at */
} mp_heap_t;

/* What Python's side knows of torch; borrowed. */
typedef struct {
    PyObject *tensors;   /* set of classes */
    PyObject *storages;  /* set of classes */
    PyObject *addresses; /* set of ints: of the wanted storages */
    PyObject *base;      /* torch._C.TensorBase */
    PyObject *storage_base;
    PyObject *function_base; /* of Python's autograd functions */
} mp_wanted_t;

/* A new node's index; MP_NO_INDEX: failed. */
uint32_t mp_heap_add(mp_heap_t *heap, PyObject *object, uint8_t kind);
/* The node of OBJECT, or MP_NO_INDEX.  Nothing of it is read. */
uint32_t mp_heap_find(const mp_heap_t *heap, const PyObject *object);
/* LABEL (borrowed) is a text or NULL. */
void mp_heap_link(mp_heap_t *heap, uint32_t holder, uint32_t held,
                  PyObject *label);

/* ---- variables.c ---------------------------------------------------------
 */

typedef void (*mp_variable_t)(void *context, PyObject *name, PyObject *value);

/* The variables of a frame object, of a generator or coroutine; a variable
 * that closures share is its cell.  Nothing is made or kept. */
void mp_frame_variables(PyObject *object, mp_variable_t say, void *context);
void mp_generator_variables(PyObject *object, mp_variable_t say,
                            void *context);
PyObject *mp_frame_name(PyObject *object); /* borrowed, or NULL */

/* Add every thread's running frames and the exceptions that it handles. */
void mp_heap_add_threads(mp_heap_t *heap);

/* ---- saved.c -------------------------------------------------------------
 */

/* Find the wanted tensors among the first OBJECTS nodes, and add the graphs
 * and gradients of all tensors.  False: failed. */
bool mp_heap_add_tensors(mp_heap_t *heap, const mp_wanted_t *wanted,
                         size_t objects);

/* ---- references.c --------------------------------------------------------
 */

/* The answer of `_core.holders`; OBJECTS nodes are the collector's.  NULL with
 * an exception. */
PyObject *mp_heap_answer(mp_heap_t *heap, size_t objects);

#endif
