/* test_sampler.c - the thread that measures, beside sessions and hooks. */
#include "clock.h"
#include "fake_driver.h"
#include "fake_shim.h"
#include "gpu_driver.h"
#include "hook.h"
#include "mem.h"
#include "mp_test.h"
#include "nvml.h"
#include "sampler.h"
#include "session.h"
#include "totals.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (INT64_C(1) << 20)
#define MS INT64_C(1000000)

static _Thread_local char error[256];

static mp_session_t *
running(bool totals)
{
    mp_session_options_t options = {
        .ops = 2, .cpu = true, .cuda = true, .totals = totals};
    mp_session_t *session;
    bool took_over;
    static atomic_bool is_set_up;
    if (!atomic_exchange(&is_set_up, true)) {
        mp_gpu_driver_use(fake_driver_lookup);
        mp_nvml_use(fake_driver_lookup);
        mp_hook_set_shim(fake_shim());
    }
    MP_CHECK(mp_session_new(&options, &session) == MP_OK);
    MP_CHECK(mp_session_start(session, false, &took_over, error,
                              sizeof(error)) == MP_OK);
    return session;
}

static void
window_begin(mp_session_t *session)
{
    int saved_errno;
    MP_CHECK(mp_session_window_begin(session, NULL, &saved_errno) == MP_OK);
}

/* The samples of the window, which is ended, or of a copy. */
static mp_total_t *
samples(mp_session_t *session, bool end, size_t *count)
{
    mp_window_t window;
    mp_total_t *rows;
    MP_CHECK((end ? mp_session_window_end(session, &window)
                  : mp_session_window_copy(session, &window)) == MP_OK);
    MP_CHECK(mp_totals_build(window.events, window.count, &rows, count) ==
             MP_OK);
    mp_window_clear(&window);
    return rows;
}

static size_t
count_cause(const mp_total_t *rows, size_t count, mp_total_cause_t cause,
            int16_t device)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        found += rows[i].cause == cause && rows[i].device == device;
    }
    return found;
}

static void
step(mp_session_t *session, int32_t number)
{
    MP_CHECK(mp_session_step(session, number) == MP_OK);
}

static void
segment(int16_t device, uint64_t addr, uint64_t bytes, uint8_t kind)
{
    mp_memory_fact_t fact = {
        .kind = kind, .device = device, .addr = addr, .size = bytes};
    mp_hook_memory(&fact);
}

static void
sleep_ms(int ms)
{
    (void)usleep((useconds_t)ms * 1000);
}

static size_t
threads(void)
{
    size_t count = 0;
    DIR *tasks = opendir("/proc/self/task");
    MP_CHECK(tasks != NULL);
    for (struct dirent *task; (task = readdir(tasks)) != NULL;) {
        count += task->d_name[0] != '.';
    }
    (void)closedir(tasks);
    return count;
}

static void
end(mp_session_t *session)
{
    MP_CHECK(mp_session_stop(session) == MP_OK);
    mp_session_free(session);
}

/* ---- when it looks ------------------------------------------------------ */

static void
test_sampler_at_a_windows_begin_and_end(void)
{
    mp_session_t *session = running(true);
    size_t count;
    window_begin(session);
    fake_driver.used[0] = 700 << 20;
    mp_total_t *rows = samples(session, true, &count);
    end(session);
    /* Every look is at the device in use and the host. */
    MP_CHECK(count >= 4);
    MP_CHECK_EQ(rows[0].device, 0);
    MP_CHECK_EQ(rows[0].process_bytes, 642 * MIB);
    MP_CHECK_EQ(rows[1].device, -1);
    MP_CHECK_EQ(rows[1].sample, rows[0].sample);
    MP_CHECK(rows[1].process_bytes > 0);
    MP_CHECK_EQ(rows[count - 2].process_bytes, 700 * MIB);
    MP_CHECK_EQ(rows[count - 2].cause, MP_TOTAL_CAUSE_WINDOW);
    MP_CHECK(rows[count - 2].cost_ns > 0);
    mp_free(rows);
}

static void
test_sampler_at_each_step(void)
{
    mp_session_t *session = running(true);
    size_t count;
    window_begin(session);
    for (int32_t i = 1; i <= 5; i++) {
        step(session, i);
        sleep_ms(30);
    }
    mp_total_t *rows = samples(session, true, &count);
    end(session);
    MP_CHECK_EQ(count_cause(rows, count, MP_TOTAL_CAUSE_STEP, 0), 5);
    for (size_t i = 0, number = 1; i < count; i++) {
        if (rows[i].cause == MP_TOTAL_CAUSE_STEP && rows[i].device == 0) {
            MP_CHECK_EQ(rows[i].step, number);
            number++;
        }
    }
    mp_free(rows);
}

