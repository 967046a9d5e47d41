/* test_outfile.c - the whole file is there, compressed or not, or none is. */
#include "json.h"
#include "mem.h"
#include "mp_test.h"
#include "outfile.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

static mp_outfile_t *
open_file(const char *path, bool gzip)
{
    mp_outfile_t *file = NULL;
    int saved_errno = -1;
    MP_CHECK(mp_outfile_open(path, gzip, &file, &saved_errno) == MP_OK);
    return file;
}

static void
close_file(mp_outfile_t *file)
{
    int saved_errno = -1;
    MP_CHECK(mp_outfile_close(file, MP_OK, &saved_errno) == MP_OK);
    MP_CHECK_EQ(saved_errno, 0);
}

/* How many files the folder of this test holds. */
static int
files_here(void)
{
    DIR *folder = opendir(mp_test_dir());
    MP_CHECK(folder != NULL);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    return count;
}

/* The bytes of a file, NUL after them; to be freed. */
static char *
read_file(const char *path, size_t *length)
{
    FILE *file = fopen(path, "rb");
    MP_CHECK(file != NULL);
    MP_CHECK(fseek(file, 0, SEEK_END) == 0);
    *length = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(*length + 1);
    MP_CHECK(bytes != NULL);
    MP_CHECK_EQ(fread(bytes, 1, *length, file), *length);
    bytes[*length] = '\0';
    fclose(file);
    return bytes;
}

/* What one gzip member holds, and nothing behind it; to be freed. */
static char *
unzip(const char *bytes, size_t length, size_t *unzipped_length)
{
    size_t room = 1 << 16, filled = 0;
    char *out = malloc(room);
    z_stream zlib = {0};
    MP_CHECK(inflateInit2(&zlib, 16 + MAX_WBITS) == Z_OK);
    zlib.next_in = (unsigned char *)bytes;
    zlib.avail_in = (uInt)length;
    int result = Z_OK;
    while (result == Z_OK) {
        if (room - filled < 1 << 16) {
            room *= 2;
            out = realloc(out, room);
        }
        MP_CHECK(out != NULL);
        zlib.next_out = (unsigned char *)out + filled;
        zlib.avail_out = (uInt)(room - filled);
        result = inflate(&zlib, Z_NO_FLUSH);
        filled = zlib.total_out;
    }
    MP_CHECK_EQ(result, Z_STREAM_END); /* with the right sum and length */
    MP_CHECK_EQ(zlib.avail_in, 0);
    inflateEnd(&zlib);
    *unzipped_length = filled;
    return out;
}

/* Words that compress about as JSON does. */
static char
byte_at(size_t offset)
{
    return "{\"name\": 0123456789, []}"[(offset * (offset >> 9)) % 24];
}

static void
write_bytes(mp_outfile_t *file, size_t length, size_t step)
{
    for (size_t i = 0; i < length;) {
        size_t end = i + step < length ? i + step : length;
        char *bytes = malloc(step);
        MP_CHECK(bytes != NULL);
        for (size_t j = i; j < end; j++) {
            bytes[j - i] = byte_at(j);
        }
        mp_outfile_write(file, bytes, end - i);
        free(bytes);
        i = end;
    }
    MP_CHECK_EQ(mp_outfile_length(file), length);
}

static void
check_bytes(const char *bytes, size_t length, size_t expected)
{
    MP_CHECK_EQ(length, expected);
    for (size_t i = 0; i < length; i++) {
        MP_CHECK_EQ(bytes[i], byte_at(i));
    }
}

static const size_t lengths[] = {0,      1,      4095,    131071, 131072,
                                 131073, 262144, 1000000, 5000001};

static void
test_outfile_holds_what_was_written(void)
{
    const char *path = mp_test_path("plain");
    for (size_t i = 0; i < MP_ARRAY_LENGTH(lengths); i++) {
        mp_outfile_t *file = open_file(path, false);
        write_bytes(file, lengths[i], 70001);
        close_file(file);
        size_t length;
        char *bytes = read_file(path, &length);
        check_bytes(bytes, length, lengths[i]);
        free(bytes);
        MP_CHECK_EQ(files_here(), 1);
    }
}

static void
test_outfile_gzip_is_one_member(void)
{
    const char *path = mp_test_path("packed");
    for (size_t i = 0; i < MP_ARRAY_LENGTH(lengths); i++) {
        mp_outfile_t *file = open_file(path, true);
        write_bytes(file, lengths[i], 70001);
        close_file(file);
        size_t length, unzipped;
        char *bytes = read_file(path, &length);
        MP_CHECK(memcmp(bytes + 3, "\0\0\0\0\0\0\3", 7) == 0); /* no time */
        char *out = unzip(bytes, length, &unzipped);
        check_bytes(out, unzipped, lengths[i]);
        free(out);
        free(bytes);
    }
}

