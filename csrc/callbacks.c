/* callbacks.c - which of torch's callbacks the shim has installed. */
#include "callbacks.h"

#include "hook.h"

static struct {
    bool cpu;
    int ops; /* 0: none; 2: all; 3: with outputs */
} installed; /* the session lock */

mp_status_t
mp_callbacks_switch(uint32_t flags, int ops, char *error, size_t error_size)
{
    const mp_shim_api_t *shim = mp_hook_shim();
    mp_status_t status = MP_OK;
    if (ops == 1) {
        /* As soon as anybody has a callback, torch makes its lists of them
         * anew at each node of autograd: not for a few regions. */
        flags |= MP_HOOK_REGIONS;
        ops = 0;
    }
    mp_hook_set_wanted(flags);
    if (shim == NULL) {
        return MP_OK; /* facts come from elsewhere */
    }
    if (ops == 2 && (flags & MP_HOOK_SHAPES) != 0) {
        ops = 3;
    }
    bool cpu = (flags & MP_HOOK_CPU) != 0;
    if (cpu != installed.cpu) {
        if (!cpu) {
            (void)shim->remove_cpu(); /* false: somebody wrapped ours */
        }
        else if (shim->install_cpu(error, error_size) != 0) {
            status = MP_ERR_LOAD;
            cpu = false;
        }
        installed.cpu = cpu;
    }
    if (ops != installed.ops) {
        if (installed.ops != 0) {
            shim->remove_ops();
            installed.ops = 0;
        }
        if (ops != 0) {
            if (shim->install_ops(ops == 3, error, error_size) != 0) {
                status = MP_ERR_LOAD;
            }
            else {
                installed.ops = ops;
            }
        }
    }
    return status;
}
