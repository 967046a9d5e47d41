/* test_export_snapshot.c - snapshots written, read and cut, without Python.
 *
 * What is in the files is looked at in tests/validators; here: that the three
 * agree, that lack of memory anywhere leaves nothing behind, and odd input. */
#include "category.h"
#include "cut_recording.h"
#include "export_snapshot.h"
#include "import_snapshot.h"
#include "mem.h"
#include "mp_test.h"
#include "tracker.h"

#include <stdlib.h>
#include <unistd.h>

#define MAX_EVENTS 4096

typedef struct {
    mp_event_t events[MAX_EVENTS];
    size_t count;
    mp_intern_t *intern;
    mp_tracker_t *tracker;
    mp_export_t source;
} run_t;

static mp_event_t *
add(run_t *run, mp_event_kind_t kind, uint64_t addr, uint64_t size)
{
    MP_CHECK(run->count < MAX_EVENTS);
    mp_event_t *event = &run->events[run->count++];
    *event = (mp_event_t){.kind = (uint8_t)kind,
                          .addr = addr,
                          .size = size,
                          .time_ns = (int64_t)run->count * 1500,
                          .op = MP_NO_INDEX,
                          .module = MP_NO_INDEX,
                          .stack = MP_NO_INDEX};
    return event;
}

static void
replay(run_t *run)
{
    mp_tracker_options_t options = {.keep_dead = true,
                                    .session_id = 7,
                                    .allocation_budget_bytes =
                                        MAX_EVENTS * sizeof(mp_allocation_t)};
    MP_CHECK(mp_tracker_new(&options, &run->tracker) == MP_OK);
    for (size_t i = 0; i < run->count; i++) {
        MP_CHECK(mp_tracker_apply(run->tracker, &run->events[i]) == MP_OK);
    }
    mp_export_t *source = &run->source;
    size_t lives;
    mp_allocation_t *rows =
        mp_tracker_allocations_mutable(run->tracker, &lives);
    mp_category_assign(rows, lives, run->intern);
    *source = (mp_export_t){.events = run->events,
                            .event_count = run->count,
                            .intern = run->intern,
                            .start_ns = 1000,
                            .start_wall_ns = INT64_C(1700000000000000000)};
    source->lives = mp_tracker_allocations(run->tracker, &source->life_count);
}

static void
clear(run_t *run)
{
    mp_tracker_free(run->tracker);
    mp_intern_free(run->intern);
    free(run);
}

/* Two GPUs and the CPU, seeds, steps, stacks, forwards, expandable pages. */
static run_t *
make_run(void)
{
    run_t *run = calloc(1, sizeof(*run));
    MP_CHECK(run != NULL && mp_intern_new(&run->intern) == MP_OK);
    uint32_t file = mp_intern_string(run->intern, "/u/train.py", 11);
    uint32_t name = mp_intern_string(run->intern, "train", 5);
    uint32_t op = mp_intern_string(run->intern, "aten::mm", 8);
    uint32_t stack =
        mp_intern_stack(run->intern, MP_NO_INDEX,
                        mp_intern_frame(run->intern, name, file, 12));
    add(run, MP_EVENT_SEED_SEGMENT, 0x200000, 0x200000);
    mp_event_t *event = add(run, MP_EVENT_SEED_BLOCK, 0x200000, 1000);
    event->stack = stack;
    event = add(run, MP_EVENT_SEED_ORIGIN, 0x200000, 0);
    event->stack = stack;
    event->op_instance = MP_NO_INDEX;
    event = add(run, MP_EVENT_SEED_BLOCK, 0x200400, 24);
    event->flags = MP_FLAG_PENDING;
    add(run, MP_EVENT_STEP, 7, 1)->device = 0;
    add(run, MP_EVENT_WINDOW_BEGIN, 7, 0);
    add(run, MP_EVENT_SEGMENT_MAP, 0x800000, 0x200000)->device = 1;
    add(run, MP_EVENT_SEGMENT_MAP, 0xA00000, 0x200000)->device = 1;
    for (unsigned i = 0; i < 500; i++) {
        event = add(run, MP_EVENT_ALLOC, 0x210000 + 0x200 * (i % 50), 100 + i);
        event->op = op;
        event->stack = i % 3 == 0 ? MP_NO_INDEX : stack;
        event->phase = (uint8_t)(i % 4);
        add(run, MP_EVENT_ALLOC, 0x10000 + 16 * i, i)->device = MP_DEVICE_CPU;
        if (i % 2 == 0) {
            uint64_t addr = 0x9FFF00; /* over the border of two maps */
            add(run, MP_EVENT_ALLOC, addr, 0x400)->device = 1;
            add(run, MP_EVENT_FREE_REQUESTED, addr, 0x400)->device = 1;
            add(run, MP_EVENT_FREE_COMPLETED, addr, 0x400)->device = 1;
        }
        if (i % 50 != 49) {
            add(run, MP_EVENT_FREE_REQUESTED, event->addr, 0);
            add(run, MP_EVENT_FREE_COMPLETED, event->addr, 0);
        }
        if (i % 100 == 99) {
            add(run, MP_EVENT_STEP, 7, 2 + i / 100);
            add(run, MP_EVENT_OOM, 4096, 1 << 20);
        }
    }
    add(run, MP_EVENT_FREE_COMPLETED, 0x200400, 24);
    add(run, MP_EVENT_FREE_REQUESTED, 0x200000, 1000);
    add(run, MP_EVENT_SEGMENT_UNMAP, 0xA00000, 0x100000)->device = 1;
    replay(run);
    return run;
}

