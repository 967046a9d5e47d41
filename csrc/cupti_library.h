/* cupti_library.h - libcupti, opened at run time: its functions and version.
 *
 * Declares what it needs of CUPTI itself, so that the core is built and works
 * on machines without CUDA.  Which file it is, Python's side says
 * (memprof/cupti.py).  Never closed: CUPTI keeps pointers into itself. */
#ifndef MP_CUPTI_LIBRARY_H
#define MP_CUPTI_LIBRARY_H

#include "common.h"

#define MP_CUPTI_OLDEST 18 /* of CUDA 11.8 */

enum {
    MP_CUPTI_OK = 0,
    MP_CUPTI_NOT_INITIALIZED = 15, /* or the driver is too old */
    MP_CUPTI_NO_PRIVILEGE = 35,
    MP_CUPTI_SLOT_TAKEN = 39,
    MP_CUPTI_UNKNOWN = 999
};

typedef void (*mp_cupti_callback_t)(void *user, int domain, uint32_t number,
                                    const void *data);

/* X(name, required, arguments) */
#define MP_CUPTI_FUNCTION_LIST(X)                                             \
    X(GetVersion, true, (uint32_t * version))                                 \
    X(Subscribe, true,                                                        \
      (void **subscriber, mp_cupti_callback_t callback, void *user))          \
    X(Unsubscribe, true, (void *subscriber))                                  \
    X(EnableCallback, true,                                                   \
      (uint32_t on, void *subscriber, int domain, uint32_t number))           \
    X(GetResultString, true, (int result, const char **text))                 \
    X(GetCallbackName, true,                                                  \
      (int domain, uint32_t number, const char **name))                       \
    X(GetErrorMessage, false, (int result, const char **text))                \
    X(Subscribe_v2, false,                                                    \
      (void **subscriber, mp_cupti_callback_t callback, void *user,           \
       void *parameters))                                                     \
    X(GetDeviceId, false, (void *context, uint32_t *device))

typedef struct {
    char path[4096];
    uint32_t version; /* of its API: 18, 19, ..., 130001 */
#define X(name, required, arguments) int(*name) arguments;
    MP_CUPTI_FUNCTION_LIST(X)
#undef X
} mp_cupti_library_t;

/* Open the file PATH; "": what the program itself offers (tests).
 * MP_ERR_LOAD: ERROR says what is missing. */
mp_status_t mp_cupti_library_open(const char *path, mp_cupti_library_t *out,
                                  char *error, size_t error_size);

/* What CUPTI says of RESULT: on one line, in TEXT. */
void mp_cupti_result_text(const mp_cupti_library_t *library, int result,
                          char *text, size_t size);

#endif
