/* pystack_positions.h - (code, instruction) -> frame id, for all threads.
 *
 * Shared, never locked, and only a cache: an entry may be overwritten, or
 * lost while the table grows, and is then found out again.  Knows of Python
 * only that a code object has an address and a fingerprint.  For the walk, on
 * any thread, from inside hooks. */
#ifndef MP_PYSTACK_POSITIONS_H
#define MP_PYSTACK_POSITIONS_H

#include "intern.h"

#include <stdatomic.h>

/* Odd numbers without pattern, to spread bits with. */
#define MP_MIX_A UINT64_C(0x9E3779B97F4A7C15)
#define MP_MIX_B UINT64_C(0xC2B2AE3D27D4EB4F)
#define MP_MIX_C UINT64_C(0xD6E8FEB86659FD93)
#define MP_MIX_D UINT64_C(0xA0761D6478BD642F)
#define MP_MIX_E UINT64_C(0xE7037ED1A0B428DB)

/* `check` is the signature of the position (address, instruction and
 * fingerprint) with the frame mixed in: an entry that two writers left
 * half-written, or that another object at the same address left, does not
 * match its signature.  So each field can be read and written by itself. */
typedef struct {
    _Atomic uint64_t check;
    _Atomic uint32_t tag; /* of (code, instruction); 0: empty */
    _Atomic uint32_t frame;
} mp_position_t;

#define MP_POSITION_WAYS 4 /* a bucket is one cache line */

typedef struct positions {
    struct positions *smaller; /* what it replaced; readers may be in there */
    mp_position_t *entries;
    uint32_t mask;         /* of the bucket number */
    _Atomic uint32_t used; /* entries, about */
} mp_positions_t;

/* Kept for the life of the process: a walk may be under way at any time. */
extern _Atomic(mp_positions_t *) mp_the_positions;

/* The first table; once, before the first walk.  False: out of memory. */
bool mp_positions_init(void);

static inline mp_position_t *
mp_position_bucket(const mp_positions_t *table, uint32_t tag)
{
    return &table->entries[(size_t)(tag & table->mask) * MP_POSITION_WAYS];
}

static inline uint64_t
mp_position_hash(const void *code, int32_t index)
{
    uint64_t hash = (uint64_t)(uintptr_t)code * MP_MIX_A +
                    (uint64_t)(uint32_t)index * MP_MIX_B;
    hash ^= hash >> 32;
    return hash * MP_MIX_C;
}

static inline uint32_t
mp_position_tag(uint64_t hash)
{
    uint32_t tag = (uint32_t)(hash >> 32);
    return tag != 0 ? tag : 1;
}

static inline uint64_t
mp_position_check(uint64_t signature, uint32_t frame)
{
    return signature ^ ((uint64_t)frame + 1) * MP_MIX_E;
}

/* The frame of the position; MP_NO_INDEX: not known. */
static inline uint32_t
mp_positions_find(uint32_t tag, uint64_t signature)
{
    const mp_positions_t *table =
        atomic_load_explicit(&mp_the_positions, memory_order_acquire);
    mp_position_t *entry = mp_position_bucket(table, tag);
    for (int i = 0; i < MP_POSITION_WAYS; i++, entry++) {
        if (atomic_load_explicit(&entry->tag, memory_order_relaxed) != tag) {
            continue;
        }
        uint32_t frame =
            atomic_load_explicit(&entry->frame, memory_order_relaxed);
        if (atomic_load_explicit(&entry->check, memory_order_relaxed) ==
            mp_position_check(signature, frame)) {
            return frame;
        }
    }
    return MP_NO_INDEX;
}

/* From now on FRAME is what mp_positions_find() returns. */
void mp_positions_put(uint32_t tag, uint64_t signature, uint32_t frame);

/* -- interns: whose ids are they? ----------------------------------------- */

/* Ids kept here and in the threads' caches are those of one intern.  Another
 * one has another address or, at the address of a dead one, fewer frames
 * than were handed out: then everything known is void, by a new epoch. */
extern atomic_uint mp_the_epoch;
extern atomic_uint mp_frames_known; /* highest frame id handed out, plus one */

/* What to mix into each signature. */
static inline uint64_t
mp_positions_salt(const mp_intern_t *intern)
{
    /* In this order: a frame is in its intern before it is known here. */
    uint32_t known =
        atomic_load_explicit(&mp_frames_known, memory_order_acquire);
    if (MP_UNLIKELY(mp_intern_frames(intern) < known)) {
        atomic_store_explicit(&mp_frames_known, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&mp_the_epoch, 1, memory_order_relaxed);
    }
    uint32_t epoch = atomic_load_explicit(&mp_the_epoch, memory_order_relaxed);
    return (uint64_t)(uintptr_t)intern * MP_MIX_B + (uint64_t)epoch * MP_MIX_C;
}

/* FRAME was handed out. */
void mp_positions_note(uint32_t frame);

#endif
