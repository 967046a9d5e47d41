/* table.c - hash table from an address to a record index.
 *
 * Linear probing in an array of 16-byte entries, at most 5/8 full, so that a
 * look-up mostly touches one cache line.  Grows by doubling and never
 * shrinks: a program that held many blocks once is about to hold them again
 * in its next step. */
#include "table.h"

#include "mem.h"

#define MIN_CAPACITY 16

/* The index is stored inverted: an entry of zeros is empty, so that every
 * address is a valid key and fresh memory is an empty table. */
typedef struct {
    uint64_t addr;
    uint32_t inverted; /* ~index; 0: empty */
} entry_t;

struct mp_table {
    entry_t *entries; /* capacity of them */
    size_t mask;      /* capacity - 1 */
    unsigned shift;   /* 64 - log2(capacity) */
    size_t count;
    size_t limit; /* count at which the next new key makes it grow */
};

/* Multiply and take the highest bits: they depend on all bits of the
 * address, of which the lowest are always zero. */
static inline size_t
home_of(const mp_table_t *table, uint64_t addr)
{
    return (size_t)((addr * UINT64_C(0x9e3779b97f4a7c15)) >> table->shift);
}

/* Where ADDR is, or the empty entry where it belongs.  There always is an
 * empty one. */
static inline size_t
find(const mp_table_t *table, uint64_t addr)
{
    size_t at = home_of(table, addr);
    while (table->entries[at].inverted != 0 &&
           table->entries[at].addr != addr) {
        at = (at + 1) & table->mask;
    }
    return at;
}

/* Largest number of keys in CAPACITY entries. */
static size_t
limit_of(size_t capacity)
{
    return capacity / 8 * 5;
}

/* Move everything into CAPACITY entries.  False: nothing changed. */
static bool
resize(mp_table_t *table, size_t capacity)
{
    entry_t *entries = mp_calloc(capacity, sizeof(*entries));
    if (entries == NULL) {
        return false;
    }
    mp_table_t old = *table;
    table->entries = entries;
    table->mask = capacity - 1;
    table->shift = 64 - (unsigned)__builtin_ctzll(capacity);
    table->limit = limit_of(capacity);
    if (old.entries != NULL) {
        for (size_t i = 0; i <= old.mask; i++) {
            if (old.entries[i].inverted != 0) {
                entries[find(table, old.entries[i].addr)] = old.entries[i];
            }
        }
        mp_free(old.entries);
    }
    return true;
}

mp_table_t *
mp_table_new(size_t capacity_hint)
{
    size_t capacity = MIN_CAPACITY;
    while (limit_of(capacity) < capacity_hint) {
        if (capacity > SIZE_MAX / 2 / sizeof(entry_t)) {
            return NULL;
        }
        capacity *= 2;
    }
    mp_table_t *table = mp_calloc(1, sizeof(*table));
    if (table == NULL) {
        return NULL;
    }
    if (!resize(table, capacity)) {
        mp_free(table);
        return NULL;
    }
    return table;
}

void
mp_table_free(mp_table_t *table)
{
    if (table != NULL) {
        mp_free(table->entries);
        mp_free(table);
    }
}

mp_status_t
mp_table_put(mp_table_t *table, uint64_t addr, uint32_t index,
             uint32_t *previous)
{
    size_t at = find(table, addr);
    if (table->entries[at].inverted != 0) {
        *previous = ~table->entries[at].inverted;
        table->entries[at].inverted = ~index;
        return MP_OK;
    }
    if (MP_UNLIKELY(table->count >= table->limit)) {
        if (!resize(table, (table->mask + 1) * 2)) {
            return MP_ERR_NOMEM;
        }
        at = find(table, addr);
    }
    table->entries[at] = (entry_t){.addr = addr, .inverted = ~index};
    table->count++;
    *previous = MP_NO_INDEX;
    return MP_OK;
}

uint32_t
mp_table_get(const mp_table_t *table, uint64_t addr)
{
    /* An empty entry reads as ~0, which is MP_NO_INDEX. */
    return ~table->entries[find(table, addr)].inverted;
}

uint32_t
mp_table_take(mp_table_t *table, uint64_t addr)
{
    entry_t *entries = table->entries;
    size_t mask = table->mask;
    size_t hole = find(table, addr);
    if (entries[hole].inverted == 0) {
        return MP_NO_INDEX;
    }
    uint32_t index = ~entries[hole].inverted;

    /* Pull back each later entry of the run that may not stand behind a
     * hole: one whose way from home to where it is leads over the hole. */
    for (size_t at = (hole + 1) & mask; entries[at].inverted != 0;
         at = (at + 1) & mask) {
        size_t from_home = (at - home_of(table, entries[at].addr)) & mask;
        size_t from_hole = (at - hole) & mask;
        if (from_home >= from_hole) {
            entries[hole] = entries[at];
            hole = at;
        }
    }
    entries[hole].inverted = 0;
    table->count--;
    return index;
}

size_t
mp_table_count(const mp_table_t *table)
{
    return table->count;
}

bool
mp_table_next(const mp_table_t *table, size_t *cursor, uint64_t *addr,
              uint32_t *index)
{
    for (; *cursor <= table->mask; ++*cursor) {
        const entry_t *entry = &table->entries[*cursor];
        if (entry->inverted != 0) {
            *addr = entry->addr;
            *index = ~entry->inverted;
            ++*cursor;
            return true;
        }
    }
    return false;
}
