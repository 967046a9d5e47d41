/* test_session.c - from start to stop, with the drain thread beside. */
#include "clock.h"
#include "fake_shim.h"
#include "hook.h"
#include "mem.h"
#include "mp_test.h"
#include "session.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    CPU = MP_DEVICE_CPU
};

static _Thread_local char error[256];

static mp_session_t *
new_session_of(mp_session_options_t options)
{
    mp_session_t *session = NULL;
    MP_CHECK(mp_session_new(&options, &session) == MP_OK);
    mp_hook_set_shim(fake_shim());
    return session;
}

static mp_session_t *
new_session(void)
{
    return new_session_of((mp_session_options_t){
        .ops = 2, .stacks = true, .cpu = true, .cuda = true});
}

/* Whether another session's state was taken over. */
static bool
start(mp_session_t *session)
{
    bool took_over = true;
    MP_CHECK(mp_session_start(session, false, &took_over, error,
                              sizeof(error)) == MP_OK);
    return took_over;
}

static void
stop(mp_session_t *session)
{
    MP_CHECK(mp_session_stop(session) == MP_OK);
}

static void
step(mp_session_t *session, int32_t number)
{
    MP_CHECK(mp_session_step(session, number) == MP_OK);
}

static void
window_begin(mp_session_t *session, const char *path)
{
    int saved_errno = 123;
    MP_CHECK(mp_session_window_begin(session, path, &saved_errno) == MP_OK);
    MP_CHECK_EQ(saved_errno, 0);
}

static mp_window_t
window_end(mp_session_t *session)
{
    mp_window_t window;
    MP_CHECK(mp_session_window_end(session, &window) == MP_OK);
    return window;
}

static void
alloc(uint64_t addr, size_t bytes)
{
    mp_hook_cpu_alloc((void *)(uintptr_t)addr, bytes);
}

static void
release(uint64_t addr)
{
    mp_hook_cpu_free((void *)(uintptr_t)addr);
}

static void
cuda(uint8_t kind, int16_t device, uint64_t addr, uint64_t size)
{
    mp_memory_fact_t fact = {
        .kind = kind, .device = device, .addr = addr, .size = size};
    mp_hook_memory(&fact);
}

static int64_t
requested(mp_session_t *session, int16_t device)
{
    mp_device_stats_t stats = {0};
    (void)mp_session_stats(session, device, &stats);
    return stats.requested_bytes.current;
}

static mp_session_status_t
status_of(mp_session_t *session)
{
    mp_session_status_t status;
    mp_session_status(session, &status);
    return status;
}

/* The events of a window, replayed, are what its tracker says. */
static void
check_window(const mp_window_t *window, uint64_t id)
{
    mp_tracker_options_t options = {.session_id = id, .keep_dead = true};
    mp_tracker_t *tracker;
    MP_CHECK(mp_tracker_new(&options, &tracker) == MP_OK);
    for (size_t i = 0; i < window->count; i++) {
        MP_CHECK(mp_tracker_apply(tracker, &window->events[i]) == MP_OK);
        MP_CHECK(window->events[i].step >= 0);
    }
    size_t count, expected;
    const mp_allocation_t *rows = mp_tracker_allocations(tracker, &count);
    const mp_allocation_t *others =
        mp_tracker_allocations(window->tracker, &expected);
    MP_CHECK_EQ(count, expected);
    MP_CHECK(count == 0 || memcmp(rows, others, count * sizeof(*rows)) == 0);
    const mp_step_stats_t *steps = mp_tracker_steps(tracker, &count);
    const mp_step_stats_t *theirs =
        mp_tracker_steps(window->tracker, &expected);
    MP_CHECK_EQ(count, expected);
    MP_CHECK(count == 0 || memcmp(steps, theirs, count * sizeof(*steps)) == 0);
    mp_tracker_free(tracker);
}

static size_t
count_kind(const mp_window_t *window, uint8_t kind)
{
    size_t count = 0;
    for (size_t i = 0; i < window->count; i++) {
        count += window->events[i].kind == kind;
    }
    return count;
}

/* ---- life cycle
 * ------------------------------------------------------------------ */

static void
test_session_switches_hooks_on_and_off(void)
{
    mp_session_t *session = new_session();
    MP_CHECK_EQ(mp_hook_wanted(), 0);
    MP_CHECK(!start(session));
    MP_CHECK(mp_hook_wanted() != 0);
    MP_CHECK_EQ(fake_cpu_installed, 1);
    MP_CHECK_EQ(fake_ops_installed, 2);
    alloc(0x1000, 64);
    MP_CHECK_EQ(requested(session, CPU), 64);
    MP_CHECK(status_of(session).running);
    MP_CHECK_EQ(status_of(session).events, 1);
    MP_CHECK(status_of(session).own_bytes > 0);
    stop(session);
    MP_CHECK_EQ(mp_hook_wanted(), 0);
    MP_CHECK_EQ(fake_cpu_installed, 0);
    MP_CHECK_EQ(fake_ops_installed, 0);
    alloc(0x2000, 64);
    MP_CHECK_EQ(requested(session, CPU), 64); /* still there to be asked */
    MP_CHECK(!status_of(session).running);
    mp_session_free(session);
    mp_session_free(NULL);
}

