/* forward_map.h - which forward op and module made a backward node.
 *
 * A node of the autograd graph carries the sequence number and the logical
 * thread of the op that made it.  Three sources answer: the forward op that
 * was logged with that number (it touched memory, or told of its node at
 * its end); else the module of its
 * logged neighbours, if both have the same; else the hooked module whose
 * forward spanned the number.  Bounded: old answers make room for new ones,
 * so a node older than the last 131 072 logged ops of its thread may find
 * only its module, or nothing, and so may one of a thread that 1024 others
 * have run modules since.  Not thread-safe. */
#ifndef MP_FORWARD_MAP_H
#define MP_FORWARD_MAP_H

#include "common.h"

typedef struct {
    uint32_t op;     /* string id; MP_NO_INDEX: not known */
    uint32_t module; /* string id */
    uint32_t stack;  /* stack id */
} mp_forward_t;

typedef struct mp_forward_map mp_forward_map_t;

mp_status_t mp_forward_map_new(mp_forward_map_t **out);
void mp_forward_map_free(mp_forward_map_t *map); /* accepts NULL */

/* An op that was called with a sequence number ran; of nested ops with the
 * same number give only the outermost.  The last one counts: the number
 * stays as it is until an op makes a node. */
void mp_forward_map_put_op(mp_forward_map_t *map, uint64_t thread,
                           uint64_t sequence, const mp_forward_t *forward);

/* A module's forward began or ended; SEQUENCE is the next number then. */
mp_status_t mp_forward_map_module_begin(mp_forward_map_t *map, uint64_t thread,
                                        uint64_t sequence, uint32_t module);
void mp_forward_map_module_end(mp_forward_map_t *map, uint64_t thread,
                               uint64_t sequence, uint32_t module);

/* All MP_NO_INDEX if nothing is known. */
void mp_forward_map_find(const mp_forward_map_t *map, uint64_t thread,
                         uint64_t sequence, mp_forward_t *forward);

static inline bool
mp_forward_known(const mp_forward_t *forward)
{
    return forward->op != MP_NO_INDEX || forward->module != MP_NO_INDEX;
}

size_t mp_forward_map_bytes(const mp_forward_map_t *map);

#endif
