/* test_gpu_activity.c - what runs on GPUs, told by a fake activity API. */
#include "clock.h"
#include "clock_pairs.h"
#include "cupti_calls.h"
#include "cupti_listener.h"
#include "cupti_records.h"
#include "drain.h"
#include "fake_activity.h"
#include "fake_shim.h"
#include "gpu_activity.h"
#include "gpu_work.h"
#include "hook.h"
#include "mem.h"
#include "mp_test.h"
#include "session.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef MP_HAVE_CUPTI
#include <cuda.h>
#include <cupti.h>
#endif

enum {
    CONTEXT = 0xc0,
    SECOND = 1000000000,
    LARGE_BUFFERS = 28,
    SMALL_BUFFERS = 64
};

static mp_session_t *
new_session(bool kernels)
{
    mp_session_options_t options = {.ops = 2,
                                    .stacks = true,
                                    .cpu = true,
                                    .cuda = true,
                                    .kernels = kernels};
    mp_session_t *session;
    bool took_over;
    char error[256];
    int saved_errno;
    MP_CHECK(mp_session_new(&options, &session) == MP_OK);
    mp_hook_set_shim(fake_shim());
    MP_CHECK(mp_session_start(session, false, &took_over, error,
                              sizeof(error)) == MP_OK);
    MP_CHECK(mp_session_window_begin(session, NULL, &saved_errno) == MP_OK);
    return session;
}

/* CUPTI subscribed to; false: this build has no calls to hear. */
static bool
subscribe(void)
{
    int code;
    char error[MP_CUPTI_TEXT], other[MP_CUPTI_TEXT];
    if (mp_cupti_calls_why_not() != NULL) {
        return false;
    }
    MP_CHECK(mp_cupti_open("", error, sizeof(error)) == MP_OK);
    fakecupti_set_device(CONTEXT, 2);
    MP_CHECK(mp_cupti_start(&code, error, other) == MP_OK);
    return true;
}

static void
start_kernels(void)
{
    int code;
    char why[MP_CUPTI_TEXT];
    MP_CHECK(mp_cupti_kernels_start(&code, why) == MP_OK);
    MP_CHECK_EQ(code, 0);
    MP_CHECK_STR(why, "");
}

/* A session with an open window that records kernels; NULL: see subscribe. */
static mp_session_t *
begin(void)
{
    if (!subscribe()) {
        return NULL;
    }
    mp_session_t *session = new_session(true);
    start_kernels();
    return session;
}

typedef struct {
    mp_window_t window;
    mp_gpu_work_t *rows;
    size_t count;
    uint64_t lost[MP_GPU_LOST_END];
} found_t;

static found_t
end(mp_session_t *session)
{
    found_t found;
    mp_cupti_settle();
    mp_cupti_stop();
    MP_CHECK(mp_session_window_end(session, &found.window) == MP_OK);
    mp_session_free(session);
    MP_CHECK(mp_gpu_work_rows(found.window.events, found.window.count,
                              &found.rows, &found.count) == MP_OK);
    mp_gpu_work_lost(found.window.events, found.window.count, found.lost);
    return found;
}

static void
clear(found_t *found)
{
    mp_free(found->rows);
    mp_window_clear(&found->window);
}

/* Launch a kernel by the driver's CALL; its number. */
static uint32_t
launch(const char *call)
{
    uint64_t nothing = 0;
    MP_CHECK_EQ(
        fakecupti_call(call, &nothing, sizeof(nothing), 0, NULL, 0, CONTEXT),
        2);
    return fakecupti_correlation();
}

/* A kernel that began START ns ago and took a microsecond. */
static void
kernel(const char *name, int64_t start, uint32_t correlation)
{
    MP_CHECK_EQ(fakecupti_ran(MP_CUPTI_KERNEL, name, -start, 1000 - start, 0,
                              2, 7, correlation),
                1);
}

static const char *
text(uint32_t id)
{
    const char *characters;
    size_t length;
    MP_CHECK(mp_intern_text(mp_hook_intern(), id, &characters, &length));
    return characters;
}

static mp_activity_status_t
status(void)
{
    mp_activity_status_t now;
    mp_cupti_kernels_status(&now);
    return now;
}

/* ---- records -------------------------------------------------------------
 */

