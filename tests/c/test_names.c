/* test_names.c - names of objects: one writer, readers without a lock. */
#include "mem.h"
#include "mp_test.h"
#include "names.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Addresses as objects have them: multiples of 16. */
#define ADDR(i) (UINT64_C(0x7f0000000000) + (uint64_t)(i)*16)

/* Names live for ever: each test has these, and can still reach them. */
static mp_names_t *volatile the_names;

static mp_names_t *
names_new(void)
{
    the_names = mp_names_new();
    MP_CHECK(the_names != NULL);
    return the_names;
}

static void
put(mp_names_t *names, uint64_t addr, uint32_t name)
{
    MP_CHECK_EQ(mp_names_put(names, addr, name), MP_OK);
    MP_CHECK_EQ(mp_names_get(names, addr), name);
}

/* ---- one thread
 * ---------------------------------------------------------------------- */

static void
test_names_empty_knows_nobody(void)
{
    mp_names_t *names = names_new();
    MP_CHECK_EQ(mp_names_get(names, 0), MP_NO_INDEX);
    MP_CHECK_EQ(mp_names_get(names, ADDR(1)), MP_NO_INDEX);
    MP_CHECK_EQ(mp_names_get(names, UINT64_MAX), MP_NO_INDEX);
    uint32_t before = mp_names_generation(names);
    mp_names_forget(names, ADDR(1));
    mp_names_forget(names, 0);
    MP_CHECK_EQ(mp_names_generation(names), before);
}

static void
test_names_put_forget_put_again(void)
{
    mp_names_t *names = names_new();
    put(names, ADDR(1), 0); /* the first string has number 0 */
    put(names, ADDR(2), 8);
    put(names, UINT64_MAX, 9);
    put(names, ADDR(1), 10); /* another object there: the last word holds */
    mp_names_forget(names, ADDR(2));
    MP_CHECK_EQ(mp_names_get(names, ADDR(2)), MP_NO_INDEX);
    MP_CHECK_EQ(mp_names_get(names, ADDR(1)), 10);
    put(names, ADDR(2), 11);
    MP_CHECK_EQ(mp_names_get(names, UINT64_MAX), 9);
}

static void
test_names_refuses_what_is_no_object_or_no_name(void)
{
    mp_names_t *names = names_new();
    put(names, ADDR(1), 7);
    uint32_t before = mp_names_generation(names);
    MP_CHECK_EQ(mp_names_put(names, 0, 7), MP_ERR_ARG);
    MP_CHECK_EQ(mp_names_put(names, ADDR(1), MP_NO_INDEX), MP_ERR_ARG);
    MP_CHECK_EQ(mp_names_get(names, 0), MP_NO_INDEX);
    MP_CHECK_EQ(mp_names_get(names, ADDR(1)), 7);
    MP_CHECK_EQ(mp_names_generation(names), before);
}

static void
test_names_generation_changes_with_the_answers(void)
{
    mp_names_t *names = names_new();
    uint32_t last = mp_names_generation(names);
    put(names, ADDR(1), 7);
    MP_CHECK(mp_names_generation(names) != last);
    last = mp_names_generation(names);
    put(names, ADDR(1), 7); /* as it was: walks keep what they know */
    MP_CHECK_EQ(mp_names_generation(names), last);
    put(names, ADDR(1), 8);
    MP_CHECK(mp_names_generation(names) != last);
    last = mp_names_generation(names);
    mp_names_forget(names, ADDR(1));
    MP_CHECK(mp_names_generation(names) != last);
    last = mp_names_generation(names);
    mp_names_forget(names, ADDR(1)); /* nobody's any more */
    MP_CHECK_EQ(mp_names_generation(names), last);
    put(names, ADDR(1), 8);
    last = mp_names_generation(names);
    mp_names_clear(names);
    MP_CHECK(mp_names_generation(names) != last);
}

