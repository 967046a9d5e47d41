/* total.h - what the driver says of a process and of a device, at one moment.
 *
 * A row, its lists, and the events that it becomes, for whoever measures
 * (measure), writes down (sampler), replays (totals) or shows them.  The
 * numbers stand in files: they never change meaning, new ones go at the end.
 */
#ifndef MP_TOTAL_H
#define MP_TOTAL_H

#include "event.h"

/* How a figure was had.  X(NAME, number, text) */
#define MP_TOTAL_METHOD_LIST(X)                                               \
    X(NONE, 0, "not measured")                                                \
    X(NVML_PROCESS, 1, "NVML, this process")                                  \
    X(NVML_ONLY, 2, "NVML, the only process")                                 \
    X(NVML_ALL, 3, "NVML, all processes")                                     \
    X(CUDA_ALL, 4, "cuMemGetInfo, all processes")                             \
    X(OS_PROCESS, 5, "/proc, this process")                                   \
    X(OS_ALL, 6, "/proc, all processes")

typedef enum {
#define X(name, number, text) MP_TOTAL_METHOD_##name = (number),
    MP_TOTAL_METHOD_LIST(X)
#undef X
} mp_total_method_t;

/* Why there is no figure.  X(NAME, number, text) */
#define MP_TOTAL_WHY_LIST(X)                                                  \
    X(NOTHING, 0, "")                                                         \
    X(NO_CUDA, 1, "CUDA is not up in this process")                           \
    X(NO_DEVICE, 2, "CUDA shows this process no such device")                 \
    X(NO_CONTEXT, 3, "this process has no context on the device")             \
    X(NO_NVML, 4, "libnvidia-ml.so.1 was not found")                          \
    X(NVML_TOO_OLD, 5, "this NVML lacks a function that is needed")           \
    X(NVML_INIT, 6, "NVML could not be initialised")                          \
    X(NVML_UNKNOWN, 7, "NVML knows no device with this UUID")                 \
    X(FORKED, 8, "the process was forked from one that used the driver")      \
    X(NOT_SUPPORTED, 9, "NVML does not tell it of this device")               \
    X(FAILED, 10, "NVML failed")                                              \
    X(NOT_LISTED, 11,                                                         \
      "NVML does not list this process (in a container older drivers show "   \
      "the host's process numbers)")                                          \
    X(ZERO, 12,                                                               \
      "NVML lists this process with 0 bytes, which is no "                    \
      "measurement (seen in containers)")                                     \
    X(NOT_AVAILABLE, 13,                                                      \
      "NVML does not tell the bytes of processes here (WSL, WDDM)")           \
    X(CUDA_FAILED, 14, "cuMemGetInfo failed")                                 \
    X(NO_PROC, 15, "/proc does not tell")

typedef enum {
#define X(name, number, text) MP_TOTAL_WHY_##name = (number),
    MP_TOTAL_WHY_LIST(X)
#undef X
} mp_total_why_t;

/* What made somebody look.  X(NAME, number, text) */
#define MP_TOTAL_CAUSE_LIST(X)                                                \
    X(CLOCK, 0, "clock")     /* nothing had for half a second */              \
    X(START, 1, "start")     /* of a profile, or CUDA came up */              \
    X(STEP, 2, "step")       /* one begins */                                 \
    X(PEAK, 3, "peak")       /* torch took more than ever from the driver */  \
    X(REQUEST, 4, "request") /* mp_totals_request */                          \
    X(WINDOW, 5, "window")   /* a recording begins, ends or is read */        \
    X(ASKED, 6, "asked")     /* memprof.device_totals() */

typedef enum {
#define X(name, number, text) MP_TOTAL_CAUSE_##name = (number),
    MP_TOTAL_CAUSE_LIST(X)
#undef X
} mp_total_cause_t;

/* Where the memory of a device is.  X(NAME, number, text) */
#define MP_TOTAL_MEMORY_LIST(X)                                               \
    X(OWN, 0, "its own")                                                      \
    X(INTEGRATED, 1, "the host's")   /* GB10, Jetson: one pool */             \
    X(NODE, 2, "a node of the host") /* GH200: malloc may sit in it */

typedef enum {
#define X(name, number, text) MP_TOTAL_MEMORY_##name = (number),
    MP_TOTAL_MEMORY_LIST(X)
#undef X
} mp_total_memory_t;

/* What was measured of one device at one moment; bytes are -1 where they
 * were not.  Of the CPU: resident bytes of the process; total less available
 * bytes of the machine; its total. */
typedef struct {
    int64_t time_ns;
    int64_t event; /* of its TOTAL_PROCESS; -1: in no recording */
    int64_t process_bytes;
    int64_t device_used_bytes; /* total - free: everybody's, and reserved */
    int64_t device_total_bytes;
    int64_t device_reserved_bytes; /* by driver and firmware */
    int64_t pool_reserved_bytes;   /* the device's default cudaMallocAsync */
    int64_t pool_used_bytes;       /* pool */
    int64_t cost_ns;               /* what it took to measure */
    int32_t step;                  /* -1: in no recording */
    uint32_t sample;               /* equal: measured in one go */
    int16_t device;
    uint8_t method;        /* mp_total_method_t: of process_bytes, or if they
                              are not known of the device's */
    uint8_t why;           /* mp_total_why_t: no process_bytes */
    uint8_t device_method; /* of device_* */
    uint8_t device_why;    /* no device_used_bytes */
    uint8_t cause;         /* mp_total_cause_t */
    uint8_t memory;        /* mp_total_memory_t */
    int64_t made_reserved_bytes; /* by pools that the program made, as far as
                                    CUPTI was heard when it did */
} mp_total_t;

_Static_assert(sizeof(mp_total_t) == 96, "rows.py knows its layout");

/* ---- as events ----------------------------------------------------------
 */

#define MP_TOTAL_EVENTS 3 /* that a row becomes, at most */

/* ROW as events in order, its TOTAL_PROCESS first; returns how many. */
size_t mp_total_write(const mp_total_t *row,
                      mp_event_t events[MP_TOTAL_EVENTS]);

static inline bool
mp_total_is(uint8_t kind)
{
    return kind >= MP_EVENT_TOTAL_PROCESS && kind <= MP_EVENT_TOTAL_POOL;
}

/* Put into ROW what EVENT says; TOTAL_PROCESS begins a new one (event is left
 * at -1).  Numbers that no list has, of a newer memprof, become 0. */
void mp_total_read(const mp_event_t *event, mp_total_t *row);

/* ---- who wants one ------------------------------------------------------
 */

/* Ask for a sample soon.  From any thread, also inside of a hook or a
 * driver's callback: it sets a flag, no more. */
void mp_totals_request(void);
bool mp_totals_requested(void); /* since the last call */

#endif
