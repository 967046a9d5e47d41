/* cupti_contexts.h - which device each CUDA context is of, and which streams
 * are being captured: what callbacks have to remember of earlier ones.
 *
 * Small tables that live for ever, without locks: callbacks come on any
 * thread and may wait for nothing.  A full table forgets what comes. */
#ifndef MP_CUPTI_CONTEXTS_H
#define MP_CUPTI_CONTEXTS_H

#include "cupti_library.h"

/* In callbacks: */

/* The device of CONTEXT, or MP_DEVICE_UNKNOWN: then it will be asked for. */
int16_t mp_cupti_context_device(uintptr_t context);
void mp_cupti_context_is_of(uintptr_t context, int device);
/* Another context may come to lie there, on another device. */
void mp_cupti_context_ends(uintptr_t context);

void mp_cupti_capture_begins(uintptr_t stream);
void mp_cupti_capture_ends(uintptr_t stream);
bool mp_cupti_is_captured(uintptr_t stream);

/* Outside of them: */

bool mp_cupti_contexts_wanted(void); /* some device is to be asked for */
/* Ask CUPTI, and write a DRIVER_CONTEXT event for each answer.  One caller at
 * a time. */
void mp_cupti_contexts_ask(const mp_cupti_library_t *library);
/* Callbacks have ended: nobody tells of the end of what is captured now. */
void mp_cupti_captures_forget(void);

#endif
