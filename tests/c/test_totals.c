/* test_totals.c - samples as events, and replayed from them. */
#include "mem.h"
#include "mp_test.h"
#include "totals.h"
#include "tracker.h"

#include <stdlib.h>

static mp_total_t
sample(int16_t device, uint32_t number, int64_t bytes)
{
    return (mp_total_t){
        .time_ns = 1000 * (int64_t)number,
        .event = -1,
        .process_bytes = bytes,
        .device_used_bytes = 5000,
        .device_total_bytes = 9000,
        .device_reserved_bytes = 70,
        .pool_reserved_bytes = 64,
        .pool_used_bytes = 0,
        .cost_ns = 123456,
        .step = 0,
        .sample = number,
        .device = device,
        .method = MP_TOTAL_METHOD_NVML_PROCESS,
        .device_method = MP_TOTAL_METHOD_NVML_ALL,
        .cause = MP_TOTAL_CAUSE_STEP,
        .memory = MP_TOTAL_MEMORY_NODE,
    };
}

static mp_event_t events[256];
static size_t event_count;

static void
put(const mp_total_t *row)
{
    event_count += mp_total_write(row, events + event_count);
}

static void
put_other(uint8_t kind, int16_t device)
{
    events[event_count++] = (mp_event_t){.kind = kind, .device = device};
}

static mp_total_t *
build(size_t expected)
{
    mp_total_t *rows;
    size_t count;
    MP_CHECK(mp_totals_build(events, event_count, &rows, &count) == MP_OK);
    MP_CHECK_EQ(count, expected);
    return rows;
}

static void
test_totals_come_back_as_they_were(void)
{
    mp_total_t first = sample(0, 1, 600), second = sample(1, 1, -1);
    second.method = MP_TOTAL_METHOD_CUDA_ALL;
    second.why = MP_TOTAL_WHY_NOT_LISTED;
    second.device_method = MP_TOTAL_METHOD_CUDA_ALL;
    second.device_reserved_bytes = -1;
    second.pool_reserved_bytes = second.pool_used_bytes = -1;
    mp_total_t third = sample(-1, 1, -1);
    third.method = third.device_method = MP_TOTAL_METHOD_NONE;
    third.why = third.device_why = MP_TOTAL_WHY_NO_PROC;
    third.device_used_bytes = third.device_total_bytes = -1;
    put_other(MP_EVENT_STEP, MP_DEVICE_CPU);
    put(&first);
    put(&second);
    put_other(MP_EVENT_ALLOC, 0);
    put(&third);
    MP_CHECK_EQ(event_count, 2 + 3 + 2 + 3);
    mp_total_t *rows = build(3);
    first.event = 1;
    second.event = 4;
    third.event = 7;
    MP_CHECK(memcmp(&rows[0], &first, sizeof(first)) == 0);
    MP_CHECK(memcmp(&rows[1], &second, sizeof(second)) == 0);
    MP_CHECK(memcmp(&rows[2], &third, sizeof(third)) == 0);
    mp_free(rows);
}

static void
test_totals_whose_parts_are_apart(void)
{
    mp_total_t of_0 = sample(0, 1, 600), of_1 = sample(1, 1, 700);
    mp_event_t a[MP_TOTAL_EVENTS], b[MP_TOTAL_EVENTS];
    MP_CHECK_EQ(mp_total_write(&of_0, a), MP_TOTAL_EVENTS);
    MP_CHECK_EQ(mp_total_write(&of_1, b), MP_TOTAL_EVENTS);
    b[1].addr = 9001;
    for (size_t i = 0; i < MP_TOTAL_EVENTS; i++) {
        events[event_count++] = a[i];
        put_other(MP_EVENT_ALLOC, 0);
        events[event_count++] = b[i];
    }
    mp_total_t *rows = build(2);
    MP_CHECK_EQ(rows[0].device_total_bytes, 9000);
    MP_CHECK_EQ(rows[1].device_total_bytes, 9001);
    MP_CHECK_EQ(rows[1].pool_reserved_bytes, 64);
    mp_free(rows);
}

static void
test_totals_of_a_file_that_is_damaged(void)
{
    mp_total_t row = sample(0, 1, 600);
    mp_event_t written[MP_TOTAL_EVENTS];
    (void)mp_total_write(&row, written);
    events[event_count++] = written[1]; /* its beginning was lost */
    events[event_count++] = written[2];
    mp_free(build(0));
    for (size_t i = 0; i < MP_TOTAL_EVENTS; i++) {
        written[i].pool = 0xFFFF;
        written[i].flags = 0xFFFF;
        written[i].size = UINT64_C(1) << 63;
        events[event_count++] = written[i];
    }
    written[1].op_instance = 99; /* of another sample */
    written[1].addr = 1;
    events[event_count++] = written[1];
    mp_total_t *rows = build(1);
    MP_CHECK_EQ(rows[0].process_bytes, -1);
    MP_CHECK_EQ(rows[0].device_total_bytes, 9000);
    MP_CHECK_EQ(rows[0].method, 0);
    MP_CHECK_EQ(rows[0].why, 0);
    MP_CHECK_EQ(rows[0].cause, 0);
    MP_CHECK_EQ(rows[0].device_method, 0);
    MP_CHECK_EQ(rows[0].memory, 0);
    mp_free(rows);
}

