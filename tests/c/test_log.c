/* test_log.c - nothing lost, nothing twice, every drop counted. */
#include "log.h"
#include "mem.h"
#include "mp_test.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    CAPACITY = 1024
}; /* the smallest there is */

static mp_log_t *
new_log(void)
{
    mp_log_t *log = NULL;
    MP_CHECK(mp_log_new(0, &log) == MP_OK);
    MP_CHECK(log != NULL);
    return log;
}

/* Append COUNT events numbered from FIRST as one. */
static bool
append(mp_log_t *log, uint64_t first, size_t count, bool *half_full)
{
    mp_event_t events[2 * CAPACITY];
    MP_CHECK(count <= MP_ARRAY_LENGTH(events));
    for (size_t i = 0; i < count; i++) {
        events[i] = (mp_event_t){.addr = first + i, .size = ~(first + i)};
    }
    return mp_log_append(log, events, count, half_full);
}

/* Take COUNT events out, which must be numbered from FIRST. */
static void
take(mp_log_t *log, uint64_t first, size_t count)
{
    while (count > 0) {
        size_t ready;
        const mp_event_t *events = mp_log_peek(log, &ready);
        MP_CHECK(ready > 0);
        size_t taken = ready < count ? ready : count;
        for (size_t i = 0; i < taken; i++) {
            MP_CHECK_EQ(events[i].addr, first);
            MP_CHECK_EQ(events[i].size, ~first);
            first++;
        }
        mp_log_consume(log, taken);
        count -= taken;
    }
}

static size_t
ready_events(mp_log_t *log)
{
    size_t ready = 12345;
    (void)mp_log_peek(log, &ready);
    return ready;
}

static void
test_log_gives_back_what_was_appended(void)
{
    mp_log_t *log = new_log();
    MP_CHECK_EQ(ready_events(log), 0);
    MP_CHECK(append(log, 0, 1, NULL));
    MP_CHECK(append(log, 1, 3, NULL));
    MP_CHECK_EQ(ready_events(log), 4);
    MP_CHECK_EQ(ready_events(log), 4); /* a look takes nothing */
    take(log, 0, 1);
    MP_CHECK_EQ(ready_events(log), 3);
    take(log, 1, 3);
    MP_CHECK_EQ(ready_events(log), 0);
    MP_CHECK_EQ(mp_log_appended(log), 4);
    MP_CHECK_EQ(mp_log_dropped(log), 0);
    mp_log_free(log);
    mp_log_free(NULL);
}

static void
test_log_rounds_its_budget_up(void)
{
    static const size_t budgets[][2] = {
        /* bytes, events that fit */
        {0, 1024},
        {1024 * 64, 1024},
        {1024 * 64 + 1, 2048},
        {100000 * 64, 131072},
    };
    for (size_t i = 0; i < MP_ARRAY_LENGTH(budgets); i++) {
        mp_log_t *log = NULL;
        MP_CHECK(mp_log_new(budgets[i][0], &log) == MP_OK);
        for (size_t k = 0; k < budgets[i][1]; k++) {
            MP_CHECK(append(log, k, 1, NULL));
        }
        MP_CHECK(!append(log, 0, 1, NULL));
        MP_CHECK_EQ(mp_log_appended(log), budgets[i][1]);
        mp_log_free(log);
    }
    mp_log_t *log = NULL;
    MP_CHECK(mp_log_new(SIZE_MAX, &log) == MP_ERR_NOMEM);
    MP_CHECK(mp_log_new(SIZE_MAX / 4, &log) == MP_ERR_NOMEM);
    MP_CHECK(log == NULL);
}

