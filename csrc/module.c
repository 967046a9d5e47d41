/* module.c - memprof._core: the module, its errors, its functions.
 *
 * The hooks are process-wide, so the module is for one interpreter. */
#include "category.h"
#include "clock.h"
#include "gpu_work.h"
#include "hook.h"
#include "mem.h"
#include "op_table.h"
#include "pystack.h"
#include "shim_loader.h"
#include "state.h"
#include "total.h"

#include <dlfcn.h>
#include <string.h>

static struct PyModuleDef core_module;

mp_module_state_t *
mp_state_of(PyObject *module)
{
    return PyModule_GetState(module);
}

mp_module_state_t *
mp_state_of_type(PyTypeObject *type)
{
    return PyType_GetModuleState(type);
}

static const char *
status_text(mp_status_t status)
{
    switch (status) {
#define X(name, text)                                                         \
    case MP_##name:                                                           \
        return text;
        MP_STATUS_LIST(X)
#undef X
    default:
        return "unknown status";
    }
}

PyObject *
mp_raise(mp_module_state_t *state, mp_status_t status, const char *what,
         int saved_errno, PyObject *path)
{
    switch (status) {
    case MP_ERR_NOMEM:
        return PyErr_NoMemory();
    case MP_ERR_IO:
        errno = saved_errno;
        if (path != NULL && path != Py_None) {
            return PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
        }
        return PyErr_SetFromErrno(PyExc_OSError);
    case MP_ERR_LOAD:
    case MP_ERR_MISMATCH:
        PyErr_Format(state->shim_error, "%s",
                     what != NULL ? what : status_text(status));
        return NULL;
    default:
        if (what != NULL) {
            PyErr_Format(state->error, "%s: %s", what, status_text(status));
        }
        else {
            PyErr_SetString(state->error, status_text(status));
        }
        return NULL;
    }
}

PyObject *
mp_path_bytes(PyObject *path)
{
    PyObject *bytes = NULL;
    return PyUnicode_FSConverter(path, &bytes) ? bytes : NULL;
}

bool
mp_intern_object(mp_intern_t *intern, PyObject *text, uint32_t *id)
{
    Py_ssize_t length;
    const char *bytes = PyUnicode_AsUTF8AndSize(text, &length);
    if (bytes != NULL) {
        *id = mp_intern_string(intern, bytes, (size_t)length);
        return true;
    }
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        return false;
    }
    PyErr_Clear(); /* expected: lone surrogates */
    PyObject *escaped =
        PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace");
    if (escaped == NULL) {
        return false;
    }
    *id = mp_intern_string(intern, PyBytes_AS_STRING(escaped),
                           (size_t)PyBytes_GET_SIZE(escaped));
    Py_DECREF(escaped);
    return true;
}

/* ---- the shim
 * ---------------------------------------------------------------- */

/* What load_shim was given, once it worked. */
static struct {
    char path[4096];
    char torch_version[128];
    char stamp[256];
    uint32_t cxx11_abi;
} loaded_shim;

static PyObject *
load_shim(PyObject *self, PyObject *args)
{
    mp_module_state_t *state = mp_state_of(self);
    const char *path, *torch_version, *stamp;
    unsigned int abi;
    char error[1024] = "";
    const mp_shim_api_t *shim;
    if (!PyArg_ParseTuple(args, "sssI:load_shim", &path, &torch_version,
                          &stamp, &abi)) {
        return NULL;
    }
    if (mp_hook_shim() != NULL && strcmp(path, loaded_shim.path) == 0) {
        Py_RETURN_NONE;
    }
    if (mp_hook_shim() != NULL) {
        return mp_raise(state, MP_ERR_LOAD,
                        "another torch shim is loaded already; a process has "
                        "one",
                        0, NULL);
    }
    mp_status_t status = mp_shim_load(path, mp_hook_core_api(), torch_version,
                                      stamp, abi, &shim, error, sizeof(error));
    if (status != MP_OK) {
        return mp_raise(state, status, error, 0, NULL);
    }
    (void)snprintf(loaded_shim.path, sizeof(loaded_shim.path), "%s", path);
    (void)snprintf(loaded_shim.torch_version,
                   sizeof(loaded_shim.torch_version), "%s", torch_version);
    (void)snprintf(loaded_shim.stamp, sizeof(loaded_shim.stamp), "%s", stamp);
    loaded_shim.cxx11_abi = abi;
    mp_hook_set_shim(shim);
    Py_RETURN_NONE;
}

