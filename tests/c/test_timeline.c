/* test_timeline.c - every sample is what a naive replay adds up to. */
#include "mem.h"
#include "mp_test.h"
#include "timeline.h"

#include <stdlib.h>

enum {
    MAX_EVENTS = 600,
    CPU = MP_DEVICE_CPU
};

static mp_event_t events[MAX_EVENTS];
static size_t event_count;
static mp_tracker_t *tracker;

static void
begin(void)
{
    mp_tracker_options_t options = {.session_id = 1, .keep_dead = true};
    event_count = 0;
    MP_CHECK(mp_tracker_new(&options, &tracker) == MP_OK);
}

static void
add(uint8_t kind, int16_t device, uint64_t addr, uint64_t size)
{
    MP_CHECK(event_count < MAX_EVENTS);
    mp_event_t *event = &events[event_count++];
    *event = (mp_event_t){.kind = kind,
                          .device = device,
                          .addr = addr,
                          .size = size,
                          .time_ns = (int64_t)event_count * 10,
                          .op = MP_NO_INDEX,
                          .module = MP_NO_INDEX,
                          .stack = MP_NO_INDEX};
    MP_CHECK(mp_tracker_apply(tracker, event) == MP_OK);
}

static mp_timeline_t
build(int16_t device, mp_timeline_kind_t kind)
{
    size_t count;
    mp_allocation_t *rows = mp_tracker_allocations_mutable(tracker, &count);
    mp_timeline_t timeline;
    for (size_t i = 0; i < count; i++) {
        rows[i].category = (uint8_t)(rows[i].address / 16 % 9);
    }
    MP_CHECK(mp_timeline_build(events, event_count, rows, count, device, kind,
                               &timeline) == MP_OK);
    return timeline;
}

static void
check_sample(const mp_timeline_t *timeline, size_t index, int64_t event,
             int64_t requested, int64_t active, int64_t reserved)
{
    MP_CHECK(index < timeline->count);
    MP_CHECK_EQ(timeline->event[index], event);
    MP_CHECK_EQ(timeline->time_ns[index], event < 0 ? 10 : event * 10 + 10);
    MP_CHECK_EQ(timeline->bytes[index * 3], requested);
    MP_CHECK_EQ(timeline->bytes[index * 3 + 1], active);
    MP_CHECK_EQ(timeline->bytes[index * 3 + 2], reserved);
}

static void
test_timeline_has_a_sample_after_every_change(void)
{
    begin();
    add(MP_EVENT_SEED_SEGMENT, 0, 0x10000, 1000);
    add(MP_EVENT_SEED_BLOCK, 0, 0x10000, 100);
    add(MP_EVENT_SEGMENT_ALLOC, 0, 0x20000, 500);
    add(MP_EVENT_ALLOC, 0, 0x20000, 30);
    add(MP_EVENT_ALLOC, CPU, 0x20000, 7);
    add(MP_EVENT_FREE_REQUESTED, 0, 0x10000, 0);
    add(MP_EVENT_OOM, 0, 0, 99);
    add(MP_EVENT_FREE_COMPLETED, 0, 0x10000, 0);
    add(MP_EVENT_SEGMENT_FREE, 0, 0x10000, 1000);
    mp_timeline_t timeline = build(0, MP_TIMELINE_TOTALS);
    MP_CHECK_EQ(timeline.columns, 3);
    MP_CHECK_EQ(timeline.count, 6);
    check_sample(&timeline, 0, -1, 100, 100, 1000);
    check_sample(&timeline, 1, 2, 100, 100, 1500);
    check_sample(&timeline, 2, 3, 130, 130, 1500);
    check_sample(&timeline, 3, 5, 30, 130, 1500);
    check_sample(&timeline, 4, 7, 30, 30, 1500);
    check_sample(&timeline, 5, 8, 30, 30, 500);
    mp_timeline_clear(&timeline);
    timeline = build(CPU, MP_TIMELINE_TOTALS); /* has no segments */
    MP_CHECK_EQ(timeline.count, 2);
    check_sample(&timeline, 0, -1, 0, 0, 0);
    check_sample(&timeline, 1, 4, 7, 7, 7);
    mp_timeline_clear(&timeline);
    mp_tracker_free(tracker);
}