static void
test_session_refuses_what_is_not_possible_now(void)
{
    mp_session_t *session = new_session();
    mp_window_t window;
    mp_scope_t scope;
    mp_device_stats_t stats;
    bool took_over;
    int saved_errno;
    MP_CHECK_EQ(mp_session_stop(session), MP_ERR_STATE);
    MP_CHECK_EQ(mp_session_step(session, 1), MP_ERR_STATE);
    MP_CHECK_EQ(mp_session_flush(session), MP_ERR_STATE);
    MP_CHECK_EQ(mp_session_seed(session, NULL, 0), MP_ERR_STATE);
    MP_CHECK_EQ(mp_session_window_begin(session, NULL, &saved_errno),
                MP_ERR_STATE);
    MP_CHECK_EQ(mp_session_window_end(session, &window), MP_ERR_STATE);
    MP_CHECK_EQ(mp_session_window_copy(session, &window), MP_ERR_STATE);
    MP_CHECK_EQ(mp_session_scope_open(session, &scope), MP_ERR_STATE);
    start(session);
    MP_CHECK_EQ(
        mp_session_start(session, false, &took_over, error, sizeof(error)),
        MP_ERR_STATE);
    MP_CHECK_EQ(mp_session_step(session, -1), MP_ERR_ARG);
    MP_CHECK_EQ(mp_session_seed(session, NULL, 0), MP_ERR_STATE);
    MP_CHECK_EQ(mp_session_stats(session, 5, &stats), MP_ERR_ARG);
    window_begin(session, NULL);
    MP_CHECK_EQ(mp_session_window_begin(session, NULL, &saved_errno),
                MP_ERR_STATE);
    MP_CHECK_EQ(mp_session_stop(session), MP_ERR_STATE); /* window is open */
    window = window_end(session);
    mp_window_clear(&window);
    stop(session);
    MP_CHECK_EQ(mp_session_stop(session), MP_ERR_STATE);
    mp_session_free(session);
}

static void
test_session_source_that_cannot_be_installed(void)
{
    mp_session_t *session = new_session();
    bool took_over;
    fake_cpu_fails = true;
    MP_CHECK_EQ(
        mp_session_start(session, false, &took_over, error, sizeof(error)),
        MP_ERR_LOAD);
    MP_CHECK_STR(error, "no CPU allocator here");
    MP_CHECK(!status_of(session).running);
    MP_CHECK_EQ(mp_hook_wanted(), 0);
    MP_CHECK_EQ(fake_ops_installed, 0);
    fake_cpu_fails = false;
    fake_ops_fail = true;
    MP_CHECK_EQ(
        mp_session_start(session, true, &took_over, error, sizeof(error)),
        MP_ERR_LOAD);
    MP_CHECK_STR(error, "no ops here");
    MP_CHECK_EQ(fake_cpu_installed, 0);
    fake_ops_fail = false;
    start(session);
    mp_session_free(session); /* stops it */
    MP_CHECK_EQ(fake_cpu_installed, 0);
}

static void
test_session_started_again_begins_anew(void)
{
    mp_session_t *session = new_session();
    start(session);
    step(session, 3);
    alloc(0x1000, 64);
    MP_CHECK_EQ(requested(session, CPU), 64);
    stop(session);
    release(0x1000); /* nobody looks */
    start(session);
    MP_CHECK_EQ(requested(session, CPU), 0);
    MP_CHECK_EQ(status_of(session).events, 0);
    alloc(0x1000, 10);
    MP_CHECK_EQ(requested(session, CPU), 10);
    MP_CHECK_EQ(status_of(session).defects.replaced_blocks, 0);
    mp_session_free(session);
}

/* ---- several sessions
 * -------------------------------------------------------------- */

static void
test_session_inner_one_takes_over_the_state(void)
{
    mp_session_t *outer = new_session(), *inner = new_session();
    MP_CHECK(mp_session_id(outer) != mp_session_id(inner));
    start(outer);
    step(outer, 5);
    alloc(0x1000, 100);
    alloc(0x2000, 20);
    release(0x2000);
    cuda(MP_EVENT_SEGMENT_ALLOC, 0, 0x10000, 4096);
    cuda(MP_EVENT_ALLOC, 0, 0x10000, 512);
    MP_CHECK(start(inner));
    MP_CHECK_EQ(requested(inner, CPU), 100);
    MP_CHECK_EQ(requested(inner, 0), 512);
    alloc(0x3000, 7);
    release(0x1000);
    MP_CHECK_EQ(requested(inner, CPU), 7);
    MP_CHECK_EQ(requested(outer, CPU), 7);
    stop(outer); /* before the inner one */
    MP_CHECK_EQ(fake_cpu_installed, 1);
    alloc(0x4000, 1);
    MP_CHECK_EQ(requested(inner, CPU), 8);
    MP_CHECK_EQ(requested(outer, CPU), 7);
    MP_CHECK_EQ(status_of(inner).defects.foreign_frees, 0);
    mp_session_free(inner);
    mp_session_free(outer);
}

