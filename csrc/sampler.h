/* sampler.h - the thread that measures while profiles run.
 *
 * Process-wide, there while some running session wants totals.  Looks at what
 * process and devices hold (measure.h) twice a second, and when it is asked
 * to, and writes that to the log as events.  As long as nobody uses a device
 * it writes nothing and opens nothing.
 *
 * Never measures on another thread: a step, a hook and the drain thread only
 * ask.  What is asked for while one sample is taken is one more sample; there
 * are 100 a second at most (20 for peaks), and a driver that is slow is asked
 * less often, but for mp_sampler_wait. */
#ifndef MP_SAMPLER_H
#define MP_SAMPLER_H

#include "total.h"

/* Start the thread, unless it runs, and ask for a sample.  The session lock is
 * held.  MP_ERR_NOMEM: no thread could be made. */
mp_status_t mp_sampler_start(void);

/* End the thread, if it runs.  The session lock is held; it is given up while
 * waiting for the thread. */
void mp_sampler_stop(void);

/* Ask for a sample soon; nothing if no thread runs.  Any lock may be held but
 * the log's: this takes a short one of its own. */
void mp_sampler_want(mp_total_cause_t cause);

/* Have a sample that begins after the call written to the log.  Waits for it,
 * at most half a second: without the GIL and the session lock.  Nothing if no
 * thread runs. */
void mp_sampler_wait(void);

/* After fork, in the child: there is no thread. */
void mp_sampler_after_fork(void);

#endif
