/* references.c - of each reference on the way: its key, index or name.
 *
 * Writes the answer of `_core.holders`: numbers and texts.  Knows how Python's
 * own types hold things; what it does not know is "some" reference.  Keys are
 * shown only where their class is Python's own. */
#include "holders.h"

#include <string.h>
#include <structmember.h>

/* ---- keys, indices and names ------------------------------------------
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
    if (object == NULL) {
        return; /* what it holds are links */
    }
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
    switch (object == NULL ? MP_NODE_OBJECT : node->kind) {
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

PyObject *
mp_heap_answer(mp_heap_t *heap, size_t objects)
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
