/* category.c - the rules, in order; the first that matches decides.
 *
 *  1  a role was claimed for the storage while it was live
 *  2  library scratch that torch holds: made inside a matrix product, of a
 *     size that cuBLAS workspaces have, and never given back
 *  3  freed inside the outermost op that made it, or born and freed inside
 *     an optimizer step: temporary
 *  4  older than the recording and nothing else known: unknown
 *  5  born in backward: recomputed activation under checkpointing, else
 *     autograd_detail
 *  6  born in forward with grad mode on: activation; "saved" when its death
 *     falls in backward
 *  7  born in forward without grad mode: a temporary if freed in a forward,
 *     else a kept output (activation)
 *  8  unknown */
#include "category.h"

#include <string.h>

/* Ops under which torch makes a cuBLAS or cuBLASLt workspace. */
static const char *const matrix_ops[] = {
    "aten::mm",         "aten::addmm",
    "aten::bmm",        "aten::baddbmm",
    "aten::addmv",      "aten::dot",
    "aten::linear",     "aten::_addmm_activation",
    "aten::_scaled_mm", "aten::mv",
    "aten::addmm_",     "aten::_int_mm",
};

/* Sizes of torch's workspaces: `:4096:2:16:8` (8.1 MiB, the default before
 * Hopper), `:4096:8` and 32 MiB (Hopper), and cuBLASLt's 1 MiB steps. */
static bool
is_workspace_size(uint64_t size)
{
    return size == (4096u * 2 + 16 * 8) * 1024u || size == 4096u * 8 * 1024u ||
           size == 33554432u;
}

static bool
is_matrix_op(const mp_intern_t *intern, uint32_t op)
{
    const char *text;
    size_t length;
    if (op == MP_NO_INDEX || !mp_intern_text(intern, op, &text, &length)) {
        return false;
    }
    for (size_t i = 0; i < MP_ARRAY_LENGTH(matrix_ops); i++) {
        if (strcmp(text, matrix_ops[i]) == 0) {
            return true;
        }
    }
    return false;
}

static void
decide(mp_allocation_t *row, mp_category_t category, mp_reason_t reason)
{
    row->category = (uint8_t)category;
    row->reason = (uint8_t)reason;
}

static bool
by_role(mp_allocation_t *row)
{
    switch (row->role) {
    case MP_ROLE_PARAMETER:
        decide(row, MP_CATEGORY_PARAMETER, MP_REASON_PARAMETER);
        return true;
    case MP_ROLE_BUFFER:
        decide(row, MP_CATEGORY_PARAMETER, MP_REASON_BUFFER);
        return true;
    case MP_ROLE_GRADIENT:
        decide(row, MP_CATEGORY_GRADIENT, MP_REASON_GRADIENT);
        return true;
    case MP_ROLE_OPTIMIZER_STATE:
        decide(row, MP_CATEGORY_OPTIMIZER_STATE, MP_REASON_OPTIMIZER_STATE);
        return true;
    case MP_ROLE_INPUT:
        decide(row, MP_CATEGORY_INPUT, MP_REASON_INPUT);
        return true;
    default:
        return false;
    }
}

static void
assign(mp_allocation_t *row, const mp_intern_t *intern)
{
    bool dead = row->died_event >= 0;
    if (by_role(row)) {
        return;
    }
    if (!dead && row->device != MP_DEVICE_CPU &&
        is_workspace_size(row->size) && is_matrix_op(intern, row->op)) {
        decide(row, MP_CATEGORY_WORKSPACE, MP_REASON_WORKSPACE);
        return;
    }
    if (row->died_in_op) {
        decide(row, MP_CATEGORY_TEMPORARY, MP_REASON_IN_OP);
        return;
    }
    if (row->phase == MP_PHASE_OPTIMIZER && dead &&
        row->died_phase == MP_PHASE_OPTIMIZER &&
        row->died_step == row->born_step) {
        decide(row, MP_CATEGORY_TEMPORARY, MP_REASON_IN_OPTIMIZER);
        return;
    }
    if (row->born_event < 0 && row->thread == 0) {
        decide(row, MP_CATEGORY_UNKNOWN, MP_REASON_BEFORE_START);
        return;
    }
    if (row->phase == MP_PHASE_BACKWARD) {
        if (row->flags & MP_FLAG_RECOMPUTE) {
            decide(row, MP_CATEGORY_ACTIVATION, MP_REASON_RECOMPUTED);
        }
        else {
            decide(row, MP_CATEGORY_AUTOGRAD_DETAIL, MP_REASON_IN_BACKWARD);
        }
        return;
    }
    if (row->phase == MP_PHASE_FORWARD) {
        if (row->flags & MP_FLAG_GRAD_MODE) {
            decide(row, MP_CATEGORY_ACTIVATION,
                   dead && row->died_phase == MP_PHASE_BACKWARD
                       ? MP_REASON_SAVED
                       : MP_REASON_OUTLIVED_OP);
        }
        else if (dead && row->died_phase == MP_PHASE_FORWARD) {
            decide(row, MP_CATEGORY_TEMPORARY, MP_REASON_FORWARD_SCRATCH);
        }
        else {
            decide(row, MP_CATEGORY_ACTIVATION, MP_REASON_KEPT_OUTPUT);
        }
        return;
    }
    decide(row, MP_CATEGORY_UNKNOWN, MP_REASON_NONE);
}

void
mp_category_assign(mp_allocation_t *allocations, size_t count,
                   const mp_intern_t *intern)
{
    for (size_t i = 0; i < count; i++) {
        assign(&allocations[i], intern);
    }
}

const char *
mp_category_text(uint8_t category)
{
    switch (category) {
#define X(name, number, text)                                                 \
    case number:                                                              \
        return text;
        MP_CATEGORY_LIST(X)
#undef X
    default:
        return NULL;
    }
}

const char *
mp_reason_text(uint8_t reason)
{
    switch (reason) {
#define X(name, number, text)                                                 \
    case number:                                                              \
        return text;
        MP_REASON_LIST(X)
#undef X
    default:
        return NULL;
    }
}
