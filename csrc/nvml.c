/* nvml.c - NVIDIA's management library: what it says of a device's memory.
 *
 * There is no package of its headers: the few layouts and numbers used are
 * declared here. */
#include "nvml.h"

#include "mem.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LIBRARY "libnvidia-ml.so.1"
#define LIBRARY_VARIABLE "MEMPROF_NVML_LIB"

enum {
    SUCCESS = 0,
    NOT_SUPPORTED = 3,
    TOO_SMALL = 7,
};

#define NOT_AVAILABLE UINT64_MAX
#define MEMORY_VERSION 0x02000028u /* version 2 of 40 bytes */
#define MOST_PROCESSES 65536u
#define MORE_PROCESSES 8u /* that may come between two calls */
#define MOST_TRIES 8

typedef struct {
    uint32_t version;
    uint64_t total, reserved, free, used;
} memory_v2_t;

typedef struct {
    uint64_t total, free, used;
} memory_v1_t;

typedef struct {
    uint32_t pid;
    uint64_t used;
    uint32_t gpu_instance, compute_instance;
} process_t;

_Static_assert(sizeof(memory_v2_t) == 40, "as the version says");
_Static_assert(sizeof(process_t) == 24, "NVML's stride");

/* X(field, name, name of older drivers, arguments) */
#define FUNCTION_LIST(X)                                                      \
    X(init, "nvmlInit_v2", NULL, (void))                                      \
    X(by_uuid, "nvmlDeviceGetHandleByUUID", NULL,                             \
      (const char *, mp_nvml_device_t *))                                     \
    X(memory_v1, "nvmlDeviceGetMemoryInfo", NULL,                             \
      (mp_nvml_device_t, memory_v1_t *))                                      \
    X(memory_v2, "nvmlDeviceGetMemoryInfo_v2", NULL,                          \
      (mp_nvml_device_t, memory_v2_t *))                                      \
    X(processes, "nvmlDeviceGetComputeRunningProcesses_v3",                   \
      "nvmlDeviceGetComputeRunningProcesses_v2",                              \
      (mp_nvml_device_t, uint32_t *, process_t *))

static struct {
    bool opened; /* or it was tried, and WHY says why not */
    mp_total_why_t why;
    bool of_tests;
    void *(*lookup)(const char *name); /* of tests */
    process_t *list;
    uint32_t capacity;
#define X(field, name, older, arguments) int(*field) arguments;
    FUNCTION_LIST(X)
#undef X
} nvml;

void
mp_nvml_use(void *(*lookup)(const char *name))
{
    nvml.opened = false;
    nvml.of_tests = true;
    nvml.lookup = lookup;
    mp_free(nvml.list);
    nvml.list = NULL;
    nvml.capacity = 0;
}

/* The library has its parent's files open and its parent's locks, perhaps
 * held; but if nobody has opened it, the child may. */
void
mp_nvml_after_fork(void)
{
    if (nvml.opened) {
        nvml.why = MP_TOTAL_WHY_FORKED;
    }
}

static void *
symbol(void *library, const char *name)
{
    if (name == NULL) {
        return NULL;
    }
    return nvml.of_tests ? nvml.lookup(name) : dlsym(library, name);
}

