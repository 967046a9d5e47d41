/* test_category.c - each rule, and which comes before which. */
#include "category.h"
#include "mem.h"
#include "mp_test.h"

#include <string.h>

enum {
    MM,
    RELU,
    WORKSPACE_BYTES = 8320 * 1024
};

static mp_intern_t *
new_intern(void)
{
    mp_intern_t *intern = NULL;
    MP_CHECK(mp_intern_new(&intern) == MP_OK);
    MP_CHECK_EQ(mp_intern_string(intern, "aten::mm", 8), MM);
    MP_CHECK_EQ(mp_intern_string(intern, "aten::relu", 10), RELU);
    return intern;
}

/* A life of which nothing is known: alive, born while we looked. */
static mp_allocation_t
blank(void)
{
    return (mp_allocation_t){
        .size = 64,
        .born_event = 5,
        .died_event = -1,
        .completed_event = -1,
        .thread = 1,
        .op = RELU,
        .born_step = 1,
        .died_step = -1,
        .category = 99,
        .reason = 99,
    };
}

static mp_allocation_t
born_in(uint8_t phase, uint16_t flags)
{
    mp_allocation_t row = blank();
    row.phase = phase;
    row.flags = flags;
    return row;
}

static mp_allocation_t
dead(mp_allocation_t row, uint8_t phase, int32_t step)
{
    row.died_event = 9;
    row.died_phase = phase;
    row.died_step = step;
    return row;
}

static void
check(mp_allocation_t row, mp_category_t category, mp_reason_t reason)
{
    mp_intern_t *intern = new_intern();
    mp_category_assign(&row, 1, intern);
    MP_CHECK_EQ(row.category, category);
    MP_CHECK_EQ(row.reason, reason);
    mp_intern_free(intern);
}

static void
test_category_role_comes_first(void)
{
    static const struct {
        uint8_t role, category, reason;
    } cases[] = {
        {MP_ROLE_PARAMETER, MP_CATEGORY_PARAMETER, MP_REASON_PARAMETER},
        {MP_ROLE_BUFFER, MP_CATEGORY_PARAMETER, MP_REASON_BUFFER},
        {MP_ROLE_GRADIENT, MP_CATEGORY_GRADIENT, MP_REASON_GRADIENT},
        {MP_ROLE_OPTIMIZER_STATE, MP_CATEGORY_OPTIMIZER_STATE,
         MP_REASON_OPTIMIZER_STATE},
        {MP_ROLE_INPUT, MP_CATEGORY_INPUT, MP_REASON_INPUT},
    };
    for (size_t i = 0; i < MP_ARRAY_LENGTH(cases); i++) {
        mp_allocation_t row = blank();
        row.role = cases[i].role;
        check(row, cases[i].category, cases[i].reason);
        row.op = MM; /* as a workspace */
        row.size = WORKSPACE_BYTES;
        check(row, cases[i].category, cases[i].reason);
        row = dead(row, MP_PHASE_BACKWARD, 1);
        row.died_in_op = 1;
        row.phase = MP_PHASE_BACKWARD;
        row.born_event = -1;
        check(row, cases[i].category, cases[i].reason);
    }
}

/* ROW, made in an op after its result. */
static void
check_scratch(mp_allocation_t row, mp_category_t category, mp_reason_t reason)
{
    mp_intern_t *intern = new_intern();
    row.flags |= MP_FLAG_IN_OP;
    mp_allocation_t rows[3] = {row, row, row};
    rows[0].size = 100;
    rows[2].op_instance++;
    mp_category_assign(rows, 3, intern);
    MP_CHECK_EQ(rows[1].category, category);
    MP_CHECK_EQ(rows[1].reason, reason);
    /* In the next op it is the first and so the result. */
    MP_CHECK_EQ(rows[2].category, MP_CATEGORY_ACTIVATION);
    mp_intern_free(intern);
}

