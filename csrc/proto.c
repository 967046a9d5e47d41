/* proto.c - a protocol buffers message being written. */
#include "proto.h"

#include "mem.h"

#include <string.h>

#define VARINT_MAX 10

enum {
    WIRE_VARINT = 0,
    WIRE_FIXED64 = 1,
    WIRE_BYTES = 2
};

void
mp_proto_clear(mp_proto_t *message)
{
    mp_free(message->bytes);
    *message = (mp_proto_t){0};
}

/* Room for LENGTH more bytes; false: there is none, and nothing is written. */
static inline bool
room(mp_proto_t *message, size_t length)
{
    if (MP_LIKELY(message->capacity - message->length >= length)) {
        return true;
    }
    if (message->failed || length > SIZE_MAX / 4 - message->capacity) {
        message->failed = true;
        return false;
    }
    size_t capacity = 2 * message->capacity + length + 256;
    uint8_t *bytes = mp_realloc(message->bytes, capacity);
    if (bytes == NULL) {
        message->failed = true;
        return false;
    }
    message->bytes = bytes;
    message->capacity = capacity;
    return true;
}

static inline size_t
put_varint(uint8_t *at, uint64_t value)
{
    size_t length = 0;
    while (value > 0x7f) {
        at[length++] = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    at[length++] = (uint8_t)value;
    return length;
}

/* The field's key; false: there is no room for it and MORE bytes. */
static inline bool
put_key(mp_proto_t *message, uint32_t field, uint32_t wire, size_t more)
{
    if (!room(message, VARINT_MAX + more)) {
        return false;
    }
    message->length += put_varint(message->bytes + message->length,
                                  (uint64_t)field << 3 | wire);
    return true;
}

void
mp_proto_varint(mp_proto_t *message, uint32_t field, uint64_t value)
{
    if (put_key(message, field, WIRE_VARINT, VARINT_MAX)) {
        message->length += put_varint(message->bytes + message->length, value);
    }
}

void
mp_proto_fixed64(mp_proto_t *message, uint32_t field, uint64_t value)
{
    if (put_key(message, field, WIRE_FIXED64, 8)) {
        for (int i = 0; i < 8; i++) {
            message->bytes[message->length++] = (uint8_t)(value >> (8 * i));
        }
    }
}

void
mp_proto_double(mp_proto_t *message, uint32_t field, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    mp_proto_fixed64(message, field, bits);
}

void
mp_proto_text(mp_proto_t *message, uint32_t field, const char *text,
              size_t length)
{
    if (length > SIZE_MAX / 8) {
        message->failed = true;
        return;
    }
    if (put_key(message, field, WIRE_BYTES, VARINT_MAX + length)) {
        message->length +=
            put_varint(message->bytes + message->length, length);
        if (length > 0) {
            memcpy(message->bytes + message->length, text, length);
            message->length += length;
        }
    }
}

size_t
mp_proto_open(mp_proto_t *message, uint32_t field)
{
    if (put_key(message, field, WIRE_BYTES, 1)) {
        message->length++; /* most lengths take one byte */
    }
    return message->length;
}

void
mp_proto_close(mp_proto_t *message, size_t mark)
{
    if (message->failed) {
        return;
    }
    uint8_t length[VARINT_MAX];
    size_t content = message->length - mark;
    size_t width = put_varint(length, content);
    if (width > 1) {
        if (!room(message, width - 1)) {
            return;
        }
        memmove(message->bytes + mark + width - 1, message->bytes + mark,
                content);
        message->length += width - 1;
    }
    memcpy(message->bytes + mark - 1, length, width);
}
