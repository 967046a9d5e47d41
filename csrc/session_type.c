/* session_type.c - memprof._core.Session: one profile, seen from Python. */
#include "mem.h"
#include "session.h"
#include "state.h"

#include <string.h>

typedef struct {
    PyObject_HEAD
    mp_session_t *session;
} session_t;

static mp_session_t *
session_of(PyObject *self)
{
    return ((session_t *)self)->session;
}

static mp_module_state_t *
state_of(PyObject *self)
{
    return mp_state_of_type(Py_TYPE(self));
}

static void
session_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    mp_session_t *session = session_of(self);
    Py_BEGIN_ALLOW_THREADS mp_session_free(session);
    Py_END_ALLOW_THREADS type->tp_free(self);
    Py_DECREF(type);
}

static PyObject *
session_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"ops",
                            "stacks",
                            "modules",
                            "shapes",
                            "cpu",
                            "cuda",
                            "event_budget_bytes",
                            "allocation_budget_bytes",
                            NULL};
    int ops, stacks, modules, shapes, cpu, cuda;
    Py_ssize_t event_budget, allocation_budget;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "$ipppppnn:Session", names, &ops, &stacks, &modules,
            &shapes, &cpu, &cuda, &event_budget, &allocation_budget)) {
        return NULL;
    }
    if (ops < 0 || ops > 2 || event_budget < 0 || allocation_budget < 0) {
        PyErr_SetString(PyExc_ValueError,
                        "ops is 0, 1 or 2 and budgets are not negative");
        return NULL;
    }
    mp_session_options_t options = {
        .ops = ops,
        .stacks = stacks != 0,
        .modules = modules != 0,
        .shapes = shapes != 0,
        .cpu = cpu != 0,
        .cuda = cuda != 0,
        .event_budget_bytes = (size_t)event_budget,
        .allocation_budget_bytes = (size_t)allocation_budget,
    };
    PyObject *self = type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    mp_status_t status =
        mp_session_new(&options, &((session_t *)self)->session);
    if (status != MP_OK) {
        Py_DECREF(self);
        return mp_raise(mp_state_of_type(type), status, "a new session", 0,
                        NULL);
    }
    return self;
}

static PyObject *
session_start(PyObject *self, PyObject *argument)
{
    mp_session_t *session = session_of(self);
    char error[512];
    bool took_over = false;
    mp_status_t status;
    int seeding = PyObject_IsTrue(argument);
    if (seeding < 0) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status = mp_session_start(
        session, seeding != 0, &took_over, error, sizeof(error));
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state_of(self), status,
                        error[0] != '\0' ? error : "starting a session", 0,
                        NULL);
    }
    return PyBool_FromLong(took_over);
}

static PyObject *
session_seed(PyObject *self, PyObject *argument)
{
    mp_session_t *session = session_of(self);
    Py_buffer view;
    const mp_event_t *events;
    size_t count;
    mp_status_t status;
    if (!mp_events_from(argument, &view, &events, &count)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status = mp_session_seed(session, events, count);
    Py_END_ALLOW_THREADS PyBuffer_Release(&view);
    if (status != MP_OK) {
        return mp_raise(state_of(self), status, "seeding", 0, NULL);
    }
    Py_RETURN_NONE;
}

static PyObject *
session_step(PyObject *self, PyObject *argument)
{
    long number = PyLong_AsLong(argument);
    if (number == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (number < 0 || number > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "a step's number is 0 or more");
        return NULL;
    }
    mp_session_t *session = session_of(self);
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_session_step(session, (int32_t)number);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state_of(self), status, "a step", 0, NULL);
    }
    Py_RETURN_NONE;
}

