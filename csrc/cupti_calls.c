/* cupti_calls.c - the driver's calls that take or give back memory: what each
 * one's arguments say. */
#include "cupti_calls.h"

#include <string.h>

/* Names that begin like calls of the table and tell of no memory of their
 * own: old forms that take 32-bit addresses, and what changes no amount. */
static const char *const harmless[] = {
    "cuMemAlloc",     "cuMemAllocPitch",    "cuMemFree",
    "cuMemAllocHost", "cuMemMapArrayAsync", "cuMemMapArrayAsync_ptsz",
};

static bool
is_harmless(const char *name)
{
    for (size_t i = 0; i < MP_ARRAY_LENGTH(harmless); i++) {
        if (strcmp(name, harmless[i]) == 0) {
            return true;
        }
    }
    return false;
}

bool
mp_cupti_call_is_suspicious(const char *name)
{
    static const char *const begins[] = {"cuMemAlloc", "cuMemFree",
                                         "cuMemCreate", "cuMemMap"};
    for (size_t i = 0; i < mp_cupti_calls_count(); i++) {
        if (strcmp(name, mp_cupti_call(i)->name) == 0) {
            return false;
        }
    }
    for (size_t i = 0; i < MP_ARRAY_LENGTH(begins); i++) {
        if (strncmp(name, begins[i], strlen(begins[i])) == 0) {
            return !is_harmless(name);
        }
    }
    return false;
}

#if !defined(MP_HAVE_CUPTI)

const char *
mp_cupti_calls_why_not(void)
{
    return "this memprof was built without NVIDIA's headers (cupti.h)";
}

size_t
mp_cupti_calls_count(void)
{
    return 0;
}

const mp_call_t *
mp_cupti_call(size_t number)
{
    (void)number;
    return NULL;
}

void
mp_cupti_call_decode(size_t number, const void *params, bool succeeded,
                     mp_call_fact_t *fact)
{
    (void)number;
    (void)params;
    (void)succeeded;
    *fact = (mp_call_fact_t){.device = MP_DEVICE_UNKNOWN};
}

#else

#include "cupti_library.h"

#include <cupti.h>

/* What the listener believes of CUPTI, held against CUPTI's own words. */
#define SAME(ours, theirs, our_field, their_field)                            \
    _Static_assert(offsetof(ours, our_field) ==                               \
                       offsetof(theirs, their_field),                         \
                   "cupti_library.h is out of date")
SAME(mp_cupti_call_data_t, CUpti_CallbackData, site, callbackSite);
SAME(mp_cupti_call_data_t, CUpti_CallbackData, params, functionParams);
SAME(mp_cupti_call_data_t, CUpti_CallbackData, result, functionReturnValue);
SAME(mp_cupti_call_data_t, CUpti_CallbackData, context, context);
SAME(mp_cupti_call_data_t, CUpti_CallbackData, correlation, correlationData);
SAME(mp_cupti_resource_data_t, CUpti_ResourceData, context, context);
SAME(mp_cupti_state_data_t, CUpti_StateData, result, notification.result);
SAME(mp_cupti_state_data_t, CUpti_StateData, message, notification.message);
#define EQUAL(ours, theirs)                                                   \
    _Static_assert((int)(ours) == (int)(theirs),                              \
                   "cupti_library.h is out of date")
EQUAL(MP_CUPTI_DRIVER, CUPTI_CB_DOMAIN_DRIVER_API);
EQUAL(MP_CUPTI_RESOURCE, CUPTI_CB_DOMAIN_RESOURCE);
EQUAL(MP_CUPTI_STATE, CUPTI_CB_DOMAIN_STATE);
EQUAL(MP_CUPTI_ENTER, CUPTI_API_ENTER);
EQUAL(MP_CUPTI_EXIT, CUPTI_API_EXIT);
EQUAL(MP_CUPTI_CONTEXT_CREATED, CUPTI_CBID_RESOURCE_CONTEXT_CREATED);
EQUAL(MP_CUPTI_CONTEXT_ENDS, CUPTI_CBID_RESOURCE_CONTEXT_DESTROY_STARTING);
EQUAL(MP_CUPTI_FATAL_ERROR, CUPTI_CBID_STATE_FATAL_ERROR);
EQUAL(MP_CUPTI_SLOT_TAKEN, CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED);
EQUAL(MP_CUPTI_NOT_INITIALIZED, CUPTI_ERROR_NOT_INITIALIZED);

