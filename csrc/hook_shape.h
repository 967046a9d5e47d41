/* hook_shape.h - a tensor as text: "float32[64, 3, 224, 224]".
 *
 * Pure functions of a fact; any thread, no lock, no memory of their own. */
#ifndef MP_HOOK_SHAPE_H
#define MP_HOOK_SHAPE_H

#include "shim_api.h"

/* Outputs of fewer bytes than that are not told: blocks that small are many
 * and weigh nothing. */
#define MP_SHAPE_MIN_BYTES UINT64_C(65536)

/* More dimensions than fit end in "...". */
#define MP_SHAPE_TEXT 512

/* The bytes of the tensor's elements.  False: no number of bytes. */
bool mp_shape_bytes(const mp_tensor_fact_t *fact, uint64_t *bytes);

/* Write the text, cut off after CAPACITY - 1 bytes; returns its length. */
size_t mp_shape_text(const mp_tensor_fact_t *fact, char *text,
                     size_t capacity);

#endif
