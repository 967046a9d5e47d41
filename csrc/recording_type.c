/* recording_type.c - memprof._core.Recording: a window or a file, replayed. */
#include "category.h"
#include "hook.h"
#include "mem.h"
#include "op_table.h"
#include "recording.h"
#include "recording_save.h"
#include "stack_paths.h"
#include "state.h"
#include "timeline.h"
#include "totals.h"

#include <string.h>

#define MAX_DEVICES 256

typedef struct {
    PyObject_HEAD
    mp_event_t *events;
    size_t count;
    size_t reserved_bytes; /* 0: events came from mp_calloc */
    mp_tracker_t *tracker;
    mp_intern_t *intern;
    bool owns_intern; /* false: the process's own */
    bool finished;
    mp_recording_writer_t *writer; /* a stream not closed yet, or NULL */
    int stream_errno;
    uint64_t dropped;
    uint64_t damaged_bytes;
    int64_t start_ns;
    int64_t start_wall_ns;
    PyObject *info; /* str */
} recording_t;

static void
recording_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    recording_t *recording = (recording_t *)self;
    if (recording->writer != NULL) { /* nobody closed the stream */
        int saved_errno;
        (void)mp_recording_writer_close(recording->writer, "", 0,
                                        recording->dropped, &saved_errno);
    }
    if (recording->reserved_bytes != 0) {
        mp_unreserve(recording->events, recording->reserved_bytes);
    }
    else {
        mp_free(recording->events);
    }
    mp_tracker_free(recording->tracker);
    if (recording->owns_intern) {
        mp_intern_free(recording->intern);
    }
    Py_CLEAR(recording->info);
    type->tp_free(self);
    Py_DECREF(type);
}

static recording_t *
recording_new(mp_module_state_t *state)
{
    recording_t *recording = (recording_t *)state->recording_type->tp_alloc(
        state->recording_type, 0);
    if (recording == NULL) {
        return NULL;
    }
    recording->info = PyUnicode_FromString("");
    if (recording->info == NULL) {
        Py_DECREF(recording);
        return NULL;
    }
    return recording;
}

PyObject *
mp_recording_from_window(mp_module_state_t *state, mp_window_t *window)
{
    recording_t *recording = recording_new(state);
    if (recording == NULL) {
        mp_window_clear(window);
        return NULL;
    }
    recording->events = window->events;
    recording->count = window->count;
    recording->reserved_bytes = window->reserved_bytes;
    recording->tracker = window->tracker;
    recording->intern = mp_hook_intern();
    recording->finished = true;
    recording->writer = window->writer;
    recording->stream_errno = window->stream_errno;
    recording->dropped = window->dropped;
    recording->start_ns = window->start_ns;
    recording->start_wall_ns = window->start_wall_ns;
    *window = (mp_window_t){0};
    size_t count;
    mp_allocation_t *rows =
        mp_tracker_allocations_mutable(recording->tracker, &count);
    Py_BEGIN_ALLOW_THREADS mp_category_assign(rows, count, recording->intern);
    Py_END_ALLOW_THREADS return (PyObject *)recording;
}

/* The session whose steps a recording tells of: that of its first step. */
static uint64_t
session_of(const mp_event_t *events, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (events[i].kind == MP_EVENT_STEP ||
            events[i].kind == MP_EVENT_WINDOW_BEGIN) {
            return events[i].addr;
        }
    }
    return 0;
}

static mp_status_t
replay(recording_t *recording)
{
    size_t births = 1;
    for (size_t i = 0; i < recording->count; i++) {
        uint8_t kind = recording->events[i].kind;
        births += kind == MP_EVENT_ALLOC || kind == MP_EVENT_SEED_BLOCK;
    }
    mp_tracker_options_t options = {
        .session_id = session_of(recording->events, recording->count),
        .keep_dead = true,
        .allocation_budget_bytes = births * sizeof(mp_allocation_t),
    };
    mp_status_t status = mp_tracker_new(&options, &recording->tracker);
    for (size_t i = 0; status == MP_OK && i < recording->count; i++) {
        status = mp_tracker_apply(recording->tracker, &recording->events[i]);
    }
    if (status == MP_OK) {
        size_t count;
        mp_allocation_t *rows =
            mp_tracker_allocations_mutable(recording->tracker, &count);
        mp_category_assign(rows, count, recording->intern);
    }
    return status;
}