static PyObject *
session_window_begin(PyObject *self, PyObject *path)
{
    mp_session_t *session = session_of(self);
    PyObject *bytes = NULL;
    if (path != Py_None && (bytes = mp_path_bytes(path)) == NULL) {
        return NULL;
    }
    const char *text = bytes == NULL ? NULL : PyBytes_AS_STRING(bytes);
    int saved_errno = 0;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status =
        mp_session_window_begin(session, text, &saved_errno);
    Py_END_ALLOW_THREADS Py_XDECREF(bytes);
    if (status != MP_OK) {
        return mp_raise(state_of(self), status, "opening a recording window",
                        saved_errno, path);
    }
    Py_RETURN_NONE;
}

static PyObject *
session_window_describe(PyObject *self, PyObject *info)
{
    mp_session_t *session = session_of(self);
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(info, &length);
    if (text == NULL) {
        return NULL;
    }
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status =
        mp_session_window_describe(session, text, (size_t)length);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state_of(self), status,
                        "describing a recording window", 0, NULL);
    }
    Py_RETURN_NONE;
}

static PyObject *
session_window_end(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    mp_session_t *session = session_of(self);
    mp_window_t window;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_session_window_end(session, &window);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state_of(self), status, "ending a recording window", 0,
                        NULL);
    }
    return mp_recording_from_window(state_of(self), &window);
}

static PyObject *
session_snapshot(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    mp_session_t *session = session_of(self);
    mp_window_t window;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_session_window_copy(session, &window);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state_of(self), status, "copying the open window", 0,
                        NULL);
    }
    return mp_recording_from_window(state_of(self), &window);
}

static PyObject *
session_stop(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    mp_session_t *session = session_of(self);
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_session_stop(session);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state_of(self), status, "stopping a session", 0, NULL);
    }
    Py_RETURN_NONE;
}

static PyObject *
session_flush(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    mp_session_t *session = session_of(self);
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_session_flush(session);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state_of(self), status, "flushing", 0, NULL);
    }
    Py_RETURN_NONE;
}

static PyObject *
session_status(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    mp_session_t *session = session_of(self);
    mp_session_status_t status;
    Py_BEGIN_ALLOW_THREADS mp_session_status(session, &status);
    Py_END_ALLOW_THREADS PyObject *error =
        status.stream_errno != 0
            ? PyUnicode_FromString(strerror(status.stream_errno))
            : Py_NewRef(Py_None);
    return Py_BuildValue("{sOsOsOsOsKsKsnsNsN}", "running",
                         status.running ? Py_True : Py_False, "seeding",
                         status.seeding ? Py_True : Py_False, "recording",
                         status.recording ? Py_True : Py_False, "forked",
                         status.forked ? Py_True : Py_False, "events",
                         (unsigned long long)status.events, "dropped",
                         (unsigned long long)status.dropped, "own_bytes",
                         (Py_ssize_t)status.own_bytes, "stream_error", error,
                         "defects", mp_defects_dict(&status.defects));
}

static PyObject *
session_followed_steps(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    mp_session_t *session = session_of(self);
    mp_step_stats_t *rows;
    size_t count;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_session_steps(session, &rows, &count);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state_of(self), status, "the steps", 0, NULL);
    }
    return mp_rows_new(state_of(self), rows, count * sizeof(mp_step_stats_t),
                       NULL, mp_free);
}

static PyObject *
session_stats(PyObject *self, PyObject *argument)
{
    mp_session_t *session = session_of(self);
    int16_t device;
    mp_device_stats_t stats;
    mp_status_t status;
    if (!mp_device_number(argument, &device)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status = mp_session_stats(session, device, &stats);
    Py_END_ALLOW_THREADS if (status == MP_ERR_ARG)
    {
        Py_RETURN_NONE;
    }
    return mp_stats_dict(&stats);
}

static PyObject *
session_scope_open(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    mp_session_t *session = session_of(self);
    mp_scope_t scope = 0;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_session_scope_open(session, &scope);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state_of(self), status, "opening a scope", 0, NULL);
    }
    return PyLong_FromUnsignedLong(scope);
}

