/* category.c - the rules, in order; the first that matches decides.
 *
 *  1  a role was claimed for the storage while it was live; but what a
 *     forward made as part of a graph is no input of the next one.  A file
 *     that was read in may tell of any category
 *  2  library scratch that torch holds: made inside a matrix product after
 *     its result, of a size that cuBLAS workspaces have, the first of its
 *     thread, stream and size, and never given back
 *  3  freed inside the outermost op that made it, or born and freed inside
 *     an optimizer step: temporary
 *  4  older than the recording and nothing else known: unknown, unless a
 *     cuBLAS workspace has its size
 *     or read from a file that does not tell what was running: unknown, unless
 *     a data loader made it
 *  5  born in backward: recomputed activation under checkpointing, else
 *     autograd_detail
 *  6  born in forward: activation, "saved" when its death falls in backward.
 *     Without grad mode it is a temporary if the forward that made it freed
 *     it, else a kept output
 *  7  born outside of all that: an activation if a backward freed it; told
 *     by the Python stack (a data loader, DistributedDataParallel); an input
 *     if it is a copy to the device; a temporary if made without grad and
 * freed in its step 8  unknown */
#include "category.h"

#include "mem.h"

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

/* What moves a tensor to a device, if nothing around it does more. */
static const char *const copy_ops[] = {"aten::to", "aten::_to_copy",
                                       "aten::copy_"};

/* Sizes of torch's workspaces in KiB: `:4096:2:16:8` (the default before
 * Hopper), `:4096:8` (Hopper), `:16:8`, and cuBLASLt's. */
static bool
is_workspace_size(uint64_t size)
{
    return size == UINT64_C(8320) << 10 || size == UINT64_C(32768) << 10 ||
           size == UINT64_C(128) << 10 || size == UINT64_C(1024) << 10;
}

static bool
op_is_one_of(const mp_intern_t *intern, uint32_t op, const char *const *names,
             size_t count)
{
    const char *text;
    size_t length;
    if (op == MP_NO_INDEX || !mp_intern_text(intern, op, &text, &length)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, names[i]) == 0) {
            return true;
        }
    }
    return false;
}

static bool
is_matrix_op(const mp_intern_t *intern, uint32_t op)
{
    return op_is_one_of(intern, op, matrix_ops, MP_ARRAY_LENGTH(matrix_ops));
}

/* A batch on its way to the model: labels, too, which no module gets. */
static bool
is_copy_op(const mp_intern_t *intern, const mp_allocation_t *row)
{
    return op_is_one_of(intern, row->op, copy_ops, MP_ARRAY_LENGTH(copy_ops));
}

#define MAX_WORKSPACES 64
#define THREADS 64 /* a power of two */
#define NOT_ASKED 0xFFu

/* What the rules know beyond the row. */
typedef struct {
    const mp_intern_t *intern;
    /* The op in which a thread made its last block. */
    struct {
        uint32_t thread, op_instance;
    } last[THREADS];
    /* Workspaces so far. */
    const mp_allocation_t *workspaces[MAX_WORKSPACES];
    uint32_t workspace_count;
    /* Of each stack, what it says; NULL: out of memory, ask each time. */
    uint8_t *said;
    uint32_t stacks; /* how many: others may come meanwhile */
} judge_t;

static bool
is_older(const mp_allocation_t *row)
{
    return row->born_event < 0 && row->thread == 0;
}

static bool
note_workspace(judge_t *judge, const mp_allocation_t *row)
{
    if (judge->workspace_count == MAX_WORKSPACES) {
        return false;
    }
    judge->workspaces[judge->workspace_count++] = row;
    return true;
}

/* Whether a block older than the recording is a workspace by its size alone:
 * hardly anything else is that large and of exactly that size. */
static bool
is_large_workspace(const mp_allocation_t *row)
{
    return is_older(row) && row->died_event < 0 && row->role == MP_ROLE_NONE &&
           row->device != MP_DEVICE_CPU && row->size >= UINT64_C(8) << 20 &&
           is_workspace_size(row->size);
}

/* Whether ROW is a library's: torch makes one for each handle and stream, and
 * handles belong to threads.  Whose an older one was is not known: of each
 * small size there may be as many on a stream as there are of the large,
 * which are of as many handles. */
