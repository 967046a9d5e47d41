/* test_json.c - what comes out is JSON, whatever goes in. */
#include "json.h"
#include "mp_test.h"

#include <math.h>
#include <stdlib.h>

/* What WRITE makes of a text or number, as a string that lives until the next
 * call. */
static const char *
written(mp_outfile_t *file)
{
    static char text[1 << 16];
    int saved_errno;
    MP_CHECK(mp_outfile_close(file, MP_OK, &saved_errno) == MP_OK);
    FILE *stream = fopen(mp_test_path("json"), "rb");
    MP_CHECK(stream != NULL);
    size_t length = fread(text, 1, sizeof(text) - 1, stream);
    fclose(stream);
    text[length] = '\0';
    return text;
}

static mp_outfile_t *
begin(void)
{
    mp_outfile_t *file = NULL;
    int saved_errno;
    MP_CHECK(mp_outfile_open(mp_test_path("json"), false, &file,
                             &saved_errno) == MP_OK);
    return file;
}

static void
check_string(const char *text, size_t length, const char *expected)
{
    mp_outfile_t *file = begin();
    mp_json_string(file, text, length);
    MP_CHECK_STR(written(file), expected);
}

#define CHECK_STRING(text, expected)                                          \
    check_string(text, sizeof(text) - 1, expected)

static void
test_json_escapes(void)
{
    CHECK_STRING("", "\"\"");
    CHECK_STRING("a b/<c>", "\"a b/<c>\"");
    CHECK_STRING("\"\\\b\f\n\r\t", "\"\\\"\\\\\\b\\f\\n\\r\\t\"");
    CHECK_STRING("a\0b\x01\x1f\x7f", "\"a\\u0000b\\u0001\\u001f\\u007f\"");
    CHECK_STRING("\xc3\xa4\xe2\x82\xac", "\"\\u00e4\\u20ac\"");
    CHECK_STRING("\xf0\x9f\x98\x80", "\"\\ud83d\\ude00\"");
    CHECK_STRING("\xf4\x8f\xbf\xbf", "\"\\udbff\\udfff\"");
    CHECK_STRING("\xef\xbf\xbf\xe2\x80\xae", "\"\\uffff\\u202e\"");
}

static void
test_json_what_is_no_utf8(void)
{
    CHECK_STRING("\xed\xa0\x80", "\"\\ufffd\""); /* a lone surrogate */
    CHECK_STRING("\xed\xbf\xbfz", "\"\\ufffdz\"");
    CHECK_STRING("\x80", "\"\\ufffd\"");
    CHECK_STRING("\xff\xfe", "\"\\ufffd\\ufffd\"");
    CHECK_STRING("\xc0\xaf", "\"\\ufffd\\ufffd\""); /* overlong */
    CHECK_STRING("\xe0\x80\x80", "\"\\ufffd\\ufffd\\ufffd\"");
    CHECK_STRING("\xf0\x9f\x98", "\"\\ufffd\""); /* cut */
    CHECK_STRING("\xf0\x9f\"", "\"\\ufffd\\\"\"");
    CHECK_STRING("\xc3", "\"\\ufffd\"");
    CHECK_STRING("\xf5\x80", "\"\\ufffd\\ufffd\""); /* above U+10FFFF */
    CHECK_STRING("\xf4\x90\x80\x80", "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");
}

static void
test_json_long_texts(void)
{
    enum {
        LENGTH = 60000
    };
    char *text = malloc(LENGTH);
    MP_CHECK(text != NULL);
    memset(text, 'x', LENGTH);
    mp_outfile_t *file = begin();
    mp_json_string(file, text, LENGTH);
    MP_CHECK_EQ(mp_outfile_length(file), LENGTH + 2);
    const char *out = written(file);
    MP_CHECK_EQ(strspn(out + 1, "x"), LENGTH);
    memset(text, '\n', LENGTH);
    file = begin();
    mp_json_string(file, text, LENGTH);
    MP_CHECK_EQ(mp_outfile_length(file), 2 * LENGTH + 2);
    (void)written(file);
    free(text);
}

static void
test_json_numbers(void)
{
    static const int64_t numbers[] = {0,      7,         10,        -10,
                                      99,     100,       -12345,    999999,
                                      100000, INT64_MAX, INT64_MIN, 1 << 30};
    for (size_t i = 0; i < MP_ARRAY_LENGTH(numbers); i++) {
        char expected[32];
        mp_outfile_t *file = begin();
        mp_json_int(file, numbers[i]);
        (void)snprintf(expected, sizeof(expected), "%" PRId64, numbers[i]);
        MP_CHECK_STR(written(file), expected);
        file = begin();
        mp_json_uint(file, (uint64_t)numbers[i]);
        (void)snprintf(expected, sizeof(expected), "%" PRIu64,
                       (uint64_t)numbers[i]);
        MP_CHECK_STR(written(file), expected);
        file = begin();
        mp_json_hex(file, (uint64_t)numbers[i]);
        (void)snprintf(expected, sizeof(expected), "\"0x%" PRIx64 "\"",
                       (uint64_t)numbers[i]);
        MP_CHECK_STR(written(file), expected);
    }
}

static void
check_micros(int64_t nanoseconds, const char *expected)
{
    mp_outfile_t *file = begin();
    mp_json_micros(file, nanoseconds);
    MP_CHECK_STR(written(file), expected);
}

static void
test_json_micros(void)
{
    check_micros(0, "0.000");
    check_micros(1, "0.001");
    check_micros(999, "0.999");
    check_micros(1020, "1.020");
    check_micros(123456789, "123456.789");
    check_micros(-5, "0.000");
    check_micros(INT64_MAX, "9223372036854775.807");
}

static void
check_double(double value, const char *expected)
{
    mp_outfile_t *file = begin();
    mp_json_double(file, value);
    MP_CHECK_STR(written(file), expected);
}

static void
test_json_doubles(void)
{
    check_double(0.0, "0");
    check_double(0.25, "0.25");
    check_double(-1.5e300, "-1.5e+300");
    check_double((double)NAN, "0");
    check_double((double)INFINITY, "0");
    check_double(-(double)INFINITY, "0");
}

MP_TEST_SUITE(json, MP_TEST(test_json_escapes),
              MP_TEST(test_json_what_is_no_utf8),
              MP_TEST(test_json_long_texts), MP_TEST(test_json_numbers),
              MP_TEST(test_json_micros), MP_TEST(test_json_doubles))
