/* claims.c - what a tensor lies in, whose it is, and what it is called. */
#include "claims.h"

#include "hook.h"
#include "state.h"

#include <string.h>

static mp_names_t *the_parameter_names; /* made at init, lives for ever */

bool
mp_claims_init(void)
{
    if (the_parameter_names == NULL) {
        the_parameter_names = mp_names_new();
    }
    return the_parameter_names != NULL;
}

mp_names_t *
mp_parameter_names(void)
{
    return the_parameter_names;
}

uint32_t
mp_name_of(PyObject *object)
{
    uint32_t name = mp_names_get(mp_hook_module_names(), (uintptr_t)object);
    return name != MP_NO_INDEX
               ? name
               : mp_names_get(the_parameter_names, (uintptr_t)object);
}

uint32_t
mp_type_name(PyObject *object)
{
    const char *name = Py_TYPE(object)->tp_name;
    const char *dot = strrchr(name, '.');
    name = dot == NULL ? name : dot + 1;
    return mp_intern_string(mp_hook_intern(), name, strlen(name));
}

/* ---- tensors ------------------------------------------------------------ */

/* The address and device of a tensor's storage; false if it has none
 * (sparse, meta, functional tensors). */
static bool
storage_of(mp_module_state_t *state, PyObject *tensor, uint64_t *addr,
           int16_t *device)
{
    PyObject *storage =
        PyObject_CallMethodNoArgs(tensor, state->str_untyped_storage);
    PyObject *pointer =
        storage == NULL
            ? NULL
            : PyObject_CallMethodNoArgs(storage, state->str_data_ptr);
    PyObject *number =
        pointer == NULL
            ? NULL
            : PyObject_CallMethodNoArgs(tensor, state->str_get_device);
    bool found = false;
    if (number != NULL) {
        *addr = PyLong_AsUnsignedLongLong(pointer);
        long index = PyLong_AsLong(number);
        found = *addr != 0 && !PyErr_Occurred() && index >= MP_DEVICE_CPU &&
                index <= INT16_MAX;
        *device = (int16_t)index;
    }
    Py_XDECREF(storage);
    Py_XDECREF(pointer);
    Py_XDECREF(number);
    if (PyErr_Occurred()) {
        PyErr_Clear(); /* expected: tensors without storage say so by raising
                        */
    }
    return found;
}

/* Tell the shape of TENSOR, which lies at ADDR, if shapes are recorded. */
static void
tell_shape(PyObject *tensor, uint64_t addr, int16_t device)
{
    if ((mp_hook_wanted() & MP_HOOK_SHAPES) == 0) {
        return;
    }
    int64_t sizes[64];
    mp_tensor_fact_t fact = {.addr = addr, .sizes = sizes, .device = device};
    PyObject *shape = PyObject_GetAttrString(tensor, "shape");
    PyObject *dtype =
        shape == NULL ? NULL : PyObject_GetAttrString(tensor, "dtype");
    PyObject *text = dtype == NULL ? NULL : PyObject_Str(dtype);
    PyObject *bytes = text == NULL
                          ? NULL
                          : PyObject_CallMethod(tensor, "element_size", NULL);
    if (bytes != NULL && PyTuple_Check(shape) &&
        PyTuple_GET_SIZE(shape) <= (Py_ssize_t)MP_ARRAY_LENGTH(sizes)) {
        fact.dimensions = (size_t)PyTuple_GET_SIZE(shape);
        for (size_t i = 0; i < fact.dimensions; i++) {
            sizes[i] =
                PyLong_AsLongLong(PyTuple_GET_ITEM(shape, (Py_ssize_t)i));
        }
        fact.item_size = PyLong_AsSize_t(bytes);
        fact.scalar = PyUnicode_AsUTF8(text); /* "torch.float32" */
        if (!PyErr_Occurred()) {
            const char *dot = strrchr(fact.scalar, '.');
            fact.scalar = dot == NULL ? fact.scalar : dot + 1;
            mp_hook_tensor(&fact);
        }
    }
    PyErr_Clear(); /* expected: a subclass that does not let us look */
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    Py_XDECREF(text);
    Py_XDECREF(bytes);
}

static bool claim_parts(mp_module_state_t *state, PyObject *tensor,
                        mp_role_t role, uint32_t owner, int depth);

bool
mp_claim(mp_module_state_t *state, PyObject *tensor, mp_role_t role,
         uint32_t owner, int depth)
{
    uint64_t addr;
    int16_t device;
    if (storage_of(state, tensor, &addr, &device)) {
        mp_hook_role(addr, device, role, owner);
        tell_shape(tensor, addr, device);
        return true;
    }
    return depth > 0 && claim_parts(state, tensor, role, owner, depth - 1);
}

/* A tensor without memory of its own: a wrapper (DTensor, quantised) says
 * what it wraps; a sparse one has values.  (Its indices may be an input's.) */
static bool
claim_parts(mp_module_state_t *state, PyObject *tensor, mp_role_t role,
            uint32_t owner, int depth)
{
    bool claimed = false;
    PyObject *flat = PyObject_CallMethod(tensor, "__tensor_flatten__", NULL);
    if (flat == NULL) {
        PyErr_Clear();
        PyObject *values = PyObject_CallMethod(tensor, "_values", NULL);
        if (values != NULL) {
            claimed = mp_claim(state, values, role, owner, 0);
            Py_DECREF(values);
        }
        PyErr_Clear(); /* expected: neither dense nor sparse (COO) */
        return claimed;
    }
    PyObject *names = PyTuple_Check(flat) && PyTuple_GET_SIZE(flat) > 0
                          ? PySequence_List(PyTuple_GET_ITEM(flat, 0))
                          : NULL;
    for (Py_ssize_t i = 0; names != NULL && i < PyList_GET_SIZE(names); i++) {
        PyObject *part = PyObject_GetAttr(tensor, PyList_GET_ITEM(names, i));
        if (part != NULL) {
            claimed |= mp_claim(state, part, role, owner, depth);
            Py_DECREF(part);
        }
        PyErr_Clear(); /* not set up yet */
    }
    Py_XDECREF(names);
    Py_DECREF(flat);
    PyErr_Clear();
    return claimed;
}

bool
mp_is_tensor(const mp_module_state_t *state, PyObject *object)
{
    return state->tensor_type != NULL &&
           PyObject_TypeCheck(object, (PyTypeObject *)state->tensor_type);
}