static void
test_session_steps_of_two_are_kept_apart(void)
{
    mp_session_t *outer = new_session(), *inner = new_session();
    start(outer);
    alloc(0x1000, 1);
    step(outer, 7);
    start(inner);
    step(inner, 0);
    step(inner, 1);
    step(outer, 8);
    alloc(0x2000, 1);
    mp_step_stats_t *rows;
    size_t count;
    MP_CHECK(mp_session_steps(inner, &rows, &count) == MP_OK);
    MP_CHECK_EQ(rows[count - 1].number, 1);
    mp_free(rows);
    MP_CHECK(mp_session_steps(outer, &rows, &count) == MP_OK);
    MP_CHECK_EQ(count, 3);
    MP_CHECK_EQ(rows[0].number, 0);
    MP_CHECK_EQ(rows[1].number, 7);
    MP_CHECK_EQ(rows[2].number, 8);
    MP_CHECK_EQ(rows[2].allocated_total, 1);
    mp_free(rows);
    mp_session_free(outer);
    mp_session_free(inner);
}

static void
test_session_with_shapes_asks_for_outputs(void)
{
    mp_session_options_t options = {.ops = 2, .cpu = true, .cuda = false};
    mp_session_t *plain = new_session_of(options);
    options.shapes = true;
    mp_session_t *shapes = new_session_of(options);
    options.ops = 1;
    mp_session_t *regions = new_session_of(options);
    start(plain);
    MP_CHECK_EQ(fake_ops_installed, 2);
    start(shapes);
    MP_CHECK_EQ(fake_ops_installed, 3);
    stop(shapes);
    MP_CHECK_EQ(fake_ops_installed, 2);
    stop(plain);
    start(regions); /* ops that are not followed return nothing, and regions
                       alone need no callback */
    MP_CHECK_EQ(fake_ops_installed, 0);
    stop(regions);
    mp_session_free(plain);
    mp_session_free(shapes);
    mp_session_free(regions);
}

static void
test_session_takes_over_only_what_it_wants(void)
{
    mp_session_t *outer = new_session_of(
        (mp_session_options_t){.ops = 1, .cpu = true, .cuda = false});
    mp_session_t *inner = new_session();
    start(outer);
    MP_CHECK_EQ(fake_ops_installed, 0);
    alloc(0x1000, 100);
    MP_CHECK(!start(inner)); /* the other knows no CUDA */
    MP_CHECK_EQ(fake_ops_installed, 2);
    MP_CHECK_EQ(requested(inner, CPU), 0);
    stop(inner);
    MP_CHECK_EQ(fake_ops_installed, 0);
    MP_CHECK_EQ(fake_cpu_installed, 1);
    stop(outer);
    MP_CHECK_EQ(fake_ops_installed, 0);
    mp_session_free(outer);
    mp_session_free(inner);
}

/* ---- windows
 * ------------------------------------------------------------------------ */

static void
test_session_window_begins_with_the_state(void)
{
    mp_session_t *session = new_session();
    start(session);
    step(session, 4);
    alloc(0x1000, 100);
    alloc(0x2000, 10);
    release(0x2000);
    window_begin(session, NULL);
    MP_CHECK(status_of(session).recording);
    alloc(0x3000, 1);
    step(session, 5);
    release(0x1000);
    mp_window_t window = window_end(session);
    MP_CHECK_EQ(window.dropped, 0);
    MP_CHECK(window.writer == NULL);
    MP_CHECK_EQ(window.count, 7);
    static const uint8_t kinds[] = {
        MP_EVENT_SEED_BLOCK, MP_EVENT_STEP, MP_EVENT_WINDOW_BEGIN,
        MP_EVENT_ALLOC,      MP_EVENT_STEP, MP_EVENT_FREE_COMPLETED,
        MP_EVENT_WINDOW_END};
    static const int32_t steps[] = {4, 4, 4, 4, 5, 5, 5};
    for (size_t i = 0; i < window.count; i++) {
        MP_CHECK_EQ(window.events[i].kind, kinds[i]);
        MP_CHECK_EQ(window.events[i].step, steps[i]);
    }
    check_window(&window, mp_session_id(session));
    mp_window_clear(&window);
    alloc(0x4000, 5); /* between windows: followed, not kept */
    window_begin(session, NULL);
    window = window_end(session);
    MP_CHECK_EQ(count_kind(&window, MP_EVENT_ALLOC), 0);
    MP_CHECK_EQ(count_kind(&window, MP_EVENT_SEED_BLOCK), 2);
    check_window(&window, mp_session_id(session));
    mp_window_clear(&window);
    mp_session_free(session);
}

static void
test_session_window_may_be_copied_while_open(void)
{
    mp_session_t *session = new_session();
    start(session);
    window_begin(session, NULL);
    for (uint64_t i = 1; i <= 100; i++) {
        alloc(i << 8, i);
        mp_window_t copy;
        MP_CHECK(mp_session_window_copy(session, &copy) == MP_OK);
        MP_CHECK_EQ(count_kind(&copy, MP_EVENT_ALLOC), i);
        check_window(&copy, mp_session_id(session));
        mp_window_clear(&copy);
    }
    mp_window_t window = window_end(session);
    MP_CHECK_EQ(count_kind(&window, MP_EVENT_ALLOC), 100);
    mp_window_clear(&window);
    mp_session_free(session);
}

