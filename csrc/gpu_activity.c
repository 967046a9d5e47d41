/* gpu_activity.c - what runs on GPUs, recorded by CUPTI's activity API.
 *
 * CUPTI asks for a buffer on a thread that launches work and gives it back on
 * one of its own, or inside of a flush, perhaps under a lock of its own: both
 * callbacks change one number and leave.  The drain thread reads what was
 * given back. */
#include "gpu_activity.h"

#include "clock.h"
#include "clock_pairs.h"
#include "cupti_records.h"
#include "hook.h"
#include "mem.h"
#include "table.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LARGE ((size_t)1 << 20)
#define LARGE_COUNT 28
#define SMALL ((size_t)1 << 16) /* where the large ones are used up */
#define SMALL_COUNT 64
#define COUNT (LARGE_COUNT + SMALL_COUNT)
#define NULL_ALLOWED 27 /* an earlier CUPTI crashes if it gets no buffer */
#define BATCH 256
#define AT_ONCE 65536 /* events; a quarter of the log */
#define FORCED 1u
#define END_OF_RECORDS 12 /* CUPTI's: or the last one is cut */
#define MAX_NAME 2000

_Static_assert(LARGE_COUNT *LARGE + SMALL_COUNT * SMALL == MP_ACTIVITY_BUDGET,
               "what the budget says");

enum {
    FREE,
    LENT,
    FULL
};

typedef struct {
    atomic_int state;
    atomic_uint generation; /* of the start in which it was lent */
    atomic_size_t valid;
} buffer_t;

/* What CUPTI's callbacks touch. */
static _Atomic(uint8_t *) the_arena;
static buffer_t the_buffers[COUNT];
static atomic_uint the_generation;
static atomic_uint the_version;
static atomic_uint the_waiting;         /* buffers given back and not read */
static atomic_uint_fast64_t the_strays; /* given back, and not ours to read */
static atomic_uint_fast64_t the_launches;
static atomic_bool the_recording;

/* The control mutex. */
static struct {
    mp_clock_pairs_t clock;
    mp_table_t *names; /* string id of a mangled name -> of the plain one */
    char *(*demangle)(const char *name, char *buffer, size_t *length,
                      int *status);
    bool looked_for_demangle;
    uint64_t began; /* CUPTI's time of the start */
    uint64_t records;
    uint64_t lost[MP_GPU_LOST_END];
    uint64_t told[MP_GPU_LOST_END]; /* of these, by an event */
} the_activity;

static const int kinds[] = {MP_CUPTI_KERNEL, MP_CUPTI_MEMCPY,
                            MP_CUPTI_MEMCPY_PEER, MP_CUPTI_MEMSET};

/* ---- buffers ------------------------------------------------------------ */

static size_t
size_of(size_t number)
{
    return number < LARGE_COUNT ? LARGE : SMALL;
}

static uint8_t *
buffer_at(size_t number)
{
    uint8_t *arena = atomic_load(&the_arena);
    return number < LARGE_COUNT
               ? arena + number * LARGE
               : arena + LARGE_COUNT * LARGE + (number - LARGE_COUNT) * SMALL;
}

/* The number of a buffer; COUNT: it is not one of ours. */
static size_t
number_of(const uint8_t *buffer)
{
    for (size_t i = 0; i < COUNT; i++) {
        if (atomic_load(&the_arena) != NULL && buffer == buffer_at(i)) {
            return i;
        }
    }
    return COUNT;
}

static void
request(uint8_t **buffer, size_t *size, size_t *max_records)
{
    *max_records = 0; /* as many as fit */
    for (size_t i = 0; i < COUNT; i++) {
        int state = FREE;
        /* The last one is for whoever must get one and finds none. */
        if (i + 1 < COUNT &&
            atomic_load_explicit(&the_buffers[i].state,
                                 memory_order_relaxed) == FREE &&
            atomic_compare_exchange_strong(&the_buffers[i].state, &state,
                                           LENT)) {
            atomic_store(&the_buffers[i].generation,
                         atomic_load(&the_generation));
            *buffer = buffer_at(i);
            *size = size_of(i);
            return;
        }
    }
    bool none = atomic_load(&the_version) >= NULL_ALLOWED;
    *buffer = none ? NULL : buffer_at(COUNT - 1);
    *size = none ? 0 : size_of(COUNT - 1);
}

