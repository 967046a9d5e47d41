/* test_op_table.c - what each op allocated, freed and needed at most. */
#include "mem.h"
#include "mp_test.h"
#include "op_table.h"
#include "tracker.h"

enum {
    MAX_EVENTS = 200,
    CPU = MP_DEVICE_CPU,
    GPU = 0,
    A = 1, /* names */
    B,
    C,
    REGION,
    NODE
};

static mp_event_t events[MAX_EVENTS];
static size_t event_count;
static mp_tracker_t *tracker;
static uint32_t thread_now;
static uint32_t stack_now;

static void
begin(void)
{
    mp_tracker_options_t options = {.session_id = 1, .keep_dead = true};
    event_count = 0;
    thread_now = 1;
    stack_now = MP_NO_INDEX;
    MP_CHECK(mp_tracker_new(&options, &tracker) == MP_OK);
}

static mp_event_t *
add(uint8_t kind, uint32_t op, int16_t device, uint64_t addr, uint64_t size)
{
    MP_CHECK(event_count < MAX_EVENTS);
    mp_event_t *event = &events[event_count++];
    *event = (mp_event_t){.kind = kind,
                          .device = device,
                          .addr = addr,
                          .size = size,
                          .thread = thread_now,
                          .op = op,
                          .module = MP_NO_INDEX,
                          .stack = stack_now};
    return event;
}

static void
op_begin(uint32_t op)
{
    add(MP_EVENT_OP_BEGIN, op, CPU, UINT64_MAX, 0);
}

static void
op_end(uint32_t op)
{
    add(MP_EVENT_OP_END, op, CPU, 0, 0);
}

static void
alloc(int16_t device, uint64_t addr, uint64_t size)
{
    add(MP_EVENT_ALLOC, MP_NO_INDEX, device, addr, size);
}

static void
release(int16_t device, uint64_t addr)
{
    if (device != CPU) {
        add(MP_EVENT_FREE_REQUESTED, MP_NO_INDEX, device, addr, 0);
    }
    add(MP_EVENT_FREE_COMPLETED, MP_NO_INDEX, device, addr, 0);
}

static mp_op_table_t
build(uint32_t frames, const mp_intern_t *intern)
{
    static const int16_t devices[] = {CPU, GPU};
    for (size_t i = 0; i < event_count; i++) {
        MP_CHECK(mp_tracker_apply(tracker, &events[i]) == MP_OK);
    }
    size_t count;
    const mp_allocation_t *lives = mp_tracker_allocations(tracker, &count);
    mp_op_table_t table;
    MP_CHECK(mp_op_table_build(events, event_count, lives, count, devices,
                               MP_ARRAY_LENGTH(devices), frames, intern,
                               &table) == MP_OK);
    MP_CHECK_EQ(table.device_count, 2);
    mp_tracker_free(tracker);
    return table;
}

static void
check_row(const mp_op_table_t *table, size_t row, uint8_t kind, uint32_t name,
          int64_t calls, bool top)
{
    MP_CHECK(row < table->count);
    MP_CHECK_EQ(table->rows[row].kind, kind);
    MP_CHECK_EQ(table->rows[row].name, name);
    MP_CHECK_EQ(table->rows[row].calls, calls);
    MP_CHECK_EQ(table->rows[row].top, top);
}

/* EXPECTED: self_allocated, self_freed, self_peak, allocated, freed, peak,
 * calls. */
static void
check_bytes(const mp_op_table_t *table, size_t row, int16_t device,
            const int64_t *expected)
{
    const mp_op_bytes_t *bytes = &table->bytes[row * 2 + (device != CPU)];
    MP_CHECK_EQ(bytes->self_allocated, expected[0]);
    MP_CHECK_EQ(bytes->self_freed, expected[1]);
    MP_CHECK_EQ(bytes->self_peak, expected[2]);
    MP_CHECK_EQ(bytes->allocated, expected[3]);
    MP_CHECK_EQ(bytes->freed, expected[4]);
    MP_CHECK_EQ(bytes->peak, expected[5]);
    MP_CHECK_EQ(bytes->calls, expected[6]);
}

#define CHECK_BYTES(table, row, device, ...)                                  \
    check_bytes(table, row, device, (const int64_t[]){__VA_ARGS__})

