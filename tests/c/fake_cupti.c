/* fake_cupti.c - a libcupti of a few hundred lines that plays what a test
 * says.
 */
#include "fake_cupti.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define OLD_NAME_BYTES 64
#define MAX_CBIDS 1024
#define POISON 0xdb

enum {
    OK = 0,
    INVALID = 1,
    INVALID_HANDLE = 1,
    MULTIPLE = 39,
    UNKNOWN = 999
};
enum {
    DRIVER = 1,
    RESOURCE = 3,
    STATE = 6,
    DOMAINS = 7
};

typedef void (*callback_t)(void *user, int domain, uint32_t cbid,
                           const void *data);

/* As the real one lays out what it gives to a driver callback. */
typedef struct {
    int site;
    const char *function;
    const void *params;
    void *result;
    const char *symbol;
    void *context;
    uint32_t context_uid;
    uint64_t *correlation;
    uint32_t correlation_id;
} data_t;

typedef struct {
    void *context;
    void *handle;
    void *descriptor;
} resource_t;

typedef struct {
    int result;
    const char *message;
} state_t;

/* Numbers of CUDA 13.0, which never change. */
static const struct {
    uint32_t cbid;
    const char *name;
} names[] = {
    {10, "cuCtxCreate"},
    {18, "cuModuleLoad"},
    {19, "cuModuleLoadData"},
    {20, "cuModuleLoadDataEx"},
    {21, "cuModuleLoadFatBinary"},
    {22, "cuModuleUnload"},
    {29, "cuMemAlloc"},
    {31, "cuMemAllocPitch"},
    {33, "cuMemFree"},
    {37, "cuMemAllocHost"},
    {38, "cuMemFreeHost"},
    {39, "cuMemHostAlloc"},
    {89, "cuArrayDestroy"},
    {136, "cuCtxSetLimit"},
    {235, "cuCtxCreate_v2"},
    {243, "cuMemAlloc_v2"},
    {244, "cuMemAllocPitch_v2"},
    {245, "cuMemFree_v2"},
    {271, "cuMemHostAlloc_v2"},
    {272, "cuArrayCreate_v2"},
    {274, "cuArray3DCreate_v2"},
    {294, "cuMemAllocHost_v2"},
    {301, "cuMemHostRegister"},
    {302, "cuMemHostUnregister"},
    {329, "cuIpcOpenMemHandle"},
    {330, "cuIpcCloseMemHandle"},
    {347, "cuMipmappedArrayCreate"},
    {349, "cuMipmappedArrayDestroy"},
    {371, "cuMemAllocManaged"},
    {379, "cuMemHostRegister_v2"},
    {386, "cuDevicePrimaryCtxRetain"},
    {485, "cuImportExternalMemory"},
    {486, "cuExternalMemoryGetMappedBuffer"},
    {488, "cuDestroyExternalMemory"},
    {497, "cuStreamEndCapture"},
    {498, "cuStreamEndCapture_ptsz"},
    {539, "cuStreamBeginCapture_v2"},
    {540, "cuStreamBeginCapture_v2_ptsz"},
    {547, "cuMemAddressReserve"},
    {548, "cuMemAddressFree"},
    {549, "cuMemCreate"},
    {550, "cuMemRelease"},
    {551, "cuMemMap"},
    {552, "cuMemUnmap"},
    {555, "cuMemImportFromShareableHandle"},
    {565, "cuMemRetainAllocationHandle"},
    {567, "cuIpcOpenMemHandle_v2"},
    {584, "cuMemMapArrayAsync"},
    {585, "cuMemMapArrayAsync_ptsz"},
    {598, "cuMemAllocAsync"},
    {599, "cuMemAllocAsync_ptsz"},
    {600, "cuMemFreeAsync"},
    {601, "cuMemFreeAsync_ptsz"},
    {602, "cuMemPoolTrimTo"},
    {607, "cuMemPoolCreate"},
    {608, "cuMemPoolDestroy"},
    {611, "cuMemAllocFromPoolAsync"},
    {612, "cuMemAllocFromPoolAsync_ptsz"},
    {614, "cuMemPoolImportFromShareableHandle"},
    {616, "cuMemPoolImportPointer"},
    {640, "cuDeviceGraphMemTrim"},
    {643, "cuGraphInstantiateWithFlags"},
    {645, "cuCtxCreate_v3"},
    {656, "cuGraphInstantiateWithParams"},
    {657, "cuGraphInstantiateWithParams_ptsz"},
    {678, "cuLibraryLoadData"},
    {679, "cuLibraryLoadFromFile"},
    {680, "cuLibraryUnload"},
    {706, "cuMulticastCreate"},
    {708, "cuMulticastBindMem"},
    {709, "cuMulticastBindAddr"},
    {710, "cuMulticastUnbind"},
    {742, "cuFuncLoad"},
    {757, "cuCtxCreate_v4"},
    {277, "cuMemcpyHtoDAsync_v2"},
    {216, "cuMemsetD8Async"},
    {307, "cuLaunchKernel"},
    {514, "cuGraphLaunch"},
    {527, "cuLaunchHostFunc"},
    {652, "cuLaunchKernelEx"},
    {812, "cuMemAllocLater"}, /* of a CUDA that memprof has not seen */
};

