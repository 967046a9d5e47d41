/* measure.c - one look at what the process and its devices hold. */
#include "measure.h"

#include "clock.h"
#include "gpu_driver.h"
#include "nvml.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What never changes about a device, once NVML was asked. */
typedef struct {
    bool known;
    mp_total_why_t why; /* no handle */
    mp_nvml_device_t handle;
    mp_total_memory_t memory;
} device_t;

static struct {
    pthread_mutex_t lock;
    bool atfork_set;
    device_t devices[MP_MEASURE_DEVICES];
} the_measure = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Whoever held the lock is not in the child. */
static void
fork_child(void)
{
    (void)pthread_mutex_init(&the_measure.lock, NULL);
    memset(the_measure.devices, 0, sizeof(the_measure.devices));
    mp_nvml_after_fork();
    mp_gpu_driver_after_fork();
}

static void
lock(void)
{
    (void)pthread_mutex_lock(&the_measure.lock);
    if (!the_measure.atfork_set) {
        the_measure.atfork_set = pthread_atfork(NULL, NULL, fork_child) == 0;
    }
}

static void
unlock(void)
{
    (void)pthread_mutex_unlock(&the_measure.lock);
}

static mp_total_t
blank(int16_t device)
{
    return (mp_total_t){
        .time_ns = mp_clock_now(),
        .event = -1,
        .process_bytes = -1,
        .device_used_bytes = -1,
        .device_total_bytes = -1,
        .device_reserved_bytes = -1,
        .pool_reserved_bytes = -1,
        .pool_used_bytes = -1,
        .step = -1,
        .device = device,
        .cause = MP_TOTAL_CAUSE_ASKED,
    };
}

/* ---- the host ----------------------------------------------------------- */

/* The bytes that a line "NAME:  n kB" of a file in /proc tells; -1: none. */
static int64_t
kilobytes(const char *text, const char *name)
{
    const char *line = strstr(text, name);
    if (line == NULL) {
        return -1;
    }
    errno = 0;
    char *end;
    long long value = strtoll(line + strlen(name), &end, 10);
    return errno == 0 && value > 0 && strncmp(end, " kB", 3) == 0
               ? value * 1024
               : -1;
}

/* Without stdio: that takes memory. */
static bool
read_text(const char *path, char *text, size_t size)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) {
        return false;
    }
    size_t length = 0;
    ssize_t got;
    while (length < size - 1 &&
           (got = read(file, text + length, size - 1 - length)) > 0) {
        length += (size_t)got;
    }
    (void)close(file);
    text[length] = '\0';
    return length > 0;
}

static void
measure_host(mp_total_t *out)
{
    char text[4096];
    if (read_text("/proc/self/status", text, sizeof(text))) {
        out->process_bytes = kilobytes(text, "\nVmRSS:");
    }
    if (read_text("/proc/meminfo", text, sizeof(text))) {
        int64_t total = kilobytes(text, "MemTotal:");
        int64_t available = kilobytes(text, "\nMemAvailable:");
        if (total > 0 && available > 0) {
            out->device_total_bytes = total;
            out->device_used_bytes = total - available;
        }
    }
    if (out->process_bytes >= 0) {
        out->method = MP_TOTAL_METHOD_OS_PROCESS;
    }
    else {
        out->why = MP_TOTAL_WHY_NO_PROC;
    }
    if (out->device_used_bytes >= 0) {
        out->device_method = MP_TOTAL_METHOD_OS_ALL;
    }
    else {
        out->device_why = MP_TOTAL_WHY_NO_PROC;
    }
}

/* ---- a device ----------------------------------------------------------- */

static const device_t *
device_of(int16_t number)
{
    static const device_t beyond = {.why = MP_TOTAL_WHY_NO_DEVICE};
    if (number >= MP_MEASURE_DEVICES) {
        return &beyond;
    }
    device_t *device = &the_measure.devices[number];
    if (!device->known) {
        uint8_t uuid[MP_GPU_UUID_BYTES];
        device->known = true;
        device->memory = mp_gpu_driver_memory_kind(number);
        device->why = mp_nvml_open();
        if (device->why == MP_TOTAL_WHY_NOTHING) {
            device->why = mp_gpu_driver_uuid(number, uuid)
                              ? mp_nvml_device(uuid, &device->handle)
                              : MP_TOTAL_WHY_NVML_UNKNOWN;
        }
    }
    return device;
}

