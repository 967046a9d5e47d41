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
 * 5. Say of each reference on the way which key, index or name it has.
 *
 * No code of the program runs: neither hashing, comparing nor attributes
 * that a class defines. */
#include "holders.h"

#include "mem.h"

#include <frameobject.h>
#include <string.h>
#include <structmember.h>

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

/* No dealloc of ours and nothing that is about to go. */
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
            heap->nodes[i].part = (uint32_t)heap->part_count;
            heap->parts[heap->part_count++] = (uint32_t)i;
        }
    }
    limit += heap->part_count;
    for (size_t next = 0; next < heap->part_count; next++) {
        uint32_t i = heap->parts[next];
        mp_node_t *node = &heap->nodes[i];
        if (node->kind == MP_NODE_OBJECT && node->object != NULL) {
            node->kind = kind_of(node->object);
        }
        if (is_end(node->kind)) {
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
            holder->part = (uint32_t)heap->part_count;
            heap->parts[heap->part_count++] = heap->sources[k];
        }
    }
    return true;
}

/* ---- 5. keys, indices and names ------------------------------------------
 */

typedef struct {
    mp_heap_t *heap;
    PyObject *edges; /* list of (held, holder, kind of label, label) */
    uint32_t holder; /* its part */
} say_t;

/* A reference from the holder to HELD; LABEL (stolen) may be NULL. */
static void
say(say_t *how, PyObject *held, const char *kind, PyObject *label)
{
    uint32_t index =
        held == NULL ? MP_NO_INDEX : mp_heap_find(how->heap, held);
    uint32_t part =
        index == MP_NO_INDEX ? MP_NO_INDEX : how->heap->nodes[index].part;
    if (part == MP_NO_INDEX) {
        Py_XDECREF(label);
        return;
    }
    if (label == NULL) {
        label = Py_NewRef(Py_None);
    }
    PyObject *edge = Py_BuildValue("(IIsN)", part, how->holder, kind, label);
    if (edge == NULL || PyList_Append(how->edges, edge) != 0) {
        how->heap->failed = true;
    }
    Py_XDECREF(edge);
}

static bool
is_part(const mp_heap_t *heap, const PyObject *object)
{
    uint32_t index = object == NULL ? MP_NO_INDEX : mp_heap_find(heap, object);
    return index != MP_NO_INDEX && heap->nodes[index].part != MP_NO_INDEX;
}

/* A key as plain data; of others the class, or the part that a key is. */
static PyObject *
plain_key(const mp_heap_t *heap, PyObject *key)
{
    if (PyUnicode_CheckExact(key) || PyLong_CheckExact(key) ||
        PyBool_Check(key) || PyFloat_CheckExact(key) || key == Py_None ||
        PyBytes_CheckExact(key)) {
        return PyObject_Repr(key);
    }
    uint32_t index = mp_heap_find(heap, key);
    if (index != MP_NO_INDEX && heap->nodes[index].tensor) {
        return PyLong_FromVoidPtr(key);
    }
    const char *name = strrchr(Py_TYPE(key)->tp_name, '.');
    return PyUnicode_FromFormat("<%s>", name == NULL ? Py_TYPE(key)->tp_name
                                                     : name + 1);
}

/* The entries of DICT that are parts.  As attributes if it is an object's
 * __dict__ (NAMES). */
static void
say_items(say_t *how, PyObject *dict, bool names)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, &value)) {
        if (is_part(how->heap, value)) {
            if (names && PyUnicode_CheckExact(key)) {
                say(how, value, "name", Py_NewRef(key));
            }
            else {
                say(how, value, "key", plain_key(how->heap, key));
            }
        }
        if (is_part(how->heap, key)) {
            say(how, key, "as key", NULL);
        }
    }
}

static void
say_sequence(say_t *how, PyObject *object)
{
    Py_ssize_t size = Py_SIZE(object);
    PyObject **items = PyList_Check(object)
                           ? ((PyListObject *)object)->ob_item
                           : ((PyTupleObject *)object)->ob_item;
    for (Py_ssize_t i = 0; i < size; i++) {
        if (is_part(how->heap, items[i])) {
            say(how, items[i], "index", PyLong_FromSsize_t(i));
        }
    }
}

static void
say_variable(void *context, PyObject *name, PyObject *value)
{
    say((say_t *)context, value, "variable", Py_NewRef(name));
}