static PyObject *
shim_info(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    if (mp_hook_shim() == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("{sssssssI}", "path", loaded_shim.path,
                         "torch_version", loaded_shim.torch_version, "stamp",
                         loaded_shim.stamp, "cxx11_abi",
                         loaded_shim.cxx11_abi);
}

static const mp_shim_api_t *
need_shim(PyObject *self)
{
    const mp_shim_api_t *shim = mp_hook_shim();
    if (shim == NULL) {
        (void)mp_raise(mp_state_of(self), MP_ERR_LOAD,
                       "no torch shim is loaded", 0, NULL);
    }
    return shim;
}

static PyObject *
attach_cuda(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    const mp_shim_api_t *shim = need_shim(self);
    char error[512] = "";
    int outcome;
    if (shim == NULL) {
        return NULL;
    }
    /* It takes each device's mutex, and whoever holds one may be waiting for
     * the GIL. */
    Py_BEGIN_ALLOW_THREADS outcome = shim->attach_cuda(error, sizeof(error));
    Py_END_ALLOW_THREADS if (outcome == 2)
    {
        return mp_raise(mp_state_of(self), MP_ERR_LOAD, error, 0, NULL);
    }
    return PyBool_FromLong(outcome == 0);
}

static PyObject *
adopt_cpu(PyObject *self, PyObject *argument)
{
    const mp_shim_api_t *shim = need_shim(self);
    void *storage = PyLong_AsVoidPtr(argument);
    void *pointer;
    size_t bytes;
    if (shim == NULL || PyErr_Occurred()) {
        return NULL;
    }
    if (storage == NULL || !shim->adopt_cpu(storage, &pointer, &bytes) ||
        pointer == NULL) {
        Py_RETURN_NONE;
    }
    mp_hook_seed_cpu((uintptr_t)pointer, bytes);
    return Py_BuildValue("(KK)", (unsigned long long)(uintptr_t)pointer,
                         (unsigned long long)bytes);
}

/* ---- recordings
 * --------------------------------------------------------------- */

static PyObject *
load_recording(PyObject *self, PyObject *path)
{
    mp_module_state_t *state = mp_state_of(self);
    PyObject *bytes = mp_path_bytes(path);
    if (bytes == NULL) {
        return NULL;
    }
    mp_recording_data_t data;
    char error[512] = "";
    int saved_errno = 0;
    mp_status_t status;
    const char *text = PyBytes_AS_STRING(bytes);
    Py_BEGIN_ALLOW_THREADS status =
        mp_recording_read(text, &data, &saved_errno, error, sizeof(error));
    Py_END_ALLOW_THREADS Py_DECREF(bytes);
    if (status == MP_OK) {
        return mp_recording_from_data(state, &data);
    }
    if (status == MP_ERR_IO || status == MP_ERR_NOMEM || error[0] == '\0') {
        return mp_raise(state, status, NULL, saved_errno, path);
    }
    PyErr_Format(state->error, "%S: %s", path, error);
    return NULL;
}

/* ---- for tests and benchmarks
 * --------------------------------------------------- */

static PyObject *
current_stack(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    uint32_t stack = mp_hook_stack();
    if (stack == MP_NO_INDEX) {
        Py_RETURN_NONE;
    }
    return mp_stack_tuple(mp_hook_intern(), stack);
}

static bool
bench_count(PyObject *argument, long *count)
{
    *count = PyLong_AsLong(argument);
    if (*count < 1 && !PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "count is at least 1");
    }
    return PyErr_Occurred() == NULL;
}

static PyObject *
bench_stack(PyObject *Py_UNUSED(self), PyObject *argument)
{
    long count;
    if (!bench_count(argument, &count)) {
        return NULL;
    }
    int64_t begin = mp_clock_now();
    for (long i = 0; i < count; i++) {
        (void)mp_hook_stack();
    }
    return PyFloat_FromDouble((double)(mp_clock_now() - begin) /
                              (double)count);
}

static PyObject *
bench_hook(PyObject *self, PyObject *args)
{
    PyObject *count_object;
    long count;
    int with_stack;
    if (!PyArg_ParseTuple(args, "Op:bench_hook", &count_object, &with_stack) ||
        !bench_count(count_object, &count)) {
        return NULL;
    }
    uint32_t wanted = mp_hook_wanted();
    if ((wanted & MP_HOOK_CPU) == 0) {
        return mp_raise(mp_state_of(self), MP_ERR_STATE,
                        "a session that follows the CPU must run", 0, NULL);
    }
    mp_hook_set_wanted(with_stack ? wanted | MP_HOOK_STACKS
                                  : wanted & ~MP_HOOK_STACKS);
    /* Addresses that no allocator gives out; each is freed at once. */
    char *never = (char *)(uintptr_t)64;
    int64_t begin = mp_clock_now();
    for (long i = 0; i < count; i += 2) {
        mp_hook_cpu_alloc(never, 64);
        mp_hook_cpu_free(never);
    }
    int64_t end = mp_clock_now();
    mp_hook_set_wanted(wanted);
    return PyFloat_FromDouble((double)(end - begin) / (double)count);
}

