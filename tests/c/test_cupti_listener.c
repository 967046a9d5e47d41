/* test_cupti_listener.c - CUPTI heard, with a fake library that plays calls.
 *
 * The structs of arguments are written down here again, from the driver's
 * manual: what the core takes out of NVIDIA's headers must agree. */
#include "cupti_callback.h"
#include "cupti_calls.h"
#include "cupti_library.h"
#include "cupti_listener.h"
#include "fake_cupti.h"
#include "fake_driver.h"
#include "fake_shim.h"
#include "gpu_driver.h"
#include "hook.h"
#include "ledger.h"
#include "libraries.h"
#include "mem.h"
#include "mp_test.h"
#include "native_stack.h"
#include "session.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    CONTEXT = 0xc0,
    ANOTHER = 0xc1
};

/* Without NVIDIA's headers there is nothing to hear: that is tested instead.
 */
static bool
cannot(void)
{
    char error[MP_CUPTI_TEXT];
    if (mp_cupti_calls_why_not() == NULL) {
        return false;
    }
    MP_CHECK(mp_cupti_open("", error, sizeof(error)) == MP_ERR_LOAD);
    MP_CHECK(strstr(error, "without NVIDIA's headers") != NULL);
    return true;
}

static mp_session_t *
new_session(void)
{
    mp_session_options_t options = {
        .ops = 2, .stacks = true, .cpu = true, .cuda = true};
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

static int
start(void)
{
    int code;
    char text[MP_CUPTI_TEXT], other[MP_CUPTI_TEXT];
    mp_status_t status = mp_cupti_start(&code, text, other);
    MP_CHECK(status == MP_OK || status == MP_ERR_LOAD);
    MP_CHECK((status == MP_OK) == (code == 0 && text[0] == '\0'));
    return code;
}

static void
open_fake(void)
{
    char error[MP_CUPTI_TEXT];
    MP_CHECK(mp_cupti_open("", error, sizeof(error)) == MP_OK);
    fakecupti_set_device(CONTEXT, 2);
}

/* A session with an open window, and CUPTI heard. */
static mp_session_t *
begin(void)
{
    mp_session_t *session = new_session();
    open_fake();
    MP_CHECK_EQ(start(), 0);
    return session;
}

static mp_window_t
end(mp_session_t *session)
{
    mp_window_t window;
    mp_cupti_stop();
    MP_CHECK(mp_session_window_end(session, &window) == MP_OK);
    mp_session_free(session);
    return window;
}

static const mp_driver_life_t *
lives(const mp_window_t *window, size_t *count)
{
    return mp_ledger_rows(mp_tracker_ledger(window->tracker), count);
}

/* The Nth driver event of KIND. */
static const mp_event_t *
event_of(const mp_window_t *window, uint8_t kind, size_t n)
{
    for (size_t i = 0; i < window->count; i++) {
        if (window->events[i].kind == kind && n-- == 0) {
            return &window->events[i];
        }
    }
    mp_test_fail(__FILE__, __LINE__, "no event %zu of kind %d", n, kind);
}

static size_t
events_of(const mp_window_t *window, uint8_t kind)
{
    size_t count = 0;
    for (size_t i = 0; i < window->count; i++) {
        count += window->events[i].kind == kind;
    }
    return count;
}

/* ---- the driver's calls --------------------------------------------------
 */

typedef struct {
    uint64_t *out;
    size_t bytes;
} alloc_t;

static int
alloc_from(uint64_t context, uint64_t address, size_t bytes, int result)
{
    uint64_t out = 0x5555;
    alloc_t params = {&out, bytes};
    int told = fakecupti_call("cuMemAlloc_v2", &params, sizeof(params), result,
                              &out, address, context);
    MP_CHECK(result == 0 || out == 0x5555);
    return told;
}

static int
alloc(uint64_t address, size_t bytes)
{
    return alloc_from(CONTEXT, address, bytes, 0);
}

static int
give(const char *call, uint64_t address, int result)
{
    return fakecupti_call(call, &address, sizeof(address), result, NULL, 0,
                          CONTEXT);
}

typedef struct {
    uint64_t *out;
    size_t size;
    const void *prop;
    unsigned long long flags;
} create_t;

/* CUmemAllocationProp. */
typedef struct {
    int type, handle_types;
    struct {
        int type, id;
    } location;
    void *meta;
    unsigned char flags[8];
} prop_t;

static void
create(uint64_t handle, size_t size, int location, int device)
{
    uint64_t out = 0;
    prop_t prop = {1, 0, {location, device}, NULL, {0}};
    create_t params = {&out, size, &prop, 0};
    fakecupti_call("cuMemCreate", &params, sizeof(params), 0, &out, handle,
                   CONTEXT);
}

static void
map(uint64_t address, size_t size, uint64_t handle)
{
    struct {
        uint64_t ptr, size, offset, handle, flags;
    } params = {address, size, 0, handle, 0};
    fakecupti_call("cuMemMap", &params, sizeof(params), 0, NULL, 0, CONTEXT);
}

static void
unmap(uint64_t address, size_t size)
{
    struct {
        uint64_t ptr, size;
    } params = {address, size};
    fakecupti_call("cuMemUnmap", &params, sizeof(params), 0, NULL, 0, CONTEXT);
}

/* ---- tests ---------------------------------------------------------------
 */

static void
test_cupti_allocs_at_exit_and_frees_at_enter(void)
{
    if (cannot()) {
        return;
    }
    mp_session_t *session = begin();
    errno = 77;
    MP_CHECK_EQ(alloc(0x1000, 100), 2); /* ENTER and EXIT */
    MP_CHECK_EQ(alloc(0x2000, 50), 2);
    MP_CHECK_EQ(give("cuMemFree_v2", 0x1000, 0), 2);
    MP_CHECK_EQ(give("cuMemFree_v2", 0, 0), 2); /* nothing */
    MP_CHECK_EQ(errno, 77);
    mp_window_t window = end(session);
    size_t count;
    const mp_driver_life_t *rows = lives(&window, &count);
    MP_CHECK_EQ(count, 2);
    MP_CHECK_EQ(rows[0].address, 0x1000);
    MP_CHECK_EQ(rows[0].size, 100);
    MP_CHECK_EQ(rows[0].group, MP_DRIVER_DEVICE);
    MP_CHECK_EQ(rows[0].device, 2); /* asked for later, by the context */
    MP_CHECK(rows[0].died_event > rows[1].born_event);
    MP_CHECK_EQ(rows[1].died_event, -1);
    MP_CHECK_EQ(events_of(&window, MP_EVENT_DRIVER_FREE), 1);
    MP_CHECK_EQ(events_of(&window, MP_EVENT_DRIVER_CONTEXT), 1);
    mp_window_clear(&window);
}

static void
test_cupti_failed_calls(void)
{
    if (cannot()) {
        return;
    }
    mp_session_t *session = begin();
    alloc_from(CONTEXT, 0x1000, 100, 2); /* out of memory */
    alloc_from(CONTEXT, 0x1000, 100, 1);
    alloc(0x2000, 7);
    give("cuMemFree_v2", 0x2000, 700); /* it fails: put back */
    mp_window_t window = end(session);
    size_t count;
    const mp_driver_life_t *rows = lives(&window, &count);
    MP_CHECK_EQ(count, 1);
    MP_CHECK_EQ(rows[0].died_event, -1);
    const mp_event_t *oom = event_of(&window, MP_EVENT_DRIVER_OOM, 0);
    MP_CHECK_EQ(oom->size, 100);
    MP_CHECK_EQ(events_of(&window, MP_EVENT_DRIVER_OOM), 1);
    mp_ledger_counts_t counts;
    mp_ledger_counts(mp_tracker_ledger(window.tracker), &counts);
    MP_CHECK_EQ(counts.failed_gives, 1);
    MP_CHECK_EQ(counts.ooms, 1);
    mp_window_clear(&window);
}

static void
other_thread_takes_the_address(void *user)
{
    pthread_t thread;
    MP_CHECK(pthread_create(&thread, NULL, user, NULL) == 0);
    MP_CHECK(pthread_join(thread, NULL) == 0);
}

static void *
take_the_address(void *ignored)
{
    (void)ignored;
    alloc(0x1000, 555);
    return NULL;
}

static void
test_cupti_address_is_given_out_again_before_the_exit(void)
{
    if (cannot()) {
        return;
    }
    mp_session_t *session = begin();
    alloc(0x1000, 100);
    uint64_t address = 0x1000;
    fakecupti_step_t step = {.call = "cuMemFree_v2",
                             .params = &address,
                             .bytes = sizeof(address),
                             .context = CONTEXT,
                             .inside = other_thread_takes_the_address,
                             .user = take_the_address};
    MP_CHECK_EQ(fakecupti_play(&step), 2);
    mp_window_t window = end(session);
    size_t count;
    const mp_driver_life_t *rows = lives(&window, &count);
    MP_CHECK_EQ(count, 2);
    MP_CHECK(rows[0].died_event >= 0);
    MP_CHECK_EQ(rows[1].size, 555);
    MP_CHECK_EQ(rows[1].died_event, -1);
    MP_CHECK(rows[0].thread != rows[1].thread);
    mp_window_clear(&window);
}

static void
test_cupti_handles_and_host_memory(void)
{
    if (cannot()) {
        return;
    }
    mp_session_t *session = begin();
    create(0xa1, 2 << 20, 1, 5);
    map(0x100000, 2 << 20, 0xa1);
    give("cuMemRelease", 0xa1, 0);
    create(0xa2, 1 << 20, 2, 0); /* of the host */
    uint64_t out;
    struct {
        uint64_t *out;
        size_t bytes;
        unsigned flags;
    } host = {&out, 4096, 0};
    fakecupti_call("cuMemHostAlloc", &host, sizeof(host), 0, &out, 0x7000,
                   CONTEXT);
    struct {
        uint64_t address;
        size_t bytes;
        unsigned flags;
    } pinned = {0x8000, 512, 0};
    fakecupti_call("cuMemHostRegister_v2", &pinned, sizeof(pinned), 0, NULL, 0,
                   CONTEXT);
    give("cuMemHostUnregister", 0x8000, 0);
    unmap(0x100000, 2 << 20);
    mp_window_t window = end(session);
    size_t count;
    const mp_driver_life_t *rows = lives(&window, &count);
    MP_CHECK_EQ(count, 5);
    MP_CHECK_EQ(rows[0].group, MP_DRIVER_PHYSICAL);
    MP_CHECK_EQ(rows[0].device, 5);
    MP_CHECK(rows[0].died_event > rows[4].died_event); /* with its mapping */
    MP_CHECK_EQ(rows[1].group, MP_DRIVER_MAPPING);
    MP_CHECK_EQ(rows[2].group, MP_DRIVER_HOST_PHYSICAL);
    MP_CHECK_EQ(rows[2].device, MP_DEVICE_CPU);
    MP_CHECK_EQ(rows[3].group, MP_DRIVER_HOST);
    MP_CHECK_EQ(rows[3].size, 4096);
    MP_CHECK_EQ(rows[4].group, MP_DRIVER_HOST_REGISTERED);
    mp_window_clear(&window);
}

static void
test_cupti_pitch_managed_ipc_arrays(void)
{
    if (cannot()) {
        return;
    }
    mp_session_t *session = begin();
    uint64_t out = 0, pitch = 0;
    struct {
        uint64_t *out, *pitch;
        size_t width, height;
        unsigned element;
    } pitched = {&out, &pitch, 100, 8, 4};
    fakecupti_step_t step = {.call = "cuMemAllocPitch_v2",
                             .params = &pitched,
                             .bytes = sizeof(pitched),
                             .out = &out,
                             .value = 0x1000,
                             .out2 = &pitch,
                             .value2 = 512,
                             .context = CONTEXT};
    fakecupti_play(&step);
    struct {
        uint64_t *out;
        size_t bytes;
        unsigned flags;
    } managed = {&out, 9000, 1};
    fakecupti_call("cuMemAllocManaged", &managed, sizeof(managed), 0, &out,
                   0x2000, CONTEXT);
    struct {
        uint64_t *out;
        char handle[64];
        unsigned flags;
    } ipc = {&out, {1}, 0};
    fakecupti_call("cuIpcOpenMemHandle_v2", &ipc, sizeof(ipc), 0, &out, 0x3000,
                   CONTEXT);
    struct {
        size_t width, height;
        int format;
        unsigned channels;
    } descriptor = {64, 32, 0x20, 4}; /* of floats */
    struct {
        uint64_t *out;
        const void *descriptor;
    } array = {&out, &descriptor};
    fakecupti_call("cuArrayCreate_v2", &array, sizeof(array), 0, &out, 0x4000,
                   CONTEXT);
    give("cuMemFree_v2", 0x2000, 0);
    give("cuIpcCloseMemHandle", 0x3000, 0);
    mp_window_t window = end(session);
    size_t count;
    const mp_driver_life_t *rows = lives(&window, &count);
    MP_CHECK_EQ(count, 4);
    MP_CHECK_EQ(rows[0].size, 512 * 8);
    MP_CHECK_EQ(rows[1].group, MP_DRIVER_MANAGED);
    MP_CHECK(rows[1].died_event >= 0 && rows[2].died_event >= 0);
    MP_CHECK(rows[2].flags & MP_FLAG_FOREIGN);
    MP_CHECK_EQ(rows[3].size, 64 * 32 * 4 * 4);
    mp_window_clear(&window);
}

/* What the decoder says of a call that has succeeded. */
static mp_call_fact_t
decoded(const char *name, const void *params)
{
    for (size_t i = 0; i < mp_cupti_calls_count(); i++) {
        if (strcmp(mp_cupti_call(i)->name, name) == 0) {
            mp_call_fact_t fact;
            mp_cupti_call_decode(i, params, true, &fact);
            return fact;
        }
    }
    mp_test_fail(__FILE__, __LINE__, "no call is named %s", name);
}

static void
test_cupti_arguments_of_the_other_calls(void)
{
    if (cannot()) {
        return;
    }
    uint64_t out = 0x1234;
    struct {
        uint64_t *out;
        size_t bytes;
        uint64_t pool, stream;
    } from_pool = {&out, 77, 5, 6};
    mp_call_fact_t fact = decoded("cuMemAllocFromPoolAsync", &from_pool);
    /* Its stream follows its pool: not as in cuMemAllocAsync. */
    MP_CHECK(fact.addr == out && fact.size == 77 && fact.queue == 6);
    struct {
        int type, handle_types;
        struct {
            int type, id;
        } location;
        char rest[64];
    } pool_props = {1, 0, {1, 3}, {0}};
    struct {
        uint64_t *out;
        const void *props;
    } pool = {&out, &pool_props};
    fact = decoded("cuMemPoolCreate", &pool);
    MP_CHECK(fact.group == MP_DRIVER_POOL && fact.addr == out);
    MP_CHECK(fact.size == 0 && fact.device == 3);
    struct {
        uint64_t pool;
        size_t keep;
    } trim = {9, 4096};
    fact = decoded("cuMemPoolTrimTo", &trim);
    MP_CHECK(fact.group == MP_DRIVER_MARK_POOL_TRIMMED && fact.size == 4096);
    struct {
        unsigned devices;
        size_t size;
        uint64_t handle_types, flags;
    } cast_prop = {2, 4 << 20, 0, 0};
    struct {
        uint64_t *out;
        const void *prop;
    } cast = {&out, &cast_prop};
    fact = decoded("cuMulticastCreate", &cast);
    MP_CHECK(fact.group == MP_DRIVER_MULTICAST && fact.size == 4 << 20);
    MP_CHECK(fact.flags == MP_FLAG_FOREIGN);
    struct {
        uint64_t cast, offset, handle, handle_offset, size, flags;
    } bind = {11, 0, 22, 0, 4096, 0};
    fact = decoded("cuMulticastBindMem", &bind);
    MP_CHECK(fact.addr == 11 && fact.other == 22 && fact.size == 4096);
    struct {
        uint64_t cast;
        int device;
        uint64_t offset, size;
    } unbind = {11, 1, 0, 4096};
    fact = decoded("cuMulticastUnbind", &unbind);
    MP_CHECK(fact.addr == 11 && fact.size == 4096);
    struct {
        int type;
        union {
            int fd;
            void *two[2];
        } handle;
        unsigned long long size;
        unsigned flags, reserved[16];
    } external = {1, {3}, 8192, 0, {0}};
    struct {
        uint64_t *out;
        const void *description;
    } import = {&out, &external};
    fact = decoded("cuImportExternalMemory", &import);
    MP_CHECK(fact.group == MP_DRIVER_EXTERNAL && fact.size == 8192);
    MP_CHECK(fact.flags == MP_FLAG_FOREIGN);
    struct {
        unsigned long long offset, size;
        unsigned flags, reserved[16];
    } buffer = {0, 512, 0, {0}};
    struct {
        uint64_t *out;
        uint64_t memory;
        const void *description;
    } mapped = {&out, 7, &buffer};
    fact = decoded("cuExternalMemoryGetMappedBuffer", &mapped);
    MP_CHECK(fact.addr == out && fact.size == 512);
    struct {
        size_t width, height, depth;
        int format;
        unsigned channels, flags;
    } box = {64, 64, 0, 0x20, 2, 0};
    struct {
        uint64_t *out;
        const void *description;
        unsigned levels;
    } mipmap = {&out, &box, 3};
    fact = decoded("cuMipmappedArrayCreate", &mipmap);
    MP_CHECK_EQ(fact.size, (64 * 64 + 32 * 32 + 16 * 16) * 2 * 4);
    struct {
        uint64_t *out;
        void *handle;
        int type;
    } shared = {&out, NULL, 1};
    fact = decoded("cuMemImportFromShareableHandle", &shared);
    MP_CHECK(fact.addr == out && fact.size == 0);
    MP_CHECK_EQ(fact.flags, MP_FLAG_FOREIGN | MP_FLAG_RETAINED);
    struct {
        uint64_t *out;
        size_t size, alignment;
        uint64_t at, flags;
    } range = {&out, 1 << 30, 0, 0, 0};
    fact = decoded("cuMemAddressReserve", &range);
    MP_CHECK(fact.size == 1 << 30 && fact.flags == MP_FLAG_FOREIGN);
    struct {
        uint64_t *out, *arguments;
        int count;
        unsigned flags;
        int device;
    } context = {&out, NULL, 0, 0, 6};
    fact = decoded("cuCtxCreate_v3", &context);
    MP_CHECK(fact.context == out && fact.context_device == 6);
}

static void
stream_ordered(const char *call, uint64_t address, uint64_t stream)
{
    uint64_t out;
    struct {
        uint64_t *out;
        size_t bytes;
        uint64_t stream;
    } params = {&out, 1000, stream};
    fakecupti_call(call, &params, sizeof(params), 0, &out, address, CONTEXT);
}

static void
test_cupti_captured_streams(void)
{
    if (cannot()) {
        return;
    }
    mp_session_t *session = begin();
    struct {
        uint64_t stream;
        int mode;
    } capture = {0x51, 0};
    stream_ordered("cuMemAllocAsync", 0x1000, 0x51);
    fakecupti_call("cuStreamBeginCapture_v2", &capture, sizeof(capture), 0,
                   NULL, 0, CONTEXT);
    stream_ordered("cuMemAllocAsync_ptsz", 0x2000, 0x51);
    stream_ordered("cuMemAllocAsync", 0x3000, 0x52);
    fakecupti_call("cuStreamEndCapture", &capture, sizeof(capture), 0, NULL, 0,
                   CONTEXT);
    stream_ordered("cuMemAllocAsync", 0x4000, 0x51);
    give("cuMemFree_v2", 0x1000, 0);
    mp_window_t window = end(session);
    size_t count;
    const mp_driver_life_t *rows = lives(&window, &count);
    MP_CHECK_EQ(count, 4);
    for (size_t i = 0; i < 4; i++) {
        MP_CHECK_EQ((rows[i].flags & MP_FLAG_GRAPH) != 0, i == 1);
    }
    MP_CHECK(rows[0].died_event >= 0);
    MP_CHECK_EQ(events_of(&window, MP_EVENT_DRIVER_MARK), 2);
    mp_window_clear(&window);
}

static void
wait_a_little(void *ignored)
{
    (void)ignored;
    usleep(2000);
}

static void
test_cupti_marks_images_and_contexts(void)
{
    if (cannot()) {
        return;
    }
    mp_session_t *session = begin();
    uint64_t out;
    struct {
        uint64_t *out;
        const void *image;
    } load = {&out, "elf"};
    fakecupti_step_t step = {.call = "cuModuleLoadData",
                             .params = &load,
                             .bytes = sizeof(load),
                             .out = &out,
                             .value = 0x99,
                             .context = CONTEXT,
                             .inside = wait_a_little};
    fakecupti_play(&step);
    struct {
        int limit;
        size_t value;
    } limit = {0, 4096};
    fakecupti_call("cuCtxSetLimit", &limit, sizeof(limit), 0, NULL, 0,
                   CONTEXT);
    struct {
        uint64_t *out;
        int device;
    } retain = {&out, 4};
    fakecupti_call("cuDevicePrimaryCtxRetain", &retain, sizeof(retain), 0,
                   &out, ANOTHER, 0);
    alloc_from(ANOTHER, 0x1000, 10, 0); /* its device is known at once */
    fakecupti_resource(1, ANOTHER);
    fakecupti_resource(2, ANOTHER); /* it ends, with what lay in it */
    mp_window_t window = end(session);
    const mp_event_t *mark = event_of(&window, MP_EVENT_DRIVER_MARK, 0);
    MP_CHECK_EQ(mark->pool, MP_DRIVER_MARK_IMAGE_LOADED);
    MP_CHECK_EQ(mark->addr, 0x99);
    MP_CHECK(mark->size >= 2000000 && mark->size < 2000000000);
    mark = event_of(&window, MP_EVENT_DRIVER_MARK, 1);
    MP_CHECK_EQ(mark->pool, MP_DRIVER_MARK_LIMIT_SET);
    MP_CHECK_EQ(mark->size, 4096);
    MP_CHECK_EQ(event_of(&window, MP_EVENT_DRIVER_MARK, 2)->pool,
                MP_DRIVER_MARK_CONTEXT_CREATED);
    size_t count;
    const mp_driver_life_t *rows = lives(&window, &count);
    MP_CHECK_EQ(count, 1);
    MP_CHECK_EQ(rows[0].device, 4);
    MP_CHECK(rows[0].died_event >= 0);
    mp_window_clear(&window);
}

static void
test_cupti_context_nobody_knows_stays_unknown(void)
{
    if (cannot()) {
        return;
    }
    mp_session_t *session = begin();
    alloc_from(ANOTHER, 0x1000, 10, 0);
    mp_window_t window = end(session);
    size_t count;
    MP_CHECK_EQ(lives(&window, &count)->device, MP_DEVICE_UNKNOWN);
    mp_window_clear(&window);
}

/* ---- starting and stopping -----------------------------------------------
 */

static void
test_cupti_stops_in_order_and_leaves_nothing_on(void)
{
    if (cannot()) {
        return;
    }
    open_fake();
    fakecupti_reset();
    MP_CHECK_EQ(start(), 0);
    mp_cupti_status_t status;
    mp_cupti_status(&status);
    MP_CHECK(status.running && status.enabled > 60);
    MP_CHECK_STR(status.refused, "");
    MP_CHECK_STR(status.unknown, "");
    MP_CHECK_EQ(fakecupti_enabled(), status.enabled + 3);
    mp_cupti_stop();
    mp_cupti_stop(); /* again: nothing */
    MP_CHECK_EQ(fakecupti_enabled(), 0);
    MP_CHECK_EQ(fakecupti_subscribed(), 0);
    const char *calls = fakecupti_calls();
    const char *last_off = NULL;
    for (const char *at = calls; (at = strstr(at, "cuptiDisable")) != NULL;) {
        last_off = at++;
    }
    const char *over = strstr(calls, "cuptiUnsubscribe");
    MP_CHECK(last_off != NULL && over > last_off);
    MP_CHECK(strstr(over + 1, "cuptiUnsubscribe") == NULL);
    MP_CHECK(strstr(calls, "cuptiSubscribe_v2") == NULL);
}

static void
test_cupti_late_callbacks_write_nothing(void)
{
    if (cannot()) {
        return;
    }
    mp_session_t *session = begin();
    mp_cupti_stop();
    fakecupti_set_late(1);
    MP_CHECK_EQ(alloc(0x1000, 100), 2);
    fakecupti_resource(2, CONTEXT);
    mp_window_t window = end(session);
    MP_CHECK_EQ(events_of(&window, MP_EVENT_DRIVER_ALLOC), 0);
    mp_window_clear(&window);
}

static void
test_cupti_thousand_starts_and_stops(void)
{
    if (cannot()) {
        return;
    }
    mp_session_t *session = begin();
    mp_cupti_stop();
    size_t held = 0;
    for (int i = 0; i < 1000; i++) {
        MP_CHECK_EQ(start(), 0);
        if (i % 100 == 0) {
            alloc(0x1000 * ((uint64_t)i + 1), 1);
        }
        mp_cupti_stop();
        if (i == 10) {
            held = mp_mem_bytes();
        }
    }
    /* Spare contexts may be on their way. */
    MP_CHECK(mp_mem_bytes() < held + (1 << 20));
    mp_window_t window = end(session);
    size_t count;
    (void)lives(&window, &count);
    MP_CHECK_EQ(count, 10);
    mp_window_clear(&window);
}

static void
test_cupti_slot_taken(void)
{
    if (cannot()) {
        return;
    }
    open_fake();
    int code;
    char text[MP_CUPTI_TEXT], other[MP_CUPTI_TEXT];
    fakecupti_hold_slot("CUPTI for somebody");
    MP_CHECK(mp_cupti_start(&code, text, other) == MP_ERR_LOAD);
    MP_CHECK_EQ(code, 39);
    MP_CHECK_STR(other, "CUPTI for somebody");
    MP_CHECK(strstr(text, "MULTIPLE_SUBSCRIBERS") != NULL);
    fakecupti_set_version(130200); /* it wants other sizes */
    MP_CHECK(mp_cupti_start(&code, text, other) == MP_ERR_LOAD);
    fakecupti_hold_slot(NULL);
    MP_CHECK_EQ(start(), 0);
    mp_cupti_stop();
    /* It was taken, and is free when we ask whose it is. */
    fakecupti_set_version(130001);
    fakecupti_fail("cuptiSubscribe", 39, 0);
    MP_CHECK_EQ(start(), 0);
    mp_cupti_stop();
    MP_CHECK_EQ(fakecupti_subscribed(), 0);
}

static void
test_cupti_kineto_after_us_works_and_keeps_the_slot(void)
{
    if (cannot()) {
        return;
    }
    open_fake();
    MP_CHECK_EQ(start(), 0);
    mp_cupti_stop();
    MP_CHECK_EQ(fakecupti_kineto(), 1);
    MP_CHECK_EQ(start(), 39);
    MP_CHECK_EQ(fakecupti_kineto(), 1);
    fakecupti_reset();
    MP_CHECK_EQ(start(), 0);
    MP_CHECK_EQ(fakecupti_kineto(), 0); /* why there is a hook */
    mp_cupti_stop();
    MP_CHECK_EQ(fakecupti_kineto(), 0);
}

static void
test_cupti_refusals(void)
{
    if (cannot()) {
        return;
    }
    static const int codes[] = {15, 35, 40, 999};
    open_fake();
    char text[MP_CUPTI_TEXT], other[MP_CUPTI_TEXT];
    int code;
    for (size_t i = 0; i < MP_ARRAY_LENGTH(codes); i++) {
        fakecupti_fail("cuptiSubscribe", codes[i], 0);
        MP_CHECK(mp_cupti_start(&code, text, other) == MP_ERR_LOAD);
        MP_CHECK_EQ(code, codes[i]);
        MP_CHECK(text[0] != '\0' && strchr(text, '\n') == NULL);
    }
    /* The first call is one of those that are needed. */
    fakecupti_fail("cuptiEnableCallback", 35, 0);
    MP_CHECK(mp_cupti_start(&code, text, other) == MP_ERR_LOAD);
    MP_CHECK_EQ(code, 35);
    MP_CHECK(strstr(text, "cuMemAlloc_v2 cannot be heard") != NULL);
    MP_CHECK_EQ(fakecupti_subscribed(), 0);
    /* The fourth is not: managed memory. */
    fakecupti_fail("cuptiEnableCallback", 35, 3);
    MP_CHECK_EQ(start(), 0);
    mp_cupti_status_t status;
    mp_cupti_status(&status);
    MP_CHECK_STR(status.refused, "cuMemAllocManaged");
    mp_cupti_stop();
}

static void
version(uint32_t number, bool works, const char *unknown)
{
    char error[MP_CUPTI_TEXT];
    fakecupti_set_version(number);
    mp_status_t status = mp_cupti_open("", error, sizeof(error));
    MP_CHECK_EQ(status == MP_OK, works);
    if (works) {
        mp_cupti_status_t found;
        MP_CHECK_EQ(start(), 0);
        mp_cupti_status(&found);
        MP_CHECK_EQ(found.version, number);
        MP_CHECK_STR(found.unknown, unknown);
        MP_CHECK_EQ(found.refused[0] == '\0', number >= 130000);
        mp_cupti_stop();
    }
    else {
        MP_CHECK(strstr(error, "17") != NULL);
    }
}

static void
test_cupti_before_11_8_is_refused(void)
{
    if (!cannot()) {
        version(17, false, "");
    }
}

static void
test_cupti_11_8(void)
{
    if (!cannot()) {
        version(18, true, "");
    }
}

static void
test_cupti_12_4(void)
{
    if (!cannot()) {
        version(22, true, "");
    }
}

static void
test_cupti_13_2_with_a_call_we_have_not_met(void)
{
    if (!cannot()) {
        version(130200, true, "cuMemAllocLater");
    }
}

static void
test_cupti_ends_by_itself(void)
{
    if (cannot()) {
        return;
    }
    mp_session_t *session = begin();
    char message[] = "on somebody's stack";
    fakecupti_fatal(999, message);
    fakecupti_fatal(999, message); /* told once */
    memset(message, 'x', sizeof(message) - 1);
    mp_cupti_status_t status;
    mp_cupti_status(&status);
    MP_CHECK(status.detached);
    MP_CHECK_STR(status.detached_text, "CUPTI_ERROR_UNKNOWN");
    mp_window_t window = end(session);
    MP_CHECK_EQ(events_of(&window, MP_EVENT_DRIVER_GAP), 1);
    MP_CHECK(strstr(fakecupti_calls(), "cuptiUnsubscribe") == NULL);
    mp_window_clear(&window);
}

static void
test_cupti_gaps(void)
{
    if (cannot()) {
        return;
    }
    mp_session_t *session = begin();
    mp_cupti_gap(true, "torch.profiler");
    mp_cupti_stop();
    MP_CHECK_EQ(start(), 0);
    mp_cupti_gap(false, "torch.profiler");
    mp_window_t window = end(session);
    size_t count;
    const mp_driver_gap_t *gaps =
        mp_ledger_gaps(mp_tracker_ledger(window.tracker), &count);
    MP_CHECK_EQ(count, 1);
    MP_CHECK(gaps[0].end_event > gaps[0].begin_event);
    const char *text;
    size_t length;
    MP_CHECK(mp_intern_text(mp_hook_intern(), gaps[0].reason, &text, &length));
    MP_CHECK_STR(text, "torch.profiler");
    mp_window_clear(&window);
}

static void
test_cupti_fork(void)
{
    if (cannot()) {
        return;
    }
    mp_session_t *session = begin();
    int code;
    char text[MP_CUPTI_TEXT], other[MP_CUPTI_TEXT];
    pid_t child = fork();
    if (child == 0) {
        fakecupti_set_late(1);
        alloc(0x9000, 1); /* what the parent enabled may still call */
        mp_cupti_status_t status;
        mp_cupti_status(&status);
        mp_cupti_settle();
        mp_cupti_stop();
        bool right = status.dead && !status.running &&
                     mp_cupti_start(&code, text, other) == MP_ERR_STATE &&
                     strstr(fakecupti_calls(), "cuptiUnsubscribe") == NULL;
        _exit(right ? 0 : 1);
    }
    int status;
    MP_CHECK(waitpid(child, &status, 0) == child && status == 0);
    alloc(0x1000, 1);
    mp_window_t window = end(session);
    MP_CHECK_EQ(events_of(&window, MP_EVENT_DRIVER_ALLOC), 1);
    mp_window_clear(&window);
}

static void
test_cupti_fork_before_it_began_starts_afresh(void)
{
    if (cannot()) {
        return;
    }
    open_fake(); /* opened, and never subscribed */
    pid_t child = fork();
    if (child == 0) {
        int code;
        char text[MP_CUPTI_TEXT], other[MP_CUPTI_TEXT];
        bool right = mp_cupti_start(&code, text, other) == MP_OK;
        mp_cupti_stop();
        _exit(right ? 0 : 1);
    }
    int status;
    MP_CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* ---- threads -------------------------------------------------------------
 */

#define THREADS 4
#define CALLS 400

static atomic_bool racing;

static void *
race(void *argument)
{
    uint64_t base = 0x100000 * ((uintptr_t)argument + 1);
    for (uint64_t i = 0; i < CALLS || atomic_load(&racing); i++) {
        uint64_t address = base + i % 64 * 0x100;
        alloc(address, 16);
        give("cuMemFree_v2", address, 0);
    }
    return NULL;
}

static void
test_cupti_threads_race_with_starts_and_stops(void)
{
    if (cannot()) {
        return;
    }
    mp_session_t *session = begin();
    pthread_t threads[THREADS];
    atomic_store(&racing, true);
    for (uintptr_t i = 0; i < THREADS; i++) {
        MP_CHECK(pthread_create(&threads[i], NULL, race, (void *)i) == 0);
    }
    for (int i = 0; i < 30; i++) {
        usleep(1000);
        mp_cupti_gap(true, "race");
        mp_cupti_stop();
        MP_CHECK_EQ(start(), 0);
        mp_cupti_gap(false, "race");
        mp_cupti_settle();
    }
    atomic_store(&racing, false);
    for (int i = 0; i < THREADS; i++) {
        MP_CHECK(pthread_join(threads[i], NULL) == 0);
    }
    mp_cupti_status_t status;
    mp_cupti_status(&status);
    MP_CHECK(status.callbacks > 0);
    /* Each callback that began has ended.  status.leaked may be above 0: a
     * busy machine can hold a thread inside of one for longer than a stop
     * waits. */
    MP_CHECK(mp_cupti_callback_wait(0));
    mp_window_t window = end(session);
    MP_CHECK(events_of(&window, MP_EVENT_DRIVER_ALLOC) > 0);
    mp_window_clear(&window);
}

static void
test_cupti_threads_balance(void)
{
    if (cannot()) {
        return;
    }
    mp_session_t *session = begin();
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) {
        MP_CHECK(pthread_create(&threads[i], NULL, race, (void *)i) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        MP_CHECK(pthread_join(threads[i], NULL) == 0);
    }
    mp_window_t window = end(session);
    size_t count;
    const mp_driver_life_t *rows = lives(&window, &count);
    MP_CHECK_EQ(count, THREADS * CALLS);
    for (size_t i = 0; i < count; i++) {
        MP_CHECK(rows[i].died_event > rows[i].born_event);
        MP_CHECK_EQ(rows[i].device, 2);
    }
    mp_window_clear(&window);
}

/* ---- libraries ------------------------------------------------------------
 */

static void
names(const char *path, const char *expected, bool expected_torch)
{
    char name[64];
    bool torch;
    if (expected == NULL) {
        MP_CHECK(!mp_library_name(path, name, sizeof(name), &torch));
        return;
    }
    MP_CHECK(mp_library_name(path, name, sizeof(name), &torch));
    MP_CHECK_STR(name, expected);
    MP_CHECK_EQ(torch, expected_torch);
}

static void
test_cupti_names_of_libraries(void)
{
    names("/usr/lib/libcuda.so.580.1", NULL, false);
    names("/x/libcudart.so.13", NULL, false);
    names("/x/libcupti.so.13", NULL, false);
    names("/x/nvidia/nccl/lib/libnccl.so.2", "NCCL", false);
    names("/x/libcublasLt.so.13", "cuBLAS", false);
    names("/x/libcudnn_ops.so.9", "cuDNN", false);
    names("/x/libcusparseLt.so.0", "cuSPARSE", false);
    names("/x/libcusolver.so.12", "cuSOLVER", false);
    names("/x/libcufft.so.12", "cuFFT", false);
    names("/x/nvshmem_transport_ibrc.so.3", "NVSHMEM", false);
    names("/x/torch/lib/libc10_cuda.so", "torch", true);
    names("/x/torch/lib/libtorch_cuda.so", "torch", true);
    names("/usr/lib/libffi.so.8", "ctypes", false);
    names("/y/site-packages/cupy_backends/cuda/api/"
          "runtime.cpython-311-x86_64-linux-gnu.so",
          "cupy_backends", false);
    names("/y/lib/libother.so.1", "libother.so.1", false);
    names("/y/site-packages/some/lib/libother.so", "libother.so", false);
}

/* The frames of this program are the callback's own, as far as they come
 * first; the C library's above them asked. */
static void
test_cupti_owner_of_a_native_stack(void)
{
    MP_CHECK(mp_hook_init() == MP_OK && mp_native_init() == MP_OK);
    uint32_t id = mp_native_stack();
    MP_CHECK(id != MP_NO_INDEX);
    size_t count;
    const uintptr_t *pcs = mp_native_get(id, &count);
    MP_CHECK(pcs != NULL && count >= 2 && count <= MP_NATIVE_DEPTH);
    bool torch;
    uint32_t owner = mp_libraries_owner(pcs, count, mp_hook_intern(), &torch);
    const char *text;
    size_t length;
    MP_CHECK(mp_intern_text(mp_hook_intern(), owner, &text, &length));
    MP_CHECK(strncmp(text, "libc.so", 7) == 0); /* __libc_start_main */
    MP_CHECK(!torch);
    uintptr_t nowhere[] = {8, 16};
    MP_CHECK(mp_libraries_owner(nowhere, 2, mp_hook_intern(), &torch) ==
             MP_NO_INDEX);
    MP_CHECK(mp_native_get(MP_NO_INDEX, &count) == NULL);
}

static void
test_cupti_same_stack_has_one_number(void)
{
    MP_CHECK(mp_native_init() == MP_OK);
    uint32_t ids[3];
    for (volatile int i = 0; i < 3; i++) { /* one call, not three */
        ids[i] = mp_native_stack();
    }
    MP_CHECK(ids[0] == ids[1] && ids[1] == ids[2]);
    MP_CHECK(mp_native_stack() != ids[0]);
}

/* What pools reserve is asked for as long as they are there. */
static void
test_pools_are_known_while_they_live(void)
{
    if (cannot()) {
        return;
    }
    mp_gpu_driver_use(fake_driver_lookup);
    fake_driver.made_reserved = 1 << 20;
    mp_session_t *session = begin();
    struct {
        int type, handles, location, id;
        uint8_t rest[80];
    } props = {1, 0, 1, 0, {0}};
    uint64_t out = 0;
    struct {
        uint64_t *pool;
        const void *props;
    } made = {&out, &props};
    for (uint64_t pool = 4000; pool < 4006; pool += 2) {
        fakecupti_call("cuMemPoolCreate", &made, sizeof(made), 0, &out, pool,
                       CONTEXT);
    }
    fakecupti_call("cuMemPoolCreate", &made, sizeof(made), 1, &out, 4008,
                   CONTEXT); /* refused */
    MP_CHECK_EQ(mp_gpu_driver_made_pools(0), 3 << 20);
    uint64_t pool = 4002;
    fakecupti_call("cuMemPoolDestroy", &pool, sizeof(pool), 0, NULL, 0,
                   CONTEXT);
    MP_CHECK_EQ(mp_gpu_driver_made_pools(0), 2 << 20);
    mp_window_t window = end(session); /* ends are not heard any more */
    MP_CHECK_EQ(mp_gpu_driver_made_pools(0), 0);
    mp_window_clear(&window);
}

MP_TEST_SUITE(cupti_listener,
              MP_TEST(test_cupti_allocs_at_exit_and_frees_at_enter),
              MP_TEST(test_cupti_failed_calls),
              MP_TEST(test_cupti_address_is_given_out_again_before_the_exit),
              MP_TEST(test_cupti_handles_and_host_memory),
              MP_TEST(test_cupti_pitch_managed_ipc_arrays),
              MP_TEST(test_cupti_arguments_of_the_other_calls),
              MP_TEST(test_cupti_captured_streams),
              MP_TEST(test_cupti_marks_images_and_contexts),
              MP_TEST(test_cupti_context_nobody_knows_stays_unknown),
              MP_TEST(test_cupti_stops_in_order_and_leaves_nothing_on),
              MP_TEST(test_cupti_late_callbacks_write_nothing),
              MP_TEST(test_cupti_thousand_starts_and_stops),
              MP_TEST(test_cupti_slot_taken),
              MP_TEST(test_cupti_kineto_after_us_works_and_keeps_the_slot),
              MP_TEST(test_cupti_refusals),
              MP_TEST(test_cupti_before_11_8_is_refused),
              MP_TEST(test_cupti_11_8), MP_TEST(test_cupti_12_4),
              MP_TEST(test_cupti_13_2_with_a_call_we_have_not_met),
              MP_TEST(test_cupti_ends_by_itself), MP_TEST(test_cupti_gaps),
              MP_TEST(test_cupti_fork),
              MP_TEST(test_cupti_fork_before_it_began_starts_afresh),
              MP_TEST(test_cupti_threads_race_with_starts_and_stops),
              MP_TEST(test_cupti_threads_balance),
              MP_TEST(test_cupti_names_of_libraries),
              MP_TEST(test_cupti_owner_of_a_native_stack),
              MP_TEST(test_cupti_same_stack_has_one_number),
              MP_TEST(test_pools_are_known_while_they_live))
