/* unpickle.c - a Python pickle of plain values, read without running anything.
 *
 * A value is 64 bits: a tag on top, below it a small int, or the number of a
 * text, of a container or of a wide number.  Everything is held in pieces that
 * are freed together.  No opcode copies what others hold, so memory is a fixed
 * multiple of the bytes read; nothing recurses. */
#include "unpickle.h"

#include "mem.h"
#include "pickle_opcodes.h"
#include "unpickle_values.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define HIGHEST_PROTOCOL 5
#define MAX_DEPTH 200u /* containers being filled, one in another */
#define MAX_ATOMS 200u
#define ATOM_SLOTS 512u
#define FIRST_PIECE (64u << 10)
#define MAX_PIECE (16u << 20)
/* Bytes of memory for a byte of the pickle: a list of one byte takes its
 * container, its places on the stack and in its holder, and the last two may
 * be half empty. */
#define MOST_PER_BYTE 96u

typedef struct {
    const uint8_t *start, *at, *end;
    mp_unpickled_t *made;
    array_t stack; /* mp_value_t */
    array_t memo;  /* mp_value_t */
    size_t marks[MAX_DEPTH];
    size_t mark_count;
    size_t held; /* bytes of memory */
    size_t most;
    const char *const *atoms;
    uint8_t atom_slots[ATOM_SLOTS]; /* an atom, or 0 */
    char *error;
    size_t error_size;
} reader_t;

/* Inside of this file MP_ERR_FORMAT means damage, which ends the reading but
 * keeps what precedes; MP_ERR_MISMATCH means refused. */

static mp_status_t
damaged(reader_t *reader, const uint8_t *at, const char *what)
{
    (void)snprintf(reader->error, reader->error_size, "byte %zu: %s",
                   (size_t)(at - reader->start), what);
    return MP_ERR_FORMAT;
}

/* ---- memory --------------------------------------------------------------
 */

static mp_status_t
hold(reader_t *reader, size_t bytes)
{
    if (bytes > reader->most - reader->held) {
        (void)snprintf(reader->error, reader->error_size,
                       "reading it takes more than %zu bytes of memory",
                       reader->most);
        return MP_ERR_FULL;
    }
    reader->held += bytes;
    return MP_OK;
}

/* Room for one more item of SIZE bytes. */
static mp_status_t
array_room(reader_t *reader, array_t *array, size_t size)
{
    if (MP_LIKELY(array->count < array->capacity)) {
        return MP_OK;
    }
    size_t more = array->capacity / 2 + 64;
    mp_status_t status = hold(reader, more * size);
    if (status != MP_OK) {
        return status;
    }
    void *items = mp_realloc(array->items, (array->capacity + more) * size);
    if (items == NULL) {
        return MP_ERR_NOMEM;
    }
    array->items = items;
    array->capacity += more;
    return MP_OK;
}

/* Room for COUNT values that lives as long as the pickle. */
static mp_status_t
values_new(reader_t *reader, size_t count, mp_value_t **out)
{
    piece_t *piece = reader->made->pieces;
    size_t bytes = count * sizeof(mp_value_t);
    if (piece == NULL || piece->size - piece->used < bytes) {
        size_t size = piece == NULL ? FIRST_PIECE : piece->size * 2;
        size = size > MAX_PIECE ? MAX_PIECE : size;
        /* A small pickle gets a small piece. */
        size_t whole = (size_t)(reader->end - reader->start) * 16 + 64;
        size = size > whole ? whole : size;
        size = size < bytes ? bytes : size;
        size = (size + 7u) & ~(size_t)7u;
        mp_status_t status = hold(reader, size);
        if (status != MP_OK) {
            return status;
        }
        piece = mp_realloc(NULL, sizeof(*piece) + size);
        if (piece == NULL) {
            return MP_ERR_NOMEM;
        }
        piece->next = reader->made->pieces;
        piece->size = size;
        piece->used = 0;
        reader->made->pieces = piece;
    }
    *out = piece->bytes + piece->used / sizeof(mp_value_t);
    piece->used += bytes;
    return MP_OK;
}

/* ---- values --------------------------------------------------------------
 */

static inline mp_value_t
value_of(unsigned tag, uint64_t payload)
{
    return (uint64_t)tag << TAG_SHIFT | payload;
}

