/* test_ranges.c - segments put and taken, whole and in pieces. */
#include "mem.h"
#include "mp_test.h"
#include "ranges.h"

#include <stdlib.h>

static void
put(mp_ranges_t *ranges, uint64_t begin, uint64_t end)
{
    mp_range_t range = {.begin = begin, .end = end, .stream = begin + 1};
    MP_CHECK(mp_ranges_put(ranges, &range) == MP_OK);
}

static uint64_t
take(mp_ranges_t *ranges, uint64_t begin, uint64_t size)
{
    uint64_t taken = 12345;
    MP_CHECK(mp_ranges_take(ranges, begin, size, &taken) == MP_OK);
    return taken;
}

static void
check_at(const mp_ranges_t *ranges, size_t index, uint64_t begin, uint64_t end)
{
    MP_CHECK_EQ(mp_ranges_at(ranges, index)->begin, begin);
    MP_CHECK_EQ(mp_ranges_at(ranges, index)->end, end);
}

static void
test_ranges_are_sorted_by_address(void)
{
    mp_ranges_t *ranges = mp_ranges_new();
    put(ranges, 300, 400);
    put(ranges, 100, 200);
    put(ranges, 200, 300); /* stays apart from its neighbours */
    MP_CHECK_EQ(mp_ranges_count(ranges), 3);
    check_at(ranges, 0, 100, 200);
    check_at(ranges, 1, 200, 300);
    check_at(ranges, 2, 300, 400);
    MP_CHECK_EQ(mp_ranges_at(ranges, 1)->stream, 201);
    mp_ranges_free(ranges);
}

static void
test_ranges_taken_whole_are_gone(void)
{
    mp_ranges_t *ranges = mp_ranges_new();
    put(ranges, 100, 200);
    put(ranges, 300, 400);
    MP_CHECK_EQ(take(ranges, 100, 100), 100);
    MP_CHECK_EQ(mp_ranges_count(ranges), 1);
    check_at(ranges, 0, 300, 400);
    MP_CHECK_EQ(take(ranges, 100, 100), 0); /* not there any more */
    MP_CHECK_EQ(take(ranges, 300, 100), 100);
    MP_CHECK_EQ(mp_ranges_count(ranges), 0);
    mp_ranges_free(ranges);
}

static void
test_ranges_taken_in_pieces_keep_the_rest(void)
{
    mp_ranges_t *ranges = mp_ranges_new();
    put(ranges, 100, 200);
    MP_CHECK_EQ(take(ranges, 100, 10), 10); /* the front */
    MP_CHECK_EQ(take(ranges, 190, 10), 10); /* the back */
    check_at(ranges, 0, 110, 190);
    MP_CHECK_EQ(take(ranges, 140, 10), 10); /* the middle */
    MP_CHECK_EQ(mp_ranges_count(ranges), 2);
    check_at(ranges, 0, 110, 140);
    check_at(ranges, 1, 150, 190);
    MP_CHECK_EQ(mp_ranges_at(ranges, 1)->stream, 101);
    mp_ranges_free(ranges);
}

static void
test_ranges_taken_across_several_count_what_was_there(void)
{
    mp_ranges_t *ranges = mp_ranges_new();
    put(ranges, 100, 200);
    put(ranges, 300, 400);
    put(ranges, 400, 500);
    MP_CHECK_EQ(take(ranges, 150, 300), 50 + 100 + 50);
    MP_CHECK_EQ(mp_ranges_count(ranges), 2);
    check_at(ranges, 0, 100, 150);
    check_at(ranges, 1, 450, 500);
    MP_CHECK_EQ(take(ranges, 0, 1000), 100);
    MP_CHECK_EQ(mp_ranges_count(ranges), 0);
    mp_ranges_free(ranges);
}

static void
test_ranges_of_no_size_take_nothing(void)
{
    mp_ranges_t *ranges = mp_ranges_new();
    put(ranges, 100, 200);
    MP_CHECK_EQ(take(ranges, 150, 0), 0);
    check_at(ranges, 0, 100, 200);
    mp_ranges_free(ranges);
}

