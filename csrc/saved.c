/* saved.c - tensors, their storages, and what autograd holds for them.
 *
 * Reads a graph through the Python objects that torch makes of its nodes.
 * No hook is called and nothing is unpacked: a saved tensor says itself
 * whether it has hooks, and shows what it keeps as it lies there (torch 2.14
 * does; a torch that hides it gets no answer about saved tensors).
 *
 * The engine changes graphs and gradients without the GIL, so neither is
 * looked at while any thread is inside a backward.  What torch's attributes
 * that are read here do not do is to let go of the GIL: as long as this call
 * lasts, no backward begins. */
#include "holders.h"

#include <string.h>

#define RAW_SAVED "_raw_saved_"

typedef struct {
    mp_heap_t *heap;
    mp_table_t *tensors, *storages; /* classes */
    mp_table_t *addresses;          /* wanted */
    PyObject *get_storage, *data_ptr, *nbytes, *grad_fn, *grad, *is_view,
        *version, *requires_grad;     /* descriptors of torch's base classes */
    PyObject *next_functions, *saved; /* of Python's own functions */
    PyTypeObject *function_base;
    PyObject *names; /* class of node -> names of its saved tensors */
    PyObject *kept;  /* nodes met: an address is good while they live */
    mp_table_t *met; /* address of a node's object -> its node */
} torch_t;

/* The attribute that DESCRIPTOR stands for: not what a class made of it. */
static PyObject *
get(PyObject *descriptor, PyObject *object)
{
    descrgetfunc call = Py_TYPE(descriptor)->tp_descr_get;
    PyObject *found = call(descriptor, object, (PyObject *)Py_TYPE(object));
    if (found == NULL) {
        PyErr_Clear(); /* expected: not set up, or freed already */
    }
    return found;
}

static uint64_t
number(PyObject *method, PyObject *object)
{
    PyObject *found = PyObject_CallOneArg(method, object);
    uint64_t value = found == NULL ? 0 : PyLong_AsUnsignedLongLong(found);
    Py_XDECREF(found);
    if (PyErr_Occurred()) {
        PyErr_Clear(); /* expected: sparse, meta and other tensors */
        value = 0;
    }
    return value;
}

/* Whether a storage is wanted; its address and bytes go to NODE. */
static bool
note_storage(torch_t *torch, PyObject *storage, mp_node_t *node)
{
    node->storage = number(torch->data_ptr, storage);
    if (node->storage == 0 ||
        mp_table_get(torch->addresses, node->storage) == MP_NO_INDEX) {
        return false;
    }
    node->bytes = number(torch->nbytes, storage);
    return true;
}

static bool
note_tensor(torch_t *torch, PyObject *tensor, mp_node_t *node)
{
    PyObject *storage = PyObject_CallOneArg(torch->get_storage, tensor);
    if (storage == NULL) {
        PyErr_Clear(); /* expected: it has none */
        return false;
    }
    bool wanted = note_storage(torch, storage, node);
    Py_DECREF(storage);
    return wanted;
}

static bool
is_tensor(const torch_t *torch, PyObject *object)
{
    return mp_table_get(torch->tensors, (uintptr_t)Py_TYPE(object)) !=
           MP_NO_INDEX;
}

/* HOLDER, a node of the heap, keeps OBJECT without Python's knowledge. */
static void
hold(torch_t *torch, uint32_t holder, PyObject *object, const char *label)
{
    mp_heap_t *heap = torch->heap;
    uint32_t held = mp_heap_find(heap, object);
    if (held == MP_NO_INDEX) { /* no Python object before we asked for one */
        mp_node_t found = {0};
        if (!is_tensor(torch, object) || !note_tensor(torch, object, &found)) {
            return;
        }
        held = mp_heap_add(heap, NULL, MP_NODE_OBJECT);
        if (held == MP_NO_INDEX) {
            return;
        }
        heap->nodes[held].tensor = heap->nodes[held].wanted = true;
        heap->nodes[held].storage = found.storage;
        heap->nodes[held].bytes = found.bytes;
    }
    PyObject *text = PyUnicode_FromString(label);
    if (text == NULL) {
        heap->failed = true;
        return;
    }
    mp_heap_link(heap, holder, held, text);
    Py_DECREF(text);
}

/* ---- nodes of a graph ----------------------------------------------------
 */

/* The heap's node for a node of a graph; it is queued when first met. */
static uint32_t
meet(torch_t *torch, PyObject *function)
{
    mp_heap_t *heap = torch->heap;
    uint32_t node = mp_table_get(torch->met, (uintptr_t)function), previous;
    if (node != MP_NO_INDEX) {
        return node;
    }
    node = mp_heap_find(heap, function);
    if (node == MP_NO_INDEX) {
        node = mp_heap_add(heap, NULL, MP_NODE_GRAPH);
    }
    const char *name = strrchr(Py_TYPE(function)->tp_name, '.');
    PyObject *title = PyUnicode_FromString(
        name == NULL ? Py_TYPE(function)->tp_name : name + 1);
    if (node == MP_NO_INDEX || title == NULL ||
        PyList_Append(torch->kept, function) != 0 ||
        mp_table_put(torch->met, (uintptr_t)function, node, &previous) !=
            MP_OK) {
        Py_XDECREF(title);
        heap->failed = true;
        return MP_NO_INDEX;
    }
    heap->nodes[node].kind = MP_NODE_GRAPH;
    heap->nodes[node].title = title;
    return node;
}

