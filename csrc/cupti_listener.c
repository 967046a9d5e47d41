/* cupti_listener.c - CUPTI's subscription: opened, taken, given up. */
#include "cupti_listener.h"

#include "clock.h"
#include "cupti_callback.h"
#include "cupti_calls.h"
#include "cupti_contexts.h"
#include "cupti_library.h"
#include "drain.h"
#include "gpu_activity.h"
#include "gpu_driver.h"
#include "hook.h"
#include "hook_thread.h"
#include "native_stack.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define WAIT_NS                                                               \
    INT64_C(200000000) /* for callbacks that still run at a stop              \
                        */
#define FLUSH_NS INT64_C(1000000000) /* what ran on GPUs, told so often */
#define INVALID_PARAMETER 1          /* CUPTI's */

static atomic_bool the_death; /* in a forked child */
static atomic_bool ever_started;

/* What only the control mutex's holder touches. */
static struct {
    pthread_mutex_t lock;
    bool open, subscribed, atfork_set;
    mp_cupti_library_t library;
    void *subscriber;
    uint16_t cbids[256]; /* of the calls, by their number; 0: not there */
    uint64_t leaked;
    uint32_t enabled;
    uint32_t detached_reason; /* string id */
    int64_t flushed_ns;       /* when what ran on GPUs was last asked for */
    char refused[MP_CUPTI_TEXT];
    char unknown[MP_CUPTI_TEXT];
} the_control = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- later -------------------------------------------------------------- */

/* Whether CUPTI has gone by itself since the last start. */
static bool
is_detached(void)
{
    int result;
    return mp_cupti_callback_detached(&result);
}

/* The control mutex is held: CUPTI is asked, nobody else's lock is. */
static void
ask_locked(void)
{
    if (the_control.subscribed) {
        mp_cupti_contexts_ask(&the_control.library);
    }
}

/* Tell of what ran on GPUs; false: more may wait. */
static bool
collect_locked(bool flush)
{
    if (!the_control.subscribed || !mp_activity_running()) {
        return true;
    }
    if (is_detached()) {
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
        ask_locked();
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
    if (mp_cupti_callback_is_on()) {
        mp_context_stock(true);
        if (mp_cupti_contexts_wanted() &&
            pthread_mutex_trylock(&the_control.lock) == 0) {
            ask_locked();
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
    for (uint32_t cbid = 1; cbid < MP_CUPTI_NUMBERS &&
                            the_control.library.GetCallbackName(
                                MP_CUPTI_DRIVER, cbid, &name) == MP_CUPTI_OK;
         cbid++) {
        if (name == NULL) {
            continue;
        }
        if (mp_activity_is_launch(name)) {
            mp_cupti_callback_is_launch(cbid);
        }
        for (size_t i = 0; i < mp_cupti_calls_count(); i++) {
            if (strcmp(name, mp_cupti_call(i)->name) == 0) {
                mp_cupti_callback_is_call(cbid, i);
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
    mp_activity_abandon();
    mp_cupti_callback_after_fork();
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
    the_control.detached_reason =
        mp_intern_string(mp_hook_intern(), reason, sizeof(reason) - 1);
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
        code = library->Subscribe_v2(&the_control.subscriber,
                                     mp_cupti_callback, NULL, &params);
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
    for (uint32_t cbid = 0; cbid < MP_CUPTI_NUMBERS; cbid++) {
        if (mp_cupti_callback_launches(
                cbid)) { /* an unheard one costs names, no work */
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
    if (is_detached()) {
        mp_activity_abandon();
        return;
    }
    hear_launches(0);
    mp_activity_stop(&the_control.library);
}

static mp_status_t
kernels_start_locked(int *code, char text[MP_CUPTI_TEXT])
{
    if (!the_control.subscribed || is_detached()) {
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
    mp_cupti_callback_switch(false);
    if (!is_detached()) {
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
    if (!mp_cupti_callback_wait(WAIT_NS)) {
        the_control.leaked++; /* what it reads stays where it is anyhow */
    }
    mp_cupti_captures_forget();
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
    mp_cupti_callback_attached(the_control.detached_reason);
    mp_context_stock(true);
    *code =
        library->Subscribe(&the_control.subscriber, mp_cupti_callback, NULL);
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
    mp_cupti_callback_switch(true);
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
        ask_locked();
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
    mp_event_t event = mp_hook_own_event(MP_EVENT_DRIVER_GAP);
    event.addr = begins;
    event.op = mp_intern_string(mp_hook_intern(), reason, strlen(reason));
    event.op_instance = MP_NO_INDEX;
    (void)mp_hook_append(&event, 1);
}

void
mp_cupti_status(mp_cupti_status_t *out)
{
    int result;
    *out = (mp_cupti_status_t){
        .dead = atomic_load(&the_death),
        .running = mp_cupti_callback_is_on(),
        .detached = mp_cupti_callback_detached(&result),
        .callbacks = mp_cupti_callback_count(),
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
        mp_cupti_result_text(&the_control.library, result, out->detached_text,
                             MP_CUPTI_TEXT);
    }
    (void)pthread_mutex_unlock(&the_control.lock);
}
