/* fake_driver.c - a CUDA driver and an NVML of a few lines, to be scripted. */
#include "fake_driver.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

fake_driver_t fake_driver = {
#define X(name, value) .name = (value),
    FAKE_FIELD_LIST(X)
#undef X
        .used = {(uint64_t)642 << 20},
};

int
fake_driver_set(const char *name, uint64_t value)
{
#define X(field, start)                                                       \
    if (strcmp(name, #field) == 0) {                                          \
        fake_driver.field = value;                                            \
        return 1;                                                             \
    }
    FAKE_FIELD_LIST(X)
#undef X
    return 0;
}

uint64_t
fake_driver_get(const char *name)
{
#define X(field, start)                                                       \
    if (strcmp(name, #field) == 0) {                                          \
        return fake_driver.field;                                             \
    }
    FAKE_FIELD_LIST(X)
#undef X
    return UINT64_MAX;
}

void
fake_driver_process(unsigned index, uint64_t pid, uint64_t used)
{
    fake_driver.pid[index % FAKE_PROCESSES] = pid;
    fake_driver.used[index % FAKE_PROCESSES] = used;
}

/* ---- CUDA --------------------------------------------------------------- */

#define NOT_INITIALISED 3
#define INVALID_VALUE 1
#define INVALID_CONTEXT 201

static _Thread_local int capture_mode; /* 0: global, as threads begin */
static _Thread_local int current = -1;

/* Such a call is an error while another thread captures a stream. */
static void
unsafe(void)
{
    fake_driver.strict_calls += capture_mode != 2;
}

static bool
is_active(int device)
{
    return (fake_driver.active >> device & 1) != 0;
}

int
cuInit(unsigned flags)
{
    (void)flags;
    fake_driver.cuda_inits++;
    fake_driver.up = 1;
    return 0;
}

int
cuDeviceGetCount(int *count)
{
    if (!fake_driver.up) {
        return NOT_INITIALISED;
    }
    *count = (int)fake_driver.devices;
    return 0;
}

int
cuDeviceGet(int *handle, int ordinal)
{
    *handle = ordinal + 100; /* nobody says that they are equal */
    return ordinal < (int)fake_driver.devices ? 0 : INVALID_VALUE;
}

int
cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    *flags = 0;
    *active = is_active(device - 100);
    return 0;
}

int
cuDeviceGetUuid_v2(uint8_t *uuid, int device)
{
    for (int i = 0; i < 16; i++) {
        uuid[i] = (uint8_t)(i == 0 ? device - 100 : 0xA0 + i);
    }
    return 0;
}

int
cuDeviceGetAttribute(int *value, int attribute, int device)
{
    (void)device;
    *value = attribute == 18    ? (int)fake_driver.integrated
             : attribute == 100 ? (int)fake_driver.node
                                : 0;
    return 0;
}

int
cuDevicePrimaryCtxRetain(void **context, int device)
{
    unsafe();
    if (!is_active(device - 100)) {
        fake_driver.contexts_made++;
        fake_driver.active |= UINT64_C(1) << (device - 100);
    }
    fake_driver.retained++;
    *context = (void *)(uintptr_t)(device + 1000);
    return 0;
}

int
cuDevicePrimaryCtxRelease_v2(int device)
{
    (void)device;
    fake_driver.retained--;
    return 0;
}

int
cuCtxPushCurrent_v2(void *context)
{
    current = (int)(uintptr_t)context - 1100;
    fake_driver.pushed++;
    return 0;
}

int
cuCtxPopCurrent_v2(void **context)
{
    *context = NULL;
    current = -1;
    fake_driver.pushed--;
    return 0;
}

int
cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    unsafe();
    if (current < 0) {
        return INVALID_CONTEXT;
    }
    *free_bytes = (size_t)fake_driver.cuda_free;
    *total_bytes = (size_t)fake_driver.total + (size_t)current;
    return fake_driver.cuda_fails ? INVALID_VALUE : 0;
}

int
cuDeviceGetDefaultMemPool(void **pool, int device)
{
    unsafe();
    *pool = (void *)(uintptr_t)(device + 2000);
    return fake_driver.no_pools ? 801 : 0;
}

int
cuMemPoolGetAttribute(void *pool, int attribute, void *value)
{
    if ((uintptr_t)pool >= 3000) { /* the program's; odd ones are gone */
        *(uint64_t *)value = fake_driver.made_reserved;
        return (uintptr_t)pool % 2 != 0;
    }
    *(uint64_t *)value = attribute == 5   ? fake_driver.pool_reserved
                         : attribute == 7 ? fake_driver.pool_used
                                          : UINT64_MAX;
    return 0;
}

int
cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return 0;
}

/* ---- NVML --------------------------------------------------------------- */

#define INVALID_ARGUMENT 2
#define NOT_FOUND 6
#define TOO_SMALL 7

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} memory_v2_t;

