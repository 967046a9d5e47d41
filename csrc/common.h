/* common.h - status codes, limits and the few macros every file uses.
 *
 * Includes nothing of memprof and nothing of Python.  Shared with the C++
 * shim, so it must stay valid C++17. */
#ifndef MP_COMMON_H
#define MP_COMMON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "No such record": the null value of every 32-bit id. */
#define MP_NO_INDEX UINT32_MAX

/* What a function that can fail returns.  The core returns, the edge raises:
 * only mp_raise() (edge.h) turns a status into a Python exception. */
#define MP_STATUS_LIST(X)                                                     \
    X(OK, "no error")                                                         \
    X(ERR_NOMEM, "out of memory")                                             \
    X(ERR_IO, "input/output error")                                           \
    X(ERR_FORMAT, "not a memprof recording, or a damaged one")                \
    X(ERR_NEWER, "the recording was written by a newer memprof")              \
    X(ERR_STATE, "not possible in this state")                                \
    X(ERR_ARG, "bad argument")                                                \
    X(ERR_FULL, "the byte budget is used up")                                 \
    X(ERR_LOAD, "the shared library could not be loaded")                     \
    X(ERR_MISMATCH, "built for another torch")

typedef enum {
#define X(name, text) MP_##name,
    MP_STATUS_LIST(X)
#undef X
    MP_STATUS_COUNT
} mp_status_t;

#define MP_ARRAY_LENGTH(array) (sizeof(array) / sizeof((array)[0]))

#if defined(__GNUC__)
#define MP_LIKELY(x) __builtin_expect(!!(x), 1)
#define MP_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define MP_EXPORT __attribute__((visibility("default")))
#else
#define MP_LIKELY(x) (x)
#define MP_UNLIKELY(x) (x)
#define MP_EXPORT
#endif

#endif