PyObject *
mp_recording_from_data(mp_module_state_t *state, mp_recording_data_t *data)
{
    recording_t *recording = recording_new(state);
    if (recording == NULL) {
        mp_recording_data_clear(data);
        return NULL;
    }
    PyObject *info = PyUnicode_DecodeUTF8(
        data->info != NULL ? data->info : "",
        (Py_ssize_t)(data->info != NULL ? data->info_length : 0), "replace");
    recording->events = data->events;
    recording->count = data->count;
    recording->reserved_bytes = data->mapped_bytes;
    recording->intern = data->intern;
    recording->owns_intern = true;
    recording->finished = data->finished;
    recording->dropped = data->dropped;
    recording->damaged_bytes = data->damaged_bytes;
    recording->start_ns = data->start_ns;
    recording->start_wall_ns = data->start_wall_ns;
    data->events = NULL;
    data->mapped_bytes = 0;
    data->intern = NULL;
    mp_recording_data_clear(data);
    if (info == NULL) {
        Py_DECREF(recording);
        return NULL;
    }
    Py_SETREF(recording->info, info);
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = replay(recording);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        Py_DECREF(recording);
        return mp_raise(state, status, "replaying the recording", 0, NULL);
    }
    return (PyObject *)recording;
}

const mp_tracker_t *
mp_recording_tracker(PyObject *recording)
{
    return ((recording_t *)recording)->tracker;
}

bool
mp_recording_source(mp_module_state_t *state, PyObject *recording,
                    mp_export_t *source)
{
    if (!PyObject_TypeCheck(recording, state->recording_type)) {
        PyErr_Format(PyExc_TypeError, "a Recording is needed, not %.100s",
                     Py_TYPE(recording)->tp_name);
        return false;
    }
    const recording_t *from = (const recording_t *)recording;
    *source = (mp_export_t){
        .events = from->events,
        .event_count = from->count,
        .intern = from->intern,
        .start_ns = from->start_ns,
        .start_wall_ns = from->start_wall_ns,
    };
    source->lives = mp_tracker_allocations(from->tracker, &source->life_count);
    source->device_count =
        mp_tracker_devices(from->tracker, source->devices, MP_EXPORT_DEVICES);
    if (source->device_count > MP_EXPORT_DEVICES) {
        source->device_count = MP_EXPORT_DEVICES;
    }
    return true;
}

/* ---- methods ---------------------------------------------------------------
 */

static PyObject *
recording_events(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    recording_t *recording = (recording_t *)self;
    return mp_rows_new(mp_state_of_type(Py_TYPE(self)), recording->events,
                       recording->count * sizeof(mp_event_t), self, NULL);
}

static PyObject *
recording_allocations(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    size_t count;
    const mp_allocation_t *rows =
        mp_tracker_allocations(((recording_t *)self)->tracker, &count);
    return mp_rows_new(mp_state_of_type(Py_TYPE(self)), rows,
                       count * sizeof(mp_allocation_t), self, NULL);
}

static PyObject *
recording_steps(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    size_t count;
    const mp_step_stats_t *rows =
        mp_tracker_steps(((recording_t *)self)->tracker, &count);
    return mp_rows_new(mp_state_of_type(Py_TYPE(self)), rows,
                       count * sizeof(mp_step_stats_t), self, NULL);
}

static PyObject *
recording_totals(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    recording_t *recording = (recording_t *)self;
    mp_module_state_t *state = mp_state_of_type(Py_TYPE(self));
    mp_total_t *rows;
    size_t count;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status =
        mp_totals_build(recording->events, recording->count, &rows, &count);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state, status, "the totals", 0, NULL);
    }
    return mp_rows_new(state, rows, count * sizeof(*rows), NULL, mp_free);
}