static void
test_session_full_window_is_a_whole_prefix(void)
{
    static const mp_session_options_t budgets[] = {
        {.cpu = true, .event_budget_bytes = 20 * sizeof(mp_event_t)},
        {.cpu = true, .event_budget_bytes = 1},
        {.cpu = true, .allocation_budget_bytes = 10 * sizeof(mp_allocation_t)},
    };
    for (size_t k = 0; k < MP_ARRAY_LENGTH(budgets); k++) {
        mp_session_t *session = new_session_of(budgets[k]);
        start(session);
        window_begin(session, NULL);
        for (uint64_t i = 1; i <= 50; i++) {
            alloc(i << 8, i);
        }
        for (uint64_t i = 1; i <= 50; i++) {
            release(i << 8);
        }
        mp_window_t copy;
        MP_CHECK(mp_session_window_copy(session, &copy) == MP_OK);
        mp_session_status_t status = status_of(session);
        mp_window_t window = window_end(session);
        static const size_t kept[] = {17, 0, 10}; /* of the allocations */
        MP_CHECK_EQ(count_kind(&window, MP_EVENT_ALLOC), kept[k]);
        MP_CHECK_EQ(count_kind(&window, MP_EVENT_FREE_COMPLETED), 0);
        MP_CHECK_EQ(window.events[window.count - 1].kind, MP_EVENT_WINDOW_END);
        MP_CHECK_EQ(window.dropped,
                    100 - kept[k] + (k == 1 ? 1 : 0)); /* and its begin */
        MP_CHECK_EQ(status.dropped, window.dropped);
        MP_CHECK_EQ(copy.dropped, window.dropped);
        MP_CHECK_EQ(copy.count, window.count - 1);
        check_window(&window, mp_session_id(session));
        mp_window_clear(&copy);
        mp_window_clear(&window);
        mp_session_free(session);
    }
}

static void
test_session_counts_what_the_log_dropped(void)
{
    mp_session_t *session = new_session();
    start(session);
    window_begin(session, NULL);
    enum {
        MANY = 300000
    }; /* more than the log holds */
    mp_event_t *events = calloc(MANY, sizeof(mp_event_t));
    MP_CHECK(!mp_hook_feed(events, MANY));
    free(events);
    MP_CHECK_EQ(status_of(session).dropped, MANY);
    mp_window_t window = window_end(session);
    MP_CHECK_EQ(window.dropped, MANY);
    mp_window_clear(&window);
    stop(session);
    MP_CHECK_EQ(status_of(session).dropped, MANY);
    start(session);
    MP_CHECK_EQ(status_of(session).dropped, 0);
    mp_session_free(session);
}

/* ---- streaming
 * ------------------------------------------------------------------------ */

static void
test_session_streams_a_window_to_a_file(void)
{
    mp_session_t *session = new_session();
    const char *path = mp_test_path("run.memprof");
    start(session);
    alloc(0x1000, 5);
    window_begin(session, path);
    for (uint64_t i = 1; i <= 20000; i++) {
        alloc(i << 16, i);
        if (i % 3 == 0) {
            release(i << 16);
        }
    }
    mp_window_t window = window_end(session);
    MP_CHECK(window.writer != NULL);
    MP_CHECK_EQ(window.stream_errno, 0);
    int saved_errno;
    MP_CHECK(mp_recording_writer_close(window.writer, "{}", 2, window.dropped,
                                       &saved_errno) == MP_OK);
    window.writer = NULL;
    mp_recording_data_t data;
    MP_CHECK(mp_recording_read(path, &data, &saved_errno, error,
                               sizeof(error)) == MP_OK);
    MP_CHECK(data.finished);
    MP_CHECK_EQ(data.count, window.count);
    MP_CHECK(memcmp(data.events, window.events,
                    data.count * sizeof(mp_event_t)) == 0);
    mp_recording_data_clear(&data);
    mp_window_clear(&window);
    mp_session_free(session);
}

static void
test_session_full_disk_ends_the_stream_not_the_recording(void)
{
    if (access("/dev/full", W_OK) != 0) {
        return;
    }
    mp_session_t *session = new_session();
    start(session);
    int saved_errno = 0;
    MP_CHECK_EQ(mp_session_window_begin(session, "/dev/full", &saved_errno),
                MP_ERR_IO); /* not even the header */
    MP_CHECK_EQ(saved_errno, ENOSPC);
    MP_CHECK(!status_of(session).recording);

    struct rlimit limit = {4096, RLIM_INFINITY}; /* room for a little */
    MP_CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    MP_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    window_begin(session, mp_test_path("cut.memprof"));
    enum {
        MANY = 200000
    };
    for (uint64_t i = 1; i <= MANY; i++) {
        alloc(i * 0x9E3779B97F4A7C15, i);
        if (i % 10000 == 0) {
            MP_CHECK(mp_session_flush(session) == MP_OK);
        }
    }
    MP_CHECK_EQ(status_of(session).stream_errno, EFBIG);
    mp_window_t window = window_end(session);
    limit.rlim_cur = RLIM_INFINITY;
    MP_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    MP_CHECK_EQ(window.stream_errno, EFBIG);
    MP_CHECK(window.writer == NULL);
    MP_CHECK_EQ(count_kind(&window, MP_EVENT_ALLOC), MANY);
    MP_CHECK_EQ(window.dropped, 0);
    mp_window_clear(&window);
    mp_session_free(session);
}

static void
test_session_path_that_cannot_be_written(void)
{
    mp_session_t *session = new_session();
    start(session);
    int saved_errno = 0;
    MP_CHECK_EQ(
        mp_session_window_begin(session, "/nowhere/run.memprof", &saved_errno),
        MP_ERR_IO);
    MP_CHECK_EQ(saved_errno, ENOENT);
    MP_CHECK(!status_of(session).recording);
    window_begin(session, NULL); /* in memory only, then */
    mp_window_t window = window_end(session);
    mp_window_clear(&window);
    mp_session_free(session);
}

