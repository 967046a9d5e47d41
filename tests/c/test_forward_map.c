/* test_forward_map.c - what made a backward node: its op, else its module. */
#include "forward_map.h"
#include "mem.h"
#include "mp_test.h"

enum {
    SLOTS = 1 << 17, /* ops that are remembered */
    ROOT = 100,
    LAYER = 101,
    INNER = 102
};

static mp_forward_map_t *
new_map(void)
{
    mp_forward_map_t *map = NULL;
    MP_CHECK(mp_forward_map_new(&map) == MP_OK);
    return map;
}

static void
put(mp_forward_map_t *map, uint64_t thread, uint64_t sequence, uint32_t op)
{
    mp_forward_t forward = {op, op + 1, op + 2};
    mp_forward_map_put_op(map, thread, sequence, &forward);
}

static void
begin(mp_forward_map_t *map, uint64_t thread, uint64_t sequence,
      uint32_t module)
{
    MP_CHECK(mp_forward_map_module_begin(map, thread, sequence, module) ==
             MP_OK);
}

static mp_forward_t
find(const mp_forward_map_t *map, uint64_t thread, uint64_t sequence)
{
    mp_forward_t forward = {1, 2, 3};
    mp_forward_map_find(map, thread, sequence, &forward);
    return forward;
}

static uint32_t
module_at(const mp_forward_map_t *map, uint64_t sequence)
{
    mp_forward_t forward = find(map, 1, sequence);
    MP_CHECK_EQ(forward.op, MP_NO_INDEX);
    MP_CHECK_EQ(forward.stack, MP_NO_INDEX);
    return forward.module;
}

static void
test_forward_map_finds_an_op_by_number_and_thread(void)
{
    mp_forward_map_t *map = new_map();
    put(map, 1, 7, 50);
    put(map, 2, 7, 60);
    put(map, 1, 0, 70);
    mp_forward_t forward = find(map, 1, 7);
    MP_CHECK_EQ(forward.op, 50);
    MP_CHECK_EQ(forward.module, 51);
    MP_CHECK_EQ(forward.stack, 52);
    MP_CHECK_EQ(find(map, 2, 7).op, 60);
    MP_CHECK_EQ(find(map, 1, 0).op, 70);
    MP_CHECK_EQ(find(map, 3, 7).op, MP_NO_INDEX);
    MP_CHECK_EQ(find(map, 1, 8).module, MP_NO_INDEX);
    mp_forward_map_free(map);
}

/* The number stays until an op makes a node. */
static void
test_forward_map_believes_the_last_op_of_a_number(void)
{
    mp_forward_map_t *map = new_map();
    put(map, 1, 7, 50);
    put(map, 1, 7, 60);
    MP_CHECK_EQ(find(map, 1, 7).op, 60);
    mp_forward_map_free(map);
}

static void
test_forward_map_old_ops_make_room_for_new_ones(void)
{
    mp_forward_map_t *map = new_map();
    begin(map, 1, 0, ROOT);
    for (uint64_t i = 0; i < SLOTS + 10; i++) {
        put(map, 1, i, (uint32_t)i);
    }
    mp_forward_map_module_end(map, 1, SLOTS + 10, ROOT);
    MP_CHECK_EQ(module_at(map, 9), ROOT); /* the op is forgotten */
    MP_CHECK_EQ(find(map, 1, 10).op, 10);
    MP_CHECK_EQ(find(map, 1, SLOTS + 9).op, SLOTS + 9);
    size_t bytes = mp_forward_map_bytes(map);
    for (uint64_t i = 0; i < 3 * SLOTS; i++) {
        put(map, 1, SLOTS + i, 1);
    }
    MP_CHECK_EQ(mp_forward_map_bytes(map), bytes);
    mp_forward_map_free(map);
}

static void
test_forward_map_names_the_innermost_module(void)
{
    mp_forward_map_t *map = new_map();
    begin(map, 1, 10, ROOT);
    begin(map, 1, 12, LAYER);
    begin(map, 1, 14, INNER);
    mp_forward_map_module_end(map, 1, 16, INNER);
    mp_forward_map_module_end(map, 1, 16, LAYER); /* ends at the same number */
    mp_forward_map_module_end(map, 1, 20, ROOT);
    const uint32_t expected[] = {MP_NO_INDEX, ROOT,  ROOT,  LAYER,
                                 LAYER,       INNER, INNER, ROOT,
                                 ROOT,        ROOT,  ROOT,  MP_NO_INDEX};
    for (uint32_t i = 0; i < MP_ARRAY_LENGTH(expected); i++) {
        MP_CHECK_EQ(module_at(map, 9 + i), expected[i]);
    }
    mp_forward_map_free(map);
}

static void
test_forward_map_reentrant_module_has_two_spans(void)
{
    mp_forward_map_t *map = new_map();
    begin(map, 1, 0, ROOT);
    begin(map, 1, 2, LAYER);
    begin(map, 1, 4, ROOT); /* calls itself */
    mp_forward_map_module_end(map, 1, 6, ROOT);
    mp_forward_map_module_end(map, 1, 8, LAYER);
    mp_forward_map_module_end(map, 1, 10, ROOT);
    const uint32_t expected[] = {ROOT, ROOT,  LAYER, LAYER, ROOT,
                                 ROOT, LAYER, LAYER, ROOT,  ROOT};
    for (uint32_t i = 0; i < MP_ARRAY_LENGTH(expected); i++) {
        MP_CHECK_EQ(module_at(map, i), expected[i]);
    }
    mp_forward_map_free(map);
}