static void
test_op_table_sums_self_and_whole_of_each_device(void)
{
    begin();
    alloc(GPU, 0x10, 1000); /* in no op */
    op_begin(A);
    alloc(GPU, 0x20, 100);
    op_begin(B);
    alloc(GPU, 0x30, 40);
    alloc(CPU, 0x30, 7);
    release(GPU, 0x10); /* born outside: freed here all the same */
    alloc(GPU, 0x40, 5);
    op_end(B);
    release(GPU, 0x30);
    op_end(A);
    release(CPU, 0x30);
    mp_op_table_t table = build(0, NULL);
    MP_CHECK_EQ(table.count, 3);
    check_row(&table, 0, MP_OP_KIND_OUTSIDE, MP_NO_INDEX, 0, true);
    CHECK_BYTES(&table, 0, GPU, 1000, 0, 1000, 1000, 0, 1000, 0);
    CHECK_BYTES(&table, 0, CPU, 0, 7, 0, 0, 7, 0, 0);
    check_row(&table, 1, MP_OP_KIND_OP, A, 1, true);
    CHECK_BYTES(&table, 1, GPU, 100, 40, 100, 145, 1040, 140, 1);
    CHECK_BYTES(&table, 1, CPU, 0, 0, 0, 7, 0, 7, 1);
    check_row(&table, 2, MP_OP_KIND_OP, B, 1, false);
    CHECK_BYTES(&table, 2, GPU, 45, 1000, 40, 45, 1000, 40, 1);
    CHECK_BYTES(&table, 2, CPU, 7, 0, 7, 7, 0, 7, 1);
    mp_op_table_clear(&table);
}

static void
test_op_table_peak_is_above_each_calls_beginning(void)
{
    begin();
    op_begin(A);
    alloc(GPU, 0x10, 50);
    op_begin(B); /* the first call rises by 30 */
    alloc(GPU, 0x20, 30);
    release(GPU, 0x20);
    op_end(B);
    release(GPU, 0x10);
    op_begin(B); /* the second by 60 */
    alloc(GPU, 0x30, 20);
    alloc(GPU, 0x40, 40);
    release(GPU, 0x40);
    release(GPU, 0x30);
    op_end(B);
    op_end(A);
    mp_op_table_t table = build(0, NULL);
    MP_CHECK_EQ(table.count, 2);
    CHECK_BYTES(&table, 0, GPU, 50, 50, 50, 140, 140, 80, 1);
    CHECK_BYTES(&table, 1, GPU, 90, 90, 60, 90, 90, 60, 2);
    mp_op_table_clear(&table);
}

static void
test_op_table_counts_an_op_inside_itself_once(void)
{
    begin();
    op_begin(A);
    op_begin(A); /* an overload: the same call */
    alloc(GPU, 0x10, 10);
    op_begin(B);
    op_begin(A); /* another call, inside the first */
    alloc(GPU, 0x20, 5);
    op_end(A);
    op_end(B);
    op_end(A);
    op_end(A);
    mp_op_table_t table = build(0, NULL);
    MP_CHECK_EQ(table.count, 2);
    check_row(&table, 0, MP_OP_KIND_OP, A, 2, true);
    CHECK_BYTES(&table, 0, GPU, 15, 0, 10, 15, 0, 15, 2);
    CHECK_BYTES(&table, 1, GPU, 0, 0, 0, 5, 0, 5, 1);
    mp_op_table_clear(&table);
}

static void
test_op_table_knows_nodes_and_regions(void)
{
    begin();
    add(MP_EVENT_REGION_BEGIN, REGION, CPU, 0, 0);
    add(MP_EVENT_OP_BEGIN, NODE, CPU, UINT64_MAX, 0)->flags =
        MP_FLAG_BACKWARD_OP;
    op_begin(NODE); /* the node itself, in the engine's frame for it */
    alloc(GPU, 0x10, 10);
    op_end(NODE);
    release(GPU, 0x10);
    op_end(NODE);
    alloc(GPU, 0x20, 3);
    add(MP_EVENT_REGION_END, REGION, CPU, 0, 0);
    op_begin(NODE); /* the same name, no node */
    alloc(GPU, 0x30, 1);
    op_end(NODE);
    add(MP_EVENT_REGION_BEGIN, C, CPU, 0, 0); /* touches nothing */
    add(MP_EVENT_REGION_END, C, CPU, 0, 0);
    mp_op_table_t table = build(0, NULL);
    MP_CHECK_EQ(table.count, 3);
    check_row(&table, 0, MP_OP_KIND_REGION, REGION, 1, true);
    CHECK_BYTES(&table, 0, GPU, 3, 0, 3, 13, 10, 10, 1);
    check_row(&table, 1, MP_OP_KIND_BACKWARD, NODE, 1, false);
    CHECK_BYTES(&table, 1, GPU, 10, 10, 10, 10, 10, 10, 1);
    check_row(&table, 2, MP_OP_KIND_OP, NODE, 1, true);
    mp_op_table_clear(&table);
}

