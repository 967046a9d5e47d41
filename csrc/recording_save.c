/* recording_save.c - a recording that is whole, as a file that is whole. */
#include "recording_save.h"

#include "mem.h"
#include "outfile.h"
#include "recording.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file of the name TEMPORARY that nobody else may read: what it takes the
 * place of may be private.  False: it is made by whoever opens it. */
static bool
make_private(const char *temporary)
{
    int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    return file >= 0 && close(file) == 0;
}

static mp_status_t
write_to(const mp_recording_content_t *content, const char *temporary,
         int *saved_errno)
{
    mp_recording_writer_t *writer;
    mp_status_t status =
        mp_recording_writer_open(temporary, content->intern, content->start_ns,
                                 content->start_wall_ns, &writer, saved_errno);
    if (status != MP_OK) {
        return status;
    }
    errno = 0;
    status =
        mp_recording_writer_append(writer, content->events, content->count);
    int append_errno = errno;
    mp_status_t closed =
        mp_recording_writer_close(writer, content->info, content->info_length,
                                  content->dropped, saved_errno);
    if (status != MP_OK && *saved_errno == 0) {
        *saved_errno = append_errno;
    }
    return status != MP_OK ? status : closed;
}

mp_status_t
mp_recording_save(const mp_recording_content_t *content, const char *path,
                  int *saved_errno)
{
    char *temporary = mp_outfile_beside(path);
    if (temporary == NULL) {
        return MP_ERR_NOMEM;
    }
    struct stat before;
    bool replaces = stat(path, &before) == 0 && make_private(temporary);
    mp_status_t status = write_to(content, temporary, saved_errno);
    if (status == MP_OK && replaces) {
        (void)chmod(temporary, before.st_mode & 07777);
    }
    if (status == MP_OK && rename(temporary, path) != 0) {
        *saved_errno = errno;
        status = MP_ERR_IO;
    }
    if (status != MP_OK) {
        (void)remove(temporary);
    }
    mp_free(temporary);
    return status;
}
