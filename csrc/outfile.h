/* outfile.h - a whole file or none.
 *
 * Bytes go to a file beside the target, `<path>.tmp<process>.<number>`, which
 * takes the target's place when it is closed whole.  A file that was there
 * keeps its mode; until then nobody else may read the new one.  Optionally
 * compressed (gzip_sink.h).  Knows nothing of formats.
 *
 * The first failure is remembered: a writer writes on, which costs nothing
 * then, and looks at what close says.  Not thread-safe. */
#ifndef MP_OUTFILE_H
#define MP_OUTFILE_H

#include "gzip_sink.h"

#include <string.h>

#define MP_OUTFILE_ROOM 4096 /* what may be asked of mp_outfile_room */

/* The fields are for the inline functions below only. */
typedef struct mp_outfile {
    char *at;         /* where the next byte goes */
    char *end;        /* of the buffer */
    char *buffer;     /* its beginning */
    uint64_t flushed; /* bytes that have left the buffer */
    struct mp_outfile_state *state;
} mp_outfile_t;

/* The name of a file beside PATH, like no other of this machine's processes
 * and as long as a name may be; the caller frees it with mp_free.  NULL: no
 * memory. */
char *mp_outfile_beside(const char *path);

/* MP_ERR_IO: *SAVED_ERRNO says why.  MP_ERR_NOMEM.  No file is left. */
mp_status_t mp_outfile_open(const char *path, bool gzip, mp_outfile_t **out,
                            int *saved_errno);

/* LENGTH bytes of any length. */
void mp_outfile_write(mp_outfile_t *file, const void *bytes, size_t length);

void mp_outfile_flush(mp_outfile_t *file); /* empties the buffer */

/* The first failure so far.  Long loops look now and then, so as to end. */
mp_status_t mp_outfile_status(const mp_outfile_t *file);

/* Put the file in its place if STATUS and every write so far is MP_OK, else
 * remove it; frees FILE.  Returns STATUS or the first failure; *SAVED_ERRNO
 * (0: none) says why a file could not be written.  Accepts NULL. */
mp_status_t mp_outfile_close(mp_outfile_t *file, mp_status_t status,
                             int *saved_errno);

/* Bytes written so far, before they are compressed. */
static inline uint64_t
mp_outfile_length(const mp_outfile_t *file)
{
    return file->flushed + (uint64_t)(file->at - file->buffer);
}

/* Room for LENGTH bytes, at most MP_OUTFILE_ROOM.  The caller writes there
 * and sets FILE->at behind what it wrote.  Never NULL. */
static inline char *
mp_outfile_room(mp_outfile_t *file, size_t length)
{
    if (MP_UNLIKELY((size_t)(file->end - file->at) < length)) {
        mp_outfile_flush(file);
    }
    return file->at;
}

static inline void
mp_outfile_text(mp_outfile_t *file, const char *text)
{
    mp_outfile_write(file, text, strlen(text));
}

static inline void
mp_outfile_byte(mp_outfile_t *file, char byte)
{
    char *at = mp_outfile_room(file, 1);
    *at = byte;
    file->at = at + 1;
}

#endif