static void
test_work_is_told_with_its_launch(void)
{
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    fake_op_t op = FAKE_OP("aten::mm");
    mp_hook_op_begin(&op, MP_OP_SCOPE_FUNCTION);
    uint32_t first = launch("cuLaunchKernel");
    mp_hook_op_end(&op);
    uint32_t copy = launch("cuMemcpyHtoDAsync_v2");
    uint32_t set = launch("cuMemsetD8Async");
    /* Not in the order in which they ran. */
    fakecupti_ran(MP_CUPTI_MEMSET, NULL, -1000, -500, 64, 2, 7, set);
    fakecupti_ran(MP_CUPTI_MEMCPY, NULL, -SECOND, -2000, 4096, 2, 9, copy);
    kernel("a_kernel", 2ll * SECOND, first);
    int64_t before = mp_clock_now();
    found_t found = end(session);
    MP_CHECK_EQ(found.count, 3);
    const mp_gpu_work_t *row = &found.rows[0];
    MP_CHECK_EQ(row->kind, MP_GPU_KERNEL);
    MP_CHECK_STR(text(row->name), "a_kernel");
    MP_CHECK_STR(text(row->op), "aten::mm");
    MP_CHECK_EQ(row->device, 2);
    MP_CHECK_EQ(row->stream, 7);
    MP_CHECK_EQ(row->bytes, 0);
    MP_CHECK_EQ(row->correlation, first);
    MP_CHECK_EQ(row->thread, mp_thread_number());
    MP_CHECK(row->launch_event >= 0 && row->launch_event < row->event);
    MP_CHECK(row->end_ns - row->start_ns >= 998 &&
             row->end_ns - row->start_ns <= 1002);
    MP_CHECK(llabs(before - 2ll * SECOND - row->start_ns) < SECOND);
    MP_CHECK_EQ(found.rows[1].kind, MP_GPU_MEMCPY);
    MP_CHECK_EQ(found.rows[1].bytes, 4096);
    MP_CHECK_EQ(found.rows[1].stream, 9);
    MP_CHECK_EQ(found.rows[1].correlation, copy);
    MP_CHECK_STR(text(found.rows[1].name), "Memcpy HtoD (Pinned -> Device)");
    MP_CHECK_EQ(found.rows[1].op, MP_NO_INDEX);
    MP_CHECK_EQ(found.rows[2].kind, MP_GPU_MEMSET);
    MP_CHECK_EQ(found.rows[2].bytes, 64);
    MP_CHECK_EQ(found.rows[2].launch_event < 0, 0);
    for (size_t i = 0; i < MP_GPU_LOST_END; i++) {
        MP_CHECK_EQ(found.lost[i], 0);
    }
    clear(&found);
}

static void
test_a_graph_is_the_launch_of_all_its_kernels(void)
{
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    uint32_t graph = launch("cuGraphLaunch");
    for (int i = 0; i < 5; i++) {
        kernel("node", 1000 * (5 - i), graph);
    }
    kernel("older", SECOND, graph + 1000); /* launched before the start */
    found_t found = end(session);
    MP_CHECK_EQ(found.count, 6);
    MP_CHECK_EQ(found.rows[0].launch_event, -1);
    MP_CHECK_EQ(found.rows[0].launch_ns, -1);
    MP_CHECK_EQ(found.rows[0].op, MP_NO_INDEX);
    for (int i = 1; i < 6; i++) {
        MP_CHECK_EQ(found.rows[i].launch_event, found.rows[1].launch_event);
    }
    MP_CHECK(found.rows[1].launch_event >= 0);
    clear(&found);
}

static void
test_what_launches_no_work_is_not_heard(void)
{
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    uint64_t nothing = 0;
    MP_CHECK_EQ(fakecupti_call("cuLaunchHostFunc", &nothing, sizeof(nothing),
                               0, NULL, 0, CONTEXT),
                0);
    mp_cupti_kernels_stop();
    MP_CHECK_EQ(fakecupti_call("cuLaunchKernel", &nothing, sizeof(nothing), 0,
                               NULL, 0, CONTEXT),
                0);
    found_t found = end(session);
    MP_CHECK_EQ(found.count, 0);
    clear(&found);
}

