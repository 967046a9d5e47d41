/* table.h - hash table from an address to a record index.
 *
 * Knows nothing about profiling.  Open addressing, power-of-two capacity,
 * deletion by shifting back (no tombstones, so a table that lives for days
 * does not slow down).  Not thread-safe: the owner serialises access. */
#ifndef MP_TABLE_H
#define MP_TABLE_H

#include "common.h"

typedef struct mp_table mp_table_t; /* layout private to table.c */

/* Room for CAPACITY_HINT addresses before it grows.  NULL: out of memory. */
mp_table_t *mp_table_new(size_t capacity_hint);
void mp_table_free(mp_table_t *table); /* accepts NULL */

/* Map ADDR (any value) to INDEX (any value but MP_NO_INDEX).  *PREVIOUS gets
 * the index it replaced, or MP_NO_INDEX.  On MP_ERR_NOMEM the table is
 * unchanged. */
mp_status_t mp_table_put(mp_table_t *table, uint64_t addr, uint32_t index,
                         uint32_t *previous);

/* The index of ADDR; MP_NO_INDEX if unknown. */
uint32_t mp_table_get(const mp_table_t *table, uint64_t addr);

/* Forget ADDR and return its index; MP_NO_INDEX if unknown.  Cannot fail. */
uint32_t mp_table_take(mp_table_t *table, uint64_t addr);

size_t mp_table_count(const mp_table_t *table);

/* Walk all entries in no particular order: start with *CURSOR = 0; false at
 * the end.  The table must not change during the walk. */
bool mp_table_next(const mp_table_t *table, size_t *cursor, uint64_t *addr,
                   uint32_t *index);

#endif
