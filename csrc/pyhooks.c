/* pyhooks.c - what torch calls at an optimizer's step, and what Python tells.
 *
 * Hooks run often, so they are C.  They return None and never raise into the
 * training code. */
#include "pyhooks.h"

#include "claims.h"
#include "hook.h"
#include "pystack.h"
#include "state.h"

/* The training code must not notice: tell sys.unraisablehook.  Whether the
 * answer was anything but False. */
bool
mp_call_back(PyObject *callback, PyObject *argument)
{
    PyObject *result = PyObject_CallOneArg(callback, argument);
    if (result == NULL) {
        PyErr_WriteUnraisable(callback);
    }
    bool answer = result != NULL && result != Py_False;
    Py_XDECREF(result);
    return answer;
}

bool
mp_enough(const char *name, Py_ssize_t count, Py_ssize_t least)
{
    if (count < least) {
        PyErr_Format(PyExc_TypeError, "%s takes at least %zd arguments", name,
                     least);
        return false;
    }
    return true;
}

/* ---- the hooks of optimizers ----------------------------------------------
 */

static PyObject *
optimizer_pre_hook(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (!mp_enough("optimizer_pre_hook", count, 1)) {
        return NULL;
    }
    if (mp_hook_wanted() != 0) {
        mp_claim_gradients_of(mp_state_of(self), args[0]);
    }
    mp_hook_optimizer_begin(mp_type_name(args[0]));
    Py_RETURN_NONE;
}

static PyObject *
optimizer_post_hook(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (!mp_enough("optimizer_post_hook", count, 1)) {
        return NULL;
    }
    mp_module_state_t *state = mp_state_of(self);
    int64_t left = mp_hook_optimizer_end(mp_type_name(args[0]));
    if (left > 0 && mp_hook_wanted() != 0 &&
        state->on_optimizer_state != NULL) {
        mp_call_back(state->on_optimizer_state, args[0]);
    }
    Py_RETURN_NONE;
}

/* ---- what Python tells
 * ------------------------------------------------------------ */

static PyObject *
mark_role(PyObject *Py_UNUSED(self), PyObject *args)
{
    unsigned long long addr;
    int device, role;
    PyObject *text;
    uint32_t owner;
    if (!PyArg_ParseTuple(args, "KiiO:mark_role", &addr, &device, &role,
                          &text)) {
        return NULL;
    }
    if (device < MP_DEVICE_CPU || device > INT16_MAX || role < 0 ||
        role > MP_ROLE_INPUT) {
        PyErr_SetString(PyExc_ValueError, "no such device or role");
        return NULL;
    }
    if (!mp_intern_object(mp_hook_intern(), text, &owner)) {
        return NULL;
    }
    mp_hook_role(addr, (int16_t)device, (mp_role_t)role, owner);
    Py_RETURN_NONE;
}

static PyObject *
mark_tensors(PyObject *self, PyObject *items)
{
    mp_module_state_t *state = mp_state_of(self);
    if (!PyList_Check(items)) {
        PyErr_SetString(PyExc_TypeError, "a list of tuples is expected");
        return NULL;
    }
    long marked = 0;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
        PyObject *tensor, *text;
        int role;
        uint32_t owner;
        PyObject *item = Py_NewRef(PyList_GET_ITEM(items, i));
        if (!PyTuple_Check(item) ||
            !PyArg_ParseTuple(item, "OiO:mark_tensors", &tensor, &role,
                              &text) ||
            !mp_intern_object(mp_hook_intern(), text, &owner)) {
            if (!PyErr_Occurred()) {
                PyErr_SetString(PyExc_TypeError, "a tuple is expected");
            }
            Py_DECREF(item);
            return NULL;
        }
        marked += role >= 0 && role <= MP_ROLE_INPUT &&
                  mp_claim(state, tensor, (mp_role_t)role, owner, 0);
        Py_DECREF(item);
    }
    return PyLong_FromLong(marked);
}

/* Never in the way of a program: what is no region of torch's is passed over.
 */
static PyObject *
region_begin(PyObject *Py_UNUSED(self), PyObject *const *args,
             Py_ssize_t count)
{
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "region_begin(region, name)");
        return NULL;
    }
    if (!mp_hook_wants(MP_HOOK_REGIONS) || !PyUnicode_Check(args[1])) {
        Py_RETURN_NONE;
    }
    uint32_t name;
    if (!mp_intern_object(mp_hook_intern(), args[1], &name)) {
        PyErr_Clear(); /* expected: a name that is no UTF-8 */
        Py_RETURN_NONE;
    }
    mp_hook_region_begin(args[0], name);
    Py_RETURN_NONE;
}

static PyObject *
region_end(PyObject *Py_UNUSED(self), PyObject *region)
{
    mp_hook_region_end(region); /* also of one that outlives the recording */
    Py_RETURN_NONE;
}

static PyObject *
name_object(PyObject *self, PyObject *args)
{
    mp_module_state_t *state = mp_state_of(self);
    PyObject *object, *text;
    uint32_t name;
    if (!PyArg_ParseTuple(args, "OO:name_object", &object, &text) ||
        !mp_intern_object(mp_hook_intern(), text, &name)) {
        return NULL;
    }
    mp_names_t *names = mp_is_tensor(state, object) ? mp_parameter_names()
                                                    : mp_hook_module_names();
    mp_status_t status = mp_names_put(names, (uintptr_t)object, name);
    if (status != MP_OK) {
        return mp_raise(state, MP_ERR_NOMEM, "naming an object", 0, NULL);
    }
    Py_RETURN_NONE;
}

