/* test_table.c - address to index, against a plain array. */
#include "mem.h"
#include "mp_test.h"
#include "table.h"

#include <stdlib.h>

static mp_table_t *
new_table(size_t capacity_hint)
{
    mp_table_t *table = mp_table_new(capacity_hint);
    MP_CHECK(table != NULL);
    return table;
}

/* Put, and return what it replaced. */
static uint32_t
put(mp_table_t *table, uint64_t addr, uint32_t index)
{
    uint32_t previous = 12345;
    MP_CHECK(mp_table_put(table, addr, index, &previous) == MP_OK);
    return previous;
}

static uint64_t
next_random(uint64_t *state)
{
    *state ^= *state << 13; /* xorshift64 */
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static void
test_table_finds_what_was_put(void)
{
    mp_table_t *table = new_table(0);
    MP_CHECK_EQ(mp_table_get(table, 0x1000), MP_NO_INDEX);
    MP_CHECK_EQ(put(table, 0x1000, 7), MP_NO_INDEX);
    MP_CHECK_EQ(put(table, 0x2000, 0), MP_NO_INDEX);
    MP_CHECK_EQ(mp_table_get(table, 0x1000), 7);
    MP_CHECK_EQ(mp_table_get(table, 0x2000), 0);
    MP_CHECK_EQ(mp_table_get(table, 0x3000), MP_NO_INDEX);
    MP_CHECK_EQ(mp_table_count(table), 2);
    mp_table_free(table);
    mp_table_free(NULL);
}

static void
test_table_reused_address_replaces_block(void)
{
    mp_table_t *table = new_table(0);
    MP_CHECK_EQ(put(table, 0x1000, 7), MP_NO_INDEX);
    MP_CHECK_EQ(put(table, 0x1000, 8), 7); /* the free we never saw */
    MP_CHECK_EQ(mp_table_count(table), 1);
    MP_CHECK_EQ(mp_table_take(table, 0x1000), 8);
    MP_CHECK_EQ(mp_table_count(table), 0);
    mp_table_free(table);
}

static void
test_table_forgets_what_was_taken(void)
{
    mp_table_t *table = new_table(0);
    put(table, 0x1000, 7);
    MP_CHECK_EQ(mp_table_take(table, 0x1000), 7);
    MP_CHECK_EQ(mp_table_take(table, 0x1000), MP_NO_INDEX);
    MP_CHECK_EQ(mp_table_get(table, 0x1000), MP_NO_INDEX);
    MP_CHECK_EQ(mp_table_count(table), 0);
    mp_table_free(table);
}

static void
test_table_takes_any_address_and_index(void)
{
    static const uint64_t addrs[] = {0, 1, UINT64_MAX, UINT64_MAX - 1};
    static const uint32_t indices[] = {0, MP_NO_INDEX - 1, 1, 0x80000000u};
    mp_table_t *table = new_table(0);
    MP_CHECK_EQ(mp_table_get(table, 0), MP_NO_INDEX);
    for (size_t i = 0; i < MP_ARRAY_LENGTH(addrs); i++) {
        MP_CHECK_EQ(put(table, addrs[i], indices[i]), MP_NO_INDEX);
    }
    for (size_t i = 0; i < MP_ARRAY_LENGTH(addrs); i++) {
        MP_CHECK_EQ(mp_table_get(table, addrs[i]), indices[i]);
        MP_CHECK_EQ(mp_table_take(table, addrs[i]), indices[i]);
    }
    MP_CHECK_EQ(mp_table_count(table), 0);
    mp_table_free(table);
}

static void
test_table_grows_and_keeps_everything(void)
{
    enum {
        COUNT = 200000
    };
    mp_table_t *table = new_table(0);
    for (uint32_t i = 0; i < COUNT; i++) {
        put(table, UINT64_C(0x7f0000000000) + i * 512ull, i);
    }
    MP_CHECK_EQ(mp_table_count(table), COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        MP_CHECK_EQ(mp_table_get(table, UINT64_C(0x7f0000000000) + i * 512ull),
                    i);
    }
    mp_table_free(table);
}

static void
test_table_with_enough_room_does_not_grow(void)
{
    for (size_t hint = 0; hint < 2000; hint += 111) {
        mp_table_t *table = new_table(hint);
        size_t bytes = mp_mem_bytes();
        for (uint32_t i = 0; i < hint; i++) {
            put(table, i * 64ull, i);
        }
        MP_CHECK_EQ(mp_mem_bytes(), bytes);
        mp_table_free(table);
    }
    MP_CHECK(mp_table_new(SIZE_MAX) == NULL);
}

static void
test_table_walks_every_entry_once(void)
{
    enum {
        COUNT = 1000
    };
    unsigned char seen[COUNT] = {0};
    mp_table_t *table = new_table(0);
    size_t cursor = 0;
    uint64_t addr;
    uint32_t index;
    MP_CHECK(!mp_table_next(table, &cursor, &addr, &index));
    for (uint32_t i = 0; i < COUNT; i++) {
        put(table, i * 4096ull, i);
    }
    cursor = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        MP_CHECK(mp_table_next(table, &cursor, &addr, &index));
        MP_CHECK(index < COUNT);
        MP_CHECK_EQ(addr, index * 4096ull);
        MP_CHECK_EQ(seen[index]++, 0);
    }
    MP_CHECK(!mp_table_next(table, &cursor, &addr, &index));
    MP_CHECK(!mp_table_next(table, &cursor, &addr, &index));
    mp_table_free(table);
}

