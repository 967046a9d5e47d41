/* test_json_scan.c - the end of a value is found, or it is said that not. */
#include "json_scan.h"
#include "mp_test.h"

#include <stdlib.h>

/* A copy without anything behind it, so that reading on is an error. */
static mp_status_t
place_in(const char *text, size_t length, mp_trace_place_t *place)
{
    char *copy = malloc(length > 0 ? length : 1);
    MP_CHECK(copy != NULL);
    memcpy(copy, text, length);
    mp_status_t status = mp_json_trace_place(copy, length, place);
    free(copy);
    return status;
}

static void
check_value(const char *text, const char *rest)
{
    const char *end = text + strlen(text);
    const char *found = mp_json_value_end(text, end);
    if (rest == NULL) {
        MP_CHECK(found == NULL);
    }
    else {
        MP_CHECK_STR(found, rest);
    }
}

static void
test_json_scan_values(void)
{
    check_value("1,2", ",2");
    check_value("-1.5e+9]", "]");
    check_value("null }", " }");
    check_value("\"a\\\"b\",", ",");
    check_value("\"a\\\\\" ", " ");
    check_value("{}x", "x");
    check_value("[1,{\"]\":[]},\"}\"],", ",");
    check_value("[[[[[]]]]]", "");
    check_value("", NULL);
    check_value("]", NULL);
    check_value(",", NULL);
    check_value("[1", NULL);
    check_value("{\"a", NULL);
    check_value("\"a\\", NULL);
}

static const char trace[] =
    "{\"a\":[\"traceEvents\"],\"baseTimeNanoseconds\":12, \"traceEvents\" : "
    "[ {\"name\":\"x\"} ,\n{\"name\":\"Record Window End\"}\n],\"z\":null}";

static void
test_json_scan_place(void)
{
    mp_trace_place_t place;
    MP_CHECK(place_in(trace, strlen(trace), &place) == MP_OK);
    MP_CHECK_STR(trace + place.place,
                 "{\"name\":\"Record Window End\"}\n],\"z\":null}");
    MP_CHECK(!place.comma_before);
    MP_CHECK(place.comma_after);
    MP_CHECK(!place.has_memory);
    MP_CHECK_EQ(place.base_ns, 12);
}

/* Every cut of a trace is refused, and none is read beyond. */
static void
test_json_scan_cuts(void)
{
    for (size_t length = 0; length < strlen(trace); length++) {
        mp_trace_place_t place;
        MP_CHECK(place_in(trace, length, &place) == MP_ERR_FORMAT);
    }
}

/* Every byte, everywhere: it ends, with a place inside or none. */
static void
test_json_scan_any_byte(void)
{
    char text[sizeof(trace)];
    for (size_t at = 0; at < strlen(trace); at++) {
        for (int byte = 0; byte < 256; byte++) {
            memcpy(text, trace, sizeof(trace));
            text[at] = (char)byte;
            mp_trace_place_t place;
            if (place_in(text, strlen(trace), &place) == MP_OK) {
                MP_CHECK(place.place > 0 && place.place < strlen(trace));
            }
        }
    }
}

/* Depth costs no stack. */
static void
test_json_scan_deep(void)
{
    enum {
        DEPTH = 2000000
    };
    char *text = calloc(2, DEPTH);
    MP_CHECK(text != NULL);
    memset(text, '[', DEPTH);
    memset(text + DEPTH, ']', DEPTH);
    MP_CHECK(mp_json_value_end(text, text + 2 * DEPTH) == text + 2 * DEPTH);
    MP_CHECK(mp_json_value_end(text, text + 2 * DEPTH - 1) == NULL);
    free(text);
}

MP_TEST_SUITE(json_scan, MP_TEST(test_json_scan_values),
              MP_TEST(test_json_scan_place), MP_TEST(test_json_scan_cuts),
              MP_TEST(test_json_scan_any_byte), MP_TEST(test_json_scan_deep))
