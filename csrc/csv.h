/* csv.h - columns as lines of comma-separated values.
 *
 * Numbers are read where they lie, with a stride; texts are given once, as
 * they are to be written (the caller has quoted them), and columns of texts
 * hold their numbers.  Knows nothing of recordings. */
#ifndef MP_CSV_H
#define MP_CSV_H

#include "common.h"

typedef struct {
    const char *text;
    size_t length;
} mp_csv_text_t;

typedef struct {
    const char *values;         /* of the first row */
    ptrdiff_t stride;           /* bytes to the next row */
    char kind;                  /* as of Python's struct: B H I Q or b h i q */
    const mp_csv_text_t *texts; /* NULL: write the number itself */
    size_t texts_count;         /* a number outside of them: nothing */
} mp_csv_column_t;

/* Whether KIND is one that a column may have; its size in *BYTES. */
bool mp_csv_kind(char kind, size_t *bytes);

/* Write HEADER, which ends its own line, and a line for each of ROWS rows.
 * MP_ERR_IO: *SAVED_ERRNO says why.  MP_ERR_NOMEM. */
mp_status_t mp_csv_write(const char *path, const mp_csv_text_t *header,
                         const mp_csv_column_t *columns, size_t column_count,
                         size_t rows, int *saved_errno);

#endif