static mp_status_t
push(reader_t *reader, mp_value_t value)
{
    mp_status_t status =
        array_room(reader, &reader->stack, sizeof(mp_value_t));
    if (status == MP_OK) {
        ((mp_value_t *)reader->stack.items)[reader->stack.count++] = value;
    }
    return status;
}

static mp_status_t
push_wide(reader_t *reader, unsigned tag, uint64_t bits)
{
    array_t *wides = &reader->made->wides;
    mp_status_t status = array_room(reader, wides, sizeof(uint64_t));
    if (status != MP_OK) {
        return status;
    }
    ((uint64_t *)wides->items)[wides->count] = bits;
    return push(reader, value_of(tag, wides->count++));
}

static mp_status_t
push_int(reader_t *reader, int64_t number)
{
    if (number < -INT_BIAS || number >= INT_BIAS) {
        return push_wide(reader, TAG_WIDE, (uint64_t)number);
    }
    return push(reader, value_of(TAG_INT, (uint64_t)(number + INT_BIAS)));
}

static uint32_t
atom_slot(const char *text, size_t length)
{
    uint32_t hash = (uint32_t)length * 31u;
    hash = (hash ^ (unsigned char)text[0]) * 131u;
    hash = (hash ^ (unsigned char)text[length / 2]) * 131u;
    hash = (hash ^ (unsigned char)text[length - 1]) * 131u;
    return (hash ^ hash >> 9) & (ATOM_SLOTS - 1);
}

static uint32_t
find_atom(const reader_t *reader, const char *text, size_t length)
{
    if (length == 0) {
        return 0;
    }
    uint32_t slot = atom_slot(text, length);
    uint32_t atom;
    while ((atom = reader->atom_slots[slot]) != 0) {
        const char *name = reader->atoms[atom - 1];
        if (strlen(name) == length && memcmp(name, text, length) == 0) {
            return atom;
        }
        slot = (slot + 1) & (ATOM_SLOTS - 1);
    }
    return 0;
}

static mp_status_t
push_text(reader_t *reader, const uint8_t *bytes, size_t length)
{
    array_t *texts = &reader->made->texts;
    mp_status_t status = array_room(reader, texts, sizeof(text_t));
    if (status != MP_OK) {
        return status;
    }
    ((text_t *)texts->items)[texts->count] = (text_t){
        .text = (const char *)bytes,
        .length = (uint32_t)length,
        .atom = find_atom(reader, (const char *)bytes, length),
    };
    return push(reader, value_of(TAG_TEXT, texts->count++));
}

static mp_status_t
push_container(reader_t *reader, unsigned tag)
{
    array_t *containers = &reader->made->containers;
    mp_status_t status = array_room(reader, containers, sizeof(container_t));
    if (status != MP_OK) {
        return status;
    }
    ((container_t *)containers->items)[containers->count] = (container_t){0};
    return push(reader, value_of(tag, containers->count++));
}

/* ---- filling -------------------------------------------------------------
 */

/* Move all above stack place FROM into the container. */
static mp_status_t
fill(reader_t *reader, mp_value_t value, size_t from)
{
    container_t *container = container_of(reader->made, value);
    size_t count = reader->stack.count - from;
    size_t needed = container->count + count;
    if (needed > container->capacity) {
        size_t capacity = container->capacity + container->capacity / 2;
        capacity = capacity < needed ? needed : capacity;
        mp_value_t *values = NULL;
        mp_status_t status =
            capacity >= (UINT32_C(1) << 31)
                ? damaged(reader, reader->at, "a list of more than 2^31 items")
                : values_new(reader, capacity, &values);
        if (status != MP_OK) {
            return status;
        }
        if (container->count != 0) {
            memcpy(values, container->values,
                   container->count * sizeof(mp_value_t));
        }
        container->values = values;
        container->capacity = (uint32_t)capacity & 0x7FFFFFFFu;
    }
    if (count != 0) {
        memcpy(container->values + container->count,
               (const mp_value_t *)reader->stack.items + from,
               count * sizeof(mp_value_t));
    }
    container->count = (uint32_t)needed;
    reader->stack.count = from;
    return MP_OK;
}