/* The names of what a class of nodes saves, without their prefix; borrowed. */
static PyObject *
saved_names(torch_t *torch, PyTypeObject *type)
{
    PyObject *names = PyDict_GetItem(torch->names, (PyObject *)type);
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (names != NULL) {
        return names;
    }
    names = PyList_New(0);
    if (names == NULL ||
        PyDict_SetItem(torch->names, (PyObject *)type, names) != 0) {
        torch->heap->failed = true;
        Py_XDECREF(names);
        return NULL;
    }
    Py_DECREF(names);
    while (type->tp_dict != NULL &&
           PyDict_Next(type->tp_dict, &at, &key, &value)) {
        const char *text =
            PyUnicode_CheckExact(key) ? PyUnicode_AsUTF8(key) : NULL;
        if (text != NULL &&
            strncmp(text, RAW_SAVED, sizeof(RAW_SAVED) - 1) == 0 &&
            PyList_Append(names, key) != 0) {
            torch->heap->failed = true;
        }
    }
    return names;
}

/* What one or several of torch's SavedTensor keep. */
static void
look_at_saved(torch_t *torch, uint32_t node, PyObject *saved,
              const char *label)
{
    if (PyTuple_CheckExact(saved)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(saved); i++) {
            look_at_saved(torch, node, PyTuple_GET_ITEM(saved, i), label);
        }
        return;
    }
    PyObject *hook =
        saved == Py_None ? NULL : PyObject_GetAttrString(saved, "unpack_hook");
    PyObject *data =
        hook == NULL ? NULL : PyObject_GetAttrString(saved, "data");
    if (data != NULL && data != Py_None) {
        hold(torch, node, data, label);
    }
    Py_XDECREF(data);
    Py_XDECREF(hook);
    PyErr_Clear(); /* expected: a torch that does not tell */
}

static void
look_at_node(torch_t *torch, PyObject *function, uint32_t node)
{
    PyTypeObject *type = Py_TYPE(function);
    PyObject *next;
    if (PyObject_TypeCheck(function, torch->function_base)) {
        PyObject *saved = get(torch->saved, function);
        if (saved != NULL) {
            look_at_saved(torch, node, saved, "tensor");
            Py_DECREF(saved);
        }
        next = get(torch->next_functions, function);
    }
    else {
        PyObject *names = saved_names(torch, type);
        for (Py_ssize_t i = 0; names != NULL && i < PyList_GET_SIZE(names);
             i++) {
            PyObject *name = PyList_GET_ITEM(names, i);
            PyObject *saved = PyObject_GetAttr(function, name);
            if (saved == NULL) {
                PyErr_Clear(); /* expected: freed by a backward */
                continue;
            }
            look_at_saved(torch, node, saved,
                          PyUnicode_AsUTF8(name) + sizeof(RAW_SAVED) - 1);
            Py_DECREF(saved);
        }
        PyObject *variable = strcmp(type->tp_name, "AccumulateGrad") == 0
                                 ? PyObject_GetAttrString(function, "variable")
                                 : NULL;
        if (variable != NULL) {
            hold(torch, node, variable, "variable");
            Py_DECREF(variable);
        }
        next = PyObject_GetAttrString(function, "next_functions");
        PyErr_Clear(); /* expected: an object that only looks like a node */
    }
    for (Py_ssize_t i = 0; next != NULL && PyTuple_CheckExact(next) &&
                           i < PyTuple_GET_SIZE(next);
         i++) {
        PyObject *pair = PyTuple_GET_ITEM(next, i);
        PyObject *inner =
            PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) == 2
                ? PyTuple_GET_ITEM(pair, 0)
                : Py_None;
        if (inner != Py_None) {
            uint32_t other = meet(torch, inner);
            if (other != MP_NO_INDEX) {
                mp_heap_link(torch->heap, node, other, NULL);
            }
        }
    }
    Py_XDECREF(next);
}

/* ---- tensors -------------------------------------------------------------
 */

/* A view of what was changed in place since: torch makes it a new node when
 * it is asked for one. */
static bool
is_stale(torch_t *torch, PyObject *tensor)
{
    PyObject *view = PyObject_CallOneArg(torch->is_view, tensor);
    bool stale = view != Py_False;
    Py_XDECREF(view);
    if (view == Py_True) {
        PyObject *version = get(torch->version, tensor);
        stale = version == NULL || PyLong_AsLong(version) != 0;
        Py_XDECREF(version);
    }
    PyErr_Clear(); /* expected: inference tensors have no version */
    return stale;
}