static PyObject *
session_scope_peak(PyObject *self, PyObject *args)
{
    mp_session_t *session = session_of(self);
    unsigned int scope;
    PyObject *device_object;
    int16_t device;
    mp_device_stats_t stats;
    mp_status_t status;
    if (!PyArg_ParseTuple(args, "IO:scope_peak", &scope, &device_object) ||
        !mp_device_number(device_object, &device)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status =
        mp_session_scope_peak(session, scope, device, &stats);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state_of(self), status,
                        "no such scope is open, or no such device was seen", 0,
                        NULL);
    }
    return mp_stats_dict(&stats);
}

static PyObject *
session_scope_close(PyObject *self, PyObject *argument)
{
    mp_session_t *session = session_of(self);
    unsigned long scope = PyLong_AsUnsignedLong(argument);
    if (scope == (unsigned long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS(void)
        mp_session_scope_close(session, (mp_scope_t)scope);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *
session_get_id(PyObject *self, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(mp_session_id(session_of(self)));
}

static PyObject *
session_get_totals(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(mp_session_totals(session_of(self)));
}

/* SET with VALUE; NAME is the attribute's. */
static int
set_option(PyObject *self, PyObject *value, const char *name,
           mp_status_t (*set)(mp_session_t *session, bool wanted))
{
    int wanted = value == NULL ? -1 : PyObject_IsTrue(value);
    if (wanted < 0) {
        if (value == NULL) {
            PyErr_Format(PyExc_AttributeError, "%s cannot be deleted", name);
        }
        return -1;
    }
    mp_session_t *session = session_of(self);
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = set(session, wanted != 0);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        char text[64];
        (void)snprintf(text, sizeof(text), "choosing %s", name);
        (void)mp_raise(state_of(self), status, text, 0, NULL);
        return -1;
    }
    return 0;
}

static int
session_set_totals(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
    return set_option(self, value, "totals", mp_session_set_totals);
}

static PyObject *
session_get_kernels(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(mp_session_kernels(session_of(self)));
}

static int
session_set_kernels(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
    return set_option(self, value, "kernels", mp_session_set_kernels);
}

static PyGetSetDef session_getset[] = {
    {"totals", session_get_totals, session_set_totals,
     "whether what process and devices hold is measured from start to stop",
     NULL},
    {"kernels", session_get_kernels, session_set_kernels,
     "whether what runs on GPUs is recorded", NULL},
    {"id", session_get_id, NULL, "number of the session in this process",
     NULL},
    {0},
};

static PyMethodDef session_methods[] = {
    {"start", session_start, METH_O, NULL},
    {"seed", session_seed, METH_O, NULL},
    {"step", session_step, METH_O, NULL},
    {"window_begin", session_window_begin, METH_O, NULL},
    {"window_describe", session_window_describe, METH_O, NULL},
    {"window_end", session_window_end, METH_NOARGS, NULL},
    {"snapshot", session_snapshot, METH_NOARGS, NULL},
    {"stop", session_stop, METH_NOARGS, NULL},
    {"flush", session_flush, METH_NOARGS, NULL},
    {"status", session_status, METH_NOARGS, NULL},
    {"followed_steps", session_followed_steps, METH_NOARGS, NULL},
    {"stats", session_stats, METH_O, NULL},
    {"scope_open", session_scope_open, METH_NOARGS, NULL},
    {"scope_peak", session_scope_peak, METH_VARARGS, NULL},
    {"scope_close", session_scope_close, METH_O, NULL},
    {0},
};

static PyType_Slot session_slots[] = {
    {Py_tp_doc, "One profile: follows every block from start to stop."},
    {Py_tp_new, session_new},
    {Py_tp_dealloc, session_dealloc},
    {Py_tp_methods, session_methods},
    {Py_tp_getset, session_getset},
    {0, NULL},
};

PyType_Spec mp_session_spec = {
    .name = "memprof._core.Session",
    .basicsize = sizeof(session_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = session_slots,
};
