/* test_sink.c - every byte arrives, or the sink says why not. */
#include "mem.h"
#include "mp_test.h"
#include "sink.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static mp_sink_t *
open_sink(const char *path)
{
    mp_sink_t *sink = NULL;
    int saved_errno = -1;
    MP_CHECK(mp_sink_open(path, &sink, &saved_errno) == MP_OK);
    MP_CHECK(sink != NULL);
    return sink;
}

static void
close_sink(mp_sink_t *sink)
{
    int saved_errno = -1;
    MP_CHECK(mp_sink_close(sink, &saved_errno) == MP_OK);
    MP_CHECK_EQ(saved_errno, 0);
}

/* The byte that belongs at OFFSET. */
static char
byte_at(uint64_t offset)
{
    return (char)((offset * 2654435761u) >> 13);
}

/* Write the LENGTH bytes that come next. */
static void
write_next(mp_sink_t *sink, size_t length)
{
    char *bytes = malloc(length + 1);
    MP_CHECK(bytes != NULL);
    uint64_t offset = mp_sink_offset(sink);
    for (size_t i = 0; i < length; i++) {
        bytes[i] = byte_at(offset + i);
    }
    MP_CHECK(mp_sink_write(sink, bytes, length) == MP_OK);
    MP_CHECK_EQ(mp_sink_offset(sink), offset + length);
    free(bytes);
}

/* The file's bytes, which must be LENGTH; to be freed. */
static char *
read_file(const char *path, size_t length)
{
    char *bytes = malloc(length + 1);
    FILE *file = fopen(path, "rb");
    MP_CHECK(bytes != NULL);
    MP_CHECK(file != NULL);
    MP_CHECK_EQ(fread(bytes, 1, length + 1, file), length);
    fclose(file);
    bytes[length] = '\0';
    return bytes;
}

static void
check_file(const char *path, size_t length)
{
    char *bytes = read_file(path, length);
    for (size_t i = 0; i < length; i++) {
        MP_CHECK_EQ(bytes[i], byte_at(i));
    }
    free(bytes);
}

static void
test_sink_writes_all_bytes_in_order(void)
{
    static const size_t lengths[] = {0, 1,     65535, 1,     65536,
                                     0, 65537, 10000, 55536, 55535,
                                     1, 2,     70000, 7,     1000000};
    const char *path = mp_test_path("bytes");
    mp_sink_t *sink = open_sink(path);
    size_t total = 0;
    for (size_t i = 0; i < MP_ARRAY_LENGTH(lengths); i++) {
        write_next(sink, lengths[i]);
        total += lengths[i];
    }
    MP_CHECK(mp_sink_write(sink, NULL, 0) == MP_OK);
    MP_CHECK_EQ(mp_sink_offset(sink), total);
    MP_CHECK_EQ(mp_sink_errno(sink), 0);
    close_sink(sink);
    check_file(path, total);
    MP_CHECK_EQ(mp_mem_bytes(), 0);
}

static void
test_sink_writes_many_small_pieces(void)
{
    const char *path = mp_test_path("pieces");
    mp_sink_t *sink = open_sink(path);
    size_t total = 0;
    for (size_t i = 0; i < 20000; i++) {
        write_next(sink, i % 40);
        total += i % 40;
    }
    close_sink(sink);
    check_file(path, total);
}

static void
test_sink_flush_makes_bytes_visible(void)
{
    const char *path = mp_test_path("flushed");
    mp_sink_t *sink = open_sink(path);
    write_next(sink, 100);
    check_file(path, 0);
    MP_CHECK(mp_sink_flush(sink) == MP_OK);
    check_file(path, 100);
    MP_CHECK(mp_sink_flush(sink) == MP_OK);
    write_next(sink, 5);
    close_sink(sink);
    check_file(path, 105);
}

static void
test_sink_truncates_what_was_there(void)
{
    const char *path = mp_test_path("again");
    mp_sink_t *sink = open_sink(path);
    write_next(sink, 100000);
    close_sink(sink);
    sink = open_sink(path);
    write_next(sink, 3);
    close_sink(sink);
    check_file(path, 3);
}

static void
test_sink_patch_overwrites_and_goes_on(void)
{
    const char *path = mp_test_path("patched");
    mp_sink_t *sink = open_sink(path);
    const char zeros[64] = {0};
    char right[64];
    for (size_t i = 0; i < sizeof(right); i++) {
        right[i] = byte_at(i);
    }
    /* A header of zeros that is right at the end: in the buffer, then half
     * in the file, then all in it. */
    MP_CHECK(mp_sink_write(sink, zeros, 64) == MP_OK);
    MP_CHECK(mp_sink_patch(sink, 0, right, 8) == MP_OK);
    MP_CHECK(mp_sink_flush(sink) == MP_OK);
    MP_CHECK(mp_sink_patch(sink, 8, right + 8, 8) == MP_OK);
    write_next(sink, 1000);
    MP_CHECK(mp_sink_patch(sink, 16, right + 16, 48) == MP_OK);
    write_next(sink, 200000);
    MP_CHECK_EQ(mp_sink_offset(sink), 201064);

    /* Over the border between the file and the buffer. */
    MP_CHECK(mp_sink_flush(sink) == MP_OK);
    uint64_t border = mp_sink_offset(sink);
    MP_CHECK(mp_sink_write(sink, zeros, 32) == MP_OK);
    for (size_t i = 0; i < sizeof(right); i++) {
        right[i] = byte_at(border - 32 + i);
    }
    MP_CHECK(mp_sink_patch(sink, border - 32, right, 64) == MP_OK);
    write_next(sink, 10);
    close_sink(sink);
    check_file(path, border + 42);
}