static PyObject *
forget_object(PyObject *Py_UNUSED(self), PyObject *argument)
{
    unsigned long long addr = PyLong_AsUnsignedLongLong(argument);
    if (addr == (unsigned long long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    mp_names_forget(mp_hook_module_names(), addr);
    mp_names_forget(mp_parameter_names(), addr);
    Py_RETURN_NONE;
}

static PyObject *
forget_objects(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    mp_names_clear(mp_hook_module_names());
    mp_names_clear(mp_parameter_names());
    Py_RETURN_NONE;
}

static void
keep(PyObject **slot, PyObject *value)
{
    Py_XSETREF(*slot, value == Py_None ? NULL : Py_NewRef(value));
}

static PyObject *
set_callbacks(PyObject *self, PyObject *args)
{
    mp_module_state_t *state = mp_state_of(self);
    PyObject *tensor_type, *on_root, *on_state, *on_leaf;
    if (!PyArg_ParseTuple(args, "OOOO:set_callbacks", &tensor_type, &on_root,
                          &on_state, &on_leaf)) {
        return NULL;
    }
    if (tensor_type != Py_None && !PyType_Check(tensor_type)) {
        PyErr_SetString(PyExc_TypeError, "tensor_type is a type or None");
        return NULL;
    }
    keep(&state->tensor_type, tensor_type);
    keep(&state->on_root_module, on_root);
    keep(&state->on_optimizer_state, on_state);
    keep(&state->on_leaf_input, on_leaf);
    Py_RETURN_NONE;
}

static PyObject *
set_codes(PyObject *self, PyObject *args)
{
    mp_module_state_t *state = mp_state_of(self);
    PyObject *module, *backward;
    const void *codes[MP_PYSTACK_BACKWARD_CODES];
    if (!PyArg_ParseTuple(args, "OO!:set_codes", &module, &PyTuple_Type,
                          &backward)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(backward);
    bool valid = (module == Py_None || PyCode_Check(module)) &&
                 count <= MP_PYSTACK_BACKWARD_CODES;
    for (Py_ssize_t i = 0; valid && i < count; i++) {
        codes[i] = PyTuple_GET_ITEM(backward, i);
        valid = PyCode_Check(PyTuple_GET_ITEM(backward, i));
    }
    if (!valid) {
        PyErr_SetString(PyExc_TypeError,
                        "a code object or None, and at most four of them");
        return NULL;
    }
    mp_pystack_set_codes(module == Py_None ? NULL : module, codes,
                         (size_t)count);
    keep(&state->module_code, module);
    keep(&state->backward_codes, backward);
    Py_RETURN_NONE;
}

PyMethodDef mp_pyhooks_methods[] = {
    {"take_hook_copies", mp_take_hook_copies, METH_NOARGS, NULL},
    {"optimizer_pre_hook", (PyCFunction)(void (*)(void))optimizer_pre_hook,
     METH_FASTCALL, NULL},
    {"optimizer_post_hook", (PyCFunction)(void (*)(void))optimizer_post_hook,
     METH_FASTCALL, NULL},
    {"gradient_hook", mp_gradient_hook, METH_O, NULL},
    {"mark_role", mark_role, METH_VARARGS, NULL},
    {"mark_tensors", mark_tensors, METH_O, NULL},
    {"region_begin", (PyCFunction)(void (*)(void))region_begin, METH_FASTCALL,
     NULL},
    {"region_end", region_end, METH_O, NULL},
    {"name_object", name_object, METH_VARARGS, NULL},
    {"forget_object", forget_object, METH_O, NULL},
    {"forget_objects", forget_objects, METH_NOARGS, NULL},
    {"set_callbacks", set_callbacks, METH_VARARGS, NULL},
    {"set_codes", set_codes, METH_VARARGS, NULL},
    {0},
};

bool
mp_pyhooks_init(mp_module_state_t *state, PyObject *module)
{
    state->str_untyped_storage = PyUnicode_InternFromString("untyped_storage");
    state->str_data_ptr = PyUnicode_InternFromString("data_ptr");
    state->str_get_device = PyUnicode_InternFromString("get_device");
    state->str_grad = PyUnicode_InternFromString("grad");
    state->str_requires_grad = PyUnicode_InternFromString("requires_grad");
    state->str_is_leaf = PyUnicode_InternFromString("is_leaf");
    return mp_claims_init() && state->str_untyped_storage != NULL &&
           state->str_data_ptr != NULL && state->str_get_device != NULL &&
           state->str_grad != NULL && state->str_requires_grad != NULL &&
           state->str_is_leaf != NULL && mp_module_hooks_init(state, module);
}

int
mp_pyhooks_traverse(mp_module_state_t *state, visitproc visit, void *arg)
{
    Py_VISIT(state->tensor_type);
    Py_VISIT(state->on_root_module);
    Py_VISIT(state->on_optimizer_state);
    Py_VISIT(state->on_leaf_input);
    Py_VISIT(state->module_code);
    Py_VISIT(state->backward_codes);
    return 0;
}

void
mp_pyhooks_clear(mp_module_state_t *state)
{
    Py_CLEAR(state->tensor_type);
    Py_CLEAR(state->on_root_module);
    Py_CLEAR(state->on_optimizer_state);
    Py_CLEAR(state->on_leaf_input);
    mp_pystack_set_codes(NULL, NULL, 0);
    Py_CLEAR(state->module_code);
    Py_CLEAR(state->backward_codes);
    Py_CLEAR(state->str_untyped_storage);
    Py_CLEAR(state->str_data_ptr);
    Py_CLEAR(state->str_get_device);
    Py_CLEAR(state->str_grad);
    Py_CLEAR(state->str_requires_grad);
    Py_CLEAR(state->str_is_leaf);
}