static mp_status_t
write_file(const run_t *run, const char *path, uint64_t most, uint64_t *bytes)
{
    mp_snapshot_options_t options = {.version = "1",
                                     .info = "{\"a\": 1}",
                                     .info_length = 8,
                                     .most_bytes = most};
    int saved_errno;
    return mp_export_snapshot(&run->source, &options, path, bytes,
                              &saved_errno);
}

static uint8_t *
slurp(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    MP_CHECK(file != NULL);
    MP_CHECK(fseek(file, 0, SEEK_END) == 0);
    *length = (size_t)ftell(file);
    rewind(file);
    uint8_t *bytes = malloc(*length + 1);
    MP_CHECK(bytes != NULL && fread(bytes, 1, *length, file) == *length);
    MP_CHECK(fclose(file) == 0);
    return bytes;
}

static char error[300];

static mp_status_t
read_back(const uint8_t *bytes, size_t length, mp_recording_data_t *data,
          mp_import_facts_t *facts)
{
    return mp_import_snapshot(bytes, length, data, facts, error,
                              sizeof(error));
}

static void
check_stats(const run_t *run, const mp_recording_data_t *data)
{
    run_t *other = calloc(1, sizeof(*other));
    MP_CHECK(other != NULL && data->count < MAX_EVENTS);
    memcpy(other->events, data->events, data->count * sizeof(mp_event_t));
    other->count = data->count;
    MP_CHECK(mp_intern_new(&other->intern) == MP_OK);
    mp_intern_t *empty = other->intern;
    other->intern = data->intern;
    replay(other);
    for (int16_t device = -1; device < 2; device++) {
        mp_device_stats_t mine, theirs;
        MP_CHECK(mp_tracker_stats(run->tracker, device, &mine));
        MP_CHECK(mp_tracker_stats(other->tracker, device, &theirs));
        MP_CHECK_EQ(theirs.requested_bytes.current,
                    mine.requested_bytes.current);
        MP_CHECK_EQ(theirs.requested_bytes.peak, mine.requested_bytes.peak);
        MP_CHECK_EQ(theirs.active_bytes.peak, mine.active_bytes.peak);
        MP_CHECK_EQ(theirs.reserved_bytes.peak, mine.reserved_bytes.peak);
        MP_CHECK_EQ(theirs.reserved_bytes.current,
                    mine.reserved_bytes.current);
        MP_CHECK_EQ(theirs.active_blocks.current, mine.active_blocks.current);
    }
    MP_CHECK_EQ(other->source.life_count, run->source.life_count);
    other->intern = empty;
    clear(other);
}