static void
test_ranges_reach_to_the_end_of_all_addresses(void)
{
    mp_ranges_t *ranges = mp_ranges_new();
    put(ranges, UINT64_MAX - 100, UINT64_MAX);
    MP_CHECK_EQ(take(ranges, UINT64_MAX - 50, 1000), 50); /* would wrap */
    check_at(ranges, 0, UINT64_MAX - 100, UINT64_MAX - 50);
    mp_ranges_free(ranges);
}

/* One byte a page says what must be there. */
static void
test_ranges_agree_with_a_page_map(void)
{
    enum {
        PAGES = 256
    };
    for (unsigned seed = 0; seed < 30; seed++) {
        srand(seed);
        bool there[PAGES] = {false};
        mp_ranges_t *ranges = mp_ranges_new();
        for (int turn = 0; turn < 1000; turn++) {
            uint64_t begin = (uint64_t)(rand() % PAGES);
            uint64_t size = (uint64_t)(rand() % 20) + 1;
            size = begin + size > PAGES ? PAGES - begin : size;
            uint64_t present = 0;
            for (uint64_t i = begin; i < begin + size; i++) {
                present += there[i];
            }
            bool puts = present == 0 && rand() % 3 > 0;
            if (puts) {
                put(ranges, begin, begin + size);
            }
            else {
                MP_CHECK_EQ(take(ranges, begin, size), present);
            }
            memset(there + begin, puts, size);
            uint64_t last = 0, total = 0, expected = 0;
            for (size_t i = 0; i < mp_ranges_count(ranges); i++) {
                const mp_range_t *range = mp_ranges_at(ranges, i);
                MP_CHECK(range->begin >= last && range->end > range->begin);
                last = range->end;
                for (uint64_t k = range->begin; k < range->end; k++) {
                    MP_CHECK(there[k]);
                    total++;
                }
            }
            for (int i = 0; i < PAGES; i++) {
                expected += there[i];
            }
            MP_CHECK_EQ(total, expected);
        }
        mp_ranges_free(ranges);
    }
}

static void
test_ranges_without_memory_are_unchanged(void)
{
    mp_mem_fail_after(1);
    MP_CHECK(mp_ranges_new() == NULL);
    mp_ranges_t *ranges = mp_ranges_new();
    uint64_t count = 0;
    for (; count < 1000; count++) {
        mp_range_t range = {.begin = count * 10, .end = count * 10 + 8};
        mp_mem_fail_after(1);
        if (mp_ranges_put(ranges, &range) != MP_OK) {
            MP_CHECK_EQ(mp_ranges_count(ranges), count);
            mp_mem_fail_after(0);
            MP_CHECK(mp_ranges_put(ranges, &range) == MP_OK);
        }
        mp_mem_fail_after(0);
    }
    MP_CHECK_EQ(mp_ranges_count(ranges), count);
    int failures = 0;
    for (uint64_t i = 0; i < count; i++) { /* each take splits a range */
        uint64_t taken;
        mp_mem_fail_after(1);
        if (mp_ranges_take(ranges, i * 10 + 2, 2, &taken) != MP_OK) {
            failures++;
            MP_CHECK_EQ(mp_ranges_count(ranges), count + i);
            mp_mem_fail_after(0);
            MP_CHECK_EQ(take(ranges, i * 10 + 2, 2), 2);
        }
        mp_mem_fail_after(0);
        MP_CHECK_EQ(mp_ranges_count(ranges), count + i + 1);
    }
    MP_CHECK(failures > 0);
    mp_ranges_free(ranges);
    mp_ranges_free(NULL);
}

MP_TEST_SUITE(ranges, MP_TEST(test_ranges_are_sorted_by_address),
              MP_TEST(test_ranges_taken_whole_are_gone),
              MP_TEST(test_ranges_taken_in_pieces_keep_the_rest),
              MP_TEST(test_ranges_taken_across_several_count_what_was_there),
              MP_TEST(test_ranges_of_no_size_take_nothing),
              MP_TEST(test_ranges_reach_to_the_end_of_all_addresses),
              MP_TEST(test_ranges_agree_with_a_page_map),
              MP_TEST(test_ranges_without_memory_are_unchanged))
