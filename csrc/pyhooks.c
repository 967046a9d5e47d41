/* pyhooks.c - C callables that torch calls as hooks, and what they know.
 *
 * Hooks on root modules, on optimizers' steps and on the gradients of
 * parameters run often, so they are C.  They return None and never
 * raise into the training code.  (Modules inside a root are found on the
 * Python stack, pystack.h: a hook on every module would cost more than all
 * else.  Where stacks cannot be walked the same functions serve as torch's
 * global module hooks.)
 *
 * Names are those of modules (hook.h) and of parameters, by address.  They
 * keep no reference: Python's side forgets an object when it dies. */
#include "hook.h"
#include "names.h"
#include "pystack.h"
#include "state.h"

#include <stddef.h>
#include <string.h>
#include <structmember.h>

static mp_names_t *the_parameter_names; /* made at init, lives for ever */

static uint32_t
name_of(PyObject *object)
{
    uint32_t name = mp_names_get(mp_hook_module_names(), (uintptr_t)object);
    return name != MP_NO_INDEX
               ? name
               : mp_names_get(the_parameter_names, (uintptr_t)object);
}

static uint32_t
type_name(PyObject *object)
{
    const char *name = Py_TYPE(object)->tp_name;
    const char *dot = strrchr(name, '.');
    name = dot == NULL ? name : dot + 1;
    return mp_intern_string(mp_hook_intern(), name, strlen(name));
}

/* The training code must not notice: tell sys.unraisablehook.  Whether the
 * answer was anything but False. */
static bool
call_back(PyObject *callback, PyObject *argument)
{
    PyObject *result = PyObject_CallOneArg(callback, argument);
    if (result == NULL) {
        PyErr_WriteUnraisable(callback);
    }
    bool answer = result != NULL && result != Py_False;
    Py_XDECREF(result);
    return answer;
}

/* ---- tensors
 * ---------------------------------------------------------------- */

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

static void claim_parts(mp_module_state_t *state, PyObject *tensor,
                        mp_role_t role, uint32_t owner, int depth);

/* Claim what TENSOR lies in. */
static void
claim(mp_module_state_t *state, PyObject *tensor, mp_role_t role,
      uint32_t owner, int depth)
{
    uint64_t addr;
    int16_t device;
    if (storage_of(state, tensor, &addr, &device)) {
        mp_hook_role(addr, device, role, owner);
        tell_shape(tensor, addr, device);
    }
    else if (depth > 0) {
        claim_parts(state, tensor, role, owner, depth - 1);
    }
}

/* A tensor without memory of its own: a wrapper (DTensor, quantised) says
 * what it wraps; a sparse one has values.  (Its indices may be an input's.) */
static void
claim_parts(mp_module_state_t *state, PyObject *tensor, mp_role_t role,
            uint32_t owner, int depth)
{
    PyObject *flat = PyObject_CallMethod(tensor, "__tensor_flatten__", NULL);
    if (flat == NULL) {
        PyErr_Clear();
        PyObject *values = PyObject_CallMethod(tensor, "_values", NULL);
        if (values != NULL) {
            claim(state, values, role, owner, 0);
            Py_DECREF(values);
        }
        PyErr_Clear(); /* expected: neither dense nor sparse (COO) */
        return;
    }
    PyObject *names = PyTuple_Check(flat) && PyTuple_GET_SIZE(flat) > 0
                          ? PySequence_List(PyTuple_GET_ITEM(flat, 0))
                          : NULL;
    for (Py_ssize_t i = 0; names != NULL && i < PyList_GET_SIZE(names); i++) {
        PyObject *part = PyObject_GetAttr(tensor, PyList_GET_ITEM(names, i));
        if (part != NULL) {
            claim(state, part, role, owner, depth);
            Py_DECREF(part);
        }
        PyErr_Clear(); /* not set up yet */
    }
    Py_XDECREF(names);
    Py_DECREF(flat);
    PyErr_Clear();
}

static bool
is_tensor(const mp_module_state_t *state, PyObject *object)
{
    return state->tensor_type != NULL &&
           PyObject_TypeCheck(object, (PyTypeObject *)state->tensor_type);
}

static bool
is_true(PyObject *object, PyObject *name)
{
    PyObject *value = PyObject_GetAttr(object, name);
    bool answer = value == Py_True;
    Py_XDECREF(value);
    PyErr_Clear(); /* expected: a subclass may not let us */
    return answer;
}

