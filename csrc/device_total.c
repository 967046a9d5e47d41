/* device_total.c - what a device holds now, for whoever asks from Python. */
#include "measure.h"
#include "mem.h"
#include "state.h"

static PyObject *
device_total(PyObject *self, PyObject *argument)
{
    int16_t device;
    if (!mp_device_number(argument, &device)) {
        return NULL;
    }
    mp_total_t *row = mp_calloc(1, sizeof(*row));
    if (row == NULL) {
        return PyErr_NoMemory();
    }
    /* It may take milliseconds. */
    Py_BEGIN_ALLOW_THREADS mp_measure_device(device, row);
    Py_END_ALLOW_THREADS return mp_rows_new(mp_state_of(self), row,
                                            sizeof(*row), NULL, mp_free);
}

static PyObject *
request_totals(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    mp_totals_request();
    Py_RETURN_NONE;
}

PyMethodDef mp_device_total_methods[] = {
    {"device_total", device_total, METH_O, NULL},
    {"request_totals", request_totals, METH_NOARGS, NULL},
    {0},
};