/* The stack place of the topmost mark, which is taken off; SIZE_MAX: none. */
static size_t
take_mark(reader_t *reader)
{
    return reader->mark_count == 0 ? SIZE_MAX
                                   : reader->marks[--reader->mark_count];
}

/* The lowest place that an opcode may take from. */
static size_t
stack_floor(const reader_t *reader)
{
    return reader->mark_count == 0 ? 0 : reader->marks[reader->mark_count - 1];
}

/* Fill the list or dict below FROM with what is above. */
static mp_status_t
fill_below(reader_t *reader, size_t from, bool dict)
{
    if (from <= stack_floor(reader)) {
        return damaged(reader, reader->at, "there is nothing to fill");
    }
    mp_value_t value = ((mp_value_t *)reader->stack.items)[from - 1];
    if (tag_of(value) != (dict ? TAG_DICT : TAG_LIST) ||
        (dict && (reader->stack.count - from) % 2 != 0)) {
        return damaged(reader, reader->at,
                       dict ? "what is filled is no dict"
                            : "what is filled is no list");
    }
    return fill(reader, value, from);
}

static mp_status_t
tuple_of(reader_t *reader, size_t from)
{
    mp_status_t status = push_container(reader, TAG_TUPLE);
    if (status != MP_OK) {
        return status;
    }
    mp_value_t *stack = reader->stack.items;
    mp_value_t tuple = stack[--reader->stack.count];
    status = fill(reader, tuple, from);
    return status != MP_OK ? status : push(reader, tuple);
}

static mp_status_t
small_tuple(reader_t *reader, size_t count)
{
    if (reader->stack.count - stack_floor(reader) < count) {
        return damaged(reader, reader->at, "a tuple of values not there");
    }
    return tuple_of(reader, reader->stack.count - count);
}

/* ---- the memo ------------------------------------------------------------
 */

static mp_status_t
memo_put(reader_t *reader, size_t index)
{
    if (reader->stack.count <= stack_floor(reader)) {
        return damaged(reader, reader->at, "there is nothing to remember");
    }
    /* Pythons count from 0 or 1 without gaps. */
    if (index > reader->memo.count + 1) {
        return damaged(reader, reader->at, "a memo number out of order");
    }
    mp_value_t value =
        ((mp_value_t *)reader->stack.items)[reader->stack.count - 1];
    while (reader->memo.count <= index) {
        mp_status_t status =
            array_room(reader, &reader->memo, sizeof(mp_value_t));
        if (status != MP_OK) {
            return status;
        }
        ((mp_value_t *)reader->memo.items)[reader->memo.count++] = MP_NO_VALUE;
    }
    ((mp_value_t *)reader->memo.items)[index] = value;
    return MP_OK;
}

static mp_status_t
memo_get(reader_t *reader, size_t index)
{
    mp_value_t value = index < reader->memo.count
                           ? ((mp_value_t *)reader->memo.items)[index]
                           : MP_NO_VALUE;
    if (value == MP_NO_VALUE) {
        return damaged(reader, reader->at, "a memo number that was not given");
    }
    return push(reader, value);
}

/* ---- opcodes -------------------------------------------------------------
 */

/* How long each opcode is with its argument; 0: it is none of ours. */
static const uint8_t opcode_bytes[256] = {
#define X(name, byte, argument) [byte] = 1 + (argument),
    MP_PICKLE_LIST(X)
#undef X
};

/* What other opcodes are called, for those who are told that they are
 * refused. */
