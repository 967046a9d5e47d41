/* cupti_listener.c - the driver's memory calls, heard through CUPTI's callback
 * API.
 *
 * The callback runs inside of a driver call of somebody else, on any thread,
 * perhaps under torch's allocator lock: no CUDA, no GIL, no malloc, no lock
 * but the log's.  It may come after the subscription is over, so what it
 * reads lives for ever. */
#include "cupti_listener.h"

#include "clock.h"
#include "cupti_calls.h"
#include "cupti_library.h"
#include "drain.h"
#include "gpu_activity.h"
#include "gpu_driver.h"
#include "hook.h"
#include "hook_thread.h"
#include "native_stack.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define MAX_NUMBERS 4096 /* of callbacks in the driver's domain */
#define MAX_CONTEXTS 64
#define MAX_CAPTURES 32
#define WAIT_NS                                                               \
    INT64_C(200000000) /* for callbacks that still run at a stop              \
                        */
#define FLUSH_NS INT64_C(1000000000) /* what ran on GPUs, told so often */
#define OUT_OF_MEMORY 2              /* CUDA's */
#define INVALID_PARAMETER 1          /* CUPTI's */

/* Which device a context is of. */
enum {
    DEVICE_WANTED = MP_DEVICE_UNKNOWN,
    DEVICE_NEVER = -3
};
typedef struct {
    atomic_uintptr_t context; /* 0: none */
    atomic_int device;        /* DEVICE_WANTED: not asked yet */
} context_place_t;

/* Everything that callbacks read. */
static atomic_bool the_running;
static atomic_uint the_inflight;
static atomic_uint_fast64_t the_callbacks;
static atomic_uint_fast64_t the_tokens;
static uint8_t the_numbers[MAX_NUMBERS]; /* callback -> call plus 1; 0: none;
                                            written before the first start */
static bool the_launches[MAX_NUMBERS];   /* likewise: it launches work */
static context_place_t the_contexts[MAX_CONTEXTS];
static atomic_bool the_contexts_wanted;
static atomic_uintptr_t the_captures[MAX_CAPTURES]; /* streams, plus 1 */
static atomic_bool the_detached;
static atomic_int the_detached_result;
static atomic_uint the_detached_reason; /* string id */
static atomic_bool the_death;           /* in a forked child */
static atomic_bool ever_started;

static _Thread_local bool busy __attribute__((tls_model("initial-exec")));

/* What only the control mutex's holder touches. */
static struct {
    pthread_mutex_t lock;
    bool open, subscribed, atfork_set;
    mp_cupti_library_t library;
    void *subscriber;
    uint16_t cbids[256]; /* of the calls, by their number; 0: not there */
    uint64_t leaked;
    uint32_t enabled;
    int64_t flushed_ns; /* when what ran on GPUs was last asked for */
    char refused[MP_CUPTI_TEXT];
    char unknown[MP_CUPTI_TEXT];
} the_control = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- contexts and captures ---------------------------------------------- */

/* The place of CONTEXT, made if there is room; NULL: there is none. */
static context_place_t *
context_place(uintptr_t context)
{
    for (size_t i = 0; context != 0 && i < MAX_CONTEXTS; i++) {
        context_place_t *place = &the_contexts[i];
        uintptr_t there = atomic_load(&place->context);
        if (there == 0) {
            /* Nobody reads the device of a place before its context.  If
             * another thread is faster, the device is asked for again. */
            atomic_store(&place->device, DEVICE_WANTED);
            if (atomic_compare_exchange_strong(&place->context, &there,
                                               context)) {
                return place;
            }
        }
        if (there == context) {
            return place;
        }
    }
    return NULL;
}

/* The device of CONTEXT, or MP_DEVICE_UNKNOWN: then it will be asked for. */
static int16_t
context_device(uintptr_t context)
{
    context_place_t *place = context_place(context);
    if (place == NULL) {
        return MP_DEVICE_UNKNOWN;
    }
    int device = atomic_load(&place->device);
    if (device == DEVICE_WANTED) {
        atomic_store(&the_contexts_wanted, true);
    }
    if (device < 0) {
        return MP_DEVICE_UNKNOWN;
    }
    return (int16_t)device;
}