static bool
is_workspace(judge_t *judge, const mp_allocation_t *row)
{
    if (is_large_workspace(row)) {
        return true; /* noted */
    }
    uint32_t same = 0, large = 0;
    for (uint32_t i = 0; i < judge->workspace_count; i++) {
        const mp_allocation_t *other = judge->workspaces[i];
        if (other->device == row->device && other->thread == row->thread &&
            other->stream == row->stream) {
            same += other->size == row->size;
            large += is_large_workspace(other);
        }
    }
    return (same == 0 || same < large) && note_workspace(judge, row);
}

/* Notes the op that made ROW; whether it made another block before. */
static bool
follows_in_op(judge_t *judge, const mp_allocation_t *row)
{
    if (row->born_event < 0 || (row->flags & MP_FLAG_IN_OP) == 0) {
        return false;
    }
    size_t slot = row->thread & (THREADS - 1);
    bool follows = judge->last[slot].thread == row->thread &&
                   judge->last[slot].op_instance == row->op_instance;
    judge->last[slot].thread = row->thread;
    judge->last[slot].op_instance = row->op_instance;
    return follows;
}

/* What one frame says of a birth outside of everything. */
static mp_reason_t
frame_says(const mp_intern_t *intern, uint32_t id)
{
    static const struct {
        const char *file;
        mp_reason_t reason;
    } files[] = {
        {"torch/nn/parallel/distributed.py", MP_REASON_DDP_BUCKET},
        {"torch/utils/data/", MP_REASON_DATA_LOADER},
    };
    mp_frame_t frame;
    const char *text;
    size_t length;
    if (!mp_intern_get_frame(intern, id, &frame) ||
        !mp_intern_text(intern, frame.file, &text, &length)) {
        return MP_REASON_NONE;
    }
    for (size_t i = 0; i < MP_ARRAY_LENGTH(files); i++) {
        if (memmem(text, length, files[i].file, strlen(files[i].file))) {
            return files[i].reason;
        }
    }
    return MP_REASON_NONE;
}

/* What the Python frames above such a birth say, the innermost first.  Each
 * stack is looked into once: many blocks have few stacks, and stacks share
 * their outer frames. */
static mp_reason_t
stack_says(judge_t *judge, uint32_t stack)
{
    uint32_t looked = stack;
    uint32_t known = judge->said == NULL ? 0 : judge->stacks;
    mp_reason_t reason = MP_REASON_NONE;
    mp_stack_t level;
    while (reason == MP_REASON_NONE &&
           mp_intern_get_stack(judge->intern, looked, &level)) {
        if (looked < known && judge->said[looked] != NOT_ASKED) {
            reason = (mp_reason_t)judge->said[looked];
            break;
        }
        reason = frame_says(judge->intern, level.frame);
        looked = level.parent;
    }
    /* So much do all the stacks say that were looked at on the way. */
    for (; stack != looked && stack < known &&
           mp_intern_get_stack(judge->intern, stack, &level);
         stack = level.parent) {
        judge->said[stack] = (uint8_t)reason;
    }
    return reason;
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
        if (row->phase == MP_PHASE_FORWARD &&
            (row->flags & MP_FLAG_MADE_NODE)) {
            return false;
        }
        decide(row, MP_CATEGORY_INPUT, MP_REASON_INPUT);
        return true;
    default:
        if (row->role < MP_ROLE_TOLD ||
            row->role >= MP_ROLE_TOLD + MP_CATEGORY_COUNT) {
            return false;
        }
        decide(row, (mp_category_t)(row->role - MP_ROLE_TOLD), MP_REASON_TOLD);
        return true;
    }
}