/* Short steps share samples: it must not look all the time. */
static void
test_sampler_takes_a_part_of_its_time(void)
{
    fake_driver.delay_us = 5000;
    mp_session_t *session = running(true);
    size_t count;
    window_begin(session);
    for (int32_t i = 1; i <= 500; i++) {
        step(session, i);
        (void)usleep(1000);
    }
    mp_total_t *rows = samples(session, true, &count);
    end(session);
    size_t found = count_cause(rows, count, MP_TOTAL_CAUSE_STEP, 0);
    MP_CHECK(found >= 3 && found <= 40); /* of 500; 10 in half a second */
    mp_free(rows);
}

static void
test_sampler_near_the_peak(void)
{
    mp_session_t *session = running(true);
    size_t count;
    window_begin(session);
    int64_t begin_ns = mp_clock_now();
    for (uint64_t i = 1; i <= 40; i++) { /* it grows for 120 ms */
        segment(0, i << 30, 2 << 20, MP_EVENT_SEGMENT_ALLOC);
        (void)usleep(3000);
    }
    int64_t grown_ns = mp_clock_now();
    sleep_ms(100);
    size_t first;
    mp_total_t *rows = samples(session, false, &first);
    size_t peaks = count_cause(rows, first, MP_TOTAL_CAUSE_PEAK, 0);
    int64_t last_ns = 0;
    for (size_t i = 0; i < first; i++) {
        if (rows[i].cause == MP_TOTAL_CAUSE_PEAK) {
            last_ns = rows[i].time_ns;
        }
    }
    mp_free(rows);
    /* At most 20 a second, and one that saw all of it. */
    MP_CHECK(peaks >= 2 &&
             (int64_t)peaks <= 2 + (mp_clock_now() - begin_ns) / (50 * MS));
    MP_CHECK(last_ns > grown_ns - 10 * MS);
    /* Memory that was there before is no new peak. */
    segment(0, 1 << 30, 2 << 20, MP_EVENT_SEGMENT_FREE);
    segment(0, 1 << 30, 2 << 20, MP_EVENT_SEGMENT_MAP);
    segment(0, 1 << 30, 2 << 20, MP_EVENT_SEGMENT_UNMAP);
    segment(0, 99ull << 30, 1 << 20, MP_EVENT_SEGMENT_ALLOC);
    sleep_ms(100);
    rows = samples(session, true, &count);
    end(session);
    MP_CHECK(count_cause(rows, count, MP_TOTAL_CAUSE_PEAK, 0) <= peaks + 1);
    mp_free(rows);
}

static void
driver_mark(mp_driver_mark_t mark)
{
    mp_event_t event = {.kind = MP_EVENT_DRIVER_MARK,
                        .pool = (uint16_t)mark,
                        .time_ns = mp_clock_now(),
                        .op = MP_NO_INDEX,
                        .module = MP_NO_INDEX,
                        .stack = MP_NO_INDEX,
                        .op_instance = MP_NO_INDEX};
    MP_CHECK(mp_hook_feed(&event, 1));
}

/* What an image takes is told by no call: only the difference shows it. */
static void
test_sampler_when_a_library_is_loaded(void)
{
    mp_session_t *session = running(true);
    window_begin(session);
    driver_mark(MP_DRIVER_MARK_LIMIT_SET);
    sleep_ms(100);
    size_t count;
    mp_total_t *rows = samples(session, false, &count);
    MP_CHECK_EQ(count_cause(rows, count, MP_TOTAL_CAUSE_REQUEST, 0), 0);
    mp_free(rows);
    driver_mark(MP_DRIVER_MARK_IMAGE_LOADED);
    sleep_ms(200);
    rows = samples(session, true, &count);
    MP_CHECK_EQ(count_cause(rows, count, MP_TOTAL_CAUSE_REQUEST, 0), 1);
    mp_free(rows);
    end(session);
}

