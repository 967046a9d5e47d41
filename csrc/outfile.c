/* outfile.c - a whole file or none: written beside its place, then moved. */
#include "outfile.h"

#include "mem.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER_BYTES (128 * 1024)

struct mp_outfile_state {
    mp_status_t status;
    mp_sink_t *sink;
    mp_gzip_sink_t *gzip; /* NULL: not compressed */
    char *path;
    char *temporary;
    bool replaces; /* a file was there, of this mode: */
    mode_t mode;
};

static atomic_uint_fast32_t made; /* so that two threads' files differ */

/* A file of the name PATH that nobody else may read: what it takes the place
 * of may be private.  False: it is made by whoever opens it. */
static bool
make_private(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    return file >= 0 && close(file) == 0;
}

static void
release(mp_outfile_t *file)
{
    if (file->state != NULL) {
        mp_free(file->state->path);
        mp_free(file->state->temporary);
    }
    mp_free(file->state);
    mp_free(file->buffer);
    mp_free(file);
}

char *
mp_outfile_beside(const char *path)
{
    char suffix[48];
    int suffix_length =
        snprintf(suffix, sizeof(suffix), ".tmp%ld.%lu", (long)getpid(),
                 (unsigned long)atomic_fetch_add(&made, 1));
    const char *slash = strrchr(path, '/');
    size_t folder = slash != NULL ? (size_t)(slash - path) + 1 : 0;
    size_t name = strlen(path) - folder;
    size_t most = NAME_MAX - (size_t)suffix_length;
    size_t kept = folder + (name < most ? name : most);
    char *beside = mp_calloc(1, kept + (size_t)suffix_length + 1);
    if (beside != NULL) {
        memcpy(beside, path, kept);
        memcpy(beside + kept, suffix, (size_t)suffix_length);
    }
    return beside;
}

/* All that needs memory, and nothing of the file. */
static mp_outfile_t *
outfile_new(const char *path)
{
    mp_outfile_t *file = mp_calloc(1, sizeof(*file));
    if (file == NULL) {
        return NULL;
    }
    size_t length = strlen(path);
    file->buffer = mp_calloc(1, BUFFER_BYTES);
    struct mp_outfile_state *state = mp_calloc(1, sizeof(*state));
    file->state = state;
    if (file->buffer == NULL || state == NULL ||
        (state->path = mp_calloc(1, length + 1)) == NULL ||
        (state->temporary = mp_outfile_beside(path)) == NULL) {
        release(file);
        return NULL;
    }
    memcpy(state->path, path, length);
    file->at = file->buffer;
    file->end = file->buffer + BUFFER_BYTES;
    return file;
}

mp_status_t
mp_outfile_open(const char *path, bool gzip, mp_outfile_t **out,
                int *saved_errno)
{
    *saved_errno = 0;
    mp_outfile_t *file = outfile_new(path);
    if (file == NULL) {
        return MP_ERR_NOMEM;
    }
    struct mp_outfile_state *state = file->state;
    struct stat before;
    if (stat(path, &before) == 0) {
        state->replaces = make_private(state->temporary);
        state->mode = before.st_mode & 07777;
    }
    mp_status_t status =
        mp_sink_open(state->temporary, &state->sink, saved_errno);
    if (status == MP_OK && gzip) {
        status = mp_gzip_sink_open(state->sink, &state->gzip);
    }
    if (status != MP_OK) {
        int ignored;
        (void)mp_sink_close(state->sink, &ignored);
        (void)remove(state->temporary);
        release(file);
        return status;
    }
    *out = file;
    return MP_OK;
}

/* LENGTH bytes to what lies below, unless something failed before. */
static void
pass_on(mp_outfile_t *file, const void *bytes, size_t length)
{
    struct mp_outfile_state *state = file->state;
    file->flushed += length;
    if (state->status == MP_OK) {
        state->status = state->gzip != NULL
                            ? mp_gzip_sink_write(state->gzip, bytes, length)
                            : mp_sink_write(state->sink, bytes, length);
    }
}

void
mp_outfile_flush(mp_outfile_t *file)
{
    pass_on(file, file->buffer, (size_t)(file->at - file->buffer));
    file->at = file->buffer;
}

void
mp_outfile_write(mp_outfile_t *file, const void *bytes, size_t length)
{
    if (length > (size_t)(file->end - file->at)) {
        mp_outfile_flush(file);
        if (length >= BUFFER_BYTES) { /* no use in copying it first */
            pass_on(file, bytes, length);
            return;
        }
    }
    if (length > 0) {
        memcpy(file->at, bytes, length);
        file->at += length;
    }
}

mp_status_t
mp_outfile_status(const mp_outfile_t *file)
{
    return file->state->status;
}

mp_status_t
mp_outfile_close(mp_outfile_t *file, mp_status_t status, int *saved_errno)
{
    *saved_errno = 0;
    if (file == NULL) {
        return status;
    }
    struct mp_outfile_state *state = file->state;
    if (status == MP_OK) {
        mp_outfile_flush(file);
        status = state->status;
    }
    mp_status_t ended = mp_gzip_sink_close(state->gzip, status == MP_OK);
    status = status == MP_OK ? ended : status;
    ended = mp_sink_close(state->sink, saved_errno);
    status = status == MP_OK ? ended : status;
    if (status == MP_OK && state->replaces) {
        (void)chmod(state->temporary, state->mode);
    }
    if (status == MP_OK && rename(state->temporary, state->path) != 0) {
        *saved_errno = errno;
        status = MP_ERR_IO;
    }
    if (status != MP_OK) {
        (void)remove(state->temporary);
    }
    release(file);
    return status;
}