#define MARK(name) MP_DRIVER_MARK_##name
#define GROUP(name) MP_DRIVER_##name

#define FOREIGN MP_FLAG_FOREIGN
#define ANOTHER (MP_FLAG_FOREIGN | MP_FLAG_RETAINED)

/* X(name, role, group or mark, flags, required) */
#define CALL_LIST(X)                                                          \
    X(cuMemAlloc_v2, TAKES, GROUP(DEVICE), 0, true)                           \
    X(cuMemAllocPitch_v2, TAKES, GROUP(DEVICE), 0, true)                      \
    X(cuMemFree_v2, GIVES, GROUP(DEVICE), 0, true)                            \
    X(cuMemAllocManaged, TAKES, GROUP(MANAGED), 0, false)                     \
    X(cuMemCreate, TAKES, GROUP(PHYSICAL), 0, true)                           \
    X(cuMemImportFromShareableHandle, TAKES, GROUP(PHYSICAL), ANOTHER, false) \
    X(cuMemRetainAllocationHandle, TAKES, GROUP(PHYSICAL), ANOTHER, false)    \
    X(cuMemRelease, GIVES, GROUP(PHYSICAL), 0, true)                          \
    X(cuMemMap, TAKES, GROUP(MAPPING), 0, true)                               \
    X(cuMemUnmap, GIVES, GROUP(MAPPING), 0, true)                             \
    X(cuMemAddressReserve, TAKES, GROUP(ADDRESS_RANGE), FOREIGN, false)       \
    X(cuMemAddressFree, GIVES, GROUP(ADDRESS_RANGE), 0, false)                \
    X(cuMemAllocAsync, TAKES, GROUP(STREAM_ORDERED), 0, false)                \
    X(cuMemAllocAsync_ptsz, TAKES, GROUP(STREAM_ORDERED), 0, false)           \
    X(cuMemAllocFromPoolAsync, TAKES, GROUP(STREAM_ORDERED), 0, false)        \
    X(cuMemAllocFromPoolAsync_ptsz, TAKES, GROUP(STREAM_ORDERED), 0, false)   \
    X(cuMemFreeAsync, GIVES, GROUP(STREAM_ORDERED), 0, false)                 \
    X(cuMemFreeAsync_ptsz, GIVES, GROUP(STREAM_ORDERED), 0, false)            \
    X(cuMemPoolCreate, TAKES, GROUP(POOL), 0, false)                          \
    X(cuMemPoolImportFromShareableHandle, TAKES, GROUP(POOL), FOREIGN, false) \
    X(cuMemPoolImportPointer, TAKES, GROUP(STREAM_ORDERED), FOREIGN, false)   \
    X(cuMemPoolDestroy, GIVES, GROUP(POOL), 0, false)                         \
    X(cuMemPoolTrimTo, MARKS, MARK(POOL_TRIMMED), 0, false)                   \
    X(cuMemAllocHost_v2, TAKES, GROUP(HOST), 0, false)                        \
    X(cuMemHostAlloc, TAKES, GROUP(HOST), 0, false)                           \
    X(cuMemHostAlloc_v2, TAKES, GROUP(HOST), 0, false)                        \
    X(cuMemHostRegister, TAKES, GROUP(HOST_REGISTERED), 0, false)             \
    X(cuMemHostRegister_v2, TAKES, GROUP(HOST_REGISTERED), 0, false)          \
    X(cuMemFreeHost, GIVES, GROUP(HOST), 0, false)                            \
    X(cuMemHostUnregister, GIVES, GROUP(HOST_REGISTERED), 0, false)           \
    X(cuIpcOpenMemHandle, TAKES, GROUP(IPC), FOREIGN, false)                  \
    X(cuIpcOpenMemHandle_v2, TAKES, GROUP(IPC), FOREIGN, false)               \
    X(cuIpcCloseMemHandle, GIVES, GROUP(IPC), 0, false)                       \
    X(cuMulticastCreate, TAKES, GROUP(MULTICAST), FOREIGN, false)             \
    X(cuMulticastBindMem, MARKS, MARK(MULTICAST_BOUND), 0, false)             \
    X(cuMulticastBindAddr, MARKS, MARK(MULTICAST_BOUND), 0, false)            \
    X(cuMulticastUnbind, MARKS_BEFORE, MARK(MULTICAST_UNBOUND), 0, false)     \
    X(cuArrayCreate_v2, TAKES, GROUP(ARRAY), 0, false)                        \
    X(cuArray3DCreate_v2, TAKES, GROUP(ARRAY), 0, false)                      \
    X(cuMipmappedArrayCreate, TAKES, GROUP(ARRAY), 0, false)                  \
    X(cuArrayDestroy, GIVES, GROUP(ARRAY), 0, false)                          \
    X(cuMipmappedArrayDestroy, GIVES, GROUP(ARRAY), 0, false)                 \
    X(cuImportExternalMemory, TAKES, GROUP(EXTERNAL), FOREIGN, false)         \
    X(cuExternalMemoryGetMappedBuffer, TAKES, GROUP(IPC), FOREIGN, false)     \
    X(cuDestroyExternalMemory, GIVES, GROUP(EXTERNAL), 0, false)              \
    X(cuDevicePrimaryCtxRetain, LEARNS, 0, 0, false)                          \
    X(cuCtxCreate_v2, LEARNS, 0, 0, false)                                    \
    X(cuCtxCreate_v3, LEARNS, 0, 0, false)                                    \
    X(cuCtxCreate_v4, LEARNS, 0, 0, false)                                    \
    X(cuModuleLoad, MARKS, MARK(IMAGE_LOADED), 0, false)                      \
    X(cuModuleLoadData, MARKS, MARK(IMAGE_LOADED), 0, false)                  \
    X(cuModuleLoadDataEx, MARKS, MARK(IMAGE_LOADED), 0, false)                \
    X(cuModuleLoadFatBinary, MARKS, MARK(IMAGE_LOADED), 0, false)             \
    X(cuLibraryLoadData, MARKS, MARK(IMAGE_LOADED), 0, false)                 \
    X(cuLibraryLoadFromFile, MARKS, MARK(IMAGE_LOADED), 0, false)             \
    X(cuFuncLoad, MARKS, MARK(IMAGE_LOADED), 0, false)                        \
    X(cuModuleUnload, MARKS_BEFORE, MARK(IMAGE_UNLOADED), 0, false)           \
    X(cuLibraryUnload, MARKS_BEFORE, MARK(IMAGE_UNLOADED), 0, false)          \
    X(cuCtxSetLimit, MARKS, MARK(LIMIT_SET), 0, false)                        \
    X(cuGraphInstantiateWithFlags, MARKS, MARK(GRAPH_MADE), 0, false)         \
    X(cuGraphInstantiateWithParams, MARKS, MARK(GRAPH_MADE), 0, false)        \
    X(cuGraphInstantiateWithParams_ptsz, MARKS, MARK(GRAPH_MADE), 0, false)   \
    X(cuDeviceGraphMemTrim, MARKS, MARK(GRAPH_TRIMMED), 0, false)             \
    X(cuStreamBeginCapture_v2, MARKS, MARK(CAPTURE_BEGUN), 0, false)          \
    X(cuStreamBeginCapture_v2_ptsz, MARKS, MARK(CAPTURE_BEGUN), 0, false)     \
    X(cuStreamEndCapture, MARKS_BEFORE, MARK(CAPTURE_ENDED), 0, false)        \
    X(cuStreamEndCapture_ptsz, MARKS_BEFORE, MARK(CAPTURE_ENDED), 0, false)

