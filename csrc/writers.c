/* writers.c - the Python edge of what writes files of other formats.
 *
 * Takes arrays as they lie (buffer protocol) and texts as bytes; the GIL is
 * released while a file is written.  Paths are those of temporary files: the
 * Python side puts them in their place. */
#include "csv.h"
#include "mem.h"
#include "state.h"

/* ---- tables ----------------------------------------------------------------
 */

typedef struct {
    mp_csv_column_t *columns;
    Py_buffer *views; /* of the columns; [opened] are held */
    size_t opened;
    size_t rows;
} table_t;

static void
table_clear(table_t *table)
{
    for (size_t i = 0; i < table->opened; i++) {
        mp_free((void *)table->columns[i].texts);
        PyBuffer_Release(&table->views[i]);
    }
    mp_free(table->columns);
    mp_free(table->views);
    *table = (table_t){0};
}

/* The texts of LIST, a list of bytes that outlives them; false with an
 * exception. */
static bool
texts_of(PyObject *list, mp_csv_column_t *column)
{
    Py_ssize_t count = PyList_GET_SIZE(list);
    mp_csv_text_t *texts = mp_calloc((size_t)count, sizeof(*texts));
    if (texts == NULL) {
        PyErr_NoMemory();
        return false;
    }
    column->texts = texts;
    column->texts_count = (size_t)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        char *text;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyList_GET_ITEM(list, i), &text,
                                    &length) != 0) {
            return false;
        }
        texts[i] = (mp_csv_text_t){text, (size_t)length};
    }
    return true;
}

/* Open ITEM, (values, texts or None), as the next column. */
static bool
table_add(table_t *table, PyObject *item)
{
    PyObject *values, *texts;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a column is (values, texts)");
        return false;
    }
    if (!PyArg_ParseTuple(item, "OO", &values, &texts)) {
        return false;
    }
    size_t at = table->opened;
    Py_buffer *view = &table->views[at];
    if (PyObject_GetBuffer(values, view, PyBUF_STRIDES | PyBUF_FORMAT) != 0) {
        return false;
    }
    table->opened++;
    mp_csv_column_t *column = &table->columns[at];
    *column = (mp_csv_column_t){.values = view->buf};
    const char *format = view->format;
    format += *format == '<' || *format == '=' || *format == '@';
    /* What C calls long is of 64 bits wherever memprof runs. */
    column->kind = *format;
    if (*format == 'l' || *format == 'L') {
        column->kind = *format == 'l' ? 'q' : 'Q';
    }
    size_t bytes;
    if (view->ndim != 1 || !mp_csv_kind(column->kind, &bytes) ||
        bytes != (size_t)view->itemsize ||
        (texts != Py_None && !PyList_Check(texts))) {
        PyErr_SetString(PyExc_TypeError,
                        "a column is a row of integers and a list or None");
        return false;
    }
    column->stride = view->strides[0];
    if (at > 0 && (size_t)view->shape[0] != table->rows) {
        PyErr_SetString(PyExc_ValueError, "columns differ in length");
        return false;
    }
    table->rows = (size_t)view->shape[0];
    return texts == Py_None || texts_of(texts, column);
}

static PyObject *
write_csv(PyObject *self, PyObject *args)
{
    PyObject *path, *columns;
    mp_csv_text_t header;
    Py_ssize_t header_length;
    table_t table = {0};
    if (!PyArg_ParseTuple(args, "Oy#O!:write_csv", &path, &header.text,
                          &header_length, &PyList_Type, &columns)) {
        return NULL;
    }
    header.length = (size_t)header_length;
    size_t count = (size_t)PyList_GET_SIZE(columns);
    PyObject *result = NULL;
    PyObject *bytes = mp_path_bytes(path);
    if (bytes == NULL) {
        return NULL;
    }
    table.columns = mp_calloc(count, sizeof(*table.columns));
    table.views = mp_calloc(count, sizeof(*table.views));
    if (table.columns == NULL || table.views == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (size_t i = 0; i < count; i++) {
        if (!table_add(&table, PyList_GET_ITEM(columns, (Py_ssize_t)i))) {
            goto done;
        }
    }
    int saved_errno = 0;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status =
        mp_csv_write(PyBytes_AS_STRING(bytes), &header, table.columns, count,
                     table.rows, &saved_errno);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        (void)mp_raise(mp_state_of(self), status, "writing a table",
                       saved_errno, path);
        goto done;
    }
    result = Py_NewRef(Py_None);

done:
    table_clear(&table);
    Py_DECREF(bytes);
    return result;
}

PyMethodDef mp_writers_methods[] = {
    {"write_csv", write_csv, METH_VARARGS, NULL},
    {0},
};
