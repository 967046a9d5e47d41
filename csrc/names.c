/* names.c - an open-addressing table of atomics.
 *
 * An entry's key is written once; forgetting clears its value.  A table that
 * is outgrown is replaced; readers may still be in the old one, so it is kept
 * until RETIRED later ones have come and gone, which takes a hook far longer
 * than it runs. */
#include "names.h"

#include "mem.h"

#include <stdatomic.h>

#define FIRST_CAPACITY 256u /* a power of two */
#define RETIRED 8

typedef struct {
    atomic_uint_fast64_t addr; /* 0: free */
    atomic_uint_fast32_t name; /* MP_NO_INDEX: forgotten */
} entry_t;

typedef struct {
    uint32_t capacity;
    uint32_t used; /* keys, forgotten ones too; the writer's */
    entry_t entries[];
} names_table_t;

struct mp_names {
    _Atomic(names_table_t *) table;
    atomic_uint generation;
    names_table_t *retired[RETIRED]; /* the writer's */
    uint32_t next_retired;
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

static void
replace(mp_names_t *names, names_table_t *table)
{
    names_table_t *old =
        atomic_load_explicit(&names->table, memory_order_relaxed);
    atomic_store_explicit(&names->table, table, memory_order_release);
    mp_free(names->retired[names->next_retired]);
    names->retired[names->next_retired] = old;
    names->next_retired = (names->next_retired + 1) % RETIRED;
}

static void
set(names_table_t *table, uint64_t addr, uint32_t name)
{
    entry_t *entry = entry_of(table, addr);
    table->used +=
        atomic_load_explicit(&entry->addr, memory_order_relaxed) == 0;
    /* The name first: a reader that finds the key finds it too. */
    atomic_store_explicit(&entry->name, name, memory_order_relaxed);
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
    names_table_t *table = table_new(capacity);
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
    table = table_new(FIRST_CAPACITY);
    if (table != NULL) { /* else the cleared one serves on */
        replace(names, table);
    }
}

uint32_t
mp_names_get(const mp_names_t *names, uint64_t addr)
{
    if (addr == 0) {
        return MP_NO_INDEX;
    }
    names_table_t *table =
        atomic_load_explicit(&names->table, memory_order_acquire);
    entry_t *entry = entry_of(table, addr);
    if (atomic_load_explicit(&entry->addr, memory_order_acquire) != addr) {
        return MP_NO_INDEX;
    }
    return (uint32_t)atomic_load_explicit(&entry->name, memory_order_relaxed);
}

uint32_t
mp_names_generation(const mp_names_t *names)
{
    return atomic_load_explicit(&names->generation, memory_order_acquire);
}