enum {
#define X(name, role, group, flags, required) CALL_##name,
    CALL_LIST(X)
#undef X
    CALL_COUNT
};

static const mp_call_t calls[CALL_COUNT] = {
#define X(name, role, group, flags, required)                                 \
    {#name, MP_CALL_##role, group, flags, required},
    CALL_LIST(X)
#undef X
};

const char *
mp_cupti_calls_why_not(void)
{
    return NULL;
}

size_t
mp_cupti_calls_count(void)
{
    return CALL_COUNT;
}

const mp_call_t *
mp_cupti_call(size_t number)
{
    return number < CALL_COUNT ? &calls[number] : NULL;
}

/* ---- arrays: an estimate ------------------------------------------------ */

/* Bytes of one channel of one element; of compressed and video formats
 * about. */
static uint64_t
channel_bytes(CUarray_format format)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 1;
    }
}

static uint64_t
at_least_one(uint64_t number)
{
    return number > 0 ? number : 1;
}

static uint64_t
array_bytes(const CUDA_ARRAY_DESCRIPTOR *array)
{
    return array->Width * at_least_one(array->Height) * array->NumChannels *
           channel_bytes(array->Format);
}

static uint64_t
array3d_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels)
{
    uint64_t width = array->Width;
    uint64_t height = at_least_one(array->Height);
    uint64_t depth = at_least_one(array->Depth);
    uint64_t bytes = 0;
    for (unsigned i = 0; i < at_least_one(levels); i++) {
        bytes += width * height * depth;
        width = at_least_one(width / 2);
        height = at_least_one(height / 2);
        depth = at_least_one(depth / 2);
    }
    return bytes * array->NumChannels * channel_bytes(array->Format);
}

