/* cupti_contexts.c - the devices of contexts, and streams being captured. */
#include "cupti_contexts.h"

#include "hook.h"

#include <stdatomic.h>

#define MAX_CONTEXTS 64
#define MAX_CAPTURES 32

/* Which device a context is of. */
enum {
    DEVICE_WANTED = MP_DEVICE_UNKNOWN,
    DEVICE_NEVER = -3
};
typedef struct {
    atomic_uintptr_t context; /* 0: none */
    atomic_int device;        /* DEVICE_WANTED: not asked yet */
} context_place_t;

static context_place_t the_contexts[MAX_CONTEXTS];
static atomic_bool the_contexts_wanted;
static atomic_uintptr_t the_captures[MAX_CAPTURES]; /* streams, plus 1 */

/* ---- contexts ------------------------------------------------------------
 */

/* The place of CONTEXT, made if there is room; NULL: there is none. */
static context_place_t *
place_of(uintptr_t context)
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

int16_t
mp_cupti_context_device(uintptr_t context)
{
    context_place_t *place = place_of(context);
    if (place == NULL) {
        return MP_DEVICE_UNKNOWN;
    }
    int device = atomic_load(&place->device);
    if (device == DEVICE_WANTED) {
        atomic_store(&the_contexts_wanted, true);
    }
    return (int16_t)(device < 0 ? MP_DEVICE_UNKNOWN : device);
}

void
mp_cupti_context_is_of(uintptr_t context, int device)
{
    context_place_t *place = place_of(context);
    if (place != NULL) {
        atomic_store(&place->device, device);
    }
}

void
mp_cupti_context_ends(uintptr_t context)
{
    mp_cupti_context_is_of(context, DEVICE_WANTED);
}

bool
mp_cupti_contexts_wanted(void)
{
    return atomic_load(&the_contexts_wanted);
}

static void
ask_for(context_place_t *place, uintptr_t context,
        const mp_cupti_library_t *library)
{
    uint32_t device = 0;
    bool known = library->GetDeviceId != NULL &&
                 library->GetDeviceId((void *)context, &device) == MP_CUPTI_OK;
    int wanted = DEVICE_WANTED;
    if (atomic_compare_exchange_strong(&place->device, &wanted,
                                       known ? (int)device
                                             : (int)DEVICE_NEVER) &&
        known) {
        mp_event_t event = mp_hook_own_event(MP_EVENT_DRIVER_CONTEXT);
        event.addr = context;
        event.device = (int16_t)device;
        event.op_instance = MP_NO_INDEX;
        (void)mp_hook_feed(&event, 1);
    }
}

void
mp_cupti_contexts_ask(const mp_cupti_library_t *library)
{
    if (!atomic_exchange(&the_contexts_wanted, false)) {
        return;
    }
    for (size_t i = 0; i < MAX_CONTEXTS; i++) {
        context_place_t *place = &the_contexts[i];
        uintptr_t context = atomic_load(&place->context);
        if (context != 0 && atomic_load(&place->device) == DEVICE_WANTED) {
            ask_for(place, context, library);
        }
    }
}

/* ---- captures ------------------------------------------------------------
 */

void
mp_cupti_capture_begins(uintptr_t stream)
{
    for (size_t i = 0; i < MAX_CAPTURES; i++) {
        uintptr_t nothing = 0;
        if (atomic_compare_exchange_strong(&the_captures[i], &nothing,
                                           stream + 1)) {
            return;
        }
    }
}

void
mp_cupti_capture_ends(uintptr_t stream)
{
    for (size_t i = 0; i < MAX_CAPTURES; i++) {
        uintptr_t there = stream + 1;
        if (atomic_compare_exchange_strong(&the_captures[i], &there, 0)) {
            return;
        }
    }
}

bool
mp_cupti_is_captured(uintptr_t stream)
{
    for (size_t i = 0; i < MAX_CAPTURES; i++) {
        if (atomic_load(&the_captures[i]) == stream + 1) {
            return true;
        }
    }
    return false;
}

void
mp_cupti_captures_forget(void)
{
    for (size_t i = 0; i < MAX_CAPTURES; i++) {
        atomic_store(&the_captures[i], 0);
    }
}