static void
test_session_freed_with_an_open_window(void)
{
    mp_session_t *session = new_session();
    const char *path = mp_test_path("cut.memprof");
    start(session);
    window_begin(session, path);
    alloc(0x1000, 5);
    mp_session_free(session);
    MP_CHECK_EQ(mp_hook_wanted(), 0);
    mp_recording_data_t data; /* readable, and it says that it is cut */
    int saved_errno;
    MP_CHECK(mp_recording_read(path, &data, &saved_errno, error,
                               sizeof(error)) == MP_OK);
    MP_CHECK(!data.finished);
    mp_recording_data_clear(&data);
}

/* ---- seeding
 * ----------------------------------------------------------------------------
 */

static mp_event_t
seed(uint8_t kind, int16_t device, uint64_t addr, uint64_t size)
{
    return (mp_event_t){.kind = kind,
                        .device = device,
                        .addr = addr,
                        .size = size,
                        .op = MP_NO_INDEX,
                        .module = MP_NO_INDEX,
                        .stack = MP_NO_INDEX};
}

static void
snapshot(uint32_t thread)
{
    mp_event_t event = seed(MP_EVENT_SNAPSHOT, 0, 0, 0);
    event.thread = thread;
    MP_CHECK(mp_hook_feed(&event, 1));
}

static void
start_seeding(mp_session_t *session)
{
    bool took_over;
    MP_CHECK(mp_session_start(session, true, &took_over, error,
                              sizeof(error)) == MP_OK);
    MP_CHECK(!took_over);
    MP_CHECK(status_of(session).seeding);
}

static void
test_session_seeds_are_put_where_each_device_was_cut(void)
{
    mp_session_t *session = new_session();
    uint32_t me = mp_thread_number();
    int saved_errno;
    start_seeding(session);
    MP_CHECK_EQ(mp_session_window_begin(session, NULL, &saved_errno),
                MP_ERR_STATE);
    step(session, 2);
    alloc(0xC000, 7);                     /* the CPU has no cut */
    cuda(MP_EVENT_ALLOC, 0, 0x1000, 100); /* in device 0's snapshot */
    snapshot(me + 1);                     /* somebody else looks */
    cuda(MP_EVENT_ALLOC, 0, 0x2000, 200); /* so is this */
    snapshot(me);                         /* device 0 */
    cuda(MP_EVENT_ALLOC, 0, 0x3000, 1);   /* after it */
    cuda(MP_EVENT_FREE_REQUESTED, 0, 0x1000, 0);
    cuda(MP_EVENT_ALLOC, 1, 0x1000, 1000); /* in device 1's snapshot */
    snapshot(me);                          /* device 1 */
    cuda(MP_EVENT_FREE_REQUESTED, 1, 0x1000, 0);
    cuda(MP_EVENT_FREE_COMPLETED, 1, 0x1000, 0);
    cuda(MP_EVENT_ALLOC, 1, 0x5000, 5);
    MP_CHECK_EQ(requested(session, CPU), 0); /* they wait */
    const mp_event_t seeds[] = {
        seed(MP_EVENT_SEED_SEGMENT, 1, 0x1000, 4096),
        seed(MP_EVENT_SEED_BLOCK, 1, 0x1000, 1000),
        seed(MP_EVENT_SEED_SEGMENT, 0, 0x1000, 8192),
        seed(MP_EVENT_SEED_BLOCK, 0, 0x1000, 100),
        seed(MP_EVENT_SEED_BLOCK, 0, 0x2000, 200),
        seed(MP_EVENT_SEED_BLOCK, 7, 0x9000, 70), /* no cut was seen */
    };
    MP_CHECK(mp_session_seed(session, seeds, MP_ARRAY_LENGTH(seeds)) == MP_OK);
    MP_CHECK_EQ(requested(session, CPU), 7);
    MP_CHECK_EQ(requested(session, 0), 201);
    MP_CHECK_EQ(requested(session, 1), 5);
    MP_CHECK_EQ(requested(session, 7), 70);
    mp_device_stats_t stats;
    MP_CHECK(mp_session_stats(session, 0, &stats) == MP_OK);
    MP_CHECK_EQ(stats.active_bytes.current, 301); /* 0x1000 is pending */
    MP_CHECK_EQ(stats.reserved_bytes.current, 8192);
    mp_defects_t defects = status_of(session).defects;
    MP_CHECK_EQ(defects.unmatched_frees, 0);
    MP_CHECK_EQ(defects.replaced_blocks, 0);
    cuda(MP_EVENT_ALLOC, 0, 0x4000, 50); /* and life goes on */
    MP_CHECK_EQ(requested(session, 0), 251);
    mp_session_free(session);
}

static void
test_session_without_a_cut_believes_the_seeds(void)
{
    mp_session_t *session = new_session();
    start_seeding(session);
    cuda(MP_EVENT_SEGMENT_ALLOC, 0, 0x1000, 4096);
    cuda(MP_EVENT_ALLOC, 0, 0x1000, 100);
    const mp_event_t seeds[] = {
        seed(MP_EVENT_SEED_SEGMENT, 0, 0x1000, 4096),
        seed(MP_EVENT_SEED_BLOCK, 0, 0x1000, 100),
    };
    MP_CHECK(mp_session_seed(session, seeds, 2) == MP_OK);
    mp_device_stats_t stats;
    MP_CHECK(mp_session_stats(session, 0, &stats) == MP_OK);
    MP_CHECK_EQ(stats.requested_bytes.current, 100);
    MP_CHECK_EQ(stats.reserved_bytes.current, 4096);
    mp_session_free(session);
}

