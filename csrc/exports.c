/* exports.c - _core.export_*: a recording as files for other tools.
 *
 * Arguments in, one exporter called without the GIL, its status out. */
#include "export_chrome.h"
#include "export_timeline.h"
#include "free_blocks.h"
#include "json_scan.h"
#include "mem.h"
#include "state.h"

static PyObject *
export_timeline(PyObject *module, PyObject *args)
{
    mp_module_state_t *state = mp_state_of(module);
    PyObject *recording, *device_object, *path;
    int16_t device;
    int raw, gzip;
    mp_export_t source;
    if (!PyArg_ParseTuple(args, "OOOpp:export_timeline", &recording,
                          &device_object, &path, &raw, &gzip) ||
        !mp_recording_source(state, recording, &source) ||
        !mp_device_number(device_object, &device)) {
        return NULL;
    }
    PyObject *bytes = mp_path_bytes(path);
    if (bytes == NULL) {
        return NULL;
    }
    const char *to = PyBytes_AS_STRING(bytes);
    int saved_errno = 0;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_export_timeline(
        &source, device, raw != 0, to, gzip != 0, &saved_errno);
    Py_END_ALLOW_THREADS Py_DECREF(bytes);
    if (status != MP_OK) {
        return mp_raise(state, status, "writing a timeline", saved_errno,
                        path);
    }
    Py_RETURN_NONE;
}

/* ---- the Chrome trace -----------------------------------------------------
 */

/* What the options point into. */
typedef struct {
    Py_buffer head, tail, steps, phases;
    PyObject *path, *pid_name, *libraries; /* bytes; a tuple of bytes */
    const char **library_texts;
} held_t;

static void
release(held_t *held)
{
    Py_buffer *buffers[] = {&held->head, &held->tail, &held->steps,
                            &held->phases};
    for (size_t i = 0; i < MP_ARRAY_LENGTH(buffers); i++) {
        if (buffers[i]->obj != NULL) {
            PyBuffer_Release(buffers[i]);
        }
    }
    Py_XDECREF(held->path);
    mp_free(held->library_texts);
}

static bool
spans_from(const Py_buffer *buffer, mp_spans_t *spans)
{
    if (buffer->len % (Py_ssize_t)sizeof(mp_span_t) != 0) {
        PyErr_SetString(PyExc_ValueError, "stretches are int64 [n, 5]");
        return false;
    }
    spans->spans = buffer->buf;
    spans->count = (size_t)buffer->len / sizeof(mp_span_t);
    return true;
}

static bool
libraries_from(held_t *held, mp_chrome_options_t *options)
{
    Py_ssize_t count = PyTuple_GET_SIZE(held->libraries);
    held->library_texts = mp_calloc((size_t)count + 1, sizeof(char *));
    if (held->library_texts == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        held->library_texts[i] =
            PyBytes_AsString(PyTuple_GET_ITEM(held->libraries, i));
        if (held->library_texts[i] == NULL) {
            return false;
        }
    }
    options->libraries = held->library_texts;
    options->library_count = (size_t)count;
    return true;
}

static PyObject *
write_chrome(mp_module_state_t *state, const mp_export_t *source,
             const mp_chrome_options_t *options, const held_t *held,
             PyObject *path, bool gzip)
{
    const char *to = PyBytes_AS_STRING(held->path);
    mp_chrome_result_t result = {0};
    int saved_errno = 0;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status =
        mp_export_chrome(source, options, to, gzip, &result, &saved_errno);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state, status, "writing a trace", saved_errno, path);
    }
    return Py_BuildValue("(KKK)", (unsigned long long)result.bytes,
                         (unsigned long long)result.ops_out,
                         (unsigned long long)result.memory_out);
}