/* The drain thread tells of what CUPTI gives back on a thread of its own. */
static void
test_buffers_come_from_other_threads(void)
{
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    for (int i = 0; i < 50; i++) {
        kernel("early", 1000, launch("cuLaunchKernelEx"));
        fakecupti_give_back(1);
    }
    for (int i = 0; i < 2000 && status().records < 50; i++) {
        struct timespec pause = {.tv_nsec = 1000000};
        nanosleep(&pause, NULL);
    }
    MP_CHECK_EQ(status().records, 50);
    kernel("late", 1000, launch("cuLaunchKernelEx"));
    found_t found = end(session);
    MP_CHECK_EQ(found.count, 51);
    MP_CHECK_EQ(status().outstanding, 0);
    MP_CHECK_EQ(status().records, 51);
    MP_CHECK_EQ(status().launches, 51);
    clear(&found);
}

typedef struct {
    atomic_bool over;
} race_t;

static void *
give_back_often(void *argument)
{
    race_t *race = argument;
    while (!atomic_load(&race->over)) {
        fakecupti_give_back(0);
        mp_cupti_settle();
    }
    return NULL;
}

static void
test_nothing_is_lost_between_threads(void)
{
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    race_t race = {false};
    pthread_t thread;
    uint64_t nothing = 0;
    for (int i = 0; i < 20000; i++) { /* one writer; buffers go round */
        if (i == 0) {
            MP_CHECK(pthread_create(&thread, NULL, give_back_often, &race) ==
                     0);
        }
        (void)fakecupti_call("cuLaunchKernel", &nothing, sizeof(nothing), 0,
                             NULL, 0, CONTEXT);
    }
    atomic_store(&race.over, true);
    pthread_join(thread, NULL);
    for (int i = 0; i < 20000; i++) {
        kernel("one", 1000, fakecupti_correlation());
        if (i % 1000 == 999) {
            fakecupti_give_back(1);
        }
    }
    found_t found = end(session);
    MP_CHECK_EQ(found.count + found.window.dropped, 20000);
    MP_CHECK_EQ(found.window.dropped, 0);
    clear(&found);
}

typedef struct {
    atomic_bool over;
    atomic_uint written;
} launcher_t;

static void *
launch_until_told(void *argument)
{
    launcher_t *launcher = argument;
    uint64_t nothing = 0;
    while (!atomic_load(&launcher->over)) {
        (void)fakecupti_call("cuLaunchKernel", &nothing, sizeof(nothing), 0,
                             NULL, 0, CONTEXT);
        atomic_fetch_add(&launcher->written,
                         (unsigned)fakecupti_ran(MP_CUPTI_KERNEL, "busy",
                                                 -1000, -10, 0, 2, 7,
                                                 fakecupti_correlation()));
    }
    return NULL;
}

static void
test_starts_and_stops_beside_launches(void)
{
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    launcher_t launcher = {false, 0};
    pthread_t thread;
    MP_CHECK(pthread_create(&thread, NULL, launch_until_told, &launcher) == 0);
    for (int i = 0; i < 60; i++) {
        struct timespec pause = {.tv_nsec = 300000};
        nanosleep(&pause, NULL);
        mp_cupti_kernels_stop();
        if (i % 5 == 0) {
            mp_cupti_stop();
            MP_CHECK(subscribe());
        }
        start_kernels();
        mp_cupti_settle();
    }
    atomic_store(&launcher.over, true);
    pthread_join(thread, NULL);
    found_t found = end(session);
    unsigned written = atomic_load(&launcher.written);
    MP_CHECK(found.count > 0 && found.count <= written);
    MP_CHECK(found.count + found.lost[MP_GPU_LOST_LATE] + 60 >= written);
    MP_CHECK_EQ(found.lost[MP_GPU_LOST_UNKNOWN], 0);
    clear(&found);
}

/* ---- losses --------------------------------------------------------------
 */

static void
test_a_cut_record_is_counted(void)
{
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    kernel("whole", 1000, 1);
    kernel("cut", 1000, 2);
    fakecupti_give_back_cut(216 + 100);
    found_t found = end(session);
    MP_CHECK_EQ(found.count, 1);
    MP_CHECK_EQ(found.lost[MP_GPU_LOST_UNKNOWN], 1);
    clear(&found);
}

