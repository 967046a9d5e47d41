/* test_category.c - each rule, and which comes before which. */
#include "category.h"
#include "mp_test.h"

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

static void
test_category_workspace_is_scratch_that_stays(void)
{
    mp_allocation_t row = born_in(MP_PHASE_FORWARD, MP_FLAG_GRAD_MODE);
    row.op = MM;
    row.size = WORKSPACE_BYTES;
    check(row, MP_CATEGORY_WORKSPACE, MP_REASON_WORKSPACE);
    row.size = 32 << 20; /* Hopper's */
    check(row, MP_CATEGORY_WORKSPACE, MP_REASON_WORKSPACE);
    row.size += 1;
    check(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
    row.size -= 1;
    row.device = MP_DEVICE_CPU;
    check(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
    row.device = 0;
    row.op = RELU;
    check(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
    row.op = MP_NO_INDEX;
    check(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
    row.op = 12345; /* no such string */
    check(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
    row.op = MM;
    check(dead(row, MP_PHASE_BACKWARD, 1), MP_CATEGORY_ACTIVATION,
          MP_REASON_SAVED);
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
    check(dead(row, MP_PHASE_FORWARD, 1), MP_CATEGORY_TEMPORARY,
          MP_REASON_FORWARD_SCRATCH);
}

static void
test_category_without_evidence_is_unknown(void)
{
    check(blank(), MP_CATEGORY_UNKNOWN, MP_REASON_NONE);
    check(dead(blank(), MP_PHASE_OTHER, 1), MP_CATEGORY_UNKNOWN,
          MP_REASON_NONE);
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

MP_TEST_SUITE(category, MP_TEST(test_category_role_comes_first),
              MP_TEST(test_category_workspace_is_scratch_that_stays),
              MP_TEST(test_category_dead_inside_its_op_is_temporary),
              MP_TEST(test_category_optimizer_scratch_is_temporary),
              MP_TEST(test_category_older_than_the_recording_is_unknown),
              MP_TEST(test_category_born_in_backward),
              MP_TEST(test_category_born_in_forward_with_grad),
              MP_TEST(test_category_born_in_forward_without_grad),
              MP_TEST(test_category_without_evidence_is_unknown),
              MP_TEST(test_category_may_be_assigned_again),
              MP_TEST(test_category_numbers_have_texts))