/* The last callback that each version knows. */
static uint32_t
last_cbid(uint32_t version)
{
    static const struct {
        uint32_t before, last;
    } known[] = {
        {19, 677}, {20, 705},     {22, 740},
        {23, 750}, {130000, 760}, {130200, 806},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (version < known[i].before) {
            return known[i].last;
        }
    }
    return 815;
}

static struct {
    pthread_mutex_t lock;
    uint32_t version;
    _Atomic(callback_t) callback; /* stays after an unsubscribe */
    _Atomic(void *) user;
    atomic_int taken; /* by us: 1 */
    atomic_int late;
    char holder[OLD_NAME_BYTES];
    bool held, kineto, kineto_blind;
    char fail_function[64];
    int fail_code, fail_after;
    char calls[1 << 16];
    size_t calls_length;
    uintptr_t contexts[16];
    int devices[16];
    size_t context_count;
    atomic_bool on[DOMAINS][MAX_CBIDS];
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .version = 130001};

static atomic_uint the_correlations;
static atomic_uint the_last_correlation;

/* Note the call; the code that a test wants for it, or -1. */
static int
called(const char *function)
{
    int code = -1;
    pthread_mutex_lock(&fake.lock);
    size_t left = sizeof(fake.calls) - fake.calls_length;
    int wrote =
        snprintf(fake.calls + fake.calls_length, left, "%s\n", function);
    if (wrote > 0 && (size_t)wrote < left) {
        fake.calls_length += (size_t)wrote;
    }
    if (fake.fail_code != 0 && strcmp(function, fake.fail_function) == 0) {
        if (fake.fail_after <= 0) {
            code = fake.fail_code;
            if (fake.fail_after == 0) {
                fake.fail_code = 0;
            }
        }
        else {
            fake.fail_after--;
        }
    }
    pthread_mutex_unlock(&fake.lock);
    return code;
}

#define CALLED(function)                                                      \
    do {                                                                      \
        int code_ = called(function);                                         \
        if (code_ >= 0) {                                                     \
            return code_;                                                     \
        }                                                                     \
    } while (0)

/* ---- what the core calls ------------------------------------------------ */

FAKE_API int
cuptiGetVersion(uint32_t *version)
{
    CALLED("cuptiGetVersion");
    *version = fake.version;
    return OK;
}

static int
subscribe(void **subscriber, callback_t callback, void *user)
{
    if (fake.held || fake.kineto || atomic_load(&fake.taken) != 0) {
        return MULTIPLE;
    }
    atomic_store(&fake.callback, callback);
    atomic_store(&fake.user, user);
    atomic_store(&fake.taken, 1);
    *subscriber = &fake;
    return OK;
}

FAKE_API int
cuptiSubscribe(void **subscriber, callback_t callback, void *user)
{
    CALLED("cuptiSubscribe");
    return subscribe(subscriber, callback, user);
}

typedef struct {
    size_t bytes;
    const char *name;
    char *old_name;
    size_t old_bytes;
} params_t;