/* ---- decoding ----------------------------------------------------------- */

/* A case of a switch: the arguments of CALL are *p.  What a pointer to a
 * result leads to is there only once the call has succeeded. */
#define OUT(pointer) (done ? (uintptr_t) * (pointer) : 0)
#define TAKEN(call, address, bytes)                                           \
    case CALL_##call: {                                                       \
        const call##_params *p = params;                                      \
        fact->addr = (uintptr_t)(address);                                    \
        fact->size = (bytes);                                                 \
        break;                                                                \
    }
#define QUEUED(call)                                                          \
    case CALL_##call: {                                                       \
        const call##_params *p = params;                                      \
        fact->addr = OUT(p->dptr);                                            \
        fact->size = p->bytesize;                                             \
        fact->queue = (uintptr_t)p->hStream;                                  \
        break;                                                                \
    }
#define GIVEN(call, address)                                                  \
    case CALL_##call: {                                                       \
        const call##_params *p = params;                                      \
        fact->addr = (uintptr_t)(address);                                    \
        break;                                                                \
    }
#define OF_DEVICE(call, number)                                               \
    case CALL_##call: {                                                       \
        const call##_params *p = params;                                      \
        fact->device = (int16_t)(number);                                     \
        break;                                                                \
    }
#define WITH_OTHER(call, address, bytes, with)                                \
    case CALL_##call: {                                                       \
        const call##_params *p = params;                                      \
        fact->addr = (address);                                               \
        fact->size = (bytes);                                                 \
        fact->other = (with);                                                 \
        break;                                                                \
    }
#define CONTEXT(call)                                                         \
    case CALL_##call: {                                                       \
        const call##_params *p = params;                                      \
        fact->context = OUT(p->pctx);                                         \
        fact->context_device = (int16_t)p->dev;                               \
        break;                                                                \
    }

