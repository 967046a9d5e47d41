/* pystack_layout.h - where each Python keeps a thread's frames.
 *
 * For pystack.c, pystack_code.c, gradients.c and variables.c.  One small set
 * of accessors per version; all of them are plain reads.  They take no
 * reference and need no GIL, as long as the thread state is the calling
 * thread's own; another's frames stand still for who holds the GIL.
 *
 *   mp_pyframe_first   innermost frame of a thread, or NULL
 *   mp_pyframe_next    its caller, or NULL
 *   mp_pyframe_code    its code object; NULL: not a frame of Python code
 *   mp_pyframe_index   the instruction it is at, in code units
 *   mp_pyframe_self    its first argument, borrowed; NULL: none, or deleted
 *
 * A frame without code is one that the interpreter pushed for itself, or one
 * that is incomplete: its function is still making its cells or generator.
 * Python's own tracebacks leave the same frames out. */
#ifndef MP_PYSTACK_LAYOUT_H
#define MP_PYSTACK_LAYOUT_H

#include "common.h"

#include <Python.h>

#if defined(PYPY_VERSION)
#define MP_PYSTACK_UNSUPPORTED "PyPy has no frames that could be walked"
#elif defined(Py_GIL_DISABLED)
#define MP_PYSTACK_UNSUPPORTED                                                \
    "a free-threaded Python: its frames cannot be walked yet"
#elif PY_VERSION_HEX < 0x030A0000 || PY_VERSION_HEX >= 0x030F0000
#define MP_PYSTACK_UNSUPPORTED                                                \
    "Python " PY_VERSION ": this memprof knows the frames of 3.10 to 3.14"
#elif defined(Py_STACKREF_DEBUG)
#define MP_PYSTACK_UNSUPPORTED                                                \
    "a Python built with Py_STACKREF_DEBUG hides its frames' code"
#endif

#ifndef MP_PYSTACK_UNSUPPORTED

#if PY_VERSION_HEX >= 0x030B0000
/* CPython's internal headers hold the layout of its frames, and of 3.13 and
 * later also the table it publishes for debuggers. */
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
#endif
#define Py_BUILD_CORE
#if PY_VERSION_HEX >= 0x030E0000
#include <internal/pycore_interpframe.h>
#else
#include <internal/pycore_frame.h>
#endif
#if PY_VERSION_HEX >= 0x030D0000
#include <internal/pycore_runtime.h>
#endif
#undef Py_BUILD_CORE
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#else
#include <frameobject.h>
#endif

/* -- frames --------------------------------------------------------------- */

#if PY_VERSION_HEX >= 0x030B0000

typedef struct _PyInterpreterFrame mp_pyframe_t;

/* From here on frames are the interpreter's own (3.12: "C stack"; 3.14 has
 * two kinds).  Their code is no code object in every version, so the owner
 * is asked first. */
#define MP_PYFRAME_OWNED_BY_INTERPRETER 3

static inline mp_pyframe_t *
mp_pyframe_next(const mp_pyframe_t *frame)
{
    return frame->previous;
}

/* The instruction in bytes from the start of CODE. */
static inline ptrdiff_t
mp_pyframe_offset(const mp_pyframe_t *frame, const PyCodeObject *code)
{
#if PY_VERSION_HEX >= 0x030D0000
    const char *at = (const char *)frame->instr_ptr;
#else
    const char *at = (const char *)frame->prev_instr;
#endif
    return at - code->co_code_adaptive;
}

static inline int32_t
mp_pyframe_index(const mp_pyframe_t *frame, const PyCodeObject *code)
{
    return (int32_t)(mp_pyframe_offset(frame, code) /
                     (ptrdiff_t)sizeof(uint16_t));
}

/* Where FRAME is in its code: equal at equal instructions, no more. */
static inline uintptr_t
mp_pyframe_at(const mp_pyframe_t *frame)
{
#if PY_VERSION_HEX >= 0x030D0000
    return (uintptr_t)frame->instr_ptr;
#else
    return (uintptr_t)frame->prev_instr;
#endif
}

/* The code pointer as it lies there; NULL: not a frame of Python's code. */
static inline const void *
mp_pyframe_executable(const mp_pyframe_t *frame)
{
    if ((unsigned char)frame->owner >= MP_PYFRAME_OWNED_BY_INTERPRETER) {
        return NULL;
    }
#if PY_VERSION_HEX >= 0x030E0000
    /* The low bits of a stack reference are tags. */
    return (const void *)(frame->f_executable.bits & ~(uintptr_t)3);
#elif PY_VERSION_HEX >= 0x030D0000
    return frame->f_executable;
#else
    return frame->f_code;
#endif
}

/* Frames lie on the thread's own stack, inner ones higher up; only those of
 * generators and of the next chunk of that stack do not. */
static inline bool
mp_pyframe_is_inside(const void *frame, const void *other)
{
    return (uintptr_t)frame > (uintptr_t)other;
}

static inline mp_pyframe_t *
mp_pyframe_first(const PyThreadState *thread)
{
#if PY_VERSION_HEX >= 0x030D0000
    return thread->current_frame;
#else
    return thread->cframe->current_frame;
#endif
}

static inline PyCodeObject *
mp_pyframe_code(const mp_pyframe_t *frame)
{
    PyObject *executable = (PyObject *)mp_pyframe_executable(frame);
#if PY_VERSION_HEX >= 0x030D0000
    if (executable == NULL || !PyCode_Check(executable)) {
        return NULL;
    }
#else
    if (executable == NULL) {
        return NULL;
    }
#endif
    PyCodeObject *code = (PyCodeObject *)executable;
    if ((unsigned char)frame->owner != FRAME_OWNED_BY_GENERATOR &&
        mp_pyframe_offset(frame, code) <
            code->_co_firsttraceable * (ptrdiff_t)sizeof(uint16_t)) {
        return NULL;
    }
    return code;
}

