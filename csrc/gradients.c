/* gradients.c - a parameter's .grad, claimed beside other threads.
 *
 * A backward of another thread replaces .grad without the GIL, and to look at
 * that moment is to crash.  So it is read only while every other thread of
 * Python's waits in the standard library (for a lock, a queue, a socket) and
 * nobody, we included, is in torch.autograd: nobody leaves either while we
 * hold the GIL, which we do until all that was read is let go again.  Nothing
 * of it is handed out. */
#include "pystack_layout.h"
#include "state.h"

#include <string.h>

#ifndef MP_PYSTACK_UNSUPPORTED

/* The frames of a thread that waits for the GIL, or runs without it, stand
 * still while we hold it. */
static bool
runs_backward(const PyThreadState *thread, PyObject *codes)
{
    const mp_pyframe_t *frame = mp_pyframe_first(thread);
    for (; frame != NULL; frame = mp_pyframe_next(frame)) {
        const void *code = mp_pyframe_executable(frame);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(codes); i++) {
            if (code != NULL && code == PyTuple_GET_ITEM(codes, i)) {
                return true;
            }
        }
    }
    return false;
}

/* Whether code of FILE only waits: the standard library's, and that of torch's
 * own helper threads, which read pipes. */
static bool
waits_in(const char *file, const char *library)
{
    return (strncmp(file, library, strlen(library)) == 0 &&
            strstr(file, "-packages/") == NULL) ||
           strstr(file, "/torch/_inductor/compile_worker/") != NULL ||
           strstr(file, "/torch/utils/data/_utils/") != NULL;
}

/* Whether THREAD's innermost frame only waits, or it has none.
 * LIBRARY: the folder of that, with a slash at the end. */
static bool
is_idle(const PyThreadState *thread, const char *library)
{
    const mp_pyframe_t *frame = mp_pyframe_first(thread);
    for (; frame != NULL; frame = mp_pyframe_next(frame)) {
        const PyCodeObject *code = mp_pyframe_code(frame);
        if (code != NULL) {
            const char *file = PyUnicode_AsUTF8(code->co_filename);
            PyErr_Clear(); /* a name that is no text is no library's */
            return file != NULL && waits_in(file, library);
        }
    }
    return true;
}

static bool
is_quiet(const mp_module_state_t *state, const char *library)
{
    PyObject *codes = state->backward_codes;
    if (codes == NULL || PyTuple_GET_SIZE(codes) == 0) {
        return false; /* nobody told what a backward looks like */
    }
    PyThreadState *mine = PyThreadState_Get();
    PyThreadState *thread = PyInterpreterState_ThreadHead(mine->interp);
    for (; thread != NULL; thread = PyThreadState_Next(thread)) {
        if (runs_backward(thread, codes) ||
            (thread != mine && !is_idle(thread, library))) {
            return false;
        }
    }
    return true;
}

#else

static bool
is_quiet(const mp_module_state_t *state, const char *library)
{
    (void)state;
    (void)library;
    return false;
}

#endif

/* Whether OBJECT.grad is torch's own getter and runs no Python. */
static bool
has_plain_grad(const mp_module_state_t *state, PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject *found = PyObject_GetAttr((PyObject *)type, state->str_grad);
    bool plain = found != NULL && Py_TYPE(found) == &PyGetSetDescr_Type &&
                 type->tp_getattro == PyObject_GenericGetAttr;
    Py_XDECREF(found);
    PyErr_Clear(); /* expected: no tensor */
    return plain;
}

PyObject *
mp_claim_gradient(PyObject *module, PyObject *args)
{
    mp_module_state_t *state = mp_state_of(module);
    PyObject *parameter;
    const char *library;
    if (!PyArg_ParseTuple(args, "Os:claim_gradient", &parameter, &library)) {
        return NULL;
    }
    if (!has_plain_grad(state, parameter) || !is_quiet(state, library)) {
        Py_RETURN_NONE;
    }
    PyObject *gradient = PyObject_GetAttr(parameter, state->str_grad);
    /* A subclass runs Python code, and with that other threads. */
    if (gradient != NULL &&
        (PyObject *)Py_TYPE(gradient) == state->tensor_type) {
        mp_pyhooks_claim_gradient(state, parameter, gradient);
    }
    Py_XDECREF(gradient);
    PyErr_Clear();
    Py_RETURN_NONE;
}
