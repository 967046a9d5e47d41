/* snapshots.c - _core.export_snapshot, load_snapshot, cut.
 *
 * Arguments in, one function called without the GIL, its result out. */
#include "cut_recording.h"
#include "export_snapshot.h"
#include "import_snapshot.h"
#include "mem.h"
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static PyObject *
export_snapshot(PyObject *module, PyObject *args)
{
    mp_module_state_t *state = mp_state_of(module);
    PyObject *recording, *path, *info_object;
    const char *version;
    unsigned long long most;
    Py_ssize_t info_length;
    mp_export_t source;
    if (!PyArg_ParseTuple(args, "OOUsK:export_snapshot", &recording, &path,
                          &info_object, &version, &most) ||
        !mp_recording_source(state, recording, &source)) {
        return NULL;
    }
    const char *info = PyUnicode_AsUTF8AndSize(info_object, &info_length);
    PyObject *bytes = info == NULL ? NULL : mp_path_bytes(path);
    if (bytes == NULL) {
        return NULL;
    }
    mp_snapshot_options_t options = {.version = version,
                                     .info = info,
                                     .info_length = (size_t)info_length,
                                     .most_bytes = most};
    const char *to = PyBytes_AS_STRING(bytes);
    uint64_t written = 0;
    int saved_errno = 0;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status =
        mp_export_snapshot(&source, &options, to, &written, &saved_errno);
    Py_END_ALLOW_THREADS Py_DECREF(bytes);
    if (status == MP_ERR_FULL) { /* the caller says what to do */
        Py_RETURN_NONE;
    }
    if (status == MP_ERR_ARG) {
        PyErr_SetString(state->error,
                        "an address, a size or a stream of this recording is "
                        "2^53 or more: the page cannot show it");
        return NULL;
    }
    if (status != MP_OK) {
        return mp_raise(state, status, "writing a snapshot", saved_errno,
                        path);
    }
    return PyLong_FromUnsignedLongLong(written);
}

/* ---- reading -------------------------------------------------------------
 */

/* All bytes of a regular file. */
static mp_status_t
read_file(const char *path, uint8_t **out, size_t *length, int *saved_errno)
{
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat facts;
    if (file < 0 || fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) {
        *saved_errno = file >= 0 && errno == 0 ? EINVAL : errno;
        if (file >= 0) {
            close(file);
        }
        return MP_ERR_IO;
    }
    size_t size = (size_t)facts.st_size, got = 0;
    uint8_t *bytes = mp_realloc(NULL, size + 1);
    mp_status_t status = bytes == NULL ? MP_ERR_NOMEM : MP_OK;
    while (status == MP_OK && got < size) {
        ssize_t part = read(file, bytes + got, size - got);
        if (part > 0) {
            got += (size_t)part;
        }
        else if (part == 0) {
            break;
        }
        else if (errno != EINTR) {
            *saved_errno = errno;
            status = MP_ERR_IO;
        }
    }
    close(file);
    if (status != MP_OK) {
        mp_free(bytes);
        return status;
    }
    *out = bytes;
    *length = got;
    return MP_OK;
}

static PyObject *
facts_dict(const mp_import_facts_t *facts, const char *error)
{
#define NUMBER(value) ((unsigned long long)(value))
#define TRUTH(value) ((value) ? Py_True : Py_False)
    return Py_BuildValue(
        "{sOsOsOsOsOsOsOsOsKsKsKsKsKsKss}", "whole", TRUTH(facts->whole),
        "ours", TRUTH(facts->ours), "segments", TRUTH(facts->has_segments),
        "traces", TRUTH(facts->has_traces), "times", TRUTH(facts->has_times),
        "stacks", TRUTH(facts->has_stacks), "categories",
        TRUTH(facts->has_categories), "host", TRUTH(facts->has_host),
        "good_bytes", NUMBER(facts->good_bytes), "entries",
        NUMBER(facts->entries), "unknown", NUMBER(facts->unknown), "older",
        NUMBER(facts->older), "guessed", NUMBER(facts->guessed), "left_out",
        NUMBER(facts->left_out), "error", error);
#undef NUMBER
#undef TRUTH
}