/* What is a reference of an object of a class: slots, attributes. */
static void
say_attributes(say_t *how, PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject *mro = type->tp_mro;
    for (Py_ssize_t i = 0; mro != NULL && i < PyTuple_GET_SIZE(mro); i++) {
        PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(mro, i);
        PyObject *key, *value;
        Py_ssize_t at = 0;
        /* Builtin classes may keep theirs elsewhere, and have no slots. */
        if (!PyType_Check(base) || base->tp_dict == NULL ||
            !PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE)) {
            continue;
        }
        while (PyDict_Next(base->tp_dict, &at, &key, &value)) {
            if (Py_TYPE(value) != &PyMemberDescr_Type) {
                continue;
            }
            const PyMemberDef *member =
                ((PyMemberDescrObject *)value)->d_member;
            if (member->type == T_OBJECT_EX || member->type == T_OBJECT) {
                PyObject *held =
                    *(PyObject **)((char *)object + member->offset);
                if (is_part(how->heap, held)) {
                    say(how, held, "name", Py_NewRef(key));
                }
            }
        }
    }
    if (type->tp_dictoffset == 0) {
        return;
    }
    PyObject *dict = PyObject_GenericGetDict(object, NULL);
    if (dict == NULL) {
        PyErr_Clear(); /* expected: it has none after all */
        return;
    }
    if (is_part(how->heap, dict)) {
        say(how, dict, "dict", NULL);
    }
    else if (PyDict_Check(dict)) {
        say_items(how, dict, true); /* it was kept inside the object */
    }
    Py_DECREF(dict);
}

static void
say_function(say_t *how, PyObject *object)
{
    PyFunctionObject *function = (PyFunctionObject *)object;
    PyCodeObject *code = (PyCodeObject *)function->func_code;
    PyObject *names = PyObject_GetAttrString((PyObject *)code, "co_freevars");
    PyObject *cells = function->func_closure;
    for (Py_ssize_t i = 0;
         names != NULL && cells != NULL && i < PyTuple_GET_SIZE(names) &&
         i < PyTuple_GET_SIZE(cells);
         i++) {
        say(how, PyTuple_GET_ITEM(cells, i), "closure",
            Py_NewRef(PyTuple_GET_ITEM(names, i)));
    }
    Py_XDECREF(names);
    PyErr_Clear(); /* expected never */
    say(how, function->func_defaults, "defaults", NULL);
    say(how, function->func_kwdefaults, "defaults", NULL);
    say(how, function->func_dict, "dict", NULL);
}

static void
say_references(say_t *how, mp_node_t *node)
{
    PyObject *object = node->object;
    switch (node->kind) {
    case MP_NODE_MODULE: {
        PyObject *dict = PyModule_GetDict(object);
        say(how, dict, "dict", NULL);
        break;
    }
    case MP_NODE_TYPE:
        if (((PyTypeObject *)object)->tp_dict != NULL) {
            say(how, ((PyTypeObject *)object)->tp_dict, "dict", NULL);
        }
        break;
    case MP_NODE_GLOBALS:
        say_items(how, object, true);
        break;
    case MP_NODE_DICT:
        say_items(how, object, false);
        if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE)) {
            say_attributes(how, object);
        }
        break;
    case MP_NODE_SEQUENCE:
        say_sequence(how, object);
        if (PyType_HasFeature(Py_TYPE(object), Py_TPFLAGS_HEAPTYPE)) {
            say_attributes(how, object);
        }
        break;
    case MP_NODE_CELL:
        say(how, ((PyCellObject *)object)->ob_ref, "cell", NULL);
        break;
    case MP_NODE_FUNCTION:
        say_function(how, object);
        break;
    case MP_NODE_FRAME:
        mp_frame_variables(object, say_variable, how);
        break;
    case MP_NODE_GENERATOR:
#if PY_VERSION_HEX < 0x030B0000
        say(how, (PyObject *)((PyGenObject *)object)->gi_frame, "cell", NULL);
#endif
        mp_generator_variables(object, say_variable, how);
        break;
    case MP_NODE_EXCEPTION: {
        PyBaseExceptionObject *error = (PyBaseExceptionObject *)object;
        say(how, error->traceback, "traceback", NULL);
        say(how, error->context, "context", NULL);
        say(how, error->cause, "context", NULL);
        say_attributes(how, object);
        break;
    }
    case MP_NODE_TRACEBACK:
        say(how, (PyObject *)((PyTracebackObject *)object)->tb_next,
            "traceback", NULL);
        say(how, (PyObject *)((PyTracebackObject *)object)->tb_frame,
            "traceback", NULL);
        break;
    case MP_NODE_OBJECT:
    case MP_NODE_GRAPH:
        say_attributes(how, object);
        break;
    default:
        break;
    }
}

/* The links of saved.c and of running frames; they have their labels. */
static void
say_links(mp_heap_t *heap, PyObject *edges)
{
    for (size_t i = 0; i < heap->link_count; i++) {
        const mp_link_t *link = &heap->links[i];
        uint32_t held = heap->nodes[link->held].part;
        uint32_t holder = heap->nodes[link->holder].part;
        if (held == MP_NO_INDEX || holder == MP_NO_INDEX) {
            continue;
        }
        PyObject *edge = Py_BuildValue(
            "(IIsO)", held, holder,
            heap->nodes[link->holder].kind == MP_NODE_RUNNING ? "variable"
                                                              : "link",
            link->label == NULL ? Py_None : link->label);
        if (edge == NULL || PyList_Append(edges, edge) != 0) {
            heap->failed = true;
        }
        Py_XDECREF(edge);
    }
}