static void
test_category_workspace_is_scratch_that_stays(void)
{
    static const uint32_t sizes[] = {WORKSPACE_BYTES, 32 << 20, 1 << 20,
                                     128 << 10};
    mp_allocation_t row = born_in(MP_PHASE_FORWARD, MP_FLAG_GRAD_MODE);
    row.op = MM;
    for (size_t i = 0; i < MP_ARRAY_LENGTH(sizes); i++) {
        row.size = sizes[i];
        check_scratch(row, MP_CATEGORY_WORKSPACE, MP_REASON_WORKSPACE);
        check(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
    }
    row.size += 1;
    check_scratch(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
    row.size -= 1;
    row.device = MP_DEVICE_CPU;
    check_scratch(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
    row.device = 0;
    row.op = RELU;
    check_scratch(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
    row.op = MP_NO_INDEX;
    check_scratch(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
    row.op = 12345; /* no such string */
    check_scratch(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
    row.op = MM;
    check_scratch(dead(row, MP_PHASE_BACKWARD, 1), MP_CATEGORY_ACTIVATION,
                  MP_REASON_SAVED);
}

static void
test_category_workspace_is_one_for_each_thread_stream_and_size(void)
{
    mp_intern_t *intern = new_intern();
    mp_allocation_t rows[8];
    for (size_t i = 0; i < MP_ARRAY_LENGTH(rows); i++) {
        rows[i] = born_in(MP_PHASE_FORWARD, MP_FLAG_GRAD_MODE | MP_FLAG_IN_OP);
        rows[i].op = MM;
        rows[i].op_instance = (uint32_t)(i / 2);
        rows[i].size = i % 2 == 0 ? 100 : 1 << 20;
    }
    rows[4].thread = rows[5].thread = 2;
    rows[7].stream = 3;
    rows[0].born_event = -1; /* of a step before the recording */
    rows[0].size = 32 << 20;
    mp_category_assign(rows, MP_ARRAY_LENGTH(rows), intern);
    MP_CHECK_EQ(rows[0].category, MP_CATEGORY_WORKSPACE);
    rows[0].born_event = 5;
    rows[0].size = 100;
    mp_category_assign(rows, MP_ARRAY_LENGTH(rows), intern);
    MP_CHECK_EQ(rows[0].category, MP_CATEGORY_ACTIVATION);
    MP_CHECK_EQ(rows[1].category, MP_CATEGORY_WORKSPACE);
    MP_CHECK_EQ(rows[3].category, MP_CATEGORY_ACTIVATION); /* a second one */
    MP_CHECK_EQ(rows[5].category, MP_CATEGORY_WORKSPACE);
    MP_CHECK_EQ(rows[7].category, MP_CATEGORY_WORKSPACE);
    mp_intern_free(intern);
}

static void
test_category_older_small_workspaces_are_as_many_as_the_large(void)
{
    mp_intern_t *intern = new_intern();
    mp_allocation_t rows[7];
    for (size_t i = 0; i < MP_ARRAY_LENGTH(rows); i++) {
        rows[i] = born_in(MP_PHASE_FORWARD, 0);
        rows[i].born_event = -1;
        rows[i].thread = 0;
        rows[i].size = i < 4 ? 1 << 20 : 32 << 20;
    }
    rows[3].stream = rows[6].stream = 3;
    mp_category_assign(rows, MP_ARRAY_LENGTH(rows), intern);
    MP_CHECK_EQ(rows[0].category, MP_CATEGORY_WORKSPACE);
    MP_CHECK_EQ(rows[1].category, MP_CATEGORY_WORKSPACE);
    MP_CHECK_EQ(rows[2].category, MP_CATEGORY_UNKNOWN); /* a third of two */
    MP_CHECK_EQ(rows[3].category, MP_CATEGORY_WORKSPACE);
    for (size_t i = 4; i < MP_ARRAY_LENGTH(rows); i++) {
        MP_CHECK_EQ(rows[i].category, MP_CATEGORY_WORKSPACE);
    }
    /* What has a role is no handle's. */
    rows[5].role = MP_ROLE_PARAMETER;
    mp_category_assign(rows, MP_ARRAY_LENGTH(rows), intern);
    MP_CHECK_EQ(rows[0].category, MP_CATEGORY_WORKSPACE);
    MP_CHECK_EQ(rows[1].category, MP_CATEGORY_UNKNOWN);
    mp_intern_free(intern);
}

static void
test_category_dead_inside_its_op_is_temporary(void)
{
    for (uint8_t phase = 0; phase <= MP_PHASE_OPTIMIZER; phase++) {
        mp_allocation_t row =
            dead(born_in(phase, MP_FLAG_GRAD_MODE), phase, 1);
        row.died_in_op = 1;
        check(row, MP_CATEGORY_TEMPORARY, MP_REASON_IN_OP);
    }
}

static void
test_category_optimizer_scratch_is_temporary(void)
{
    mp_allocation_t row = born_in(MP_PHASE_OPTIMIZER, 0);
    check(dead(row, MP_PHASE_OPTIMIZER, 1), MP_CATEGORY_TEMPORARY,
          MP_REASON_IN_OPTIMIZER);
    check(dead(row, MP_PHASE_OPTIMIZER, 2), MP_CATEGORY_UNKNOWN,
          MP_REASON_NONE); /* lived into the next step */
    check(dead(row, MP_PHASE_FORWARD, 1), MP_CATEGORY_UNKNOWN, MP_REASON_NONE);
    check(row, MP_CATEGORY_UNKNOWN, MP_REASON_NONE);
}

static void
test_category_older_than_the_recording_is_unknown(void)
{
    mp_allocation_t row = born_in(MP_PHASE_FORWARD, MP_FLAG_GRAD_MODE);
    row.born_event = -1;
    row.thread = 0;
    check(row, MP_CATEGORY_UNKNOWN, MP_REASON_BEFORE_START);
    row.size = 32 << 20;
    check(row, MP_CATEGORY_WORKSPACE, MP_REASON_WORKSPACE_SIZE);
    row.device = MP_DEVICE_CPU;
    check(row, MP_CATEGORY_UNKNOWN, MP_REASON_BEFORE_START);
    row.thread = 1; /* followed in the steps before: its birth is known */
    check(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
}

static void
test_category_born_in_backward(void)
{
    mp_allocation_t row = born_in(MP_PHASE_BACKWARD, 0);
    check(row, MP_CATEGORY_AUTOGRAD_DETAIL, MP_REASON_IN_BACKWARD);
    row.flags = MP_FLAG_RECOMPUTE | MP_FLAG_GRAD_MODE;
    check(row, MP_CATEGORY_ACTIVATION, MP_REASON_RECOMPUTED);
}

static void
test_category_born_in_forward_with_grad(void)
{
    mp_allocation_t row = born_in(MP_PHASE_FORWARD, MP_FLAG_GRAD_MODE);
    check(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
    check(dead(row, MP_PHASE_FORWARD, 1), MP_CATEGORY_ACTIVATION,
          MP_REASON_OUTLIVED_OP);
    check(dead(row, MP_PHASE_BACKWARD, 1), MP_CATEGORY_ACTIVATION,
          MP_REASON_SAVED);
}

static void
test_category_born_in_forward_without_grad(void)
{
    mp_allocation_t row = born_in(MP_PHASE_FORWARD, 0);
    check(row, MP_CATEGORY_ACTIVATION, MP_REASON_KEPT_OUTPUT);
    check(dead(row, MP_PHASE_OTHER, 1), MP_CATEGORY_ACTIVATION,
          MP_REASON_KEPT_OUTPUT);
    check(dead(row, MP_PHASE_FORWARD, 1), MP_CATEGORY_ACTIVATION,
          MP_REASON_KEPT_OUTPUT); /* in another one: a cache */
    row.flags = MP_FLAG_DIED_IN_FORWARD;
    check(dead(row, MP_PHASE_FORWARD, 1), MP_CATEGORY_TEMPORARY,
          MP_REASON_FORWARD_SCRATCH);
    row.flags = 0; /* as in a Function's forward */
    check(dead(row, MP_PHASE_BACKWARD, 1), MP_CATEGORY_ACTIVATION,
          MP_REASON_SAVED);
    row.flags = MP_FLAG_MADE_NODE;
    check(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
}

static void
test_category_argument_that_is_part_of_a_graph_is_no_input(void)
{
    mp_allocation_t row =
        born_in(MP_PHASE_FORWARD,
                MP_FLAG_GRAD_MODE | MP_FLAG_IN_MODULE | MP_FLAG_MADE_NODE);
    row.role = MP_ROLE_INPUT; /* a generator's image, given to the critic */
    check(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
    row.flags &= (uint16_t)~MP_FLAG_MADE_NODE; /* of a transform */
    check(row, MP_CATEGORY_INPUT, MP_REASON_INPUT);
}

static uint32_t
stack_in(mp_intern_t *intern, const char *file)
{
    uint32_t name = mp_intern_string(intern, file, strlen(file));
    uint32_t inner = mp_intern_string(intern, "inner.py", 8);
    uint32_t stack = mp_intern_stack(intern, MP_NO_INDEX,
                                     mp_intern_frame(intern, name, name, 5));
    return mp_intern_stack(intern, stack,
                           mp_intern_frame(intern, inner, inner, 7));
}

static void
test_category_outside_of_everything(void)
{
    mp_allocation_t row = blank();
    row.stack = MP_NO_INDEX;
    check(row, MP_CATEGORY_UNKNOWN, MP_REASON_OUTSIDE);
    check(dead(row, MP_PHASE_FORWARD, 1), MP_CATEGORY_UNKNOWN,
          MP_REASON_OUTSIDE);
    check(dead(row, MP_PHASE_OTHER, 2), MP_CATEGORY_UNKNOWN,
          MP_REASON_OUTSIDE); /* lived into the next step */
    check(dead(row, MP_PHASE_OTHER, 1), MP_CATEGORY_TEMPORARY,
          MP_REASON_NO_GRAD_SCRATCH);
    check(dead(row, MP_PHASE_BACKWARD, 1), MP_CATEGORY_ACTIVATION,
          MP_REASON_SAVED);
    row.flags = MP_FLAG_GRAD_MODE;
    check(dead(row, MP_PHASE_OTHER, 1), MP_CATEGORY_UNKNOWN,
          MP_REASON_OUTSIDE);

    mp_intern_t *intern = new_intern();
    mp_allocation_t rows[3] = {row, row, row};
    rows[0].stack = stack_in(intern, "/x/torch/utils/data/dataloader.py");
    rows[1].stack = stack_in(intern, "/x/torch/nn/parallel/distributed.py");
    rows[2].stack = stack_in(intern, "/x/torch/nn/parallel/other.py");
    mp_category_assign(rows, 3, intern);
    MP_CHECK_EQ(rows[0].category, MP_CATEGORY_INPUT);
    MP_CHECK_EQ(rows[0].reason, MP_REASON_DATA_LOADER);
    MP_CHECK_EQ(rows[1].category, MP_CATEGORY_GRADIENT);
    MP_CHECK_EQ(rows[1].reason, MP_REASON_DDP_BUCKET);
    MP_CHECK_EQ(rows[2].category, MP_CATEGORY_UNKNOWN);
    /* Stacks that share frames, asked in any order, outer ones by themselves.
     */
    mp_stack_t level;
    MP_CHECK(mp_intern_get_stack(intern, rows[0].stack, &level));
    uint32_t name = mp_intern_string(intern, "else.py", 7);
    uint32_t other = mp_intern_stack(intern, level.parent,
                                     mp_intern_frame(intern, name, name, 3));
    mp_allocation_t more[5] = {row, row, row, row, row};
    more[0].stack = rows[0].stack;
    more[1].stack = level.parent;
    more[2].stack = other;
    more[3].stack = rows[2].stack;
    more[4].stack = rows[0].stack;
    mp_category_assign(more, 5, intern);
    for (size_t i = 0; i < MP_ARRAY_LENGTH(more); i++) {
        MP_CHECK_EQ(more[i].reason,
                    i == 3 ? MP_REASON_OUTSIDE : MP_REASON_DATA_LOADER);
    }
    mp_mem_fail_after(1);
    mp_category_assign(more, 5, intern); /* no room to remember: the same */
    mp_mem_fail_after(0);
    MP_CHECK_EQ(more[4].reason, MP_REASON_DATA_LOADER);
    rows[2].op = mp_intern_string(intern, "aten::to", 8);
    mp_category_assign(rows, 3, intern);
    MP_CHECK_EQ(rows[2].category, MP_CATEGORY_INPUT);
    MP_CHECK_EQ(rows[2].reason, MP_REASON_COPIED);
    rows[2].device = MP_DEVICE_CPU;
    mp_category_assign(rows, 3, intern);
    MP_CHECK_EQ(rows[2].category, MP_CATEGORY_UNKNOWN);
    mp_intern_free(intern);
}

static void
test_category_may_be_assigned_again(void)
{
    mp_intern_t *intern = new_intern();
    mp_allocation_t rows[2] = {blank(), blank()};
    mp_category_assign(rows, 2, intern);
    rows[1].role = MP_ROLE_INPUT;
    mp_category_assign(rows, 2, intern);
    MP_CHECK_EQ(rows[0].category, MP_CATEGORY_UNKNOWN);
    MP_CHECK_EQ(rows[1].category, MP_CATEGORY_INPUT);
    mp_category_assign(rows, 0, intern);
    mp_intern_free(intern);
}

static void
test_category_numbers_have_texts(void)
{
    MP_CHECK_STR(mp_category_text(MP_CATEGORY_AUTOGRAD_DETAIL),
                 "autograd_detail");
    MP_CHECK(mp_category_text(MP_CATEGORY_COUNT - 1) != NULL);
    MP_CHECK(mp_category_text(MP_CATEGORY_COUNT) == NULL);
    MP_CHECK_STR(mp_reason_text(MP_REASON_SAVED), "saved for backward");
    MP_CHECK(mp_reason_text(255) == NULL);
}

MP_TEST_SUITE(
    category, MP_TEST(test_category_role_comes_first),
    MP_TEST(test_category_workspace_is_scratch_that_stays),
    MP_TEST(test_category_workspace_is_one_for_each_thread_stream_and_size),
    MP_TEST(test_category_older_small_workspaces_are_as_many_as_the_large),
    MP_TEST(test_category_argument_that_is_part_of_a_graph_is_no_input),
    MP_TEST(test_category_dead_inside_its_op_is_temporary),
    MP_TEST(test_category_optimizer_scratch_is_temporary),
    MP_TEST(test_category_older_than_the_recording_is_unknown),
    MP_TEST(test_category_born_in_backward),
    MP_TEST(test_category_born_in_forward_with_grad),
    MP_TEST(test_category_born_in_forward_without_grad),
    MP_TEST(test_category_outside_of_everything),
    MP_TEST(test_category_may_be_assigned_again),
    MP_TEST(test_category_numbers_have_texts))
