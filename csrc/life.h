/* life.h - one life: a block of memory from its birth to its end.
 *
 * The row, and the words that rows use.  Rows are made and ended by tracker.c
 * and judged by category.c; NumPy sees them as they are.  Holds no state. */
#ifndef MP_LIFE_H
#define MP_LIFE_H

#include "event.h"

/* Categories; the order is that of the files (docs/formats).
 * X(NAME, number, text) */
#define MP_CATEGORY_LIST(X)                                                   \
    X(PARAMETER, 0, "parameter")                                              \
    X(OPTIMIZER_STATE, 1, "optimizer_state")                                  \
    X(INPUT, 2, "input")                                                      \
    X(TEMPORARY, 3, "temporary")                                              \
    X(ACTIVATION, 4, "activation")                                            \
    X(GRADIENT, 5, "gradient")                                                \
    X(AUTOGRAD_DETAIL, 6, "autograd_detail")                                  \
    X(UNKNOWN, 7, "unknown")                                                  \
    X(WORKSPACE, 8, "workspace")

typedef enum {
#define X(name, number, text) MP_CATEGORY_##name = (number),
    MP_CATEGORY_LIST(X)
#undef X
} mp_category_t;

#define MP_CATEGORY_COUNT 9

/* Why a life has its category.  X(NAME, number, text) */
#define MP_REASON_LIST(X)                                                     \
    X(NONE, 0, "no evidence")                                                 \
    X(PARAMETER, 1, "a module's parameter")                                   \
    X(BUFFER, 2, "a module's buffer")                                         \
    X(GRADIENT, 3, "a parameter's .grad")                                     \
    X(OPTIMIZER_STATE, 4, "in optimizer.state")                               \
    X(INPUT, 5, "an argument of a root module")                               \
    X(IN_OP, 6, "born and freed inside its op")                               \
    X(IN_OPTIMIZER, 7, "optimizer scratch")                                   \
    X(IN_BACKWARD, 8, "born in backward")                                     \
    X(SAVED, 9, "saved for backward")                                         \
    X(OUTLIVED_OP, 10, "outlived its op with grad mode on")                   \
    X(RECOMPUTED, 11, "recomputed in backward")                               \
    X(KEPT_OUTPUT, 12, "kept output of a forward without grad")               \
    X(WORKSPACE, 13, "library scratch that torch holds")                      \
    X(BEFORE_START, 14, "older than the recording, no owner found")           \
    X(FORWARD_SCRATCH, 15, "freed in the forward that made it, without grad") \
    X(OUTSIDE, 16, "made outside of modules, backward and optimizers")        \
    X(NO_GRAD_SCRATCH, 17, "made without grad and freed in its step")         \
    X(WORKSPACE_SIZE, 18,                                                     \
      "older than the recording, of cuBLAS scratch's size")                   \
    X(DDP_BUCKET, 19, "made by DistributedDataParallel for gradients")        \
    X(DATA_LOADER, 20, "made by a data loader")                               \
    X(COPIED, 21, "copied to the device outside of the model")                \
    X(TOLD, 22, "as the file says that it was read from")                     \
    X(UNTOLD, 23, "the file that it was read from does not say")

typedef enum {
#define X(name, number, text) MP_REASON_##name = (number),
    MP_REASON_LIST(X)
#undef X
} mp_reason_t;

/* One life: 144 bytes, handed to NumPy as it is.  Event indices count the
 * events applied since the tracker was made. */
typedef struct {
    int64_t id; /* its row */
    uint64_t address;
    uint64_t size; /* requested bytes */
    uint64_t stream;
    int64_t born_event;      /* -1: older than the recording */
    int64_t died_event;      /* -1: alive at the end.  The free's request */
    int64_t born_ns;         /* -1: as born_event */
    int64_t died_ns;         /* -1: as died_event */
    int64_t completed_event; /* free completed; -1: not */
    uint32_t thread;
    uint32_t op;
    uint32_t module;
    uint32_t stack;
    uint32_t forward_op; /* born in a backward node, or after it in the
                            engine's frame around it: what caused it */
    uint32_t forward_module;
    uint32_t forward_stack;
    uint32_t owner;  /* string id: the parameter's name and so on */
    uint32_t region; /* string id: innermost record_function region */
    uint32_t op_instance;
    int32_t born_step; /* -1: as born_event */
    int32_t died_step;
    int16_t device;
    uint16_t pool;
    uint16_t flags; /* MP_FLAG_* at birth */
    uint8_t phase;  /* mp_phase_t at birth */
    uint8_t died_phase;
    uint8_t category;   /* mp_category_t, by category.c */
    uint8_t reason;     /* mp_reason_t */
    uint8_t role;       /* mp_role_t */
    uint8_t died_in_op; /* freed inside the outermost op that made it */
    uint32_t forward;   /* which root forward of its thread made it; 0: none */
    uint32_t shape;     /* string id: the tensor in it, "float32[64, 3]" */
    uint32_t
        shape_short; /* by so many bytes is that tensor smaller, or 4 Gi */
} mp_allocation_t;

_Static_assert(sizeof(mp_allocation_t) == 144, "the NumPy dtype says so");

#endif
