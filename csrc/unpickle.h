/* unpickle.h - a Python pickle of plain values, read without running anything.
 *
 * Knows the opcodes of pickle_opcodes.h and no others: what names a class or
 * calls one is refused, whatever it is called.  Knows nothing of snapshots.
 *
 * Values are numbers that mean something to their mp_unpickled_t only; texts
 * lie in the bytes that were read, which must stay.  Containers may hold
 * themselves: whoever walks them goes a fixed depth.  Not thread-safe. */
#ifndef MP_UNPICKLE_H
#define MP_UNPICKLE_H

#include "common.h"

typedef struct mp_unpickled mp_unpickled_t;
typedef uint64_t mp_value_t;

typedef enum {
    MP_VALUE_MISSING, /* no value at all */
    MP_VALUE_NONE,
    MP_VALUE_BOOL,
    MP_VALUE_INT,
    MP_VALUE_DOUBLE,
    MP_VALUE_TEXT,
    MP_VALUE_LIST,
    MP_VALUE_TUPLE,
    MP_VALUE_DICT,
} mp_value_kind_t;

#define MP_NO_VALUE ((mp_value_t)0)

typedef struct {
    /* Texts equal to one of these have its number, from 1, as their atom. */
    const char *const *atoms;
    uint32_t atom_count; /* at most 200 */
    size_t most_bytes;   /* of memory; 0: what the length justifies */
} mp_unpickle_options_t;

/* Bytes that are cut or damaged give what precedes: lists and dicts as far as
 * they were filled, and MP_OK with mp_unpickled_is_whole false.
 * MP_ERR_FORMAT: no pickle, nothing whole in it, or an opcode is refused;
 * MP_ERR_FULL: it needs more than MOST_BYTES; MP_ERR_NOMEM.  ERROR gets a
 * sentence whenever something is wrong, else "".  *OUT only with MP_OK. */
mp_status_t mp_unpickle(const uint8_t *bytes, size_t length,
                        const mp_unpickle_options_t *options,
                        mp_unpickled_t **out, char *error, size_t error_size);
void mp_unpickled_free(mp_unpickled_t *unpickled); /* accepts NULL */

bool mp_unpickled_is_whole(const mp_unpickled_t *unpickled);
uint64_t mp_unpickled_read(const mp_unpickled_t *unpickled); /* good bytes */
mp_value_t mp_unpickled_root(const mp_unpickled_t *unpickled);
/* How many texts and containers there are: their numbers lie below. */
uint32_t mp_unpickled_texts(const mp_unpickled_t *unpickled);
uint32_t mp_unpickled_containers(const mp_unpickled_t *unpickled);
/* Whether the container was still being filled when the bytes ended. */
bool mp_value_is_cut(const mp_unpickled_t *unpickled, mp_value_t value);

mp_value_kind_t mp_value_kind(const mp_unpickled_t *unpickled,
                              mp_value_t value);
/* An int or bool; beyond 64 bits the nearest.  FALLBACK: it is neither. */
int64_t mp_value_int(const mp_unpickled_t *unpickled, mp_value_t value,
                     int64_t fallback);
/* False: no text. */
bool mp_value_text(const mp_unpickled_t *unpickled, mp_value_t value,
                   const char **text, size_t *length);
/* The atom of a text; 0: it has none, or is no text. */
uint32_t mp_value_atom(const mp_unpickled_t *unpickled, mp_value_t value);
/* The number of a text or of a container; MP_NO_INDEX: it is neither. */
uint32_t mp_value_number(mp_value_t value);

/* Items of a list or tuple, pairs of a dict; 0 of others. */
size_t mp_value_count(const mp_unpickled_t *unpickled, mp_value_t value);
mp_value_t mp_value_item(const mp_unpickled_t *unpickled, mp_value_t value,
                         size_t index);
void mp_value_pair(const mp_unpickled_t *unpickled, mp_value_t value,
                   size_t index, mp_value_t *key, mp_value_t *item);
/* What a dict holds under a key with that atom, the last one. */
mp_value_t mp_value_find(const mp_unpickled_t *unpickled, mp_value_t value,
                         uint32_t atom);

#endif
