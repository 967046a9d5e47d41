/* recording_columns.h - the events of a block, column by column.
 *
 * Knows the encodings and nothing of blocks, files or compression:
 * docs/formats/recording.md section 4.2. */
#ifndef MP_RECORDING_COLUMNS_H
#define MP_RECORDING_COLUMNS_H

#include "intern.h"
#include "recording_format.h"

/* Whether the intern knows every id in the events.  A recording with one
 * that it does not know is a damaged one. */
bool mp_columns_ids_exist(const mp_intern_t *intern, const mp_event_t *events,
                          size_t count);

/* ---- encoding ---------------------------------------------------------- */

/* Up to MP_COLUMNS_EVENTS events, encoded as they come: about 16 bytes an
 * event, not 64. */
typedef struct mp_columns mp_columns_t;

#define MP_COLUMNS_EVENTS 65536

typedef struct {
    const uint8_t *bytes; /* valid until the next append or clear */
    size_t length;
    mp_encoding_t encoding;
} mp_column_t;

mp_columns_t *mp_columns_new(void);                   /* NULL: out of memory */
void mp_columns_free(mp_columns_t *columns);          /* accepts NULL */
size_t mp_columns_count(const mp_columns_t *columns); /* events in them */
/* COUNT events at most as many as there is room for.  Cannot fail. */
void mp_columns_append(mp_columns_t *columns, const mp_event_t *events,
                       size_t count);
/* Complete the columns and show them, by number; [0] is not used.  Nothing
 * may be appended before they are cleared. */
void mp_columns_finish(mp_columns_t *columns,
                       mp_column_t shown[MP_COLUMN_END]);
void mp_columns_clear(mp_columns_t *columns);

/* ---- decoding ---------------------------------------------------------- */

/* The COUNT events of an events block's payload.  False: it is damaged; what
 * is in EVENTS then means nothing. */
bool mp_columns_decode(const uint8_t *payload, size_t length,
                       mp_event_t *events, size_t count);

#endif