#else /* 3.10 */

typedef struct _frame mp_pyframe_t;

static inline mp_pyframe_t *
mp_pyframe_first(const PyThreadState *thread)
{
    return thread->frame;
}

static inline mp_pyframe_t *
mp_pyframe_next(const mp_pyframe_t *frame)
{
    return frame->f_back;
}

static inline PyCodeObject *
mp_pyframe_code(const mp_pyframe_t *frame)
{
    return frame->f_code;
}

static inline uintptr_t
mp_pyframe_at(const mp_pyframe_t *frame)
{
    return (uintptr_t)frame->f_lasti;
}

static inline const void *
mp_pyframe_executable(const mp_pyframe_t *frame)
{
    return frame->f_code;
}

/* Frames are objects of the heap, in no order. */
static inline bool
mp_pyframe_is_inside(const void *frame, const void *other)
{
    (void)frame;
    (void)other;
    return false;
}

static inline int32_t
mp_pyframe_index(const mp_pyframe_t *frame, const PyCodeObject *code)
{
    (void)code;
    return frame->f_lasti; /* -1: not started */
}

#endif

/* What a slot of a frame holds, out of the cell that a closure made of it. */
static inline PyObject *
mp_pyslot_value(PyObject *slot)
{
    if (slot != NULL && Py_TYPE(slot) == &PyCell_Type) {
        return ((PyCellObject *)slot)->ob_ref;
    }
    return slot;
}

static inline PyObject *
mp_pyframe_self(const mp_pyframe_t *frame, const PyCodeObject *code)
{
    if (code->co_argcount < 1) {
        return NULL;
    }
#if PY_VERSION_HEX >= 0x030E0000
    return mp_pyslot_value(
        (PyObject *)(frame->localsplus[0].bits & ~(uintptr_t)3));
#elif PY_VERSION_HEX >= 0x030B0000
    return mp_pyslot_value(frame->localsplus[0]);
#else
    /* An argument that became a cell lies among the cells. */
    for (Py_ssize_t i = 0;
         code->co_cell2arg != NULL && i < PyTuple_GET_SIZE(code->co_cellvars);
         i++) {
        if (code->co_cell2arg[i] == 0) {
            return mp_pyslot_value(frame->f_localsplus[code->co_nlocals + i]);
        }
    }
    return mp_pyslot_value(frame->f_localsplus[0]);
#endif
}

/* -- code objects --------------------------------------------------------- */

/* The name people know a function by: the qualified one where there is. */
static inline PyObject *
mp_pycode_name(const PyCodeObject *code)
{
#if PY_VERSION_HEX >= 0x030B0000
    return code->co_qualname;
#else
    return code->co_name;
#endif
}

/* Up to 3.11 a text may still lack its data: made by a very old API. */
static inline bool
mp_pytext_is_ready(PyObject *text)
{
#if PY_VERSION_HEX >= 0x030C0000
    return text != NULL;
#else
    return text != NULL && PyUnicode_IS_READY(text);
#endif
}

/* How long the bytecode is: told apart, never computed with. */
static inline uint64_t
mp_pycode_length(const PyCodeObject *code)
{
#if PY_VERSION_HEX >= 0x030B0000
    return (uint64_t)Py_SIZE((PyObject *)code);
#else
    return (uint64_t)PyBytes_GET_SIZE(code->co_code);
#endif
}

/* -- is it the Python we were compiled for? ------------------------------- */

/* 3.13 and later publish where their fields lie; a patched interpreter may
 * move them.  False: at least one is elsewhere. */
static inline bool
mp_pystack_offsets_match(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    const struct _Py_DebugOffsets *published = &_PyRuntime.debug_offsets;
#define MP_SAME(part, field, type, member)                                    \
    (published->part.field == offsetof(type, member))
    return memcmp(published->cookie, _Py_Debug_Cookie,
                  sizeof(published->cookie)) == 0 &&
           (published->version >> 16) == (PY_VERSION_HEX >> 16) &&
           published->free_threaded == 0 &&
           MP_SAME(thread_state, current_frame, PyThreadState,
                   current_frame) &&
           MP_SAME(thread_state, interp, PyThreadState, interp) &&
           MP_SAME(interpreter_frame, previous, mp_pyframe_t, previous) &&
           MP_SAME(interpreter_frame, executable, mp_pyframe_t,
                   f_executable) &&
           MP_SAME(interpreter_frame, instr_ptr, mp_pyframe_t, instr_ptr) &&
           MP_SAME(interpreter_frame, owner, mp_pyframe_t, owner) &&
           MP_SAME(code_object, filename, PyCodeObject, co_filename) &&
           MP_SAME(code_object, name, PyCodeObject, co_name) &&
           MP_SAME(code_object, qualname, PyCodeObject, co_qualname) &&
           MP_SAME(code_object, linetable, PyCodeObject, co_linetable) &&
           MP_SAME(code_object, firstlineno, PyCodeObject, co_firstlineno) &&
           MP_SAME(code_object, co_code_adaptive, PyCodeObject,
                   co_code_adaptive) &&
           MP_SAME(unicode_object, length, PyASCIIObject, length) &&
           MP_SAME(unicode_object, state, PyASCIIObject, state) &&
           published->unicode_object.asciiobject_size == sizeof(PyASCIIObject);
#undef MP_SAME
#else
    return true;
#endif
}

#endif /* !MP_PYSTACK_UNSUPPORTED */

#endif
