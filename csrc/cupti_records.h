/* cupti_records.h - CUPTI's records of what ran on a GPU, whichever release
 * wrote them.
 *
 * A release appends fields to a record and leaves the others where they are.
 * So the length of each record is measured on the library that is loaded, must
 * be the known one of its version, or longer where the version is later than
 * all known ones, and only fields are read that each of those lengths has.
 * What is read may lie in a CUPTI buffer; needs no lock. */
#ifndef MP_CUPTI_RECORDS_H
#define MP_CUPTI_RECORDS_H

#include "cupti_library.h"
#include "gpu_work.h"

/* What a record says.  Times are CUPTI's. */
typedef struct {
    uint64_t start, end; /* both 0: the GPU did not tell */
    uint64_t bytes;
    uint32_t device, stream, correlation;
    uint8_t kind;       /* mp_gpu_kind_t */
    const char *kernel; /* its mangled name, CUPTI's text; NULL: none */
    char name[64];      /* of what is no kernel */
} mp_cupti_record_t;

/* Whether LIBRARY's records can be read: false, with a sentence. */
bool mp_cupti_records_known(const mp_cupti_library_t *library, char *why,
                            size_t size);

/* Bytes of the record at AT; 0: not known. */
size_t mp_cupti_record_bytes(const mp_cupti_library_t *library,
                             const void *at);

/* Read the record at AT, which ActivityGetNextRecord gave.  False: it is none
 * of the kinds that are asked for, or says what cannot be. */
bool mp_cupti_record_read(const void *at, mp_cupti_record_t *record);

#endif