/* The devices that Python hears of; DEVICES has MAX_DEVICES places. */
static size_t
known_devices(const recording_t *recording, int16_t *devices)
{
    size_t count =
        mp_tracker_devices(recording->tracker, devices, MAX_DEVICES);
    return count < MAX_DEVICES ? count : MAX_DEVICES;
}

static PyObject *
recording_devices(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    int16_t devices[MAX_DEVICES];
    size_t count = known_devices((recording_t *)self, devices);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *number = PyLong_FromLong(devices[i]);
        if (number == NULL) {
            Py_CLEAR(list);
            break;
        }
        PyList_SET_ITEM(list, (Py_ssize_t)i, number);
    }
    return list;
}

static PyObject *
recording_stats(PyObject *self, PyObject *argument)
{
    int16_t device;
    mp_device_stats_t stats;
    if (!mp_device_number(argument, &device)) {
        return NULL;
    }
    if (!mp_tracker_stats(((recording_t *)self)->tracker, device, &stats)) {
        Py_RETURN_NONE;
    }
    return mp_stats_dict(&stats);
}

static PyObject *
recording_defects(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    mp_defects_t defects;
    mp_tracker_defects(((recording_t *)self)->tracker, &defects);
    return mp_defects_dict(&defects);
}

static PyObject *
recording_strings(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromUnsignedLong(
        mp_intern_strings(((recording_t *)self)->intern));
}

static PyObject *
recording_stacks(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    return PyLong_FromUnsignedLong(
        mp_intern_stacks(((recording_t *)self)->intern));
}

/* An id argument below COUNT; false with IndexError. */
static bool
id_argument(PyObject *argument, uint32_t count, const char *noun, uint32_t *id)
{
    long long number = PyLong_AsLongLong(argument);
    if (number == -1 && PyErr_Occurred()) {
        return false;
    }
    if (number < 0 || number >= count) {
        PyErr_Format(PyExc_IndexError, "no %s has the id %lld", noun, number);
        return false;
    }
    *id = (uint32_t)number;
    return true;
}

static PyObject *
recording_text(PyObject *self, PyObject *argument)
{
    const mp_intern_t *intern = ((recording_t *)self)->intern;
    uint32_t id;
    const char *text;
    size_t length;
    if (!id_argument(argument, mp_intern_strings(intern), "string", &id) ||
        !mp_intern_text(intern, id, &text, &length)) {
        return NULL;
    }
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "replace");
}

static PyObject *
recording_stack(PyObject *self, PyObject *argument)
{
    const mp_intern_t *intern = ((recording_t *)self)->intern;
    uint32_t id;
    if (!id_argument(argument, mp_intern_stacks(intern), "stack", &id)) {
        return NULL;
    }
    return mp_stack_tuple(intern, id);
}