static void
complete(void *context, uint32_t stream, uint8_t *buffer, size_t size,
         size_t valid)
{
    (void)context;
    (void)stream;
    (void)size;
    size_t number = number_of(buffer);
    if (number + 1 >= COUNT) { /* the last one is nobody's: several fill it */
        atomic_fetch_add(&the_strays, valid > 0);
        return;
    }
    buffer_t *place = &the_buffers[number];
    size_t most = size_of(number);
    atomic_store(&place->valid, valid < most ? valid : most);
    int state = LENT;
    if (atomic_compare_exchange_strong(&place->state, &state, FULL)) {
        atomic_fetch_add(&the_waiting, 1);
    }
}

/* ---- launches ----------------------------------------------------------- */

bool
mp_activity_is_launch(const char *function)
{
    static const char *const beginnings[] = {"cuLaunch", "cuGraphLaunch",
                                             "cuMemcpy", "cuMemset"};
    for (size_t i = 0; i < MP_ARRAY_LENGTH(beginnings); i++) {
        if (strncmp(function, beginnings[i], strlen(beginnings[i])) == 0) {
            return strncmp(function, "cuLaunchHostFunc", 16) != 0;
        }
    }
    return false;
}

void
mp_activity_launch(uint32_t correlation, int16_t device)
{
    if (atomic_load(&the_recording)) {
        mp_event_t event = {
            .kind = MP_EVENT_GPU_LAUNCH,
            .addr = correlation,
            .device = device,
        };
        mp_hook_launch(&event);
        atomic_fetch_add_explicit(&the_launches, 1, memory_order_relaxed);
    }
}

bool
mp_activity_running(void)
{
    return atomic_load(&the_recording);
}

bool
mp_activity_waits(void)
{
    return atomic_load(&the_waiting) != 0;
}

/* ---- names -------------------------------------------------------------- */

/* A kernel's name without the mangling, where the process has C++'s library:
 * torch does. */
static char *
plain_name(const char *mangled)
{
    if (!the_activity.looked_for_demangle) {
        the_activity.looked_for_demangle = true;
        void *library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
        if (library != NULL) {
            *(void **)&the_activity.demangle =
                dlsym(library, "__cxa_demangle");
        }
    }
    int status = 0;
    return the_activity.demangle == NULL || strncmp(mangled, "_Z", 2) != 0
               ? NULL
               : the_activity.demangle(mangled, NULL, NULL, &status);
}

static uint32_t
intern_name(const char *text)
{
    return mp_intern_string(mp_hook_intern(), text, strnlen(text, MAX_NAME));
}

static uint32_t
kernel_name(const char *mangled)
{
    uint32_t id = intern_name(mangled);
    if (id == MP_NO_INDEX) {
        return id;
    }
    if (the_activity.names == NULL) {
        the_activity.names = mp_table_new(64);
    }
    uint32_t known = the_activity.names == NULL
                         ? MP_NO_INDEX
                         : mp_table_get(the_activity.names, id);
    if (known == MP_NO_INDEX) {
        char *plain = plain_name(mangled);
        known = plain != NULL ? intern_name(plain) : id;
        free(plain); /* NOLINT: C++'s library took it by malloc */
        uint32_t before;
        if (the_activity.names != NULL && known != MP_NO_INDEX) {
            (void)mp_table_put(the_activity.names, id, known, &before);
        }
    }
    return known;
}

/* ---- records ------------------------------------------------------------ */

typedef struct {
    mp_event_t events[BATCH];
    size_t count;
    size_t sent;
} batch_t;

static void
send(batch_t *batch)
{
    if (batch->count > 0 && mp_hook_wanted() != 0) {
        (void)mp_hook_append(batch->events, batch->count);
    }
    batch->sent += batch->count;
    batch->count = 0;
}

static void
tell(batch_t *batch, const mp_event_t *event)
{
    if (batch->count == BATCH) {
        send(batch);
    }
    batch->events[batch->count++] = *event;
}

