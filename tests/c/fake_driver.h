/* fake_driver.h - a CUDA driver and an NVML of a few lines, to be scripted.
 *
 * Part of the C tests (fake_driver_lookup takes the place of dlsym), and for
 * the Python tests a shared library of its own, which stands in for
 * libcuda.so.1 and libnvidia-ml.so.1 alike.
 *
 * CUDA's device i is NVML's device n - 1 - i, so that only who matches UUIDs
 * finds it; the total bytes of CUDA's device i are `total` + i. */
#ifndef FAKE_DRIVER_H
#define FAKE_DRIVER_H

#include <stdatomic.h>
#include <stdint.h>

#define FAKE_TOTAL (UINT64_C(80) << 30)
#define FAKE_PROCESSES 4 /* that the script can name */

/* X(name, at the start) */
#define FAKE_FIELD_LIST(X)                                                    \
    /* CUDA */                                                                \
    X(up, 1) /* cuInit was called */                                          \
    X(devices, 2)                                                             \
    X(active, 1) /* a bit for each device: its primary context is there */    \
    X(cuda_fails, 0) /* cuMemGetInfo */                                       \
    X(cuda_free, FAKE_TOTAL / 2)                                              \
    X(integrated, 0)                                                          \
    X(node, 0) /* GPU memory is a NUMA node */                                \
    X(no_pools, 0)                                                            \
    X(pool_reserved, 0)                                                       \
    X(pool_used, 0)                                                           \
    X(made_reserved, 0)                                                       \
    /* NVML */                                                                \
    X(init_result, 0)                                                         \
    X(mig, 0) /* UUIDs are those of instances */                              \
    X(total, FAKE_TOTAL)                                                      \
    X(reserved, 600 << 20)                                                    \
    X(free, FAKE_TOTAL / 4)                                                   \
    X(v2_result, 0)                                                           \
    X(v1_result, 0)                                                           \
    X(process_result, 0)                                                      \
    X(processes, 1) /* how many; the ones not named are others' */            \
    X(arrivals, 0)  /* that many more with each call */                       \
    X(silent, 0)    /* too small an array: it does not say how many */        \
    X(delay_us, 0)  /* of a call for processes */                             \
    /* what was done */                                                       \
    X(inits, 0)                                                               \
    X(cuda_inits, 0)                                                          \
    X(contexts_made, 0)                                                       \
    X(retained, 0)     /* and not released */                                 \
    X(pushed, 0)       /* and not popped */                                   \
    X(strict_calls, 0) /* that would end another thread's capture */          \
    X(process_calls, 0)

typedef struct {
#define X(name, value) _Atomic uint64_t name;
    FAKE_FIELD_LIST(X)
#undef X
    /* Entries of NVML's list; pid 0: this process. */
    _Atomic uint64_t pid[FAKE_PROCESSES];
    _Atomic uint64_t used[FAKE_PROCESSES];
    /* A symbol that is not there, or NULL. */
    const char *missing[FAKE_PROCESSES];
} fake_driver_t;

extern fake_driver_t fake_driver;

void *fake_driver_lookup(const char *name);

/* For Python. 0: there is no such field. */
int fake_driver_set(const char *name, uint64_t value);
uint64_t fake_driver_get(const char *name);
void fake_driver_process(unsigned index, uint64_t pid, uint64_t used);

#endif