static PyObject *
recording_stack_ids(PyObject *self, PyObject *argument)
{
    const mp_intern_t *intern = ((recording_t *)self)->intern;
    uint32_t id;
    if (!id_argument(argument, mp_intern_stacks(intern), "stack", &id)) {
        return NULL;
    }
    PyObject *list = PyList_New(0);
    mp_stack_t node;
    mp_frame_t frame;
    while (list != NULL && id != MP_NO_INDEX &&
           mp_intern_get_stack(intern, id, &node) &&
           mp_intern_get_frame(intern, node.frame, &frame)) {
        PyObject *item =
            Py_BuildValue("(III)", frame.function, frame.file, frame.line);
        if (item == NULL || PyList_Append(list, item) != 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
        id = node.parent;
    }
    if (list == NULL) {
        return NULL;
    }
    PyObject *tuple = PyList_AsTuple(list);
    Py_DECREF(list);
    return tuple;
}

static PyObject *
recording_stack_paths(PyObject *self, PyObject *ids)
{
    mp_module_state_t *state = mp_state_of_type(Py_TYPE(self));
    Py_buffer view;
    if (PyObject_GetBuffer(ids, &view, PyBUF_C_CONTIGUOUS) != 0) {
        return NULL;
    }
    size_t count = (size_t)view.len / sizeof(uint32_t);
    mp_stack_paths_t paths;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_stack_paths_build(
        ((recording_t *)self)->intern, view.buf, count, &paths);
    Py_END_ALLOW_THREADS PyBuffer_Release(&view);
    if (status != MP_OK) {
        return mp_raise(state, status, "listing the frames of stacks", 0,
                        NULL);
    }
    size_t total = (size_t)paths.offsets[count];
    PyObject *offsets = mp_rows_new(
        state, paths.offsets, (count + 1) * sizeof(int64_t), NULL, mp_free);
    PyObject *frames = mp_rows_new(state, paths.frames,
                                   total * sizeof(uint32_t), NULL, mp_free);
    if (offsets == NULL || frames == NULL) {
        Py_XDECREF(offsets);
        Py_XDECREF(frames);
        return NULL;
    }
    return Py_BuildValue("(NN)", offsets, frames);
}

static PyObject *
recording_frames(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    mp_module_state_t *state = mp_state_of_type(Py_TYPE(self));
    mp_frame_t *frames;
    size_t count;
    mp_status_t status =
        mp_stack_paths_frames(((recording_t *)self)->intern, &frames, &count);
    if (status != MP_OK) {
        return mp_raise(state, status, "listing frames", 0, NULL);
    }
    return mp_rows_new(state, frames, count * sizeof(mp_frame_t), NULL,
                       mp_free);
}

static PyObject *
recording_timeline(PyObject *self, PyObject *args)
{
    recording_t *recording = (recording_t *)self;
    mp_module_state_t *state = mp_state_of_type(Py_TYPE(self));
    PyObject *device_object;
    int kind;
    int16_t device;
    if (!PyArg_ParseTuple(args, "Oi:timeline", &device_object, &kind) ||
        !mp_device_number(device_object, &device)) {
        return NULL;
    }
    if (kind != MP_TIMELINE_TOTALS && kind != MP_TIMELINE_CATEGORY) {
        PyErr_SetString(PyExc_ValueError, "kind is 0 or 1");
        return NULL;
    }
    size_t rows_count;
    const mp_allocation_t *rows =
        mp_tracker_allocations(recording->tracker, &rows_count);
    mp_timeline_t timeline;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_timeline_build(
        recording->events, recording->count, rows, rows_count, device,
        (mp_timeline_kind_t)kind, &timeline);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state, status, "building a timeline", 0, NULL);
    }
    size_t bytes = timeline.count * sizeof(int64_t);
    PyObject *event = mp_rows_new(state, timeline.event, bytes, NULL, mp_free);
    PyObject *time =
        mp_rows_new(state, timeline.time_ns, bytes, NULL, mp_free);
    PyObject *values = mp_rows_new(state, timeline.bytes,
                                   bytes * timeline.columns, NULL, mp_free);
    if (event == NULL || time == NULL || values == NULL) {
        Py_XDECREF(event);
        Py_XDECREF(time);
        Py_XDECREF(values);
        return NULL;
    }
    return Py_BuildValue("(NNN)", event, time, values);
}