static void
tell_of_losses(batch_t *batch)
{
    for (size_t i = 0; i < MP_GPU_LOST_END; i++) {
        uint64_t more = the_activity.lost[i] - the_activity.told[i];
        if (more > 0) {
            mp_event_t event = mp_hook_own_event(MP_EVENT_GPU_LOST);
            event.thread = 0; /* nobody's in particular */
            event.addr = i;
            event.size = more;
            event.op_instance = MP_NO_INDEX;
            tell(batch, &event);
            the_activity.told[i] = the_activity.lost[i];
        }
    }
}

/* OLD: the buffer was lent before the start. */
static void
read_record(const void *at, bool old, batch_t *batch)
{
    mp_cupti_record_t record;
    if (!mp_cupti_record_read(at, &record)) {
        the_activity.lost[MP_GPU_LOST_UNKNOWN]++;
        return;
    }
    if (old && record.end < the_activity.began) {
        the_activity.lost[MP_GPU_LOST_LATE]++;
        return;
    }
    if (record.start == 0 || record.end == 0) {
        the_activity.lost[MP_GPU_LOST_INCOMPLETE]++;
        return;
    }
    mp_gpu_work_t work = {
        .start_ns = mp_clock_pairs_ours(&the_activity.clock, record.start),
        .end_ns = mp_clock_pairs_ours(&the_activity.clock, record.end),
        .bytes = record.bytes,
        .name = record.kind != MP_GPU_KERNEL ? intern_name(record.name)
                : record.kernel != NULL      ? kernel_name(record.kernel)
                                             : MP_NO_INDEX,
        .stream = record.stream,
        .correlation = record.correlation,
        .device = (int16_t)record.device,
        .kind = record.kind,
    };
    mp_event_t event = mp_gpu_work_event(&work, mp_clock_now());
    tell(batch, &event);
    the_activity.records++;
}

static void
read_buffer(const mp_cupti_library_t *library, size_t number, batch_t *batch)
{
    buffer_t *place = &the_buffers[number];
    uint8_t *buffer = buffer_at(number);
    size_t valid = atomic_load(&place->valid);
    bool old = atomic_load(&place->generation) != atomic_load(&the_generation);
    void *record = NULL;
    uint8_t *last = NULL;
    int code = 0;
    while (valid > 0 && (code = library->ActivityGetNextRecord(
                             buffer, valid, &record)) == 0) {
        uint8_t *at = record;
        if (at < buffer || at >= buffer + valid || at <= last) {
            the_activity.lost[MP_GPU_LOST_UNKNOWN]++;
            break; /* it goes in circles */
        }
        last = at;
        read_record(record, old, batch);
    }
    /* One that the library cannot read, or that is cut. */
    size_t read = last == NULL ? 0
                               : (size_t)(last - buffer) +
                                     mp_cupti_record_bytes(library, last);
    if (code != 0 && (code != END_OF_RECORDS || read < valid)) {
        the_activity.lost[MP_GPU_LOST_UNKNOWN]++;
    }
    atomic_store(&place->state, FREE);
    atomic_fetch_sub(&the_waiting, 1);
}

static void
read_clock(const mp_cupti_library_t *library)
{
    mp_clock_pair_t pair;
    if (mp_clock_pair_read(library->GetTimestamp, &pair)) {
        mp_clock_pairs_add(&the_activity.clock, &pair);
    }
}

/* Read what waits; EVENTS: no more than about so many. */
static bool
read_all(const mp_cupti_library_t *library, size_t events)
{
    batch_t batch = {.count = 0};
    read_clock(library);
    size_t i = 0;
    for (; i < COUNT && batch.sent < events; i++) {
        if (atomic_load(&the_buffers[i].state) == FULL) {
            read_buffer(library, i, &batch);
        }
    }
    size_t dropped = 0;
    if (library->ActivityGetNumDroppedRecords(NULL, 0, &dropped) == 0) {
        the_activity.lost[MP_GPU_LOST_DROPPED] += dropped;
    }
    the_activity.lost[MP_GPU_LOST_NO_BUFFER] +=
        atomic_exchange(&the_strays, 0);
    tell_of_losses(&batch);
    send(&batch);
    return i == COUNT;
}