static void
test_sampler_on_request_and_by_the_clock(void)
{
    mp_session_t *session = running(true);
    size_t count;
    window_begin(session);
    mp_totals_request();
    sleep_ms(100);
    mp_total_t *rows = samples(session, false, &count);
    MP_CHECK_EQ(count_cause(rows, count, MP_TOTAL_CAUSE_REQUEST, 0), 1);
    MP_CHECK_EQ(count_cause(rows, count, MP_TOTAL_CAUSE_CLOCK, 0), 0);
    mp_free(rows);
    sleep_ms(1200);
    rows = samples(session, true, &count);
    end(session);
    size_t ticks = count_cause(rows, count, MP_TOTAL_CAUSE_CLOCK, 0);
    MP_CHECK(ticks >= 1 && ticks <= 3);
    mp_free(rows);
}

/* ---- when it does not --------------------------------------------------- */

static void
test_sampler_writes_nothing_where_nothing_is_used(void)
{
    size_t count;
    fake_driver.active = 0;
    mp_session_t *session = running(true);
    window_begin(session);
    step(session, 1);
    sleep_ms(700);
    mp_free(samples(session, false, &count));
    MP_CHECK_EQ(count, 0);
    MP_CHECK_EQ(fake_driver.inits, 0);
    fake_driver.active = 1; /* the program begins to use it */
    segment(0, 1 << 30, 2 << 20, MP_EVENT_SEGMENT_ALLOC);
    sleep_ms(100);
    mp_total_t *rows = samples(session, true, &count);
    end(session);
    MP_CHECK(count_cause(rows, count, MP_TOTAL_CAUSE_PEAK, 0) == 1);
    MP_CHECK_EQ(fake_driver.contexts_made, 0);
    mp_free(rows);
}

static void
test_sampler_is_there_only_if_wanted(void)
{
    end(running(true)); /* a sanitizer's own thread comes with the first */
    size_t count, before = threads();
    mp_session_t *session = running(false);
    MP_CHECK_EQ(threads(), before + 1); /* the drain thread */
    window_begin(session);
    step(session, 1);
    mp_free(samples(session, true, &count));
    MP_CHECK_EQ(count, 0);
    mp_session_t *other = running(true);
    MP_CHECK_EQ(threads(), before + 2);
    window_begin(session); /* it hears what the other has measured */
    window_begin(other);
    step(other, 1);
    mp_free(samples(other, true, &count));
    MP_CHECK(count >= 2);
    mp_free(samples(session, true, &count));
    MP_CHECK(count >= 2);
    end(other);
    MP_CHECK_EQ(threads(), before + 1);
    MP_CHECK_EQ(fake_driver.inits, 1);
    end(session);
    MP_CHECK_EQ(threads(), before);
}

static void
test_sampler_starts_and_stops_many_times(void)
{
    end(running(true));
    size_t before = threads(), held = 0;
    for (int i = 0; i < 200; i++) {
        mp_session_t *session = running(true);
        size_t count;
        if (i % 3 == 0) {
            window_begin(session);
            mp_free(samples(session, true, &count));
            MP_CHECK(count >= 2);
        }
        end(session);
        if (i == 5) {
            held = mp_mem_bytes();
        }
    }
    MP_CHECK_EQ(threads(), before);
    MP_CHECK(mp_mem_bytes() <= held);
    MP_CHECK_EQ(fake_driver.retained, 0);
    mp_nvml_use(NULL);
}

/* ---- beside others ------------------------------------------------------ */

static atomic_bool over;

static void *
work(void *argument)
{
    uint64_t mine = (uintptr_t)argument;
    for (uint64_t i = 1; !atomic_load(&over); i++) {
        uint64_t addr = mine << 40 | i << 22;
        segment((int16_t)(mine % 2), addr, 2 << 20, MP_EVENT_SEGMENT_ALLOC);
        segment((int16_t)(mine % 2), addr, 100, MP_EVENT_ALLOC);
        if (i % 16 == 0) {
            mp_totals_request();
        }
        (void)usleep(1000); /* a sanitizer is slow, and others run too */
        segment((int16_t)(mine % 2), addr, 100, MP_EVENT_FREE_REQUESTED);
        segment((int16_t)(mine % 2), addr, 100, MP_EVENT_FREE_COMPLETED);
        segment((int16_t)(mine % 2), addr, 2 << 20, MP_EVENT_SEGMENT_FREE);
    }
    return NULL;
}

/* Two sessions come and go while threads allocate and somebody asks for the
 * totals of a device. */
