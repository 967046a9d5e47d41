/* cupti_callback.c - the driver's calls and ends, as events. */
#include "cupti_callback.h"

#include "clock.h"
#include "cupti_calls.h"
#include "cupti_contexts.h"
#include "gpu_activity.h"
#include "gpu_driver.h"
#include "hook.h"
#include "native_stack.h"

#include <errno.h>
#include <stdatomic.h>
#include <time.h>

#define OUT_OF_MEMORY 2 /* CUDA's */

static atomic_bool the_running;
static atomic_uint the_inflight;
static atomic_uint_fast64_t the_callbacks;
static atomic_uint_fast64_t the_tokens;
static uint8_t the_numbers[MP_CUPTI_NUMBERS]; /* call plus 1; 0: none */
static bool the_launches[MP_CUPTI_NUMBERS];
static atomic_bool the_detached;
static atomic_int the_detached_result;
static atomic_uint the_detached_reason; /* string id */

static _Thread_local bool busy __attribute__((tls_model("initial-exec")));

/* ---- what a call says ----------------------------------------------------
 */

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
        event.device = mp_cupti_context_device((uintptr_t)data->context);
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
            mp_cupti_is_captured(fact->queue)) {
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
        mp_cupti_capture_begins((uintptr_t)fact->addr);
    }
    if (fact->group == MP_DRIVER_MARK_CAPTURE_ENDED) {
        mp_cupti_capture_ends((uintptr_t)fact->addr);
    }
    write_event(&event, true);
}

static void
on_call(uint32_t cbid, const mp_cupti_call_data_t *data)
{
    size_t number = cbid < MP_CUPTI_NUMBERS ? the_numbers[cbid] : 0;
    if (cbid < MP_CUPTI_NUMBERS && the_launches[cbid] &&
        data->site == MP_CUPTI_ENTER) {
        mp_activity_launch(data->correlation_number,
                           mp_cupti_context_device((uintptr_t)data->context));
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
            mp_cupti_context_is_of((uintptr_t)fact.context,
                                   fact.context_device);
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
        .device = mp_cupti_context_device((uintptr_t)data->context),
    };
    if (cbid == MP_CUPTI_CONTEXT_CREATED) {
        event.pool = MP_DRIVER_MARK_CONTEXT_CREATED;
        write_event(&event, true);
    }
    else if (cbid == MP_CUPTI_CONTEXT_ENDS) {
        event.pool = MP_DRIVER_MARK_CONTEXT_DESTROYED;
        write_event(&event, true);
        mp_gpu_driver_forget_pools(); /* a reset ends them all */
        mp_cupti_context_ends((uintptr_t)data->context);
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
    mp_event_t event = mp_hook_own_event(MP_EVENT_DRIVER_GAP);
    event.addr = 1;
    event.op = atomic_load(&the_detached_reason);
    event.op_instance = MP_NO_INDEX;
    (void)mp_hook_feed(&event, 1);
}

void
mp_cupti_callback(void *user, int domain, uint32_t cbid, const void *data)
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

/* ---- its switches --------------------------------------------------------
 */

void
mp_cupti_callback_is_call(uint32_t cbid, size_t number)
{
    the_numbers[cbid] = (uint8_t)(number + 1);
}

void
mp_cupti_callback_is_launch(uint32_t cbid)
{
    the_launches[cbid] = true;
}

bool
mp_cupti_callback_launches(uint32_t cbid)
{
    return the_launches[cbid];
}

void
mp_cupti_callback_switch(bool on)
{
    atomic_store(&the_running, on);
}

bool
mp_cupti_callback_is_on(void)
{
    return atomic_load(&the_running);
}

bool
mp_cupti_callback_wait(int64_t ns)
{
    int64_t until = mp_clock_now() + ns;
    while (atomic_load(&the_inflight) != 0 && mp_clock_now() < until) {
        struct timespec pause = {.tv_nsec = 100000};
        (void)nanosleep(&pause, NULL);
    }
    return atomic_load(&the_inflight) == 0;
}

uint64_t
mp_cupti_callback_count(void)
{
    return atomic_load(&the_callbacks);
}

bool
mp_cupti_callback_detached(int *result)
{
    *result = atomic_load(&the_detached_result);
    return atomic_load(&the_detached);
}

void
mp_cupti_callback_attached(uint32_t reason)
{
    atomic_store(&the_detached_reason, reason);
    atomic_store(&the_detached, false);
}

void
mp_cupti_callback_after_fork(void)
{
    atomic_store(&the_running, false);
    atomic_store(&the_inflight, 0);
    busy = false;
}
