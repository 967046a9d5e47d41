/* writers.c - the Python edge of what writes files of other formats.
 *
 * Takes arrays as they lie (buffer protocol) and texts as bytes; the GIL is
 * released while a file is written.  Paths are those of temporary files: the
 * Python side puts them in their place. */
#include "csv.h"
#include "mem.h"
#include "pftrace.h"
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

/* ---- Perfetto --------------------------------------------------------------
 */

#define PFTRACE_VIEWS 6

typedef struct {
    mp_pftrace_t trace;
    mp_pftrace_text_t *texts;
    mp_pftrace_samples_t *samples;
    Py_buffer views[PFTRACE_VIEWS]; /* of the rows */
    size_t opened;
    Py_buffer *columns; /* times and values of the samples */
    size_t columns_opened;
} pftrace_arguments_t;

static void
pftrace_clear(pftrace_arguments_t *arguments)
{
    for (size_t i = 0; i < arguments->opened; i++) {
        PyBuffer_Release(&arguments->views[i]);
    }
    for (size_t i = 0; i < arguments->columns_opened; i++) {
        PyBuffer_Release(&arguments->columns[i]);
    }
    mp_free(arguments->texts);
    mp_free(arguments->samples);
    mp_free(arguments->columns);
}

/* The rows of OBJECT, of SIZE bytes each, in *ROWS; -1 with an exception. */
static Py_ssize_t
rows_of(PyObject *object, Py_buffer *view, size_t *opened, size_t size,
        const void **rows)
{
    if (PyObject_GetBuffer(object, view, PyBUF_C_CONTIGUOUS) != 0) {
        return -1;
    }
    ++*opened;
    if (view->len % (Py_ssize_t)size != 0) {
        PyErr_Format(PyExc_ValueError, "rows take %zu bytes each", size);
        return -1;
    }
    *rows = view->buf;
    return view->len / (Py_ssize_t)size;
}

static bool
pftrace_texts(pftrace_arguments_t *arguments, PyObject *list)
{
    size_t count = (size_t)PyList_GET_SIZE(list);
    arguments->texts = mp_calloc(count, sizeof(*arguments->texts));
    if (arguments->texts == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        char *text;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyList_GET_ITEM(list, (Py_ssize_t)i),
                                    &text, &length) != 0) {
            return false;
        }
        arguments->texts[i] = (mp_pftrace_text_t){text, (size_t)length};
    }
    arguments->trace.texts = arguments->texts;
    arguments->trace.texts_count = count;
    return true;
}

/* LIST has (uuid, times, values). */
static bool
pftrace_samples(pftrace_arguments_t *arguments, PyObject *list)
{
    size_t count = (size_t)PyList_GET_SIZE(list);
    arguments->samples = mp_calloc(count, sizeof(*arguments->samples));
    arguments->columns = mp_calloc(2 * count, sizeof(*arguments->columns));
    if (arguments->samples == NULL || arguments->columns == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        unsigned long long uuid;
        PyObject *columns[2];
        const void *rows[2];
        Py_ssize_t lengths[2];
        PyObject *item = PyList_GET_ITEM(list, (Py_ssize_t)i);
        if (!PyTuple_Check(item)) {
            PyErr_SetString(PyExc_TypeError,
                            "samples are (uuid, times, values)");
            return false;
        }
        if (!PyArg_ParseTuple(item, "KOO", &uuid, &columns[0], &columns[1])) {
            return false;
        }
        for (size_t j = 0; j < 2; j++) {
            lengths[j] =
                rows_of(columns[j], &arguments->columns[2 * i + j],
                        &arguments->columns_opened, sizeof(int64_t), &rows[j]);
            if (lengths[j] < 0) {
                return false;
            }
        }
        if (lengths[0] != lengths[1]) {
            PyErr_SetString(PyExc_ValueError, "as many times as values");
            return false;
        }
        arguments->samples[i] = (mp_pftrace_samples_t){
            .uuid = uuid,
            .count = (size_t)lengths[0],
            .times = rows[0],
            .values = rows[1],
        };
    }
    arguments->trace.samples = arguments->samples;
    arguments->trace.samples_count = count;
    return true;
}

static bool
pftrace_rows(pftrace_arguments_t *arguments, PyObject *objects[PFTRACE_VIEWS])
{
    static const size_t sizes[PFTRACE_VIEWS] = {
        sizeof(mp_pftrace_track_t),
        sizeof(mp_pftrace_event_t),
        sizeof(mp_pftrace_arg_t),
        sizeof(mp_pftrace_frame_t),
        sizeof(int64_t),
        sizeof(uint32_t),
    };
    const void *rows[PFTRACE_VIEWS];
    size_t counts[PFTRACE_VIEWS];
    for (size_t i = 0; i < PFTRACE_VIEWS; i++) {
        Py_ssize_t count = rows_of(objects[i], &arguments->views[i],
                                   &arguments->opened, sizes[i], &rows[i]);
        if (count < 0) {
            return false;
        }
        counts[i] = (size_t)count;
    }
    mp_pftrace_t *trace = &arguments->trace;
    trace->tracks = rows[0];
    trace->tracks_count = counts[0];
    trace->events = rows[1];
    trace->events_count = counts[1];
    trace->args = rows[2];
    trace->args_count = counts[2];
    trace->frames = rows[3];
    trace->frames_count = counts[3];
    trace->stack_offsets = rows[4];
    trace->stacks_count = counts[4] > 0 ? counts[4] - 1 : 0;
    trace->stack_frames = rows[5];
    trace->stack_frames_count = counts[5];
    return true;
}

static PyObject *
write_pftrace(PyObject *self, PyObject *args)
{
    PyObject *path, *texts, *samples, *rows[PFTRACE_VIEWS];
    if (!PyArg_ParseTuple(args, "OO!O!OOOOOO:write_pftrace", &path,
                          &PyList_Type, &texts, &PyList_Type, &samples,
                          &rows[0], &rows[1], &rows[2], &rows[3], &rows[4],
                          &rows[5])) {
        return NULL;
    }
    PyObject *bytes = mp_path_bytes(path);
    if (bytes == NULL) {
        return NULL;
    }
    pftrace_arguments_t arguments = {0};
    PyObject *result = NULL;
    if (!pftrace_texts(&arguments, texts) ||
        !pftrace_samples(&arguments, samples) ||
        !pftrace_rows(&arguments, rows)) {
        goto done;
    }
    if (!mp_pftrace_check(&arguments.trace)) {
        PyErr_SetString(PyExc_ValueError, "a row names one that is not there");
        goto done;
    }
    int saved_errno = 0;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_pftrace_write(
        &arguments.trace, PyBytes_AS_STRING(bytes), &saved_errno);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        (void)mp_raise(mp_state_of(self), status, "writing a trace",
                       saved_errno, path);
        goto done;
    }
    result = Py_NewRef(Py_None);

done:
    pftrace_clear(&arguments);
    Py_DECREF(bytes);
    return result;
}

PyMethodDef mp_writers_methods[] = {
    {"write_csv", write_csv, METH_VARARGS, NULL},
    {"write_pftrace", write_pftrace, METH_VARARGS, NULL},
    {0},
};
