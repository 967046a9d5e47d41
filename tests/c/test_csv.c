/* test_csv.c - columns of every kind become lines. */
#include "csv.h"
#include "mem.h"
#include "mp_test.h"

#include <errno.h>
#include <stdlib.h>

static char *
content_of(const char *path)
{
    FILE *file = fopen(path, "rb");
    MP_CHECK(file != NULL);
    char *text = calloc(1, 1 << 20);
    MP_CHECK(text != NULL);
    MP_CHECK(fread(text, 1, (1 << 20) - 1, file) > 0);
    (void)fclose(file);
    return text;
}

static void
test_csv_writes_numbers_and_texts_where_they_lie(void)
{
    struct {
        int64_t number;
        uint8_t word;
        uint8_t filler[7];
    } rows[] = {{INT64_MIN, 0, {0}}, {0, 1, {0}}, {INT64_MAX, 2, {0}}};
    mp_csv_text_t texts[] = {{"\"a,b\"", 5}, {"", 0}};
    mp_csv_column_t columns[] = {
        {(const char *)&rows[0].number, sizeof(rows[0]), 'q', NULL, 0},
        {(const char *)&rows[0].word, sizeof(rows[0]), 'B', texts, 2},
        {(const char *)&rows[2].word, -(ptrdiff_t)sizeof(rows[0]), 'B', NULL,
         0},
    };
    const char *path = mp_test_path("table.csv");
    mp_csv_text_t header = {"n,w,r\n", 6};
    int saved_errno;
    MP_CHECK(mp_csv_write(path, &header, columns, 3, 3, &saved_errno) ==
             MP_OK);
    char *text = content_of(path);
    MP_CHECK_STR(text, "n,w,r\n"
                       "-9223372036854775808,\"a,b\",2\n"
                       "0,,1\n"
                       "9223372036854775807,,0\n");
    free(text);
}

static void
test_csv_of_long_texts_is_whole(void)
{
    static char wide[100000];
    memset(wide, 'x', sizeof(wide));
    mp_csv_text_t texts[] = {{wide, sizeof(wide)}, {wide, 20000}};
    int16_t codes[] = {1, 0, 1, -1, 1};
    mp_csv_column_t column = {(const char *)codes, 2, 'h', texts, 2};
    mp_csv_text_t header = {"t\n", 2};
    int saved_errno;
    const char *path = mp_test_path("wide.csv");
    MP_CHECK(mp_csv_write(path, &header, &column, 1, 5, &saved_errno) ==
             MP_OK);
    char *text = content_of(path);
    MP_CHECK_EQ(strlen(text), 2 + sizeof(wide) + 3 * 20000 + 5);
    free(text);
}

static void
test_csv_says_why_it_cannot_write(void)
{
    int32_t number = 7;
    mp_csv_column_t column = {(const char *)&number, 0, 'i', NULL, 0};
    mp_csv_text_t header = {"n\n", 2};
    int saved_errno;
    MP_CHECK(mp_csv_write(mp_test_path("none/a.csv"), &header, &column, 1, 1,
                          &saved_errno) == MP_ERR_IO);
    MP_CHECK_EQ(saved_errno, ENOENT);
    MP_CHECK(mp_csv_write("/dev/full", &header, &column, 1, 100000,
                          &saved_errno) == MP_ERR_IO);
    MP_CHECK_EQ(saved_errno, ENOSPC);
    mp_mem_fail_after(1);
    MP_CHECK(mp_csv_write(mp_test_path("a.csv"), &header, &column, 1, 1,
                          &saved_errno) == MP_ERR_NOMEM);
    mp_mem_fail_after(0);
}

static void
test_csv_knows_its_kinds(void)
{
    size_t bytes;
    MP_CHECK(mp_csv_kind('Q', &bytes) && bytes == 8);
    MP_CHECK(mp_csv_kind('b', &bytes) && bytes == 1);
    MP_CHECK(!mp_csv_kind('d', &bytes));
    MP_CHECK(!mp_csv_kind('?', &bytes));
}

MP_TEST_SUITE(csv, MP_TEST(test_csv_writes_numbers_and_texts_where_they_lie),
              MP_TEST(test_csv_of_long_texts_is_whole),
              MP_TEST(test_csv_says_why_it_cannot_write),
              MP_TEST(test_csv_knows_its_kinds))