static void
test_timeline_of_nothing_is_one_sample_of_zero(void)
{
    begin();
    mp_timeline_t timeline = build(0, MP_TIMELINE_CATEGORY);
    MP_CHECK_EQ(timeline.count, 1);
    MP_CHECK_EQ(timeline.columns, MP_CATEGORY_COUNT);
    MP_CHECK_EQ(timeline.event[0], -1);
    MP_CHECK_EQ(timeline.time_ns[0], 0);
    MP_CHECK_EQ(timeline.bytes[0], 0);
    mp_timeline_clear(&timeline);
    mp_tracker_free(tracker);
}

static void
random_stream(void)
{
    uint64_t segment = 1;
    bool there[8] = {false};
    begin();
    for (int i = 0; i < 30; i++) {
        add(rand() % 4 == 0 ? MP_EVENT_SEED_SEGMENT : MP_EVENT_SEED_BLOCK,
            (int16_t)(rand() % 3 - 1), segment++ << 32, (uint64_t)rand() % 99);
    }
    while (event_count < MAX_EVENTS) {
        int16_t device = (int16_t)(rand() % 3 - 1);
        uint64_t addr = (uint64_t)(rand() % 20) * 16;
        int place = rand() % 8; /* of a segment of device 0 */
        switch (rand() % 8) {
        default:
            add(MP_EVENT_ALLOC, device, addr, (uint64_t)rand() % 1000);
            break;
        case 0:
        case 1:
            add(MP_EVENT_FREE_REQUESTED, device, addr, 0);
            break;
        case 2:
        case 3:
            add(MP_EVENT_FREE_COMPLETED, device, addr, 0);
            break;
        case 4:
            add(there[place] ? MP_EVENT_SEGMENT_FREE : MP_EVENT_SEGMENT_ALLOC,
                0, (uint64_t)(place + 1) << 20, 4096);
            there[place] = !there[place];
            break;
        case 5:
            add(MP_EVENT_MODULE_BEGIN, device, addr, 0);
            break;
        }
    }
}

/* After event LAST: what is requested and active, by the rows' own words. */
static void
add_up(int16_t device, int64_t last, int64_t *requested, int64_t *active,
       int64_t *categories)
{
    size_t count;
    const mp_allocation_t *rows = mp_tracker_allocations(tracker, &count);
    *requested = *active = 0;
    memset(categories, 0, MP_CATEGORY_COUNT * sizeof(*categories));
    for (size_t i = 0; i < count; i++) {
        const mp_allocation_t *row = &rows[i];
        if (row->device != device || row->born_event > last) {
            continue;
        }
        if (row->completed_event < 0 || row->completed_event > last) {
            *active += (int64_t)row->size;
        }
        if (row->died_event < 0 || row->died_event > last) {
            *requested += (int64_t)row->size;
            categories[row->category] += (int64_t)row->size;
        }
    }
}

static int64_t
reserved_after(int16_t device, int64_t last)
{
    int64_t reserved = 0;
    for (size_t i = 0; i < event_count; i++) {
        const mp_event_t *event = &events[i];
        bool seed = event->kind == MP_EVENT_SEED_SEGMENT;
        if (event->device != device || (!seed && (int64_t)i > last)) {
            continue;
        }
        reserved += seed || event->kind == MP_EVENT_SEGMENT_ALLOC
                        ? (int64_t)event->size
                        : 0;
        reserved -=
            event->kind == MP_EVENT_SEGMENT_FREE ? (int64_t)event->size : 0;
    }
    return reserved;
}

