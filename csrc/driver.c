/* driver.c - the driver's memory, seen from Python: CUPTI on and off, and
 * what a recording holds of the ledger. */
#include "accounts.h"
#include "cupti_calls.h"
#include "cupti_listener.h"
#include "mem.h"
#include "state.h"

/* ---- CUPTI -----------------------------------------------------------------
 */

static PyObject *
cupti_why_not(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    const char *why = mp_cupti_calls_why_not();
    return why == NULL ? Py_NewRef(Py_None) : PyUnicode_FromString(why);
}

static PyObject *
cupti_open(PyObject *self, PyObject *path)
{
    PyObject *bytes = mp_path_bytes(path);
    if (bytes == NULL) {
        return NULL;
    }
    char error[MP_CUPTI_TEXT] = "";
    const char *text = PyBytes_AS_STRING(bytes);
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_cupti_open(text, error, sizeof(error));
    Py_END_ALLOW_THREADS Py_DECREF(bytes);
    if (status != MP_OK) {
        return mp_raise(mp_state_of(self), status,
                        error[0] != '\0' ? error : "opening CUPTI", 0, NULL);
    }
    Py_RETURN_NONE;
}

static PyObject *
cupti_start(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    int code;
    char text[MP_CUPTI_TEXT];
    char other[MP_CUPTI_TEXT];
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_cupti_start(&code, text, other);
    Py_END_ALLOW_THREADS if (status != MP_OK && status != MP_ERR_LOAD)
    {
        return mp_raise(mp_state_of(self), status, "starting CUPTI", 0, NULL);
    }
    return Py_BuildValue(
        "(ONNN)", status == MP_OK ? Py_True : Py_False, PyLong_FromLong(code),
        PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"),
        PyUnicode_DecodeUTF8(other, (Py_ssize_t)strlen(other), "replace"));
}

static PyObject *
cupti_stop(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    Py_BEGIN_ALLOW_THREADS mp_cupti_stop();
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *
cupti_settle(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    Py_BEGIN_ALLOW_THREADS mp_cupti_settle();
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
}

static PyObject *
cupti_gap(PyObject *Py_UNUSED(self), PyObject *args)
{
    int begins;
    const char *reason;
    if (!PyArg_ParseTuple(args, "ps:cupti_gap", &begins, &reason)) {
        return NULL;
    }
    mp_cupti_gap(begins != 0, reason);
    Py_RETURN_NONE;
}

static PyObject *
cupti_status(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(ignored))
{
    mp_cupti_status_t *status = mp_calloc(1, sizeof(*status));
    if (status == NULL) {
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS mp_cupti_status(status);
    Py_END_ALLOW_THREADS PyObject *dict = Py_BuildValue(
        "{sOsOsOsOsIsKsKsIsIsIsNsssssN}", "open",
        status->open ? Py_True : Py_False, "running",
        status->running ? Py_True : Py_False, "dead",
        status->dead ? Py_True : Py_False, "detached",
        status->detached ? Py_True : Py_False, "version", status->version,
        "callbacks", (unsigned long long)status->callbacks, "leaked",
        (unsigned long long)status->leaked, "enabled", status->enabled,
        "found", status->found, "wanted", status->wanted, "path",
        PyUnicode_DecodeFSDefault(status->path), "refused", status->refused,
        "unknown", status->unknown, "detached_text",
        PyUnicode_DecodeUTF8(status->detached_text,
                             (Py_ssize_t)strlen(status->detached_text),
                             "replace"));
    mp_free(status);
    return dict;
}

PyMethodDef mp_driver_methods[] = {
    {"cupti_why_not", cupti_why_not, METH_NOARGS, NULL},
    {"cupti_open", cupti_open, METH_O, NULL},
    {"cupti_start", cupti_start, METH_NOARGS, NULL},
    {"cupti_stop", cupti_stop, METH_NOARGS, NULL},
    {"cupti_settle", cupti_settle, METH_NOARGS, NULL},
    {"cupti_gap", cupti_gap, METH_VARARGS, NULL},
    {"cupti_status", cupti_status, METH_NOARGS, NULL},
    {0},
};

/* ---- the ledger of a recording ---------------------------------------------
 */

static const mp_ledger_t *
ledger_of(PyObject *recording)
{
    return mp_tracker_ledger(mp_recording_tracker(recording));
}

PyObject *
mp_driver_lives(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    size_t count;
    const mp_driver_life_t *rows = mp_ledger_rows(ledger_of(self), &count);
    return mp_rows_new(mp_state_of_type(Py_TYPE(self)), rows,
                       count * sizeof(mp_driver_life_t), self, NULL);
}

PyObject *
mp_driver_gaps(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    size_t count;
    const mp_driver_gap_t *rows = mp_ledger_gaps(ledger_of(self), &count);
    return mp_rows_new(mp_state_of_type(Py_TYPE(self)), rows,
                       count * sizeof(mp_driver_gap_t), self, NULL);
}

PyObject *
mp_driver_accounts(PyObject *self, PyObject *argument)
{
    mp_module_state_t *state = mp_state_of_type(Py_TYPE(self));
    const mp_ledger_t *ledger = ledger_of(self);
    long long event = PyLong_AsLongLong(argument);
    if (event == -1 && PyErr_Occurred()) {
        return NULL;
    }
    mp_account_t *accounts;
    size_t count;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status =
        mp_accounts_at(ledger, event, &accounts, &count);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state, status, "the driver's accounts", 0, NULL);
    }
    return mp_rows_new(state, accounts, count * sizeof(mp_account_t), NULL,
                       mp_free);
}

PyObject *
mp_driver_counts(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    mp_ledger_counts_t counts;
    mp_ledger_counts(ledger_of(self), &counts);
    PyObject *dict = PyDict_New();
#define X(name, text)                                                         \
    if (dict != NULL) {                                                       \
        PyObject *value = PyLong_FromUnsignedLongLong(counts.name);           \
        if (value == NULL || PyDict_SetItemString(dict, #name, value) != 0) { \
            Py_CLEAR(dict);                                                   \
        }                                                                     \
        Py_XDECREF(value);                                                    \
    }
    MP_LEDGER_COUNT_LIST(X)
#undef X
    return dict;
}