/* The same bytes, in other writes and on one processor. */
static void
test_outfile_gzip_is_the_same_every_time(void)
{
    enum {
        LENGTH = 3000000
    };
    const char *paths[3] = {"a", "b", "c"};
    const size_t steps[3] = {LENGTH, 997, 131072};
    char *bytes[3];
    size_t length[3];
    for (int i = 0; i < 3; i++) {
        if (i == 2) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET((size_t)sched_getcpu(), &one);
            MP_CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
        }
        const char *path = mp_test_path(paths[i]);
        mp_outfile_t *file = open_file(path, true);
        write_bytes(file, LENGTH, steps[i]);
        close_file(file);
        bytes[i] = read_file(path, &length[i]);
        MP_CHECK_EQ(length[i], length[0]);
        MP_CHECK(memcmp(bytes[i], bytes[0], length[0]) == 0);
    }
    for (int i = 0; i < 3; i++) {
        free(bytes[i]);
    }
}

static void
test_outfile_room_crosses_the_buffer(void)
{
    const char *path = mp_test_path("numbers");
    mp_outfile_t *file = open_file(path, false);
    for (uint64_t i = 0; i < 100000; i++) {
        mp_json_uint(file, i);
        mp_outfile_text(file, ",\n");
    }
    close_file(file);
    size_t length;
    char *bytes = read_file(path, &length);
    char *at = bytes;
    for (uint64_t i = 0; i < 100000; i++) {
        MP_CHECK_EQ(strtoull(at, &at, 10), i);
        MP_CHECK(memcmp(at, ",\n", 2) == 0);
        at += 2;
    }
    MP_CHECK(at == bytes + length);
    free(bytes);
}

/* A file that was there stays until the new one is whole, and its mode too. */
static void
test_outfile_replaces_at_the_end_only(void)
{
    const char *path = mp_test_path("there");
    mp_outfile_t *file = open_file(path, false);
    mp_outfile_text(file, "old");
    close_file(file);
    MP_CHECK(chmod(path, 0640) == 0);

    for (int keep = 0; keep < 2; keep++) {
        file = open_file(path, false);
        mp_outfile_text(file, "new");
        mp_outfile_flush(file);
        size_t length;
        char *bytes = read_file(path, &length);
        MP_CHECK_STR(bytes, "old");
        free(bytes);
        int saved_errno;
        mp_status_t status = keep ? MP_OK : MP_ERR_ARG;
        MP_CHECK_EQ(mp_outfile_close(file, status, &saved_errno), status);
        bytes = read_file(path, &length);
        MP_CHECK_STR(bytes, keep ? "new" : "old");
        free(bytes);
        MP_CHECK_EQ(files_here(), 1);
    }
    struct stat now;
    MP_CHECK(stat(path, &now) == 0);
    MP_CHECK_EQ(now.st_mode & 07777, 0640);
}

static void
test_outfile_says_why_it_cannot(void)
{
    mp_outfile_t *file = NULL;
    int saved_errno = 0;
    const char *path = mp_test_path("no/such/folder");
    MP_CHECK_EQ(mp_outfile_open(path, true, &file, &saved_errno), MP_ERR_IO);
    MP_CHECK_EQ(saved_errno, ENOENT);
    MP_CHECK(file == NULL);

    const char *folder = mp_test_path("folder");
    MP_CHECK(mkdir(folder, 0700) == 0);
    file = open_file(folder, false); /* beside it there is room */
    MP_CHECK_EQ(mp_outfile_close(file, MP_OK, &saved_errno), MP_ERR_IO);
    MP_CHECK_EQ(saved_errno, EISDIR);
    MP_CHECK_EQ(files_here(), 1);
    MP_CHECK(rmdir(folder) == 0);
}

/* A full disk: the limit on a file's size stands for it. */
static void
test_outfile_full_disk_leaves_nothing(void)
{
    struct rlimit limit = {100000, 100000};
    MP_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    signal(SIGXFSZ, SIG_IGN);
    for (int gzip = 0; gzip < 2; gzip++) {
        mp_outfile_t *file = open_file(mp_test_path("full"), gzip);
        for (uint64_t i = 0; i < 1000000; i++) {
            mp_json_uint(file, i * 0x9e3779b97f4a7c15u);
        }
        MP_CHECK_EQ(mp_outfile_status(file), MP_ERR_IO);
        int saved_errno;
        MP_CHECK_EQ(mp_outfile_close(file, MP_OK, &saved_errno), MP_ERR_IO);
        MP_CHECK_EQ(saved_errno, EFBIG);
        MP_CHECK_EQ(files_here(), 0);
    }
}

