/* cupti_callback.h - what CUPTI calls back, and what it has to know for that.
 *
 * Runs inside of a driver call of somebody else, on any thread, perhaps under
 * torch's allocator lock: no CUDA, no GIL, no malloc, no lock but the log's.
 * It may come after the subscription is over, so what it reads lives for
 * ever.  Who subscribes, and when, is cupti_listener's. */
#ifndef MP_CUPTI_CALLBACK_H
#define MP_CUPTI_CALLBACK_H

#include "cupti_library.h"

/* Callbacks of the driver's domain have numbers below this. */
#define MP_CUPTI_NUMBERS 4096

/* For Subscribe.  Writes DRIVER_* events, and GPU_LAUNCH ones. */
void mp_cupti_callback(void *user, int domain, uint32_t cbid,
                       const void *data);

/* Callback CBID is the call NUMBER (cupti_calls.h), or launches work.  Before
 * the first subscription. */
void mp_cupti_callback_is_call(uint32_t cbid, size_t number);
void mp_cupti_callback_is_launch(uint32_t cbid);
bool mp_cupti_callback_launches(uint32_t cbid);

/* On: callbacks write.  Off: none that begins later does; those that have
 * begun end in a moment. */
void mp_cupti_callback_switch(bool on);
bool mp_cupti_callback_is_on(void);
/* Wait for those, NS at most; false: some still run. */
bool mp_cupti_callback_wait(int64_t ns);
uint64_t mp_cupti_callback_count(void); /* heard since the process began */

/* CUPTI has detached itself since the last call of _attached; its reason is
 * in *RESULT.  The gap that begins then gets the string id REASON. */
bool mp_cupti_callback_detached(int *result);
void mp_cupti_callback_attached(uint32_t reason);

/* In a forked child, whose only thread is in no callback. */
void mp_cupti_callback_after_fork(void);

#endif