static PyObject *
export_chrome(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {
        "recording",    "path",        "gzip",      "head",    "tail",
        "comma_before", "comma_after", "host",      "memory",  "full",
        "stacked",      "pid",         "pid_name",  "base_ns", "max_bytes",
        "steps",        "phases",      "libraries", NULL};
    mp_module_state_t *state = mp_state_of(module);
    PyObject *recording, *path, *result = NULL;
    int gzip, comma_before, comma_after, host, memory, full, stacked;
    unsigned int pid;
    long long base_ns;
    unsigned long long max_bytes;
    mp_export_t source;
    held_t held = {0};
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "OOpy*y*ppppppISLKy*y*O!:export_chrome", names,
            &recording, &path, &gzip, &held.head, &held.tail, &comma_before,
            &comma_after, &host, &memory, &full, &stacked, &pid,
            &held.pid_name, &base_ns, &max_bytes, &held.steps, &held.phases,
            &PyTuple_Type, &held.libraries)) {
        return NULL; /* and all buffers are given back */
    }
    mp_chrome_options_t options = {
        .head = held.head.buf,
        .tail = held.tail.buf,
        .head_length = (size_t)held.head.len,
        .tail_length = (size_t)held.tail.len,
        .comma_before = comma_before != 0,
        .comma_after = comma_after != 0,
        .host = host != 0,
        .memory = memory != 0,
        .full = full != 0,
        .stacked = stacked != 0,
        .pid = pid,
        .pid_name = PyBytes_AS_STRING(held.pid_name),
        .base_ns = base_ns,
        .max_bytes = max_bytes,
    };
    if (mp_recording_source(state, recording, &source) &&
        (held.path = mp_path_bytes(path)) != NULL &&
        spans_from(&held.steps, &options.steps) &&
        spans_from(&held.phases, &options.phases) &&
        libraries_from(&held, &options)) {
        result =
            write_chrome(state, &source, &options, &held, path, gzip != 0);
    }
    release(&held);
    return result;
}

static PyObject *
free_blocks(PyObject *module, PyObject *args)
{
    mp_module_state_t *state = mp_state_of(module);
    PyObject *recording, *device_object;
    Py_ssize_t most;
    int16_t device;
    mp_export_t source;
    if (!PyArg_ParseTuple(args, "OOn:free_blocks", &recording, &device_object,
                          &most) ||
        !mp_recording_source(state, recording, &source) ||
        !mp_device_number(device_object, &device)) {
        return NULL;
    }
    mp_free_level_t *levels;
    size_t count;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_free_blocks_build(
        &source, device, (size_t)(most > 0 ? most : 1), &levels, &count);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state, status, "looking for free blocks", 0, NULL);
    }
    PyObject *bytes = PyBytes_FromStringAndSize(
        (const char *)levels, (Py_ssize_t)(count * sizeof(*levels)));
    mp_free(levels);
    return bytes;
}

static PyObject *
trace_place(PyObject *module, PyObject *argument)
{
    (void)module;
    Py_buffer text;
    if (PyObject_GetBuffer(argument, &text, PyBUF_SIMPLE) != 0) {
        return NULL;
    }
    mp_trace_place_t place;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status =
        mp_json_trace_place(text.buf, (size_t)text.len, &place);
    Py_END_ALLOW_THREADS PyBuffer_Release(&text);
    if (status != MP_OK) {
        PyErr_SetString(PyExc_ValueError,
                        "not a Chrome trace, or not a whole one");
        return NULL;
    }
    return Py_BuildValue("(nNNLN)", (Py_ssize_t)place.place,
                         PyBool_FromLong(place.comma_before),
                         PyBool_FromLong(place.comma_after),
                         (long long)place.base_ns,
                         PyBool_FromLong(place.has_memory));
}

PyMethodDef mp_export_methods[] = {
    {"export_timeline", export_timeline, METH_VARARGS, NULL},
    {"export_chrome", (PyCFunction)(void (*)(void))export_chrome,
     METH_VARARGS | METH_KEYWORDS, NULL},
    {"free_blocks", free_blocks, METH_VARARGS, NULL},
    {"trace_place", trace_place, METH_O, NULL},
    {0},
};