static void
mark_inputs(mp_module_state_t *state, PyObject *object, uint32_t owner,
            int depth)
{
    if (is_tensor(state, object)) {
        claim(state, object, MP_ROLE_INPUT, owner, 4);
        if (state->on_leaf_input != NULL &&
            is_true(object, state->str_requires_grad) &&
            is_true(object, state->str_is_leaf)) {
            call_back(state->on_leaf_input, object);
        }
        return;
    }
    if (depth <= 0) {
        return;
    }
    if (PyTuple_Check(object)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i++) {
            mark_inputs(state, PyTuple_GET_ITEM(object, i), owner, depth - 1);
        }
    }
    else if (PyList_Check(object)) {
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); i++) {
            PyObject *item = Py_NewRef(PyList_GET_ITEM(object, i));
            mark_inputs(state, item, owner, depth - 1);
            Py_DECREF(item);
        }
    }
    else if (PyDict_Check(object)) {
        PyObject *values = PyDict_Values(object);
        if (values == NULL) {
            PyErr_Clear(); /* out of memory: these inputs stay unmarked */
            return;
        }
        mark_inputs(state, values, owner, depth);
        Py_DECREF(values);
    }
}

/* ---- the hooks of modules
 *
 * A copy or a pickle of a model takes its hooks along, and would keep ours for
 * ever.  So they are no functions, which copies share and pickles look up by
 * name, but objects that say what a copy of them is: a callable of the
 * standard library that takes anything and does nothing. */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *weak_references; /* torch._dynamo's guards make them */
    const char *name;
} module_hook_t;

/* Copies made since they were last asked for; the GIL guards it. */
static unsigned long the_hook_copies;

static bool
enough(const char *name, Py_ssize_t count, Py_ssize_t least)
{
    if (count < least) {
        PyErr_Format(PyExc_TypeError, "%s takes at least %zd arguments", name,
                     least);
        return false;
    }
    return true;
}

static PyObject *
module_pre_hook(PyObject *self, PyObject *const *args, size_t flagged_count,
                PyObject *Py_UNUSED(names))
{
    Py_ssize_t count = PyVectorcall_NARGS(flagged_count);
    if (!enough("module_pre_hook", count, 1)) {
        return NULL;
    }
    if (mp_hook_wanted() == 0) {
        Py_RETURN_NONE;
    }
    mp_module_state_t *state = mp_state_of_type(Py_TYPE(self));
    PyObject *module = args[0];
    bool root = !mp_hook_in_module();
    uint32_t name = name_of(module);
    if (name == MP_NO_INDEX && root && state->on_root_module != NULL) {
        if (!call_back(state->on_root_module, module)) {
            Py_RETURN_NONE; /* nobody will tell of its end */
        }
        name = name_of(module);
    }
    if (name == MP_NO_INDEX) {
        name = type_name(module); /* made inside a forward */
    }
    mp_hook_module_begin(name);
    if (root && count > 1) {
        static const char text[] = "argument of a root module";
        uint32_t owner =
            mp_intern_string(mp_hook_intern(), text, sizeof(text) - 1);
        /* The positional ones; and a model's own hook is given the others. */
        for (Py_ssize_t i = 1; i < count && i <= 2; i++) {
            mark_inputs(state, args[i], owner, 4);
        }
    }
    Py_RETURN_NONE;
}

/* Global while a model may have been made that has no hook: it begins the
 * first model without a name, as its own hook would have. */
static PyObject *
module_watch(PyObject *self, PyObject *const *args, size_t flagged_count,
             PyObject *names)
{
    if (!enough("module_watch", PyVectorcall_NARGS(flagged_count), 1)) {
        return NULL;
    }
    if (mp_hook_in_module() || name_of(args[0]) != MP_NO_INDEX) {
        Py_RETURN_NONE;
    }
    return module_pre_hook(self, args, flagged_count, names);
}

static PyObject *
module_hook(PyObject *Py_UNUSED(self), PyObject *const *args,
            size_t flagged_count, PyObject *Py_UNUSED(names))
{
    if (!enough("module_hook", PyVectorcall_NARGS(flagged_count), 1)) {
        return NULL;
    }
    uint32_t name = name_of(args[0]);
    mp_hook_module_end(name == MP_NO_INDEX ? type_name(args[0]) : name);
    Py_RETURN_NONE;
}

/* getattr(contextlib.nullcontext(), "__exit__"). */
static PyObject *
module_hook_reduce(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(protocol))
{
    PyObject *builtins = PyImport_ImportModule("builtins");
    PyObject *contextlib = PyImport_ImportModule("contextlib");
    PyObject *get = NULL, *nothing = NULL, *reduced = NULL;
    if (builtins != NULL && contextlib != NULL) {
        get = PyObject_GetAttrString(builtins, "getattr");
        nothing = PyObject_CallMethod(contextlib, "nullcontext", NULL);
    }
    if (get != NULL && nothing != NULL) {
        reduced = Py_BuildValue("O(Os)", get, nothing, "__exit__");
        the_hook_copies += reduced != NULL;
    }
    Py_XDECREF(builtins);
    Py_XDECREF(contextlib);
    Py_XDECREF(get);
    Py_XDECREF(nothing);
    return reduced;
}

