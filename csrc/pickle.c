/* pickle.c - plain values as a Python pickle, into an outfile. */
#include "pickle.h"

#include "pickle_opcodes.h"

#define PROTOCOL 4

static void
put(mp_pickle_t *pickle, int opcode)
{
    mp_outfile_byte(pickle->file, (char)opcode);
}

/* OPCODE and COUNT bytes of VALUE, lowest first. */
static void
put_number(mp_pickle_t *pickle, int opcode, uint64_t value, size_t count)
{
    char *at = mp_outfile_room(pickle->file, 1 + sizeof(value));
    *at++ = (char)opcode;
    for (size_t i = 0; i < count; i++) {
        *at++ = (char)(value >> (8 * i));
    }
    pickle->file->at = at;
}

void
mp_pickle_begin(mp_pickle_t *pickle, mp_outfile_t *file)
{
    *pickle = (mp_pickle_t){.file = file};
    put_number(pickle, MP_PICKLE_PROTO, PROTOCOL, 1);
}

void
mp_pickle_end(mp_pickle_t *pickle)
{
    put(pickle, MP_PICKLE_STOP);
}

void
mp_pickle_none(mp_pickle_t *pickle)
{
    put(pickle, MP_PICKLE_NONE);
}

void
mp_pickle_bool(mp_pickle_t *pickle, bool value)
{
    put(pickle, value ? MP_PICKLE_NEWTRUE : MP_PICKLE_NEWFALSE);
}

void
mp_pickle_int(mp_pickle_t *pickle, int64_t value)
{
    if (value >= 0 && value <= UINT8_MAX) {
        put_number(pickle, MP_PICKLE_BININT1, (uint64_t)value, 1);
    }
    else if (value >= 0 && value <= UINT16_MAX) {
        put_number(pickle, MP_PICKLE_BININT2, (uint64_t)value, 2);
    }
    else if (value >= INT32_MIN && value <= INT32_MAX) {
        put_number(pickle, MP_PICKLE_BININT, (uint64_t)value, 4);
    }
    else {
        size_t count = 5; /* two's complement, its sign in the top bit */
        while (count < 8 && value >> (8 * count - 1) != 0 &&
               value >> (8 * count - 1) != -1) {
            count++;
        }
        put_number(pickle, MP_PICKLE_LONG1, count, 1);
        char *at = mp_outfile_room(pickle->file, 8);
        for (size_t i = 0; i < count; i++) {
            *at++ = (char)((uint64_t)value >> (8 * i));
        }
        pickle->file->at = at;
    }
}

/* ---- texts -------------------------------------------------------------- */

static const char replacement[] = "\xEF\xBF\xBD";

/* How many bytes the character at TEXT has; 0: it is none, and *BAD of them
 * stand for one U+FFFD (as Python's "replace" has it). */
static size_t
character(const unsigned char *text, size_t length, size_t *bad)
{
    unsigned first = text[0];
    if (first < 0x80) {
        return 1;
    }
    size_t size = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    *bad = 1;
    if (first < 0xC2 || first > 0xF4) {
        return 0;
    }
    unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    for (size_t i = 1; i < size; i++) {
        if (i >= length || text[i] < low || text[i] > high) {
            return 0;
        }
        *bad = i + 1;
        low = 0x80;
        high = 0xBF;
    }
    return size;
}

/* Whether three bytes are a lone surrogate as some write it. */
static bool
is_surrogate(const unsigned char *text, size_t length)
{
    return length >= 3 && text[0] == 0xED && text[1] >= 0xA0 &&
           text[1] <= 0xBF && (text[2] & 0xC0u) == 0x80;
}

/* The text made whole, into FILE (NULL: only counted); its bytes.  *SAME:
 * it was whole. */
static size_t
sanitized(mp_outfile_t *file, const char *text, size_t length, bool *same)
{
    const unsigned char *bytes = (const unsigned char *)text;
    size_t total = 0, good = 0, at = 0;
    *same = true;
    while (at < length) {
        size_t bad = 0;
        size_t size = character(bytes + at, length - at, &bad);
        if (size != 0) {
            at += size;
            continue;
        }
        *same = false;
        if (is_surrogate(bytes + at, length - at)) {
            bad = 3;
        }
        if (file != NULL) {
            mp_outfile_write(file, text + good, at - good);
            mp_outfile_write(file, replacement, 3);
        }
        total += at - good + 3;
        at += bad;
        good = at;
    }
    if (file != NULL) {
        mp_outfile_write(file, text + good, length - good);
    }
    return total + length - good;
}

void
mp_pickle_text(mp_pickle_t *pickle, const char *text, size_t length)
{
    bool same;
    size_t size = sanitized(NULL, text, length, &same);
    if (size <= UINT8_MAX) {
        put_number(pickle, MP_PICKLE_SHORT_BINUNICODE, size, 1);
    }
    else {
        put_number(pickle, MP_PICKLE_BINUNICODE, size, 4);
    }
    if (same) {
        mp_outfile_write(pickle->file, text, length);
    }
    else {
        (void)sanitized(pickle->file, text, length, &same);
    }
}

/* ---- what is kept, and what holds others -------------------------------- */

uint32_t
mp_pickle_keep(mp_pickle_t *pickle)
{
    put(pickle, MP_PICKLE_MEMOIZE);
    return pickle->kept++;
}

void
mp_pickle_get(mp_pickle_t *pickle, uint32_t number)
{
    if (number <= UINT8_MAX) {
        put_number(pickle, MP_PICKLE_BINGET, number, 1);
    }
    else {
        put_number(pickle, MP_PICKLE_LONG_BINGET, number, 4);
    }
}

void
mp_pickle_dict(mp_pickle_t *pickle, mp_pickle_items_t *items)
{
    put(pickle, MP_PICKLE_EMPTY_DICT);
    *items = (mp_pickle_items_t){.closing = MP_PICKLE_SETITEMS};
}

void
mp_pickle_list(mp_pickle_t *pickle, mp_pickle_items_t *items)
{
    put(pickle, MP_PICKLE_EMPTY_LIST);
    *items = (mp_pickle_items_t){.closing = MP_PICKLE_APPENDS};
}

void
mp_pickle_item(mp_pickle_t *pickle, mp_pickle_items_t *items)
{
    if (items->batched == MP_PICKLE_BATCH) {
        put(pickle, items->closing);
        items->batched = 0;
    }
    if (items->batched++ == 0) {
        put(pickle, MP_PICKLE_MARK);
    }
}

void
mp_pickle_close(mp_pickle_t *pickle, mp_pickle_items_t *items)
{
    if (items->batched != 0) {
        put(pickle, items->closing);
    }
    items->batched = 0;
}

void
mp_pickle_pair(mp_pickle_t *pickle)
{
    put(pickle, MP_PICKLE_TUPLE2);
}