static void *
come_and_go(void *argument)
{
    (void)argument;
    for (int i = 0; i < 60; i++) {
        mp_session_t *session = running(true);
        size_t count;
        window_begin(session);
        step(session, 1);
        mp_total_t *rows = samples(session, true, &count);
        MP_CHECK(count >= 3);
        for (size_t k = 1; k < count; k++) {
            MP_CHECK(rows[k].sample >= rows[k - 1].sample);
        }
        mp_free(rows);
        end(session);
    }
    return NULL;
}

static void
test_sampler_beside_hooks_and_sessions(void)
{
    pthread_t workers[2], other;
    fake_driver.active = 3;
    mp_session_t *session = running(true);
    window_begin(session);
    for (uintptr_t i = 0; i < MP_ARRAY_LENGTH(workers); i++) {
        MP_CHECK(pthread_create(&workers[i], NULL, work, (void *)(i + 1)) ==
                 0);
    }
    MP_CHECK(pthread_create(&other, NULL, come_and_go, NULL) == 0);
    (void)come_and_go(NULL);
    (void)pthread_join(other, NULL);
    over = true;
    for (size_t i = 0; i < MP_ARRAY_LENGTH(workers); i++) {
        (void)pthread_join(workers[i], NULL);
    }
    size_t count;
    mp_free(samples(session, true, &count));
    MP_CHECK(count >= 120 * 3);
    mp_session_status_t status;
    mp_session_status(session, &status);
    MP_CHECK_EQ(status.dropped, 0);
    MP_CHECK_EQ(status.defects.unapplied_events, 0);
    end(session);
    MP_CHECK_EQ(fake_driver.inits, 1);
}

/* A driver that hangs for a while must not hold up the program. */
static void
test_sampler_waits_for_no_slow_driver(void)
{
    fake_driver.delay_us = 1500000;
    mp_session_t *session = running(true);
    sleep_ms(50); /* it is in the first call */
    int64_t begin_ns = mp_clock_now();
    window_begin(session);
    int64_t waited_ns = mp_clock_now() - begin_ns;
    MP_CHECK(waited_ns > 300 * MS && waited_ns < 900 * MS);
    begin_ns = mp_clock_now();
    for (int32_t i = 1; i < 100; i++) {
        step(session, i);
        segment(0, 1 << 30, 2 << 20, MP_EVENT_SEGMENT_ALLOC);
    }
    MP_CHECK(mp_clock_now() - begin_ns < 200 * MS);
    fake_driver.delay_us = 0;
    size_t count;
    mp_free(samples(session, true, &count));
    end(session);
}

static void
test_sampler_is_not_in_a_forked_child(void)
{
    mp_session_t *session = running(true);
    size_t count;
    window_begin(session);
    for (int i = 0; i < 20; i++) { /* at any moment of the thread's */
        mp_totals_request();
        (void)usleep((useconds_t)(i * 300));
        pid_t child = fork();
        if (child == 0) {
            uint64_t calls = fake_driver.process_calls;
            mp_sampler_wait(); /* there is nobody to wait for */
            mp_sampler_want(MP_TOTAL_CAUSE_STEP);
            bool alone = threads() == 1;
#ifndef __SANITIZE_THREAD__ /* knows no threads after a fork */
            mp_session_t *own = running(true);
            fake_driver.up = 1;
            window_begin(own);
            mp_total_t *rows = samples(own, true, &count);
            end(own);
            mp_free(rows);
#endif
            mp_session_free(session);
            _exit(alone && fake_driver.process_calls == calls ? 0 : 1);
        }
        int status = -1;
        MP_CHECK(waitpid(child, &status, 0) == child);
        MP_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    mp_free(samples(session, true, &count));
    MP_CHECK(count >= 4);
    end(session);
}

MP_TEST_SUITE(sampler, MP_TEST(test_sampler_at_a_windows_begin_and_end),
              MP_TEST(test_sampler_at_each_step),
              MP_TEST(test_sampler_takes_a_part_of_its_time),
              MP_TEST(test_sampler_near_the_peak),
              MP_TEST(test_sampler_when_a_library_is_loaded),
              MP_TEST(test_sampler_on_request_and_by_the_clock),
              MP_TEST(test_sampler_writes_nothing_where_nothing_is_used),
              MP_TEST(test_sampler_is_there_only_if_wanted),
              MP_TEST(test_sampler_starts_and_stops_many_times),
              MP_TEST(test_sampler_beside_hooks_and_sessions),
              MP_TEST(test_sampler_waits_for_no_slow_driver),
              MP_TEST(test_sampler_is_not_in_a_forked_child))