static PyObject *
take_hook_copies(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    unsigned long copies = the_hook_copies;
    the_hook_copies = 0;
    return PyLong_FromUnsignedLong(copies);
}

static PyObject *
module_hook_name(PyObject *self, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(((module_hook_t *)self)->name);
}

/* torch._dynamo asks whether a hook is a function before it lets us say what
 * it means inside of a graph. It is one in all but its type. */
static PyObject *
module_hook_class(PyObject *Py_UNUSED(self), void *Py_UNUSED(closure))
{
    return Py_NewRef((PyObject *)&PyCFunction_Type);
}

/* torch.jit.script asks for these of each hook before anything else. */
static PyObject *
module_hook_globals(PyObject *Py_UNUSED(self), void *Py_UNUSED(closure))
{
    PyErr_SetString(
        PyExc_AttributeError,
        "memprof's hooks cannot be scripted: call torch.jit.script "
        "before memprof.profile starts, or after it has stopped");
    return NULL;
}

static PyObject *
module_hook_repr(PyObject *self)
{
    return PyUnicode_FromFormat("<memprof's %s>",
                                ((module_hook_t *)self)->name);
}

static int
module_hook_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    return 0;
}

static void
module_hook_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    PyObject_ClearWeakRefs(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef module_hook_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(module_hook_t, vectorcall),
     READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET,
     offsetof(module_hook_t, weak_references), READONLY, NULL},
    {0},
};

static PyGetSetDef module_hook_getset[] = {
    {"__class__", module_hook_class, NULL, NULL, NULL},
    {"__globals__", module_hook_globals, NULL, NULL, NULL},
    {"__name__", module_hook_name, NULL, NULL, NULL},
    {"__qualname__", module_hook_name, NULL, NULL, NULL},
    {0},
};

static PyMethodDef module_hook_methods[] = {
    {"__reduce__", module_hook_reduce, METH_NOARGS, NULL},
    {"__reduce_ex__", module_hook_reduce, METH_O, NULL},
    {0},
};

static PyType_Slot module_hook_slots[] = {
    {Py_tp_doc, "A forward hook whose copies do nothing."},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_repr, module_hook_repr},
    {Py_tp_traverse, module_hook_traverse},
    {Py_tp_dealloc, module_hook_dealloc},
    {Py_tp_members, module_hook_members},
    {Py_tp_getset, module_hook_getset},
    {Py_tp_methods, module_hook_methods},
    {0, NULL},
};

PyType_Spec mp_module_hook_spec = {
    .name = "memprof._core.ModuleHook",
    .basicsize = sizeof(module_hook_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = module_hook_slots,
};

static bool
add_module_hook(const mp_module_state_t *state, PyObject *module,
                const char *name, vectorcallfunc function)
{
    module_hook_t *hook = (module_hook_t *)state->module_hook_type->tp_alloc(
        state->module_hook_type, 0);
    if (hook == NULL) {
        return false;
    }
    hook->vectorcall = function;
    hook->name = name;
    bool added = PyModule_AddObjectRef(module, name, (PyObject *)hook) == 0;
    Py_DECREF(hook);
    return added;
}

/* ---- the hooks of optimizers and parameters
 * ------------------------------------------ */

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

void
mp_pyhooks_claim_gradient(mp_module_state_t *state, PyObject *parameter,
                          PyObject *gradient)
{
    (void)seen_before(parameter, gradient);
    claim(state, gradient, MP_ROLE_GRADIENT, name_of(parameter), 0);
}

/* Of a parameter that OPTIMIZER is about to change.  One without a name is of
 * a model that was made since the last look: Python's side finds it, once for
 * all of the optimizer's (and names what no model has). */
static uint32_t
optimized_name(mp_module_state_t *state, PyObject *optimizer,
               PyObject *parameter, bool *looked)
{
    uint32_t name = name_of(parameter);
    if (name == MP_NO_INDEX && !*looked && state->on_optimizer_state != NULL) {
        *looked = true;
        call_back(state->on_optimizer_state, optimizer);
        name = name_of(parameter);
    }
    return name;
}

/* The gradients that a step is about to use and that no hook told of: set by
 * the program, by FSDP, or moved into a bucket by DistributedDataParallel. */
static void
claim_gradients(mp_module_state_t *state, PyObject *optimizer,
                PyObject *parameters, bool *looked)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(parameters); i++) {
        PyObject *parameter = Py_NewRef(PyList_GET_ITEM(parameters, i));
        uint32_t name = optimized_name(state, optimizer, parameter, looked);
        PyObject *gradient = is_tensor(state, parameter)
                                 ? PyObject_GetAttr(parameter, state->str_grad)
                                 : NULL;
        if (gradient == NULL) {
            PyErr_Clear(); /* expected: a subclass may not let us */
        }
        else if (gradient != Py_None && !seen_before(parameter, gradient)) {
            claim(state, gradient, MP_ROLE_GRADIENT, name, 4);
        }
        Py_XDECREF(gradient);
        Py_DECREF(parameter);
    }
}

