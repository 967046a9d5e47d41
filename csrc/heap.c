/* heap.c - the objects that Python's garbage collector knows, by their class.
 *
 * Looks at nothing but the address of an object's class: no code of theirs
 * runs.  No other thread may run while references to all objects are held: a
 * tuple(generator) that it is in the middle of would fail for want of being
 * its tuple's only owner.  In here the GIL does not change hands. */
#include "mem.h"
#include "state.h"

typedef struct {
    size_t mask;
    const PyTypeObject **slots; /* open addressing; NULL: free */
} classes_t;

typedef struct {
    const classes_t *classes;
    PyObject *found;
    bool failed;
} search_t;

static size_t
slot_of(const classes_t *classes, const PyTypeObject *type)
{
    size_t slot =
        (size_t)((uintptr_t)type * UINT64_C(0x9E3779B97F4A7C15) >> 32) &
        classes->mask;
    while (classes->slots[slot] != NULL && classes->slots[slot] != type) {
        slot = (slot + 1) & classes->mask;
    }
    return slot;
}

/* SET is a set of types; false with an exception. */
static bool
classes_init(classes_t *classes, PyObject *set)
{
    size_t capacity = 16;
    while (capacity < 4 * (size_t)PySet_GET_SIZE(set)) {
        capacity *= 2;
    }
    classes->mask = capacity - 1;
    classes->slots =
        (const PyTypeObject **)mp_calloc(capacity, sizeof(PyTypeObject *));
    PyObject *all = PySequence_List(set);
    if (classes->slots == NULL || all == NULL) {
        Py_XDECREF(all);
        if (!PyErr_Occurred()) {
            PyErr_NoMemory();
        }
        return false;
    }
    bool fine = true;
    for (Py_ssize_t i = 0; fine && i < PyList_GET_SIZE(all); i++) {
        PyObject *type = PyList_GET_ITEM(all, i);
        fine = PyType_Check(type);
        if (fine) {
            classes->slots[slot_of(classes, (PyTypeObject *)type)] =
                (PyTypeObject *)type;
        }
    }
    Py_DECREF(all);
    if (!fine) {
        PyErr_SetString(PyExc_TypeError, "instances() takes a set of classes");
    }
    return fine;
}

/* 1: go on (what the collector's visitors answer). */
static int
visit(PyObject *object, void *argument)
{
    search_t *search = argument;
    const PyTypeObject *type = Py_TYPE(object);
    if (search->classes->slots[slot_of(search->classes, type)] == type &&
        PyList_Append(search->found, object) != 0) {
        search->failed = true;
        return 0;
    }
    return 1;
}

#if PY_VERSION_HEX >= 0x030C0000

static bool
visit_all(search_t *search)
{
    PyUnstable_GC_VisitObjects(visit, search);
    return !search->failed;
}

#else

static bool
visit_all(search_t *search)
{
    PyObject *gc = PyImport_ImportModule("gc");
    PyObject *all =
        gc == NULL ? NULL : PyObject_CallMethod(gc, "get_objects", NULL);
    Py_XDECREF(gc);
    if (all == NULL) {
        return false;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(all); i++) {
        if (visit(PyList_GET_ITEM(all, i), search) == 0) {
            break;
        }
    }
    Py_DECREF(all);
    return !search->failed;
}

#endif

PyObject *
mp_instances(PyObject *Py_UNUSED(module), PyObject *set)
{
    if (!PyAnySet_Check(set)) {
        return PyErr_Format(PyExc_TypeError,
                            "instances() takes a set of classes, not %.100s",
                            Py_TYPE(set)->tp_name);
    }
    classes_t classes = {0};
    /* Before all else: to make a list may start a collection. */
    search_t search = {.classes = &classes, .found = PyList_New(0)};
    bool fine = search.found != NULL && classes_init(&classes, set) &&
                visit_all(&search);
    mp_free(classes.slots);
    if (!fine) {
        Py_CLEAR(search.found);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    return search.found;
}
