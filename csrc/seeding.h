/* seeding.h - events held back until the seeds of a snapshot are put among
 * them.
 *
 * Knows where a device's cut is, nothing of sessions and trackers.  Part of a
 * session: called by session.c only, with the session lock held. */
#ifndef MP_SEEDING_H
#define MP_SEEDING_H

#include "event.h"

/* All zero: not seeding. */
typedef struct {
    bool waiting;       /* events are held back */
    uint32_t thread;    /* whose SNAPSHOT events are ours */
    mp_event_t *events; /* reserved */
    size_t count;
} mp_seeding_t;

/* From now on, for the calling thread's SNAPSHOTs. */
mp_status_t mp_seeding_begin(mp_seeding_t *seeding);

/* Hold one event back.  False: there is no room left, it is lost. */
bool mp_seeding_hold(mp_seeding_t *seeding, const mp_event_t *event);

/* Deliver what was held back with SEEDS where the cuts are
 * (mp_session_seed says how), and end. */
typedef void (*mp_seeding_deliver_t)(void *context, const mp_event_t *event);
void mp_seeding_finish(mp_seeding_t *seeding, const mp_event_t *seeds,
                       size_t count, mp_seeding_deliver_t deliver,
                       void *context);

/* Forget what was held back. */
void mp_seeding_end(mp_seeding_t *seeding);

#endif
