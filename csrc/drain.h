/* drain.h - the one reader of the log: its lock and its thread.
 *
 * Process-wide.  The lock is the session lock: it guards the reader's side of
 * the log and everything inside all sessions, so whoever holds it may drain.
 * Events go on in batches to one receiver (session.c); knows nothing of
 * sessions otherwise.  Called by session.c only; never from a hook. */
#ifndef MP_DRAIN_H
#define MP_DRAIN_H

#include "event.h"

void mp_drain_lock(void);
void mp_drain_unlock(void);

/* COUNT events in log order; now and then 0, if none come: what waits for its
 * time may be due.  Called with the lock held, which it must not give up. */
typedef void (*mp_drain_receive_t)(const mp_event_t *events, size_t count);

/* Hand on all events that are in the log now; whether there were any.  The
 * lock is held. */
bool mp_drain_now(void);

/* Start the thread, unless it runs.  RECEIVE is the same in every call.  The
 * lock is held.  MP_ERR_NOMEM: no thread could be made. */
mp_status_t mp_drain_start(mp_drain_receive_t receive);

/* End the thread, if it runs.  The lock is held; it is given up while waiting
 * for the thread. */
void mp_drain_stop(void);

/* What the thread does at each turn before it takes the lock (NULL: nothing):
 * what hooks leave for later and must not be done under it.  Thread-safe. */
void mp_drain_set_errand(void (*errand)(void));

/* After fork, in the child, with the lock held since before it: there is no
 * thread, and what is in the log is the parent's. */
void mp_drain_after_fork(void);

#endif