static void
test_names_many_are_all_found(void)
{
    enum {
        COUNT = 100000
    };
    mp_names_t *names = names_new();
    for (uint32_t i = 0; i < COUNT; i++) {
        put(names, ADDR(i), i);
    }
    for (uint32_t i = 0; i < COUNT; i += 3) {
        mp_names_forget(names, ADDR(i));
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        MP_CHECK_EQ(mp_names_get(names, ADDR(i)), i % 3 ? i : MP_NO_INDEX);
    }
    MP_CHECK_EQ(mp_names_get(names, ADDR(COUNT)), MP_NO_INDEX);
    mp_names_clear(names);
    for (uint32_t i = 0; i < COUNT; i++) {
        MP_CHECK_EQ(mp_names_get(names, ADDR(i)), MP_NO_INDEX);
    }
    put(names, ADDR(5), 6);
}

/* Addresses a power of two apart: what a bad hash puts into one slot. */
static void
test_names_distant_addresses_are_told_apart(void)
{
    mp_names_t *names = names_new();
    for (uint32_t shift = 4; shift < 48; shift++) {
        for (uint32_t i = 1; i < 64; i++) {
            put(names, (uint64_t)i << shift, i << 6 | shift);
        }
    }
    for (uint32_t i = 1; i < 64; i += 2) { /* odd: in one shift alone */
        for (uint32_t shift = 4; shift < 48; shift++) {
            uint64_t addr = (uint64_t)i << shift;
            MP_CHECK_EQ(mp_names_get(names, addr), i << 6 | shift);
        }
    }
}

/* A program that makes and drops a module each step holds a few; so does
 * what their names take. */
static void
test_names_that_come_and_go_cost_no_memory(void)
{
    mp_names_t *names = names_new();
    put(names, ADDR(0), 99);
    size_t after_some = 0;
    for (uint32_t i = 1; i < 200000; i++) {
        put(names, ADDR(i), i);
        mp_names_forget(names, ADDR(i));
        if (i == 5000) {
            after_some = mp_mem_bytes();
        }
    }
    MP_CHECK_EQ(mp_mem_bytes(), after_some);
    MP_CHECK(after_some < 100 << 10);
    for (uint32_t i = 0; i < 200; i++) { /* profiles that start and stop */
        mp_names_clear(names);
        put(names, ADDR(0), 98);
    }
    MP_CHECK(mp_mem_bytes() < 100 << 10);
    MP_CHECK_EQ(mp_names_get(names, ADDR(199999)), MP_NO_INDEX);
}

static void
test_names_without_memory_are_as_before(void)
{
    for (long n = 1; n <= 2; n++) {
        mp_mem_fail_after(n);
        MP_CHECK(mp_names_new() == NULL);
    }
    mp_mem_fail_after(0);
    MP_CHECK_EQ(mp_mem_bytes(), 0);
    mp_names_t *names = names_new();
    uint32_t refused = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        mp_mem_fail_after(1);
        uint32_t before = mp_names_generation(names);
        mp_status_t status = mp_names_put(names, ADDR(i), i);
        mp_mem_fail_after(0);
        if (status != MP_OK) { /* it had to grow */
            MP_CHECK_EQ(status, MP_ERR_NOMEM);
            MP_CHECK_EQ(mp_names_get(names, ADDR(i)), MP_NO_INDEX);
            MP_CHECK_EQ(mp_names_generation(names), before);
            refused++;
            put(names, ADDR(i), i);
        }
    }
    MP_CHECK(refused > 0);
    mp_mem_fail_after(1);
    mp_names_forget(names, ADDR(0));
    MP_CHECK_EQ(mp_names_get(names, ADDR(0)), MP_NO_INDEX);
    for (uint32_t i = 1; i < 3000; i++) {
        MP_CHECK_EQ(mp_names_get(names, ADDR(i)), i);
    }
    mp_names_clear(names);
    mp_mem_fail_after(0);
    for (uint32_t i = 0; i < 3000; i++) {
        MP_CHECK_EQ(mp_names_get(names, ADDR(i)), MP_NO_INDEX);
    }
    put(names, ADDR(1), 1);
}

/* ---- one writer, many readers
 * -------------------------------------------------------- */

enum {
    READERS = 6,
    STABLE = 40,
    CHANGING = 3000,
    CROWD = 240,
    ROUNDS = 12
};

/* The name that only the object at ADDR ever has in round ROUND: whatever a
 * reader gets for it says whose it is. */
static uint32_t
name_of(uint32_t index, uint32_t round)
{
    return index << 8 | round;
}