static void
capture_add(uintptr_t stream)
{
    for (size_t i = 0; i < MAX_CAPTURES; i++) {
        uintptr_t nothing = 0;
        if (atomic_compare_exchange_strong(&the_captures[i], &nothing,
                                           stream + 1)) {
            return;
        }
    }
}

/* Whether STREAM is being captured; REMOVE: not any more. */
static bool
capture_find(uintptr_t stream, bool remove)
{
    for (size_t i = 0; i < MAX_CAPTURES; i++) {
        uintptr_t there = stream + 1;
        if (atomic_load(&the_captures[i]) == there) {
            return !remove ||
                   atomic_compare_exchange_strong(&the_captures[i], &there, 0);
        }
    }
    return false;
}

/* ---- the callback ------------------------------------------------------- */

static void
write_event(mp_event_t *event, bool taken)
{
    event->op_instance = MP_NO_INDEX;
    if (taken) {
        uint32_t stack = mp_native_stack();
        if (stack != MP_NO_INDEX) {
            event->op_instance = stack;
            event->flags |= MP_FLAG_NATIVE;
        }
    }
    mp_hook_driver(event, taken);
}

/* What FACT says, as an event of KIND. */
static mp_event_t
event_of(const mp_cupti_call_data_t *data, const mp_call_fact_t *fact,
         uint8_t kind)
{
    mp_event_t event = {
        .kind = kind,
        .addr = fact->addr,
        .size = fact->size,
        .stream = fact->other != 0 ? fact->other : (uintptr_t)data->context,
        .device = fact->device,
        .pool = fact->group,
        .flags = fact->flags,
    };
    if (event.device == MP_DEVICE_UNKNOWN) {
        event.device = context_device((uintptr_t)data->context);
    }
    if (event.device == MP_DEVICE_CPU) {
        event.stream = 0;
    }
    return event;
}

static void
call_took(const mp_cupti_call_data_t *data, const mp_call_fact_t *fact,
          int result)
{
    mp_event_t event = event_of(data, fact, MP_EVENT_DRIVER_ALLOC);
    if (result == OUT_OF_MEMORY) {
        event.kind = MP_EVENT_DRIVER_OOM;
        event.addr = 0;
        write_event(&event, true);
    }
    else if (result == 0 && event.addr != 0) {
        if (fact->group == MP_DRIVER_STREAM_ORDERED &&
            capture_find(fact->queue, false)) {
            event.flags |= MP_FLAG_GRAPH;
        }
        if (fact->group == MP_DRIVER_POOL &&
            (fact->flags & MP_FLAG_FOREIGN) == 0) {
            mp_gpu_driver_pool_made(event.addr, event.device);
        }
        write_event(&event, true);
    }
}

/* Before the driver may hand the address to another thread. */
static void
call_gives(const mp_cupti_call_data_t *data, const mp_call_fact_t *fact)
{
    *data->correlation = 0;
    if (fact->addr == 0) {
        return;
    }
    uint64_t token = atomic_fetch_add(&the_tokens, 1) + 1;
    *data->correlation = token;
    mp_event_t event = event_of(data, fact, MP_EVENT_DRIVER_FREE);
    event.stream = token;
    write_event(&event, false);
    if (fact->group == MP_DRIVER_POOL) {
        mp_gpu_driver_pool_gone(fact->addr);
    }
}

static void
call_gave(const mp_cupti_call_data_t *data, const mp_call_fact_t *fact,
          int result)
{
    uint64_t token = *data->correlation;
    if (result == 0 || token == 0) {
        return;
    }
    mp_event_t event = event_of(data, fact, MP_EVENT_DRIVER_PUT_BACK);
    event.stream = token;
    write_event(&event, false);
}

static void
call_marks(const mp_cupti_call_data_t *data, const mp_call_fact_t *fact)
{
    mp_event_t event = event_of(data, fact, MP_EVENT_DRIVER_MARK);
    if (fact->group == MP_DRIVER_MARK_IMAGE_LOADED) {
        int64_t began = (int64_t)*data->correlation;
        event.size = began > 0 ? (uint64_t)(mp_clock_now() - began) : 0;
    }
    if (fact->group == MP_DRIVER_MARK_CAPTURE_BEGUN) {
        capture_add((uintptr_t)fact->addr);
    }
    if (fact->group == MP_DRIVER_MARK_CAPTURE_ENDED) {
        (void)capture_find((uintptr_t)fact->addr, true);
    }
    write_event(&event, true);
}