/* References that no rule above has a name for. */
static void
say_rest(say_t *how, uint32_t i, size_t objects)
{
    if (i >= objects) {
        return;
    }
    for (uint64_t k = how->heap->first[i]; k < how->heap->first[i + 1]; k++) {
        const mp_node_t *held = &how->heap->nodes[how->heap->edges[k]];
        if (held->part != MP_NO_INDEX) {
            say(how, held->object, "some", NULL);
        }
    }
}

/* ---- the answer ----------------------------------------------------------
 */

static PyObject *
title_of(const mp_node_t *node)
{
    PyObject *object = node->object;
    PyObject *name = NULL;
    switch (node->kind) {
    case MP_NODE_GLOBALS:
        name = PyDict_GetItemString(object, "__name__");
        break;
    case MP_NODE_MODULE:
        name = PyDict_GetItemString(PyModule_GetDict(object), "__name__");
        break;
    case MP_NODE_FUNCTION:
        name = ((PyFunctionObject *)object)->func_qualname;
        break;
    case MP_NODE_GENERATOR:
        name = ((PyGenObject *)object)->gi_qualname;
        break;
    case MP_NODE_FRAME:
        name = mp_frame_name(object);
        break;
    case MP_NODE_TYPE:
        if (PyType_HasFeature((PyTypeObject *)object, Py_TPFLAGS_HEAPTYPE)) {
            name = ((PyHeapTypeObject *)object)->ht_qualname;
        }
        break;
    default:
        name = node->title;
        break;
    }
    return Py_NewRef(name != NULL && PyUnicode_CheckExact(name) ? name
                                                                : Py_None);
}

static const char *const kind_texts[] = {
#define X(name, text) text,
    MP_NODE_LIST(X)
#undef X
};

/* One node: plain data, in the order of _core.pyi. */
static PyObject *
describe(const mp_node_t *node)
{
    PyTypeObject *type = node->object == NULL ? NULL : Py_TYPE(node->object);
    PyObject *qualified = NULL;
    const char *name = "";
    if (type != NULL) {
        name = strrchr(type->tp_name, '.');
        name = name == NULL ? type->tp_name : name + 1;
        if (PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE)) {
            qualified = ((PyHeapTypeObject *)type)->ht_qualname;
        }
    }
    qualified = qualified != NULL && PyUnicode_CheckExact(qualified)
                    ? Py_NewRef(qualified)
                    : PyUnicode_FromString(name);
    return Py_BuildValue(
        "(sNNKKOOKKK)", kind_texts[node->kind], qualified, title_of(node),
        (unsigned long long)(uintptr_t)node->object,
        (unsigned long long)(uintptr_t)type,
        node->garbage ? Py_True : Py_False, node->wanted ? Py_True : Py_False,
        (unsigned long long)node->storage, (unsigned long long)node->bytes,
        (unsigned long long)node->thread);
}

static PyObject *
answer(mp_heap_t *heap, size_t objects)
{
    PyObject *nodes = PyList_New(0);
    PyObject *edges = PyList_New(0);
    for (size_t i = 0; nodes != NULL && edges != NULL && i < heap->part_count;
         i++) {
        mp_node_t *node = &heap->nodes[heap->parts[i]];
        PyObject *row = describe(node);
        if (row == NULL || PyList_Append(nodes, row) != 0) {
            heap->failed = true;
        }
        Py_XDECREF(row);
        say_t how = {heap, edges, (uint32_t)i};
        if (heap->parts[i] < objects) {
            bool holds = false;
            for (uint64_t k = heap->first[heap->parts[i]];
                 !holds && k < heap->first[heap->parts[i] + 1]; k++) {
                holds = heap->nodes[heap->edges[k]].part != MP_NO_INDEX;
            }
            if (holds) {
                say_references(&how, node);
                say_rest(&how, heap->parts[i], objects);
            }
        }
        if (heap->failed) {
            break;
        }
    }
    if (edges != NULL) {
        say_links(heap, edges);
    }
    if (nodes == NULL || edges == NULL || heap->failed) {
        Py_XDECREF(nodes);
        Py_XDECREF(edges);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    return Py_BuildValue("(NNnOO)", nodes, edges, (Py_ssize_t)objects,
                         heap->cut ? Py_True : Py_False,
                         heap->in_backward ? Py_True : Py_False);
}

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
            result = answer(&heap, objects);
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