static void
test_session_stopped_while_it_waits_for_seeds(void)
{
    mp_session_t *session = new_session(), *inner = new_session();
    start_seeding(session);
    alloc(0x1000, 5);
    MP_CHECK(!start(inner)); /* nothing to take over yet */
    stop(session);
    MP_CHECK_EQ(mp_session_seed(session, NULL, 0), MP_ERR_STATE);
    stop(inner);
    start_seeding(session);
    alloc(0x1000, 5);
    mp_session_free(session); /* as it is */
    mp_session_free(inner);
}

/* ---- scopes
 * -----------------------------------------------------------------------------
 */

static void
test_session_scopes_see_all_that_was_written(void)
{
    mp_session_t *session = new_session();
    mp_scope_t scope;
    mp_device_stats_t stats;
    start(session);
    alloc(0x1000, 100);
    release(0x1000);
    alloc(0x2000, 10);
    MP_CHECK(mp_session_scope_open(session, &scope) == MP_OK);
    alloc(0x3000, 30);
    release(0x3000);
    MP_CHECK(mp_session_scope_peak(session, scope, CPU, &stats) == MP_OK);
    MP_CHECK_EQ(stats.requested_bytes.peak, 40);
    MP_CHECK_EQ(stats.requested_bytes.current, 10);
    MP_CHECK(mp_session_scope_close(session, scope) == MP_OK);
    MP_CHECK_EQ(mp_session_scope_peak(session, scope, CPU, &stats),
                MP_ERR_ARG);
    mp_session_free(session);
}

/* ---- again and again
 * ---------------------------------------------------------------------- */

static void
test_session_thousand_starts_hold_no_memory(void)
{
    size_t before = 0;
    for (int i = 0; i < 1000; i++) {
        mp_session_t *session = new_session();
        start(session);
        alloc(0x1000, 1);
        window_begin(session, NULL);
        release(0x1000);
        mp_window_t window = window_end(session);
        MP_CHECK_EQ(count_kind(&window, MP_EVENT_FREE_COMPLETED), 1);
        mp_window_clear(&window);
        stop(session);
        mp_session_free(session);
        before = i == 0 ? mp_mem_bytes() : before;
    }
    MP_CHECK_EQ(mp_mem_bytes(), before);
}

/* Everything that may fail for want of memory, once. */
static mp_status_t
run_session(bool seeding)
{
    mp_session_options_t options = {.ops = 2, .cpu = true, .cuda = true};
    mp_session_t *session = NULL;
    mp_status_t status = mp_session_new(&options, &session);
    if (status != MP_OK) {
        return status;
    }
    bool took_over;
    int saved_errno;
    mp_window_t window = {0}, copy = {0};
    mp_step_stats_t *rows = NULL;
    size_t count;
    const mp_event_t block = seed(MP_EVENT_SEED_BLOCK, 0, 0x1000, 10);
    mp_hook_set_shim(fake_shim());
    status =
        mp_session_start(session, seeding, &took_over, error, sizeof(error));
    if (status == MP_OK && seeding) {
        status = mp_session_seed(session, &block, 1);
    }
    if (status == MP_OK) {
        status = mp_session_window_begin(session, mp_test_path("run.memprof"),
                                         &saved_errno);
    }
    if (status == MP_OK) {
        status = mp_session_window_copy(session, &copy);
        mp_status_t ended = mp_session_window_end(session, &window);
        MP_CHECK(ended == MP_OK);
    }
    if (status == MP_OK) {
        status = mp_session_steps(session, &rows, &count);
    }
    if (status == MP_OK) {
        MP_CHECK(mp_session_stop(session) == MP_OK);
        status =
            mp_session_start(session, false, &took_over, error, sizeof(error));
    }
    if (status == MP_OK &&
        (window.stream_errno != 0 ||
         status_of(session).defects.unapplied_events + window.dropped > 0)) {
        status = MP_ERR_NOMEM; /* said in another way */
    }
    mp_free(rows);
    mp_window_clear(&copy);
    mp_window_clear(&window);
    mp_session_free(session);
    return status;
}

static void
test_session_without_memory_says_so(void)
{
    for (int seeding = 0; seeding < 2; seeding++) {
        MP_CHECK(run_session(seeding) == MP_OK); /* what stays for ever */
        size_t before = mp_mem_bytes();
        int clean = 0;
        for (long n = 1; clean < 5; n++) {
            MP_CHECK(n < 120);
            mp_mem_fail_after(n);
            mp_status_t status = run_session(seeding);
            mp_mem_fail_after(0);
            MP_CHECK(status == MP_OK || status == MP_ERR_NOMEM);
            clean = status == MP_OK ? clean + 1 : 0;
            MP_CHECK_EQ(mp_mem_bytes(), before);
            MP_CHECK_EQ(mp_hook_wanted(), 0);
            MP_CHECK_EQ(fake_cpu_installed, 0);
            MP_CHECK_EQ(fake_ops_installed, 0);
        }
    }
}