static void
on_call(uint32_t cbid, const mp_cupti_call_data_t *data)
{
    size_t number = cbid < MAX_NUMBERS ? the_numbers[cbid] : 0;
    if (cbid < MAX_NUMBERS && the_launches[cbid] &&
        data->site == MP_CUPTI_ENTER) {
        mp_activity_launch(data->correlation_number,
                           context_device((uintptr_t)data->context));
    }
    if (number-- == 0) {
        return;
    }
    const mp_call_t *call = mp_cupti_call(number);
    bool over = data->site == MP_CUPTI_EXIT;
    bool told_at_end = call->role == MP_CALL_TAKES ||
                       call->role == MP_CALL_MARKS ||
                       call->role == MP_CALL_LEARNS;
    if (told_at_end && !over) {
        if (call->role == MP_CALL_MARKS) { /* how long it takes */
            *data->correlation = (uint64_t)mp_clock_now();
        }
        return;
    }
    if (call->role == MP_CALL_MARKS_BEFORE && over) {
        return;
    }
    int result = over && data->result != NULL ? *data->result : 0;
    mp_call_fact_t fact;
    mp_cupti_call_decode(number, data->params, over && result == 0, &fact);
    switch (call->role) {
    case MP_CALL_TAKES:
        call_took(data, &fact, result);
        break;
    case MP_CALL_GIVES:
        if (over) {
            call_gave(data, &fact, result);
        }
        else {
            call_gives(data, &fact);
        }
        break;
    case MP_CALL_LEARNS:
        if (result == 0) {
            context_place_t *place = context_place((uintptr_t)fact.context);
            if (place != NULL) {
                atomic_store(&place->device, fact.context_device);
            }
        }
        break;
    default:
        if (result == 0) {
            call_marks(data, &fact);
        }
        break;
    }
}

static void
on_context(uint32_t cbid, const mp_cupti_resource_data_t *data)
{
    mp_event_t event = {
        .kind = MP_EVENT_DRIVER_MARK,
        .addr = (uintptr_t)data->context,
        .stream = (uintptr_t)data->context,
        .device = context_device((uintptr_t)data->context),
    };
    if (cbid == MP_CUPTI_CONTEXT_CREATED) {
        event.pool = MP_DRIVER_MARK_CONTEXT_CREATED;
        write_event(&event, true);
    }
    else if (cbid == MP_CUPTI_CONTEXT_ENDS) {
        event.pool = MP_DRIVER_MARK_CONTEXT_DESTROYED;
        write_event(&event, true);
        mp_gpu_driver_forget_pools(); /* a reset ends them all */
        /* Another context may come to lie there, on another device. */
        context_place_t *place = context_place((uintptr_t)data->context);
        if (place != NULL) {
            atomic_store(&place->device, DEVICE_WANTED);
        }
    }
}

/* CUPTI is gone.  Its message lies on somebody's stack: only the number is
 * kept. */
static void
on_detached(const mp_cupti_state_data_t *data)
{
    atomic_store(&the_detached_result, data->result);
    if (atomic_exchange(&the_detached, true)) {
        return;
    }
    mp_event_t event = {
        .kind = MP_EVENT_DRIVER_GAP,
        .addr = 1,
        .time_ns = mp_clock_now(),
        .thread = mp_thread_number(),
        .op = atomic_load(&the_detached_reason),
        .module = MP_NO_INDEX,
        .stack = MP_NO_INDEX,
        .op_instance = MP_NO_INDEX,
        .device = MP_DEVICE_CPU,
    };
    (void)mp_hook_append(&event, 1);
}

static void
callback(void *user, int domain, uint32_t cbid, const void *data)
{
    (void)user;
    /* In this order a stop that has seen no callback in flight will see none
     * that writes. */
    atomic_fetch_add(&the_inflight, 1);
    if (atomic_load(&the_running) && !busy) {
        busy = true;
        int saved_errno = errno;
        if (domain == MP_CUPTI_DRIVER) {
            on_call(cbid, data);
        }
        else if (domain == MP_CUPTI_RESOURCE) {
            on_context(cbid, data);
        }
        else if (domain == MP_CUPTI_STATE && cbid == MP_CUPTI_FATAL_ERROR) {
            on_detached(data);
        }
        atomic_fetch_add_explicit(&the_callbacks, 1, memory_order_relaxed);
        errno = saved_errno;
        busy = false;
    }
    atomic_fetch_sub(&the_inflight, 1);
}

