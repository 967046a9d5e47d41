/* holders.c - who refers to a tensor: a part of Python's heap at one instant.
 *
 * Knows objects and references, nothing of names that people use: why.py
 * makes paths of them.  All is done in one call under the GIL, and with the
 * garbage collector held off: nothing can die, and no other thread can run
 * and find an object with one reference more (see heap.c).  What is handed
 * out are numbers and texts, never an object of the program.
 *
 * 1. Collect all objects that the collector tracks.
 * 2. Ask each for what it refers to, as the collector itself does
 *    (tp_traverse), and turn the answer round.
 * 3. Add what the collector cannot see: variables of running frames,
 *    exceptions being handled, what autograd holds (saved.c).
 * 4. From the wanted tensors walk back to whatever holds them; stop at
 *    classes and at the globals of modules.
 * 5. Say of each reference on the way which key, index or name it has
 *    (references.c).
 *
 * No code of the program runs: neither hashing, comparing nor attributes
 * that a class defines. */
#include "holders.h"

#include "mem.h"

#include <frameobject.h>
#include <string.h>

#if PY_VERSION_HEX >= 0x030C0000
#define REFERENCES_OF_OURS 0
#else
#define REFERENCES_OF_OURS 1 /* the list of gc.get_objects() */
#endif

/* ---- growing arrays ------------------------------------------------------
 */

static bool
grow(void **items, size_t *capacity, size_t count, size_t size)
{
    if (count < *capacity) {
        return true;
    }
    size_t more = *capacity == 0 ? 1024 : *capacity * 2;
    void *moved = mp_realloc(*items, more * size);
    if (moved == NULL) {
        return false;
    }
    *items = moved;
    *capacity = more;
    return true;
}

uint32_t
mp_heap_add(mp_heap_t *heap, PyObject *object, uint8_t kind)
{
    uint32_t index = (uint32_t)heap->count, previous;
    if (heap->count >= MP_NO_INDEX - 1 ||
        !grow((void **)&heap->nodes, &heap->capacity, heap->count,
              sizeof(mp_node_t)) ||
        (object != NULL && mp_table_put(heap->index, (uintptr_t)object, index,
                                        &previous) != MP_OK)) {
        heap->failed = true;
        return MP_NO_INDEX;
    }
    heap->nodes[heap->count++] =
        (mp_node_t){.object = object, .kind = kind, .part = MP_NO_INDEX};
    return index;
}

uint32_t
mp_heap_find(const mp_heap_t *heap, const PyObject *object)
{
    return mp_table_get(heap->index, (uintptr_t)object);
}

void
mp_heap_link(mp_heap_t *heap, uint32_t holder, uint32_t held, PyObject *label)
{
    if (holder == MP_NO_INDEX || held == MP_NO_INDEX ||
        !grow((void **)&heap->links, &heap->link_capacity, heap->link_count,
              sizeof(mp_link_t))) {
        heap->failed = true;
        return;
    }
    heap->links[heap->link_count++] =
        (mp_link_t){holder, held, Py_XNewRef(label)};
}

/* ---- 1. all objects ------------------------------------------------------
 */

static int
collect(PyObject *object, void *argument)
{
    mp_heap_t *heap = argument;
    return mp_heap_add(heap, object, MP_NODE_OBJECT) == MP_NO_INDEX ? 0 : 1;
}

#if PY_VERSION_HEX >= 0x030C0000

static bool
collect_all(mp_heap_t *heap)
{
    PyUnstable_GC_VisitObjects(collect, heap);
    return !heap->failed;
}

#else

static bool
collect_all(mp_heap_t *heap)
{
    PyObject *gc = PyImport_ImportModule("gc");
    heap->all =
        gc == NULL ? NULL : PyObject_CallMethod(gc, "get_objects", NULL);
    Py_XDECREF(gc);
    for (Py_ssize_t i = 0; heap->all != NULL && i < PyList_GET_SIZE(heap->all);
         i++) {
        if (collect(PyList_GET_ITEM(heap->all, i), heap) == 0) {
            break;
        }
    }
    return heap->all != NULL && !heap->failed;
}

#endif

/* ---- 2. who refers to whom -----------------------------------------------
 */

typedef struct {
    mp_heap_t *heap;
    uint32_t source;
} walk_t;