/* ---- fork
 * ------------------------------------------------------------------------------------
 */

static void
be_a_child(mp_session_t *session)
{
    mp_window_t window;
    bool took_over;
    MP_CHECK_EQ(mp_hook_wanted(), 0);
    alloc(0x7000, 1);
    mp_session_status_t status = status_of(session);
    MP_CHECK(status.forked && !status.running && !status.recording);
    MP_CHECK_EQ(status.dropped, 0);
    MP_CHECK_EQ(mp_session_step(session, 9), MP_ERR_STATE);
    MP_CHECK_EQ(mp_session_window_end(session, &window), MP_ERR_STATE);
    MP_CHECK_EQ(mp_session_stop(session), MP_ERR_STATE);
    MP_CHECK_EQ(
        mp_session_start(session, false, &took_over, error, sizeof(error)),
        MP_ERR_STATE);
#ifdef __SANITIZE_THREAD__ /* knows no threads after a fork */
    _exit(0);
#endif
    mp_session_t *own = new_session();
    MP_CHECK(!start(own));
    window_begin(own, NULL);
    for (uint64_t i = 1; i <= 1000; i++) {
        alloc(i << 8, 1);
    }
    window = window_end(own);
    MP_CHECK_EQ(count_kind(&window, MP_EVENT_ALLOC), 1000);
    check_window(&window, mp_session_id(own));
    mp_window_clear(&window);
    stop(own);
    mp_session_free(own);
    mp_session_free(session);
    _exit(0);
}

typedef struct {
    bool begun; /* the thread has its context: it allocates no more */
    bool enough;
} busy_t;

static void *
alloc_until_told(void *argument)
{
    busy_t *busy = argument;
    uint64_t count = 0;
    while (!__atomic_load_n(&busy->enough, __ATOMIC_ACQUIRE)) {
        alloc((1 + count++ % 100) << 20, 1);
        release((1 + (count - 1) % 100) << 20);
        __atomic_store_n(&busy->begun, true, __ATOMIC_RELEASE);
        usleep(10);
    }
    return NULL;
}

static void
test_session_child_of_a_fork_is_harmless(void)
{
    mp_session_t *session = new_session();
    const char *path = mp_test_path("parent.memprof");
    busy_t busy = {false, false};
    pthread_t thread;
    start(session);
    window_begin(session, path);
    MP_CHECK(pthread_create(&thread, NULL, alloc_until_told, &busy) == 0);
    /* AddressSanitizer does not take its allocator's locks at a fork: a child
     * forked while another thread starts, which allocates, may wait for one
     * for ever.  So the busy thread has begun, and the drain thread has had
     * the time to. */
    usleep(50000);
    while (!__atomic_load_n(&busy.begun, __ATOMIC_ACQUIRE)) {
        usleep(10);
    }
    for (uint64_t i = 1; i <= 10; i++) {
        alloc(i << 8, 1);
        pid_t child = fork();
        MP_CHECK(child >= 0);
        if (child == 0) {
            be_a_child(session);
        }
        int status;
        MP_CHECK_EQ(waitpid(child, &status, 0), child);
        MP_CHECK_EQ(status, 0);
    }
    __atomic_store_n(&busy.enough, true, __ATOMIC_RELEASE);
    MP_CHECK(pthread_join(thread, NULL) == 0);
    MP_CHECK_EQ(requested(session, CPU), 10);
    mp_window_t window = window_end(session);
    check_window(&window, mp_session_id(session));
    int saved_errno;
    MP_CHECK(mp_recording_writer_close(window.writer, "", 0, 0,
                                       &saved_errno) == MP_OK);
    window.writer = NULL;
    mp_recording_data_t data;
    MP_CHECK(mp_recording_read(path, &data, &saved_errno, error,
                               sizeof(error)) == MP_OK);
    MP_CHECK(data.finished);
    MP_CHECK_EQ(data.count, window.count);
    mp_recording_data_clear(&data);
    mp_window_clear(&window);
    mp_session_free(session);
}

/* ---- many threads
 * ------------------------------------------------------------------------------
 */

enum {
    THREADS = 4,
    ROUNDS = 3000
};

static void *
work(void *argument)
{
    uint64_t base = (uint64_t)(uintptr_t)argument << 32;
    for (uint64_t i = 1; i <= ROUNDS; i++) {
        fake_op_t region = FAKE_OP("region"), op = FAKE_OP("aten::add");
        mp_hook_op_begin(&region, MP_OP_SCOPE_USER);
        mp_hook_module_begin(1);
        mp_hook_op_begin(&op, MP_OP_SCOPE_FUNCTION);
        alloc(base + (i << 8), 3);
        cuda(MP_EVENT_ALLOC, 0, base + (i << 8), 5);
        mp_hook_op_end(&op);
        mp_hook_module_end(1);
        if (i % 2 == 0) {
            release(base + (i << 8));
            cuda(MP_EVENT_FREE_REQUESTED, 0, base + (i << 8), 0);
            cuda(MP_EVENT_FREE_COMPLETED, 0, base + (i << 8), 0);
        }
        mp_hook_op_end(&region);
    }
    return NULL;
}

static bool working;

