/* recording_format.h - the recording file in numbers.
 *
 * docs/formats/recording.md is the specification; this is the same in C, for
 * the writer, the reader and their tests, and the few functions that turn
 * numbers into bytes.  Header only.  Numbers stored in files never change
 * meaning. */
#ifndef MP_RECORDING_FORMAT_H
#define MP_RECORDING_FORMAT_H

#include "event.h"

#define MP_RECORDING_VERSION 1    /* what this memprof writes and reads */
#define MP_RECORDING_MIN_READER 1 /* the oldest that can read it */

/* ---- header ------------------------------------------------------------ */

#define MP_RECORDING_MAGIC "MEMPROF" /* with its NUL: 8 bytes */
#define MP_RECORDING_MAGIC_BYTES 8

enum {
    MP_HEADER_MAGIC = 0,
    MP_HEADER_VERSION = 8,           /* u16 */
    MP_HEADER_MIN_READER = 10,       /* u16 */
    MP_HEADER_SIZE = 12,             /* u16 */
    MP_HEADER_EVENT_SIZE = 14,       /* u16 */
    MP_HEADER_START_NS = 16,         /* i64 */
    MP_HEADER_START_WALL_NS = 24,    /* i64 */
    MP_HEADER_EVENT_COUNT = 32,      /* u64 */
    MP_HEADER_DROPPED = 40,          /* u64 */
    MP_HEADER_DIRECTORY_OFFSET = 48, /* u64 */
    MP_HEADER_FLAGS = 56,            /* u32 */
    MP_HEADER_CRC = 60,              /* u32, of all before it */
    MP_HEADER_BYTES = 64
};

#define MP_HEADER_FINISHED 0x1u /* in MP_HEADER_FLAGS */

/* ---- blocks ------------------------------------------------------------ */

enum {
    MP_BLOCK_TYPE = 0,           /* u32, mp_block_type_t */
    MP_BLOCK_RECORDS = 4,        /* u32 */
    MP_BLOCK_RAW_LENGTH = 8,     /* u32 */
    MP_BLOCK_STORED_LENGTH = 12, /* u32 */
    MP_BLOCK_CRC = 16,           /* u32, of all before it and the payload */
    MP_BLOCK_BYTES = 20          /* the payload follows */
};

/* X(NAME, number, text) */
#define MP_BLOCK_LIST(X)                                                      \
    X(STRINGS, 1, "strings")                                                  \
    X(FRAMES, 2, "frames")                                                    \
    X(STACKS, 3, "stacks")                                                    \
    X(EVENTS, 4, "events")                                                    \
    X(INFO, 5, "info")                                                        \
    X(DIRECTORY, 6, "directory")

typedef enum {
#define X(name, number, text) MP_BLOCK_##name = (number),
    MP_BLOCK_LIST(X)
#undef X
} mp_block_type_t;

#define MP_BLOCK_MAX_RAW_BYTES ((UINT32_C(1) << 30) - 1)
/* Bytes in memory that a stored byte may become. */
#define MP_BLOCK_MAX_RATIO 256

/* ---- the columns of an events block ------------------------------------ */

enum {
    MP_COLUMNS_COUNT = 0, /* u32; the entries follow */
    MP_COLUMNS_BYTES = 4,
    MP_COLUMN_NUMBER = 0,   /* u16 */
    MP_COLUMN_ENCODING = 2, /* u16 */
    MP_COLUMN_LENGTH = 4,   /* u32 */
    MP_COLUMN_BYTES = 8
};

typedef enum {
    MP_ENCODING_PLAIN = 1, /* the value */
    MP_ENCODING_DELTA = 2, /* zigzag of the step from the last of its class */
    MP_ENCODING_RUNS = 3   /* (how many, value) */
} mp_encoding_t;

/* Every field of an event once, the kind first (it decides the class).
 * X(NAME, number, field, type, form, encoding)
 * Form, how the field becomes an unsigned 64-bit value: NUMBER as it is,
 * SIGNED by zigzag, ID plus 1 modulo 2^32, so that MP_NO_INDEX is 0.  The
 * encoding is the writer's choice; the reader obeys what the file says. */
