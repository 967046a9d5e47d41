/* arrays.c - memory of the core as Python sees it, without a copy. */
#include "mem.h"
#include "state.h"

typedef struct {
    PyObject_HEAD
    const void *memory;
    Py_ssize_t bytes;
    PyObject *owner;
    void (*release)(void *);
} rows_t;

static int
rows_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    rows_t *rows = (rows_t *)self;
    return PyBuffer_FillInfo(view, self, (void *)rows->memory, rows->bytes, 1,
                             flags);
}

static Py_ssize_t
rows_length(PyObject *self)
{
    return ((rows_t *)self)->bytes;
}

static int
rows_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((rows_t *)self)->owner);
    return 0;
}

static int
rows_clear(PyObject *self)
{
    Py_CLEAR(((rows_t *)self)->owner);
    return 0;
}

static void
rows_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    rows_t *rows = (rows_t *)self;
    PyObject_GC_UnTrack(self);
    if (rows->release != NULL) {
        rows->release((void *)rows->memory);
    }
    Py_CLEAR(rows->owner);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyType_Slot rows_slots[] = {
    {Py_tp_doc, "Rows of the core's memory, read-only (buffer protocol)."},
    {Py_tp_dealloc, rows_dealloc},
    {Py_tp_traverse, rows_traverse},
    {Py_tp_clear, rows_clear},
    {Py_bf_getbuffer, rows_getbuffer},
    {Py_sq_length, rows_length},
    {0, NULL},
};

PyType_Spec mp_rows_spec = {
    .name = "memprof._core.Rows",
    .basicsize = sizeof(rows_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = rows_slots,
};

PyObject *
mp_rows_new(mp_module_state_t *state, const void *memory, size_t bytes,
            PyObject *owner, void (*release)(void *))
{
    rows_t *rows = PyObject_GC_New(rows_t, state->rows_type);
    if (rows == NULL) {
        if (release != NULL) {
            release((void *)memory);
        }
        return NULL;
    }
    rows->memory = memory;
    rows->bytes = (Py_ssize_t)bytes;
    rows->owner = Py_XNewRef(owner);
    rows->release = release;
    PyObject_GC_Track(rows);
    return (PyObject *)rows;
}

static bool
dict_put(PyObject *dict, const char *key, PyObject *value)
{
    if (value == NULL) {
        return false;
    }
    int failed = PyDict_SetItemString(dict, key, value);
    Py_DECREF(value);
    return failed == 0;
}

PyObject *
mp_stats_dict(const mp_device_stats_t *stats)
{
    PyObject *dict = PyDict_New();
    if (dict == NULL) {
        return NULL;
    }
#define X(name, text)                                                         \
    if (!dict_put(dict, #name,                                                \
                  Py_BuildValue("{sLsLsL}", "current",                        \
                                (long long)stats->name.current, "peak",       \
                                (long long)stats->name.peak, "total",         \
                                (long long)stats->name.total))) {             \
        goto fail;                                                            \
    }
    MP_STAT_LIST(X)
#undef X
    return dict;

fail:
    Py_DECREF(dict);
    return NULL;
}

PyObject *
mp_defects_dict(const mp_defects_t *defects)
{
    PyObject *dict = PyDict_New();
    if (dict == NULL) {
        return NULL;
    }
#define X(name, text)                                                         \
    if (!dict_put(dict, #name, PyLong_FromUnsignedLongLong(defects->name))) { \
        goto fail;                                                            \
    }
    MP_DEFECT_LIST(X)
#undef X
    return dict;

fail:
    Py_DECREF(dict);
    return NULL;
}

bool
mp_events_from(PyObject *object, Py_buffer *view, const mp_event_t **events,
               size_t *count)
{
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS) != 0) {
        return false;
    }
    if (view->len % (Py_ssize_t)sizeof(mp_event_t) != 0) {
        PyErr_Format(PyExc_ValueError,
                     "events take %zu bytes each; %zd bytes are no whole "
                     "number of them",
                     sizeof(mp_event_t), view->len);
        PyBuffer_Release(view);
        return false;
    }
    *events = view->buf;
    *count = (size_t)view->len / sizeof(mp_event_t);
    return true;
}

static PyObject *
text_object(const mp_intern_t *intern, uint32_t id)
{
    const char *text;
    size_t length;
    if (!mp_intern_text(intern, id, &text, &length)) {
        return PyUnicode_FromString("?");
    }
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "replace");
}

PyObject *
mp_stack_tuple(const mp_intern_t *intern, uint32_t stack)
{
    PyObject *list = PyList_New(0);
    mp_stack_t node;
    mp_frame_t frame;
    if (list == NULL) {
        return NULL;
    }
    while (stack != MP_NO_INDEX && mp_intern_get_stack(intern, stack, &node) &&
           mp_intern_get_frame(intern, node.frame, &frame)) {
        PyObject *item = Py_BuildValue(
            "(NNk)", text_object(intern, frame.function),
            text_object(intern, frame.file), (unsigned long)frame.line);
        if (item == NULL || PyList_Append(list, item) != 0) {
            Py_XDECREF(item);
            Py_DECREF(list);
            return NULL;
        }
        Py_DECREF(item);
        stack = node.parent;
    }
    PyObject *tuple = PyList_AsTuple(list);
    Py_DECREF(list);
    return tuple;
}

bool
mp_device_number(PyObject *argument, int16_t *device)
{
    long number = PyLong_AsLong(argument);
    if (number == -1 && PyErr_Occurred()) {
        return false;
    }
    if (number < MP_DEVICE_CPU || number > INT16_MAX) {
        PyErr_Format(PyExc_ValueError, "no device has the number %ld", number);
        return false;
    }
    *device = (int16_t)number;
    return true;
}