/* The figures of the device: NVML's, else cuMemGetInfo's. */
static void
measure_memory(mp_total_t *out, const device_t *device, bool in_use)
{
    mp_nvml_memory_t memory;
    mp_total_why_t why = device->why;
    if (why == MP_TOTAL_WHY_NOTHING) {
        why = mp_nvml_memory(device->handle, &memory);
    }
    if (why == MP_TOTAL_WHY_NOTHING) {
        out->device_method = MP_TOTAL_METHOD_NVML_ALL;
        out->device_total_bytes = (int64_t)memory.total;
        out->device_used_bytes = (int64_t)(memory.total - memory.free);
        out->device_reserved_bytes = memory.reserved;
        return;
    }
    uint64_t free_bytes, total_bytes;
    if (in_use &&
        mp_gpu_driver_memory(out->device, &free_bytes, &total_bytes) &&
        total_bytes != 0) {
        out->device_method = MP_TOTAL_METHOD_CUDA_ALL;
        out->device_total_bytes = (int64_t)total_bytes;
        out->device_used_bytes = (int64_t)(total_bytes - free_bytes);
        return;
    }
    out->device_why = (uint8_t)(in_use ? MP_TOTAL_WHY_CUDA_FAILED : why);
}

static void
measure_process(mp_total_t *out, const device_t *device, bool in_use)
{
    uint64_t bytes = 0;
    mp_total_method_t method = MP_TOTAL_METHOD_NONE;
    mp_total_why_t why = device->why;
    if (why == MP_TOTAL_WHY_NOTHING) {
        why = mp_nvml_process(device->handle, in_use, &bytes, &method);
    }
    if (why == MP_TOTAL_WHY_NOTHING) {
        out->process_bytes = (int64_t)bytes;
        out->method = (uint8_t)method;
        return;
    }
    if (why == MP_TOTAL_WHY_NOT_LISTED && !in_use) {
        why = MP_TOTAL_WHY_NO_CONTEXT;
    }
    out->why = (uint8_t)why;
    /* What there is in its place. */
    out->method = out->device_method;
}

static void
measure_gpu(mp_total_t *out, bool in_use)
{
    const device_t *device = device_of(out->device);
    uint64_t reserved, used;
    out->memory = (uint8_t)device->memory;
    measure_memory(out, device, in_use);
    measure_process(out, device, in_use);
    if (in_use && mp_gpu_driver_pool(out->device, &reserved, &used)) {
        out->pool_reserved_bytes = (int64_t)reserved;
        out->pool_used_bytes = (int64_t)used;
    }
    out->made_reserved_bytes = (int64_t)mp_gpu_driver_made_pools(out->device);
}

void
mp_measure_device(int16_t device, mp_total_t *out)
{
    *out = blank(device);
    lock();
    if (device < 0) {
        measure_host(out);
    }
    else {
        int count = mp_gpu_driver_devices();
        if (device < count) {
            measure_gpu(out, mp_gpu_driver_in_use(device));
        }
        else {
            out->why =
                (uint8_t)(mp_gpu_driver_is_forked() ? MP_TOTAL_WHY_FORKED
                          : count == 0              ? MP_TOTAL_WHY_NO_CUDA
                                                    : MP_TOTAL_WHY_NO_DEVICE);
            out->device_why = out->why;
        }
    }
    unlock();
    out->cost_ns = mp_clock_now() - out->time_ns;
}

size_t
mp_measure_all(mp_total_t *rows, size_t capacity)
{
    size_t found = 0;
    lock();
    int count = mp_gpu_driver_devices();
    for (int i = 0;
         i < count && i < MP_MEASURE_DEVICES && found + 1 < capacity; i++) {
        if (mp_gpu_driver_in_use(i)) {
            mp_total_t *row = &rows[found++];
            *row = blank((int16_t)i);
            measure_gpu(row, true);
            row->cost_ns = mp_clock_now() - row->time_ns;
        }
    }
    if (found > 0) {
        mp_total_t *row = &rows[found++];
        *row = blank(-1);
        measure_host(row);
        row->cost_ns = mp_clock_now() - row->time_ns;
    }
    unlock();
    return found;
}
