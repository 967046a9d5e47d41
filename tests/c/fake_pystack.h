/* fake_pystack.h - give the calling thread a Python stack. */
#ifndef FAKE_PYSTACK_H
#define FAKE_PYSTACK_H

#include "common.h"
#include "pystack.h"

/* STACK is what mp_pystack_current says from now on, MP_NO_INDEX at first. */
void fake_pystack_set(uint32_t stack);
void fake_pystack_set_all(const mp_pystack_t *stack);

#endif
