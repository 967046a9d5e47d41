/* fake_pystack.h - give the calling thread a Python stack. */
#ifndef FAKE_PYSTACK_H
#define FAKE_PYSTACK_H

#include "common.h"

/* STACK is what mp_pystack_current says from now on, MP_NO_INDEX at first. */
void fake_pystack_set(uint32_t stack);

#endif