static void
test_sink_patch_stays_inside_the_file(void)
{
    const char *path = mp_test_path("inside");
    mp_sink_t *sink = open_sink(path);
    write_next(sink, 10);
    MP_CHECK(mp_sink_patch(sink, 8, "xyz", 3) == MP_ERR_ARG);
    MP_CHECK(mp_sink_patch(sink, 11, "x", 0) == MP_ERR_ARG);
    MP_CHECK(mp_sink_patch(sink, UINT64_MAX, "xy", 2) == MP_ERR_ARG);
    MP_CHECK(mp_sink_patch(sink, 10, "", 0) == MP_OK);
    close_sink(sink); /* a bad argument is not a failure of the file */
    check_file(path, 10);
}

static void
test_sink_says_why_it_cannot_open(void)
{
    mp_sink_t *sink = NULL;
    int saved_errno = 0;
    MP_CHECK(mp_sink_open("/nowhere/file", &sink, &saved_errno) == MP_ERR_IO);
    MP_CHECK_EQ(saved_errno, ENOENT);
    MP_CHECK(mp_sink_open(mp_test_dir(), &sink, &saved_errno) == MP_ERR_IO);
    MP_CHECK_EQ(saved_errno, EISDIR);
    MP_CHECK(sink == NULL);
    MP_CHECK_EQ(mp_mem_bytes(), 0);
    MP_CHECK(mp_sink_close(NULL, &saved_errno) == MP_OK);
    MP_CHECK_EQ(saved_errno, 0);
}

static void
test_sink_remembers_a_full_disk(void)
{
    mp_sink_t *sink = open_sink("/dev/full");
    char bytes[100] = {0};
    int saved_errno = 0;
    MP_CHECK(mp_sink_write(sink, bytes, sizeof(bytes)) == MP_OK);
    MP_CHECK_EQ(mp_sink_errno(sink), 0);
    MP_CHECK(mp_sink_flush(sink) == MP_ERR_IO);
    MP_CHECK_EQ(mp_sink_errno(sink), ENOSPC);
    MP_CHECK(mp_sink_write(sink, bytes, 1) == MP_ERR_IO);
    MP_CHECK(mp_sink_write(sink, bytes, 0) == MP_ERR_IO);
    MP_CHECK(mp_sink_flush(sink) == MP_ERR_IO);
    MP_CHECK(mp_sink_patch(sink, 0, bytes, 1) == MP_ERR_IO);
    MP_CHECK_EQ(mp_sink_offset(sink), sizeof(bytes));
    MP_CHECK(mp_sink_close(sink, &saved_errno) == MP_ERR_IO);
    MP_CHECK_EQ(saved_errno, ENOSPC);
    MP_CHECK_EQ(mp_mem_bytes(), 0);
}

static void
test_sink_finds_a_full_disk_when_closed(void)
{
    mp_sink_t *sink = open_sink("/dev/full");
    int saved_errno = 0;
    MP_CHECK(mp_sink_write(sink, "x", 1) == MP_OK);
    MP_CHECK(mp_sink_close(sink, &saved_errno) == MP_ERR_IO);
    MP_CHECK_EQ(saved_errno, ENOSPC);

    char *bytes = calloc(1, 200000); /* straight to the kernel */
    MP_CHECK(bytes != NULL);
    sink = open_sink("/dev/full");
    MP_CHECK(mp_sink_write(sink, bytes, 200000) == MP_ERR_IO);
    MP_CHECK_EQ(mp_sink_offset(sink), 0);
    MP_CHECK(mp_sink_close(sink, &saved_errno) == MP_ERR_IO);
    free(bytes);
}

static void
test_sink_is_closed_in_a_new_program(void)
{
    int before = open("/dev/null", O_RDONLY | O_CLOEXEC);
    MP_CHECK(before >= 0);
    close(before); /* the number that the sink gets now */
    mp_sink_t *sink = open_sink(mp_test_path("cloexec"));
    MP_CHECK((fcntl(before, F_GETFD) & FD_CLOEXEC) != 0);
    close_sink(sink);
    MP_CHECK_EQ(fcntl(before, F_GETFD), -1);
}