static mp_total_why_t
open_library(void)
{
    void *library = NULL;
    if (!nvml.of_tests) {
        const char *name = getenv(LIBRARY_VARIABLE);
        name = name != NULL && name[0] != '\0' ? name : LIBRARY;
        library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (nvml.of_tests ? nvml.lookup == NULL : library == NULL) {
        return MP_TOTAL_WHY_NO_NVML;
    }
    /* The detour that POSIX gives for function pointers. */
#define X(field, name, older, arguments)                                      \
    *(void **)&nvml.field = symbol(library, name);                            \
    if (nvml.field == NULL) {                                                 \
        *(void **)&nvml.field = symbol(library, older);                       \
    }
    FUNCTION_LIST(X)
#undef X
    if (nvml.init == NULL || nvml.by_uuid == NULL) {
        return MP_TOTAL_WHY_NVML_TOO_OLD;
    }
    return nvml.init() == SUCCESS ? MP_TOTAL_WHY_NOTHING
                                  : MP_TOTAL_WHY_NVML_INIT;
}

mp_total_why_t
mp_nvml_open(void)
{
    if (!nvml.opened) {
        nvml.opened = true; /* before: a fork meanwhile must see it */
        nvml.why = open_library();
    }
    return nvml.why;
}

static mp_total_why_t
why_of(int result)
{
    switch (result) {
    case SUCCESS:
        return MP_TOTAL_WHY_NOTHING;
    case NOT_SUPPORTED:
        return MP_TOTAL_WHY_NOT_SUPPORTED;
    default:
        return MP_TOTAL_WHY_FAILED;
    }
}

/* ---- devices ------------------------------------------------------------ */

mp_total_why_t
mp_nvml_device(const uint8_t uuid[MP_GPU_UUID_BYTES], mp_nvml_device_t *device)
{
    static const char *const kinds[] = {"GPU", "MIG"};
    if (nvml.why != MP_TOTAL_WHY_NOTHING) {
        return nvml.why;
    }
    for (size_t i = 0; i < MP_ARRAY_LENGTH(kinds); i++) {
        char text[64];
        size_t length = (size_t)snprintf(text, sizeof(text), "%s-", kinds[i]);
        for (size_t k = 0; k < MP_GPU_UUID_BYTES; k++) {
            const char *form =
                k == 4 || k == 6 || k == 8 || k == 10 ? "-%02x" : "%02x";
            length += (size_t)snprintf(text + length, sizeof(text) - length,
                                       form, uuid[k]);
        }
        if (nvml.by_uuid(text, device) == SUCCESS) {
            return MP_TOTAL_WHY_NOTHING;
        }
    }
    return MP_TOTAL_WHY_NVML_UNKNOWN;
}

mp_total_why_t
mp_nvml_memory(mp_nvml_device_t device, mp_nvml_memory_t *out)
{
    memory_v2_t v2 = {.version = MEMORY_VERSION};
    /* All zero: an integrated GPU may answer so, and no device has none. */
    if (nvml.memory_v2 != NULL && nvml.memory_v2(device, &v2) == SUCCESS &&
        v2.total != 0) {
        *out = (mp_nvml_memory_t){.total = v2.total,
                                  .free = v2.free,
                                  .reserved = (int64_t)v2.reserved};
        return MP_TOTAL_WHY_NOTHING;
    }
    memory_v1_t v1 = {0};
    if (nvml.memory_v1 == NULL) {
        return nvml.memory_v2 == NULL ? MP_TOTAL_WHY_NVML_TOO_OLD
                                      : MP_TOTAL_WHY_NOT_SUPPORTED;
    }
    mp_total_why_t why = why_of(nvml.memory_v1(device, &v1));
    if (why == MP_TOTAL_WHY_NOTHING && v1.total == 0) {
        why = MP_TOTAL_WHY_NOT_SUPPORTED;
    }
    *out =
        (mp_nvml_memory_t){.total = v1.total, .free = v1.free, .reserved = -1};
    return why;
}

/* ---- processes ---------------------------------------------------------- */

static bool
make_room(uint32_t capacity)
{
    if (capacity <= nvml.capacity) {
        return true;
    }
    process_t *list = mp_realloc(nvml.list, capacity * sizeof(*list));
    if (list == NULL) {
        return false;
    }
    nvml.list = list;
    nvml.capacity = capacity;
    return true;
}

/* *COUNT processes in nvml.list. */
static mp_total_why_t
list_processes(mp_nvml_device_t device, uint32_t *count)
{
    if (nvml.processes == NULL) {
        return MP_TOTAL_WHY_NVML_TOO_OLD;
    }
    uint32_t wanted = 2 * MORE_PROCESSES;
    for (int i = 0; i < MOST_TRIES && make_room(wanted); i++) {
        *count = nvml.capacity;
        int result = nvml.processes(device, count, nvml.list);
        if (result != TOO_SMALL) {
            if (*count > nvml.capacity) {
                *count = nvml.capacity;
            }
            return why_of(result);
        }
        /* It may not say how many there are. */
        wanted = *count > nvml.capacity ? *count : 2 * nvml.capacity;
        if (wanted > MOST_PROCESSES) {
            break;
        }
        wanted += MORE_PROCESSES;
    }
    return MP_TOTAL_WHY_FAILED;
}

/* A process has an entry for each compute instance of a GPU. */
mp_total_why_t
mp_nvml_process(mp_nvml_device_t device, bool in_use, uint64_t *bytes,
                mp_total_method_t *method)
{
    uint32_t count = 0;
    mp_total_why_t why = list_processes(device, &count);
    if (why != MP_TOTAL_WHY_NOTHING) {
        return why;
    }
    uint32_t mine = (uint32_t)getpid();
    bool listed = false, told = false;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (nvml.list[i].pid == mine) {
            listed = true;
            if (nvml.list[i].used != NOT_AVAILABLE) {
                told = true;
                sum += nvml.list[i].used;
            }
        }
    }
    *bytes = sum;
    *method = MP_TOTAL_METHOD_NVML_PROCESS;
    if (listed) {
        return !told      ? MP_TOTAL_WHY_NOT_AVAILABLE
               : sum == 0 ? MP_TOTAL_WHY_ZERO
                          : MP_TOTAL_WHY_NOTHING;
    }
    if (count == 1 && in_use && nvml.list[0].used == NOT_AVAILABLE) {
        return MP_TOTAL_WHY_NOT_AVAILABLE;
    }
    if (count == 1 && in_use && nvml.list[0].used != 0) {
        *bytes = nvml.list[0].used;
        *method = MP_TOTAL_METHOD_NVML_ONLY;
        return MP_TOTAL_WHY_NOTHING;
    }
    return MP_TOTAL_WHY_NOT_LISTED;
}
