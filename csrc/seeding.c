/* seeding.c - events held back until the seeds of a snapshot are put among
 * them. */
#include "seeding.h"

#include "clock.h"
#include "mem.h"

#define PENDING_BYTES ((size_t)256 << 20)
#define MAX_DEVICES 64

mp_status_t
mp_seeding_begin(mp_seeding_t *seeding)
{
    seeding->events = mp_reserve(PENDING_BYTES);
    if (seeding->events == NULL) {
        return MP_ERR_NOMEM;
    }
    seeding->count = 0;
    seeding->thread = mp_thread_number();
    seeding->waiting = true;
    return MP_OK;
}

bool
mp_seeding_hold(mp_seeding_t *seeding, const mp_event_t *event)
{
    if (seeding->count >= PENDING_BYTES / sizeof(mp_event_t)) {
        return false;
    }
    seeding->events[seeding->count++] = *event;
    return true;
}

typedef struct {
    const mp_event_t *seeds;
    size_t count;
    mp_seeding_deliver_t deliver;
    void *context;
} delivery_t;

/* Put the seeds of DEVICE where its cut is. */
static void
deliver_seeds(const delivery_t *to, int16_t device, int64_t time_ns)
{
    for (size_t i = 0; i < to->count; i++) {
        if (to->seeds[i].device == device) {
            mp_event_t event = to->seeds[i];
            event.time_ns = time_ns;
            to->deliver(to->context, &event);
        }
    }
}

void
mp_seeding_finish(mp_seeding_t *seeding, const mp_event_t *seeds, size_t count,
                  mp_seeding_deliver_t deliver, void *context)
{
    delivery_t to = {seeds, count, deliver, context};
    seeding->waiting = false;
    /* The SNAPSHOTs of this thread are ours, one a device, in order. */
    int16_t next_device = 0;
    uint64_t cut = 0; /* bit per device: its seeds are in */
    for (size_t i = 0; i < seeding->count; i++) {
        const mp_event_t *event = &seeding->events[i];
        if (event->kind == MP_EVENT_SNAPSHOT) {
            if (event->thread == seeding->thread &&
                next_device < MAX_DEVICES) {
                deliver_seeds(&to, next_device, event->time_ns);
                cut |= (uint64_t)1 << next_device++;
            }
            continue;
        }
        bool covered = event->device >= 0 && event->device < MAX_DEVICES &&
                       (cut >> event->device & 1) == 0 &&
                       event->kind <= MP_EVENT_OTHER;
        if (!covered) {
            deliver(context, event);
        }
    }
    /* No cut was seen (an old torch, or nothing to see): the seeds are the
     * state now. */
    for (int16_t device = next_device; device < MAX_DEVICES; device++) {
        deliver_seeds(&to, device, mp_clock_now());
    }
    mp_seeding_end(seeding);
}

void
mp_seeding_end(mp_seeding_t *seeding)
{
    mp_unreserve(seeding->events, PENDING_BYTES);
    *seeding = (mp_seeding_t){0};
}
