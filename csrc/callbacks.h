/* callbacks.h - which of torch's callbacks the shim has installed.
 *
 * Process-wide.  Knows the shim's table, nothing of sessions.  Called by
 * session.c only, with the session lock held; the shim's functions block on
 * nothing. */
#ifndef MP_CALLBACKS_H
#define MP_CALLBACKS_H

#include "common.h"

/* Make the callbacks and the hooks what is wanted: MP_HOOK_* flags, and OPS 2
 * for all ops, 1 for record_function regions, 0 for none.  Regions alone need
 * no callback: Python's side tells of them (MP_HOOK_REGIONS).  MP_ERR_LOAD:
 * ERROR names the source that could not be installed; the others are.  Without
 * a shim facts come from elsewhere and only the hooks are switched. */
mp_status_t mp_callbacks_switch(uint32_t flags, int ops, char *error,
                                size_t error_size);

#endif
