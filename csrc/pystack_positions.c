/* pystack_positions.c - (code, instruction) -> frame id, for all threads. */
#include "pystack_positions.h"

#include "mem.h"

/* 4 Ki entries to begin with (64 KiB), 1 Mi at the most (16 MiB).  Full:
 * new positions overwrite old ones. */
#define FIRST_BUCKETS (UINT32_C(1) << 10)
#define MAX_BUCKETS (UINT32_C(1) << 18)
#define GROWTH 4

_Atomic(mp_positions_t *) mp_the_positions;
static atomic_flag growing = ATOMIC_FLAG_INIT;
atomic_uint mp_the_epoch;
atomic_uint mp_frames_known;

static mp_positions_t *
positions_new(uint32_t buckets)
{
    const size_t line = MP_POSITION_WAYS * sizeof(mp_position_t);
    mp_positions_t *table =
        mp_calloc(1, sizeof(*table) + (size_t)buckets * line + line);
    if (table != NULL) {
        uintptr_t end = (uintptr_t)(table + 1);
        table->entries = (mp_position_t *)((end + line - 1) & ~(line - 1));
        table->mask = buckets - 1;
    }
    return table;
}

bool
mp_positions_init(void)
{
    if (atomic_load_explicit(&mp_the_positions, memory_order_relaxed) ==
        NULL) {
        mp_positions_t *table = positions_new(FIRST_BUCKETS);
        if (table == NULL) {
            return false;
        }
        atomic_store_explicit(&mp_the_positions, table, memory_order_release);
    }
    return true;
}

/* The entry to write TAG into: its own, an empty one, or NULL. */
static mp_position_t *
entry_for(const mp_positions_t *table, uint32_t tag)
{
    mp_position_t *bucket = mp_position_bucket(table, tag);
    mp_position_t *empty = NULL;
    for (int i = 0; i < MP_POSITION_WAYS; i++) {
        uint32_t there =
            atomic_load_explicit(&bucket[i].tag, memory_order_relaxed);
        if (there == tag) {
            return &bucket[i];
        }
        if (there == 0 && empty == NULL) {
            empty = &bucket[i];
        }
    }
    return empty;
}

static void
entry_set(mp_positions_t *table, mp_position_t *entry, uint32_t tag,
          uint64_t check, uint32_t frame)
{
    if (atomic_load_explicit(&entry->tag, memory_order_relaxed) == 0) {
        atomic_fetch_add_explicit(&table->used, 1, memory_order_relaxed);
    }
    atomic_store_explicit(&entry->check, check, memory_order_relaxed);
    atomic_store_explicit(&entry->frame, frame, memory_order_relaxed);
    atomic_store_explicit(&entry->tag, tag, memory_order_relaxed);
}

/* A larger table in place of TABLE, unless another thread is at it, memory
 * is out or the table is as large as it gets. */
static void
positions_grow(mp_positions_t *table)
{
    if (table->mask + 1 >= MAX_BUCKETS ||
        atomic_flag_test_and_set_explicit(&growing, memory_order_acquire)) {
        return;
    }
    if (atomic_load_explicit(&mp_the_positions, memory_order_relaxed) ==
        table) {
        mp_positions_t *larger = positions_new((table->mask + 1) * GROWTH);
        if (larger != NULL) {
            for (size_t i = 0;
                 i < ((size_t)table->mask + 1) * MP_POSITION_WAYS; i++) {
                mp_position_t *from = &table->entries[i];
                uint32_t tag =
                    atomic_load_explicit(&from->tag, memory_order_relaxed);
                mp_position_t *entry =
                    tag != 0 ? entry_for(larger, tag) : NULL;
                if (entry != NULL) {
                    entry_set(larger, entry, tag,
                              atomic_load_explicit(&from->check,
                                                   memory_order_relaxed),
                              atomic_load_explicit(&from->frame,
                                                   memory_order_relaxed));
                }
            }
            larger->smaller = table;
            atomic_store_explicit(&mp_the_positions, larger,
                                  memory_order_release);
        }
    }
    atomic_flag_clear_explicit(&growing, memory_order_release);
}

void
mp_positions_put(uint32_t tag, uint64_t signature, uint32_t frame)
{
    mp_positions_t *table =
        atomic_load_explicit(&mp_the_positions, memory_order_acquire);
    mp_position_t *entry = entry_for(table, tag);
    if (entry == NULL) {
        /* A crowded bucket in an empty table is chance; else grow. */
        uint32_t used =
            atomic_load_explicit(&table->used, memory_order_relaxed);
        if (used >= table->mask + 1) {
            positions_grow(table);
            table =
                atomic_load_explicit(&mp_the_positions, memory_order_acquire);
            entry = entry_for(table, tag);
        }
    }
    if (entry == NULL) {
        entry = mp_position_bucket(table, tag) +
                (signature >> 32) % MP_POSITION_WAYS;
    }
    entry_set(table, entry, tag, mp_position_check(signature, frame), frame);
}

void
mp_positions_note(uint32_t frame)
{
    uint32_t known =
        atomic_load_explicit(&mp_frames_known, memory_order_relaxed);
    while (frame >= known && !atomic_compare_exchange_weak_explicit(
                                 &mp_frames_known, &known, frame + 1,
                                 memory_order_release, memory_order_relaxed)) {
    }
}