static void
test_log_counts_what_did_not_fit(void)
{
    mp_log_t *log = new_log();
    MP_CHECK(append(log, 0, CAPACITY - 2, NULL));
    MP_CHECK(!append(log, 999999, 3, NULL)); /* all or none */
    MP_CHECK_EQ(mp_log_dropped(log), 3);
    MP_CHECK(append(log, CAPACITY - 2, 2, NULL));
    MP_CHECK(!append(log, 999999, 1, NULL));
    MP_CHECK_EQ(mp_log_dropped(log), 4);
    MP_CHECK_EQ(ready_events(log), CAPACITY);
    take(log, 0, 1);
    MP_CHECK(append(log, CAPACITY, 1, NULL)); /* there is room again */
    take(log, 1, CAPACITY);
    MP_CHECK_EQ(mp_log_dropped(log), 4);
    MP_CHECK_EQ(mp_log_appended(log), CAPACITY + 1);
    mp_log_free(log);
}

static void
test_log_drops_what_can_never_fit(void)
{
    mp_log_t *log = new_log();
    bool half_full = true;
    MP_CHECK(!append(log, 0, CAPACITY + 1, &half_full));
    MP_CHECK(!half_full);
    MP_CHECK_EQ(mp_log_dropped(log), CAPACITY + 1);
    MP_CHECK(append(log, 0, CAPACITY, &half_full));
    MP_CHECK(half_full);
    take(log, 0, CAPACITY);
    mp_log_free(log);
}

static void
test_log_wraps_at_every_place(void)
{
    mp_log_t *log = new_log();
    uint64_t next = 0;
    for (size_t i = 0; i < 3 * CAPACITY; i++) {
        size_t count = 1 + i % 7;
        MP_CHECK(append(log, next, count, NULL));
        take(log, next, count);
        next += count;
    }
    MP_CHECK_EQ(mp_log_appended(log), next);
    MP_CHECK_EQ(mp_log_dropped(log), 0);
    mp_log_free(log);
}

static void
test_log_shows_the_run_up_to_its_end(void)
{
    mp_log_t *log = new_log();
    MP_CHECK(append(log, 0, CAPACITY - 3, NULL));
    take(log, 0, CAPACITY - 3);
    MP_CHECK(append(log, CAPACITY - 3, 10, NULL));
    MP_CHECK_EQ(ready_events(log), 3);
    take(log, CAPACITY - 3, 3);
    MP_CHECK_EQ(ready_events(log), 7);
    take(log, CAPACITY, 7);
    MP_CHECK_EQ(ready_events(log), 0);
    mp_log_free(log);
}

/* Append one by one until COUNT are in; how many said "half full". */
static int
append_singly(mp_log_t *log, uint64_t first, size_t count)
{
    int said = 0;
    for (size_t i = 0; i < count; i++) {
        bool half_full = true;
        MP_CHECK(append(log, first + i, 1, &half_full));
        said += half_full;
    }
    return said;
}

static void
test_log_says_half_full_once_each_time(void)
{
    enum {
        HALF = CAPACITY / 2
    };
    mp_log_t *log = new_log();
    uint64_t tail = 0;
    for (int round = 0; round < 5; round++) {
        MP_CHECK_EQ(append_singly(log, tail, HALF - 1), 0);
        MP_CHECK_EQ(append_singly(log, tail + HALF - 1, 1), 1);
        MP_CHECK_EQ(append_singly(log, tail + HALF, HALF), 0);
        take(log, tail, CAPACITY);
        tail += CAPACITY;
    }
    /* Not emptied, only brought below half. */
    MP_CHECK_EQ(append_singly(log, tail, HALF + 5), 1);
    take(log, tail, 6);
    tail += 6;
    MP_CHECK_EQ(append_singly(log, tail + HALF - 1, 1), 1);
    MP_CHECK_EQ(append_singly(log, tail + HALF, 1), 0);

    bool half_full = false; /* one append over the line */
    take(log, tail, HALF + 1);
    tail += HALF + 1;
    MP_CHECK(append(log, tail, HALF + 100, &half_full));
    MP_CHECK(half_full);
    mp_log_free(log);
}

