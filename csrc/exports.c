/* exports.c - _core.export_*: a recording as files for other tools.
 *
 * Arguments in, one exporter called without the GIL, its status out. */
#include "export.h"
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

PyMethodDef mp_export_methods[] = {
    {"export_timeline", export_timeline, METH_VARARGS, NULL},
    {0},
};