static const char *
refused_name(uint8_t opcode)
{
    static const struct {
        uint8_t opcode;
        const char *name;
    } names[] = {
        {'c', "GLOBAL"},
        {0x93, "STACK_GLOBAL"},
        {'R', "REDUCE"},
        {'b', "BUILD"},
        {'i', "INST"},
        {'o', "OBJ"},
        {0x81, "NEWOBJ"},
        {0x92, "NEWOBJ_EX"},
        {'P', "PERSID"},
        {'Q', "BINPERSID"},
        {0x82, "EXT1"},
        {0x83, "EXT2"},
        {0x84, "EXT4"},
        {'B', "BINBYTES"},
        {'C', "SHORT_BINBYTES"},
        {0x8e, "BINBYTES8"},
        {0x96, "BYTEARRAY8"},
        {0x97, "NEXT_BUFFER"},
        {0x98, "READONLY_BUFFER"},
        {0x8f, "EMPTY_SET"},
        {0x90, "ADDITEMS"},
        {0x91, "FROZENSET"},
        {'2', "DUP"},
        {'0', "POP"},
        {'1', "POP_MARK"},
        {'T', "BINSTRING"},
        {'U', "SHORT_BINSTRING"},
        {'S', "STRING"},
        {'V', "UNICODE"},
        {0x8d, "BINUNICODE8"},
        {'I', "INT"},
        {'L', "LONG"},
        {0x8b, "LONG4"},
        {'F', "FLOAT"},
        {'d', "DICT"},
        {'l', "LIST"},
        {'p', "PUT"},
        {'g', "GET"},
    };
    for (size_t i = 0; i < MP_ARRAY_LENGTH(names); i++) {
        if (names[i].opcode == opcode) {
            return names[i].name;
        }
    }
    return NULL;
}

static mp_status_t
refuse(reader_t *reader, const uint8_t *at)
{
    const char *name = refused_name(*at);
    if (name == NULL) {
        return damaged(reader, at, "no pickle has such an opcode");
    }
    /* "module\nname\n" follows a GLOBAL. */
    char what[80] = "";
    if (*at == 'c') {
        size_t used = 0;
        const uint8_t *from = at + 1;
        for (int lines = 0; from < reader->end && used + 4 < sizeof(what);
             from++) {
            if (*from == '\n' && ++lines == 2) {
                break;
            }
            bool plain = *from > 0x20 && *from < 0x7F;
            if (used == 0) {
                what[used++] = ' ';
            }
            what[used++] = (char)(*from == '\n' ? '.' : plain ? *from : '?');
        }
    }
    (void)snprintf(reader->error, reader->error_size,
                   "byte %zu: the opcode %s%s is refused: a memory snapshot "
                   "holds plain values only, and nothing in it is run",
                   (size_t)(at - reader->start), name, what);
    return MP_ERR_MISMATCH;
}

static uint64_t
get_number(const uint8_t *at, size_t count)
{
    uint64_t value = 0;
    for (size_t i = 0; i < count; i++) {
        value |= (uint64_t)at[i] << (8 * i);
    }
    return value;
}

/* COUNT bytes of two's complement, lowest first; beyond 64 bits the nearest.
 */
static int64_t
get_long(const uint8_t *at, size_t count)
{
    if (count == 0) {
        return 0;
    }
    bool negative = (at[count - 1] & 0x80u) != 0;
    for (size_t i = 8; i < count; i++) {
        if (at[i] != (negative ? 0xFF : 0)) {
            return negative ? INT64_MIN : INT64_MAX;
        }
    }
    if (count > 8) {
        bool top = (at[7] & 0x80u) != 0;
        if (top != negative) {
            return negative ? INT64_MIN : INT64_MAX;
        }
    }
    uint64_t value = get_number(at, count < 8 ? count : 8);
    if (negative && count < 8) {
        value |= ~UINT64_C(0) << (8 * count);
    }
    return (int64_t)value;
}

/* LENGTH bytes that follow the argument; NULL with damage: they are cut. */
static const uint8_t *
payload(reader_t *reader, uint64_t length, const uint8_t *opcode)
{
    if (length > (uint64_t)(reader->end - reader->at)) {
        (void)damaged(reader, opcode, "the file ends inside a value");
        return NULL;
    }
    const uint8_t *found = reader->at;
    reader->at += length;
    return found;
}

static mp_status_t
push_double(reader_t *reader, const uint8_t *argument)
{
    uint64_t bits = 0; /* highest byte first */
    for (size_t i = 0; i < 8; i++) {
        bits = bits << 8 | argument[i];
    }
    return push_wide(reader, TAG_DOUBLE, bits);
}

static mp_status_t
from_mark(reader_t *reader, uint8_t opcode)
{
    size_t from = take_mark(reader);
    if (from == SIZE_MAX) {
        return damaged(reader, reader->at, "a mark is missing");
    }
    if (opcode == MP_PICKLE_TUPLE) {
        return tuple_of(reader, from);
    }
    return fill_below(reader, from, opcode == MP_PICKLE_SETITEMS);
}

