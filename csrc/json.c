/* json.c - JSON's words, into an outfile. */
#include "json.h"

#include <math.h>
#include <stdio.h>

static const char hex_digits[] = "0123456789abcdef";

/* ---- texts ----------------------------------------------------------------
 */

enum {
    REPLACEMENT = 0xfffd,
    SURROGATES = 0xd800, /* to 0xdfff */
    BEHIND_SURROGATES = 0xe000
};

/* Whether BYTE may be the second of a character that begins with LEAD. */
static bool
may_follow(unsigned char lead, unsigned char byte)
{
    switch (lead) {
    case 0xe0:
        return byte >= 0xa0 && byte <= 0xbf;
    case 0xf0:
        return byte >= 0x90 && byte <= 0xbf;
    case 0xf4:
        return byte >= 0x80 && byte <= 0x8f;
    default:
        return byte >= 0x80 && byte <= 0xbf;
    }
}

/* The character at TEXT, which begins with a byte above 0x7f and has at most
 * LEFT bytes; *LENGTH: how many it takes. */
static uint32_t
decode(const unsigned char *text, size_t left, size_t *length)
{
    unsigned char lead = text[0];
    size_t wanted = 0;
    uint32_t character = 0;
    if (lead >= 0xc2 && lead <= 0xdf) {
        wanted = 2;
        character = lead & 0x1fu;
    }
    else if (lead >= 0xe0 && lead <= 0xef) {
        wanted = 3;
        character = lead & 0x0fu;
    }
    else if (lead >= 0xf0 && lead <= 0xf4) {
        wanted = 4;
        character = lead & 0x07u;
    }
    for (size_t i = 1; i < wanted; i++) {
        if (i >= left ||
            !(i == 1 ? may_follow(lead, text[i]) : (text[i] & 0xc0) == 0x80)) {
            *length = i;
            return REPLACEMENT;
        }
        character = (character << 6) | (text[i] & 0x3fu);
    }
    *length = wanted == 0 ? 1 : wanted;
    bool is_surrogate =
        character >= SURROGATES && character < BEHIND_SURROGATES;
    return wanted == 0 || is_surrogate ? REPLACEMENT : character;
}

static char *
put_escape(char *at, uint32_t unit)
{
    *at++ = '\\';
    *at++ = 'u';
    for (int shift = 12; shift >= 0; shift -= 4) {
        *at++ = hex_digits[(unit >> shift) & 0xf];
    }
    return at;
}

/* What stands for an ASCII character that cannot stand for itself. */
static char *
put_ascii(char *at, unsigned char character)
{
    static const char from[] = "\"\\\b\f\n\r\t";
    static const char to[] = "\"\\bfnrt";
    const char *found = memchr(from, character, sizeof(from) - 1);
    if (found == NULL) {
        return put_escape(at, character);
    }
    *at++ = '\\';
    *at++ = to[found - from];
    return at;
}

void
mp_json_characters(mp_outfile_t *file, const char *text, size_t length)
{
    const unsigned char *from = (const unsigned char *)text;
    const unsigned char *end = from + length;
    while (from < end) {
        /* At most 12 bytes a character; a batch at a time. */
        enum {
            BATCH = 256
        };
        char *at = mp_outfile_room(file, BATCH);
        const char *full = at + BATCH - 12;
        while (from < end && at <= full) {
            unsigned char byte = *from;
            if (MP_LIKELY(byte >= 0x20 && byte < 0x7f && byte != '"' &&
                          byte != '\\')) {
                *at++ = (char)byte;
                from++;
            }
            else if (byte <= 0x7f) {
                at = put_ascii(at, byte);
                from++;
            }
            else {
                size_t taken;
                uint32_t character =
                    decode(from, (size_t)(end - from), &taken);
                from += taken;
                if (character > 0xffff) {
                    character -= 0x10000;
                    at = put_escape(at, 0xd800 + (character >> 10));
                    character = 0xdc00 + (character & 0x3ff);
                }
                at = put_escape(at, character);
            }
        }
        file->at = at;
    }
}

void
mp_json_string(mp_outfile_t *file, const char *text, size_t length)
{
    mp_outfile_byte(file, '"');
    mp_json_characters(file, text, length);
    mp_outfile_byte(file, '"');
}

/* ---- numbers --------------------------------------------------------------
 */

char *
mp_json_digits(char *at, uint64_t value)
{
    static const char pairs[] =
        "00010203040506070809101112131415161718192021222324252627282930313233"
        "34353637383940414243444546474849505152535455565758596061626364656667"
        "6869707172737475767778798081828384858687888990919293949596979899";
    char text[20];
    char *first = text + sizeof(text);
    while (value >= 100) {
        first -= 2;
        memcpy(first, &pairs[value % 100 * 2], 2);
        value /= 100;
    }
    if (value >= 10) {
        first -= 2;
        memcpy(first, &pairs[value * 2], 2);
    }
    else {
        *--first = (char)('0' + value);
    }
    size_t length = (size_t)(text + sizeof(text) - first);
    memcpy(at, first, length);
    return at + length;
}

void
mp_json_uint(mp_outfile_t *file, uint64_t value)
{
    file->at = mp_json_digits(mp_outfile_room(file, 20), value);
}

void
mp_json_int(mp_outfile_t *file, int64_t value)
{
    char *at = mp_outfile_room(file, 21);
    uint64_t magnitude = (uint64_t)value;
    if (value < 0) {
        *at++ = '-';
        magnitude = 0 - magnitude;
    }
    file->at = mp_json_digits(at, magnitude);
}

void
mp_json_hex(mp_outfile_t *file, uint64_t value)
{
    char *at = mp_outfile_room(file, 20);
    *at++ = '"';
    *at++ = '0';
    *at++ = 'x';
    int shift = 60;
    while (shift > 0 && (value >> shift) == 0) {
        shift -= 4;
    }
    for (; shift >= 0; shift -= 4) {
        *at++ = hex_digits[(value >> shift) & 0xf];
    }
    *at++ = '"';
    file->at = at;
}

void
mp_json_micros(mp_outfile_t *file, int64_t nanoseconds)
{
    uint64_t value = nanoseconds < 0 ? 0 : (uint64_t)nanoseconds;
    char *at = mp_json_digits(mp_outfile_room(file, 24), value / 1000);
    unsigned int rest = (unsigned int)(value % 1000);
    *at++ = '.';
    *at++ = (char)('0' + rest / 100);
    *at++ = (char)('0' + rest / 10 % 10);
    *at++ = (char)('0' + rest % 10);
    file->at = at;
}

void
mp_json_double(mp_outfile_t *file, double value)
{
    /* A decimal comma is the locale's doing: what is printed is ours. */
    char text[32];
    int length =
        snprintf(text, sizeof(text), "%.9g", isfinite(value) ? value : 0.0);
    for (int i = 0; i < length; i++) {
        if (text[i] == ',') {
            text[i] = '.';
        }
    }
    mp_outfile_write(file, text, (size_t)length);
}