/* clang-format off */

static void
decode_linear(size_t number, const void *params, bool done,
              mp_call_fact_t *fact)
{
    switch (number) {
    TAKEN(cuMemAlloc_v2, OUT(p->dptr), p->bytesize)
    TAKEN(cuMemAllocPitch_v2, OUT(p->dptr),
          (done ? *p->pPitch : p->WidthInBytes) * p->Height)
    TAKEN(cuMemAllocManaged, OUT(p->dptr), p->bytesize)
    GIVEN(cuMemFree_v2, p->dptr)
    QUEUED(cuMemAllocAsync)
    QUEUED(cuMemAllocAsync_ptsz)
    QUEUED(cuMemAllocFromPoolAsync)
    QUEUED(cuMemAllocFromPoolAsync_ptsz)
    GIVEN(cuMemFreeAsync, p->dptr)
    GIVEN(cuMemFreeAsync_ptsz, p->dptr)
    GIVEN(cuMemPoolImportPointer, OUT(p->ptr_out))
    GIVEN(cuIpcOpenMemHandle, OUT(p->pdptr))
    GIVEN(cuIpcOpenMemHandle_v2, OUT(p->pdptr))
    GIVEN(cuIpcCloseMemHandle, p->dptr)
    TAKEN(cuExternalMemoryGetMappedBuffer, OUT(p->devPtr),
          p->bufferDesc->size)
    default:
        break;
    }
}

static void
decode_virtual(size_t number, const void *params, bool done,
               mp_call_fact_t *fact)
{
    switch (number) {
    TAKEN(cuMemCreate, OUT(p->handle), p->size)
    GIVEN(cuMemImportFromShareableHandle, OUT(p->handle))
    GIVEN(cuMemRetainAllocationHandle, OUT(p->handle))
    GIVEN(cuMemRelease, p->handle)
    WITH_OTHER(cuMemMap, p->ptr, p->size, p->handle)
    TAKEN(cuMemUnmap, p->ptr, p->size)
    TAKEN(cuMemAddressReserve, OUT(p->ptr), p->size)
    GIVEN(cuMemAddressFree, p->ptr)
    GIVEN(cuMemPoolCreate, OUT(p->pool))
    GIVEN(cuMemPoolImportFromShareableHandle, OUT(p->pool_out))
    GIVEN(cuMemPoolDestroy, p->pool)
    TAKEN(cuMulticastCreate, OUT(p->mcHandle), p->prop->size)
    default:
        break;
    }
    if (number == CALL_cuMemCreate) {
        const CUmemAllocationProp *prop =
            ((const cuMemCreate_params *)params)->prop;
        bool device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        fact->group = device ? MP_DRIVER_PHYSICAL : MP_DRIVER_HOST_PHYSICAL;
        fact->device = MP_DEVICE_CPU;
        if (device) {
            fact->device = (int16_t)prop->location.id;
        }
    }
    else if (number == CALL_cuMemPoolCreate) {
        const CUmemPoolProps *props =
            ((const cuMemPoolCreate_params *)params)->poolProps;
        if (props->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
            fact->device = (int16_t)props->location.id;
        }
    }
}

/* The second form of cuMemHostAlloc has the arguments of the first. */
#define cuMemHostAlloc_v2_params cuMemHostAlloc_params

