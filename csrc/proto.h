/* proto.h - a protocol buffers message being written.
 *
 * Knows the wire format, no message.  Fields go into a buffer that grows; the
 * first failure (out of memory) is remembered, and the caller looks at
 * [failed] once.  An all-zero struct is an empty message. */
#ifndef MP_PROTO_H
#define MP_PROTO_H

#include "common.h"

typedef struct {
    uint8_t *bytes;
    size_t length;
    size_t capacity;
    bool failed;
} mp_proto_t;

void mp_proto_clear(mp_proto_t *message); /* frees the buffer */

/* Fields of the types uint*, int* (VALUE as two's complement), bool, enum. */
void mp_proto_varint(mp_proto_t *message, uint32_t field, uint64_t value);
void mp_proto_fixed64(mp_proto_t *message, uint32_t field, uint64_t value);
void mp_proto_double(mp_proto_t *message, uint32_t field, double value);
void mp_proto_text(mp_proto_t *message, uint32_t field, const char *text,
                   size_t length);

/* A message inside: what is written until the close is its content.  The mark
 * goes to the close; messages close in reverse order. */
size_t mp_proto_open(mp_proto_t *message, uint32_t field);
void mp_proto_close(mp_proto_t *message, size_t mark);

#endif