static PyObject *
recording_op_table(PyObject *self, PyObject *args)
{
    recording_t *recording = (recording_t *)self;
    mp_module_state_t *state = mp_state_of_type(Py_TYPE(self));
    unsigned int frames;
    if (!PyArg_ParseTuple(args, "I:op_table", &frames)) {
        return NULL;
    }
    int16_t devices[MAX_DEVICES];
    size_t device_count = known_devices(recording, devices);
    size_t lives_count;
    const mp_allocation_t *lives =
        mp_tracker_allocations(recording->tracker, &lives_count);
    mp_op_table_t table;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_op_table_build(
        recording->events, recording->count, lives, lives_count, devices,
        device_count, frames, recording->intern, &table);
    Py_END_ALLOW_THREADS if (status != MP_OK)
    {
        return mp_raise(state, status, "building the table of ops", 0, NULL);
    }
    PyObject *rows = mp_rows_new(
        state, table.rows, table.count * sizeof(mp_op_row_t), NULL, mp_free);
    PyObject *bytes = mp_rows_new(
        state, table.bytes, table.count * device_count * sizeof(mp_op_bytes_t),
        NULL, mp_free);
    if (rows == NULL || bytes == NULL) {
        Py_XDECREF(rows);
        Py_XDECREF(bytes);
        return NULL;
    }
    return Py_BuildValue("(NN)", rows, bytes);
}

static PyObject *
recording_save(PyObject *self, PyObject *args)
{
    recording_t *recording = (recording_t *)self;
    PyObject *path;
    PyObject *told = recording->info;
    Py_ssize_t info_length;
    if (!PyArg_ParseTuple(args, "O|U:save", &path, &told)) {
        return NULL;
    }
    const char *info = PyUnicode_AsUTF8AndSize(told, &info_length);
    PyObject *bytes = mp_path_bytes(path);
    if (info == NULL || bytes == NULL) {
        Py_XDECREF(bytes);
        return NULL;
    }
    mp_recording_content_t content = {
        .events = recording->events,
        .count = recording->count,
        .intern = recording->intern,
        .start_ns = recording->start_ns,
        .start_wall_ns = recording->start_wall_ns,
        .dropped = recording->dropped,
        .info = info,
        .info_length = (size_t)info_length,
    };
    PyObject *pinned = Py_NewRef(told);
    int saved_errno = 0;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status =
        mp_recording_save(&content, PyBytes_AS_STRING(bytes), &saved_errno);
    Py_END_ALLOW_THREADS Py_DECREF(pinned);
    Py_DECREF(bytes);
    if (status != MP_OK) {
        return mp_raise(mp_state_of_type(Py_TYPE(self)), status,
                        "saving the recording", saved_errno, path);
    }
    Py_RETURN_NONE;
}

static PyObject *
recording_close_stream(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    recording_t *recording = (recording_t *)self;
    mp_recording_writer_t *writer = recording->writer;
    Py_ssize_t info_length;
    const char *info = PyUnicode_AsUTF8AndSize(recording->info, &info_length);
    if (info == NULL) {
        return NULL;
    }
    if (writer == NULL) {
        Py_RETURN_NONE;
    }
    recording->writer = NULL;
    PyObject *pinned = Py_NewRef(recording->info);
    int saved_errno = 0;
    mp_status_t status;
    Py_BEGIN_ALLOW_THREADS status = mp_recording_writer_close(
        writer, info, (size_t)info_length, recording->dropped, &saved_errno);
    Py_END_ALLOW_THREADS Py_DECREF(pinned);
    if (status != MP_OK) {
        recording->stream_errno = saved_errno;
        return mp_raise(mp_state_of_type(Py_TYPE(self)), status,
                        "finishing the streamed recording", saved_errno, NULL);
    }
    Py_RETURN_NONE;
}

/* ---- attributes
 * -------------------------------------------------------------- */

static PyObject *
recording_get_info(PyObject *self, void *Py_UNUSED(closure))
{
    return Py_NewRef(((recording_t *)self)->info);
}

static int
recording_set_info(PyObject *self, PyObject *value, void *Py_UNUSED(closure))
{
    if (value == NULL || !PyUnicode_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "info is a str");
        return -1;
    }
    /* What UTF-8 has not is escaped, as JSON does it too: a recording must
     * not be lost for the sake of a file name. */
    PyObject *bytes =
        PyUnicode_AsEncodedString(value, "utf-8", "backslashreplace");
    PyObject *info =
        bytes == NULL
            ? NULL
            : PyUnicode_DecodeUTF8(PyBytes_AS_STRING(bytes),
                                   PyBytes_GET_SIZE(bytes), "strict");
    Py_XDECREF(bytes);
    if (info == NULL) {
        return -1;
    }
    Py_SETREF(((recording_t *)self)->info, info);
    return 0;
}