/* ---- later -------------------------------------------------------------- */

/* The control mutex is held: CUPTI is asked, nobody else's lock is. */
static void
settle_locked(void)
{
    if (!the_control.subscribed ||
        !atomic_exchange(&the_contexts_wanted, false)) {
        return;
    }
    const mp_cupti_library_t *library = &the_control.library;
    for (size_t i = 0; i < MAX_CONTEXTS; i++) {
        context_place_t *place = &the_contexts[i];
        uintptr_t context = atomic_load(&place->context);
        if (context == 0 || atomic_load(&place->device) != DEVICE_WANTED) {
            continue;
        }
        uint32_t device = 0;
        bool known =
            library->GetDeviceId != NULL &&
            library->GetDeviceId((void *)context, &device) == MP_CUPTI_OK;
        int wanted = DEVICE_WANTED;
        if (!atomic_compare_exchange_strong(&place->device, &wanted,
                                            known ? (int)device
                                                  : (int)DEVICE_NEVER) ||
            !known) {
            continue;
        }
        mp_event_t event = {
            .kind = MP_EVENT_DRIVER_CONTEXT,
            .addr = context,
            .device = (int16_t)device,
            .time_ns = mp_clock_now(),
            .thread = mp_thread_number(),
            .op = MP_NO_INDEX,
            .module = MP_NO_INDEX,
            .stack = MP_NO_INDEX,
            .op_instance = MP_NO_INDEX,
        };
        (void)mp_hook_append(&event, 1);
    }
}

/* Tell of what ran on GPUs; false: more may wait. */
static bool
collect_locked(bool flush)
{
    if (!the_control.subscribed || !mp_activity_running()) {
        return true;
    }
    if (atomic_load(&the_detached)) {
        mp_activity_abandon();
        return true;
    }
    if (flush) {
        the_control.flushed_ns = mp_clock_now();
    }
    return mp_activity_collect(&the_control.library, flush);
}

void
mp_cupti_settle(void)
{
    bool all = atomic_load(&the_death);
    for (bool first = true; !all; first = false) {
        (void)pthread_mutex_lock(&the_control.lock);
        settle_locked();
        all = collect_locked(first);
        (void)pthread_mutex_unlock(&the_control.lock);
        if (!all) { /* the log must not overflow */
            mp_drain_lock();
            (void)mp_drain_now();
            mp_drain_unlock();
        }
    }
}

/* Of the drain thread.  A start or stop that goes on is not waited for. */
static void
errand(void)
{
    if (atomic_load(&the_running)) {
        mp_context_stock(true);
        if (atomic_load(&the_contexts_wanted) &&
            pthread_mutex_trylock(&the_control.lock) == 0) {
            settle_locked();
            (void)pthread_mutex_unlock(&the_control.lock);
        }
        if (mp_activity_running() &&
            pthread_mutex_trylock(&the_control.lock) == 0) {
            bool due = mp_clock_now() - the_control.flushed_ns >= FLUSH_NS;
            if (due || mp_activity_waits()) {
                (void)collect_locked(due);
            }
            (void)pthread_mutex_unlock(&the_control.lock);
        }
    }
}

/* ---- opening ------------------------------------------------------------ */

static void
add_name(char *list, const char *name)
{
    size_t length = strlen(list);
    (void)snprintf(list + length, MP_CUPTI_TEXT - length, "%s%s",
                   length > 0 ? ", " : "", name);
}

/* Which callback is which call: by name, for a number may be new. */
static void
learn_numbers(void)
{
    const char *name;
    for (uint32_t cbid = 1; cbid < MAX_NUMBERS &&
                            the_control.library.GetCallbackName(
                                MP_CUPTI_DRIVER, cbid, &name) == MP_CUPTI_OK;
         cbid++) {
        if (name == NULL) {
            continue;
        }
        the_launches[cbid] = mp_activity_is_launch(name);
        for (size_t i = 0; i < mp_cupti_calls_count(); i++) {
            if (strcmp(name, mp_cupti_call(i)->name) == 0) {
                the_numbers[cbid] = (uint8_t)(i + 1);
                the_control.cbids[i] = (uint16_t)cbid;
            }
        }
        if (mp_cupti_call_is_suspicious(name)) {
            add_name(the_control.unknown, name);
        }
    }
}