static PyObject *
load_snapshot(PyObject *module, PyObject *path)
{
    mp_module_state_t *state = mp_state_of(module);
    PyObject *name = mp_path_bytes(path);
    if (name == NULL) {
        return NULL;
    }
    mp_recording_data_t data;
    mp_import_facts_t facts;
    char error[512] = "";
    uint8_t *bytes = NULL;
    size_t length = 0;
    int saved_errno = 0;
    mp_status_t status;
    const char *from = PyBytes_AS_STRING(name);
    Py_BEGIN_ALLOW_THREADS status =
        read_file(from, &bytes, &length, &saved_errno);
    if (status == MP_OK) {
        status = mp_import_snapshot(bytes, length, &data, &facts, error,
                                    sizeof(error));
    }
    mp_free(bytes);
    Py_END_ALLOW_THREADS Py_DECREF(name);
    if (status == MP_OK) {
        PyObject *recording = mp_recording_from_data(state, &data);
        PyObject *dict = recording == NULL ? NULL : facts_dict(&facts, error);
        if (dict == NULL) {
            Py_XDECREF(recording);
            return NULL;
        }
        return Py_BuildValue("(NN)", recording, dict);
    }
    if (status == MP_ERR_IO || status == MP_ERR_NOMEM || error[0] == '\0') {
        return mp_raise(state, status, "reading a snapshot", saved_errno,
                        path);
    }
    PyErr_Format(state->error, "%S: %s", path, error);
    return NULL;
}

/* ---- cutting -------------------------------------------------------------
 */

static PyObject *
cut(PyObject *module, PyObject *args)
{
    mp_module_state_t *state = mp_state_of(module);
    PyObject *recording, *keep_object;
    Py_ssize_t begin, end;
    mp_export_t source;
    Py_buffer keep = {0};
    if (!PyArg_ParseTuple(args, "OnnO:cut", &recording, &begin, &end,
                          &keep_object) ||
        !mp_recording_source(state, recording, &source)) {
        return NULL;
    }
    if (begin < 0 || end < begin || (size_t)end > source.event_count) {
        PyErr_SetString(PyExc_ValueError, "no such events");
        return NULL;
    }
    if (keep_object != Py_None) {
        if (PyObject_GetBuffer(keep_object, &keep, PyBUF_SIMPLE) != 0) {
            return NULL;
        }
        if ((size_t)keep.len != source.life_count) {
            PyBuffer_Release(&keep);
            PyErr_SetString(PyExc_ValueError, "a byte for each life");
            return NULL;
        }
    }
    size_t count = (size_t)(end - begin);
    int64_t *places = mp_calloc(count + 1, sizeof(*places));
    mp_recording_data_t data;
    mp_cut_t part = {.begin = (size_t)begin,
                     .end = (size_t)end,
                     .keep = keep.buf,
                     .places = places};
    mp_status_t status = places == NULL ? MP_ERR_NOMEM : MP_OK;
    Py_BEGIN_ALLOW_THREADS if (status == MP_OK)
    {
        status = mp_cut_recording(&source, &part, &data);
    }
    Py_END_ALLOW_THREADS if (keep.obj != NULL)
    {
        PyBuffer_Release(&keep);
    }
    if (status != MP_OK) {
        mp_free(places);
        return mp_raise(state, status, "cutting a recording", 0, NULL);
    }
    PyObject *made = mp_recording_from_data(state, &data);
    PyObject *rows =
        mp_rows_new(state, places, count * sizeof(*places), NULL, mp_free);
    if (made == NULL || rows == NULL) {
        Py_XDECREF(made);
        Py_XDECREF(rows);
        return NULL;
    }
    return Py_BuildValue("(NN)", made, rows);
}

PyMethodDef mp_snapshot_methods[] = {
    {"export_snapshot", export_snapshot, METH_VARARGS, NULL},
    {"load_snapshot", load_snapshot, METH_O, NULL},
    {"cut", cut, METH_VARARGS, NULL},
    {0},
};