#define NUMBER_GETTER(name, expression)                                       \
    static PyObject *recording_get_##name(PyObject *self,                     \
                                          void *Py_UNUSED(closure))           \
    {                                                                         \
        const recording_t *recording = (recording_t *)self;                   \
        return PyLong_FromLongLong((long long)(expression));                  \
    }

NUMBER_GETTER(events_count, recording->count)
NUMBER_GETTER(dropped, recording->dropped)
NUMBER_GETTER(start_ns, recording->start_ns)
NUMBER_GETTER(start_wall_ns, recording->start_wall_ns)
NUMBER_GETTER(damaged_bytes, recording->damaged_bytes)
NUMBER_GETTER(stream_errno, recording->stream_errno)

static PyObject *
recording_get_finished(PyObject *self, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((recording_t *)self)->finished);
}

static PyGetSetDef recording_getset[] = {
    {"info", recording_get_info, recording_set_info, "JSON text", NULL},
    {"events_count", recording_get_events_count, NULL, NULL, NULL},
    {"dropped", recording_get_dropped, NULL, NULL, NULL},
    {"start_ns", recording_get_start_ns, NULL, NULL, NULL},
    {"start_wall_ns", recording_get_start_wall_ns, NULL, NULL, NULL},
    {"damaged_bytes", recording_get_damaged_bytes, NULL, NULL, NULL},
    {"stream_errno", recording_get_stream_errno, NULL, NULL, NULL},
    {"finished", recording_get_finished, NULL, NULL, NULL},
    {0},
};

static PyMethodDef recording_methods[] = {
    {"events", recording_events, METH_NOARGS, NULL},
    {"allocations", recording_allocations, METH_NOARGS, NULL},
    {"steps", recording_steps, METH_NOARGS, NULL},
    {"totals", recording_totals, METH_NOARGS, NULL},
    {"devices", recording_devices, METH_NOARGS, NULL},
    {"stats", recording_stats, METH_O, NULL},
    {"defects", recording_defects, METH_NOARGS, NULL},
    {"strings", recording_strings, METH_NOARGS, NULL},
    {"stacks", recording_stacks, METH_NOARGS, NULL},
    {"text", recording_text, METH_O, NULL},
    {"stack", recording_stack, METH_O, NULL},
    {"stack_ids", recording_stack_ids, METH_O, NULL},
    {"stack_paths", recording_stack_paths, METH_O, NULL},
    {"frames", recording_frames, METH_NOARGS, NULL},
    {"timeline", recording_timeline, METH_VARARGS, NULL},
    {"op_table", recording_op_table, METH_VARARGS, NULL},
    {"driver_lives", mp_driver_lives, METH_NOARGS, NULL},
    {"driver_gaps", mp_driver_gaps, METH_NOARGS, NULL},
    {"driver_accounts", mp_driver_accounts, METH_O, NULL},
    {"driver_counts", mp_driver_counts, METH_NOARGS, NULL},
    {"gpu_work", mp_gpu_work, METH_NOARGS, NULL},
    {"gpu_lost", mp_gpu_lost, METH_NOARGS, NULL},
    {"save", recording_save, METH_VARARGS, NULL},
    {"close_stream", recording_close_stream, METH_NOARGS, NULL},
    {0},
};

static PyType_Slot recording_slots[] = {
    {Py_tp_doc, "Events, names and lives of one window or file."},
    {Py_tp_dealloc, recording_dealloc},
    {Py_tp_methods, recording_methods},
    {Py_tp_getset, recording_getset},
    {0, NULL},
};

PyType_Spec mp_recording_spec = {
    .name = "memprof._core.Recording",
    .basicsize = sizeof(recording_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = recording_slots,
};
