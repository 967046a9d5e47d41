/* test_mem.c - the profiler's own memory, and the clock beside it. */
#include "clock.h"
#include "mem.h"
#include "mp_test.h"

#include <pthread.h>

static void
test_mem_counts_exactly_what_is_held(void)
{
    size_t before = mp_mem_bytes();
    char *first = mp_calloc(3, 100);
    MP_CHECK(first != NULL);
    MP_CHECK_EQ(mp_mem_bytes() - before, 300);
    char *second = mp_realloc(NULL, 7);
    MP_CHECK(second != NULL);
    MP_CHECK_EQ(mp_mem_bytes() - before, 307);
    first = mp_realloc(first, 1000000);
    MP_CHECK(first != NULL);
    MP_CHECK_EQ(mp_mem_bytes() - before, 1000007);
    first = mp_realloc(first, 1);
    MP_CHECK(first != NULL);
    MP_CHECK_EQ(mp_mem_bytes() - before, 8);
    mp_free(first);
    mp_free(second);
    mp_free(NULL);
    MP_CHECK_EQ(mp_mem_bytes(), before);
}

static void
test_mem_is_zeroed_and_aligned(void)
{
    for (size_t size = 1; size < 300; size += 37) {
        unsigned char *memory = mp_calloc(1, size);
        MP_CHECK(memory != NULL);
        MP_CHECK_EQ((uintptr_t)memory % 16, 0);
        for (size_t i = 0; i < size; i++) {
            MP_CHECK_EQ(memory[i], 0);
        }
        mp_free(memory);
    }
}

static void
test_mem_realloc_keeps_the_bytes(void)
{
    unsigned char *memory = mp_realloc(NULL, 100);
    MP_CHECK(memory != NULL);
    for (size_t i = 0; i < 100; i++) {
        memory[i] = (unsigned char)i;
    }
    memory = mp_realloc(memory, 100000);
    MP_CHECK(memory != NULL);
    for (size_t i = 0; i < 100; i++) {
        MP_CHECK_EQ(memory[i], i);
    }
    mp_free(memory);
}

static void
test_mem_of_no_bytes_is_a_block(void)
{
    void *first = mp_calloc(0, 8);
    void *second = mp_realloc(NULL, 0);
    MP_CHECK(first != NULL);
    MP_CHECK(second != NULL);
    MP_CHECK(first != second);
    mp_free(first);
    mp_free(second);
}

static void
test_mem_refuses_sizes_that_overflow(void)
{
    size_t before = mp_mem_bytes();
    volatile size_t huge = SIZE_MAX; /* hidden from the compiler's warnings */
    MP_CHECK(mp_calloc(huge / 2, 3) == NULL);
    MP_CHECK(mp_calloc(1, huge) == NULL);
    MP_CHECK(mp_realloc(NULL, huge) == NULL);
    MP_CHECK_EQ(mp_mem_bytes(), before);
}

static void
test_mem_fails_the_one_that_was_named(void)
{
    size_t before = mp_mem_bytes();
    mp_mem_fail_after(3);
    void *first = mp_calloc(1, 10);
    void *second = mp_calloc(1, 10);
    MP_CHECK(first != NULL);
    MP_CHECK(second != NULL);
    MP_CHECK(mp_realloc(first, 20) == NULL);
    MP_CHECK_EQ(mp_mem_bytes() - before, 20); /* FIRST is as it was */
    first = mp_realloc(first, 20);            /* only once */
    MP_CHECK(first != NULL);
    mp_mem_fail_after(1);
    MP_CHECK(mp_reserve(4096) == NULL);
    mp_mem_fail_after(1);
    mp_mem_fail_after(0);
    void *third = mp_calloc(1, 1);
    MP_CHECK(third != NULL);
    mp_free(first);
    mp_free(second);
    mp_free(third);
}

static void
test_mem_reserves_space_that_costs_nothing(void)
{
    size_t bytes = (size_t)1 << 37; /* TSan has no room for 1 << 40 */
    size_t before = mp_mem_bytes();
    unsigned char *memory = mp_reserve(bytes);
    MP_CHECK(memory != NULL);
    MP_CHECK_EQ(mp_mem_bytes(), before);
    MP_CHECK_EQ(memory[bytes - 1], 0);
    memory[0] = 1;
    memory[bytes - 1] = 2;
    MP_CHECK_EQ(memory[0], 1);
    mp_unreserve(memory, bytes);
    mp_unreserve(NULL, bytes);
    MP_CHECK(mp_reserve(SIZE_MAX / 2) == NULL);
}

static void *
allocate_and_free(void *unused)
{
    (void)unused;
    for (size_t i = 0; i < 2000; i++) {
        char *memory = mp_calloc(1, i % 300);
        MP_CHECK(memory != NULL);
        memory = mp_realloc(memory, i % 700);
        MP_CHECK(memory != NULL);
        mp_free(memory);
    }
    return NULL;
}

static void
test_mem_counts_across_threads(void)
{
    size_t before = mp_mem_bytes();
    pthread_t threads[4];
    for (size_t i = 0; i < MP_ARRAY_LENGTH(threads); i++) {
        MP_CHECK(pthread_create(&threads[i], NULL, allocate_and_free, NULL) ==
                 0);
    }
    for (size_t i = 0; i < MP_ARRAY_LENGTH(threads); i++) {
        MP_CHECK(pthread_join(threads[i], NULL) == 0);
    }
    MP_CHECK_EQ(mp_mem_bytes(), before);
}

static void
test_clock_never_goes_back(void)
{
    int64_t last = mp_clock_now();
    MP_CHECK(last > 0);
    for (int i = 0; i < 10000; i++) {
        int64_t now = mp_clock_now();
        MP_CHECK(now >= last);
        last = now;
    }
}

static void
test_clock_knows_the_wall_time(void)
{
    const int64_t year_2020_ns = INT64_C(1577836800) * 1000000000;
    MP_CHECK(mp_clock_wall_now() > year_2020_ns);
}

static void *
store_thread_number(void *number)
{
    *(uint32_t *)number = mp_thread_number();
    return NULL;
}

static void
test_thread_numbers_differ(void)
{
    uint32_t other = 0;
    pthread_t thread;
    MP_CHECK(pthread_create(&thread, NULL, store_thread_number, &other) == 0);
    MP_CHECK(pthread_join(thread, NULL) == 0);
    MP_CHECK(other != 0);
    MP_CHECK(mp_thread_number() != 0);
    MP_CHECK(mp_thread_number() != other);
    MP_CHECK_EQ(mp_thread_number(), mp_thread_number());
}

MP_TEST_SUITE(mem, MP_TEST(test_mem_counts_exactly_what_is_held),
              MP_TEST(test_mem_is_zeroed_and_aligned),
              MP_TEST(test_mem_realloc_keeps_the_bytes),
              MP_TEST(test_mem_of_no_bytes_is_a_block),
              MP_TEST(test_mem_refuses_sizes_that_overflow),
              MP_TEST(test_mem_fails_the_one_that_was_named),
              MP_TEST(test_mem_reserves_space_that_costs_nothing),
              MP_TEST(test_mem_counts_across_threads),
              MP_TEST(test_clock_never_goes_back),
              MP_TEST(test_clock_knows_the_wall_time),
              MP_TEST(test_thread_numbers_differ))