static int
refers(PyObject *object, void *argument)
{
    walk_t *walk = argument;
    mp_heap_t *heap = walk->heap;
    uint32_t target =
        object == NULL ? MP_NO_INDEX : mp_heap_find(heap, object);
    if (target == MP_NO_INDEX) {
        return 0;
    }
    if (!grow((void **)&heap->edges, &heap->edge_capacity, heap->edge_count,
              sizeof(uint32_t))) {
        heap->failed = true;
        return 1;
    }
    heap->edges[heap->edge_count++] = target;
    return 0;
}

/* Edges by source, as they come; by target, sorted by counting. */
static bool
turn_round(mp_heap_t *heap, size_t objects)
{
    heap->first = mp_calloc(objects + 1, sizeof(uint64_t));
    heap->by_target = mp_calloc(heap->count + 2, sizeof(uint64_t));
    if (heap->first == NULL || heap->by_target == NULL) {
        return false;
    }
    for (size_t i = 0; i < objects && !heap->failed; i++) {
        heap->first[i] = heap->edge_count;
        PyObject *object = heap->nodes[i].object;
        traverseproc traverse = Py_TYPE(object)->tp_traverse;
        walk_t walk = {heap, (uint32_t)i};
        if (traverse != NULL) {
            (void)traverse(object, refers, &walk);
        }
    }
    heap->first[objects] = heap->edge_count;
    heap->sources =
        mp_calloc(heap->edge_count + heap->link_count + 1, sizeof(uint32_t));
    if (heap->failed || heap->sources == NULL) {
        return false;
    }
    uint64_t *start = heap->by_target;
    for (size_t i = 0; i < heap->edge_count; i++) {
        start[heap->edges[i] + 2]++;
    }
    for (size_t i = 0; i < heap->link_count; i++) {
        start[heap->links[i].held + 2]++;
    }
    for (size_t i = 2; i < heap->count + 2; i++) {
        start[i] += start[i - 1];
    }
    for (size_t i = 0; i < objects; i++) {
        for (uint64_t k = heap->first[i]; k < heap->first[i + 1]; k++) {
            heap->sources[start[heap->edges[k] + 1]++] = (uint32_t)i;
        }
    }
    for (size_t i = 0; i < heap->link_count; i++) {
        heap->sources[start[heap->links[i].held + 1]++] =
            heap->links[i].holder;
    }
    return true;
}

/* What the collector would find: objects that only each other hold.  It does
 * not free them before its next full run. */
static bool
find_garbage(mp_heap_t *heap, size_t objects)
{
    uint32_t *waiting = mp_calloc(objects + 1, sizeof(uint32_t));
    int64_t *outside = mp_calloc(objects + 1, sizeof(int64_t));
    size_t count = 0;
    if (waiting == NULL || outside == NULL) {
        mp_free(waiting);
        mp_free(outside);
        return false;
    }
    for (size_t i = 0; i < heap->edge_count; i++) {
        outside[heap->edges[i]]--;
    }
    for (size_t i = 0; i < objects; i++) {
        outside[i] += Py_REFCNT(heap->nodes[i].object) - REFERENCES_OF_OURS;
        heap->nodes[i].garbage = outside[i] <= 0;
        if (!heap->nodes[i].garbage) {
            waiting[count++] = (uint32_t)i;
        }
    }
    while (count > 0) {
        uint32_t i = waiting[--count];
        for (uint64_t k = heap->first[i]; k < heap->first[i + 1]; k++) {
            mp_node_t *node = &heap->nodes[heap->edges[k]];
            if (node->garbage) {
                node->garbage = false;
                waiting[count++] = heap->edges[k];
            }
        }
    }
    mp_free(waiting);
    mp_free(outside);
    return true;
}

/* ---- 4. back from the wanted tensors -------------------------------------
 */

/* A module's globals; they have its name. */
static bool
is_globals(PyObject *object)
{
    if (!PyDict_CheckExact(object)) {
        return false;
    }
    PyObject *name = PyDict_GetItemString(object, "__name__");
    return name != NULL && PyUnicode_CheckExact(name) &&
           (PyDict_GetItemString(object, "__builtins__") != NULL ||
            PyDict_GetItemString(object, "__spec__") != NULL);
}

