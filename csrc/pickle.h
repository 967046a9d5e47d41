/* pickle.h - plain values as a Python pickle, into an outfile.
 *
 * Protocol 4, and of its opcodes only those that torch's MemoryViz page knows:
 * none of them names a class or calls anything.  What is written often gets a
 * number (mp_pickle_keep) and costs two to five bytes from then on.
 *
 * Words only: what a dict or list holds is the caller's to write, between
 * mp_pickle_item and mp_pickle_close.  Failures are the outfile's. */
#ifndef MP_PICKLE_H
#define MP_PICKLE_H

#include "outfile.h"

/* A reader may spread a batch into the arguments of one call. */
#define MP_PICKLE_BATCH 1000u

typedef struct {
    mp_outfile_t *file;
    uint32_t kept; /* values with a number so far */
} mp_pickle_t;

/* A dict or list that is being filled. */
typedef struct {
    char closing;     /* the opcode that ends a batch */
    uint32_t batched; /* items in the open batch */
} mp_pickle_items_t;

void mp_pickle_begin(mp_pickle_t *pickle, mp_outfile_t *file);
void mp_pickle_end(mp_pickle_t *pickle);

void mp_pickle_none(mp_pickle_t *pickle);
void mp_pickle_bool(mp_pickle_t *pickle, bool value);
void mp_pickle_int(mp_pickle_t *pickle, int64_t value);
/* What is no UTF-8 becomes U+FFFD, a lone surrogate too.  Below 4 GiB. */
void mp_pickle_text(mp_pickle_t *pickle, const char *text, size_t length);

/* The number of the value just written. */
uint32_t mp_pickle_keep(mp_pickle_t *pickle);
void mp_pickle_get(mp_pickle_t *pickle, uint32_t number);

void mp_pickle_dict(mp_pickle_t *pickle, mp_pickle_items_t *items);
void mp_pickle_list(mp_pickle_t *pickle, mp_pickle_items_t *items);
/* Before each item: a value, or a key and a value. */
void mp_pickle_item(mp_pickle_t *pickle, mp_pickle_items_t *items);
void mp_pickle_close(mp_pickle_t *pickle, mp_pickle_items_t *items);

void mp_pickle_pair(mp_pickle_t *pickle); /* of the last two values */

#endif