/* Random puts, gets and takes of few addresses, so that runs are long, wrap
 * around the end and are cut in the middle. */
static void
compare_with_array(uint64_t seed, uint64_t addr_count, uint64_t stride)
{
    uint32_t *naive = malloc(addr_count * sizeof(*naive));
    MP_CHECK(naive != NULL);
    memset(naive, 0xff, addr_count * sizeof(*naive));
    mp_table_t *table = new_table(0);
    size_t count = 0;
    for (uint32_t i = 0; i < 100000; i++) {
        uint64_t which = next_random(&seed) % addr_count;
        uint64_t addr = which * stride;
        uint64_t roll = next_random(&seed) % 8;
        /* Long stretches that mostly fill, then ones that mostly empty. */
        uint64_t fill = (i / 2000) % 2 == 0 ? 5 : 2;
        if (roll < fill) {
            MP_CHECK_EQ(put(table, addr, i), naive[which]);
            count += naive[which] == MP_NO_INDEX;
            naive[which] = i;
        }
        else if (roll < 7) {
            MP_CHECK_EQ(mp_table_take(table, addr), naive[which]);
            count -= naive[which] != MP_NO_INDEX;
            naive[which] = MP_NO_INDEX;
        }
        else {
            MP_CHECK_EQ(mp_table_get(table, addr), naive[which]);
        }
        MP_CHECK_EQ(mp_table_count(table), count);
    }
    for (uint64_t which = 0; which < addr_count; which++) {
        MP_CHECK_EQ(mp_table_get(table, which * stride), naive[which]);
    }
    mp_table_free(table);
    free(naive);
}

static void
test_table_agrees_with_a_plain_array(void)
{
    static const uint64_t counts[] = {5, 9, 40, 700, 9000};
    static const uint64_t strides[] = {1, 64, 512, 2097152,
                                       UINT64_C(0x100000000)};
    for (size_t i = 0; i < MP_ARRAY_LENGTH(counts); i++) {
        for (size_t j = 0; j < MP_ARRAY_LENGTH(strides); j++) {
            compare_with_array(88172645463325252u + i * 31 + j, counts[i],
                               strides[j]);
        }
    }
}

static void
test_table_survives_every_failed_allocation(void)
{
    enum {
        COUNT = 5000
    };
    bool failed = true;
    for (long n = 1; failed; n++) {
        failed = false;
        mp_mem_fail_after(n);
        mp_table_t *table = mp_table_new(0);
        if (table == NULL) {
            failed = true;
            table = new_table(0);
        }
        for (uint32_t i = 0; i < COUNT; i++) {
            uint32_t previous = 77;
            if (mp_table_put(table, i * 32ull, i, &previous) != MP_OK) {
                failed = true;
                MP_CHECK_EQ(previous, 77);
                MP_CHECK_EQ(mp_table_count(table), i);
                MP_CHECK_EQ(mp_table_get(table, i * 32ull), MP_NO_INDEX);
                MP_CHECK_EQ(put(table, i * 32ull, i), MP_NO_INDEX);
            }
        }
        mp_mem_fail_after(0);
        for (uint32_t i = 0; i < COUNT; i++) {
            MP_CHECK_EQ(mp_table_take(table, i * 32ull), i);
        }
        mp_table_free(table);
        MP_CHECK(failed || n > 8); /* it did grow under failures */
    }
    MP_CHECK_EQ(mp_mem_bytes(), 0);
}

MP_TEST_SUITE(table, MP_TEST(test_table_finds_what_was_put),
              MP_TEST(test_table_reused_address_replaces_block),
              MP_TEST(test_table_forgets_what_was_taken),
              MP_TEST(test_table_takes_any_address_and_index),
              MP_TEST(test_table_grows_and_keeps_everything),
              MP_TEST(test_table_with_enough_room_does_not_grow),
              MP_TEST(test_table_walks_every_entry_once),
              MP_TEST(test_table_agrees_with_a_plain_array),
              MP_TEST(test_table_survives_every_failed_allocation))