static void
test_snapshot_comes_back(void)
{
    run_t *run = make_run();
    const char *path = mp_test_path("a.pickle");
    uint64_t bytes = 0;
    size_t length;
    MP_CHECK_EQ(write_file(run, path, 0, &bytes), MP_OK);
    uint8_t *file = slurp(path, &length);
    MP_CHECK_EQ(length, bytes);
    mp_recording_data_t data;
    mp_import_facts_t facts;
    MP_CHECK_EQ(read_back(file, length, &data, &facts), MP_OK);
    MP_CHECK_STR(error, "");
    MP_CHECK(facts.whole && facts.ours && facts.has_traces);
    MP_CHECK_EQ(facts.older, 2);
    MP_CHECK_STR(data.info, "{\"a\": 1}");
    MP_CHECK_EQ(data.start_ns, 1000);
    check_stats(run, &data);
    mp_recording_data_clear(&data);
    free(file);
    clear(run);
}

static void
test_snapshot_too_long_is_no_file(void)
{
    run_t *run = make_run();
    const char *path = mp_test_path("a.pickle");
    uint64_t bytes = 0;
    MP_CHECK_EQ(write_file(run, path, 5000, &bytes), MP_ERR_FULL);
    MP_CHECK(access(path, F_OK) != 0);
    MP_CHECK_EQ(write_file(run, path, 0, &bytes), MP_OK);
    uint64_t again = 0;
    MP_CHECK_EQ(write_file(run, path, bytes, &again), MP_OK);
    MP_CHECK_EQ(again, bytes);
    MP_CHECK_EQ(write_file(run, path, bytes - 1, &again), MP_ERR_FULL);
    MP_CHECK(access(path, F_OK) == 0); /* the old one */
    run->events[20].addr = MP_SNAPSHOT_NUMBERS;
    MP_CHECK_EQ(write_file(run, path, 0, &bytes), MP_ERR_ARG);
    clear(run);
}

static void
test_snapshot_writer_survives_lack_of_memory(void)
{
    run_t *run = make_run();
    const char *path = mp_test_path("a.pickle");
    bool worked = false;
    long n = 1;
    for (; !worked && n < 300; n++) {
        size_t before = mp_mem_bytes();
        uint64_t bytes;
        mp_mem_fail_after(n);
        mp_status_t status = write_file(run, path, 0, &bytes);
        mp_mem_fail_after(0);
        worked = status == MP_OK;
        MP_CHECK(worked || status == MP_ERR_NOMEM);
        MP_CHECK_EQ(access(path, F_OK) == 0, worked);
        MP_CHECK_EQ(mp_mem_bytes(), before);
    }
    MP_CHECK(worked && n > 20);
    clear(run);
}

static void
test_snapshot_reader_survives_lack_of_memory(void)
{
    run_t *run = make_run();
    const char *path = mp_test_path("a.pickle");
    uint64_t bytes;
    size_t length;
    MP_CHECK_EQ(write_file(run, path, 0, &bytes), MP_OK);
    uint8_t *file = slurp(path, &length);
    bool worked = false;
    long n = 1;
    for (; !worked && n < 500; n++) {
        size_t before = mp_mem_bytes();
        mp_recording_data_t data;
        mp_import_facts_t facts;
        mp_mem_fail_after(n);
        mp_status_t status = read_back(file, length, &data, &facts);
        mp_mem_fail_after(0);
        worked = status == MP_OK;
        if (worked) {
            mp_recording_data_clear(&data);
        }
        else {
            MP_CHECK_EQ(status, MP_ERR_NOMEM);
        }
        MP_CHECK_EQ(mp_mem_bytes(), before);
    }
    MP_CHECK(worked && n > 40);
    free(file);
    clear(run);
}

