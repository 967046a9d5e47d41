/* cupti_listener.h - the driver's memory calls, heard through CUPTI's callback
 * API.
 *
 * Process-wide, for CUPTI has one subscriber.  Opened, then started and
 * stopped as often as one likes; the callbacks write DRIVER_* events to the
 * log.  Who else wants the subscription, when to give it up, and what users
 * are told is Python's business (memprof/driver.py).
 *
 * One mutex keeps open, start, stop and settle apart; callbacks take it
 * never.  Call without the GIL and without the session lock. */
#ifndef MP_CUPTI_LISTENER_H
#define MP_CUPTI_LISTENER_H

#include "gpu_activity.h"

#define MP_CUPTI_TEXT 512

/* Open the library PATH; "": what the program itself offers (tests).  Again:
 * the same path does nothing, another one fails.  MP_ERR_LOAD: ERROR. */
mp_status_t mp_cupti_open(const char *path, char *error, size_t error_size);

/* Subscribe and enable the calls.  *CODE gets CUPTI's answer (0: running) and
 * TEXT what it says of it; with code 39 OTHER gets the other tool's name, if
 * that is known.  MP_ERR_STATE: not open, running already, or dead by fork.
 * MP_ERR_LOAD: refused, by CUPTI (*CODE) or because a call that is needed
 * cannot be heard (*CODE 0). */
mp_status_t mp_cupti_start(int *code, char text[MP_CUPTI_TEXT],
                           char other[MP_CUPTI_TEXT]);

/* Nobody is called back any more.  Does nothing if it does not run. */
void mp_cupti_stop(void);

/* Record what runs on GPUs as well, from now to mp_cupti_kernels_stop or to
 * mp_cupti_stop.  *CODE and TEXT as of mp_cupti_start.  MP_ERR_STATE: CUPTI is
 * not heard, or dead by fork.  MP_ERR_LOAD: refused.  Again: does nothing. */
mp_status_t mp_cupti_kernels_start(int *code, char text[MP_CUPTI_TEXT]);
void mp_cupti_kernels_stop(void);
/* How that goes; after a stop of the last one. */
void mp_cupti_kernels_status(mp_activity_status_t *out);

/* The ledger's gap begins or ends, for REASON. */
void mp_cupti_gap(bool begins, const char *reason);

/* Do what callbacks leave for later: ask which device a new context is of, and
 * tell of what ran on GPUs and is over.  The drain thread does so by itself, a
 * hair later. */
void mp_cupti_settle(void);

typedef struct {
    bool open, running;
    bool dead;     /* in a forked child of a process that had started */
    bool detached; /* CUPTI has ended it by itself */
    uint32_t version;
    uint64_t callbacks;          /* heard since the process began */
    uint64_t leaked;             /* stops that did not see callbacks end */
    uint32_t enabled;            /* calls heard, launches aside */
    uint32_t found, wanted;      /* calls that this CUPTI has, of all ours */
    char path[4096];             /* "": none, or the program itself */
    char refused[MP_CUPTI_TEXT]; /* calls that cannot be heard, with commas */
    char unknown[MP_CUPTI_TEXT]; /* calls that look as if they should be */
    char detached_text[MP_CUPTI_TEXT];
} mp_cupti_status_t;

void mp_cupti_status(mp_cupti_status_t *out);

#endif
