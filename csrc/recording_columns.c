/* recording_columns.c - the events of a block, column by column.
 *
 * Events are taken in batches that stay in the first cache: for one column
 * after the other, the fields of a batch become values, and the values
 * bytes. */
#include "recording_columns.h"

#include "mem.h"

#define BATCH_EVENTS 512

/* The longest a column can become: runs of one event each. */
#define RUN_MAX_BYTES (3 + MP_VARINT_MAX_BYTES)
#define COLUMN_CAPACITY ((size_t)MP_COLUMNS_EVENTS * RUN_MAX_BYTES)
#define COLUMNS_CAPACITY (COLUMN_CAPACITY * (MP_COLUMN_END - 1))

/* From a field to its value and back.  A value that does not survive the way
 * there and back is out of the field's range. */
#define TO_NUMBER(field) ((uint64_t)(field))
#define TO_SIGNED(field) mp_zigzag(field)
#define TO_ID(field) ((uint32_t)((field) + 1u))
#define FROM_NUMBER(value) (value)
#define FROM_SIGNED(value) mp_unzigzag(value)
#define FROM_ID(value) ((value)-1)

bool
mp_columns_ids_exist(const mp_intern_t *intern, const mp_event_t *events,
                     size_t count)
{
    uint32_t strings = mp_intern_strings(intern);
    uint32_t stacks = mp_intern_stacks(intern);
    bool exist = true;
    for (size_t i = 0; i < count; i++) {
        exist &= TO_ID(events[i].op) <= strings;
        exist &= TO_ID(events[i].module) <= strings;
        exist &= TO_ID(events[i].stack) <= stacks;
    }
    return exist;
}

/* ---- encoding ---------------------------------------------------------- */

typedef struct {
    uint8_t *bytes; /* COLUMN_CAPACITY of them */
    uint8_t *end;
    uint64_t previous[2]; /* delta: of each class */
    uint64_t run_value;   /* runs: the run not yet written */
    uint64_t run_length;
} encoder_t;

struct mp_columns {
    encoder_t encoders[MP_COLUMN_END]; /* by number; 0 is not used */
    uint8_t *memory; /* of all; reserved: pages cost when touched */
    size_t count;
};

mp_columns_t *
mp_columns_new(void)
{
    mp_columns_t *columns = mp_calloc(1, sizeof(*columns));
    if (columns == NULL) {
        return NULL;
    }
    columns->memory = mp_reserve(COLUMNS_CAPACITY);
    if (columns->memory == NULL) {
        mp_free(columns);
        return NULL;
    }
    mp_columns_clear(columns);
    return columns;
}

void
mp_columns_free(mp_columns_t *columns)
{
    if (columns != NULL) {
        mp_unreserve(columns->memory, COLUMNS_CAPACITY);
        mp_free(columns);
    }
}

size_t
mp_columns_count(const mp_columns_t *columns)
{
    return columns->count;
}

void
mp_columns_clear(mp_columns_t *columns)
{
    for (size_t i = 1; i < MP_COLUMN_END; i++) {
        uint8_t *bytes = columns->memory + (i - 1) * COLUMN_CAPACITY;
        columns->encoders[i] = (encoder_t){.bytes = bytes, .end = bytes};
    }
    columns->count = 0;
}

static void
put_plain(encoder_t *encoder, const uint64_t *values, size_t count)
{
    uint8_t *end = encoder->end;
    for (size_t i = 0; i < count; i++) {
        end = mp_put_varint(end, values[i]);
    }
    encoder->end = end;
}

static void
put_delta(encoder_t *encoder, const uint64_t *values, const uint8_t *classes,
          size_t count)
{
    uint8_t *end = encoder->end;
    for (size_t i = 0; i < count; i++) {
        uint64_t *previous = &encoder->previous[classes[i]];
        end = mp_put_varint(end, mp_zigzag((int64_t)(values[i] - *previous)));
        *previous = values[i];
    }
    encoder->end = end;
}

static void
put_run(encoder_t *encoder)
{
    if (encoder->run_length != 0) {
        encoder->end = mp_put_varint(encoder->end, encoder->run_length);
        encoder->end = mp_put_varint(encoder->end, encoder->run_value);
        encoder->run_length = 0;
    }
}

static void
put_runs(encoder_t *encoder, const uint64_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (values[i] != encoder->run_value) {
            put_run(encoder);
            encoder->run_value = values[i];
        }
        encoder->run_length++;
    }
}

/* At most BATCH_EVENTS. */
static void
put_batch(mp_columns_t *columns, const mp_event_t *events, size_t count)
{
    uint64_t values[BATCH_EVENTS] = {0};
    uint8_t classes[BATCH_EVENTS] = {0};
    for (size_t i = 0; i < count; i++) {
        classes[i] = (uint8_t)mp_column_class(events[i].kind);
    }
#define X(name, number, field, type, form, encoding)                          \
    for (size_t i = 0; i < count; i++) {                                      \
        values[i] = TO_##form(events[i].field);                               \
    }                                                                         \
    PUT_##encoding(&columns->encoders[number]);
#define PUT_PLAIN(encoder) put_plain(encoder, values, count)
#define PUT_DELTA(encoder) put_delta(encoder, values, classes, count)
#define PUT_RUNS(encoder) put_runs(encoder, values, count)
    MP_COLUMN_LIST(X)
#undef PUT_PLAIN
#undef PUT_DELTA
#undef PUT_RUNS
#undef X
    columns->count += count;
}

void
mp_columns_append(mp_columns_t *columns, const mp_event_t *events,
                  size_t count)
{
    while (count != 0) {
        size_t batch = count < BATCH_EVENTS ? count : BATCH_EVENTS;
        put_batch(columns, events, batch);
        events += batch;
        count -= batch;
    }
}

