/* kernels.c - what runs on GPUs, seen from Python: CUPTI's activity API on and
 * off, and what a recording holds of it. */
#include "cupti_listener.h"
#include "gpu_work.h"
#include "mem.h"
#include "state.h"

static PyObject *
cupti_kernels_start(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    int code;
    char text[MP_CUPTI_TEXT];
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_cupti_kernels_start(&code, text);
    Py_END_ALLOW_THREADS if (status != MP_OK && status != MP_ERR_LOAD)
    {
        return mp_raise(mp_state_of(self), status, "recording kernels", 0,
                        NULL);
    }
    return Py_BuildValue(
        "(ONN)", status == MP_OK ? Py_True : Py_False, PyLong_FromLong(code),
        PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"));
}

static PyObject *
cupti_kernels_stop(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    Py_BEGIN_ALLOW_THREADS mp_cupti_kernels_stop();
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

/* {name: number} of what was lost, without what was not. */
static PyObject *
lost_dict(const uint64_t lost[MP_GPU_LOST_END])
{
    PyObject *dict = PyDict_New();
#define X(name, number, text)                                                 \
    if (dict != NULL && lost[number] > 0) {                                   \
        PyObject *value = PyLong_FromUnsignedLongLong(lost[number]);          \
        if (value == NULL || PyDict_SetItemString(dict, text, value) != 0) {  \
            Py_CLEAR(dict);                                                   \
        }                                                                     \
        Py_XDECREF(value);                                                    \
    }
    MP_GPU_LOST_LIST(X)
#undef X
    return dict;
}

static PyObject *
cupti_kernels_status(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    mp_activity_status_t status;
    Py_BEGIN_ALLOW_THREADS mp_cupti_kernels_status(&status);
    Py_END_ALLOW_THREADS return Py_BuildValue(
        "{sOsKsKsIsLsN}", "running", status.running ? Py_True : Py_False,
        "records", (unsigned long long)status.records, "launches",
        (unsigned long long)status.launches, "outstanding", status.outstanding,
        "clock_error_ns", (long long)status.clock_error_ns, "lost",
        lost_dict(status.lost));
}

PyMethodDef mp_kernels_methods[] = {
    {"cupti_kernels_start", cupti_kernels_start, METH_NOARGS, NULL},
    {"cupti_kernels_stop", cupti_kernels_stop, METH_NOARGS, NULL},
    {"cupti_kernels_status", cupti_kernels_status, METH_NOARGS, NULL},
    {0},
};

/* ---- what a recording holds ------------------------------------------------
 */

PyObject *
mp_gpu_work(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    mp_module_state_t *state = mp_state_of_type(Py_TYPE(self));
    mp_export_t source;
    if (!mp_recording_source(state, self, &source)) {
        return NULL;
    }
    mp_gpu_work_t *rows;
    size_t count;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status =
        mp_gpu_work_rows(source.events, source.event_count, &rows, &count);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state, status, "what ran on GPUs", 0, NULL);
    }
    return mp_rows_new(state, rows, count * sizeof(*rows), NULL, mp_free);
}

PyObject *
mp_gpu_lost(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    mp_export_t source;
    if (!mp_recording_source(mp_state_of_type(Py_TYPE(self)), self, &source)) {
        return NULL;
    }
    uint64_t lost[MP_GPU_LOST_END];
    mp_gpu_work_lost(source.events, source.event_count, lost);
    return lost_dict(lost);
}
