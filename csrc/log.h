/* log.h - the one queue between the hooks and the drain thread.
 *
 * A ring of events inside a fixed byte budget.  Any thread appends; one
 * short lock gives events their order (the order of a free and the next
 * allocation of the same address across threads *is* the data).  One reader
 * at a time takes them out, without that lock.  A full log counts the drop
 * and every report shows the count. */
#ifndef MP_LOG_H
#define MP_LOG_H

#include "event.h"

typedef struct mp_log mp_log_t;

/* BUDGET_BYTES is rounded up to a power of two of events, at least 1024.
 * They cost memory once they have been written to. */
mp_status_t mp_log_new(size_t budget_bytes, mp_log_t **out);
void mp_log_free(mp_log_t *log); /* accepts NULL */

/* Append COUNT events, all or none, as one.  False: full; they are counted
 * as dropped.  *HALF_FULL (may be NULL): whether this append made the log
 * reach half of its capacity, which one append says each time that happens:
 * the reader should be woken.  Never blocks for the reader, never allocates.
 */
bool mp_log_append(mp_log_t *log, const mp_event_t *events, size_t count,
                   bool *half_full);

/* Reader only: the longest run of ready events.  *COUNT = 0: none. */
const mp_event_t *mp_log_peek(mp_log_t *log, size_t *count);
/* Reader only: give back the first COUNT of them. */
void mp_log_consume(mp_log_t *log, size_t count);

/* Since mp_log_new; both only rise. */
uint64_t mp_log_appended(const mp_log_t *log); /* events ever appended */
uint64_t mp_log_dropped(const mp_log_t *log);  /* events ever dropped */

/* After fork, in the child: empty the log and make its lock free again.  The
 * counts stay. */
void mp_log_reset(mp_log_t *log);

#endif