static void
assign_outside(judge_t *judge, mp_allocation_t *row, bool dead)
{
    if (dead && row->died_phase == MP_PHASE_BACKWARD) {
        decide(row, MP_CATEGORY_ACTIVATION, MP_REASON_SAVED);
        return;
    }
    bool brief = dead && row->died_step == row->born_step;
    mp_reason_t reason = stack_says(judge, row->stack);
    if (reason == MP_REASON_DDP_BUCKET && !brief) {
        decide(row, MP_CATEGORY_GRADIENT, reason);
    }
    else if (reason == MP_REASON_DATA_LOADER) {
        decide(row, MP_CATEGORY_INPUT, reason);
    }
    else if (row->device != MP_DEVICE_CPU && is_copy_op(judge->intern, row)) {
        decide(row, MP_CATEGORY_INPUT, MP_REASON_COPIED);
    }
    else if (brief && (row->flags & MP_FLAG_GRAD_MODE) == 0 &&
             row->died_phase == MP_PHASE_OTHER) {
        decide(row, MP_CATEGORY_TEMPORARY, MP_REASON_NO_GRAD_SCRATCH);
    }
    else {
        decide(row, MP_CATEGORY_UNKNOWN, MP_REASON_OUTSIDE);
    }
}

static void
assign(judge_t *judge, mp_allocation_t *row)
{
    bool dead = row->died_event >= 0;
    bool older = is_older(row);
    bool follows = follows_in_op(judge, row);
    if (by_role(row)) {
        return;
    }
    if (!dead && row->device != MP_DEVICE_CPU &&
        is_workspace_size(row->size) &&
        (older || ((follows || row->born_event < 0) &&
                   is_matrix_op(judge->intern, row->op))) &&
        is_workspace(judge, row)) {
        decide(row, MP_CATEGORY_WORKSPACE,
               older ? MP_REASON_WORKSPACE_SIZE : MP_REASON_WORKSPACE);
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
    if (older) {
        decide(row, MP_CATEGORY_UNKNOWN, MP_REASON_BEFORE_START);
        return;
    }
    if (row->flags & MP_FLAG_UNTOLD) {
        mp_reason_t reason = stack_says(judge, row->stack);
        bool input = reason == MP_REASON_DATA_LOADER;
        decide(row, input ? MP_CATEGORY_INPUT : MP_CATEGORY_UNKNOWN,
               input ? reason : MP_REASON_UNTOLD);
        return;
    }
    switch (row->phase) {
    case MP_PHASE_BACKWARD:
        if (row->flags & MP_FLAG_RECOMPUTE) {
            decide(row, MP_CATEGORY_ACTIVATION, MP_REASON_RECOMPUTED);
        }
        else {
            decide(row, MP_CATEGORY_AUTOGRAD_DETAIL, MP_REASON_IN_BACKWARD);
        }
        break;
    case MP_PHASE_FORWARD:
        if (dead && row->died_phase == MP_PHASE_BACKWARD) {
            decide(row, MP_CATEGORY_ACTIVATION, MP_REASON_SAVED);
        }
        else if (row->flags & (MP_FLAG_GRAD_MODE | MP_FLAG_MADE_NODE)) {
            decide(row, MP_CATEGORY_ACTIVATION, MP_REASON_OUTLIVED_OP);
        }
        else if (dead && (row->flags & MP_FLAG_DIED_IN_FORWARD)) {
            decide(row, MP_CATEGORY_TEMPORARY, MP_REASON_FORWARD_SCRATCH);
        }
        else {
            decide(row, MP_CATEGORY_ACTIVATION, MP_REASON_KEPT_OUTPUT);
        }
        break;
    case MP_PHASE_OTHER:
        assign_outside(judge, row, dead);
        break;
    default: /* an optimizer's, that outlived the step and is no state */
        decide(row, MP_CATEGORY_UNKNOWN, MP_REASON_NONE);
        break;
    }
}

void
mp_category_assign(mp_allocation_t *allocations, size_t count,
                   const mp_intern_t *intern)
{
    uint32_t stacks = mp_intern_stacks(intern);
    judge_t judge = {
        .intern = intern, .said = mp_calloc(stacks, 1), .stacks = stacks};
    if (judge.said != NULL) {
        memset(judge.said, NOT_ASKED, stacks);
    }
    for (size_t i = 0; i < count; i++) {
        if (is_large_workspace(&allocations[i])) {
            note_workspace(&judge, &allocations[i]);
        }
    }
    for (size_t i = 0; i < count; i++) {
        assign(&judge, &allocations[i]);
    }
    mp_free(judge.said);
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
