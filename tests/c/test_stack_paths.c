/* test_stack_paths.c - the frames of many stacks, innermost first. */
#include "mem.h"
#include "mp_test.h"
#include "stack_paths.h"

static mp_intern_t *
with_two_stacks(uint32_t *deep, uint32_t *flat)
{
    mp_intern_t *intern = NULL;
    MP_CHECK(mp_intern_new(&intern) == MP_OK);
    uint32_t text = mp_intern_string(intern, "f", 1);
    uint32_t outer = mp_intern_frame(intern, text, text, 1);
    uint32_t inner = mp_intern_frame(intern, text, text, 2);
    *flat = mp_intern_stack(intern, MP_NO_INDEX, outer);
    *deep = mp_intern_stack(intern, *flat, inner);
    return intern;
}

static void
test_stack_paths_are_innermost_first_and_none_for_no_stack(void)
{
    uint32_t deep, flat;
    mp_intern_t *intern = with_two_stacks(&deep, &flat);
    uint32_t asked[] = {deep, MP_NO_INDEX, flat, 1000, deep};
    mp_stack_paths_t paths;
    MP_CHECK(mp_stack_paths_build(intern, asked, 5, &paths) == MP_OK);
    int64_t offsets[] = {0, 2, 2, 3, 3, 5};
    uint32_t frames[] = {1, 0, 0, 1, 0};
    for (int i = 0; i < 6; i++) {
        MP_CHECK_EQ(paths.offsets[i], offsets[i]);
    }
    for (int i = 0; i < 5; i++) {
        MP_CHECK_EQ(paths.frames[i], frames[i]);
    }
    mp_stack_paths_clear(&paths);
    MP_CHECK(mp_stack_paths_build(intern, NULL, 0, &paths) == MP_OK);
    MP_CHECK_EQ(paths.offsets[0], 0);
    mp_stack_paths_clear(&paths);
    mp_intern_free(intern);
}

static void
test_stack_paths_list_all_frames(void)
{
    uint32_t deep, flat;
    mp_intern_t *intern = with_two_stacks(&deep, &flat);
    mp_frame_t *frames;
    size_t count;
    MP_CHECK(mp_stack_paths_frames(intern, &frames, &count) == MP_OK);
    MP_CHECK_EQ(count, 2);
    MP_CHECK_EQ(frames[0].line, 1);
    MP_CHECK_EQ(frames[1].line, 2);
    mp_free(frames);
    mp_intern_free(intern);
}

static void
test_stack_paths_survive_every_failed_allocation(void)
{
    uint32_t deep, flat;
    mp_intern_t *intern = with_two_stacks(&deep, &flat);
    size_t before = mp_mem_bytes();
    mp_stack_paths_t paths;
    for (long n = 1; n <= 2; n++) {
        mp_mem_fail_after(n);
        MP_CHECK(mp_stack_paths_build(intern, &deep, 1, &paths) ==
                 MP_ERR_NOMEM);
        MP_CHECK_EQ(mp_mem_bytes(), before);
    }
    mp_frame_t *frames;
    size_t count;
    mp_mem_fail_after(1);
    MP_CHECK(mp_stack_paths_frames(intern, &frames, &count) == MP_ERR_NOMEM);
    mp_mem_fail_after(0);
    mp_intern_free(intern);
}

MP_TEST_SUITE(
    stack_paths,
    MP_TEST(test_stack_paths_are_innermost_first_and_none_for_no_stack),
    MP_TEST(test_stack_paths_list_all_frames),
    MP_TEST(test_stack_paths_survive_every_failed_allocation))