#define MP_COLUMN_LIST(X)                                                     \
    X(KIND, 1, kind, uint8_t, NUMBER, PLAIN)                                  \
    X(PHASE, 2, phase, uint8_t, NUMBER, RUNS)                                 \
    X(FLAGS, 3, flags, uint16_t, NUMBER, PLAIN)                               \
    X(DEVICE, 4, device, int16_t, SIGNED, RUNS)                               \
    X(POOL, 5, pool, uint16_t, NUMBER, RUNS)                                  \
    X(ADDR, 6, addr, uint64_t, NUMBER, DELTA)                                 \
    X(SIZE, 7, size, uint64_t, NUMBER, DELTA)                                 \
    X(TIME, 8, time_ns, int64_t, NUMBER, DELTA)                               \
    X(STREAM, 9, stream, uint64_t, NUMBER, DELTA)                             \
    X(THREAD, 10, thread, uint32_t, NUMBER, RUNS)                             \
    X(OP, 11, op, uint32_t, ID, PLAIN)                                        \
    X(MODULE, 12, module, uint32_t, ID, PLAIN)                                \
    X(STACK, 13, stack, uint32_t, ID, PLAIN)                                  \
    X(STEP, 14, step, int32_t, SIGNED, RUNS)                                  \
    X(OP_INSTANCE, 15, op_instance, uint32_t, NUMBER, DELTA)

enum {
#define X(name, number, field, type, form, encoding)                          \
    MP_COLUMN_##name = (number),
    MP_COLUMN_LIST(X)
#undef X
    MP_COLUMN_END /* one behind the last: numbers have no gaps */
};

/* Scopes and memory use addr and stream for different things, so each class
 * has a previous value of its own.  Part of the format: never changes. */
static inline unsigned
mp_column_class(uint8_t kind)
{
    return kind >= 16 && kind < 48;
}

/* ---- directory and footer ---------------------------------------------- */

enum {
    MP_ENTRY_OFFSET = 0,   /* u64 */
    MP_ENTRY_TYPE = 8,     /* u32 */
    MP_ENTRY_RECORDS = 12, /* u32 */
    MP_ENTRY_BYTES = 16
};

#define MP_FOOTER_MAGIC_TEXT "MEMPEND" /* with its NUL: 8 bytes */

enum {
    MP_FOOTER_DIRECTORY_OFFSET = 0, /* u64 */
    MP_FOOTER_FILE_SIZE = 8,        /* u64 */
    MP_FOOTER_HEADER_CRC = 16,      /* u32 */
    MP_FOOTER_CRC = 20,             /* u32, of all before it */
    MP_FOOTER_MAGIC = 24,
    MP_FOOTER_BYTES = 32
};

/* ---- numbers as bytes -------------------------------------------------- */

static inline void
mp_put_u16(uint8_t *at, uint16_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
}

static inline void
mp_put_u32(uint8_t *at, uint32_t value)
{
    mp_put_u16(at, (uint16_t)value);
    mp_put_u16(at + 2, (uint16_t)(value >> 16));
}

static inline void
mp_put_u64(uint8_t *at, uint64_t value)
{
    mp_put_u32(at, (uint32_t)value);
    mp_put_u32(at + 4, (uint32_t)(value >> 32));
}

static inline uint16_t
mp_get_u16(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

static inline uint32_t
mp_get_u32(const uint8_t *at)
{
    return mp_get_u16(at) | (uint32_t)mp_get_u16(at + 2) << 16;
}

static inline uint64_t
mp_get_u64(const uint8_t *at)
{
    return mp_get_u32(at) | (uint64_t)mp_get_u32(at + 4) << 32;
}

static inline uint64_t
mp_zigzag(int64_t value)
{
    return (uint64_t)value << 1 ^ (value < 0 ? UINT64_MAX : 0);
}

static inline int64_t
mp_unzigzag(uint64_t value)
{
    return (int64_t)(value >> 1 ^ (0 - (value & 1)));
}

#define MP_VARINT_MAX_BYTES 10

/* Writes up to MP_VARINT_MAX_BYTES; returns where the next byte goes. */
static inline uint8_t *
mp_put_varint(uint8_t *at, uint64_t value)
{
    while (value >= 0x80) {
        *at++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

/* Reads from *AT, below END, and moves *AT behind it.  False: cut, or more
 * than 64 bits. */
static inline bool
mp_get_varint(const uint8_t **at, const uint8_t *end, uint64_t *value)
{
    const uint8_t *next = *at;
    uint64_t result = 0;
    for (unsigned shift = 0; shift < 70; shift += 7) {
        if (next == end) {
            return false;
        }
        uint64_t byte = *next++;
        if (shift == 63 && byte > 1) {
            return false;
        }
        result |= (byte & 0x7f) << shift;
        if (byte < 0x80) {
            *at = next;
            *value = result;
            return true;
        }
    }
    return false;
}

#endif