/* CUPTI does not live in a forked child: no call, no free, no unlock. */
static void
fork_child(void)
{
    if (atomic_load(&ever_started)) {
        atomic_store(&the_death, true);
    }
    else { /* it may start afresh; nothing of CUPTI's was begun */
        (void)pthread_mutex_init(&the_control.lock, NULL);
    }
    atomic_store(&the_running, false);
    mp_activity_abandon();
    atomic_store(&the_inflight, 0);
    busy = false;
}

static mp_status_t
open_locked(const char *path, char *error, size_t error_size)
{
    if (the_control.open) {
        if (strcmp(path, the_control.library.path) == 0) {
            return MP_OK;
        }
        (void)snprintf(error, error_size, "%s is open already",
                       the_control.library.path);
        return MP_ERR_LOAD;
    }
    const char *why = mp_cupti_calls_why_not();
    if (why != NULL) {
        (void)snprintf(error, error_size, "%s", why);
        return MP_ERR_LOAD;
    }
    mp_status_t status = mp_hook_init();
    if (status == MP_OK) {
        status = mp_native_init();
    }
    if (status == MP_OK) {
        status = mp_cupti_library_open(path, &the_control.library, error,
                                       error_size);
    }
    if (status != MP_OK) {
        return status;
    }
    static const char reason[] = "CUPTI detached itself";
    atomic_store(
        &the_detached_reason,
        mp_intern_string(mp_hook_intern(), reason, sizeof(reason) - 1));
    learn_numbers();
    if (!the_control.atfork_set) {
        the_control.atfork_set = pthread_atfork(NULL, NULL, fork_child) == 0;
    }
    mp_drain_set_errand(errand);
    the_control.open = true;
    return MP_OK;
}

mp_status_t
mp_cupti_open(const char *path, char *error, size_t error_size)
{
    error[0] = '\0';
    if (atomic_load(&the_death)) {
        (void)snprintf(error, error_size, "this is a forked child");
        return MP_ERR_STATE;
    }
    (void)pthread_mutex_lock(&the_control.lock);
    mp_status_t status = open_locked(path, error, error_size);
    (void)pthread_mutex_unlock(&the_control.lock);
    return status;
}

/* ---- starting ----------------------------------------------------------- */

/* CUpti_SubscriberParams: BYTES must be exactly what the library expects, 32
 * in 13.0 and more later. */
typedef struct {
    size_t bytes;
    const char *name;
    char *old_name;
    size_t old_bytes;
    uint64_t later;
} subscriber_params_t;

#define OLD_NAME_BYTES 64

/* Whose subscription is in our way; only a later CUPTI says so. */
static void
ask_for_other(char other[MP_CUPTI_TEXT], bool *subscribed)
{
    const mp_cupti_library_t *library = &the_control.library;
    *subscribed = false;
    if (library->Subscribe_v2 == NULL || library->version < 130000) {
        return;
    }
    static const size_t sizes[] = {32, 33, 40};
    int code = INVALID_PARAMETER;
    for (size_t i = 0; code == INVALID_PARAMETER && i < MP_ARRAY_LENGTH(sizes);
         i++) {
        subscriber_params_t params = {.bytes = sizes[i],
                                      .name = "memprof",
                                      .old_name = other,
                                      .old_bytes = OLD_NAME_BYTES};
        code = library->Subscribe_v2(&the_control.subscriber, callback, NULL,
                                     &params);
    }
    /* By surprise: what held it has gone meanwhile. */
    *subscribed = code == MP_CUPTI_OK;
    other[OLD_NAME_BYTES - 1] = '\0';
}

static int
enable(uint32_t on, int domain, uint32_t cbid)
{
    return the_control.library.EnableCallback(on, the_control.subscriber,
                                              domain, cbid);
}

static const struct {
    int domain;
    uint32_t cbid;
} further[] = {
    {MP_CUPTI_RESOURCE, MP_CUPTI_CONTEXT_CREATED},
    {MP_CUPTI_RESOURCE, MP_CUPTI_CONTEXT_ENDS},
    {MP_CUPTI_STATE, MP_CUPTI_FATAL_ERROR},
};