/* Carry out one opcode but STOP; its ARGUMENT is whole. */
static mp_status_t
carry_out(reader_t *reader, const uint8_t *opcode, const uint8_t *argument)
{
    const uint8_t *bytes;
    uint64_t number = get_number(argument, opcode_bytes[*opcode] - 1u);
    switch (*opcode) {
    case MP_PICKLE_PROTO:
        return number <= HIGHEST_PROTOCOL
                   ? MP_OK
                   : damaged(reader, opcode, "a pickle protocol above 5");
    case MP_PICKLE_FRAME:
        return MP_OK;
    case MP_PICKLE_MARK:
        if (reader->mark_count == MAX_DEPTH) {
            return damaged(reader, opcode, "too deep");
        }
        reader->marks[reader->mark_count++] = reader->stack.count;
        return MP_OK;
    case MP_PICKLE_NONE:
        return push(reader, value_of(TAG_NONE, 0));
    case MP_PICKLE_NEWTRUE:
    case MP_PICKLE_NEWFALSE:
        return push(reader, value_of(TAG_BOOL, *opcode == MP_PICKLE_NEWTRUE));
    case MP_PICKLE_BININT:
        return push_int(reader, (int32_t)(uint32_t)number);
    case MP_PICKLE_BININT1:
    case MP_PICKLE_BININT2:
        return push_int(reader, (int64_t)number);
    case MP_PICKLE_LONG1:
        bytes = payload(reader, number, opcode);
        return bytes == NULL
                   ? MP_ERR_FORMAT
                   : push_int(reader, get_long(bytes, (size_t)number));
    case MP_PICKLE_BINFLOAT:
        return push_double(reader, argument);
    case MP_PICKLE_SHORT_BINUNICODE:
    case MP_PICKLE_BINUNICODE:
        bytes = payload(reader, number, opcode);
        return bytes == NULL ? MP_ERR_FORMAT
                             : push_text(reader, bytes, (size_t)number);
    case MP_PICKLE_EMPTY_DICT:
        return push_container(reader, TAG_DICT);
    case MP_PICKLE_EMPTY_LIST:
        return push_container(reader, TAG_LIST);
    case MP_PICKLE_EMPTY_TUPLE:
        return push_container(reader, TAG_TUPLE);
    case MP_PICKLE_TUPLE:
    case MP_PICKLE_APPENDS:
    case MP_PICKLE_SETITEMS:
        return from_mark(reader, *opcode);
    case MP_PICKLE_TUPLE1:
    case MP_PICKLE_TUPLE2:
    case MP_PICKLE_TUPLE3:
        return small_tuple(reader, 1u + *opcode - MP_PICKLE_TUPLE1);
    case MP_PICKLE_APPEND:
    case MP_PICKLE_SETITEM: {
        size_t count = *opcode == MP_PICKLE_APPEND ? 1 : 2;
        if (reader->stack.count - stack_floor(reader) < count) {
            return damaged(reader, opcode, "there is nothing to put in");
        }
        return fill_below(reader, reader->stack.count - count, count == 2);
    }
    case MP_PICKLE_MEMOIZE:
        return memo_put(reader, reader->memo.count);
    case MP_PICKLE_BINPUT:
    case MP_PICKLE_LONG_BINPUT:
        return memo_put(reader, (size_t)number);
    case MP_PICKLE_BINGET:
    case MP_PICKLE_LONG_BINGET:
        return memo_get(reader, (size_t)number);
    default:
        return damaged(reader, opcode, "no pickle has such an opcode");
    }
}

/* Read up to STOP: made->whole. */
static mp_status_t
read_all(reader_t *reader)
{
    while (reader->at < reader->end) {
        const uint8_t *opcode = reader->at;
        uint8_t bytes = opcode_bytes[*opcode];
        if (bytes == 0) {
            return refuse(reader, opcode);
        }
        if (bytes > reader->end - opcode) {
            return damaged(reader, opcode, "the file ends inside a value");
        }
        if (*opcode == MP_PICKLE_STOP) {
            if (reader->stack.count != 1 || reader->mark_count != 0) {
                return damaged(reader, opcode, "it ends before it is whole");
            }
            reader->at++;
            reader->made->good_bytes = (uint64_t)(reader->at - reader->start);
            reader->made->whole = true;
            return MP_OK;
        }
        reader->at = opcode + bytes;
        mp_status_t status = carry_out(reader, opcode, opcode + 1);
        if (status != MP_OK) {
            return status;
        }
        reader->made->good_bytes = (uint64_t)(reader->at - reader->start);
    }
    return damaged(reader, reader->end, "the file is cut");
}

