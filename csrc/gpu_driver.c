/* gpu_driver.c - the few questions that a running CUDA driver is asked.
 *
 * The declarations are ours: there are no headers of CUDA at hand. */
#include "gpu_driver.h"

#include "clock.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"
#define LIBRARY_VARIABLE "MEMPROF_CUDA_LIB"

/* CUdevice_attribute, CUmemPool_attribute, CUstreamCaptureMode */
#define ATTRIBUTE_INTEGRATED 18
#define ATTRIBUTE_USES_HOST_PAGE_TABLES 100
#define POOL_RESERVED_CURRENT 5
#define POOL_USED_CURRENT 7
#define CAPTURE_RELAXED 2

/* X(field, name, name of older drivers, arguments) */
#define FUNCTION_LIST(X)                                                      \
    X(count, "cuDeviceGetCount", NULL, (int *))                               \
    X(get, "cuDeviceGet", NULL, (int *, int))                                 \
    X(state, "cuDevicePrimaryCtxGetState", NULL,                              \
      (int, unsigned int *, int *))                                           \
    X(uuid, "cuDeviceGetUuid_v2", "cuDeviceGetUuid", (uint8_t *, int))        \
    X(attribute, "cuDeviceGetAttribute", NULL, (int *, int, int))             \
    X(retain, "cuDevicePrimaryCtxRetain", NULL, (void **, int))               \
    X(release, "cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease",   \
      (int))                                                                  \
    X(push, "cuCtxPushCurrent_v2", NULL, (void *))                            \
    X(pop, "cuCtxPopCurrent_v2", NULL, (void **))                             \
    X(memory, "cuMemGetInfo_v2", NULL, (size_t *, size_t *))                  \
    X(pool, "cuDeviceGetDefaultMemPool", NULL, (void **, int))                \
    X(pool_attribute, "cuMemPoolGetAttribute", NULL, (void *, int, void *))   \
    X(capture_mode, "cuThreadExchangeStreamCaptureMode", NULL, (int *))

static struct {
    bool found;
    bool up;                           /* it was, once */
    bool forked;                       /* from a process in which it was */
    void *(*lookup)(const char *name); /* tests; NULL: the library's */
#define X(field, name, older, arguments) int(*field) arguments;
    FUNCTION_LIST(X)
#undef X
} driver;

void
mp_gpu_driver_use(void *(*lookup)(const char *name))
{
    driver.lookup = lookup;
    driver.found = false;
}

void
mp_gpu_driver_after_fork(void)
{
    driver.forked = driver.forked || driver.up;
}

bool
mp_gpu_driver_is_forked(void)
{
    return driver.forked;
}

static void *
symbol(void *library, const char *name)
{
    if (name == NULL) {
        return NULL;
    }
    return driver.lookup != NULL ? driver.lookup(name) : dlsym(library, name);
}

/* NOLOAD: if nobody in the process has mapped it, nobody uses CUDA. */
static bool
find(void)
{
    if (driver.found) {
        return true;
    }
    void *library = NULL;
    if (driver.lookup == NULL) {
        const char *name = getenv(LIBRARY_VARIABLE);
        name = name != NULL && name[0] != '\0' ? name : LIBRARY;
        library = dlopen(name, RTLD_NOLOAD | RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            return false;
        }
    }
    /* The detour that POSIX gives for function pointers. */
#define X(field, name, older, arguments)                                      \
    *(void **)&driver.field = symbol(library, name);                          \
    if (driver.field == NULL) {                                               \
        *(void **)&driver.field = symbol(library, older);                     \
    }
    FUNCTION_LIST(X)
#undef X
    driver.found = true;
    return true;
}

int
mp_gpu_driver_devices(void)
{
    int count = 0;
    if (driver.forked || !find() || driver.count == NULL ||
        driver.get == NULL || driver.state == NULL ||
        driver.count(&count) != 0) { /* 3: cuInit was not called */
        return 0;
    }
    driver.up = true;
    return count;
}

static bool
handle_of(int device, int *handle)
{
    return device >= 0 && device < mp_gpu_driver_devices() &&
           driver.get(handle, device) == 0;
}

bool
mp_gpu_driver_in_use(int device)
{
    int handle, active = 0;
    unsigned int flags;
    return handle_of(device, &handle) &&
           driver.state(handle, &flags, &active) == 0 && active != 0;
}

bool
mp_gpu_driver_uuid(int device, uint8_t uuid[MP_GPU_UUID_BYTES])
{
    int handle;
    return handle_of(device, &handle) && driver.uuid != NULL &&
           driver.uuid(uuid, handle) == 0;
}

static bool
has(int handle, int attribute)
{
    int value = 0;
    return driver.attribute != NULL &&
           driver.attribute(&value, attribute, handle) == 0 && value != 0;
}

mp_total_memory_t
mp_gpu_driver_memory_kind(int device)
{
    int handle;
    if (handle_of(device, &handle)) {
        if (has(handle, ATTRIBUTE_INTEGRATED)) {
            return MP_TOTAL_MEMORY_INTEGRATED;
        }
        if (has(handle, ATTRIBUTE_USES_HOST_PAGE_TABLES)) {
            return MP_TOTAL_MEMORY_NODE;
        }
    }
    return MP_TOTAL_MEMORY_OWN;
}

