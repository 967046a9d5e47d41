/* fake_activity.c - the fake libcupti's activity API: buffers and records. */
#include "fake_activity.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum {
    OK = 0,
    MAX_LIMIT = 12,
    UNKNOWN_KIND = 21
};

typedef void (*request_t)(uint8_t **buffer, size_t *size, size_t *most);
typedef void (*complete_t)(void *context, uint32_t stream, uint8_t *buffer,
                           size_t size, size_t valid);

static struct {
    pthread_mutex_t lock;
    request_t request;
    complete_t complete;
    bool on[64];
    bool hold;
    size_t longer, dropped;
    int64_t clock;
    uint8_t *buffer; /* of the "thread" that launches */
    size_t size, used;
} fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t
length_of(uint32_t kind)
{
    uint32_t version = fakecupti_version();
    switch (kind) {
    case 10:
        return (version < 19       ? 200
                : version < 130000 ? 208
                                   : 216) +
               fake.longer;
    case 1:
        return (version < 26 ? 88 : 96) + fake.longer;
    case 22:
        return 96 + fake.longer;
    case 2:
        return 88 + fake.longer;
    case 17: /* OVERHEAD, which nobody asked for */
        return 56 + fake.longer;
    default:
        return 0;
    }
}

FAKE_API int
cuptiGetTimestamp(uint64_t *now)
{
    int code = fakecupti_called("cuptiGetTimestamp");
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    *now = (uint64_t)(time.tv_sec * INT64_C(1000000000) + time.tv_nsec +
                      fake.clock);
    return code < 0 ? OK : code;
}

FAKE_API int
cuptiActivityRegisterCallbacks(request_t request, complete_t complete)
{
    int code = fakecupti_called("cuptiActivityRegisterCallbacks");
    if (code < 0) {
        pthread_mutex_lock(&fake.lock);
        fake.request = request;
        fake.complete = complete;
        pthread_mutex_unlock(&fake.lock);
    }
    return code < 0 ? OK : code;
}

static int
turn(int kind, bool on)
{
    if (kind <= 0 || kind >= 64 || length_of((uint32_t)kind) == 0) {
        return UNKNOWN_KIND;
    }
    pthread_mutex_lock(&fake.lock);
    fake.on[kind] = on;
    pthread_mutex_unlock(&fake.lock);
    return OK;
}

FAKE_API int
cuptiActivityEnable(int kind)
{
    int code = fakecupti_called("cuptiActivityEnable");
    return code < 0 ? turn(kind, true) : code;
}

FAKE_API int
cuptiActivityDisable(int kind)
{
    int code = fakecupti_called("cuptiActivityDisable");
    return code < 0 ? turn(kind, false) : code;
}

FAKE_API int
cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, void **record)
{
    uint8_t *at = buffer;
    uint32_t kind;
    if (*record != NULL) {
        memcpy(&kind, *record, sizeof(kind));
        at = (uint8_t *)*record + length_of(kind);
    }
    if (at + sizeof(kind) > buffer + valid) {
        return MAX_LIMIT;
    }
    memcpy(&kind, at, sizeof(kind));
    size_t length = length_of(kind);
    if (length == 0) {
        return UNKNOWN_KIND;
    }
    if (at + length > buffer + valid) {
        return MAX_LIMIT;
    }
    *record = at;
    return OK;
}

FAKE_API int
cuptiActivityGetNumDroppedRecords(void *context, uint32_t stream,
                                  size_t *count)
{
    (void)context;
    (void)stream;
    pthread_mutex_lock(&fake.lock);
    *count = fake.dropped;
    fake.dropped = 0;
    pthread_mutex_unlock(&fake.lock);
    return OK;
}

/* The lock is not held while a callback runs: it may be waited for. */
static void
give_back(size_t bytes)
{
    pthread_mutex_lock(&fake.lock);
    uint8_t *buffer = fake.buffer;
    size_t size = fake.size;
    size_t valid = bytes < fake.used ? bytes : fake.used;
    complete_t complete = fake.complete;
    fake.buffer = NULL;
    fake.used = 0;
    pthread_mutex_unlock(&fake.lock);
    if (buffer != NULL) {
        complete(NULL, 0, buffer, size, valid);
    }
}

FAKE_API int
cuptiActivityFlushAll(uint32_t flag)
{
    (void)flag;
    int code = fakecupti_called("cuptiActivityFlushAll");
    if (!fake.hold) {
        give_back(SIZE_MAX);
    }
    return code < 0 ? OK : code;
}

static void
put(uint8_t *record, size_t offset, const void *value, size_t bytes)
{
    memcpy(record + offset, value, bytes);
}