static void
test_log_reset_empties_it(void)
{
    mp_log_t *log = new_log();
    MP_CHECK(append(log, 0, CAPACITY, NULL));
    MP_CHECK(!append(log, 0, 1, NULL));
    mp_log_reset(log);
    MP_CHECK_EQ(ready_events(log), 0);
    MP_CHECK_EQ(append_singly(log, 0, CAPACITY), 1);
    take(log, 0, CAPACITY);
    MP_CHECK_EQ(mp_log_dropped(log), 1);
    mp_log_free(log);
}

static void
test_log_survives_every_failed_allocation(void)
{
    for (long n = 1;; n++) {
        mp_log_t *log = NULL;
        mp_mem_fail_after(n);
        mp_status_t status = mp_log_new(0, &log);
        mp_mem_fail_after(0);
        if (status == MP_OK) {
            MP_CHECK_EQ(n, 3); /* the log and its ring */
            mp_log_free(log);
            break;
        }
        MP_CHECK(status == MP_ERR_NOMEM);
        MP_CHECK(log == NULL);
        MP_CHECK_EQ(mp_mem_bytes(), 0);
    }
    MP_CHECK_EQ(mp_mem_bytes(), 0);
}

/* --- threads ------------------------------------------------------------ */

enum {
    PRODUCERS = 4,
    EVENTS = 60000,
    MAX_GROUP = 5
};

typedef struct {
    mp_log_t *log;
    uint32_t number;
    bool patient; /* tries again what was dropped */
    atomic_ulong *half_fulls;
    uint64_t appended;
    uint64_t dropped;
} producer_t;

static void *
produce(void *argument)
{
    producer_t *self = argument;
    mp_event_t events[MAX_GROUP];
    for (uint64_t next = 0, group = 0; next < EVENTS; group++) {
        size_t count = 1 + (size_t)(group + self->number) % MAX_GROUP;
        for (size_t i = 0; i < count; i++) {
            events[i] = (mp_event_t){.addr = next + i,
                                     .size = count - i, /* left in group */
                                     .thread = self->number,
                                     .stream = ~(next + i)};
        }
        bool half_full = false;
        while (!mp_log_append(self->log, events, count, &half_full)) {
            MP_CHECK(!half_full);
            self->dropped += count;
            sched_yield();
            if (!self->patient) {
                break;
            }
        }
        if (half_full) {
            atomic_fetch_add(self->half_fulls, 1);
        }
        next += count;
    }
    return NULL;
}

typedef struct {
    mp_log_t *log;
    atomic_bool done;
    bool gapless; /* nothing may be missing between two events */
    uint64_t read[PRODUCERS];
    uint64_t next[PRODUCERS];
} reader_t;

static void
check_event(reader_t *self, const mp_event_t *event, const mp_event_t *last)
{
    MP_CHECK(event->thread < PRODUCERS);
    MP_CHECK_EQ(event->stream, ~event->addr); /* not half-written */
    uint64_t *next = &self->next[event->thread];
    MP_CHECK(self->gapless ? event->addr == *next : event->addr >= *next);
    *next = event->addr + 1;
    self->read[event->thread]++;
    if (last->size > 1) { /* a group stays together */
        MP_CHECK_EQ(event->thread, last->thread);
        MP_CHECK_EQ(event->addr, last->addr + 1);
    }
}

static void *
read_all(void *argument)
{
    reader_t *self = argument;
    mp_event_t last = {0};
    for (size_t round = 0;; round++) {
        bool done = atomic_load(&self->done);
        size_t count;
        const mp_event_t *events = mp_log_peek(self->log, &count);
        for (size_t i = 0; i < count; i++) {
            check_event(self, &events[i], &last);
            last = events[i];
        }
        /* Give them back in two parts now and then. */
        size_t part = round % 3 == 0 ? count / 2 : 0;
        mp_log_consume(self->log, part);
        mp_log_consume(self->log, count - part);
        if (count == 0 && done) {
            return NULL;
        }
        if (count == 0) {
            sched_yield();
        }
    }
}