static void
test_records_of_other_kinds_are_counted(void)
{
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    fakecupti_work_t other = {.kind = 17, .start = 1, .end = 2};
    kernel("before", 1000, 1);
    MP_CHECK_EQ(fakecupti_work(&other), 1);
    kernel("after", 900, 2);
    found_t found = end(session);
    MP_CHECK_EQ(found.count, 2);
    MP_CHECK_EQ(found.lost[MP_GPU_LOST_UNKNOWN], 1);
    clear(&found);
}

static void
test_a_record_without_times_is_counted(void)
{
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    fakecupti_work_t runs = {.kind = MP_CUPTI_KERNEL, .name = "runs"};
    MP_CHECK_EQ(fakecupti_work(&runs), 1);
    fakecupti_work_t odd = {
        .kind = MP_CUPTI_KERNEL, .start = 9, .end = 8, .name = "odd"};
    MP_CHECK_EQ(fakecupti_work(&odd), 1);
    fakecupti_work_t far = {
        .kind = MP_CUPTI_MEMSET, .start = 8, .end = 9, .device = 40000};
    MP_CHECK_EQ(fakecupti_work(&far), 1);
    found_t found = end(session);
    MP_CHECK_EQ(found.count, 0);
    MP_CHECK_EQ(found.lost[MP_GPU_LOST_INCOMPLETE], 1);
    MP_CHECK_EQ(found.lost[MP_GPU_LOST_UNKNOWN], 2);
    clear(&found);
}

static void
test_what_cupti_drops_is_counted(void)
{
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    fakecupti_drop(3);
    kernel("one", 1000, 1);
    mp_cupti_settle();
    fakecupti_drop(4);
    found_t found = end(session);
    MP_CHECK_EQ(found.count, 1);
    MP_CHECK_EQ(found.lost[MP_GPU_LOST_DROPPED], 7);
    MP_CHECK_EQ(status().lost[MP_GPU_LOST_DROPPED], 7);
    clear(&found);
}

/* No more than the budget; an old CUPTI always gets a buffer. */
static void
test_buffers_are_bounded(void)
{
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    int all = LARGE_BUFFERS + SMALL_BUFFERS - 1;
    MP_CHECK_EQ(fakecupti_take_buffers(500), all);
    MP_CHECK_EQ(status().outstanding, all);
    MP_CHECK_EQ(fakecupti_ran(MP_CUPTI_KERNEL, "none", -9, -8, 0, 0, 0, 1), 0);
    found_t found = end(session);
    MP_CHECK_EQ(found.lost[MP_GPU_LOST_DROPPED], 1);
    clear(&found);
}

static void
test_an_old_cupti_gets_a_buffer_always(void)
{
    fakecupti_set_version(26);
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    MP_CHECK_EQ(fakecupti_take_buffers(500), 500);
    kernel("nobody's", 1000, 1);
    fakecupti_give_back(0);
    found_t found = end(session);
    MP_CHECK_EQ(found.count, 0);
    MP_CHECK_EQ(found.lost[MP_GPU_LOST_NO_BUFFER], 1);
    clear(&found);
}

/* CUPTI gives a buffer back when all is over, or in the next recording. */
static void
test_a_late_buffer_hurts_nobody(void)
{
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    kernel("late", 1000, 1);
    fakecupti_hold_buffers(1);
    found_t found = end(session);
    MP_CHECK_EQ(found.count, 0);
    MP_CHECK_EQ(status().outstanding, 1);
    clear(&found);
    fakecupti_give_back(1); /* nobody listens */
    fakecupti_hold_buffers(0);
    session = begin();
    kernel("mine", 100, 2);
    found = end(session);
    MP_CHECK_EQ(found.count, 1);
    MP_CHECK_STR(text(found.rows[0].name), "mine");
    MP_CHECK_EQ(found.lost[MP_GPU_LOST_LATE], 1);
    MP_CHECK_EQ(status().outstanding, 0);
    clear(&found);
}

/* ---- on and off ----------------------------------------------------------
 */

static void
check_refused(const char *reason)
{
    int code;
    char why[MP_CUPTI_TEXT];
    MP_CHECK(mp_cupti_kernels_start(&code, why) == MP_ERR_LOAD);
    if (strstr(why, reason) == NULL) {
        mp_test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", why,
                     reason);
    }
    MP_CHECK_EQ(fakecupti_kinds(), 0);
    MP_CHECK(!status().running);
}

