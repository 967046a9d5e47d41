/* json_scan.c - where things stand in a JSON text. */
#include "json_scan.h"

#include <string.h>

#define WINDOW_END "\"Record Window End\""

const char *
mp_json_space_end(const char *at, const char *end)
{
    while (at < end &&
           (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t')) {
        at++;
    }
    return at;
}

/* AT stands on the opening quote. */
static const char *
string_end(const char *at, const char *end)
{
    for (at++; at < end; at++) {
        if (*at == '\\') {
            at++;
        }
        else if (*at == '"') {
            return at + 1;
        }
    }
    return NULL;
}

/* Of a number or a name; anything but JSON's own signs may stand in it. */
static bool
is_of_word(char character)
{
    static const char signs[] = {',', ':', ']',  '}',  '[', '{',
                                 '"', ' ', '\n', '\r', '\t'};
    return memchr(signs, character, sizeof(signs)) == NULL;
}

const char *
mp_json_value_end(const char *at, const char *end)
{
    size_t depth = 0;
    while (at < end) {
        switch (*at) {
        case '"':
            at = string_end(at, end);
            if (at == NULL) {
                return NULL;
            }
            break;
        case '{':
        case '[':
            depth++;
            at++;
            continue; /* not over yet */
        case '}':
        case ']':
            if (depth == 0) {
                return NULL; /* no value here */
            }
            depth--;
            at++;
            break;
        case ',':
        case ':':
        case ' ':
        case '\n':
        case '\r':
        case '\t':
            if (depth == 0) {
                return NULL;
            }
            at++;
            continue;
        default:
            while (at < end && is_of_word(*at)) {
                at++;
            }
            break;
        }
        if (depth == 0) {
            return at;
        }
    }
    return NULL;
}

/* The events of the array at AT. */
static mp_status_t
find_place(const char *text, const char *at, const char *end,
           mp_trace_place_t *place)
{
    const char *last = NULL; /* event, and its end */
    const char *last_end = NULL;
    at = mp_json_space_end(at + 1, end);
    while (at < end && *at != ']') {
        last = at;
        last_end = mp_json_value_end(at, end);
        if (last_end == NULL) {
            return MP_ERR_FORMAT;
        }
        at = mp_json_space_end(last_end, end);
        if (at < end && *at == ',') {
            at = mp_json_space_end(at + 1, end);
            if (at < end && *at == ']') {
                return MP_ERR_FORMAT;
            }
        }
        else if (at < end && *at != ']') {
            return MP_ERR_FORMAT;
        }
    }
    if (at >= end) {
        return MP_ERR_FORMAT;
    }
    if (last != NULL && memmem(last, (size_t)(last_end - last), WINDOW_END,
                               sizeof(WINDOW_END) - 1) != NULL) {
        place->place = (size_t)(last - text);
        place->comma_after = true;
    }
    else {
        place->place = (size_t)((last != NULL ? last_end : at) - text);
        place->comma_before = last != NULL;
    }
    return MP_OK;
}

static bool
key_is(const char *key, const char *key_end, const char *expected)
{
    size_t length = strlen(expected);
    return (size_t)(key_end - key) == length + 2 &&
           memcmp(key + 1, expected, length) == 0;
}

static int64_t
read_number(const char *at, const char *end)
{
    int64_t value = 0;
    while (at < end && *at >= '0' && *at <= '9' && value < INT64_MAX / 10) {
        value = value * 10 + (*at++ - '0');
    }
    return value;
}

static mp_status_t
scan_object(const char *text, const char *at, const char *end,
            mp_trace_place_t *place)
{
    bool found = false;
    at = mp_json_space_end(at + 1, end);
    while (at < end && *at == '"') {
        const char *key = at, *key_end = string_end(at, end);
        if (key_end == NULL) {
            return MP_ERR_FORMAT;
        }
        at = mp_json_space_end(key_end, end);
        if (at >= end || *at != ':') {
            return MP_ERR_FORMAT;
        }
        const char *value = mp_json_space_end(at + 1, end);
        at = mp_json_value_end(value, end);
        if (at == NULL) {
            return MP_ERR_FORMAT;
        }
        if (key_is(key, key_end, "traceEvents") && *value == '[' && !found) {
            found = true;
            mp_status_t status = find_place(text, value, end, place);
            if (status != MP_OK) {
                return status;
            }
        }
        else if (key_is(key, key_end, "baseTimeNanoseconds")) {
            place->base_ns = read_number(value, end);
        }
        at = mp_json_space_end(at, end);
        if (at < end && *at == ',') {
            at = mp_json_space_end(at + 1, end);
        }
    }
    return found && at < end && *at == '}' ? MP_OK : MP_ERR_FORMAT;
}

mp_status_t
mp_json_trace_place(const char *text, size_t length, mp_trace_place_t *place)
{
    const char *end = text + length;
    *place = (mp_trace_place_t){0};
    const char *at = mp_json_space_end(text, end);
    mp_status_t status = MP_ERR_FORMAT;
    if (at < end && *at == '{') {
        status = scan_object(text, at, end, place);
    }
    else if (at < end && *at == '[') {
        status = find_place(text, at, end, place);
    }
    place->has_memory = memmem(text, length, "\"[memory]\"", 10) != NULL;
    return status;
}
