/* made_events.c - events that Python code makes: torch's memory history, read
 * into the log of the running sessions, and the recordings of tests.
 *
 * Takes rows as they are; what they mean is the tracker's business. */
#include "hook.h"
#include "mem.h"
#include "state.h"

#include <string.h>

/* ---- names and stacks ------------------------------------------------------
 */

static bool
intern_names(mp_intern_t *intern, PyObject *names)
{
    Py_ssize_t count = PySequence_Fast_GET_SIZE(names);
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t length;
        const char *text = PyUnicode_AsUTF8AndSize(
            PySequence_Fast_GET_ITEM(names, i), &length);
        if (text == NULL) {
            return false;
        }
        if (mp_intern_string(intern, text, (size_t)length) != (uint32_t)i) {
            PyErr_Format(PyExc_ValueError, "name %zd is there twice", i);
            return false;
        }
    }
    return true;
}

/* The stack id of FRAMES, a sequence of (function, file, line), innermost
 * first; MP_NO_INDEX with an exception. */
static uint32_t
intern_frames(mp_intern_t *intern, PyObject *frames)
{
    PyObject *fast = PySequence_Fast(frames, "a sequence of frames");
    uint32_t stack = MP_NO_INDEX;
    if (fast == NULL) {
        return MP_NO_INDEX;
    }
    Py_ssize_t count = PySequence_Fast_GET_SIZE(fast);
    for (Py_ssize_t i = count; i-- > 0;) {
        PyObject *function_object, *file_object;
        uint32_t function, file;
        unsigned int line;
        PyObject *frame = PySequence_Fast_GET_ITEM(fast, i);
        if (!PyTuple_Check(frame)) {
            PyErr_SetString(PyExc_TypeError,
                            "a frame is (function, file, line)");
            stack = MP_NO_INDEX;
            break;
        }
        if (!PyArg_ParseTuple(frame, "OOI", &function_object, &file_object,
                              &line) ||
            !mp_intern_object(intern, function_object, &function) ||
            !mp_intern_object(intern, file_object, &file)) {
            stack = MP_NO_INDEX;
            break;
        }
        stack = mp_intern_stack(intern, stack,
                                mp_intern_frame(intern, function, file, line));
        if (stack == MP_NO_INDEX) {
            PyErr_NoMemory();
            break;
        }
    }
    Py_DECREF(fast);
    return stack;
}

static bool
intern_stacks(mp_intern_t *intern, PyObject *stacks)
{
    Py_ssize_t count = PySequence_Fast_GET_SIZE(stacks);
    for (Py_ssize_t i = 0; i < count; i++) {
        (void)intern_frames(intern, PySequence_Fast_GET_ITEM(stacks, i));
        if (PyErr_Occurred()) {
            return false;
        }
    }
    return true;
}

/* ---- the functions ---------------------------------------------------------
 */

static PyObject *
from_events(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names_of[] = {"events", "names", "stacks", "start_wall_ns",
                               NULL};
    mp_module_state_t *state = mp_state_of(self);
    PyObject *object, *names = NULL, *stacks = NULL, *result = NULL;
    PyObject *names_fast = NULL, *stacks_fast = NULL;
    Py_buffer view;
    const mp_event_t *events;
    long long start_wall_ns = 0;
    mp_recording_data_t data = {.finished = true};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOL:from_events",
                                     names_of, &object, &names, &stacks,
                                     &start_wall_ns) ||
        !mp_events_from(object, &view, &events, &data.count)) {
        return NULL;
    }
    if (mp_intern_new(&data.intern) != MP_OK) {
        PyErr_NoMemory();
        goto done;
    }
    if (names != NULL && names != Py_None &&
        ((names_fast = PySequence_Fast(names, "names")) == NULL ||
         !intern_names(data.intern, names_fast))) {
        goto done;
    }
    if (stacks != NULL && stacks != Py_None &&
        ((stacks_fast = PySequence_Fast(stacks, "stacks")) == NULL ||
         !intern_stacks(data.intern, stacks_fast))) {
        goto done;
    }
    data.events = mp_calloc(data.count + 1, sizeof(mp_event_t));
    if (data.events == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    memcpy(data.events, events, data.count * sizeof(mp_event_t));
    data.start_ns = data.count > 0 ? events[0].time_ns : 0;
    data.start_wall_ns = start_wall_ns;
    result = mp_recording_from_data(state, &data);

done:
    Py_XDECREF(names_fast);
    Py_XDECREF(stacks_fast);
    PyBuffer_Release(&view);
    mp_recording_data_clear(&data);
    return result;
}

static PyObject *
feed(PyObject *Py_UNUSED(self), PyObject *object)
{
    Py_buffer view;
    const mp_event_t *events;
    size_t count, accepted = 0;
    if (!mp_events_from(object, &view, &events, &count)) {
        return NULL;
    }
    while (mp_hook_wanted() != 0 && accepted < count) {
        size_t part = count - accepted < 1024 ? count - accepted : 1024;
        if (!mp_hook_feed(events + accepted, part)) {
            break;
        }
        accepted += part;
    }
    PyBuffer_Release(&view);
    return PyLong_FromSize_t(accepted);
}

static PyObject *
intern_string(PyObject *self, PyObject *argument)
{
    uint32_t id;
    if (!mp_intern_object(mp_hook_intern(), argument, &id)) {
        return NULL;
    }
    if (id == MP_NO_INDEX) {
        return mp_raise(mp_state_of(self), MP_ERR_NOMEM, NULL, 0, NULL);
    }
    return PyLong_FromUnsignedLong(id);
}

static PyObject *
intern_stack(PyObject *Py_UNUSED(self), PyObject *argument)
{
    uint32_t id = intern_frames(mp_hook_intern(), argument);
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLong(id);
}

PyMethodDef mp_made_events_methods[] = {
    {"from_events", (PyCFunction)(void (*)(void))from_events,
     METH_VARARGS | METH_KEYWORDS, NULL},
    {"feed", feed, METH_O, NULL},
    {"intern_string", intern_string, METH_O, NULL},
    {"intern_stack", intern_stack, METH_O, NULL},
    {0},
};
