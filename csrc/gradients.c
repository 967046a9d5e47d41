/* gradients.c - whose gradients are whose: told by a parameter's hook, claimed
 * at its optimizer's step, or claimed beside other threads. */
#include "claims.h"
#include "hook.h"
#include "pyhooks.h"
#include "pystack_layout.h"
#include "state.h"

#include <string.h>

/* ---- told by hooks -------------------------------------------------------
 */

/* The gradient that a parameter was last seen with: most gradients are told
 * by the parameter's hook, and that is known here by two addresses.  A stale
 * entry costs a claim too many or, if a new tensor has the old one's address
 * and no hook told of it, one too few. */
#define SEEN 4096 /* a power of two */
static struct {
    const PyObject *parameter, *gradient;
} the_seen[SEEN]; /* under the GIL */

/* Notes the pair; whether it was known. */
static bool
seen_before(const PyObject *parameter, const PyObject *gradient)
{
    size_t slot = (uintptr_t)parameter * UINT64_C(0x9E3779B97F4A7C15) >> 52;
    bool known = the_seen[slot].parameter == parameter &&
                 the_seen[slot].gradient == gradient;
    the_seen[slot].parameter = parameter;
    the_seen[slot].gradient = gradient;
    return known;
}

/* Claim PARAMETER's gradient; a hook of the parameter's or its optimizer's
 * says that it is there. */
static void
claim_gradient(mp_module_state_t *state, PyObject *parameter,
               PyObject *gradient, uint32_t owner)
{
    (void)seen_before(parameter, gradient);
    (void)mp_claim(state, gradient, MP_ROLE_GRADIENT, owner, 4);
}

/* A parameter without a name that OPTIMIZER is about to change is of a model
 * that was made since the last look: Python's side finds it, once for all of
 * the optimizer's (and names what no model has). */
static void
look_for_name(mp_module_state_t *state, PyObject *optimizer,
              PyObject *parameter, bool *looked)
{
    if (!*looked && state->on_optimizer_state != NULL &&
        mp_name_of(parameter) == MP_NO_INDEX) {
        *looked = true;
        (void)mp_call_back(state->on_optimizer_state, optimizer);
    }
}

/* The gradients that a step is about to use and that no hook told of: set by
 * the program, by FSDP, or moved into a bucket by DistributedDataParallel. */
static void
claim_gradients(mp_module_state_t *state, PyObject *optimizer,
                PyObject *parameters, bool *looked)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); i++) {
        PyObject *parameter = Py_NewRef(PyList_GET_ITEM(parameters, i));
        PyObject *gradient = mp_is_tensor(state, parameter)
                                 ? PyObject_GetAttr(parameter, state->str_grad)
                                 : NULL;
        if (gradient == NULL) {
            PyErr_Clear(); /* expected: a subclass may not let us */
        }
        else if (gradient != Py_None && !seen_before(parameter, gradient)) {
            /* Only now: most gradients were told of, and are named. */
            look_for_name(state, optimizer, parameter, looked);
            claim_gradient(state, parameter, gradient, mp_name_of(parameter));
        }
        Py_XDECREF(gradient);
        Py_DECREF(parameter);
    }
}

void
mp_claim_gradients_of(mp_module_state_t *state, PyObject *optimizer)
{
    bool looked = false;
    PyObject *groups = PyObject_GetAttrString(optimizer, "param_groups");
    if (groups != NULL && PyList_Check(groups)) {
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(groups); i++) {
            PyObject *group = PyList_GET_ITEM(groups, i);
            PyObject *parameters =
                PyDict_Check(group)
                    ? Py_XNewRef(PyDict_GetItemString(group, "params"))
                    : NULL;
            if (parameters != NULL && PyList_Check(parameters)) {
                claim_gradients(state, optimizer, parameters, &looked);
            }
            Py_XDECREF(parameters);
        }
    }
    Py_XDECREF(groups);
    PyErr_Clear(); /* no optimizer as torch makes them */
}

PyObject *
mp_gradient_hook(PyObject *core, PyObject *parameter)
{
    if (mp_hook_wanted() == 0) {
        Py_RETURN_NONE;
    }
    mp_module_state_t *state = mp_state_of(core);
    PyObject *gradient = PyObject_GetAttr(parameter, state->str_grad);
    if (gradient != NULL && gradient != Py_None) {
        claim_gradient(state, parameter, gradient, mp_name_of(parameter));
    }
    Py_XDECREF(gradient);
    PyErr_Clear(); /* expected: not a tensor after all */
    Py_RETURN_NONE;
}

/* ---- beside other threads ------------------------------------------------
 *
 * A backward of another thread replaces .grad without the GIL, and to look at
 * that moment is to crash.  So it is read only while every other thread of
 * Python's waits in the standard library (for a lock, a queue, a socket) and
 * nobody, we included, is in torch.autograd: nobody leaves either while we
 * hold the GIL, which we do until all that was read is let go again.  Nothing
 * of it is handed out. */

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
    PyObject *parameter, *text;
    const char *library;
    uint32_t owner;
    if (!PyArg_ParseTuple(args, "OsU:claim_gradient", &parameter, &library,
                          &text) ||
        !mp_intern_object(mp_hook_intern(), text, &owner)) {
        return NULL;
    }
    if (!has_plain_grad(state, parameter) || !is_quiet(state, library)) {
        Py_RETURN_NONE;
    }
    PyObject *gradient = PyObject_GetAttr(parameter, state->str_grad);
    /* A subclass runs Python code, and with that other threads. */
    if (gradient != NULL &&
        (PyObject *)Py_TYPE(gradient) == state->tensor_type) {
        claim_gradient(state, parameter, gradient, owner);
    }
    Py_XDECREF(gradient);
    PyErr_Clear();
    Py_RETURN_NONE;
}