static void
write_record(uint8_t *record, const fakecupti_work_t *work)
{
    uint32_t kind = (uint32_t)work->kind;
    bool kernel = kind == 10;
    memset(record, 0xdb, length_of(kind));
    put(record, 0, &kind, 4);
    put(record, 16, &work->start, 8);
    put(record, 24, &work->end, 8);
    put(record, kernel ? 40 : 32, &work->device, 4);
    put(record, kernel ? 48 : 40, &work->stream, 4);
    put(record, kernel ? 92 : kind == 22 ? 60 : 44, &work->correlation, 4);
    if (kernel) {
        put(record, 104, &work->name, 8);
        return;
    }
    put(record, 8, &work->bytes, 8);
    if (kind == 2) {
        uint16_t memory = (uint16_t)work->target;
        put(record, 50, &memory, 2);
        return;
    }
    uint8_t copy[3] = {(uint8_t)work->copy_kind, (uint8_t)work->source,
                       (uint8_t)work->target};
    put(record, 4, copy, 3);
}

/* A buffer of CUPTI's own from whoever records; false: there is none. */
static bool
ask_for_buffer(void)
{
    uint8_t *buffer = NULL;
    size_t size = 0, most = 1;
    pthread_mutex_lock(&fake.lock);
    request_t request = fake.request;
    pthread_mutex_unlock(&fake.lock);
    request(&buffer, &size, &most);
    pthread_mutex_lock(&fake.lock);
    fake.buffer = buffer;
    fake.size = size;
    fake.used = 0;
    fake.dropped += buffer == NULL;
    pthread_mutex_unlock(&fake.lock);
    return buffer != NULL;
}

FAKE_API int
fakecupti_work(const fakecupti_work_t *work)
{
    size_t length = length_of((uint32_t)work->kind);
    pthread_mutex_lock(&fake.lock);
    bool wanted = work->kind == 17 || fake.on[work->kind];
    bool full = fake.buffer != NULL && fake.used + length > fake.size;
    bool none = full || fake.buffer == NULL;
    pthread_mutex_unlock(&fake.lock);
    if (!wanted) {
        return 0;
    }
    if (full) {
        give_back(SIZE_MAX);
    }
    if (none && !ask_for_buffer()) {
        return 0;
    }
    pthread_mutex_lock(&fake.lock);
    bool there = fake.buffer != NULL; /* else it was flushed meanwhile */
    if (there) {
        write_record(fake.buffer + fake.used, work);
        fake.used += length;
    }
    pthread_mutex_unlock(&fake.lock);
    return there;
}

FAKE_API uint64_t
fakecupti_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    return (uint64_t)(time.tv_sec * INT64_C(1000000000) + time.tv_nsec +
                      fake.clock);
}

FAKE_API int
fakecupti_ran(int kind, const char *name, int64_t start, int64_t end,
              uint64_t bytes, uint32_t device, uint32_t stream,
              uint32_t correlation)
{
    uint64_t now = fakecupti_now();
    fakecupti_work_t work = {
        .kind = kind,
        .start = now + (uint64_t)start,
        .end = now + (uint64_t)end,
        .bytes = bytes,
        .device = device,
        .stream = stream,
        .correlation = correlation,
        .name = name,
        .copy_kind = 1,
        .source = 2,
        .target = 3,
    };
    return fakecupti_work(&work);
}

static void *
its_thread(void *unused)
{
    (void)unused;
    give_back(SIZE_MAX);
    return NULL;
}

FAKE_API void
fakecupti_give_back(int its)
{
    pthread_t thread;
    if (its && pthread_create(&thread, NULL, its_thread, NULL) == 0) {
        pthread_join(thread, NULL);
        return;
    }
    give_back(SIZE_MAX);
}

FAKE_API void
fakecupti_give_back_cut(size_t bytes)
{
    give_back(bytes);
}

FAKE_API int
fakecupti_take_buffers(int count)
{
    int got = 0;
    for (int i = 0; i < count; i++) {
        uint8_t *buffer = NULL;
        size_t size = 0, most = 1;
        fake.request(&buffer, &size, &most);
        got += buffer != NULL;
        if (buffer != NULL) { /* CUPTI writes to all of it */
            buffer[0] = 0;
            buffer[size - 1] = 0;
        }
    }
    return got;
}

FAKE_API void
fakecupti_hold_buffers(int hold)
{
    fake.hold = hold != 0;
}

FAKE_API void
fakecupti_set_longer(size_t bytes)
{
    fake.longer = bytes;
}

FAKE_API void
fakecupti_drop(size_t count)
{
    pthread_mutex_lock(&fake.lock);
    fake.dropped += count;
    pthread_mutex_unlock(&fake.lock);
}

FAKE_API void
fakecupti_set_clock(int64_t ns)
{
    fake.clock = ns;
}

FAKE_API int
fakecupti_kinds(void)
{
    int count = 0;
    for (int i = 0; i < 64; i++) {
        count += fake.on[i];
    }
    return count;
}

static void
no_request(uint8_t **buffer, size_t *size, size_t *most)
{
    *buffer = NULL;
    *size = *most = 0;
}

static void
no_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size,
            size_t valid)
{
    (void)context;
    (void)stream;
    (void)buffer;
    (void)size;
    (void)valid;
}

FAKE_API void
fakecupti_replace_callbacks(void)
{
    fake.request = no_request;
    fake.complete = no_complete;
}
