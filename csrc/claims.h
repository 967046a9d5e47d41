/* claims.h - what a tensor lies in, whose it is, and what it is called.
 *
 * For the Python edge; all with the GIL.  Names are those of modules (hook.h)
 * and of parameters, by address: they keep no reference, and Python's side
 * forgets an object when it dies.  No exception is left behind. */
#ifndef MP_CLAIMS_H
#define MP_CLAIMS_H

#include "names.h"
#include "state.h"

/* False: out of memory. */
bool mp_claims_init(void);

mp_names_t *mp_parameter_names(void);

/* The name of a module or parameter; MP_NO_INDEX: none. */
uint32_t mp_name_of(PyObject *object);
uint32_t mp_type_name(PyObject *object);

bool mp_is_tensor(const mp_module_state_t *state, PyObject *object);

/* Claim what TENSOR lies in, and tell its shape if shapes are recorded.  With
 * DEPTH, also what it wraps, so many wrappers deep.  Whether anything was. */
bool mp_claim(mp_module_state_t *state, PyObject *tensor, mp_role_t role,
              uint32_t owner, int depth);

#endif