static void
claim_gradients_of(mp_module_state_t *state, PyObject *optimizer)
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

static PyObject *
optimizer_pre_hook(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (!enough("optimizer_pre_hook", count, 1)) {
        return NULL;
    }
    if (mp_hook_wanted() != 0) {
        claim_gradients_of(mp_state_of(self), args[0]);
    }
    mp_hook_optimizer_begin(type_name(args[0]));
    Py_RETURN_NONE;
}

static PyObject *
optimizer_post_hook(PyObject *self, PyObject *const *args, Py_ssize_t count)
{
    if (!enough("optimizer_post_hook", count, 1)) {
        return NULL;
    }
    mp_module_state_t *state = mp_state_of(self);
    int64_t left = mp_hook_optimizer_end(type_name(args[0]));
    if (left > 0 && mp_hook_wanted() != 0 &&
        state->on_optimizer_state != NULL) {
        call_back(state->on_optimizer_state, args[0]);
    }
    Py_RETURN_NONE;
}

static PyObject *
gradient_hook(PyObject *self, PyObject *parameter)
{
    if (mp_hook_wanted() == 0) {
        Py_RETURN_NONE;
    }
    mp_module_state_t *state = mp_state_of(self);
    PyObject *gradient = PyObject_GetAttr(parameter, state->str_grad);
    if (gradient == NULL) {
        PyErr_Clear(); /* expected: not a tensor after all */
        Py_RETURN_NONE;
    }
    if (gradient != Py_None) {
        (void)seen_before(parameter, gradient);
        claim(state, gradient, MP_ROLE_GRADIENT, name_of(parameter), 4);
    }
    Py_DECREF(gradient);
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
        uint64_t addr;
        int16_t device;
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
        if (role >= 0 && role <= MP_ROLE_INPUT &&
            storage_of(state, tensor, &addr, &device)) {
            mp_hook_role(addr, device, (mp_role_t)role, owner);
            tell_shape(tensor, addr, device);
            marked++;
        }
        Py_DECREF(item);
    }
    return PyLong_FromLong(marked);
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
    mp_names_t *names = is_tensor(state, object) ? the_parameter_names
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
    mp_names_forget(the_parameter_names, addr);
    Py_RETURN_NONE;
}

static PyObject *
forget_objects(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    mp_names_clear(mp_hook_module_names());
    mp_names_clear(the_parameter_names);
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
    {"take_hook_copies", take_hook_copies, METH_NOARGS, NULL},
    {"optimizer_pre_hook", (PyCFunction)(void (*)(void))optimizer_pre_hook,
     METH_FASTCALL, NULL},
    {"optimizer_post_hook", (PyCFunction)(void (*)(void))optimizer_post_hook,
     METH_FASTCALL, NULL},
    {"gradient_hook", gradient_hook, METH_O, NULL},
    {"mark_role", mark_role, METH_VARARGS, NULL},
    {"mark_tensors", mark_tensors, METH_O, NULL},
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
    if (the_parameter_names == NULL) {
        the_parameter_names = mp_names_new();
    }
    state->str_untyped_storage = PyUnicode_InternFromString("untyped_storage");
    state->str_data_ptr = PyUnicode_InternFromString("data_ptr");
    state->str_get_device = PyUnicode_InternFromString("get_device");
    state->str_grad = PyUnicode_InternFromString("grad");
    state->str_requires_grad = PyUnicode_InternFromString("requires_grad");
    state->str_is_leaf = PyUnicode_InternFromString("is_leaf");
    return the_parameter_names != NULL && state->str_untyped_storage != NULL &&
           state->str_data_ptr != NULL && state->str_get_device != NULL &&
           state->str_grad != NULL && state->str_requires_grad != NULL &&
           state->str_is_leaf != NULL &&
           add_module_hook(state, module, "module_pre_hook",
                           module_pre_hook) &&
           add_module_hook(state, module, "module_watch", module_watch) &&
           add_module_hook(state, module, "module_hook", module_hook);
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