static void
test_op_table_a_region_may_end_before_what_began_inside_it(void)
{
    begin();
    op_begin(A);
    alloc(GPU, 0x10, 2);
    add(MP_EVENT_REGION_BEGIN, REGION, CPU, 0, 0);
    alloc(GPU, 0x20, 100);
    op_begin(B);
    alloc(GPU, 0x30, 10);
    release(GPU, 0x20);
    add(MP_EVENT_REGION_END, REGION, CPU, 0, 0);
    alloc(GPU, 0x40, 1);
    op_end(B);
    op_end(A);
    op_end(C); /* its begin was never seen */
    mp_op_table_t table = build(0, NULL);
    MP_CHECK_EQ(table.count, 3);
    CHECK_BYTES(&table, 0, GPU, 2, 0, 2, 113, 100, 112, 1);
    check_row(&table, 1, MP_OP_KIND_REGION, REGION, 1, false);
    CHECK_BYTES(&table, 1, GPU, 100, 0, 100, 110, 100, 110, 1);
    CHECK_BYTES(&table, 2, GPU, 11, 100, 10, 11, 100, 10, 1);
    mp_op_table_clear(&table);
}

static void
test_op_table_ends_what_is_open_and_keeps_threads_apart(void)
{
    begin();
    op_begin(A);
    alloc(GPU, 0x10, 1);
    thread_now = 2;
    alloc(GPU, 0x20, 20); /* not in A: another thread */
    op_begin(A);
    alloc(GPU, 0x30, 300);
    op_begin(B); /* left open inside A */
    alloc(GPU, 0x40, 4);
    op_end(A);
    alloc(GPU, 0x50, 5);
    mp_op_table_t table = build(0, NULL);
    MP_CHECK_EQ(table.count, 3);
    CHECK_BYTES(&table, 0, GPU, 25, 0, 25, 25, 0, 25, 0);
    check_row(&table, 1, MP_OP_KIND_OP, A, 2, true);
    CHECK_BYTES(&table, 1, GPU, 301, 0, 300, 305, 0, 304, 2);
    CHECK_BYTES(&table, 2, GPU, 4, 0, 4, 4, 0, 4, 1);
    mp_op_table_clear(&table);
}

static void
test_op_table_counts_a_lost_free_where_its_address_is_born_again(void)
{
    begin();
    add(MP_EVENT_SEED_BLOCK, MP_NO_INDEX, GPU, 0x10, 64);
    add(MP_EVENT_SEED_BLOCK, MP_NO_INDEX, GPU, 0x20, 32)->flags =
        MP_FLAG_PENDING; /* dead before the start */
    op_begin(A);
    alloc(GPU, 0x10, 16);
    release(GPU, 0x20);
    release(GPU, 0x999); /* nobody's */
    op_end(A);
    mp_op_table_t table = build(0, NULL);
    MP_CHECK_EQ(table.count, 1);
    CHECK_BYTES(&table, 0, GPU, 16, 64, 0, 16, 64, 0, 1);
    mp_op_table_clear(&table);
}