typedef struct {
    mp_names_t *names;
    atomic_bool over;
    uint32_t count; /* of addresses; the first STABLE of them: */
    bool stay;      /* never forgotten */
} scene_t;

static void *
read_all(void *argument)
{
    scene_t *scene = argument;
    uint64_t found = 0;
    uint32_t generation = 0;
    do {
        uint32_t now = mp_names_generation(scene->names);
        MP_CHECK((int32_t)(now - generation) >= 0); /* never back */
        generation = now;
        for (uint32_t i = 0; i < scene->count; i++) {
            uint32_t name = mp_names_get(scene->names, ADDR(i));
            if (name == MP_NO_INDEX) {
                MP_CHECK(i >= STABLE || !scene->stay);
                continue;
            }
            MP_CHECK_EQ(name >> 8, i);
            MP_CHECK((name & 0xFF) <= ROUNDS);
            found++;
        }
        MP_CHECK_EQ(mp_names_get(scene->names, 0), MP_NO_INDEX);
    } while (!atomic_load(&scene->over));
    MP_CHECK(found > 0);
    return NULL;
}

static void
start(scene_t *scene, pthread_t *readers)
{
    for (uint32_t i = 0; i < STABLE; i++) {
        put(scene->names, ADDR(i), name_of(i, 0));
    }
    for (int i = 0; i < READERS; i++) {
        MP_CHECK(pthread_create(&readers[i], NULL, read_all, scene) == 0);
    }
}

static void
stop(scene_t *scene, pthread_t *readers)
{
    atomic_store(&scene->over, true);
    for (int i = 0; i < READERS; i++) {
        MP_CHECK(pthread_join(readers[i], NULL) == 0);
    }
}

/* A model that lives while others come and go: it never loses its names, and
 * nobody gets another's. */
static void
test_names_readers_see_what_stays_and_no_strangers(void)
{
    scene_t scene = {
        .names = names_new(), .count = STABLE + CHANGING, .stay = true};
    pthread_t readers[READERS];
    start(&scene, readers);
    for (uint32_t round = 1; round <= ROUNDS; round++) {
        for (uint32_t i = STABLE; i < STABLE + CHANGING; i++) {
            put(scene.names, ADDR(i), name_of(i, round));
        }
        for (uint32_t i = STABLE; i < STABLE + CHANGING; i++) {
            mp_names_forget(scene.names, ADDR(i));
        }
    }
    stop(&scene, readers);
    for (uint32_t i = 0; i < STABLE + CHANGING; i++) {
        MP_CHECK_EQ(mp_names_get(scene.names, ADDR(i)),
                    i < STABLE ? name_of(i, 0) : MP_NO_INDEX);
    }
}

/* A reader may be put off the processor at any place, for as long as the
 * writer takes to outgrow a table many times over. */
static void
test_names_readers_may_be_slow(void)
{
    scene_t scene = {.names = names_new(), .count = CROWD};
    pthread_t readers[READERS];
    start(&scene, readers);
    for (uint32_t i = 0; i < 20000; i++) {
        mp_names_clear(scene.names);
        for (uint32_t k = 0; k < STABLE; k++) { /* others, in other slots */
            uint32_t index = (i * 61 + k) % CROWD;
            put(scene.names, ADDR(index), name_of(index, i % ROUNDS));
        }
        for (uint32_t k = CROWD; i % 100 == 0 && k < CROWD + 1000; k++) {
            put(scene.names, ADDR(k), name_of(k, 0)); /* a larger table */
        }
    }
    stop(&scene, readers);
    MP_CHECK_EQ(mp_names_get(scene.names, ADDR(CROWD)), MP_NO_INDEX);
}

MP_TEST_SUITE(names, MP_TEST(test_names_empty_knows_nobody),
              MP_TEST(test_names_put_forget_put_again),
              MP_TEST(test_names_refuses_what_is_no_object_or_no_name),
              MP_TEST(test_names_generation_changes_with_the_answers),
              MP_TEST(test_names_many_are_all_found),
              MP_TEST(test_names_distant_addresses_are_told_apart),
              MP_TEST(test_names_that_come_and_go_cost_no_memory),
              MP_TEST(test_names_without_memory_are_as_before),
              MP_TEST(test_names_readers_see_what_stays_and_no_strangers),
              MP_TEST(test_names_readers_may_be_slow))