typedef struct {
    unsigned long long total, free, used;
} memory_v1_t;

typedef struct {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
} process_t;

int
nvmlInit_v2(void)
{
    fake_driver.inits++;
    return (int)fake_driver.init_result;
}

int
nvmlDeviceGetHandleByUUID(const char *text, void **device)
{
    for (int i = 0; i < (int)fake_driver.devices; i++) {
        char wanted[64];
        (void)snprintf(wanted, sizeof(wanted),
                       "%s-%02xa1a2a3-a4a5-a6a7-a8a9-aaabacadaeaf",
                       fake_driver.mig ? "MIG" : "GPU", (unsigned)i);
        if (strcmp(text, wanted) == 0) {
            *device = (void *)(uintptr_t)(fake_driver.devices - (unsigned)i);
            return 0;
        }
    }
    return NOT_FOUND;
}

static uint64_t
total_of(const void *device)
{
    return fake_driver.total + fake_driver.devices - (uintptr_t)device;
}

int
nvmlDeviceGetMemoryInfo_v2(void *device, memory_v2_t *memory)
{
    if (memory->version != 0x02000028) {
        return INVALID_ARGUMENT;
    }
    if (fake_driver.v2_result == 0) {
        memory->total = total_of(device);
        memory->reserved = fake_driver.reserved;
        memory->free = fake_driver.free;
        memory->used = memory->total - memory->free - memory->reserved;
    }
    return (int)fake_driver.v2_result;
}

int
nvmlDeviceGetMemoryInfo(void *device, memory_v1_t *memory)
{
    if (fake_driver.v1_result == 0) {
        memory->total = total_of(device);
        memory->free = fake_driver.free;
        memory->used = memory->total - memory->free;
    }
    return (int)fake_driver.v1_result;
}

/* The named ones come last. */
int
nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count,
                                        process_t *list)
{
    (void)device;
    fake_driver.process_calls++;
    if (fake_driver.delay_us != 0) {
        (void)usleep((useconds_t)fake_driver.delay_us);
    }
    if (fake_driver.process_result != 0) {
        return (int)fake_driver.process_result;
    }
    uint64_t wanted = fake_driver.processes;
    fake_driver.processes += fake_driver.arrivals;
    if (*count < wanted) {
        *count = fake_driver.silent ? *count : (unsigned)wanted;
        return TOO_SMALL;
    }
    *count = (unsigned)wanted;
    for (uint64_t i = 0; i < wanted; i++) {
        uint64_t named = wanted - 1 - i;
        list[i] = (process_t){.pid = 1, .used = 1 << 20};
        if (named < FAKE_PROCESSES) {
            uint64_t pid = fake_driver.pid[named];
            list[i].pid = pid == 0 ? (unsigned)getpid() : (unsigned)pid;
            list[i].used = fake_driver.used[named];
        }
    }
    return 0;
}

int
nvmlDeviceGetComputeRunningProcesses_v2(void *device, unsigned *count,
                                        process_t *list)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, list);
}

/* ---- symbols ------------------------------------------------------------ */

void *
fake_driver_lookup(const char *name)
{
    for (int i = 0; i < FAKE_PROCESSES; i++) {
        if (fake_driver.missing[i] != NULL &&
            strcmp(name, fake_driver.missing[i]) == 0) {
            return NULL;
        }
    }
#define SYMBOL(function)                                                      \
    if (strcmp(name, #function) == 0) {                                       \
        void *found;                                                          \
        *(int (**)()) & found = (int (*)())(function);                        \
        return found;                                                         \
    }
    SYMBOL(cuDeviceGetCount)
    SYMBOL(cuDeviceGet)
    SYMBOL(cuDevicePrimaryCtxGetState)
    SYMBOL(cuDeviceGetUuid_v2)
    SYMBOL(cuDeviceGetAttribute)
    SYMBOL(cuDevicePrimaryCtxRetain)
    SYMBOL(cuDevicePrimaryCtxRelease_v2)
    SYMBOL(cuCtxPushCurrent_v2)
    SYMBOL(cuCtxPopCurrent_v2)
    SYMBOL(cuMemGetInfo_v2)
    SYMBOL(cuDeviceGetDefaultMemPool)
    SYMBOL(cuMemPoolGetAttribute)
    SYMBOL(cuThreadExchangeStreamCaptureMode)
    SYMBOL(nvmlInit_v2)
    SYMBOL(nvmlDeviceGetHandleByUUID)
    SYMBOL(nvmlDeviceGetMemoryInfo)
    SYMBOL(nvmlDeviceGetMemoryInfo_v2)
    SYMBOL(nvmlDeviceGetComputeRunningProcesses_v3)
    SYMBOL(nvmlDeviceGetComputeRunningProcesses_v2)
#undef SYMBOL
    return NULL;
}