static void
test_op_table_divides_by_the_innermost_frames(void)
{
    mp_intern_t *intern;
    MP_CHECK(mp_intern_new(&intern) == MP_OK);
    uint32_t text = mp_intern_string(intern, "f", 1);
    uint32_t frame[3], outer[2], inner[2];
    for (uint32_t i = 0; i < 3; i++) {
        frame[i] = mp_intern_frame(intern, text, text, i + 1);
    }
    for (uint32_t i = 0; i < 2; i++) { /* differ in the outer frame alone */
        outer[i] = mp_intern_stack(intern, MP_NO_INDEX, frame[i]);
        inner[i] = mp_intern_stack(intern, outer[i], frame[2]);
    }
    for (uint32_t frames = 0; frames < 4; frames++) {
        begin();
        for (uint32_t i = 0; i < 2; i++) {
            stack_now = inner[i];
            op_begin(A);
            alloc(GPU, 0x10 + i, 1 + i);
            op_end(A);
        }
        stack_now = MP_NO_INDEX;
        op_begin(A);
        alloc(GPU, 0x20, 8);
        op_end(A);
        mp_op_table_t table = build(frames, intern);
        static const size_t counts[] = {1, 2, 3, 3};
        static const int64_t firsts[] = {11, 3, 1, 1};
        MP_CHECK_EQ(table.count, counts[frames]);
        MP_CHECK_EQ(table.bytes[1].allocated, firsts[frames]);
        MP_CHECK_EQ(table.rows[0].stack, frames == 0 ? MP_NO_INDEX : inner[0]);
        if (frames > 0) {
            MP_CHECK_EQ(table.rows[table.count - 1].stack, MP_NO_INDEX);
        }
        mp_op_table_clear(&table);
    }
    mp_intern_free(intern);
}

static void
test_op_table_of_nothing_has_no_rows(void)
{
    begin();
    mp_op_table_t table = build(0, NULL);
    MP_CHECK_EQ(table.count, 0);
    mp_op_table_clear(&table);
    mp_op_table_clear(&table); /* all zero */
}

static void
test_op_table_sums_of_damaged_sizes_wrap(void)
{
    begin();
    op_begin(A);
    alloc(GPU, 0x10, UINT64_MAX - 1);
    alloc(GPU, 0x20, (uint64_t)INT64_MAX);
    release(GPU, 0x10);
    release(GPU, 0x20);
    op_end(A);
    mp_op_table_t table = build(0, NULL);
    MP_CHECK_EQ(table.count, 1);
    MP_CHECK_EQ(table.bytes[1].allocated, table.bytes[1].freed);
    mp_op_table_clear(&table);
}

static void
test_op_table_out_of_memory_leaves_nothing(void)
{
    begin();
    for (uint32_t i = 0; i < 12; i++) {
        thread_now = i;
        op_begin(A + i);
        alloc(GPU, 0x100 + i, i);
    }
    size_t lives_count;
    for (size_t i = 0; i < event_count; i++) {
        MP_CHECK(mp_tracker_apply(tracker, &events[i]) == MP_OK);
    }
    const mp_allocation_t *lives =
        mp_tracker_allocations(tracker, &lives_count);
    int16_t device = GPU;
    size_t held = mp_mem_bytes();
    mp_op_table_t table;
    long failures = 0;
    mp_status_t status = MP_ERR_NOMEM;
    while (status != MP_OK) {
        mp_mem_fail_after(++failures);
        status = mp_op_table_build(events, event_count, lives, lives_count,
                                   &device, 1, 0, NULL, &table);
        mp_mem_fail_after(0);
        MP_CHECK(status == MP_OK || status == MP_ERR_NOMEM);
        MP_CHECK(status == MP_OK || mp_mem_bytes() == held);
    }
    MP_CHECK(failures > 15);
    MP_CHECK_EQ(table.count, 12);
    mp_op_table_clear(&table);
    MP_CHECK_EQ(mp_mem_bytes(), held);
    mp_tracker_free(tracker);
}

MP_TEST_SUITE(
    op_table, MP_TEST(test_op_table_sums_self_and_whole_of_each_device),
    MP_TEST(test_op_table_peak_is_above_each_calls_beginning),
    MP_TEST(test_op_table_counts_an_op_inside_itself_once),
    MP_TEST(test_op_table_knows_nodes_and_regions),
    MP_TEST(test_op_table_a_region_may_end_before_what_began_inside_it),
    MP_TEST(test_op_table_ends_what_is_open_and_keeps_threads_apart),
    MP_TEST(test_op_table_counts_a_lost_free_where_its_address_is_born_again),
    MP_TEST(test_op_table_divides_by_the_innermost_frames),
    MP_TEST(test_op_table_of_nothing_has_no_rows),
    MP_TEST(test_op_table_sums_of_damaged_sizes_wrap),
    MP_TEST(test_op_table_out_of_memory_leaves_nothing))
