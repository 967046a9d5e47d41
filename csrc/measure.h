/* measure.h - one look at what the process and its devices hold.
 *
 * Asks NVML, where that says nothing the CUDA driver, and /proc for the host.
 * Thread-safe; takes a lock of its own and may take milliseconds, so never
 * from a hook and never with the session lock held.  Makes no context and
 * initialises no CUDA: a device is asked about when somebody uses it. */
#ifndef MP_MEASURE_H
#define MP_MEASURE_H

#include "total.h"

#define MP_MEASURE_DEVICES 64 /* more are not looked at */

/* DEVICE: a CUDA index, or -1 for the CPU.  What could not be had is -1 and
 * says why; sample, event and step are left alone (0, -1, -1). */
void mp_measure_device(int16_t device, mp_total_t *out);

/* All CUDA devices that this process has a context on, and the CPU last;
 * nothing at all if there is no such device.  At most CAPACITY rows. */
size_t mp_measure_all(mp_total_t *rows, size_t capacity);

#endif
