/* state.h - the module's state, and how the core's errors become exceptions.
 *
 * The Python edge: thin, the only part beside pystack.c that knows Python. */
#ifndef MP_STATE_H
#define MP_STATE_H

#define PY_SSIZE_T_CLEAN
#include "common.h"
#include "event.h"
#include "export.h"
#include "recording.h"
#include "session.h"
#include "tracker.h"

#include <Python.h>

typedef struct {
    PyObject *error;      /* memprof.MemprofError */
    PyObject *shim_error; /* its subclass for the torch shim */
    PyTypeObject *rows_type;
    PyTypeObject *session_type;
    PyTypeObject *recording_type;
    PyTypeObject *module_hook_type;
    /* pyhooks.c */
    PyObject *tensor_type;        /* or NULL */
    PyObject *on_root_module;     /* or NULL */
    PyObject *on_optimizer_state; /* or NULL */
    PyObject *on_leaf_input;      /* or NULL */
    PyObject *module_code;        /* or NULL: what module calls pass through */
    PyObject *backward_codes;     /* or NULL: a tuple; what runs backwards */
    PyObject *str_untyped_storage, *str_data_ptr, *str_get_device, *str_grad,
        *str_requires_grad, *str_is_leaf;
} mp_module_state_t;

mp_module_state_t *mp_state_of(PyObject *module);
mp_module_state_t *mp_state_of_type(PyTypeObject *type);

/* Set the exception for STATUS and return NULL.  WHAT says what was tried
 * (may be NULL); an I/O status carries SAVED_ERRNO and PATH (may be NULL). */
PyObject *mp_raise(mp_module_state_t *state, mp_status_t status,
                   const char *what, int saved_errno, PyObject *path);

/* The file system's spelling of PATH (str, bytes or os.PathLike), as a bytes
 * object; NULL with an exception. */
PyObject *mp_path_bytes(PyObject *path);

/* The id of TEXT, a str, in *ID; MP_NO_INDEX if there is no memory for it.
 * What UTF-8 has not (lone surrogates: file names, odd attributes) is escaped.
 * False with an exception if it is no str. */
bool mp_intern_object(mp_intern_t *intern, PyObject *text, uint32_t *id);

/* ---- arrays.c: memory that NumPy reads in place ----------------------------
 */

/* A read-only buffer over BYTES bytes at MEMORY.  OWNER is kept alive; with
 * RELEASE it is called on MEMORY at the end instead (OWNER may be NULL).  On
 * failure RELEASE is called too. */
PyObject *mp_rows_new(mp_module_state_t *state, const void *memory,
                      size_t bytes, PyObject *owner, void (*release)(void *));
PyObject *mp_stats_dict(const mp_device_stats_t *stats);
PyObject *mp_defects_dict(const mp_defects_t *defects);

/* Events in a bytes-like object whose length is a multiple of 64. */
bool mp_events_from(PyObject *object, Py_buffer *view,
                    const mp_event_t **events, size_t *count);

/* A device argument: -1 or a CUDA index.  False with an exception. */
bool mp_device_number(PyObject *argument, int16_t *device);

/* A stack as ((function, file, line), ...), innermost first. */
PyObject *mp_stack_tuple(const mp_intern_t *intern, uint32_t stack);

/* ---- types
 * ------------------------------------------------------------------ */

extern PyType_Spec mp_rows_spec;
extern PyType_Spec mp_session_spec;
extern PyType_Spec mp_recording_spec;
extern PyType_Spec mp_module_hook_spec;

/* A Recording that takes over WINDOW (cleared in any case). */
PyObject *mp_recording_from_window(mp_module_state_t *state,
                                   mp_window_t *window);
/* The tracker that has seen a Recording; borrowed. */
const mp_tracker_t *mp_recording_tracker(PyObject *recording);
/* A Recording that takes over DATA (cleared in any case). */
PyObject *mp_recording_from_data(mp_module_state_t *state,
                                 mp_recording_data_t *data);

/* What RECORDING holds, good as long as it lives; false with TypeError if it
 * is none. */
bool mp_recording_source(mp_module_state_t *state, PyObject *recording,
                         mp_export_t *source);

/* exports.c: export_timeline, export_chrome. */
extern PyMethodDef mp_export_methods[];

/* snapshots.c: export_snapshot, load_snapshot, cut. */
extern PyMethodDef mp_snapshot_methods[];

/* heap.c: the objects whose class is exactly one of SET, a set of classes, as
 * a list; some 100 ns for each object that the garbage collector tracks. */
PyObject *mp_instances(PyObject *module, PyObject *set);

/* gradients.c: claim_gradient(parameter, library folder, owner). */
PyObject *mp_claim_gradient(PyObject *module, PyObject *args);

/* made_events.c: from_events, feed, intern_string, intern_stack. */
extern PyMethodDef mp_made_events_methods[];

/* driver.c: CUPTI, and the methods of Recording about the driver's memory. */
extern PyMethodDef mp_driver_methods[];
PyObject *mp_driver_lives(PyObject *self, PyObject *ignored);
PyObject *mp_driver_gaps(PyObject *self, PyObject *ignored);
PyObject *mp_driver_accounts(PyObject *self, PyObject *argument);
PyObject *mp_driver_counts(PyObject *self, PyObject *ignored);

/* kernels.c: CUPTI's activity API, and Recording's methods about it. */
extern PyMethodDef mp_kernels_methods[];
PyObject *mp_gpu_work(PyObject *self, PyObject *ignored);
PyObject *mp_gpu_lost(PyObject *self, PyObject *ignored);

/* writers.c: files of other formats. */
extern PyMethodDef mp_writers_methods[];

/* holders.c: see _core.pyi. */
PyObject *mp_holders(PyObject *module, PyObject *args);

/* device_total.c: device_total, request_totals. */
extern PyMethodDef mp_device_total_methods[];

/* pyhooks.c */
extern PyMethodDef mp_pyhooks_methods[];
/* MODULE gets the two hooks of torch.nn.Module as attributes. */
bool mp_pyhooks_init(mp_module_state_t *state, PyObject *module);
int mp_pyhooks_traverse(mp_module_state_t *state, visitproc visit, void *arg);
void mp_pyhooks_clear(mp_module_state_t *state);

#endif
