/* fuzz_json.c - any bytes at all, as a trace that events are added to.
 *
 * Each input is scanned as it is, as the events of an array, as those of an
 * object, and as what such an object has beside them.  Where a place is found
 * an event is added there: the text must still be one in which the place is
 * found, and JSON if it was JSON before.  JSON that is a trace must not be
 * refused.  Nothing is read beyond the text, which ends where its memory does.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined ... (README.md)
 *     or with a plain compiler and -DMP_FUZZ_MAIN: runs the files given */
#include "fuzz.h"
#include "json_scan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVENT "{\"ph\":\"i\"}"
#define MOST_DEPTH 1000

/* ---- JSON, strictly ------------------------------------------------------
 */

typedef struct {
    const char *at, *end;
} text_t;

static bool
take(text_t *text, char wanted)
{
    text->at = mp_json_space_end(text->at, text->end);
    if (text->at < text->end && *text->at == wanted) {
        text->at++;
        return true;
    }
    return false;
}

static bool
take_string(text_t *text)
{
    if (!take(text, '"')) {
        return false;
    }
    while (text->at < text->end && *text->at != '"') {
        uint8_t character = (uint8_t)*text->at++;
        if (character < 0x20) {
            return false;
        }
        if (character != '\\') {
            continue;
        }
        if (text->at == text->end ||
            memchr("\"\\/bfnrtu", *text->at, 9) == NULL) {
            return false;
        }
        if (*text->at++ == 'u') {
            for (int i = 0; i < 4; i++, text->at++) {
                if (text->at == text->end ||
                    memchr("0123456789abcdefABCDEF", *text->at, 22) == NULL) {
                    return false;
                }
            }
        }
    }
    return take(text, '"');
}

static bool
take_digits(text_t *text)
{
    const char *from = text->at;
    while (text->at < text->end && *text->at >= '0' && *text->at <= '9') {
        text->at++;
    }
    return text->at > from;
}

static bool
take_number(text_t *text)
{
    (void)take(text, '-');
    const char *from = text->at;
    if (!take_digits(text) || (*from == '0' && text->at > from + 1)) {
        return false;
    }
    if (text->at < text->end && *text->at == '.') {
        text->at++;
        if (!take_digits(text)) {
            return false;
        }
    }
    if (text->at < text->end && (*text->at == 'e' || *text->at == 'E')) {
        text->at++;
        if (text->at < text->end && (*text->at == '+' || *text->at == '-')) {
            text->at++;
        }
        return take_digits(text);
    }
    return true;
}

static bool
take_word(text_t *text, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(text->end - text->at) < length ||
        memcmp(text->at, word, length) != 0) {
        return false;
    }
    text->at += length;
    return true;
}

static bool
take_value(text_t *text, int depth)
{
    text->at = mp_json_space_end(text->at, text->end);
    if (text->at == text->end || depth > MOST_DEPTH) {
        return false;
    }
    char first = *text->at;
    if (first == '{' || first == '[') {
        char last = first == '{' ? '}' : ']';
        text->at++;
        if (take(text, last)) {
            return true;
        }
        do {
            if (first == '{' && (!take_string(text) || !take(text, ':'))) {
                return false;
            }
            if (!take_value(text, depth + 1)) {
                return false;
            }
        } while (take(text, ','));
        return take(text, last);
    }
    if (first == '"') {
        return take_string(text);
    }
    return take_word(text, "true") || take_word(text, "false") ||
           take_word(text, "null") || take_number(text);
}

static bool
is_json(const char *text, size_t length)
{
    text_t rest = {text, text + length};
    return take_value(&rest, 0) &&
           mp_json_space_end(rest.at, rest.end) == rest.end;
}

/* ---- what is tried -------------------------------------------------------
 */

/* LENGTH bytes in memory of their own, so that a step beyond is seen. */
static char *
copy(const char *bytes, size_t length)
{
    char *made = malloc(length != 0 ? length : 1);
    require(made != NULL);
    if (length != 0) {
        memcpy(made, bytes, length);
    }
    return made;
}

/* TEXT with an event at PLACE. */
static char *
spliced(const char *text, size_t length, const mp_trace_place_t *place,
        size_t *made_length)
{
    char event[32];
    size_t event_length = (size_t)snprintf(
        event, sizeof(event), "%s" EVENT "%s", place->comma_before ? "," : "",
        place->comma_after ? "," : "");
    char *made = malloc(length + event_length);
    require(made != NULL);
    memcpy(made, text, place->place);
    memcpy(made + place->place, event, event_length);
    memcpy(made + place->place + event_length, text + place->place,
           length - place->place);
    *made_length = length + event_length;
    return made;
}

/* IS_TRACE: if it is JSON at all, it is a trace. */
static void
scan(const char *bytes, size_t length, bool is_trace)
{
    char *text = copy(bytes, length);
    mp_trace_place_t place, again;
    bool valid = is_json(text, length);
    mp_status_t status = mp_json_trace_place(text, length, &place);
    require(status == MP_OK || status == MP_ERR_FORMAT);
    require(status == MP_OK || !valid || !is_trace);
    if (status == MP_OK) {
        require(place.place > 0 && place.place < length);
        require(!place.comma_before || !place.comma_after);
        require(place.base_ns >= 0);
        size_t made_length;
        char *made = spliced(text, length, &place, &made_length);
        require(!valid || is_json(made, made_length));
        require(mp_json_trace_place(made, made_length, &again) == MP_OK);
        require(again.has_memory == place.has_memory);
        require(again.base_ns == place.base_ns);
        /* Behind the event just added: they come in order. */
        require(again.place > place.place);
        free(made);
    }
    for (size_t at = 0; at < length && at < 64; at++) {
        const char *end = mp_json_value_end(text + at, text + length);
        require(end == NULL || (end > text + at && end <= text + length));
    }
    free(text);
}

static void
scan_within(const char *before, const uint8_t *bytes, size_t length,
            const char *after)
{
    size_t head = strlen(before), tail = strlen(after);
    char *text = malloc(head + length + tail);
    require(text != NULL);
    memcpy(text, before, head);
    if (length != 0) {
        memcpy(text + head, bytes, length);
    }
    memcpy(text + head + length, after, tail);
    scan(text, head + length + tail, true);
    free(text);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    scan((const char *)bytes, length, false);
    scan_within("[", bytes, length, "]");
    scan_within("{\"baseTimeNanoseconds\":17,\"traceEvents\":[", bytes, length,
                "],\"traceName\":\"t\"}");
    scan_within("{\"traceEvents\":[{\"name\":\"Record Window End\"}],", bytes,
                length, "}");
    return 0;
}