static void
test_totals_need_memory(void)
{
    mp_total_t *rows;
    size_t count;
    mp_mem_fail_after(1);
    MP_CHECK(mp_totals_build(NULL, 0, &rows, &count) == MP_ERR_NOMEM);
    mp_free(build(0));
}

static bool
keep(void *context, const mp_event_t *event)
{
    (void)context;
    events[event_count++] = *event;
    return true;
}

static mp_tracker_t *
tracker_of(size_t count)
{
    mp_tracker_options_t options = {.session_id = 1};
    mp_tracker_t *tracker;
    MP_CHECK(mp_tracker_new(&options, &tracker) == MP_OK);
    for (size_t i = 0; i < count; i++) {
        MP_CHECK(mp_tracker_apply(tracker, &events[i]) == MP_OK);
    }
    return tracker;
}

static void
test_totals_are_part_of_the_state(void)
{
    for (uint32_t i = 1; i <= 4; i++) {
        for (int16_t device = 2; device >= -1; device--) {
            mp_total_t row = sample(device, i, 600 + i);
            if (i == 4 && device == 0) {
                row.pool_reserved_bytes = -1; /* the older one is not kept */
            }
            put(&row);
        }
    }
    size_t given = event_count;
    mp_tracker_t *tracker = tracker_of(given);
    int16_t devices[4];
    /* What is measured makes no device of the recording. */
    MP_CHECK_EQ(mp_tracker_devices(tracker, devices, 4), 0);
    MP_CHECK(mp_tracker_bytes(tracker) >= 4 * 3 * sizeof(mp_event_t));
    event_count = 0;
    MP_CHECK(mp_tracker_write_state(tracker, keep, NULL) == MP_OK);
    mp_tracker_free(tracker);
    MP_CHECK_EQ(events[0].kind, MP_EVENT_STEP);
    mp_total_t *rows = build(4);
    for (size_t i = 0; i < 4; i++) {
        MP_CHECK_EQ(rows[i].device, 2 - (int)i);
        MP_CHECK_EQ(rows[i].process_bytes, 604);
        MP_CHECK_EQ(rows[i].time_ns, 4000); /* as it was measured */
        MP_CHECK_EQ(rows[i].pool_reserved_bytes, i == 2 ? -1 : 64);
    }
    mp_free(rows);
    /* Written again by who was given it: the same. */
    size_t first = event_count;
    tracker = tracker_of(first);
    MP_CHECK(mp_tracker_write_state(tracker, keep, NULL) == MP_OK);
    mp_tracker_free(tracker);
    MP_CHECK_EQ(event_count, 2 * first);
    MP_CHECK(memcmp(events + 1, events + first + 1,
                    (first - 1) * sizeof(mp_event_t)) == 0);
}

static void
test_totals_that_do_not_fit_are_a_defect(void)
{
    mp_total_t row = sample(0, 1, 600);
    put(&row);
    mp_tracker_t *tracker = tracker_of(0);
    mp_mem_fail_after(1);
    MP_CHECK(mp_tracker_apply(tracker, &events[0]) == MP_ERR_NOMEM);
    MP_CHECK(mp_tracker_apply(tracker, &events[0]) == MP_OK);
    mp_defects_t defects;
    mp_tracker_defects(tracker, &defects);
    MP_CHECK_EQ(defects.unapplied_events, 1);
    mp_tracker_free(tracker);
}

static void
test_totals_are_no_facts_of_blocks(void)
{
    static const uint8_t memory[] = {1, 2, 3,  4,  5,  6, 7,
                                     8, 9, 10, 48, 49, 50};
    size_t found = 0;
    for (unsigned kind = 0; kind < 256; kind++) {
        bool is = memchr(memory, (int)kind, sizeof(memory)) != NULL;
        MP_CHECK_EQ(mp_event_is_memory((uint8_t)kind), is);
        found += mp_total_is((uint8_t)kind);
    }
    MP_CHECK_EQ(found, 3);
}

static void
test_totals_are_requested_once(void)
{
    MP_CHECK(!mp_totals_requested());
    mp_totals_request();
    mp_totals_request();
    MP_CHECK(mp_totals_requested());
    MP_CHECK(!mp_totals_requested());
}

MP_TEST_SUITE(totals, MP_TEST(test_totals_come_back_as_they_were),
              MP_TEST(test_totals_whose_parts_are_apart),
              MP_TEST(test_totals_of_a_file_that_is_damaged),
              MP_TEST(test_totals_need_memory),
              MP_TEST(test_totals_are_part_of_the_state),
              MP_TEST(test_totals_that_do_not_fit_are_a_defect),
              MP_TEST(test_totals_are_no_facts_of_blocks),
              MP_TEST(test_totals_are_requested_once))