static void
test_nobody_pays_before_the_start(void)
{
    if (!subscribe()) {
        return;
    }
    size_t held = mp_mem_bytes();
    MP_CHECK(strstr(fakecupti_calls(), "cuptiActivity") == NULL);
    MP_CHECK(strstr(fakecupti_calls(), "cuptiGetTimestamp") == NULL);
    uint64_t nothing = 0;
    MP_CHECK_EQ(fakecupti_call("cuLaunchKernel", &nothing, sizeof(nothing), 0,
                               NULL, 0, CONTEXT),
                0);
    mp_cupti_stop();
    MP_CHECK(strstr(fakecupti_calls(), "cuptiActivity") == NULL);
    MP_CHECK(mp_mem_bytes() <= held);
}

static void
test_it_needs_the_subscription(void)
{
    int code;
    char text_[MP_CUPTI_TEXT], other[MP_CUPTI_TEXT];
    MP_CHECK(mp_cupti_kernels_start(&code, text_) == MP_ERR_STATE);
    mp_cupti_kernels_stop();
    if (mp_cupti_calls_why_not() != NULL) {
        return;
    }
    MP_CHECK(mp_cupti_open("", text_, sizeof(text_)) == MP_OK);
    fakecupti_hold_slot("another profiler");
    MP_CHECK(mp_cupti_start(&code, text_, other) == MP_ERR_LOAD);
    MP_CHECK(mp_cupti_kernels_start(&code, text_) == MP_ERR_STATE);
    MP_CHECK(strstr(fakecupti_calls(), "cuptiActivity") == NULL);
}

static void
test_refusals_leave_nothing_on(void)
{
    if (!subscribe()) {
        return;
    }
    fakecupti_fail("cuptiActivityRegisterCallbacks", 999, 0);
    check_refused("CUPTI_ERROR_UNKNOWN");
    for (int i = 0; i < 4; i++) {
        fakecupti_fail("cuptiActivityEnable", 35, i);
        check_refused("no privileges");
    }
    fakecupti_fail("cuptiGetTimestamp", 999, -1);
    check_refused("does not tell its clock");
    fakecupti_fail("cuptiGetTimestamp", 0, 0);
    start_kernels();
    MP_CHECK_EQ(fakecupti_kinds(), 4);
    start_kernels(); /* again: nothing */
    mp_cupti_stop();
    MP_CHECK_EQ(fakecupti_kinds(), 0);
    MP_CHECK_EQ(fakecupti_enabled(), 0);
}

static void
test_every_version_is_read_or_refused(void)
{
    static const uint32_t fine[] = {18, 19, 20, 22, 23,
                                    24, 26, 27, 28, 130001};
    if (mp_cupti_calls_why_not() != NULL) {
        return;
    }
    char why[256];
    for (size_t i = 0; i < MP_ARRAY_LENGTH(fine); i++) {
        mp_cupti_library_t library;
        fakecupti_set_version(fine[i]);
        MP_CHECK(mp_cupti_library_open("", &library, why, sizeof(why)) ==
                 MP_OK);
        fakecupti_set_longer(0);
        MP_CHECK(mp_cupti_records_known(&library, why, sizeof(why)));
        fakecupti_set_longer(8); /* records that this version cannot have */
        MP_CHECK(!mp_cupti_records_known(&library, why, sizeof(why)));
        MP_CHECK(strstr(why, "are not those that memprof knows") != NULL);
    }
    mp_cupti_library_t library;
    MP_CHECK(mp_cupti_library_open("", &library, why, sizeof(why)) == MP_OK);
    library.version = 130200;
    fakecupti_set_longer(16);
    MP_CHECK(mp_cupti_records_known(&library, why, sizeof(why)));
    fakecupti_set_version(28); /* shorter ones than it says */
    fakecupti_set_longer(0);
    MP_CHECK(!mp_cupti_records_known(&library, why, sizeof(why)));
    library.version = 130000;
    MP_CHECK(!mp_cupti_records_known(&library, why, sizeof(why)));
    MP_CHECK(strstr(why, "13.0.1") != NULL);
    library.version = 140000;
    MP_CHECK(!mp_cupti_records_known(&library, why, sizeof(why)));
    MP_CHECK(strstr(why, "update memprof") != NULL);
    library.ActivityGetNextRecord = NULL;
    MP_CHECK(!mp_cupti_records_known(&library, why, sizeof(why)));
}