/* The bytes ended in the middle: put what lies on the stack where it was to
 * go, from the innermost out. */
static mp_status_t
close_all(reader_t *reader)
{
    mp_status_t status = MP_OK;
    while (status == MP_OK && reader->mark_count > 0) {
        size_t from = take_mark(reader);
        mp_value_t *stack = reader->stack.items;
        from = from > reader->stack.count ? reader->stack.count : from;
        mp_value_t below =
            from > stack_floor(reader) ? stack[from - 1] : MP_NO_VALUE;
        unsigned tag = tag_of(below);
        if (tag == TAG_DICT || tag == TAG_LIST) {
            if (tag == TAG_DICT) { /* a key without a value */
                reader->stack.count -= (reader->stack.count - from) % 2;
            }
            container_of(reader->made, below)->is_cut = 1;
            status = fill(reader, below, from);
        }
        else { /* a tuple in the making, say */
            reader->stack.count = from;
        }
    }
    return status;
}

static void
name_atoms(reader_t *reader, const mp_unpickle_options_t *options)
{
    reader->atoms = options->atoms;
    uint32_t count =
        options->atom_count < MAX_ATOMS ? options->atom_count : MAX_ATOMS;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot =
            atom_slot(options->atoms[i], strlen(options->atoms[i]));
        while (reader->atom_slots[slot] != 0) {
            slot = (slot + 1) & (ATOM_SLOTS - 1);
        }
        reader->atom_slots[slot] = (uint8_t)(i + 1);
    }
}

mp_status_t
mp_unpickle(const uint8_t *bytes, size_t length,
            const mp_unpickle_options_t *options, mp_unpickled_t **out,
            char *error, size_t error_size)
{
    if (error_size > 0) {
        error[0] = '\0';
    }
    size_t most = length > SIZE_MAX / MOST_PER_BYTE - (1u << 20)
                      ? SIZE_MAX
                      : length * MOST_PER_BYTE + (1u << 20);
    if (options->most_bytes != 0 && options->most_bytes < most) {
        most = options->most_bytes;
    }
    reader_t *reader = mp_calloc(1, sizeof(*reader));
    mp_unpickled_t *made = mp_calloc(1, sizeof(*made));
    if (reader == NULL || made == NULL) {
        mp_free(reader);
        mp_free(made);
        return MP_ERR_NOMEM;
    }
    reader->start = reader->at = bytes;
    reader->end = bytes + length;
    reader->made = made;
    reader->most = most;
    reader->error = error;
    reader->error_size = error_size;
    name_atoms(reader, options);
    mp_status_t status = length > 1 && *bytes == MP_PICKLE_PROTO
                             ? read_all(reader)
                             : damaged(reader, bytes, "no pickle begins so");
    if (status == MP_ERR_FORMAT && made->good_bytes > 2) {
        status = close_all(reader);
    }
    if (status == MP_OK && reader->stack.count == 0) {
        status = MP_ERR_FORMAT;
    }
    if (status == MP_OK) {
        made->root = ((mp_value_t *)reader->stack.items)[0];
        if (!made->whole && !is_container(made->root)) {
            status = MP_ERR_FORMAT;
        }
    }
    mp_free(reader->stack.items);
    mp_free(reader->memo.items);
    mp_free(reader);
    if (status != MP_OK) {
        mp_unpickled_free(made);
        return status == MP_ERR_MISMATCH ? MP_ERR_FORMAT : status;
    }
    *out = made;
    return MP_OK;
}

void
mp_unpickled_free(mp_unpickled_t *unpickled)
{
    if (unpickled == NULL) {
        return;
    }
    while (unpickled->pieces != NULL) {
        piece_t *next = unpickled->pieces->next;
        mp_free(unpickled->pieces);
        unpickled->pieces = next;
    }
    mp_free(unpickled->texts.items);
    mp_free(unpickled->containers.items);
    mp_free(unpickled->wides.items);
    mp_free(unpickled);
}