/* NULL: all that is needed can be heard; else the first call that cannot. */
static const char *
enable_all(int *code)
{
    the_control.refused[0] = '\0';
    the_control.enabled = 0;
    for (size_t i = 0; i < mp_cupti_calls_count(); i++) {
        const mp_call_t *call = mp_cupti_call(i);
        uint16_t cbid = the_control.cbids[i];
        *code = cbid == 0 ? MP_CUPTI_OK : enable(1, MP_CUPTI_DRIVER, cbid);
        if (cbid != 0 && *code == MP_CUPTI_OK) {
            the_control.enabled++;
        }
        else if (call->required) {
            return call->name;
        }
        else {
            add_name(the_control.refused, call->name);
        }
    }
    for (size_t i = 0; i < MP_ARRAY_LENGTH(further); i++) {
        /* An older CUPTI has no such state: then nobody tells of its end. */
        (void)enable(1, further[i].domain, further[i].cbid);
    }
    *code = MP_CUPTI_OK;
    return NULL;
}

/* ---- what runs on GPUs ---------------------------------------------------
 */

static void
hear_launches(uint32_t on)
{
    for (uint32_t cbid = 0; cbid < MAX_NUMBERS; cbid++) {
        if (the_launches[cbid]) { /* an unheard one costs names, no work */
            (void)enable(on, MP_CUPTI_DRIVER, cbid);
        }
    }
}

static void
kernels_stop_locked(void)
{
    if (!the_control.subscribed || !mp_activity_running()) {
        return;
    }
    if (atomic_load(&the_detached)) {
        mp_activity_abandon();
        return;
    }
    hear_launches(0);
    mp_activity_stop(&the_control.library);
}

static mp_status_t
kernels_start_locked(int *code, char text[MP_CUPTI_TEXT])
{
    if (!the_control.subscribed || atomic_load(&the_detached)) {
        return MP_ERR_STATE;
    }
    if (mp_activity_running()) {
        return MP_OK;
    }
    mp_status_t status =
        mp_activity_start(&the_control.library, code, text, MP_CUPTI_TEXT);
    if (status == MP_OK) {
        the_control.flushed_ns = mp_clock_now();
        hear_launches(1);
    }
    return status;
}

mp_status_t
mp_cupti_kernels_start(int *code, char text[MP_CUPTI_TEXT])
{
    *code = MP_CUPTI_OK;
    text[0] = '\0';
    if (atomic_load(&the_death)) {
        return MP_ERR_STATE;
    }
    (void)pthread_mutex_lock(&the_control.lock);
    mp_status_t status = kernels_start_locked(code, text);
    (void)pthread_mutex_unlock(&the_control.lock);
    return status;
}

void
mp_cupti_kernels_stop(void)
{
    if (atomic_load(&the_death)) {
        return;
    }
    (void)pthread_mutex_lock(&the_control.lock);
    kernels_stop_locked();
    (void)pthread_mutex_unlock(&the_control.lock);
}

void
mp_cupti_kernels_status(mp_activity_status_t *out)
{
    if (atomic_load(&the_death)) {
        *out = (mp_activity_status_t){.running = false};
        return;
    }
    (void)pthread_mutex_lock(&the_control.lock);
    mp_activity_status(out);
    (void)pthread_mutex_unlock(&the_control.lock);
}

static void
unsubscribe(void)
{
    kernels_stop_locked();
    atomic_store(&the_running, false);
    if (!atomic_load(&the_detached)) {
        for (size_t i = 0; i < mp_cupti_calls_count(); i++) {
            if (the_control.cbids[i] != 0) {
                (void)enable(0, MP_CUPTI_DRIVER, the_control.cbids[i]);
            }
        }
        for (size_t i = 0; i < MP_ARRAY_LENGTH(further); i++) {
            (void)enable(0, further[i].domain, further[i].cbid);
        }
        (void)the_control.library.Unsubscribe(the_control.subscriber);
    }
    the_control.subscribed = false;
    the_control.subscriber = NULL;
    int64_t until = mp_clock_now() + WAIT_NS;
    while (atomic_load(&the_inflight) != 0 && mp_clock_now() < until) {
        struct timespec pause = {.tv_nsec = 100000};
        (void)nanosleep(&pause, NULL);
    }
    if (atomic_load(&the_inflight) != 0) {
        the_control.leaked++; /* what it reads stays where it is anyhow */
    }
    for (size_t i = 0; i < MAX_CAPTURES; i++) {
        atomic_store(&the_captures[i], 0);
    }
    mp_gpu_driver_forget_pools();
    mp_context_stock(false);
}