static void
test_old_records_are_read_at_their_length(void)
{
    fakecupti_set_version(18);
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    for (uint32_t i = 0; i < 100; i++) {
        kernel("k", 100000 - 100 * i, i);
        fakecupti_ran(MP_CUPTI_MEMCPY, NULL, -9, -8, i, 1, 2, i);
        fakecupti_ran(MP_CUPTI_MEMCPY_PEER, NULL, -7, -6, i, 1, 2, 77);
    }
    found_t found = end(session);
    MP_CHECK_EQ(found.count, 300);
    uint64_t bytes = 0, peers = 0;
    for (size_t i = 0; i < found.count; i++) {
        bytes += found.rows[i].bytes;
        peers += found.rows[i].correlation == 77 &&
                 found.rows[i].kind == MP_GPU_MEMCPY;
    }
    MP_CHECK_EQ(bytes, 2 * 4950);
    MP_CHECK_EQ(peers, 101);
    MP_CHECK_EQ(found.lost[MP_GPU_LOST_UNKNOWN], 0);
    clear(&found);
}

static void
test_a_hundred_starts_leave_nothing(void)
{
    if (!subscribe()) {
        return;
    }
    mp_session_t *session = new_session(true);
    size_t held = 0;
    for (int i = 0; i < 100; i++) {
        start_kernels();
        kernel("again", 1000, launch("cuLaunchKernel"));
        mp_cupti_kernels_stop();
        MP_CHECK_EQ(status().outstanding, 0);
        MP_CHECK_EQ(status().records, 1);
        mp_cupti_settle();
        mp_drain_lock(); /* what the session learns of it is learned now */
        (void)mp_drain_now();
        mp_drain_unlock();
        if (i == 10) {
            held = mp_mem_bytes();
        }
    }
    /* But for a spare context, which the drain thread makes when it can. */
    MP_CHECK(mp_mem_bytes() <= held + 20000);
    MP_CHECK_EQ(fakecupti_kinds(), 0);
    found_t found = end(session);
    MP_CHECK_EQ(found.count, 100);
    clear(&found);
}

/* torch.profiler took the buffers over: what was lent before comes to it. */
static void
test_another_profiler_takes_the_callbacks(void)
{
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    kernel("mine", 1000, 1);
    fakecupti_replace_callbacks();
    mp_cupti_kernels_stop();
    MP_CHECK_EQ(status().outstanding, 1);
    MP_CHECK_EQ(status().records, 0);
    start_kernels(); /* ours again */
    kernel("again", 1000, 2);
    found_t found = end(session);
    MP_CHECK_EQ(found.count, 1);
    clear(&found);
}

static void
test_cupti_that_is_gone_is_not_asked(void)
{
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    kernel("lost", 1000, 1);
    fakecupti_fatal(999, "out of order");
    size_t calls = strlen(fakecupti_calls());
    mp_cupti_settle();
    found_t found = end(session);
    MP_CHECK_EQ(strlen(fakecupti_calls()), calls);
    MP_CHECK_EQ(found.count, 0);
    MP_CHECK(!status().running);
    clear(&found);
}

static void
test_a_forked_child_calls_nothing(void)
{
    mp_session_t *session = begin();
    if (session == NULL) {
        return;
    }
    kernel("parent's", 1000, 1);
    pid_t child = fork();
    if (child == 0) {
        size_t calls = strlen(fakecupti_calls());
        int code;
        char why[MP_CUPTI_TEXT];
        mp_cupti_settle();
        mp_cupti_kernels_stop();
        mp_cupti_stop();
        bool refused = mp_cupti_kernels_start(&code, why) == MP_ERR_STATE;
        _exit(refused && !status().running &&
                      strlen(fakecupti_calls()) == calls
                  ? 0
                  : 1);
    }
    int how = -1;
    MP_CHECK(waitpid(child, &how, 0) == child);
    MP_CHECK_EQ(how, 0);
    found_t found = end(session);
    MP_CHECK_EQ(found.count, 1);
    clear(&found);
}