static void
decode_other(size_t number, const void *params, bool done,
             mp_call_fact_t *fact)
{
    switch (number) {
    TAKEN(cuMemAllocHost_v2, OUT(p->pp), p->bytesize)
    TAKEN(cuMemHostAlloc, OUT(p->pp), p->bytesize)
    TAKEN(cuMemHostAlloc_v2, OUT(p->pp), p->bytesize)
    TAKEN(cuMemHostRegister, p->p, p->bytesize)
    TAKEN(cuMemHostRegister_v2, p->p, p->bytesize)
    GIVEN(cuMemFreeHost, p->p)
    GIVEN(cuMemHostUnregister, p->p)
    TAKEN(cuArrayCreate_v2, OUT(p->pHandle), array_bytes(p->pAllocateArray))
    TAKEN(cuArray3DCreate_v2, OUT(p->pHandle),
          array3d_bytes(p->pAllocateArray, 1))
    TAKEN(cuMipmappedArrayCreate, OUT(p->pHandle),
          array3d_bytes(p->pMipmappedArrayDesc, p->numMipmapLevels))
    GIVEN(cuArrayDestroy, p->hArray)
    GIVEN(cuMipmappedArrayDestroy, p->hMipmappedArray)
    TAKEN(cuImportExternalMemory, OUT(p->extMem_out), p->memHandleDesc->size)
    GIVEN(cuDestroyExternalMemory, p->extMem)
    CONTEXT(cuDevicePrimaryCtxRetain)
    CONTEXT(cuCtxCreate_v2)
    CONTEXT(cuCtxCreate_v3)
    CONTEXT(cuCtxCreate_v4)
    default:
        break;
    }
}

static void
decode_mark(size_t number, const void *params, bool done, mp_call_fact_t *fact)
{
    switch (number) {
    TAKEN(cuMemPoolTrimTo, p->pool, p->minBytesToKeep)
    WITH_OTHER(cuMulticastBindMem, p->mcHandle, p->size, p->memHandle)
    WITH_OTHER(cuMulticastBindAddr, p->mcHandle, p->size, p->memptr)
    TAKEN(cuMulticastUnbind, p->mcHandle, p->size)
    GIVEN(cuModuleLoad, OUT(p->module))
    GIVEN(cuModuleLoadData, OUT(p->module))
    GIVEN(cuModuleLoadDataEx, OUT(p->module))
    GIVEN(cuModuleLoadFatBinary, OUT(p->module))
    GIVEN(cuLibraryLoadData, OUT(p->library))
    GIVEN(cuLibraryLoadFromFile, OUT(p->library))
    GIVEN(cuFuncLoad, p->function)
    GIVEN(cuModuleUnload, p->hmod)
    GIVEN(cuLibraryUnload, p->library)
    TAKEN(cuCtxSetLimit, p->limit, p->value)
    GIVEN(cuGraphInstantiateWithFlags, OUT(p->phGraphExec))
    GIVEN(cuGraphInstantiateWithParams, OUT(p->phGraphExec))
    GIVEN(cuGraphInstantiateWithParams_ptsz, OUT(p->phGraphExec))
    OF_DEVICE(cuDeviceGraphMemTrim, p->device)
    GIVEN(cuStreamBeginCapture_v2, p->hStream)
    GIVEN(cuStreamBeginCapture_v2_ptsz, p->hStream)
    GIVEN(cuStreamEndCapture, p->hStream)
    GIVEN(cuStreamEndCapture_ptsz, p->hStream)
    default:
        break;
    }
}

/* clang-format on */

void
mp_cupti_call_decode(size_t number, const void *params, bool succeeded,
                     mp_call_fact_t *fact)
{
    *fact = (mp_call_fact_t){.device = MP_DEVICE_UNKNOWN};
    if (number >= CALL_COUNT) {
        return;
    }
    fact->group = calls[number].group;
    fact->flags = calls[number].flags;
    if (calls[number].role == MP_CALL_MARKS ||
        calls[number].role == MP_CALL_MARKS_BEFORE) {
        decode_mark(number, params, succeeded, fact);
        return;
    }
    if (fact->group == MP_DRIVER_HOST ||
        fact->group == MP_DRIVER_HOST_REGISTERED) {
        fact->device = MP_DEVICE_CPU;
    }
    /* Each knows its own calls alone. */
    decode_linear(number, params, succeeded, fact);
    decode_virtual(number, params, succeeded, fact);
    decode_other(number, params, succeeded, fact);
}

#endif
