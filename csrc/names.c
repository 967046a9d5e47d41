/* names.c - an open-addressing table of atomics.
 *
 * An entry's key is written once; forgetting clears its value.  A table that
 * is full, of forgotten names too, is replaced by another one.  A reader may
 * be put off the processor while it is in the old one, for any time, so the
 * memory of a table is never given back: it waits for a later use as a table
 * of the same capacity.  There are at most two of each.  A reader that was in
 * a table while it was emptied or filled anew sees that by its round, and
 * looks again in the present one. */
#include "names.h"

#include "mem.h"

#include <stdatomic.h>

#define FIRST_CAPACITY 256u /* a power of two */

typedef struct {
    atomic_uint_fast64_t addr; /* 0: free */
    atomic_uint_fast32_t name; /* MP_NO_INDEX: forgotten */
} entry_t;

typedef struct names_table {
    struct names_table *next; /* spare; the writer's */
    uint32_t capacity;
    uint32_t used;     /* keys, forgotten ones too; the writer's */
    atomic_uint round; /* odd: not to be read, it is being made */
    entry_t entries[];
} names_table_t;

struct mp_names {
    _Atomic(names_table_t *) table;
    atomic_uint generation;
    names_table_t *spare; /* the writer's */
};

static names_table_t *
table_new(uint32_t capacity)
{
    names_table_t *table =
        mp_calloc(1, sizeof(*table) + capacity * sizeof(entry_t));
    if (table != NULL) {
        table->capacity = capacity;
    }
    return table;
}

mp_names_t *
mp_names_new(void)
{
    mp_names_t *names = mp_calloc(1, sizeof(*names));
    names_table_t *table = table_new(FIRST_CAPACITY);
    if (names == NULL || table == NULL) {
        mp_free(names);
        mp_free(table);
        return NULL;
    }
    atomic_init(&names->table, table);
    return names;
}

/* The entry of ADDR, or the free one where it would be. */
static entry_t *
entry_of(names_table_t *table, uint64_t addr)
{
    uint64_t hash = addr * UINT64_C(0x9E3779B97F4A7C15);
    uint32_t mask = table->capacity - 1;
    uint32_t slot = (uint32_t)(hash >> 32) & mask;
    for (;; slot = (slot + 1) & mask) {
        uint64_t key = atomic_load_explicit(&table->entries[slot].addr,
                                            memory_order_acquire);
        if (key == addr || key == 0) {
            return &table->entries[slot];
        }
    }
}

/* An empty table, with an odd round; NULL: out of memory.  Each store is a
 * release, here and in set(): whoever reads one of them sees the round. */
static names_table_t *
table_take(mp_names_t *names, uint32_t capacity)
{
    names_table_t **link = &names->spare;
    while (*link != NULL && (*link)->capacity != capacity) {
        link = &(*link)->next;
    }
    names_table_t *table = *link;
    if (table == NULL) {
        table = table_new(capacity);
        if (table != NULL) {
            atomic_store_explicit(&table->round, 1, memory_order_relaxed);
        }
        return table;
    }
    *link = table->next;
    atomic_fetch_add_explicit(&table->round, 1, memory_order_relaxed);
    for (uint32_t i = 0; i < capacity; i++) {
        atomic_store_explicit(&table->entries[i].name, MP_NO_INDEX,
                              memory_order_release);
        atomic_store_explicit(&table->entries[i].addr, 0,
                              memory_order_release);
    }
    table->used = 0;
    return table;
}

static void
replace(mp_names_t *names, names_table_t *table)
{
    names_table_t *old =
        atomic_load_explicit(&names->table, memory_order_relaxed);
    atomic_fetch_add_explicit(&table->round, 1, memory_order_release);
    atomic_store_explicit(&names->table, table, memory_order_release);
    old->next = names->spare;
    names->spare = old;
}

static void
set(names_table_t *table, uint64_t addr, uint32_t name)
{
    entry_t *entry = entry_of(table, addr);
    table->used +=
        atomic_load_explicit(&entry->addr, memory_order_relaxed) == 0;
    /* The name first: a reader that finds the key finds it too. */
    atomic_store_explicit(&entry->name, name, memory_order_release);
    atomic_store_explicit(&entry->addr, addr, memory_order_release);
}

static mp_status_t
make_room(mp_names_t *names)
{
    names_table_t *old =
        atomic_load_explicit(&names->table, memory_order_relaxed);
    if (old->used < old->capacity / 2) {
        return MP_OK;
    }
    uint32_t living = 0;
    for (uint32_t i = 0; i < old->capacity; i++) {
        living += atomic_load(&old->entries[i].addr) != 0 &&
                  atomic_load(&old->entries[i].name) != MP_NO_INDEX;
    }
    uint32_t capacity = FIRST_CAPACITY;
    while (capacity / 4 <= living) {
        capacity *= 2;
    }
    names_table_t *table = table_take(names, capacity);
    if (table == NULL) {
        return MP_ERR_NOMEM;
    }
    for (uint32_t i = 0; i < old->capacity; i++) {
        uint64_t addr = atomic_load(&old->entries[i].addr);
        uint32_t name = (uint32_t)atomic_load(&old->entries[i].name);
        if (addr != 0 && name != MP_NO_INDEX) {
            set(table, addr, name);
        }
    }
    replace(names, table);
    return MP_OK;
}

static void
changed(mp_names_t *names)
{
    atomic_fetch_add_explicit(&names->generation, 1, memory_order_release);
}

mp_status_t
mp_names_put(mp_names_t *names, uint64_t addr, uint32_t name)
{
    if (addr == 0 || name == MP_NO_INDEX) {
        return MP_ERR_ARG;
    }
    if (mp_names_get(names, addr) == name) {
        return MP_OK;
    }
    mp_status_t status = make_room(names);
    if (status == MP_OK) {
        set(atomic_load_explicit(&names->table, memory_order_relaxed), addr,
            name);
        changed(names);
    }
    return status;
}

void
mp_names_forget(mp_names_t *names, uint64_t addr)
{
    if (mp_names_get(names, addr) != MP_NO_INDEX) {
        entry_t *entry = entry_of(
            atomic_load_explicit(&names->table, memory_order_relaxed), addr);
        atomic_store_explicit(&entry->name, MP_NO_INDEX, memory_order_relaxed);
        changed(names);
    }
}

void
mp_names_clear(mp_names_t *names)
{
    names_table_t *table =
        atomic_load_explicit(&names->table, memory_order_relaxed);
    for (uint32_t i = 0; i < table->capacity; i++) {
        atomic_store_explicit(&table->entries[i].name, MP_NO_INDEX,
                              memory_order_relaxed);
    }
    changed(names);
}

uint32_t
mp_names_get(const mp_names_t *names, uint64_t addr)
{
    if (addr == 0) {
        return MP_NO_INDEX;
    }
    for (;;) { /* again only if the writer has replaced the table meanwhile */
        names_table_t *table =
            atomic_load_explicit(&names->table, memory_order_acquire);
        unsigned round =
            atomic_load_explicit(&table->round, memory_order_acquire);
        entry_t *entry = entry_of(table, addr);
        uint32_t name = MP_NO_INDEX;
        if (atomic_load_explicit(&entry->addr, memory_order_acquire) == addr) {
            name = (uint32_t)atomic_load_explicit(&entry->name,
                                                  memory_order_acquire);
        }
        if (round % 2 == 0 &&
            atomic_load_explicit(&table->round, memory_order_relaxed) ==
                round) {
            return name;
        }
    }
}

uint32_t
mp_names_generation(const mp_names_t *names)
{
    return atomic_load_explicit(&names->generation, memory_order_acquire);
}
