/* fake_cupti.h - a libcupti of a few hundred lines that plays what a test
 * says.
 *
 * Linked into the C tests (the core finds it in the program itself) and, as a
 * shared library of its own, given to Python's tests by MEMPROF_CUPTI_LIB.
 * Includes no header of NVIDIA's: what it believes of CUPTI's layouts is its
 * own, so a mistake of the core's is not repeated here. */
#ifndef FAKE_CUPTI_H
#define FAKE_CUPTI_H

#include <stddef.h>
#include <stdint.h>

#define FAKE_API __attribute__((visibility("default")))

/* One driver call.  PARAMS (BYTES of them, at most 256) are copied to the
 * stack for the call and poisoned afterwards. */
typedef struct {
    const char *call; /* "cuMemAlloc_v2" */
    const void *params;
    size_t bytes;
    int result;     /* CUDA's; out-pointers stay untouched unless 0 */
    uint64_t *out;  /* what the driver writes between ENTER and EXIT... */
    uint64_t value; /* ...and what it writes there */
    uint64_t *out2; /* cuMemAllocPitch's second result */
    uint64_t value2;
    uintptr_t context;
    void (*inside)(void *user); /* what happens inside of the driver */
    void *user;
} fakecupti_step_t;

/* Play STEP on the calling thread; how many callbacks it caused. */
FAKE_API int fakecupti_play(const fakecupti_step_t *step);
/* The same without a struct, for ctypes. */
FAKE_API int fakecupti_call(const char *call, const void *params, size_t bytes,
                            int result, uint64_t *out, uint64_t value,
                            uintptr_t context);
FAKE_API void fakecupti_resource(uint32_t cbid, uintptr_t context);
FAKE_API void fakecupti_fatal(int result, const char *message);

/* Back to a fresh library, of CUPTI 13.0. */
FAKE_API void fakecupti_reset(void);
FAKE_API void fakecupti_set_version(uint32_t version);
FAKE_API uint32_t fakecupti_version(void);
/* Note a call; the code that a test wants for it, or -1 (fake_activity.c). */
FAKE_API int fakecupti_called(const char *function);
/* Somebody holds the subscription; NULL: nobody. */
FAKE_API void fakecupti_hold_slot(const char *name);
/* FUNCTION ("cuptiSubscribe") answers CODE once, after AFTER more calls of it;
 * AFTER -1: always.  CODE 0: no more. */
FAKE_API void fakecupti_fail(const char *function, int code, int after);
/* Callbacks come although nobody is subscribed any more. */
FAKE_API void fakecupti_set_late(int late);
/* The device that a context is of; -1: CUPTI does not know. */
FAKE_API void fakecupti_set_device(uintptr_t context, int device);

/* What Kineto does when it is first used: 1: it has the subscription now, or
 * had it before; 0: it was refused, and stays blind for good. */
FAKE_API int fakecupti_kineto(void);
FAKE_API void fakecupti_kineto_leaves(void); /* TEARDOWN_CUPTI=1 */

/* The calls so far, a line each, without the arguments. */
FAKE_API const char *fakecupti_calls(void);
FAKE_API int fakecupti_enabled(void);    /* callbacks that are on */
FAKE_API int fakecupti_subscribed(void); /* by V1 or V2, and not Kineto's */

#endif