static void
test_only_those_who_ask_hear_of_kernels(void)
{
    mp_session_t *asks = begin();
    if (asks == NULL) {
        return;
    }
    mp_session_t *other = new_session(false);
    kernel("one", 1000, launch("cuLaunchKernel"));
    mp_cupti_settle();
    mp_window_t window;
    MP_CHECK(mp_session_window_end(other, &window) == MP_OK);
    for (size_t i = 0; i < window.count; i++) {
        MP_CHECK(!mp_event_is_gpu(window.events[i].kind));
    }
    mp_window_clear(&window);
    mp_session_free(other);
    found_t found = end(asks);
    MP_CHECK_EQ(found.count, 1);
    clear(&found);
}

/* ---- clocks --------------------------------------------------------------
 */

static void
test_clocks_are_put_together(void)
{
    mp_clock_pairs_t pairs = {.count = 0};
    mp_clock_pair_t pair = {.ours = 1000, .theirs = 500000, .width = 7};
    mp_clock_pairs_add(&pairs, &pair);
    MP_CHECK_EQ(mp_clock_pairs_ours(&pairs, 500250), 1250);
    MP_CHECK_EQ(mp_clock_pairs_ours(&pairs, 499990), 990);
    MP_CHECK_EQ(mp_clock_pairs_error(&pairs), 4);
    /* A clock of 3 ticks a nanosecond: a counter of the processor's. */
    pair = (mp_clock_pair_t){1000 + SECOND, 500000 + 3ull * SECOND, 7};
    mp_clock_pairs_add(&pairs, &pair);
    MP_CHECK_EQ(mp_clock_pairs_ours(&pairs, 500000 + 1500000000), 500001000);
    MP_CHECK_EQ(mp_clock_pairs_ours(&pairs, 500000 + 6ull * SECOND),
                1000 + 2ll * SECOND);
    pair = (mp_clock_pair_t){1000 + 2ll * SECOND, 500000 + 6ull * SECOND, 9};
    mp_clock_pairs_add(&pairs, &pair);
    MP_CHECK_EQ(mp_clock_pairs_error(&pairs), 5);
    /* The same moment again adds nothing; an earlier one neither. */
    mp_clock_pairs_add(&pairs, &pair);
    MP_CHECK_EQ(pairs.count, 3);
}

static void
test_a_clock_that_is_set_shows_as_error(void)
{
    mp_clock_pairs_t pairs = {.count = 0};
    for (int64_t i = 0; i < 200; i++) {
        mp_clock_pair_t pair = {
            i * SECOND, (uint64_t)((i + (i >= 100 ? 60 : 5)) * SECOND), 100};
        mp_clock_pairs_add(&pairs, &pair);
    }
    MP_CHECK_EQ(pairs.count, MP_CLOCK_PAIRS);
    MP_CHECK(mp_clock_pairs_error(&pairs) > SECOND / 4);
    /* The last pairs are all from after it. */
    MP_CHECK_EQ(mp_clock_pairs_ours(&pairs, 250ull * SECOND), 190ll * SECOND);
}

static int
no_clock(uint64_t *time)
{
    *time = 0;
    return 999;
}

static int
a_clock(uint64_t *time)
{
    *time = (uint64_t)mp_clock_now() + 77;
    return 0;
}

static void
test_a_pair_is_read_close_together(void)
{
    mp_clock_pair_t pair;
    MP_CHECK(!mp_clock_pair_read(no_clock, &pair));
    MP_CHECK(mp_clock_pair_read(a_clock, &pair));
    MP_CHECK(pair.width >= 0 && pair.width < SECOND);
    int64_t apart = (int64_t)pair.theirs - 77 - pair.ours;
    MP_CHECK(llabs(apart) <= pair.width);
}

/* ---- NVIDIA's headers ----------------------------------------------------
 */

