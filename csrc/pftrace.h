/* pftrace.h - a Perfetto trace of track events.
 *
 * Writes what it is given, in order, each name and stack once ("interned").
 * Which tracks and events there are is the caller's business; events of one
 * track are in the order of time, and begins and ends nest.  Texts are UTF-8.
 * Rows are laid out for NumPy (memprof/perfetto.py). */
#ifndef MP_PFTRACE_H
#define MP_PFTRACE_H

#include "common.h"

typedef struct {
    const char *text;
    size_t length;
} mp_pftrace_text_t;

typedef enum {
    MP_PFTRACE_GROUP = 0,  /* its children are ordered by their rank */
    MP_PFTRACE_SLICES = 1, /* of begins, ends and instants */
    MP_PFTRACE_BYTES = 2   /* a counter of bytes */
} mp_pftrace_kind_t;

typedef struct {
    uint64_t uuid;        /* not 0 */
    uint64_t parent;      /* 0: none */
    uint32_t name;        /* text */
    uint32_t description; /* text, or MP_NO_INDEX */
    int32_t rank;         /* among the children of its parent */
    uint32_t kind;        /* mp_pftrace_kind_t */
} mp_pftrace_track_t;

/* Samples of a counter. */
typedef struct {
    uint64_t uuid; /* of its track */
    size_t count;
    const int64_t *times;  /* ns */
    const int64_t *values; /* bytes */
} mp_pftrace_samples_t;

typedef enum {
    MP_PFTRACE_BEGIN = 1,
    MP_PFTRACE_END = 2,
    MP_PFTRACE_INSTANT = 3
} mp_pftrace_event_kind_t;

typedef struct {
    int64_t time_ns;
    uint64_t flow;     /* an arrow's number; 0: none */
    int64_t weight;    /* bytes, with a stack */
    uint32_t track;    /* its row */
    uint32_t name;     /* text, or MP_NO_INDEX */
    uint32_t category; /* text, or MP_NO_INDEX */
    uint32_t stack;    /* MP_NO_INDEX: none */
    uint32_t args;     /* the first one's row */
    uint16_t args_count;
    uint8_t kind;      /* mp_pftrace_event_kind_t */
    uint8_t flow_ends; /* the arrow ends here */
} mp_pftrace_event_t;

_Static_assert(sizeof(mp_pftrace_event_t) == 48, "the NumPy dtype says so");

typedef struct {
    int64_t number;
    uint32_t name; /* text */
    uint32_t text; /* the value instead of the number, or MP_NO_INDEX */
} mp_pftrace_arg_t;

typedef struct {
    uint32_t function; /* text */
    uint32_t file;     /* text, or MP_NO_INDEX */
    uint32_t line;     /* 0: none */
} mp_pftrace_frame_t;

typedef struct {
    const mp_pftrace_text_t *texts;
    size_t texts_count;
    const mp_pftrace_track_t *tracks;
    size_t tracks_count;
    const mp_pftrace_samples_t *samples;
    size_t samples_count;
    const mp_pftrace_event_t *events;
    size_t events_count;
    const mp_pftrace_arg_t *args;
    size_t args_count;
    const mp_pftrace_frame_t *frames;
    size_t frames_count;
    const int64_t *stack_offsets; /* [stacks_count + 1] into stack_frames */
    const uint32_t *stack_frames; /* rows of frames, outermost first */
    size_t stacks_count;
    size_t stack_frames_count;
} mp_pftrace_t;

/* Whether every row that a row names is there. */
bool mp_pftrace_check(const mp_pftrace_t *trace);

/* Write TRACE, which passes the check.  MP_ERR_IO: *SAVED_ERRNO says why.
 * MP_ERR_NOMEM. */
mp_status_t mp_pftrace_write(const mp_pftrace_t *trace, const char *path,
                             int *saved_errno);

#endif
