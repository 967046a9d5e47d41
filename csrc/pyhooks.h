/* pyhooks.h - what the files of torch's hooks share.
 *
 * For the Python edge; all with the GIL. */
#ifndef MP_PYHOOKS_H
#define MP_PYHOOKS_H

#include "state.h"

/* Call Python's side.  The training code must not notice: an exception goes to
 * sys.unraisablehook.  Whether the answer was anything but False. */
bool mp_call_back(PyObject *callback, PyObject *argument);

/* Whether a hook was given at least LEAST arguments; else a TypeError. */
bool mp_enough(const char *name, Py_ssize_t count, Py_ssize_t least);

/* module_hooks.c: MODULE gets the hooks of torch.nn.Module as attributes. */
bool mp_module_hooks_init(const mp_module_state_t *state, PyObject *module);
PyObject *mp_take_hook_copies(PyObject *core, PyObject *ignored);

/* gradients.c: the hook of a parameter, and what an optimizer's step is about
 * to use that no hook told of. */
PyObject *mp_gradient_hook(PyObject *core, PyObject *parameter);
void mp_claim_gradients_of(mp_module_state_t *state, PyObject *optimizer);

#endif