FAKE_API int
cuptiSubscribe_v2(void **subscriber, callback_t callback, void *user,
                  params_t *params)
{
    CALLED("cuptiSubscribe_v2");
    if (params != NULL && params->bytes != (fake.version < 130200 ? 32 : 40)) {
        return INVALID;
    }
    int code = subscribe(subscriber, callback, user);
    if (code == MULTIPLE && params != NULL && params->old_name != NULL) {
        snprintf(params->old_name, params->old_bytes, "%s",
                 fake.kineto ? "CUPTI for Kineto" : fake.holder);
    }
    return code;
}

FAKE_API int
cuptiUnsubscribe(void *subscriber)
{
    CALLED("cuptiUnsubscribe");
    if (subscriber != &fake) {
        return INVALID_HANDLE;
    }
    for (int i = 0; i < DOMAINS; i++) {
        for (int k = 0; k < MAX_CBIDS; k++) {
            atomic_store(&fake.on[i][k], false);
        }
    }
    atomic_store(&fake.taken, 0);
    return OK;
}

FAKE_API int
cuptiEnableCallback(uint32_t on, void *subscriber, int domain, uint32_t cbid)
{
    CALLED(on ? "cuptiEnableCallback" : "cuptiDisableCallback");
    if (subscriber != &fake || domain <= 0 || domain >= DOMAINS ||
        cbid >= MAX_CBIDS ||
        (domain == DRIVER && cbid > last_cbid(fake.version))) {
        return INVALID;
    }
    if (domain == STATE && fake.version < 20) {
        return INVALID;
    }
    atomic_store(&fake.on[domain][cbid], on != 0);
    return OK;
}

FAKE_API int
cuptiGetResultString(int result, const char **text)
{
    switch (result) {
    case OK:
        *text = "CUPTI_SUCCESS";
        return OK;
    case 15:
        *text = "CUPTI_ERROR_NOT_INITIALIZED";
        return OK;
    case 35:
        *text = "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES";
        return OK;
    case MULTIPLE:
        *text = "CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED";
        return OK;
    case UNKNOWN:
        *text = "CUPTI_ERROR_UNKNOWN";
        return OK;
    default:
        *text = "<unknown>";
        return OK;
    }
}

FAKE_API int
cuptiGetErrorMessage(int result, const char **text)
{
    static const char privileges[] = "no privileges\nask somebody";
    if (result != 35) {
        return INVALID;
    }
    *text = privileges;
    return OK;
}

FAKE_API int
cuptiGetCallbackName(int domain, uint32_t cbid, const char **name)
{
    if (domain != DRIVER || cbid == 0 || cbid > last_cbid(fake.version)) {
        return INVALID;
    }
    *name = "cuSomethingElse";
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].cbid == cbid) {
            *name = names[i].name;
        }
    }
    return OK;
}

FAKE_API int
cuptiGetDeviceId(void *context, uint32_t *device)
{
    CALLED("cuptiGetDeviceId");
    for (size_t i = 0; i < fake.context_count; i++) {
        if (fake.contexts[i] == (uintptr_t)context && fake.devices[i] >= 0) {
            *device = (uint32_t)fake.devices[i];
            return OK;
        }
    }
    return INVALID;
}

/* ---- what a test calls -------------------------------------------------- */

static bool
is_on(int domain, uint32_t cbid)
{
    return atomic_load(&fake.late) != 0 ||
           (atomic_load(&fake.taken) != 0 &&
            atomic_load(&fake.on[domain][cbid]));
}

static int
tell(int domain, uint32_t cbid, const void *data)
{
    callback_t callback = atomic_load(&fake.callback);
    if (callback == NULL || !is_on(domain, cbid)) {
        return 0;
    }
    callback(atomic_load(&fake.user), domain, cbid, data);
    return 1;
}

