/* sink.c - bytes on their way to a file.
 *
 * A buffer of our own over a file descriptor: stdio would take its memory
 * past mem.c and keeps no reason for a failed write. */
#include "sink.h"

#include "mem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#define BUFFER_BYTES 65536

struct mp_sink {
    int fd;
    dev_t device; /* with inode: the file that fd was opened for */
    ino_t inode;
    int saved_errno;    /* of the first failure; 0: none yet */
    size_t buffered;    /* bytes in buffer */
    uint64_t in_kernel; /* bytes before them */
    char buffer[BUFFER_BYTES];
};

/* Remember ERROR if it is the first. */
static mp_status_t
fail(mp_sink_t *sink, int error)
{
    if (sink->saved_errno == 0) {
        sink->saved_errno = error;
    }
    return MP_ERR_IO;
}

/* Whether the descriptor is still that of our file.  A program may close all
 * descriptors (a daemon does), and get our number for a file of its own. */
static int
is_ours(const mp_sink_t *sink)
{
    struct stat facts;
    return fstat(sink->fd, &facts) == 0 && facts.st_dev == sink->device &&
           facts.st_ino == sink->inode;
}

/* All LENGTH bytes to the kernel: at the end (OFFSET < 0) or at OFFSET. */
static mp_status_t
write_all(mp_sink_t *sink, off_t offset, const char *bytes, size_t length)
{
    if (length > 0 && !is_ours(sink)) {
        return fail(sink, EBADF);
    }
    while (length > 0) {
        ssize_t written = offset < 0 ? write(sink->fd, bytes, length)
                                     : pwrite(sink->fd, bytes, length, offset);
        if (written < 0 && errno == EINTR) {
            continue;
        }
        if (written <= 0) {
            return fail(sink, written < 0 ? errno : EIO);
        }
        bytes += written;
        length -= (size_t)written;
        offset += offset < 0 ? 0 : written;
    }
    return MP_OK;
}

mp_status_t
mp_sink_open(const char *path, mp_sink_t **out, int *saved_errno)
{
    *saved_errno = 0;
    mp_sink_t *sink = mp_calloc(1, sizeof(*sink));
    if (sink == NULL) {
        return MP_ERR_NOMEM;
    }
    do {
        sink->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    } while (sink->fd < 0 && errno == EINTR);
    if (sink->fd < 0) {
        *saved_errno = errno;
        mp_free(sink);
        return MP_ERR_IO;
    }
    struct stat facts;
    if (fstat(sink->fd, &facts) != 0) {
        *saved_errno = errno;
        (void)close(sink->fd);
        mp_free(sink);
        return MP_ERR_IO;
    }
    sink->device = facts.st_dev;
    sink->inode = facts.st_ino;
    *out = sink;
    return MP_OK;
}

mp_status_t
mp_sink_flush(mp_sink_t *sink)
{
    if (sink->saved_errno != 0) {
        return MP_ERR_IO;
    }
    mp_status_t status = write_all(sink, -1, sink->buffer, sink->buffered);
    if (status == MP_OK) {
        sink->in_kernel += sink->buffered;
        sink->buffered = 0;
    }
    return status;
}

mp_status_t
mp_sink_write(mp_sink_t *sink, const void *bytes, size_t length)
{
    if (sink->saved_errno != 0) {
        return MP_ERR_IO;
    }
    if (length > BUFFER_BYTES - sink->buffered) {
        mp_status_t status = mp_sink_flush(sink);
        if (status != MP_OK) {
            return status;
        }
        if (length >= BUFFER_BYTES) { /* no use in copying it first */
            status = write_all(sink, -1, bytes, length);
            sink->in_kernel += status == MP_OK ? length : 0;
            return status;
        }
    }
    if (length > 0) {
        memcpy(sink->buffer + sink->buffered, bytes, length);
        sink->buffered += length;
    }
    return MP_OK;
}

mp_status_t
mp_sink_patch(mp_sink_t *sink, uint64_t offset, const void *bytes,
              size_t length)
{
    if (sink->saved_errno != 0) {
        return MP_ERR_IO;
    }
    uint64_t end = mp_sink_offset(sink);
    if (offset > end || length > end - offset) {
        return MP_ERR_ARG;
    }
    if (length == 0) {
        return MP_OK;
    }
    if (offset >= sink->in_kernel) {
        memcpy(sink->buffer + (offset - sink->in_kernel), bytes, length);
        return MP_OK;
    }
    if (offset + length > sink->in_kernel) {
        mp_status_t status = mp_sink_flush(sink);
        if (status != MP_OK) {
            return status;
        }
    }
    return write_all(sink, (off_t)offset, bytes, length);
}

uint64_t
mp_sink_offset(const mp_sink_t *sink)
{
    return sink->in_kernel + sink->buffered;
}

int
mp_sink_errno(const mp_sink_t *sink)
{
    return sink->saved_errno;
}

mp_status_t
mp_sink_close(mp_sink_t *sink, int *saved_errno)
{
    if (sink == NULL) {
        *saved_errno = 0;
        return MP_OK;
    }
    (void)mp_sink_flush(sink); /* a failure is remembered */
    /* EINTR: Linux has closed it all the same; a second try could close a
     * file that another thread has just opened. */
    if (!is_ours(sink)) {
        (void)fail(sink, EBADF);
    }
    else if (close(sink->fd) < 0 && errno != EINTR) {
        (void)fail(sink, errno);
    }
    *saved_errno = sink->saved_errno;
    mp_free(sink);
    return *saved_errno == 0 ? MP_OK : MP_ERR_IO;
}
