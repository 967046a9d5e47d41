/* unpickle_values.h - how unpickle.c keeps values, and unpickle_values.c finds
 * them.
 *
 * A value is 64 bits: a tag on top, below it a small int, or the number of a
 * text, of a container or of a wide number. */
#ifndef MP_UNPICKLE_VALUES_H
#define MP_UNPICKLE_VALUES_H

#include "unpickle.h"

enum {
    TAG_NONE = 1,
    TAG_BOOL,
    TAG_INT,
    TAG_WIDE,
    TAG_DOUBLE,
    TAG_TEXT,
    TAG_LIST,
    TAG_TUPLE,
    TAG_DICT
};

#define TAG_SHIFT 60
#define PAYLOAD ((UINT64_C(1) << TAG_SHIFT) - 1)
#define INT_BIAS (INT64_C(1) << 59)

typedef struct {
    const char *text;
    uint32_t length;
    uint32_t atom;
} text_t;

typedef struct {
    mp_value_t *values; /* of a dict: key, value, key, value */
    uint32_t count;
    uint32_t capacity : 31;
    uint32_t is_cut : 1;
} container_t;

typedef struct piece {
    struct piece *next;
    size_t size;
    size_t used;
    mp_value_t bytes[];
} piece_t;

/* An array that grows by half. */
typedef struct {
    void *items;
    size_t count;
    size_t capacity;
} array_t;

struct mp_unpickled {
    array_t texts;      /* text_t */
    array_t containers; /* container_t */
    array_t wides;      /* uint64_t: int64_t or the bits of a double */
    piece_t *pieces;
    mp_value_t root;
    uint64_t good_bytes;
    bool whole;
};

static inline unsigned
tag_of(mp_value_t value)
{
    return (unsigned)(value >> TAG_SHIFT);
}

static inline bool
is_container(mp_value_t value)
{
    return tag_of(value) >= TAG_LIST;
}

static inline container_t *
container_of(const mp_unpickled_t *made, mp_value_t value)
{
    return (container_t *)made->containers.items + (value & PAYLOAD);
}

#endif
