/* tracker.h - from events to lives: what is alive, and each one's story.
 *
 * Fed with events in log order, by one thread at a time.  Knows nothing of
 * hooks, files or Python.  The same code runs behind the drain thread and
 * behind a file that is loaded: there is one replay.
 *
 * Two lives are told apart by their birth, not by their address.  A block's
 * life ends when its free is requested (that is when torch's
 * allocated_bytes falls); until the free is completed it still counts as
 * active.
 *
 * With `keep_dead` the tracker keeps a row for every life (a recording);
 * without it rows of dead blocks are used again (following along in steps
 * that are not recorded). */
#ifndef MP_TRACKER_H
#define MP_TRACKER_H

#include "event.h"

/* What is counted per device.  X(NAME, text) */
#define MP_STAT_LIST(X)                                                       \
    X(requested_bytes, "bytes asked for, in blocks whose free was not asked") \
    X(active_bytes, "the same, until the free is completed")                  \
    X(reserved_bytes, "bytes in segments taken from the driver")              \
    X(allocated_blocks, "blocks whose free was not asked")                    \
    X(active_blocks, "blocks whose free is not completed")                    \
    X(segments, "segments")

typedef struct {
    int64_t current;
    int64_t peak;  /* highest current */
    int64_t total; /* sum of all increases */
} mp_stat_t;

typedef struct {
#define X(name, text) mp_stat_t name;
    MP_STAT_LIST(X)
#undef X
} mp_device_stats_t;

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
    X(INPUT, 5, "an argument of the root module")                             \
    X(IN_OP, 6, "born and freed inside its op")                               \
    X(IN_OPTIMIZER, 7, "optimizer scratch")                                   \
    X(IN_BACKWARD, 8, "born in backward")                                     \
    X(SAVED, 9, "saved for backward")                                         \
    X(OUTLIVED_OP, 10, "outlived its op with grad mode on")                   \
    X(RECOMPUTED, 11, "recomputed in backward")                               \
    X(KEPT_OUTPUT, 12, "kept output of a forward without grad")               \
    X(WORKSPACE, 13, "library scratch that torch holds")                      \
    X(BEFORE_START, 14, "older than the recording, no owner found")           \
    X(FORWARD_SCRATCH, 15, "freed in the forward that made it, without grad")

typedef enum {
#define X(name, number, text) MP_REASON_##name = (number),
    MP_REASON_LIST(X)
#undef X
} mp_reason_t;

/* One life: 136 bytes, handed to NumPy as it is.  Event indices count the
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
    uint32_t reserved;
} mp_allocation_t;

_Static_assert(sizeof(mp_allocation_t) == 136, "the NumPy dtype says so");

/* A step of this session, or an optimizer, module, region or backward run
 * (see tracker.c) is a scope: its own high-water marks per device. */
typedef struct {
    int32_t number; /* of the step */
    int16_t device;
    uint16_t recorded; /* 1: inside a recording window */
    int64_t begin_event;
    int64_t end_event; /* -1: still open */
    int64_t begin_ns;
    int64_t end_ns;
    int64_t requested_bytes_at_end;
    int64_t requested_bytes_peak;
    int64_t active_bytes_peak;
    int64_t reserved_bytes_peak;
    int64_t allocated_total; /* bytes allocated in it */
} mp_step_stats_t;

typedef struct mp_tracker mp_tracker_t;

typedef struct {
    uint64_t session_id; /* STEP and WINDOW events of others are ignored */
    bool keep_dead;
    size_t allocation_budget_bytes; /* rows beyond it: MP_ERR_FULL */
} mp_tracker_options_t;

mp_status_t mp_tracker_new(const mp_tracker_options_t *options,
                           mp_tracker_t **out);
void mp_tracker_free(mp_tracker_t *tracker); /* accepts NULL */

/* Apply one event.  EVENT->step is ignored: the tracker counts steps.
 * Unknown frees and the like are counted, not errors.
 * MP_ERR_NOMEM, MP_ERR_FULL: the event was not applied and has no index; it
 * is counted as a defect. */
mp_status_t mp_tracker_apply(mp_tracker_t *tracker, const mp_event_t *event);

int32_t mp_tracker_step(const mp_tracker_t *tracker); /* the current one */

/* Rows of lives, births in order, the ones older than the start first.
 * *COUNT rows; the array does not move, later rows are added behind. */
const mp_allocation_t *mp_tracker_allocations(const mp_tracker_t *tracker,
                                              size_t *count);
mp_allocation_t *mp_tracker_allocations_mutable(mp_tracker_t *tracker,
                                                size_t *count);

/* Devices seen: CPU first if seen, then CUDA by index. */
size_t mp_tracker_devices(const mp_tracker_t *tracker, int16_t *devices,
                          size_t capacity);
bool mp_tracker_stats(const mp_tracker_t *tracker, int16_t device,
                      mp_device_stats_t *stats);

/* One row a step and device, in order. */
const mp_step_stats_t *mp_tracker_steps(const mp_tracker_t *tracker,
                                        size_t *count);

/* Defects seen.  X(NAME, text) */
#define MP_DEFECT_LIST(X)                                                     \
    X(unmatched_frees, "frees of CUDA blocks nobody saw born")                \
    X(foreign_frees, "frees of CPU blocks older than the recording")          \
    X(replaced_blocks, "allocations at the address of a live block")          \
    X(unmatched_segments, "segments whose birth or free nobody saw")          \
    X(unapplied_events, "events lost for want of memory or budget")

typedef struct {
#define X(name, text) uint64_t name;
    MP_DEFECT_LIST(X)
#undef X
} mp_defects_t;

void mp_tracker_defects(const mp_tracker_t *tracker, mp_defects_t *defects);

/* The state as events that a new tracker can be fed with: segments, live
 * blocks with their origin and role, open ops and regions, the step.  EMIT
 * is called for each in order and returns false to stop. */
typedef bool (*mp_emit_t)(void *context, const mp_event_t *event);
mp_status_t mp_tracker_write_state(const mp_tracker_t *tracker, mp_emit_t emit,
                                   void *context);

/* Scopes: high-water marks of nested stretches.  Opening one never disturbs
 * another.  Closed in any order; *PEAK gets what DEVICE reached between. */
typedef uint32_t mp_scope_t;
mp_status_t mp_tracker_scope_open(mp_tracker_t *tracker, mp_scope_t *scope);
mp_status_t mp_tracker_scope_peak(const mp_tracker_t *tracker,
                                  mp_scope_t scope, int16_t device,
                                  mp_device_stats_t *stats);
void mp_tracker_scope_close(mp_tracker_t *tracker, mp_scope_t scope);

size_t mp_tracker_bytes(const mp_tracker_t *tracker); /* memory held */

#endif