/* Sessions that come and go beside the one that is looked at. */
static void *
come_and_go(void *argument)
{
    (void)argument;
    while (__atomic_load_n(&working, __ATOMIC_RELAXED)) {
        mp_session_t *session = new_session();
        MP_CHECK(start(session));
        window_begin(session, NULL);
        step(session, 3);
        mp_window_t window = window_end(session);
        check_window(&window, mp_session_id(session));
        mp_window_clear(&window);
        (void)status_of(session);
        mp_session_free(session);
    }
    return NULL;
}

static void
test_session_threads_at_once_lose_nothing(void)
{
    mp_session_t *session = new_session();
    pthread_t threads[THREADS], other;
    start(session);
    window_begin(session, NULL);
    working = true;
    MP_CHECK(pthread_create(&other, NULL, come_and_go, NULL) == 0);
    for (uintptr_t i = 0; i < THREADS; i++) {
        MP_CHECK(pthread_create(&threads[i], NULL, work, (void *)(i + 1)) ==
                 0);
    }
    for (int32_t i = 0; i < 200; i++) {
        step(session, i);
        (void)requested(session, 0);
        if (i % 50 == 49) {
            mp_window_t copy;
            MP_CHECK(mp_session_window_copy(session, &copy) == MP_OK);
            mp_window_clear(&copy);
        }
    }
    for (int i = 0; i < THREADS; i++) {
        MP_CHECK(pthread_join(threads[i], NULL) == 0);
    }
    __atomic_store_n(&working, false, __ATOMIC_RELAXED);
    MP_CHECK(pthread_join(other, NULL) == 0);
    enum {
        ALL = THREADS * ROUNDS
    };
    MP_CHECK_EQ(requested(session, CPU), ALL / 2 * 3);
    MP_CHECK_EQ(requested(session, 0), ALL / 2 * 5);
    mp_session_status_t status = status_of(session);
    MP_CHECK_EQ(status.dropped, 0);
    MP_CHECK_EQ(status.defects.unmatched_frees, 0);
    MP_CHECK_EQ(status.defects.replaced_blocks, 0);
    mp_window_t window = window_end(session);
    MP_CHECK_EQ(window.dropped, 0);
    MP_CHECK_EQ(count_kind(&window, MP_EVENT_ALLOC), 2 * ALL);
    MP_CHECK_EQ(count_kind(&window, MP_EVENT_FREE_COMPLETED), ALL);
    MP_CHECK_EQ(count_kind(&window, MP_EVENT_OP_BEGIN), ALL);
    MP_CHECK_EQ(count_kind(&window, MP_EVENT_REGION_END), ALL);
    MP_CHECK_EQ(count_kind(&window, MP_EVENT_STEP),
                201); /* one of the state */
    check_window(&window, mp_session_id(session));
    mp_window_clear(&window);
    stop(session);
    mp_session_free(session);
}

static void *
start_and_stop(void *argument)
{
    (void)argument;
    for (int i = 0; i < 200; i++) {
        mp_session_t *session = new_session();
        start(session);
        step(session, i);
        stop(session);
        mp_session_free(session);
    }
    return NULL;
}

static void
test_session_starts_and_stops_on_many_threads(void)
{
    pthread_t threads[THREADS];
    mp_session_free(new_session()); /* torch is there before its hooks */
    for (int i = 0; i < THREADS; i++) {
        void *(*body)(void *) = i == 0 ? work : start_and_stop;
        MP_CHECK(pthread_create(&threads[i], NULL, body, (void *)1) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        MP_CHECK(pthread_join(threads[i], NULL) == 0);
    }
    MP_CHECK_EQ(mp_hook_wanted(), 0);
    MP_CHECK_EQ(fake_cpu_installed, 0);
    MP_CHECK_EQ(fake_ops_installed, 0);
}

MP_TEST_SUITE(
    session, MP_TEST(test_session_switches_hooks_on_and_off),
    MP_TEST(test_session_refuses_what_is_not_possible_now),
    MP_TEST(test_session_source_that_cannot_be_installed),
    MP_TEST(test_session_started_again_begins_anew),
    MP_TEST(test_session_inner_one_takes_over_the_state),
    MP_TEST(test_session_steps_of_two_are_kept_apart),
    MP_TEST(test_session_takes_over_only_what_it_wants),
    MP_TEST(test_session_with_shapes_asks_for_outputs),
    MP_TEST(test_session_window_begins_with_the_state),
    MP_TEST(test_session_window_may_be_copied_while_open),
    MP_TEST(test_session_full_window_is_a_whole_prefix),
    MP_TEST(test_session_counts_what_the_log_dropped),
    MP_TEST(test_session_streams_a_window_to_a_file),
    MP_TEST(test_session_full_disk_ends_the_stream_not_the_recording),
    MP_TEST(test_session_path_that_cannot_be_written),
    MP_TEST(test_session_freed_with_an_open_window),
    MP_TEST(test_session_seeds_are_put_where_each_device_was_cut),
    MP_TEST(test_session_without_a_cut_believes_the_seeds),
    MP_TEST(test_session_stopped_while_it_waits_for_seeds),
    MP_TEST(test_session_scopes_see_all_that_was_written),
    MP_TEST(test_session_thousand_starts_hold_no_memory),
    MP_TEST(test_session_without_memory_says_so),
    MP_TEST(test_session_child_of_a_fork_is_harmless),
    MP_TEST(test_session_threads_at_once_lose_nothing),
    MP_TEST(test_session_starts_and_stops_on_many_threads))