static void
test_snapshot_cut_anywhere_is_no_crash(void)
{
    run_t *run = make_run();
    const char *path = mp_test_path("a.pickle");
    uint64_t bytes;
    size_t length;
    MP_CHECK_EQ(write_file(run, path, 0, &bytes), MP_OK);
    uint8_t *file = slurp(path, &length);
    size_t read = 0;
    for (size_t cut = 0; cut < length; cut += 257) {
        uint8_t *part = malloc(cut + 1); /* ASan sees what lies behind */
        MP_CHECK(part != NULL);
        memcpy(part, file, cut);
        mp_recording_data_t data;
        mp_import_facts_t facts;
        mp_status_t status = read_back(part, cut, &data, &facts);
        MP_CHECK(error[0] != '\0');
        if (status == MP_OK) {
            MP_CHECK(!facts.whole && !data.finished);
            mp_recording_data_clear(&data);
            read++;
        }
        free(part);
    }
    MP_CHECK(read > length / 257 * 8 / 10);
    free(file);
    clear(run);
}

static void
test_snapshot_part_begins_with_its_state(void)
{
    run_t *run = make_run();
    for (size_t begin = 0; begin <= run->count; begin += 97) {
        int64_t *places = calloc(run->count + 1, sizeof(*places));
        mp_cut_t cut = {.begin = begin, .end = run->count, .places = places};
        mp_recording_data_t data;
        MP_CHECK_EQ(mp_cut_recording(&run->source, &cut, &data), MP_OK);
        run_t *part = calloc(1, sizeof(*part));
        MP_CHECK(part != NULL && places != NULL && data.count < MAX_EVENTS);
        memcpy(part->events, data.events, data.count * sizeof(mp_event_t));
        part->count = data.count;
        part->intern = data.intern;
        replay(part);
        for (int16_t device = -1; device < 2; device++) {
            mp_device_stats_t mine = {0}, theirs = {0};
            MP_CHECK(mp_tracker_stats(run->tracker, device, &mine));
            MP_CHECK(mp_tracker_stats(part->tracker, device, &theirs));
            MP_CHECK_EQ(theirs.requested_bytes.current,
                        mine.requested_bytes.current);
            MP_CHECK_EQ(theirs.active_blocks.current,
                        mine.active_blocks.current);
            MP_CHECK_EQ(theirs.reserved_bytes.current,
                        mine.reserved_bytes.current);
        }
        for (size_t i = begin; i < run->count; i++) {
            const mp_event_t *event = &part->events[places[i - begin]];
            MP_CHECK_EQ(event->addr, run->events[i].addr);
            MP_CHECK_EQ(event->kind, run->events[i].kind);
        }
        mp_tracker_free(part->tracker);
        free(part);
        free(places);
        mp_recording_data_clear(&data);
    }
    clear(run);
}

static void
test_snapshot_cutting_survives_lack_of_memory(void)
{
    run_t *run = make_run();
    bool worked = false;
    long n = 1;
    for (; !worked && n < 500; n++) {
        size_t before = mp_mem_bytes();
        mp_cut_t cut = {.begin = 700, .end = 1500};
        mp_recording_data_t data;
        mp_mem_fail_after(n);
        mp_status_t status = mp_cut_recording(&run->source, &cut, &data);
        mp_mem_fail_after(0);
        worked = status == MP_OK;
        if (worked) {
            mp_recording_data_clear(&data);
        }
        else {
            MP_CHECK_EQ(status, MP_ERR_NOMEM);
        }
        MP_CHECK_EQ(mp_mem_bytes(), before);
    }
    MP_CHECK(worked && n > 10);
    mp_recording_data_t data;
    mp_cut_t cut = {.begin = 5, .end = run->count + 1};
    MP_CHECK_EQ(mp_cut_recording(&run->source, &cut, &data), MP_ERR_ARG);
    clear(run);
}

MP_TEST_SUITE(export_snapshot, MP_TEST(test_snapshot_comes_back),
              MP_TEST(test_snapshot_too_long_is_no_file),
              MP_TEST(test_snapshot_writer_survives_lack_of_memory),
              MP_TEST(test_snapshot_reader_survives_lack_of_memory),
              MP_TEST(test_snapshot_cut_anywhere_is_no_crash),
              MP_TEST(test_snapshot_part_begins_with_its_state),
              MP_TEST(test_snapshot_cutting_survives_lack_of_memory))
