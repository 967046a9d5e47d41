/* module_hooks.c - what torch calls before and after a root module's forward.
 *
 * (Modules inside a root are found on the Python stack, pystack.h: a hook on
 * every module would cost more than all else.  Where stacks cannot be walked
 * the same hooks serve as torch's global ones.) */
#include "claims.h"
#include "hook.h"
#include "pyhooks.h"
#include "state.h"

#include <stddef.h>
#include <structmember.h>

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
    if (mp_is_tensor(state, object)) {
        (void)mp_claim(state, object, MP_ROLE_INPUT, owner, 4);
        if (state->on_leaf_input != NULL &&
            is_true(object, state->str_requires_grad) &&
            is_true(object, state->str_is_leaf)) {
            mp_call_back(state->on_leaf_input, object);
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

/* ---- the hooks -----------------------------------------------------------
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

static PyObject *
module_pre_hook(PyObject *self, PyObject *const *args, size_t flagged_count,
                PyObject *Py_UNUSED(names))
{
    Py_ssize_t count = PyVectorcall_NARGS(flagged_count);
    if (!mp_enough("module_pre_hook", count, 1)) {
        return NULL;
    }
    if (mp_hook_wanted() == 0) {
        Py_RETURN_NONE;
    }
    mp_module_state_t *state = mp_state_of_type(Py_TYPE(self));
    PyObject *module = args[0];
    bool root = !mp_hook_in_module();
    uint32_t name = mp_name_of(module);
    if (name == MP_NO_INDEX && root && state->on_root_module != NULL) {
        if (!mp_call_back(state->on_root_module, module)) {
            Py_RETURN_NONE; /* nobody will tell of its end */
        }
        name = mp_name_of(module);
    }
    if (name == MP_NO_INDEX) {
        name = mp_type_name(module); /* made inside a forward */
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
    if (!mp_enough("module_watch", PyVectorcall_NARGS(flagged_count), 1)) {
        return NULL;
    }
    if (mp_hook_in_module() || mp_name_of(args[0]) != MP_NO_INDEX) {
        Py_RETURN_NONE;
    }
    return module_pre_hook(self, args, flagged_count, names);
}

static PyObject *
module_hook(PyObject *Py_UNUSED(self), PyObject *const *args,
            size_t flagged_count, PyObject *Py_UNUSED(names))
{
    if (!mp_enough("module_hook", PyVectorcall_NARGS(flagged_count), 1)) {
        return NULL;
    }
    uint32_t name = mp_name_of(args[0]);
    mp_hook_module_end(name == MP_NO_INDEX ? mp_type_name(args[0]) : name);
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

PyObject *
mp_take_hook_copies(PyObject *Py_UNUSED(core), PyObject *Py_UNUSED(ignored))
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

bool
mp_module_hooks_init(const mp_module_state_t *state, PyObject *module)
{
    return add_module_hook(state, module, "module_pre_hook",
                           module_pre_hook) &&
           add_module_hook(state, module, "module_watch", module_watch) &&
           add_module_hook(state, module, "module_hook", module_hook);
}
