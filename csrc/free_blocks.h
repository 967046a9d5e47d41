/* free_blocks.h - the largest stretch that torch could give away unasked.
 *
 * In what torch has taken from the driver: the longest stretch of one segment
 * (or of pages mapped beside each other) in which no block lies, whichever
 * pool it belongs to.  Blocks are as large as torch makes them at least: what
 * was asked for, rounded up to 512.
 *
 * Reads events and lives; knows nothing of files. */
#ifndef MP_FREE_BLOCKS_H
#define MP_FREE_BLOCKS_H

#include "export.h"

typedef struct {
    int64_t event; /* after which it holds; -1: the start */
    int64_t bytes;
} mp_free_level_t;

/* At most about MOST samples: of each bunch of changes the first, the lowest,
 * the highest and the last.  The caller frees *OUT with mp_free.  *COUNT 0:
 * not known, since there are no segments or they do not add up (a block lies
 * in none of them).  MP_ERR_NOMEM. */
mp_status_t mp_free_blocks_build(const mp_export_t *source, int16_t device,
                                 size_t most, mp_free_level_t **out,
                                 size_t *count);

#endif