FAKE_API int
fakecupti_play(const fakecupti_step_t *step)
{
    uint32_t cbid = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(names[i].name, step->call) == 0) {
            cbid = names[i].cbid;
        }
    }
    unsigned char params[256];
    memset(params, POISON, sizeof(params));
    memcpy(params, step->params, step->bytes);
    uint64_t correlation = 0;
    int result = 0;
    data_t data = {
        .site = 0,
        .function = step->call,
        .params = params,
        .result = &result,
        .context = (void *)step->context,
        .correlation = &correlation,
        .correlation_id = atomic_fetch_add(&the_correlations, 1) + 1,
    };
    atomic_store(&the_last_correlation, data.correlation_id);
    int told = tell(DRIVER, cbid, &data);
    if (step->inside != NULL) {
        step->inside(step->user);
    }
    result = step->result;
    if (result == 0 && step->out != NULL) {
        *step->out = step->value;
    }
    if (result == 0 && step->out2 != NULL) {
        *step->out2 = step->value2;
    }
    data.site = 1;
    told += tell(DRIVER, cbid, &data);
    memset(params, POISON, sizeof(params));
    memset(&data, POISON, sizeof(data));
    return told;
}

FAKE_API int
fakecupti_call(const char *call, const void *params, size_t bytes, int result,
               uint64_t *out, uint64_t value, uintptr_t context)
{
    fakecupti_step_t step = {.call = call,
                             .params = params,
                             .bytes = bytes,
                             .result = result,
                             .out = out,
                             .value = value,
                             .context = context};
    return fakecupti_play(&step);
}

FAKE_API void
fakecupti_resource(uint32_t cbid, uintptr_t context)
{
    resource_t data = {.context = (void *)context};
    tell(RESOURCE, cbid, &data);
    memset(&data, POISON, sizeof(data));
}

FAKE_API void
fakecupti_fatal(int result, const char *message)
{
    state_t data = {result, message};
    tell(STATE, 1, &data);
    memset(&data, POISON, sizeof(data));
}

FAKE_API void
fakecupti_reset(void)
{
    pthread_mutex_lock(&fake.lock);
    fake.version = 130001;
    atomic_store(&fake.taken, 0);
    atomic_store(&fake.late, 0);
    fake.held = fake.kineto = fake.kineto_blind = false;
    fake.fail_code = 0;
    fake.calls_length = 0;
    fake.calls[0] = '\0';
    fake.context_count = 0;
    pthread_mutex_unlock(&fake.lock);
}

FAKE_API void
fakecupti_set_version(uint32_t version)
{
    fake.version = version;
}

FAKE_API uint32_t
fakecupti_version(void)
{
    return fake.version;
}

FAKE_API int
fakecupti_called(const char *function)
{
    return called(function);
}

FAKE_API uint32_t
fakecupti_correlation(void)
{
    return atomic_load(&the_last_correlation);
}

FAKE_API void
fakecupti_hold_slot(const char *name)
{
    fake.held = name != NULL;
    snprintf(fake.holder, sizeof(fake.holder), "%s", name != NULL ? name : "");
}

FAKE_API void
fakecupti_fail(const char *function, int code, int after)
{
    pthread_mutex_lock(&fake.lock);
    snprintf(fake.fail_function, sizeof(fake.fail_function), "%s", function);
    fake.fail_code = code;
    fake.fail_after = after;
    pthread_mutex_unlock(&fake.lock);
}

FAKE_API void
fakecupti_set_late(int late)
{
    atomic_store(&fake.late, late);
}

FAKE_API void
fakecupti_set_device(uintptr_t context, int device)
{
    for (size_t i = 0; i < fake.context_count; i++) {
        if (fake.contexts[i] == context) {
            fake.devices[i] = device;
            return;
        }
    }
    fake.contexts[fake.context_count] = context;
    fake.devices[fake.context_count++] = device;
}

FAKE_API int
fakecupti_kineto(void)
{
    if (!fake.kineto && !fake.kineto_blind) {
        fake.kineto_blind = fake.held || atomic_load(&fake.taken) != 0;
        fake.kineto = !fake.kineto_blind;
    }
    return fake.kineto;
}

FAKE_API void
fakecupti_kineto_leaves(void)
{
    fake.kineto = false;
}

FAKE_API const char *
fakecupti_calls(void)
{
    return fake.calls;
}

FAKE_API int
fakecupti_enabled(void)
{
    int count = 0;
    for (int i = 0; i < DOMAINS; i++) {
        for (int k = 0; k < MAX_CBIDS; k++) {
            count += atomic_load(&fake.on[i][k]);
        }
    }
    return count;
}

FAKE_API int
fakecupti_subscribed(void)
{
    return atomic_load(&fake.taken);
}
