/* log.c - the one queue between the hooks and the drain thread.
 *
 * A ring in reserved address space: its pages cost memory only once events
 * have reached them.  Positions count events since the start and are never
 * wrapped; the place in the ring is the position modulo the capacity.
 *
 *   tail <= head <= tail + capacity
 *
 * Producers write events and then head (release); the reader reads head
 * (acquire), the events and then writes tail (release).  What producers
 * write, what the reader writes and what nobody writes lie on cache lines of
 * their own, and producers keep a copy of the tail, so that they fetch the
 * reader's line only when the copy is no longer good enough. */
#include "log.h"

#include "mem.h"
#include "sync.h"

#include <stdatomic.h>
#include <string.h>

#define MIN_CAPACITY 1024
#define LINE_BYTES 64

struct mp_log {
    mp_event_t *ring;  /* capacity of them; never changes */
    uint64_t capacity; /* a power of two */
    uint64_t half;

    char producer_line[LINE_BYTES]; /* keeps the next ones apart */
    mp_spin_t lock;                 /* a leaf */
    _Atomic uint64_t head;          /* written under lock */
    _Atomic uint64_t dropped;       /* written under lock */
    uint64_t tail_seen;             /* under lock: never ahead of tail */

    char reader_line[LINE_BYTES];
    _Atomic uint64_t tail; /* written by the reader */
    char end_of_line[LINE_BYTES - sizeof(uint64_t)];
};

mp_status_t
mp_log_new(size_t budget_bytes, mp_log_t **out)
{
    size_t capacity = MIN_CAPACITY;
    while (capacity * sizeof(mp_event_t) < budget_bytes) {
        if (capacity > SIZE_MAX / 4 / sizeof(mp_event_t)) {
            return MP_ERR_NOMEM;
        }
        capacity *= 2;
    }
    mp_log_t *log = mp_calloc(1, sizeof(*log));
    if (log == NULL) {
        return MP_ERR_NOMEM;
    }
    log->ring = mp_reserve(capacity * sizeof(mp_event_t));
    if (log->ring == NULL) {
        mp_free(log);
        return MP_ERR_NOMEM;
    }
    log->capacity = capacity;
    log->half = capacity / 2;
    *out = log;
    return MP_OK;
}

void
mp_log_free(mp_log_t *log)
{
    if (log != NULL) {
        mp_unreserve(log->ring, log->capacity * sizeof(mp_event_t));
        mp_free(log);
    }
}

/* Copy COUNT events to position HEAD, over the end of the ring if need be. */
static inline void
write_events(mp_log_t *log, uint64_t head, const mp_event_t *events,
             size_t count)
{
    uint64_t place = head & (log->capacity - 1);
    if (MP_LIKELY(count == 1)) {
        log->ring[place] = *events;
        return;
    }
    uint64_t before_end = log->capacity - place;
    size_t first = count < before_end ? count : (size_t)before_end;
    memcpy(log->ring + place, events, first * sizeof(*events));
    memcpy(log->ring, events + first, (count - first) * sizeof(*events));
}

bool
mp_log_append(mp_log_t *log, const mp_event_t *events, size_t count,
              bool *half_full)
{
    bool passed_half = false;
    mp_spin_lock(&log->lock);
    uint64_t head = atomic_load_explicit(&log->head, memory_order_relaxed);
    uint64_t used = head - log->tail_seen;

    /* By the old tail the log looks fuller than it is: below half it is
     * good enough. */
    if (MP_UNLIKELY(used + count >= log->half)) {
        log->tail_seen =
            atomic_load_explicit(&log->tail, memory_order_acquire);
        used = head - log->tail_seen;
    }
    bool fits = count <= log->capacity - used;
    if (MP_LIKELY(fits)) {
        write_events(log, head, events, count);
        atomic_store_explicit(&log->head, head + count, memory_order_release);
        passed_half = used < log->half && used + count >= log->half;
    }
    else {
        uint64_t dropped =
            atomic_load_explicit(&log->dropped, memory_order_relaxed);
        atomic_store_explicit(&log->dropped, dropped + count,
                              memory_order_relaxed);
    }
    mp_spin_unlock(&log->lock);
    if (half_full != NULL) {
        *half_full = passed_half;
    }
    return fits;
}

const mp_event_t *
mp_log_peek(mp_log_t *log, size_t *count)
{
    uint64_t tail = atomic_load_explicit(&log->tail, memory_order_relaxed);
    uint64_t head = atomic_load_explicit(&log->head, memory_order_acquire);
    uint64_t ready = head - tail;
    uint64_t place = tail & (log->capacity - 1);
    uint64_t before_end = log->capacity - place;
    *count = (size_t)(ready < before_end ? ready : before_end);
    return log->ring + place;
}

void
mp_log_consume(mp_log_t *log, size_t count)
{
    uint64_t tail = atomic_load_explicit(&log->tail, memory_order_relaxed);
    atomic_store_explicit(&log->tail, tail + count, memory_order_release);
}

uint64_t
mp_log_appended(const mp_log_t *log)
{
    return atomic_load_explicit(&log->head, memory_order_relaxed);
}

uint64_t
mp_log_dropped(const mp_log_t *log)
{
    return atomic_load_explicit(&log->dropped, memory_order_relaxed);
}

void
mp_log_reset(mp_log_t *log)
{
    uint64_t head = atomic_load_explicit(&log->head, memory_order_relaxed);
    atomic_store_explicit(&log->tail, head, memory_order_release);
    log->tail_seen = head;
    mp_spin_unlock(&log->lock);
}
