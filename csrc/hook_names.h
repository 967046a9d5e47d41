/* hook_names.h - from the name that torch has for an op to what it says.
 *
 * A cache that belongs to one thread; no lock but the intern's. */
#ifndef MP_HOOK_NAMES_H
#define MP_HOOK_NAMES_H

#include "common.h"

typedef struct {
    const char *pointer;
    uint32_t name;        /* string id */
    bool plain_allocator; /* aten::empty and its kin: the op above counts */
    bool engine;          /* the autograd engine's frame of a node */
} mp_op_name_t;

#define MP_OP_NAMES 256 /* a power of two */

typedef struct {
    mp_op_name_t entries[MP_OP_NAMES];
} mp_op_names_t;

/* Good until the next call.  TEXT may be NULL. */
const mp_op_name_t *mp_op_name_find(mp_op_names_t *names, const char *text);

#endif