bool
mp_activity_collect(const mp_cupti_library_t *library, bool flush)
{
    if (!atomic_load(&the_recording)) {
        return true;
    }
    if (flush) {
        (void)library->ActivityFlushAll(0);
    }
    return read_all(library, AT_ONCE);
}

/* ---- on and off --------------------------------------------------------- */

static bool
is_whole(const mp_cupti_library_t *library)
{
    return library->GetTimestamp != NULL &&
           library->ActivityRegisterCallbacks != NULL &&
           library->ActivityEnable != NULL &&
           library->ActivityDisable != NULL &&
           library->ActivityFlushAll != NULL &&
           library->ActivityGetNextRecord != NULL &&
           library->ActivityGetNumDroppedRecords != NULL;
}

static void
disable(const mp_cupti_library_t *library, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        (void)library->ActivityDisable(kinds[i]);
    }
}

mp_status_t
mp_activity_start(const mp_cupti_library_t *library, int *code, char *why,
                  size_t size)
{
    *code = MP_CUPTI_OK;
    if (!is_whole(library)) {
        (void)snprintf(why, size, "this CUPTI has no activity API");
        return MP_ERR_LOAD;
    }
    if (!mp_cupti_records_known(library, why, size)) {
        return MP_ERR_LOAD;
    }
    if (atomic_load(&the_arena) == NULL) {
        uint8_t *arena = mp_reserve(MP_ACTIVITY_BUDGET);
        if (arena == NULL) {
            (void)snprintf(why, size, "no address space for its buffers");
            return MP_ERR_LOAD;
        }
        atomic_store(&the_arena, arena);
    }
    atomic_store(&the_version, library->version);
    atomic_fetch_add(&the_generation, 1);
    atomic_store(&the_strays, 0);
    atomic_store(&the_launches, 0);
    the_activity.clock = (mp_clock_pairs_t){.count = 0};
    the_activity.records = 0;
    memset(the_activity.lost, 0, sizeof(the_activity.lost));
    memset(the_activity.told, 0, sizeof(the_activity.told));
    read_clock(library);
    if (the_activity.clock.count == 0) {
        (void)snprintf(why, size, "this CUPTI does not tell its clock");
        return MP_ERR_LOAD;
    }
    the_activity.began = the_activity.clock.pairs[0].theirs;
    *code = library->ActivityRegisterCallbacks(request, complete);
    size_t on = 0;
    while (*code == MP_CUPTI_OK && on < MP_ARRAY_LENGTH(kinds)) {
        *code = library->ActivityEnable(kinds[on]);
        on += *code == MP_CUPTI_OK;
    }
    if (*code != MP_CUPTI_OK) {
        disable(library, on);
        mp_cupti_result_text(library, *code, why, size);
        return MP_ERR_LOAD;
    }
    atomic_store(&the_recording, true);
    return MP_OK;
}

/* Pages of buffers that nobody has go back to the system. */
static void
give_back_pages(void)
{
    for (size_t i = 0; i < COUNT; i++) {
        int state = FREE;
        if (atomic_compare_exchange_strong(&the_buffers[i].state, &state,
                                           LENT)) {
            (void)madvise(buffer_at(i), size_of(i), MADV_DONTNEED);
            atomic_store(&the_buffers[i].state, FREE);
        }
    }
}

void
mp_activity_stop(const mp_cupti_library_t *library)
{
    if (!atomic_exchange(&the_recording, false)) {
        return;
    }
    disable(library, MP_ARRAY_LENGTH(kinds));
    (void)library->ActivityFlushAll(FORCED);
    while (!read_all(library, SIZE_MAX)) {
    }
    give_back_pages();
    mp_table_free(the_activity.names);
    the_activity.names = NULL;
}

void
mp_activity_abandon(void)
{
    atomic_store(&the_recording, false);
}

void
mp_activity_status(mp_activity_status_t *out)
{
    *out = (mp_activity_status_t){
        .running = atomic_load(&the_recording),
        .records = the_activity.records,
        .launches = atomic_load(&the_launches),
        .clock_error_ns = mp_clock_pairs_error(&the_activity.clock),
    };
    memcpy(out->lost, the_activity.lost, sizeof(out->lost));
    for (size_t i = 0; i < COUNT; i++) {
        out->outstanding += atomic_load(&the_buffers[i].state) == LENT;
    }
}