static void
test_outfile_out_of_memory_leaves_nothing(void)
{
    for (int gzip = 0; gzip < 2; gzip++) {
        int failed = 0;
        for (long n = 1; n < 60; n++) {
            size_t held = mp_mem_bytes();
            mp_outfile_t *file = NULL;
            int saved_errno = -1;
            mp_mem_fail_after(n);
            mp_status_t status = mp_outfile_open(mp_test_path("small"), gzip,
                                                 &file, &saved_errno);
            if (status == MP_OK) {
                write_bytes(file, 2000000, 100000);
                status = mp_outfile_close(file, MP_OK, &saved_errno);
            }
            mp_mem_fail_after(0);
            /* A thread of its own may be what lacks memory: then others do
             * its work, and the file is whole. */
            MP_CHECK(status == MP_OK || status == MP_ERR_NOMEM);
            MP_CHECK_EQ(files_here(), status == MP_OK);
            MP_CHECK_EQ(mp_mem_bytes(), held);
            if (status == MP_OK) {
                MP_CHECK(unlink(mp_test_path("small")) == 0);
            }
            failed += status != MP_OK;
        }
        MP_CHECK(failed >= (gzip ? 8 : 4));
    }
}

static void *
write_one(void *argument)
{
    mp_outfile_t *file = open_file(argument, true);
    write_bytes(file, 600000, 10000);
    close_file(file);
    return NULL;
}

/* Threads that write to the same path: one of the files is there, whole. */
static void
test_outfile_threads_may_share_a_path(void)
{
    pthread_t threads[4];
    char path[4096];
    (void)snprintf(path, sizeof(path), "%s", mp_test_path("shared"));
    for (int i = 0; i < 4; i++) {
        MP_CHECK(pthread_create(&threads[i], NULL, write_one, path) == 0);
    }
    for (int i = 0; i < 4; i++) {
        MP_CHECK(pthread_join(threads[i], NULL) == 0);
    }
    size_t length, unzipped;
    char *bytes = read_file(path, &length);
    char *out = unzip(bytes, length, &unzipped);
    check_bytes(out, unzipped, 600000);
    free(out);
    free(bytes);
    MP_CHECK_EQ(files_here(), 1);
}

static void
test_outfile_names_beside_are_each_another(void)
{
    char name[256];
    for (size_t length = 1; length <= 255; length += 127) {
        memset(name, 'n', length);
        name[length] = '\0';
        const char *path = mp_test_path(name);
        char *first = mp_outfile_beside(path);
        char *second = mp_outfile_beside(path);
        MP_CHECK(first != NULL && second != NULL);
        MP_CHECK(strcmp(first, second) != 0);
        const char *slash = strrchr(first, '/');
        MP_CHECK(slash != NULL && strlen(slash + 1) <= 255);
        MP_CHECK(strstr(slash, ".tmp") != NULL);
        MP_CHECK(strncmp(first, mp_test_dir(), strlen(mp_test_dir())) == 0);
        mp_free(first);
        mp_free(second);
        mp_outfile_t *file = open_file(path, false);
        mp_outfile_text(file, "whole");
        close_file(file);
        MP_CHECK(access(mp_test_path(name), F_OK) == 0);
    }
    char *alone = mp_outfile_beside("a.json");
    MP_CHECK(alone != NULL && strncmp(alone, "a.json.tmp", 10) == 0);
    mp_free(alone);
    MP_CHECK_EQ(files_here(), 3);
}

MP_TEST_SUITE(outfile, MP_TEST(test_outfile_holds_what_was_written),
              MP_TEST(test_outfile_gzip_is_one_member),
              MP_TEST(test_outfile_gzip_is_the_same_every_time),
              MP_TEST(test_outfile_room_crosses_the_buffer),
              MP_TEST(test_outfile_replaces_at_the_end_only),
              MP_TEST(test_outfile_says_why_it_cannot),
              MP_TEST(test_outfile_full_disk_leaves_nothing),
              MP_TEST(test_outfile_out_of_memory_leaves_nothing),
              MP_TEST(test_outfile_threads_may_share_a_path),
              MP_TEST(test_outfile_names_beside_are_each_another))