static void
run_producers_and_reader(bool patient)
{
    mp_log_t *log = new_log();
    atomic_ulong half_fulls = 0;
    reader_t reader = {.log = log, .gapless = patient};
    producer_t producers[PRODUCERS];
    pthread_t threads[PRODUCERS];
    pthread_t reader_thread;
    MP_CHECK(pthread_create(&reader_thread, NULL, read_all, &reader) == 0);
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        producers[i] = (producer_t){.log = log,
                                    .number = i,
                                    .patient = patient,
                                    .half_fulls = &half_fulls};
        MP_CHECK(pthread_create(&threads[i], NULL, produce, &producers[i]) ==
                 0);
    }
    uint64_t dropped = 0;
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        MP_CHECK(pthread_join(threads[i], NULL) == 0);
        dropped += producers[i].dropped;
    }
    atomic_store(&reader.done, true);
    MP_CHECK(pthread_join(reader_thread, NULL) == 0);

    uint64_t read = 0;
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        uint64_t groups_end = reader.next[i];
        uint64_t lost = patient ? 0 : producers[i].dropped;
        /* The last group may reach a little beyond EVENTS. */
        MP_CHECK(reader.read[i] + lost >= EVENTS);
        MP_CHECK(reader.read[i] + lost < EVENTS + MAX_GROUP);
        MP_CHECK(!patient || reader.read[i] == groups_end);
        read += reader.read[i];
    }
    MP_CHECK_EQ(mp_log_appended(log), read);
    MP_CHECK_EQ(mp_log_dropped(log), dropped);
    /* The log is half full at most once per half that went through it. */
    MP_CHECK(atomic_load(&half_fulls) <= read);
    MP_CHECK(dropped == 0 || atomic_load(&half_fulls) > 0);
    mp_log_free(log);
}

static void
test_log_loses_nothing_between_threads(void)
{
    run_producers_and_reader(true);
}

static void
test_log_counts_drops_of_all_threads(void)
{
    run_producers_and_reader(false);
}

static atomic_bool stop_appending;

static void *
append_until_told(void *log)
{
    while (!atomic_load(&stop_appending)) {
        (void)append(log, 0, 1, NULL);
    }
    return NULL;
}

static void
test_log_works_on_in_a_forked_child(void)
{
    mp_log_t *log = new_log();
    pthread_t threads[2];
    for (size_t i = 0; i < MP_ARRAY_LENGTH(threads); i++) {
        MP_CHECK(pthread_create(&threads[i], NULL, append_until_told, log) ==
                 0);
    }
    for (int round = 0; round < 20; round++) {
        pid_t child = fork(); /* the lock is mostly held by now */
        MP_CHECK(child >= 0);
        if (child == 0) {
            mp_log_reset(log);
            mp_event_t event = {.addr = 7};
            size_t count = 0;
            bool appended = mp_log_append(log, &event, 1, NULL);
            const mp_event_t *events = mp_log_peek(log, &count);
            _exit(appended && count == 1 && events[0].addr == 7 ? 0 : 1);
        }
        int status = -1;
        MP_CHECK(waitpid(child, &status, 0) == child);
        MP_CHECK_EQ(status, 0);
    }
    atomic_store(&stop_appending, true);
    for (size_t i = 0; i < MP_ARRAY_LENGTH(threads); i++) {
        MP_CHECK(pthread_join(threads[i], NULL) == 0);
    }
    mp_log_free(log);
}

MP_TEST_SUITE(log, MP_TEST(test_log_gives_back_what_was_appended),
              MP_TEST(test_log_rounds_its_budget_up),
              MP_TEST(test_log_counts_what_did_not_fit),
              MP_TEST(test_log_drops_what_can_never_fit),
              MP_TEST(test_log_wraps_at_every_place),
              MP_TEST(test_log_shows_the_run_up_to_its_end),
              MP_TEST(test_log_says_half_full_once_each_time),
              MP_TEST(test_log_reset_empties_it),
              MP_TEST(test_log_survives_every_failed_allocation),
              MP_TEST(test_log_loses_nothing_between_threads),
              MP_TEST(test_log_counts_drops_of_all_threads),
              MP_TEST(test_log_works_on_in_a_forked_child))
