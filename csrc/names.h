/* names.h - which object has which name: address -> string id, for hooks.
 *
 * Knows nothing about Python: an object is its address.  One writer at a time
 * (Python's side, which has the GIL); any number of readers at any moment,
 * without a lock.  Keeps no object alive: whoever named one forgets it when
 * it dies. */
#ifndef MP_NAMES_H
#define MP_NAMES_H

#include "common.h"

typedef struct mp_names mp_names_t;

mp_names_t *mp_names_new(void); /* NULL: out of memory.  Lives for ever */

/* Give the object at ADDR (not 0) the name NAME.  MP_ERR_NOMEM: unchanged. */
mp_status_t mp_names_put(mp_names_t *names, uint64_t addr, uint32_t name);
void mp_names_forget(mp_names_t *names, uint64_t addr);
void mp_names_clear(mp_names_t *names);

/* The name; MP_NO_INDEX: it has none. */
uint32_t mp_names_get(const mp_names_t *names, uint64_t addr);

/* Changes whenever an answer of mp_names_get may have. */
uint32_t mp_names_generation(const mp_names_t *names);

#endif
