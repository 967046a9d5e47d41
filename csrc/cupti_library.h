/* cupti_library.h - libcupti, opened at run time: its functions and version,
 * and what it gives to callbacks.
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

/* CUPTI's numbers, which are part of its ABI. */
enum {
    MP_CUPTI_DRIVER = 1,
    MP_CUPTI_RESOURCE = 3,
    MP_CUPTI_STATE = 6
};
enum {
    MP_CUPTI_ENTER = 0,
    MP_CUPTI_EXIT = 1
};
enum {
    MP_CUPTI_CONTEXT_CREATED = 1,
    MP_CUPTI_CONTEXT_ENDS = 2
};
enum {
    MP_CUPTI_FATAL_ERROR = 1
};

/* CUpti_CallbackData, CUpti_ResourceData and CUpti_StateData. */
typedef struct {
    int site;
    const char *function;
    const void *params;
    const int *result;
    const char *symbol;
    void *context;
    uint32_t context_number;
    uint64_t *correlation; /* kept from a call's ENTER to its EXIT */
    uint32_t correlation_number;
} mp_cupti_call_data_t;

typedef struct {
    void *context;
} mp_cupti_resource_data_t;

typedef struct {
    int result;
    const char *message;
} mp_cupti_state_data_t;

/* Kinds of activity: concurrent kernels, which do not wait for each other. */
enum {
    MP_CUPTI_MEMCPY = 1,
    MP_CUPTI_MEMSET = 2,
    MP_CUPTI_KERNEL = 10,
    MP_CUPTI_MEMCPY_PEER = 22
};

typedef void (*mp_cupti_callback_t)(void *user, int domain, uint32_t number,
                                    const void *data);

/* CUPTI wants a buffer; CUPTI gives one back, VALID bytes of it filled. */
typedef void (*mp_cupti_request_t)(uint8_t **buffer, size_t *size,
                                   size_t *max_records);
typedef void (*mp_cupti_complete_t)(void *context, uint32_t stream,
                                    uint8_t *buffer, size_t size,
                                    size_t valid);

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
    X(GetDeviceId, false, (void *context, uint32_t *device))                  \
    /* what ran on the GPU: gpu_activity.h */                                 \
    X(GetTimestamp, false, (uint64_t * time))                                 \
    X(ActivityRegisterCallbacks, false,                                       \
      (mp_cupti_request_t request, mp_cupti_complete_t complete))             \
    X(ActivityEnable, false, (int kind))                                      \
    X(ActivityDisable, false, (int kind))                                     \
    X(ActivityFlushAll, false, (uint32_t flag))                               \
    X(ActivityGetNextRecord, false,                                           \
      (uint8_t * buffer, size_t valid, void **record))                        \
    X(ActivityGetNumDroppedRecords, false,                                    \
      (void *context, uint32_t stream, size_t *count))

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