static PyObject *
take_strangers(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    uint64_t unnamed, unhooked;
    mp_hook_take_strangers(&unnamed, &unhooked);
    return Py_BuildValue("(KK)", (unsigned long long)unnamed,
                         (unsigned long long)unhooked);
}

static PyObject *
now_ns(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromLongLong(mp_clock_now());
}

static PyObject *
own_bytes(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromSize_t(mp_mem_bytes());
}

/* ---- the module
 * ------------------------------------------------------------------ */

static PyMethodDef core_methods[] = {
    {"load_shim", load_shim, METH_VARARGS, NULL},
    {"shim_info", shim_info, METH_NOARGS, NULL},
    {"attach_cuda", attach_cuda, METH_NOARGS, NULL},
    {"adopt_cpu", adopt_cpu, METH_O, NULL},
    {"load", load_recording, METH_O, NULL},
    {"current_stack", current_stack, METH_NOARGS, NULL},
    {"bench_stack", bench_stack, METH_O, NULL},
    {"bench_hook", bench_hook, METH_VARARGS, NULL},
    {"take_strangers", take_strangers, METH_NOARGS, NULL},
    {"claim_gradient", mp_claim_gradient, METH_VARARGS, NULL},
    {"instances", mp_instances, METH_O, NULL},
    {"holders", mp_holders, METH_VARARGS, NULL},
    {"now_ns", now_ns, METH_NOARGS, NULL},
    {"own_bytes", own_bytes, METH_NOARGS, NULL},
    {0},
};

static bool
add_text(PyObject *dict, long number, const char *text)
{
    PyObject *key = PyLong_FromLong(number);
    PyObject *value = PyUnicode_FromString(text);
    bool added =
        key != NULL && value != NULL && PyDict_SetItem(dict, key, value) == 0;
    Py_XDECREF(key);
    Py_XDECREF(value);
    return added;
}

/* A dict {number: text} as attribute NAME, or with AS_TUPLE the texts of
 * 0, 1, 2, ... */
static bool
add_table(PyObject *module, const char *name, PyObject *dict, bool as_tuple)
{
    PyObject *object = dict;
    if (as_tuple) {
        PyObject *values = PyDict_Values(dict);
        object = values == NULL ? NULL : PyList_AsTuple(values);
        Py_XDECREF(values);
        Py_DECREF(dict);
    }
    bool added =
        object != NULL && PyModule_AddObjectRef(module, name, object) == 0;
    Py_XDECREF(object);
    return added;
}

#define ADD_TABLE(module, name, LIST, as_tuple)                               \
    do {                                                                      \
        PyObject *dict_ = PyDict_New();                                       \
        if (dict_ == NULL || !(LIST) ||                                       \
            !add_table(module, name, dict_, as_tuple)) {                      \
            return -1;                                                        \
        }                                                                     \
    } while (0)

#define X(name, number, text) &&add_text(dict_, number, text)

static int
add_tables(PyObject *module)
{
    ADD_TABLE(module, "EVENT_KINDS", true MP_EVENT_LIST(X), false);
    ADD_TABLE(module, "PHASES", true MP_PHASE_LIST(X), true);
    ADD_TABLE(module, "ROLES", true MP_ROLE_LIST(X), true);
    ADD_TABLE(module, "CATEGORIES", true MP_CATEGORY_LIST(X), true);
    ADD_TABLE(module, "REASONS", true MP_REASON_LIST(X), true);
    ADD_TABLE(module, "DRIVER_GROUPS", true MP_DRIVER_GROUP_LIST(X), true);
    ADD_TABLE(module, "DRIVER_MARKS", true MP_DRIVER_MARK_LIST(X), false);
    ADD_TABLE(module, "GPU_KINDS", true MP_GPU_KIND_LIST(X), true);
    ADD_TABLE(module, "OP_KINDS", true MP_OP_KIND_LIST(X), true);
    ADD_TABLE(module, "TOTAL_METHODS", true MP_TOTAL_METHOD_LIST(X), true);
    ADD_TABLE(module, "TOTAL_WHYS", true MP_TOTAL_WHY_LIST(X), true);
    ADD_TABLE(module, "TOTAL_CAUSES", true MP_TOTAL_CAUSE_LIST(X), true);
    ADD_TABLE(module, "TOTAL_MEMORIES", true MP_TOTAL_MEMORY_LIST(X), true);
    return 0;
}
#undef X

static void
at_exit(void)
{
    mp_hook_set_wanted(0); /* threads of torch outlive the interpreter */
}