static mp_status_t
start_locked(int *code, char text[MP_CUPTI_TEXT], char other[MP_CUPTI_TEXT])
{
    if (!the_control.open || the_control.subscribed) {
        return MP_ERR_STATE;
    }
    const mp_cupti_library_t *library = &the_control.library;
    atomic_store(&ever_started, true);
    atomic_store(&the_detached, false);
    mp_context_stock(true);
    *code = library->Subscribe(&the_control.subscriber, callback, NULL);
    bool subscribed = *code == MP_CUPTI_OK;
    if (*code == MP_CUPTI_SLOT_TAKEN) {
        ask_for_other(other, &subscribed);
        *code = subscribed ? MP_CUPTI_OK : *code;
    }
    if (!subscribed) {
        mp_cupti_result_text(library, *code, text, MP_CUPTI_TEXT);
        mp_context_stock(false);
        return MP_ERR_LOAD;
    }
    the_control.subscribed = true;
    atomic_store(&the_running, true);
    const char *missing = enable_all(code);
    if (missing == NULL) {
        return MP_OK;
    }
    char said[MP_CUPTI_TEXT / 2] = "this CUPTI does not have it";
    if (*code != MP_CUPTI_OK) {
        mp_cupti_result_text(library, *code, said, sizeof(said));
    }
    (void)snprintf(text, MP_CUPTI_TEXT, "%s cannot be heard: %s", missing,
                   said);
    unsubscribe();
    return MP_ERR_LOAD;
}

mp_status_t
mp_cupti_start(int *code, char text[MP_CUPTI_TEXT], char other[MP_CUPTI_TEXT])
{
    *code = MP_CUPTI_OK;
    text[0] = '\0';
    memset(other, 0, MP_CUPTI_TEXT);
    if (atomic_load(&the_death)) {
        return MP_ERR_STATE;
    }
    (void)pthread_mutex_lock(&the_control.lock);
    mp_status_t status = start_locked(code, text, other);
    (void)pthread_mutex_unlock(&the_control.lock);
    return status;
}

void
mp_cupti_stop(void)
{
    if (atomic_load(&the_death)) {
        return;
    }
    (void)pthread_mutex_lock(&the_control.lock);
    if (the_control.subscribed) {
        settle_locked();
        unsubscribe();
    }
    (void)pthread_mutex_unlock(&the_control.lock);
}

void
mp_cupti_gap(bool begins, const char *reason)
{
    if (mp_hook_wanted() == 0) {
        return;
    }
    mp_event_t event = {
        .kind = MP_EVENT_DRIVER_GAP,
        .addr = begins,
        .time_ns = mp_clock_now(),
        .thread = mp_thread_number(),
        .op = mp_intern_string(mp_hook_intern(), reason, strlen(reason)),
        .module = MP_NO_INDEX,
        .stack = MP_NO_INDEX,
        .op_instance = MP_NO_INDEX,
        .device = MP_DEVICE_CPU,
    };
    (void)mp_hook_append(&event, 1);
}

void
mp_cupti_status(mp_cupti_status_t *out)
{
    *out = (mp_cupti_status_t){
        .dead = atomic_load(&the_death),
        .running = atomic_load(&the_running),
        .detached = atomic_load(&the_detached),
        .callbacks = atomic_load(&the_callbacks),
    };
    if (out->dead) {
        return;
    }
    (void)pthread_mutex_lock(&the_control.lock);
    out->open = the_control.open;
    out->version = the_control.library.version;
    out->leaked = the_control.leaked;
    out->enabled = the_control.enabled;
    out->wanted = (uint32_t)mp_cupti_calls_count();
    for (size_t i = 0; i < mp_cupti_calls_count(); i++) {
        out->found += the_control.cbids[i] != 0;
    }
    memcpy(out->path, the_control.library.path, sizeof(out->path));
    memcpy(out->refused, the_control.refused, sizeof(out->refused));
    memcpy(out->unknown, the_control.unknown, sizeof(out->unknown));
    if (out->detached) {
        mp_cupti_result_text(&the_control.library,
                             atomic_load(&the_detached_result),
                             out->detached_text, MP_CUPTI_TEXT);
    }
    (void)pthread_mutex_unlock(&the_control.lock);
}