void
mp_columns_finish(mp_columns_t *columns, mp_column_t shown[MP_COLUMN_END])
{
#define X(name, number, field, type, form, encoding_name)                     \
    {                                                                         \
        encoder_t *encoder = &columns->encoders[number];                      \
        put_run(encoder);                                                     \
        shown[number] =                                                       \
            (mp_column_t){.bytes = encoder->bytes,                            \
                          .length = (size_t)(encoder->end - encoder->bytes),  \
                          .encoding = MP_ENCODING_##encoding_name};           \
    }
    MP_COLUMN_LIST(X)
#undef X
}

/* ---- decoding ---------------------------------------------------------- */

typedef struct {
    const uint8_t *at;
    const uint8_t *end;
    uint64_t previous[2]; /* delta: of each class */
    uint64_t run_value;   /* runs: the run that is being handed out */
    uint64_t run_length;
    unsigned encoding; /* 0: not met yet */
} decoder_t;

static bool
get_plain(decoder_t *decoder, uint64_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (!mp_get_varint(&decoder->at, decoder->end, &values[i])) {
            return false;
        }
    }
    return true;
}

static bool
get_delta(decoder_t *decoder, const mp_event_t *events, uint64_t *values,
          size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t step;
        if (!mp_get_varint(&decoder->at, decoder->end, &step)) {
            return false;
        }
        uint64_t *previous =
            &decoder->previous[mp_column_class(events[i].kind)];
        *previous += (uint64_t)mp_unzigzag(step);
        values[i] = *previous;
    }
    return true;
}

static bool
get_runs(decoder_t *decoder, uint64_t *values, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (decoder->run_length == 0 &&
            (!mp_get_varint(&decoder->at, decoder->end,
                            &decoder->run_length) ||
             !mp_get_varint(&decoder->at, decoder->end, &decoder->run_value) ||
             decoder->run_length == 0)) {
            return false;
        }
        decoder->run_length--;
        values[i] = decoder->run_value;
    }
    return true;
}

/* The next COUNT values of a column.  EVENTS have their kinds already. */
static bool
get_values(decoder_t *decoder, const mp_event_t *events, uint64_t *values,
           size_t count)
{
    switch (decoder->encoding) {
    case MP_ENCODING_PLAIN:
        return get_plain(decoder, values, count);
    case MP_ENCODING_DELTA:
        return get_delta(decoder, events, values, count);
    default:
        return get_runs(decoder, values, count);
    }
}

/* COUNT events, at most BATCH_EVENTS. */
static bool
get_batch(decoder_t *decoders, mp_event_t *events, size_t count)
{
    uint64_t values[BATCH_EVENTS];
    uint64_t wrong = 0;
#define X(name, number, field, type, form, encoding)                          \
    if (!get_values(&decoders[number], events, values, count)) {              \
        return false;                                                         \
    }                                                                         \
    for (size_t i = 0; i < count; i++) {                                      \
        type value = (type)FROM_##form(values[i]);                            \
        wrong |= TO_##form(value) ^ values[i];                                \
        events[i].field = value;                                              \
    }
    MP_COLUMN_LIST(X)
#undef X
    return wrong == 0;
}

/* Find the columns of version 1 in a block; others are skipped. */
static bool
find_columns(const uint8_t *payload, size_t size, decoder_t *decoders)
{
    const uint8_t *end = payload + size;
    if (size < MP_COLUMNS_BYTES) {
        return false;
    }
    uint32_t count = mp_get_u32(payload + MP_COLUMNS_COUNT);
    if (count > (size - MP_COLUMNS_BYTES) / MP_COLUMN_BYTES) {
        return false;
    }
    const uint8_t *entry = payload + MP_COLUMNS_BYTES;
    const uint8_t *bytes = entry + (size_t)count * MP_COLUMN_BYTES;
    for (uint32_t i = 0; i < count; i++, entry += MP_COLUMN_BYTES) {
        unsigned number = mp_get_u16(entry + MP_COLUMN_NUMBER);
        unsigned encoding = mp_get_u16(entry + MP_COLUMN_ENCODING);
        uint32_t length = mp_get_u32(entry + MP_COLUMN_LENGTH);
        if (length > (size_t)(end - bytes)) {
            return false;
        }
        if (number != 0 && number < MP_COLUMN_END) {
            decoder_t *decoder = &decoders[number];
            if (decoder->encoding != 0 || encoding < MP_ENCODING_PLAIN ||
                encoding > MP_ENCODING_RUNS) {
                return false;
            }
            if (number == MP_COLUMN_KIND && encoding == MP_ENCODING_DELTA) {
                return false; /* the class would follow from itself */
            }
            *decoder = (decoder_t){
                .at = bytes, .end = bytes + length, .encoding = encoding};
        }
        bytes += length;
    }
    for (unsigned number = 1; number < MP_COLUMN_END; number++) {
        if (decoders[number].encoding == 0) {
            return false;
        }
    }
    return bytes == end;
}

bool
mp_columns_decode(const uint8_t *payload, size_t length, mp_event_t *events,
                  size_t count)
{
    decoder_t decoders[MP_COLUMN_END] = {{0}};
    if (!find_columns(payload, length, decoders)) {
        return false;
    }
    for (size_t done = 0; done < count;) {
        size_t batch =
            count - done < BATCH_EVENTS ? count - done : BATCH_EVENTS;
        if (!get_batch(decoders, events + done, batch)) {
            return false;
        }
        done += batch;
    }
    for (unsigned number = 1; number < MP_COLUMN_END; number++) {
        if (decoders[number].at != decoders[number].end ||
            decoders[number].run_length != 0) {
            return false;
        }
    }
    return true;
}