static void
look_at_tensor(torch_t *torch, uint32_t node)
{
    PyObject *tensor = torch->heap->nodes[node].object;
    PyObject *needs = get(torch->requires_grad, tensor);
    bool has = needs == Py_True;
    Py_XDECREF(needs);
    if (!has || is_stale(torch, tensor)) {
        return;
    }
    PyObject *function = get(torch->grad_fn, tensor);
    if (function != NULL && function != Py_None) {
        uint32_t other = meet(torch, function);
        PyObject *label = PyUnicode_FromString("grad_fn");
        if (other != MP_NO_INDEX && label != NULL) {
            mp_heap_link(torch->heap, node, other, label);
        }
        Py_XDECREF(label);
    }
    else if (function == Py_None) {
        PyObject *gradient = get(torch->grad, tensor);
        if (gradient != NULL && gradient != Py_None) {
            hold(torch, node, gradient, ".grad");
        }
        Py_XDECREF(gradient);
    }
    Py_XDECREF(function);
}

static void
look_at_all(torch_t *torch, size_t objects)
{
    mp_heap_t *heap = torch->heap;
    for (size_t i = 0; i < objects && !heap->failed; i++) {
        mp_node_t *node = &heap->nodes[i];
        uintptr_t type = (uintptr_t)Py_TYPE(node->object);
        if (mp_table_get(torch->tensors, type) != MP_NO_INDEX) {
            node->tensor = true;
            node->wanted = note_tensor(torch, node->object, node);
        }
        else if (mp_table_get(torch->storages, type) != MP_NO_INDEX) {
            node->wanted = note_storage(torch, node->object, node);
        }
    }
    if (heap->in_backward) {
        return;
    }
    for (size_t i = 0; i < objects && !heap->failed; i++) {
        if (heap->nodes[i].tensor) {
            look_at_tensor(torch, (uint32_t)i);
        }
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(torch->kept) && !heap->failed;
         i++) {
        PyObject *function = PyList_GET_ITEM(torch->kept, i);
        look_at_node(torch, function,
                     mp_table_get(torch->met, (uintptr_t)function));
    }
}

/* ---- setting up ----------------------------------------------------------
 */

/* The members of SET: classes by address, or ints by value.  Nothing of a
 * class's own is called: neither its hash nor its comparison. */
static mp_table_t *
table_of(PyObject *set, bool numbers)
{
    PyObject *all = PySequence_List(set);
    mp_table_t *table =
        all == NULL ? NULL : mp_table_new((size_t)PyList_GET_SIZE(all) * 2);
    for (Py_ssize_t i = 0; table != NULL && i < PyList_GET_SIZE(all); i++) {
        PyObject *item = PyList_GET_ITEM(all, i);
        uint32_t previous;
        uint64_t key = numbers ? PyLong_AsUnsignedLongLong(item)
                               : (uint64_t)(uintptr_t)item;
        if (PyErr_Occurred() ||
            mp_table_put(table, key, 0, &previous) != MP_OK) {
            mp_table_free(table);
            table = NULL;
        }
    }
    Py_XDECREF(all);
    return table;
}

static bool
lookup(PyObject *cls, const char *name, PyObject **found)
{
    *found = PyObject_GetAttrString(cls, name);
    return *found != NULL;
}

bool
mp_heap_add_tensors(mp_heap_t *heap, const mp_wanted_t *wanted, size_t objects)
{
    torch_t torch = {
        .heap = heap,
        .tensors = table_of(wanted->tensors, false),
        .storages = table_of(wanted->storages, false),
        .addresses = table_of(wanted->addresses, true),
        .function_base = (PyTypeObject *)wanted->function_base,
        .names = PyDict_New(),
        .kept = PyList_New(0),
        .met = mp_table_new(1024),
    };
    PyObject *base = wanted->base;
    bool ready =
        torch.tensors != NULL && torch.storages != NULL &&
        torch.addresses != NULL && torch.names != NULL && torch.kept != NULL &&
        torch.met != NULL &&
        lookup(base, "untyped_storage", &torch.get_storage) &&
        lookup(base, "grad_fn", &torch.grad_fn) &&
        lookup(base, "grad", &torch.grad) &&
        lookup(base, "_is_view", &torch.is_view) &&
        lookup(base, "_version", &torch.version) &&
        lookup(base, "requires_grad", &torch.requires_grad) &&
        lookup(wanted->storage_base, "data_ptr", &torch.data_ptr) &&
        lookup(wanted->storage_base, "nbytes", &torch.nbytes) &&
        lookup(wanted->function_base, "next_functions",
               &torch.next_functions) &&
        lookup(wanted->function_base, "_raw_saved_tensors", &torch.saved);
    if (ready) {
        look_at_all(&torch, objects);
    }
    mp_table_free(torch.tensors);
    mp_table_free(torch.storages);
    mp_table_free(torch.addresses);
    mp_table_free(torch.met);
    PyObject *const owned[] = {
        torch.names,    torch.kept,          torch.get_storage,
        torch.data_ptr, torch.nbytes,        torch.grad_fn,
        torch.grad,     torch.is_view,       torch.version,
        torch.saved,    torch.requires_grad, torch.next_functions,
    };
    for (size_t i = 0; i < MP_ARRAY_LENGTH(owned); i++) {
        Py_XDECREF(owned[i]);
    }
    return ready && !heap->failed;
}