static int
core_exec(PyObject *module)
{
    mp_module_state_t *state = mp_state_of(module);
    if (mp_hook_init() != MP_OK) {
        PyErr_NoMemory();
        return -1;
    }
    const char *why_no_stacks = NULL;
    (void)mp_pystack_init(&why_no_stacks);
    PyObject *why = why_no_stacks == NULL
                        ? Py_NewRef(Py_None)
                        : PyUnicode_FromString(why_no_stacks);
    if (why == NULL ||
        PyModule_AddObjectRef(module, "STACKS_UNAVAILABLE", why) != 0) {
        Py_XDECREF(why);
        return -1;
    }
    Py_DECREF(why);
    state->error = PyErr_NewExceptionWithDoc(
        "memprof.MemprofError",
        "A memprof failure: wrong state, damaged file, budget used up.", NULL,
        NULL);
    state->shim_error = state->error == NULL
                            ? NULL
                            : PyErr_NewExceptionWithDoc(
                                  "memprof.ShimError",
                                  "The torch shim could not be loaded or was "
                                  "built for another torch.",
                                  state->error, NULL);
    state->rows_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &mp_rows_spec, NULL);
    state->session_type = (PyTypeObject *)PyType_FromModuleAndSpec(
        module, &mp_session_spec, NULL);
    state->recording_type = (PyTypeObject *)PyType_FromModuleAndSpec(
        module, &mp_recording_spec, NULL);
    state->module_hook_type = (PyTypeObject *)PyType_FromModuleAndSpec(
        module, &mp_module_hook_spec, NULL);
    if (state->shim_error == NULL || state->rows_type == NULL ||
        state->session_type == NULL || state->recording_type == NULL ||
        state->module_hook_type == NULL || !mp_pyhooks_init(state, module) ||
        PyModule_AddObjectRef(module, "Error", state->error) != 0 ||
        PyModule_AddObjectRef(module, "ShimError", state->shim_error) != 0 ||
        PyModule_AddType(module, state->session_type) != 0 ||
        PyModule_AddType(module, state->recording_type) != 0 ||
        PyModule_AddFunctions(module, mp_pyhooks_methods) != 0 ||
        PyModule_AddFunctions(module, mp_made_events_methods) != 0 ||
        PyModule_AddFunctions(module, mp_driver_methods) != 0 ||
        PyModule_AddFunctions(module, mp_kernels_methods) != 0 ||
        PyModule_AddFunctions(module, mp_device_total_methods) != 0 ||
        PyModule_AddFunctions(module, mp_writers_methods) != 0 ||
        PyModule_AddFunctions(module, mp_export_methods) != 0 ||
        PyModule_AddFunctions(module, mp_snapshot_methods) != 0 ||
        add_tables(module) != 0) {
        return -1;
    }
    PyObject *none = PyLong_FromUnsignedLong(MP_NO_INDEX);
    if (none == NULL || PyModule_AddObjectRef(module, "NO_INDEX", none) != 0) {
        Py_XDECREF(none);
        return -1;
    }
    Py_DECREF(none);
    if (Py_AtExit(at_exit) != 0) {
        PyErr_SetString(state->error, "no room for an exit handler");
        return -1;
    }
    return 0;
}

static int
core_traverse(PyObject *module, visitproc visit, void *arg)
{
    mp_module_state_t *state = mp_state_of(module);
    Py_VISIT(state->error);
    Py_VISIT(state->shim_error);
    Py_VISIT(state->rows_type);
    Py_VISIT(state->session_type);
    Py_VISIT(state->recording_type);
    Py_VISIT(state->module_hook_type);
    return mp_pyhooks_traverse(state, visit, arg);
}

static int
core_clear(PyObject *module)
{
    mp_module_state_t *state = mp_state_of(module);
    Py_CLEAR(state->error);
    Py_CLEAR(state->shim_error);
    Py_CLEAR(state->rows_type);
    Py_CLEAR(state->session_type);
    Py_CLEAR(state->recording_type);
    Py_CLEAR(state->module_hook_type);
    mp_pyhooks_clear(state);
    return 0;
}

static void
core_free(void *module)
{
    (void)core_clear(module);
}

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, core_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
    {0, NULL},
};

static struct PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "memprof._core",
    .m_doc = "memprof's core: hooks, log, tracker, recordings.",
    .m_size = sizeof(mp_module_state_t),
    .m_methods = core_methods,
    .m_slots = core_slots,
    .m_traverse = core_traverse,
    .m_clear = core_clear,
    .m_free = core_free,
};

PyMODINIT_FUNC
PyInit__core(void)
{
    return PyModuleDef_Init(&core_module);
}