static void
check_device(int16_t device)
{
    mp_timeline_t totals = build(device, MP_TIMELINE_TOTALS);
    mp_timeline_t parts = build(device, MP_TIMELINE_CATEGORY);
    size_t i = 0, k = 0;
    for (int64_t event = -1; event < (int64_t)event_count; event++) {
        int64_t requested, active, categories[MP_CATEGORY_COUNT];
        add_up(device, event, &requested, &active, categories);
        while (i + 1 < totals.count && totals.event[i + 1] <= event) {
            i++;
        }
        while (k + 1 < parts.count && parts.event[k + 1] <= event) {
            k++;
        }
        MP_CHECK_EQ(totals.bytes[i * 3], requested);
        MP_CHECK_EQ(totals.bytes[i * 3 + 1], active);
        MP_CHECK_EQ(totals.bytes[i * 3 + 2],
                    device == CPU ? active : reserved_after(device, event));
        int64_t sum = 0;
        for (size_t c = 0; c < MP_CATEGORY_COUNT; c++) {
            MP_CHECK_EQ(parts.bytes[k * MP_CATEGORY_COUNT + c], categories[c]);
            sum += categories[c];
        }
        MP_CHECK_EQ(sum, requested);
    }
    MP_CHECK_EQ(i + 1, totals.count);
    MP_CHECK_EQ(k + 1, parts.count);
    mp_device_stats_t stats;
    MP_CHECK(mp_tracker_stats(tracker, device, &stats));
    MP_CHECK_EQ(stats.requested_bytes.current, totals.bytes[i * 3]);
    MP_CHECK_EQ(stats.active_bytes.current, totals.bytes[i * 3 + 1]);
    mp_timeline_clear(&totals);
    mp_timeline_clear(&parts);
}

static void
test_timeline_agrees_with_a_naive_replay(void)
{
    for (unsigned seed = 0; seed < 40; seed++) {
        srand(seed);
        random_stream();
        for (int16_t device = CPU; device < 2; device++) {
            check_device(device);
        }
        mp_tracker_free(tracker);
    }
}

static void
test_timeline_peak_is_the_trackers(void)
{
    srand(1);
    begin();
    while (event_count < MAX_EVENTS) {
        uint64_t addr = (uint64_t)(rand() % 20) * 16;
        add(rand() % 2 ? MP_EVENT_ALLOC : MP_EVENT_FREE_COMPLETED, 0, addr,
            (uint64_t)rand() % 1000);
    }
    mp_timeline_t totals = build(0, MP_TIMELINE_TOTALS);
    int64_t peak = 0;
    for (size_t i = 0; i < totals.count; i++) {
        peak = totals.bytes[i * 3] > peak ? totals.bytes[i * 3] : peak;
    }
    mp_device_stats_t stats;
    MP_CHECK(mp_tracker_stats(tracker, 0, &stats));
    MP_CHECK_EQ(peak, stats.requested_bytes.peak);
    mp_timeline_clear(&totals);
    mp_tracker_free(tracker);
}

static void
test_timeline_without_memory_builds_nothing(void)
{
    srand(1);
    random_stream();
    size_t before = mp_mem_bytes(), count;
    const mp_allocation_t *rows = mp_tracker_allocations(tracker, &count);
    for (long n = 1; n < 10; n++) {
        mp_timeline_t timeline;
        mp_mem_fail_after(n);
        mp_status_t status =
            mp_timeline_build(events, event_count, rows, count, 0,
                              MP_TIMELINE_TOTALS, &timeline);
        mp_mem_fail_after(0);
        MP_CHECK_EQ(status, n <= 5 ? MP_ERR_NOMEM : MP_OK);
        if (status == MP_OK) {
            mp_timeline_clear(&timeline);
        }
        MP_CHECK_EQ(mp_mem_bytes(), before);
    }
    mp_tracker_free(tracker);
}

MP_TEST_SUITE(timeline, MP_TEST(test_timeline_has_a_sample_after_every_change),
              MP_TEST(test_timeline_of_nothing_is_one_sample_of_zero),
              MP_TEST(test_timeline_agrees_with_a_naive_replay),
              MP_TEST(test_timeline_peak_is_the_trackers),
              MP_TEST(test_timeline_without_memory_builds_nothing))
