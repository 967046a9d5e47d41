/* cupti_calls.h - the driver's calls that take or give back memory: what each
 * one's arguments say.
 *
 * Compiled against NVIDIA's headers; without them (MP_HAVE_CUPTI) the table is
 * empty and mp_cupti_calls_why_not says so.  Decoding reads the caller's
 * arguments and nothing else: it may be done in a callback. */
#ifndef MP_CUPTI_CALLS_H
#define MP_CUPTI_CALLS_H

#include "event.h"

typedef enum {
    MP_CALL_TAKES, /* told at its successful end */
    MP_CALL_GIVES, /* told when it begins */
    MP_CALL_MARKS, /* told at its successful end */
    MP_CALL_MARKS_BEFORE,
    MP_CALL_LEARNS /* tells which device a context is of; no event */
} mp_call_role_t;

typedef struct {
    const char *name; /* as cuptiGetCallbackName says it */
    uint8_t role;     /* mp_call_role_t */
    uint8_t group;    /* mp_driver_group_t, or mp_driver_mark_t of a mark */
    uint16_t flags;   /* MP_FLAG_* of what it takes */
    bool required;    /* without it there is no ledger */
} mp_call_t;

/* What one call says.  A field without a meaning is 0. */
typedef struct {
    uint64_t addr;
    uint64_t size;
    uint64_t other; /* MAPPING, MULTICAST_*: the handle.  0: the context */
    uint64_t queue; /* the stream of a stream-ordered call */
    uint8_t group;
    int16_t device;   /* MP_DEVICE_UNKNOWN: the context's */
    uint16_t flags;   /* MP_FLAG_FOREIGN and the like */
    uint64_t context; /* it is CONTEXT_DEVICE's; 0: nothing is learned */
    int16_t context_device;
} mp_call_fact_t;

/* NULL: the calls can be decoded; else why not (a static text). */
const char *mp_cupti_calls_why_not(void);

size_t mp_cupti_calls_count(void);
const mp_call_t *mp_cupti_call(size_t number);

/* What the arguments PARAMS of call NUMBER say.  SUCCEEDED: the call is over
 * and what it gives out may be read; else only what it was asked for. */
void mp_cupti_call_decode(size_t number, const void *params, bool succeeded,
                          mp_call_fact_t *fact);

/* Whether a function of the driver that is not in the table looks as if it
 * took or gave back memory: a new CUDA must not pass unseen. */
bool mp_cupti_call_is_suspicious(const char *name);

#endif