static void
test_sink_survives_every_failed_allocation(void)
{
    const char *path = mp_test_path("memory");
    mp_sink_t *sink = NULL;
    int saved_errno = 0;
    mp_mem_fail_after(1);
    MP_CHECK(mp_sink_open(path, &sink, &saved_errno) == MP_ERR_NOMEM);
    MP_CHECK(sink == NULL);
    MP_CHECK(access(path, F_OK) != 0);
    mp_mem_fail_after(2); /* opening takes one; nothing later takes any */
    sink = open_sink(path);
    write_next(sink, 200000);
    close_sink(sink);
    MP_CHECK(mp_calloc(1, 1) == NULL); /* so the second is this one */
    check_file(path, 200000);
}

/* --- signals and short writes ------------------------------------------- */

static void
do_nothing(int signal_number)
{
    (void)signal_number;
}

typedef struct {
    const char *path;
    pthread_t writer;
    size_t length;
    atomic_bool done;
} pipe_reader_t;

/* Read slowly, so that the writer blocks. */
static void *
read_pipe(void *argument)
{
    pipe_reader_t *self = argument;
    int fd = open(self->path, O_RDONLY | O_CLOEXEC);
    MP_CHECK(fd >= 0);
    char bytes[5000];
    ssize_t count;
    while ((count = read(fd, bytes, sizeof(bytes))) > 0) {
        for (ssize_t i = 0; i < count; i++) {
            MP_CHECK_EQ(bytes[i], byte_at(self->length + (size_t)i));
        }
        self->length += (size_t)count;
        usleep(100);
    }
    MP_CHECK_EQ(count, 0);
    close(fd);
    return NULL;
}

static void *
send_signals(void *argument)
{
    pipe_reader_t *self = argument;
    while (!atomic_load(&self->done)) {
        pthread_kill(self->writer, SIGUSR1);
        usleep(50);
    }
    return NULL;
}

static void
test_sink_goes_on_after_signals_and_short_writes(void)
{
    enum {
        LENGTH = 3000000
    };
    struct sigaction action = {.sa_handler = do_nothing}; /* no SA_RESTART */
    MP_CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    pipe_reader_t reader = {.path = mp_test_path("pipe"),
                            .writer = pthread_self()};
    MP_CHECK(mkfifo(reader.path, 0600) == 0);
    pthread_t threads[2];
    MP_CHECK(pthread_create(&threads[0], NULL, send_signals, &reader) == 0);
    MP_CHECK(pthread_create(&threads[1], NULL, read_pipe, &reader) == 0);
    mp_sink_t *sink = open_sink(reader.path);
    write_next(sink, 1000);
    write_next(sink, LENGTH - 1000);
    close_sink(sink);
    atomic_store(&reader.done, true);
    MP_CHECK(pthread_join(threads[0], NULL) == 0);
    MP_CHECK(pthread_join(threads[1], NULL) == 0);
    MP_CHECK_EQ(reader.length, LENGTH);
}

/* A program that closes all descriptors gets our number for its own file. */
static void
test_sink_leaves_a_file_alone_that_took_its_descriptor(void)
{
    const char *theirs = mp_test_path("theirs");
    int next = open("/dev/null", O_RDONLY);
    MP_CHECK(next >= 0 && close(next) == 0);
    mp_sink_t *sink = open_sink(mp_test_path("ours"));
    MP_CHECK(mp_sink_write(sink, "ours", 4) == MP_OK);
    MP_CHECK(close(next) == 0); /* that of the sink: the lowest */
    MP_CHECK_EQ(open(theirs, O_WRONLY | O_CREAT, 0600), next);
    MP_CHECK(mp_sink_flush(sink) == MP_ERR_IO);
    int saved_errno = 0;
    MP_CHECK(mp_sink_close(sink, &saved_errno) == MP_ERR_IO);
    MP_CHECK_EQ(saved_errno, EBADF);
    struct stat facts;
    MP_CHECK(fstat(next, &facts) == 0); /* still open */
    MP_CHECK_EQ(facts.st_size, 0);
    MP_CHECK(close(next) == 0);
}

MP_TEST_SUITE(sink, MP_TEST(test_sink_writes_all_bytes_in_order),
              MP_TEST(test_sink_writes_many_small_pieces),
              MP_TEST(test_sink_flush_makes_bytes_visible),
              MP_TEST(test_sink_truncates_what_was_there),
              MP_TEST(test_sink_patch_overwrites_and_goes_on),
              MP_TEST(test_sink_patch_stays_inside_the_file),
              MP_TEST(test_sink_says_why_it_cannot_open),
              MP_TEST(test_sink_remembers_a_full_disk),
              MP_TEST(test_sink_finds_a_full_disk_when_closed),
              MP_TEST(test_sink_is_closed_in_a_new_program),
              MP_TEST(test_sink_survives_every_failed_allocation),
              MP_TEST(test_sink_goes_on_after_signals_and_short_writes),
              MP_TEST(test_sink_leaves_a_file_alone_that_took_its_descriptor))
