/* native_stack.c - the return addresses of the calling thread, interned.
 *
 * A table without a lock: a place is claimed, filled and then published.  Two
 * threads that come with the same new stack at once may both add it, which
 * only costs a place. */
#include "native_stack.h"

#include "mem.h"

#include <stdatomic.h>
#include <string.h>
#include <unwind.h>

#define MAX_PROBES 64

enum {
    EMPTY,
    CLAIMED,
    READY
};

typedef struct {
    atomic_uint state;
    uint32_t count;
    uint64_t hash;
    uintptr_t pcs[MP_NATIVE_DEPTH];
} place_t;

static _Atomic(place_t *) the_table;

typedef struct {
    uintptr_t *pcs;
    uint32_t count, skip;
} walk_t;

static _Unwind_Reason_Code
step(struct _Unwind_Context *context, void *argument)
{
    walk_t *walk = argument;
    uintptr_t pc = _Unwind_GetIP(context);
    if (walk->skip > 0) {
        walk->skip--;
    }
    else if (pc != 0) {
        walk->pcs[walk->count++] = pc;
    }
    return walk->count < MP_NATIVE_DEPTH ? _URC_NO_REASON : _URC_END_OF_STACK;
}

mp_status_t
mp_native_init(void)
{
    if (atomic_load(&the_table) != NULL) {
        return MP_OK;
    }
    place_t *table = mp_reserve(MP_NATIVE_STACKS * sizeof(place_t));
    if (table == NULL) {
        return MP_ERR_NOMEM;
    }
    place_t *nothing = NULL;
    if (!atomic_compare_exchange_strong(&the_table, &nothing, table)) {
        mp_unreserve(table, MP_NATIVE_STACKS * sizeof(place_t));
    }
    uintptr_t pcs[MP_NATIVE_DEPTH];
    walk_t walk = {pcs, 0, 0};
    (void)_Unwind_Backtrace(step, &walk);
    return MP_OK;
}

static uint64_t
hash_of(const uintptr_t *pcs, uint32_t count)
{
    uint64_t hash = count;
    for (uint32_t i = 0; i < count; i++) {
        hash = (hash ^ pcs[i]) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 29;
    }
    return hash;
}

uint32_t
mp_native_stack(void)
{
    place_t *table = atomic_load_explicit(&the_table, memory_order_acquire);
    if (table == NULL) {
        return MP_NO_INDEX;
    }
    uintptr_t pcs[MP_NATIVE_DEPTH];
    walk_t walk = {pcs, 0, 1};
    (void)_Unwind_Backtrace(step, &walk);
    uint64_t hash = hash_of(pcs, walk.count);
    size_t bytes = walk.count * sizeof(pcs[0]);
    for (uint32_t i = 0; walk.count > 0 && i < MAX_PROBES; i++) {
        uint32_t id = (uint32_t)((hash + i) % MP_NATIVE_STACKS);
        place_t *place = &table[id];
        unsigned state =
            atomic_load_explicit(&place->state, memory_order_acquire);
        if (state == READY && place->hash == hash &&
            place->count == walk.count &&
            memcmp(place->pcs, pcs, bytes) == 0) {
            return id;
        }
        unsigned empty = EMPTY;
        if (state == EMPTY &&
            atomic_compare_exchange_strong(&place->state, &empty, CLAIMED)) {
            place->count = walk.count;
            place->hash = hash;
            memcpy(place->pcs, pcs, bytes);
            atomic_store_explicit(&place->state, READY, memory_order_release);
            return id;
        }
    }
    return MP_NO_INDEX;
}

const uintptr_t *
mp_native_get(uint32_t id, size_t *count)
{
    place_t *table = atomic_load_explicit(&the_table, memory_order_acquire);
    if (table == NULL || id >= MP_NATIVE_STACKS ||
        atomic_load_explicit(&table[id].state, memory_order_acquire) !=
            READY) {
        return NULL;
    }
    *count = table[id].count;
    return table[id].pcs;
}