/* While some thread captures a stream, others' calls could end the capture;
 * not those of a thread that is relaxed.  To go back: the same call. */
static void
exchange_capture_mode(int *mode)
{
    if (driver.capture_mode != NULL) {
        (void)driver.capture_mode(mode);
    }
}

/* The context is there, so retaining it makes none. */
static bool
ask_memory(int handle, size_t *free_bytes, size_t *total_bytes)
{
    void *context;
    if (driver.retain(&context, handle) != 0) {
        return false;
    }
    bool fine = false;
    if (driver.push(context) == 0) {
        fine = driver.memory(free_bytes, total_bytes) == 0;
        (void)driver.pop(&context);
    }
    (void)driver.release(handle);
    return fine;
}

bool
mp_gpu_driver_memory(int device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    int handle;
    if (!mp_gpu_driver_in_use(device) || driver.get(&handle, device) != 0 ||
        driver.retain == NULL || driver.release == NULL ||
        driver.push == NULL || driver.pop == NULL || driver.memory == NULL) {
        return false;
    }
    size_t found_free = 0, found_total = 0;
    int mode = CAPTURE_RELAXED;
    exchange_capture_mode(&mode);
    bool fine = ask_memory(handle, &found_free, &found_total);
    exchange_capture_mode(&mode);
    *free_bytes = found_free;
    *total_bytes = found_total;
    return fine;
}

bool
mp_gpu_driver_pool(int device, uint64_t *reserved_bytes, uint64_t *used_bytes)
{
    int handle;
    void *pool;
    if (!mp_gpu_driver_in_use(device) || driver.get(&handle, device) != 0 ||
        driver.pool == NULL || driver.pool_attribute == NULL) {
        return false;
    }
    int mode = CAPTURE_RELAXED;
    exchange_capture_mode(&mode);
    bool fine =
        driver.pool(&pool, handle) == 0 &&
        driver.pool_attribute(pool, POOL_RESERVED_CURRENT, reserved_bytes) ==
            0 &&
        driver.pool_attribute(pool, POOL_USED_CURRENT, used_bytes) == 0;
    exchange_capture_mode(&mode);
    return fine;
}

/* ---- pools that the program made -----------------------------------------
 */

#define MADE_POOLS 64
#define WAIT_NS INT64_C(10000000)

static struct {
    _Atomic(uint64_t) pool; /* 0: none */
    atomic_int device;      /* plus 1; 0: not yet */
} the_pools[MADE_POOLS];
static _Atomic(uint64_t) the_asked; /* the pool that is asked now; 0: none */

void
mp_gpu_driver_pool_made(uint64_t pool, int16_t device)
{
    for (size_t i = 0; device >= 0 && i < MADE_POOLS; i++) {
        uint64_t nothing = 0;
        if (atomic_compare_exchange_strong(&the_pools[i].pool, &nothing,
                                           pool)) {
            atomic_store(&the_pools[i].device, device + 1);
            return;
        }
    }
}

/* Whoever asks says so first and then looks whether the pool is still there;
 * whoever destroys it takes it away first and then looks whether it is asked:
 * one of the two sees the other. */
static void
wait_until_not_asked(uint64_t pool)
{
    int64_t until = mp_clock_now() + WAIT_NS;
    while (atomic_load(&the_asked) == pool && mp_clock_now() < until) {
    }
}

void
mp_gpu_driver_pool_gone(uint64_t pool)
{
    for (size_t i = 0; i < MADE_POOLS; i++) {
        if (atomic_load(&the_pools[i].pool) == pool) {
            atomic_store(&the_pools[i].device, 0);
            atomic_store(&the_pools[i].pool, 0);
            wait_until_not_asked(pool);
        }
    }
}

void
mp_gpu_driver_forget_pools(void)
{
    for (size_t i = 0; i < MADE_POOLS; i++) {
        atomic_store(&the_pools[i].device, 0);
        uint64_t pool = atomic_exchange(&the_pools[i].pool, 0);
        if (pool != 0) {
            wait_until_not_asked(pool);
        }
    }
}

uint64_t
mp_gpu_driver_made_pools(int device)
{
    uint64_t sum = 0;
    if (!mp_gpu_driver_in_use(device) || driver.pool_attribute == NULL) {
        return 0;
    }
    int mode = CAPTURE_RELAXED;
    exchange_capture_mode(&mode);
    for (size_t i = 0; i < MADE_POOLS; i++) {
        uint64_t reserved = 0;
        uint64_t pool = atomic_load(&the_pools[i].pool);
        if (pool == 0 || atomic_load(&the_pools[i].device) != device + 1) {
            continue;
        }
        atomic_store(&the_asked, pool);
        if (atomic_load(&the_pools[i].pool) == pool &&
            driver.pool_attribute((void *)(uintptr_t)pool,
                                  POOL_RESERVED_CURRENT, &reserved) == 0) {
            sum += reserved;
        }
        atomic_store(&the_asked, 0);
    }
    exchange_capture_mode(&mode);
    return sum;
}