static uint8_t
kind_of(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    if (PyType_Check(object)) {
        return MP_NODE_TYPE;
    }
    if (PyModule_Check(object)) {
        return MP_NODE_MODULE;
    }
    if (is_globals(object)) {
        return MP_NODE_GLOBALS;
    }
    if (PyDict_Check(object)) {
        return MP_NODE_DICT;
    }
    if (PyList_Check(object) || PyTuple_Check(object)) {
        return MP_NODE_SEQUENCE;
    }
    if (type == &PyCell_Type) {
        return MP_NODE_CELL;
    }
    if (type == &PyFunction_Type) {
        return MP_NODE_FUNCTION;
    }
    if (type == &PyFrame_Type) {
        return MP_NODE_FRAME;
    }
    if (type == &PyGen_Type || type == &PyCoro_Type ||
        type == &PyAsyncGen_Type) {
        return MP_NODE_GENERATOR;
    }
    if (type == &PyTraceBack_Type) {
        return MP_NODE_TRACEBACK;
    }
    if (PyExceptionInstance_Check(object)) {
        return MP_NODE_EXCEPTION;
    }
    return MP_NODE_OBJECT;
}

static bool
is_end(uint8_t kind)
{
    return kind == MP_NODE_TYPE || kind == MP_NODE_MODULE ||
           kind == MP_NODE_GLOBALS || kind == MP_NODE_RUNNING ||
           kind == MP_NODE_HANDLED;
}

static void
add_part(mp_heap_t *heap, uint32_t i)
{
    mp_node_t *node = &heap->nodes[i];
    if (node->kind == MP_NODE_OBJECT && node->object != NULL) {
        node->kind = kind_of(node->object);
    }
    node->part = (uint32_t)heap->part_count;
    heap->parts[heap->part_count++] = i;
}

/* Marks what is on the way from the wanted; PARTS gets it, wanted first. */
static bool
walk_back(mp_heap_t *heap, size_t limit)
{
    heap->parts = mp_calloc(heap->count + 1, sizeof(uint32_t));
    if (heap->parts == NULL) {
        return false;
    }
    for (size_t i = 0; i < heap->count; i++) {
        if (heap->nodes[i].wanted) {
            add_part(heap, (uint32_t)i);
        }
    }
    limit += heap->part_count;
    for (size_t next = 0; next < heap->part_count; next++) {
        uint32_t i = heap->parts[next];
        if (is_end(heap->nodes[i].kind)) {
            continue;
        }
        for (uint64_t k = heap->by_target[i]; k < heap->by_target[i + 1];
             k++) {
            mp_node_t *holder = &heap->nodes[heap->sources[k]];
            if (holder->part != MP_NO_INDEX || holder->ours) {
                continue;
            }
            if (heap->part_count >= limit) {
                heap->cut = true;
                return true;
            }
            add_part(heap, heap->sources[k]);
        }
    }
    return true;
}

/* ---- all of it -------------------------------------------------------- */

static void
heap_clear(mp_heap_t *heap)
{
    for (size_t i = 0; i < heap->link_count; i++) {
        Py_XDECREF(heap->links[i].label);
    }
    for (size_t i = 0; i < heap->count; i++) {
        Py_XDECREF(heap->nodes[i].title);
    }
    mp_table_free(heap->index);
    mp_free(heap->nodes);
    mp_free(heap->links);
    mp_free(heap->edges);
    mp_free(heap->first);
    mp_free(heap->by_target);
    mp_free(heap->sources);
    mp_free(heap->parts);
    Py_CLEAR(heap->all);
}

PyObject *
mp_holders(PyObject *Py_UNUSED(module), PyObject *args)
{
    mp_wanted_t wanted;
    mp_heap_t heap = {0};
    Py_ssize_t limit;
    if (!PyArg_ParseTuple(
            args, "O!O!O!O!O!O!Un:holders", &PySet_Type, &wanted.addresses,
            &PySet_Type, &wanted.tensors, &PySet_Type, &wanted.storages,
            &PyType_Type, &wanted.base, &PyType_Type, &wanted.storage_base,
            &PyType_Type, &wanted.function_base, &heap.ours, &limit)) {
        return NULL;
    }
    PyObject *result = NULL;
    int was_on = PyGC_Disable();
    heap.index = mp_table_new((size_t)1 << 20);
    if (heap.index != NULL && collect_all(&heap)) {
        size_t objects = heap.count;
        mp_heap_add_threads(&heap);
        if (!heap.failed && mp_heap_add_tensors(&heap, &wanted, objects) &&
            turn_round(&heap, objects) && find_garbage(&heap, objects) &&
            walk_back(&heap, limit < 0 ? 0 : (size_t)limit)) {
            result = mp_heap_answer(&heap, objects);
        }
    }
    heap_clear(&heap);
    if (was_on) {
        PyGC_Enable();
    }
    if (result == NULL && !PyErr_Occurred()) {
        PyErr_NoMemory();
    }
    return result;
}
