/* variables.c - the variables of frames, without making a dict of them.
 *
 * `frame.f_locals` would keep every variable alive for as long as the frame
 * runs (up to Python 3.12).  These are plain reads under the GIL: a thread
 * that does not have it stands still.  Values on a frame's evaluation stack
 * cannot be read: only the interpreter knows how many there are. */
#include "holders.h"
#include "pystack_layout.h"

#include <string.h>

/* torch's files from which Python enters the autograd engine. */
static const char *const engine_callers[] = {
    "torch/autograd/__init__.py",
    "torch/autograd/graph.py",
};

#ifndef MP_PYSTACK_UNSUPPORTED

static PyObject *
slot_of(const mp_pyframe_t *frame, Py_ssize_t i)
{
#if PY_VERSION_HEX >= 0x030E0000
    return (PyObject *)(frame->localsplus[i].bits & ~(uintptr_t)3);
#elif PY_VERSION_HEX >= 0x030B0000
    return frame->localsplus[i];
#else
    return frame->f_localsplus[i];
#endif
}

static void
variables(const mp_pyframe_t *frame, const PyCodeObject *code,
          mp_variable_t say, void *context)
{
#if PY_VERSION_HEX >= 0x030B0000
    for (Py_ssize_t i = 0; i < code->co_nlocalsplus; i++) {
        PyObject *value = slot_of(frame, i);
        if (value != NULL) {
            say(context, PyTuple_GET_ITEM(code->co_localsplusnames, i), value);
        }
    }
#else
    PyObject *const names[] = {code->co_varnames, code->co_cellvars,
                               code->co_freevars};
    Py_ssize_t slot = 0;
    for (size_t part = 0; part < 3; part++) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names[part]); i++) {
            PyObject *value = slot_of(frame, slot++);
            if (value != NULL) {
                say(context, PyTuple_GET_ITEM(names[part], i), value);
            }
        }
    }
#endif
}

static mp_pyframe_t *
frame_of(PyObject *frame)
{
#if PY_VERSION_HEX >= 0x030B0000
    return ((PyFrameObject *)frame)->f_frame;
#else
    return (mp_pyframe_t *)frame;
#endif
}

static bool
starts_or_ends(PyObject *text, PyObject *part, int end)
{
    return PyUnicode_Check(text) &&
           PyUnicode_Tailmatch(text, part, 0, PY_SSIZE_T_MAX, end) == 1;
}

static bool
enters_engine(PyObject *file)
{
    for (size_t i = 0; i < MP_ARRAY_LENGTH(engine_callers); i++) {
        PyObject *caller = PyUnicode_FromString(engine_callers[i]);
        bool found = caller != NULL && starts_or_ends(file, caller, 1);
        Py_XDECREF(caller);
        if (found) {
            return true;
        }
    }
    return false;
}

typedef struct {
    mp_heap_t *heap;
    uint32_t holder;
} slots_t;

static void
link_variable(void *context, PyObject *name, PyObject *value)
{
    slots_t *slots = context;
    uint32_t held = mp_heap_find(slots->heap, value);
    if (held != MP_NO_INDEX) {
        mp_heap_link(slots->heap, slots->holder, held, name);
    }
}

static void
add_frame(mp_heap_t *heap, PyThreadState *thread, mp_pyframe_t *frame)
{
    const PyCodeObject *code = mp_pyframe_code(frame);
    if (code == NULL) {
        return;
    }
    heap->in_backward |= enters_engine(code->co_filename);
    bool ours = starts_or_ends(code->co_filename, heap->ours, -1);
#if PY_VERSION_HEX < 0x030B0000
    /* The frame is an object, which the collector knows. */
    uint32_t known = mp_heap_find(heap, (PyObject *)frame);
    if (known != MP_NO_INDEX) {
        heap->nodes[known].ours = true;
    }
#endif
    if (ours) {
        return;
    }
    uint32_t node = mp_heap_add(heap, NULL, MP_NODE_RUNNING);
    if (node != MP_NO_INDEX) {
        heap->nodes[node].title = Py_NewRef(mp_pycode_name(code));
        heap->nodes[node].thread = thread->thread_id;
        slots_t slots = {heap, node};
        variables(frame, code, link_variable, &slots);
    }
}

void
mp_frame_variables(PyObject *object, mp_variable_t say, void *context)
{
    mp_pyframe_t *frame = frame_of(object);
    const PyCodeObject *code = frame == NULL ? NULL : mp_pyframe_code(frame);
    if (code != NULL) {
        variables(frame, code, say, context);
    }
}

PyObject *
mp_frame_name(PyObject *object)
{
    mp_pyframe_t *frame = frame_of(object);
    const PyCodeObject *code = frame == NULL ? NULL : mp_pyframe_code(frame);
    return code == NULL ? NULL : mp_pycode_name(code);
}

void
mp_generator_variables(PyObject *object, mp_variable_t say, void *context)
{
#if PY_VERSION_HEX >= 0x030E0000
    (void)object, (void)say, (void)context;
#else
    PyGenObject *generator = (PyGenObject *)object;
#if PY_VERSION_HEX >= 0x030B0000
    if (generator->gi_frame_state < FRAME_EXECUTING) {
        mp_pyframe_t *frame = (mp_pyframe_t *)generator->gi_iframe;
        variables(frame, (const PyCodeObject *)mp_pyframe_executable(frame),
                  say, context);
    }
#else
    (void)say, (void)context, (void)generator; /* its frame is an object */
#endif
#endif
}

static void
add_handled(mp_heap_t *heap, PyThreadState *thread)
{
    for (const _PyErr_StackItem *item = thread->exc_info; item != NULL;
         item = item->previous_item) {
        uint32_t held = item->exc_value == NULL
                            ? MP_NO_INDEX
                            : mp_heap_find(heap, item->exc_value);
        if (held != MP_NO_INDEX) {
            uint32_t node = mp_heap_add(heap, NULL, MP_NODE_HANDLED);
            if (node != MP_NO_INDEX) {
                heap->nodes[node].thread = thread->thread_id;
                mp_heap_link(heap, node, held, NULL);
            }
        }
    }
}

void
mp_heap_add_threads(mp_heap_t *heap)
{
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    for (PyThreadState *thread = PyInterpreterState_ThreadHead(interpreter);
         thread != NULL && !heap->failed;
         thread = PyThreadState_Next(thread)) {
        for (mp_pyframe_t *frame = mp_pyframe_first(thread); frame != NULL;
             frame = mp_pyframe_next(frame)) {
            add_frame(heap, thread, frame);
        }
        add_handled(heap, thread);
    }
}

#else /* frames of this Python are not known: see pystack_layout.h */

void
mp_frame_variables(PyObject *object, mp_variable_t say, void *context)
{
    (void)object, (void)say, (void)context;
}

void
mp_generator_variables(PyObject *object, mp_variable_t say, void *context)
{
    (void)object, (void)say, (void)context;
}

PyObject *
mp_frame_name(PyObject *object)
{
    (void)object;
    return NULL;
}

void
mp_heap_add_threads(mp_heap_t *heap)
{
    heap->in_backward = true; /* for all that is known */
    (void)engine_callers;
}

#endif