static void
test_offsets_are_nvidias(void)
{
#if defined(MP_HAVE_CUPTI) && CUPTI_API_VERSION >= 130000 &&                  \
    CUPTI_API_VERSION < 130200
#define FIELD(type, field, offset)                                            \
    _Static_assert(offsetof(type, field) == (offset), #type "." #field)
#define KERNEL(type)                                                          \
    FIELD(type, start, 16);                                                   \
    FIELD(type, end, 24);                                                     \
    FIELD(type, deviceId, 40);                                                \
    FIELD(type, streamId, 48);                                                \
    FIELD(type, correlationId, 92);                                           \
    FIELD(type, name, 104)
#define COPY(type, correlation)                                               \
    FIELD(type, copyKind, 4);                                                 \
    FIELD(type, srcKind, 5);                                                  \
    FIELD(type, dstKind, 6);                                                  \
    FIELD(type, bytes, 8);                                                    \
    FIELD(type, start, 16);                                                   \
    FIELD(type, end, 24);                                                     \
    FIELD(type, deviceId, 32);                                                \
    FIELD(type, streamId, 40);                                                \
    FIELD(type, correlationId, correlation)
    KERNEL(CUpti_ActivityKernel8);
    KERNEL(CUpti_ActivityKernel9);
    KERNEL(CUpti_ActivityKernel10);
    COPY(CUpti_ActivityMemcpy5, 44);
    COPY(CUpti_ActivityMemcpy6, 44);
    COPY(CUpti_ActivityMemcpyPtoP4, 60);
    FIELD(CUpti_ActivityMemset4, bytes, 8);
    FIELD(CUpti_ActivityMemset4, start, 16);
    FIELD(CUpti_ActivityMemset4, end, 24);
    FIELD(CUpti_ActivityMemset4, deviceId, 32);
    FIELD(CUpti_ActivityMemset4, streamId, 40);
    FIELD(CUpti_ActivityMemset4, correlationId, 44);
    FIELD(CUpti_ActivityMemset4, memoryKind, 50);
    MP_CHECK_EQ(sizeof(CUpti_ActivityKernel8), 200);
    MP_CHECK_EQ(sizeof(CUpti_ActivityKernel9), 208);
    MP_CHECK_EQ(sizeof(CUpti_ActivityKernel10), 216);
    MP_CHECK_EQ(sizeof(CUpti_ActivityMemcpy5), 88);
    MP_CHECK_EQ(sizeof(CUpti_ActivityMemcpy6), 96);
    MP_CHECK_EQ(sizeof(CUpti_ActivityMemcpyPtoP4), 96);
    MP_CHECK_EQ(sizeof(CUpti_ActivityMemset4), 88);
    MP_CHECK_EQ(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, MP_CUPTI_KERNEL);
    MP_CHECK_EQ(CUPTI_ACTIVITY_KIND_MEMCPY, MP_CUPTI_MEMCPY);
    MP_CHECK_EQ(CUPTI_ACTIVITY_KIND_MEMCPY2, MP_CUPTI_MEMCPY_PEER);
    MP_CHECK_EQ(CUPTI_ACTIVITY_KIND_MEMSET, MP_CUPTI_MEMSET);
#endif
}

MP_TEST_SUITE(gpu_activity, MP_TEST(test_work_is_told_with_its_launch),
              MP_TEST(test_a_graph_is_the_launch_of_all_its_kernels),
              MP_TEST(test_what_launches_no_work_is_not_heard),
              MP_TEST(test_buffers_come_from_other_threads),
              MP_TEST(test_nothing_is_lost_between_threads),
              MP_TEST(test_starts_and_stops_beside_launches),
              MP_TEST(test_a_cut_record_is_counted),
              MP_TEST(test_records_of_other_kinds_are_counted),
              MP_TEST(test_a_record_without_times_is_counted),
              MP_TEST(test_what_cupti_drops_is_counted),
              MP_TEST(test_buffers_are_bounded),
              MP_TEST(test_an_old_cupti_gets_a_buffer_always),
              MP_TEST(test_a_late_buffer_hurts_nobody),
              MP_TEST(test_nobody_pays_before_the_start),
              MP_TEST(test_it_needs_the_subscription),
              MP_TEST(test_refusals_leave_nothing_on),
              MP_TEST(test_every_version_is_read_or_refused),
              MP_TEST(test_old_records_are_read_at_their_length),
              MP_TEST(test_a_hundred_starts_leave_nothing),
              MP_TEST(test_another_profiler_takes_the_callbacks),
              MP_TEST(test_cupti_that_is_gone_is_not_asked),
              MP_TEST(test_a_forked_child_calls_nothing),
              MP_TEST(test_only_those_who_ask_hear_of_kernels),
              MP_TEST(test_clocks_are_put_together),
              MP_TEST(test_a_clock_that_is_set_shows_as_error),
              MP_TEST(test_a_pair_is_read_close_together),
              MP_TEST(test_offsets_are_nvidias))
