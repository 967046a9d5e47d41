/* test_free_blocks.c - the largest stretch in which no block lies. */
#include "free_blocks.h"
#include "mem.h"
#include "mp_test.h"

#define MIB (UINT64_C(1) << 20)
#define MOST 64

typedef struct {
    mp_event_t events[MOST];
    mp_allocation_t lives[MOST];
    size_t event_count, life_count;
} script_t;

static void
event(script_t *script, uint8_t kind, uint64_t address, uint64_t size)
{
    script->events[script->event_count++] =
        (mp_event_t){.kind = kind, .addr = address, .size = size, .device = 0};
}

/* The life of the next event; COMPLETED: -1, or the event that ends it. */
static void
life(script_t *script, uint64_t address, uint64_t size, int64_t completed)
{
    script->lives[script->life_count] = (mp_allocation_t){
        .id = (int64_t)script->life_count,
        .address = address,
        .size = size,
        .born_event = (int64_t)script->event_count,
        .died_event = completed,
        .completed_event = completed,
    };
    script->life_count++;
    event(script, MP_EVENT_ALLOC, address, size);
}

/* The samples, checked to be these. */
static void
check(const script_t *script, const mp_free_level_t *expected, size_t count)
{
    mp_export_t source = {.events = script->events,
                          .event_count = script->event_count,
                          .lives = script->lives,
                          .life_count = script->life_count};
    mp_free_level_t *levels;
    size_t found;
    MP_CHECK(mp_free_blocks_build(&source, 0, 1000, &levels, &found) == MP_OK);
    MP_CHECK_EQ(found, count);
    for (size_t i = 0; i < found && i < count; i++) {
        MP_CHECK_EQ(levels[i].event, expected[i].event);
        MP_CHECK_EQ(levels[i].bytes, expected[i].bytes);
    }
    mp_free(levels);
}

static void
test_free_blocks_follow_blocks(void)
{
    script_t script = {.event_count = 0};
    event(&script, MP_EVENT_SEGMENT_ALLOC, 64 * MIB, 20 * MIB);
    life(&script, 64 * MIB, 1, -1);      /* takes 512 */
    life(&script, 74 * MIB, 4 * MIB, 3); /* in the middle */
    event(&script, MP_EVENT_FREE_COMPLETED, 74 * MIB, 4 * MIB);
    life(&script, 64 * MIB + 512, MIB, -1);
    const mp_free_level_t expected[] = {
        {-1, 0},
        {0, 20 * MIB},
        {1, 20 * MIB - 512},
        {2, 10 * MIB - 512},
        {3, 20 * MIB - 512},
        {4, 19 * MIB - 512},
    };
    check(&script, expected, MP_ARRAY_LENGTH(expected));
}

static void
test_free_blocks_join_pages_not_segments(void)
{
    static const uint8_t kinds[] = {MP_EVENT_SEGMENT_ALLOC,
                                    MP_EVENT_SEGMENT_MAP};
    for (size_t i = 0; i < 2; i++) {
        script_t script = {.event_count = 0};
        event(&script, kinds[i], 64 * MIB, 2 * MIB);
        event(&script, kinds[i], 66 * MIB, 4 * MIB);
        const mp_free_level_t expected[] = {
            {-1, 0},
            {0, 2 * MIB},
            {1, i == 0 ? 4 * MIB : 6 * MIB},
        };
        check(&script, expected, MP_ARRAY_LENGTH(expected));
    }
}

static void
test_free_blocks_are_not_known_where_segments_do_not_add_up(void)
{
    script_t none = {.event_count = 0};
    life(&none, 64 * MIB, MIB, -1);
    check(&none, NULL, 0);
    script_t outside = {.event_count = 0};
    event(&outside, MP_EVENT_SEGMENT_ALLOC, 64 * MIB, 2 * MIB);
    life(&outside, 66 * MIB, MIB, -1);
    check(&outside, NULL, 0);
    script_t freed = {.event_count = 0};
    event(&freed, MP_EVENT_SEGMENT_ALLOC, 64 * MIB, 2 * MIB);
    life(&freed, 65 * MIB, 1, -1);
    event(&freed, MP_EVENT_SEGMENT_FREE, 64 * MIB, 2 * MIB);
    check(&freed, NULL, 0);
}

static void
test_free_blocks_survive_any_number(void)
{
    script_t script = {.event_count = 0};
    event(&script, MP_EVENT_SEED_SEGMENT, 0, UINT64_MAX);
    event(&script, MP_EVENT_SEGMENT_MAP, UINT64_MAX - 5, 10); /* wraps: none */
    life(&script, UINT64_MAX - 3, 100, -1);
    const mp_free_level_t expected[] = {{-1, INT64_MAX}};
    check(&script, expected, 1);
}

MP_TEST_SUITE(
    free_blocks, MP_TEST(test_free_blocks_follow_blocks),
    MP_TEST(test_free_blocks_join_pages_not_segments),
    MP_TEST(test_free_blocks_are_not_known_where_segments_do_not_add_up),
    MP_TEST(test_free_blocks_survive_any_number))