static void
test_forward_map_backward_inside_an_open_module(void)
{
    mp_forward_map_t *map = new_map();
    begin(map, 1, 0, ROOT);
    begin(map, 1, 5, LAYER);
    MP_CHECK_EQ(module_at(map, 3), ROOT);
    MP_CHECK_EQ(module_at(map, 6), LAYER);
    mp_forward_map_module_end(map, 1, 8, LAYER);
    MP_CHECK_EQ(module_at(map, 6), LAYER);
    MP_CHECK_EQ(module_at(map, 9), ROOT);
    mp_forward_map_free(map);
}

static void
test_forward_map_exception_leaves_inner_modules(void)
{
    mp_forward_map_t *map = new_map();
    begin(map, 1, 0, ROOT);
    begin(map, 1, 2, LAYER);
    begin(map, 1, 4, INNER);
    mp_forward_map_module_end(map, 1, 6, ROOT); /* theirs never come */
    MP_CHECK_EQ(module_at(map, 5), ROOT);
    mp_forward_map_module_end(map, 1, 9, INNER); /* not open any more */
    MP_CHECK_EQ(module_at(map, 7), MP_NO_INDEX);
    mp_forward_map_free(map);
}

static void
test_forward_map_threads_are_apart(void)
{
    mp_forward_map_t *map = new_map();
    begin(map, 1, 0, ROOT);
    begin(map, 2, 0, LAYER);
    mp_forward_map_module_end(map, 1, 10, ROOT);
    mp_forward_map_module_end(map, 2, 10, LAYER);
    mp_forward_map_module_end(map, 3, 10, LAYER); /* never heard of */
    MP_CHECK_EQ(find(map, 1, 5).module, ROOT);
    MP_CHECK_EQ(find(map, 2, 5).module, LAYER);
    MP_CHECK_EQ(find(map, 3, 5).module, MP_NO_INDEX);
    mp_forward_map_free(map);
}

static void
test_forward_map_modules_that_make_no_node_cost_nothing(void)
{
    mp_forward_map_t *map = new_map();
    begin(map, 1, 5, ROOT);
    mp_forward_map_module_end(map, 1, 5, ROOT);
    size_t bytes = mp_forward_map_bytes(map);
    for (int i = 0; i < 100000; i++) {
        begin(map, 1, 5, ROOT);
        mp_forward_map_module_end(map, 1, 5, ROOT);
    }
    MP_CHECK_EQ(mp_forward_map_bytes(map), bytes);
    MP_CHECK_EQ(module_at(map, 5), MP_NO_INDEX);
    mp_forward_map_free(map);
}

static void
test_forward_map_stays_bounded(void)
{
    mp_forward_map_t *map = new_map();
    for (uint64_t i = 0; i < 1000000; i++) {
        begin(map, 1, i, ROOT + (uint32_t)(i % 7));
        mp_forward_map_module_end(map, 1, i + 1, ROOT + (uint32_t)(i % 7));
    }
    MP_CHECK(mp_forward_map_bytes(map) < (4u << 20));
    MP_CHECK_EQ(module_at(map, 999999), ROOT + 999999 % 7);
    MP_CHECK_EQ(module_at(map, 980000), ROOT + 980000 % 7);
    MP_CHECK_EQ(module_at(map, 10), MP_NO_INDEX);
    for (uint64_t thread = 2; thread < 5000; thread++) {
        begin(map, thread, 0, LAYER);
        mp_forward_map_module_end(map, thread, 2, LAYER);
        begin(map, 4999, 0, INNER); /* in use all the time */
        mp_forward_map_module_end(map, 4999, 2, INNER);
    }
    MP_CHECK_EQ(find(map, 4999, 1).module, INNER);
    MP_CHECK_EQ(find(map, 4998, 1).module, LAYER);
    MP_CHECK_EQ(find(map, 2, 1).module, MP_NO_INDEX);
    MP_CHECK(mp_mem_bytes() < (8u << 20));
    mp_forward_map_free(map);
}

static void
test_forward_map_without_memory_goes_on(void)
{
    size_t before = mp_mem_bytes();
    for (long n = 1; n <= 40; n++) { /* there are about 20 to fail */
        mp_forward_map_t *map = NULL;
        mp_mem_fail_after(n);
        mp_status_t status = mp_forward_map_new(&map);
        for (uint32_t i = 0; status == MP_OK && i < 100; i++) {
            status = mp_forward_map_module_begin(map, i % 3, 0, i);
        }
        for (uint32_t i = 100; map != NULL && i-- > 0;) {
            mp_forward_map_module_end(map, i % 3, i + 1, i);
        }
        mp_mem_fail_after(0);
        mp_forward_map_free(map);
        MP_CHECK_EQ(mp_mem_bytes(), before);
        MP_CHECK(status == MP_OK || status == MP_ERR_NOMEM);
        MP_CHECK(n < 30 || status == MP_OK);
    }
    mp_forward_map_free(NULL);
}

MP_TEST_SUITE(forward_map,
              MP_TEST(test_forward_map_finds_an_op_by_number_and_thread),
              MP_TEST(test_forward_map_believes_the_last_op_of_a_number),
              MP_TEST(test_forward_map_old_ops_make_room_for_new_ones),
              MP_TEST(test_forward_map_names_the_innermost_module),
              MP_TEST(test_forward_map_reentrant_module_has_two_spans),
              MP_TEST(test_forward_map_backward_inside_an_open_module),
              MP_TEST(test_forward_map_exception_leaves_inner_modules),
              MP_TEST(test_forward_map_threads_are_apart),
              MP_TEST(test_forward_map_modules_that_make_no_node_cost_nothing),
              MP_TEST(test_forward_map_stays_bounded),
              MP_TEST(test_forward_map_without_memory_goes_on))
