/* recording_write.c - events and names on their way into a recording.
 *
 * Events are encoded column by column as they are appended, so a block in
 * the making takes about 20 bytes an event, not 64; a full block is
 * compressed and handed to the kernel.  Any failure is final: a file with a
 * hole in the middle would be worse than a short one. */
#include "mem.h"
#include "recording.h"
#include "recording_columns.h"
#include "sink.h"

#include <string.h>
#include <zlib.h>

/* A block of names is written when it has grown to this. */
#define NAMES_BYTES (256 * 1024)
/* Measured: level 6 makes files 10-25 % smaller and takes about twice as
 * long. */
#define ZLIB_LEVEL 1

#define ROOM_BYTES 4096 /* that zlib's output buffer grows by */

typedef struct {
    uint8_t *bytes;
    size_t length;
    size_t capacity;
} buffer_t;

/* A part of a block's payload, and zlib's strategy for it. */
typedef struct {
    const uint8_t *bytes;
    size_t length;
    int strategy;
} piece_t;

struct mp_recording_writer {
    mp_status_t failed; /* the first failure; nothing is written after it */
    bool writing;       /* the sink may hold half a block */
    mp_sink_t *sink;
    const mp_intern_t *intern;
    z_stream zlib;
    bool zlib_ready;
    mp_columns_t *columns; /* events not yet in a block */
    uint64_t event_count;  /* events in blocks */
    uint32_t strings;      /* names in blocks */
    uint32_t frames;
    uint32_t stacks;
    buffer_t names;     /* payload of the block of names in the making */
    buffer_t stored;    /* a compressed payload */
    buffer_t directory; /* payload of the directory */
    uint8_t header[MP_HEADER_BYTES];
};

static mp_status_t
buffer_ensure(buffer_t *buffer, size_t more)
{
    size_t needed = buffer->length + more;
    if (needed <= buffer->capacity) {
        return MP_OK;
    }
    size_t capacity = buffer->capacity + buffer->capacity / 2;
    capacity = capacity < needed ? needed : capacity;
    uint8_t *bytes = mp_realloc(buffer->bytes, capacity);
    if (bytes == NULL) {
        return MP_ERR_NOMEM;
    }
    buffer->bytes = bytes;
    buffer->capacity = capacity;
    return MP_OK;
}

static void *
zlib_alloc(void *opaque, unsigned count, unsigned size)
{
    (void)opaque;
    return mp_calloc(count, size);
}

static void
zlib_free(void *opaque, void *memory)
{
    (void)opaque;
    mp_free(memory);
}

/* ---- open and free ----------------------------------------------------- */

static void
writer_free(mp_recording_writer_t *writer)
{
    if (writer->zlib_ready) {
        (void)deflateEnd(&writer->zlib);
    }
    mp_columns_free(writer->columns);
    mp_free(writer->names.bytes);
    mp_free(writer->stored.bytes);
    mp_free(writer->directory.bytes);
    mp_free(writer);
}

static void
header_fill(uint8_t *header, int64_t start_ns, int64_t start_wall_ns)
{
    memcpy(header + MP_HEADER_MAGIC, MP_RECORDING_MAGIC,
           MP_RECORDING_MAGIC_BYTES);
    mp_put_u16(header + MP_HEADER_VERSION, MP_RECORDING_VERSION);
    mp_put_u16(header + MP_HEADER_MIN_READER, MP_RECORDING_MIN_READER);
    mp_put_u16(header + MP_HEADER_SIZE, MP_HEADER_BYTES);
    mp_put_u16(header + MP_HEADER_EVENT_SIZE, sizeof(mp_event_t));
    mp_put_u64(header + MP_HEADER_START_NS, (uint64_t)start_ns);
    mp_put_u64(header + MP_HEADER_START_WALL_NS, (uint64_t)start_wall_ns);
}

static void
header_seal(uint8_t *header)
{
    mp_put_u32(header + MP_HEADER_CRC,
               (uint32_t)crc32(0, header, MP_HEADER_CRC));
}

mp_status_t
mp_recording_writer_open(const char *path, const mp_intern_t *intern,
                         int64_t start_ns, int64_t start_wall_ns,
                         mp_recording_writer_t **out, int *saved_errno)
{
    *saved_errno = 0;
    mp_recording_writer_t *writer = mp_calloc(1, sizeof(*writer));
    if (writer == NULL) {
        return MP_ERR_NOMEM;
    }
    mp_status_t status = MP_ERR_NOMEM;
    writer->intern = intern;
    writer->columns = mp_columns_new();
    if (writer->columns == NULL) {
        goto fail;
    }
    writer->zlib.zalloc = zlib_alloc;
    writer->zlib.zfree = zlib_free;
    if (deflateInit(&writer->zlib, ZLIB_LEVEL) != Z_OK) {
        goto fail;
    }
    writer->zlib_ready = true;
    header_fill(writer->header, start_ns, start_wall_ns);
    header_seal(writer->header);

    /* Last, so that a failure of ours leaves no empty file behind. */
    status = mp_sink_open(path, &writer->sink, saved_errno);
    if (status != MP_OK) {
        goto fail;
    }
    status = mp_sink_write(writer->sink, writer->header, MP_HEADER_BYTES);
    if (status == MP_OK) {
        status = mp_sink_flush(writer->sink);
    }
    if (status != MP_OK) {
        (void)mp_sink_close(writer->sink, saved_errno);
        goto fail;
    }
    *out = writer;
    return MP_OK;

fail:
    writer_free(writer);
    return status;
}

void
mp_recording_writer_abandon(mp_recording_writer_t *writer)
{
    if (writer == NULL) {
        return;
    }
    /* Between calls the sink is empty and closing it writes nothing.  If the
     * fork came in the middle of a block, closing would write the parent's
     * bytes a second time: better to leak the descriptor in the child. */
    if (!writer->writing) {
        int ignored;
        (void)mp_sink_close(writer->sink, &ignored);
    }
    writer_free(writer);
}

/* ---- blocks ------------------------------------------------------------ */

/* Give zlib MORE bytes of room behind what it has written. */
static mp_status_t
grow_stored(mp_recording_writer_t *writer, size_t more)
{
    z_stream *zlib = &writer->zlib;
    buffer_t *stored = &writer->stored;
    mp_status_t status = buffer_ensure(stored, more);
    if (status == MP_OK) {
        zlib->next_out = stored->bytes + stored->length;
        zlib->avail_out = (uInt)(stored->capacity - stored->length);
    }
    return status;
}

static mp_status_t
compress_piece(mp_recording_writer_t *writer, const piece_t *piece, int level,
               int flush)
{
    z_stream *zlib = &writer->zlib;
    buffer_t *stored = &writer->stored;
    zlib->avail_in = 0;
    bool tuned = false;
    for (;;) {
        int result;
        if (!tuned) {
            /* Writes out what it holds of the piece before. */
            result = deflateParams(zlib, level, piece->strategy);
            tuned = result == Z_OK;
            zlib->next_in = (Bytef *)piece->bytes;
            zlib->avail_in = tuned ? (uInt)piece->length : 0;
        }
        if (tuned) {
            result = deflate(zlib, flush);
        }
        stored->length = stored->capacity - zlib->avail_out;
        if (tuned && (flush == Z_FINISH ? result == Z_STREAM_END
                                        : zlib->avail_in == 0)) {
            return MP_OK;
        }
        if (result != Z_OK && result != Z_BUF_ERROR) {
            return MP_ERR_STATE;
        }
        /* deflateBound knows nothing of changes on the way. */
        mp_status_t status = grow_stored(writer, ROOM_BYTES);
        if (status != MP_OK) {
            return status;
        }
    }
}

/* Compress PIECES into writer->stored. */
static mp_status_t
compress_pieces(mp_recording_writer_t *writer, const piece_t *pieces,
                size_t count, size_t raw_length, int level)
{
    if (deflateReset(&writer->zlib) != Z_OK) {
        return MP_ERR_STATE;
    }
    writer->stored.length = 0;
    size_t bound = deflateBound(&writer->zlib, raw_length);
    mp_status_t status = grow_stored(writer, bound + ROOM_BYTES);
    for (size_t i = 0; i < count && status == MP_OK; i++) {
        int flush = i + 1 < count ? Z_NO_FLUSH : Z_FINISH;
        status = compress_piece(writer, &pieces[i], level, flush);
    }
    return status;
}

/* Note in the directory the block that is about to be written. */
static mp_status_t
put_entry(mp_recording_writer_t *writer, mp_block_type_t type,
          uint32_t records)
{
    mp_status_t status = buffer_ensure(&writer->directory, MP_ENTRY_BYTES);
    if (status != MP_OK) {
        return status;
    }
    uint8_t *entry = writer->directory.bytes + writer->directory.length;
    mp_put_u64(entry + MP_ENTRY_OFFSET, mp_sink_offset(writer->sink));
    mp_put_u32(entry + MP_ENTRY_TYPE, type);
    mp_put_u32(entry + MP_ENTRY_RECORDS, records);
    writer->directory.length += MP_ENTRY_BYTES;
    return MP_OK;
}

/* Write one block whose payload is PIECES.  Every block but the directory
 * itself goes into the directory. */
static mp_status_t
write_block(mp_recording_writer_t *writer, mp_block_type_t type,
            uint32_t records, const piece_t *pieces, size_t count)
{
    size_t raw_length = 0;
    for (size_t i = 0; i < count; i++) {
        raw_length += pieces[i].length;
    }
    if (raw_length > MP_BLOCK_MAX_RAW_BYTES) {
        return MP_ERR_ARG;
    }
    size_t in_memory = raw_length; /* what a reader makes of it */
    if (type == MP_BLOCK_EVENTS && in_memory < records * sizeof(mp_event_t)) {
        in_memory = records * sizeof(mp_event_t);
    }
    mp_status_t status =
        compress_pieces(writer, pieces, count, raw_length, ZLIB_LEVEL);
    if (status == MP_OK &&
        in_memory > MP_BLOCK_MAX_RATIO * writer->stored.length) {
        status = compress_pieces(writer, pieces, count, raw_length, 0);
    }
    if (status == MP_OK && type != MP_BLOCK_DIRECTORY) {
        status = put_entry(writer, type, records);
    }
    if (status != MP_OK) {
        return status;
    }

    uint8_t head[MP_BLOCK_BYTES];
    mp_put_u32(head + MP_BLOCK_TYPE, type);
    mp_put_u32(head + MP_BLOCK_RECORDS, records);
    mp_put_u32(head + MP_BLOCK_RAW_LENGTH, (uint32_t)raw_length);
    mp_put_u32(head + MP_BLOCK_STORED_LENGTH, (uint32_t)writer->stored.length);
    uLong crc = crc32(0, head, MP_BLOCK_CRC);
    crc = crc32(crc, writer->stored.bytes, (uInt)writer->stored.length);
    mp_put_u32(head + MP_BLOCK_CRC, (uint32_t)crc);

    status = mp_sink_write(writer->sink, head, MP_BLOCK_BYTES);
    if (status != MP_OK) {
        return status;
    }
    return mp_sink_write(writer->sink, writer->stored.bytes,
                         writer->stored.length);
}

/* The same for a payload in one piece. */
static mp_status_t
write_payload(mp_recording_writer_t *writer, mp_block_type_t type,
              uint32_t records, const uint8_t *bytes, size_t length)
{
    piece_t piece = {bytes, length, Z_DEFAULT_STRATEGY};
    return write_block(writer, type, records, &piece, 1);
}

/* ---- names ------------------------------------------------------------- */

typedef mp_status_t (*put_name_t)(mp_recording_writer_t *writer, uint32_t id);

static mp_status_t
put_string(mp_recording_writer_t *writer, uint32_t id)
{
    const char *text;
    size_t length;
    if (!mp_intern_text(writer->intern, id, &text, &length)) {
        return MP_ERR_STATE;
    }
    mp_status_t status =
        buffer_ensure(&writer->names, length + MP_VARINT_MAX_BYTES);
    if (status != MP_OK) {
        return status;
    }
    uint8_t *start = writer->names.bytes + writer->names.length;
    uint8_t *at = mp_put_varint(start, length);
    memcpy(at, text, length);
    writer->names.length += (size_t)(at - start) + length;
    return MP_OK;
}

static mp_status_t
put_frame(mp_recording_writer_t *writer, uint32_t id)
{
    mp_frame_t frame;
    if (!mp_intern_get_frame(writer->intern, id, &frame)) {
        return MP_ERR_STATE;
    }
    mp_status_t status =
        buffer_ensure(&writer->names, 3 * MP_VARINT_MAX_BYTES);
    if (status != MP_OK) {
        return status;
    }
    uint8_t *start = writer->names.bytes + writer->names.length;
    uint8_t *at = mp_put_varint(start, frame.function);
    at = mp_put_varint(at, frame.file);
    at = mp_put_varint(at, frame.line);
    writer->names.length += (size_t)(at - start);
    return MP_OK;
}

static mp_status_t
put_stack(mp_recording_writer_t *writer, uint32_t id)
{
    mp_stack_t stack;
    if (!mp_intern_get_stack(writer->intern, id, &stack)) {
        return MP_ERR_STATE;
    }
    mp_status_t status =
        buffer_ensure(&writer->names, 2 * MP_VARINT_MAX_BYTES);
    if (status != MP_OK) {
        return status;
    }
    uint8_t *start = writer->names.bytes + writer->names.length;
    uint8_t *at = mp_put_varint(
        start, stack.parent == MP_NO_INDEX ? 0 : id - stack.parent);
    at = mp_put_varint(at, stack.frame);
    writer->names.length += (size_t)(at - start);
    return MP_OK;
}

/* Write the names from *WRITTEN up to COUNT, in as many blocks as it takes. */
static mp_status_t
write_names(mp_recording_writer_t *writer, mp_block_type_t type,
            put_name_t put_name, uint32_t *written, uint32_t count)
{
    buffer_t *names = &writer->names;
    mp_status_t status = MP_OK;
    for (uint32_t id = *written; id < count && status == MP_OK;) {
        names->length = 0;
        while (id < count && names->length < NAMES_BYTES && status == MP_OK) {
            status = put_name(writer, id++);
        }
        if (status == MP_OK) {
            status = write_payload(writer, type, id - *written, names->bytes,
                                   names->length);
            *written = id;
        }
    }
    return status;
}

static mp_status_t
write_new_names(mp_recording_writer_t *writer)
{
    /* Other threads add names all the time.  What a stack needs was there
     * before it, so the lists are counted from the needing to the needed. */
    uint32_t stacks = mp_intern_stacks(writer->intern);
    uint32_t frames = mp_intern_frames(writer->intern);
    uint32_t strings = mp_intern_strings(writer->intern);
    mp_status_t status = write_names(writer, MP_BLOCK_STRINGS, put_string,
                                     &writer->strings, strings);
    if (status == MP_OK) {
        status = write_names(writer, MP_BLOCK_FRAMES, put_frame,
                             &writer->frames, frames);
    }
    if (status == MP_OK) {
        status = write_names(writer, MP_BLOCK_STACKS, put_stack,
                             &writer->stacks, stacks);
    }
    return status;
}

/* ---- events ------------------------------------------------------------ */

static mp_status_t
write_events(mp_recording_writer_t *writer)
{
    enum {
        COLUMNS = MP_COLUMN_END - 1
    };
    uint32_t count = (uint32_t)mp_columns_count(writer->columns);
    mp_column_t columns[MP_COLUMN_END];
    mp_columns_finish(writer->columns, columns);
    uint8_t table[MP_COLUMNS_BYTES + COLUMNS * MP_COLUMN_BYTES];
    piece_t pieces[MP_COLUMN_END] = {
        {table, sizeof(table), Z_DEFAULT_STRATEGY}};
    mp_put_u32(table + MP_COLUMNS_COUNT, COLUMNS);
    uint8_t *entry = table + MP_COLUMNS_BYTES;
    for (unsigned number = 1; number < MP_COLUMN_END; number++) {
        const mp_column_t *column = &columns[number];
        mp_put_u16(entry + MP_COLUMN_NUMBER, (uint16_t)number);
        mp_put_u16(entry + MP_COLUMN_ENCODING, (uint16_t)column->encoding);
        mp_put_u32(entry + MP_COLUMN_LENGTH, (uint32_t)column->length);
        entry += MP_COLUMN_BYTES;
        pieces[number] =
            (piece_t){column->bytes, column->length, Z_DEFAULT_STRATEGY};
    }
    /* The gaps between times hold no repeats to search for: the same size
     * in a third of the time. */
    pieces[MP_COLUMN_TIME].strategy = Z_HUFFMAN_ONLY;
    mp_status_t status = write_block(writer, MP_BLOCK_EVENTS, count, pieces,
                                     MP_ARRAY_LENGTH(pieces));
    writer->event_count += count;
    mp_columns_clear(writer->columns);
    return status;
}

/* Write what is pending, names first, and hand it to the kernel. */
static mp_status_t
write_pending(mp_recording_writer_t *writer)
{
    if (writer->failed != MP_OK || mp_columns_count(writer->columns) == 0) {
        return writer->failed;
    }
    writer->writing = true;
    mp_status_t status = write_new_names(writer);
    if (status == MP_OK) {
        status = write_events(writer);
    }
    if (status == MP_OK) {
        status = mp_sink_flush(writer->sink);
    }
    writer->writing = status != MP_OK;
    writer->failed = status;
    return status;
}

mp_status_t
mp_recording_writer_append(mp_recording_writer_t *writer,
                           const mp_event_t *events, size_t count)
{
    if (writer->failed != MP_OK) {
        return writer->failed;
    }
    if (!mp_columns_ids_exist(writer->intern, events, count)) {
        return MP_ERR_ARG;
    }
    while (count != 0) {
        size_t room = MP_COLUMNS_EVENTS - mp_columns_count(writer->columns);
        size_t some = count < room ? count : room;
        mp_columns_append(writer->columns, events, some);
        events += some;
        count -= some;
        if (some == room) {
            mp_status_t status = write_pending(writer);
            if (status != MP_OK) {
                return status;
            }
        }
    }
    return MP_OK;
}

mp_status_t
mp_recording_writer_flush(mp_recording_writer_t *writer)
{
    return write_pending(writer);
}

/* ---- info -------------------------------------------------------------- */

static mp_status_t
write_info(mp_recording_writer_t *writer, const char *info, size_t info_length)
{
    return write_payload(writer, MP_BLOCK_INFO, 1, (const uint8_t *)info,
                         info_length);
}

mp_status_t
mp_recording_writer_info(mp_recording_writer_t *writer, const char *info,
                         size_t info_length)
{
    if (writer->failed != MP_OK) {
        return writer->failed;
    }
    writer->writing = true;
    mp_status_t status = write_info(writer, info, info_length);
    if (status == MP_OK) {
        status = mp_sink_flush(writer->sink);
    }
    writer->writing = status != MP_OK;
    writer->failed = status;
    return status;
}

/* ---- close ------------------------------------------------------------- */

/* Info, directory, footer; the header last, since it vouches for them. */
static mp_status_t
write_end(mp_recording_writer_t *writer, const char *info, size_t info_length,
          uint64_t dropped)
{
    mp_status_t status = write_info(writer, info, info_length);
    if (status != MP_OK) {
        return status;
    }
    uint64_t directory_offset = mp_sink_offset(writer->sink);
    status =
        write_payload(writer, MP_BLOCK_DIRECTORY,
                      (uint32_t)(writer->directory.length / MP_ENTRY_BYTES),
                      writer->directory.bytes, writer->directory.length);
    if (status != MP_OK) {
        return status;
    }

    uint8_t *header = writer->header;
    mp_put_u64(header + MP_HEADER_EVENT_COUNT, writer->event_count);
    mp_put_u64(header + MP_HEADER_DROPPED, dropped);
    mp_put_u64(header + MP_HEADER_DIRECTORY_OFFSET, directory_offset);
    mp_put_u32(header + MP_HEADER_FLAGS, MP_HEADER_FINISHED);
    header_seal(header);

    uint8_t footer[MP_FOOTER_BYTES];
    mp_put_u64(footer + MP_FOOTER_DIRECTORY_OFFSET, directory_offset);
    mp_put_u64(footer + MP_FOOTER_FILE_SIZE,
               mp_sink_offset(writer->sink) + MP_FOOTER_BYTES);
    mp_put_u32(footer + MP_FOOTER_HEADER_CRC,
               mp_get_u32(header + MP_HEADER_CRC));
    mp_put_u32(footer + MP_FOOTER_CRC,
               (uint32_t)crc32(0, footer, MP_FOOTER_CRC));
    memcpy(footer + MP_FOOTER_MAGIC, MP_FOOTER_MAGIC_TEXT, 8);
    status = mp_sink_write(writer->sink, footer, MP_FOOTER_BYTES);
    if (status == MP_OK) {
        status = mp_sink_flush(writer->sink);
    }
    if (status == MP_OK) {
        status = mp_sink_patch(writer->sink, 0, header, MP_HEADER_BYTES);
    }
    return status;
}

mp_status_t
mp_recording_writer_close(mp_recording_writer_t *writer, const char *info,
                          size_t info_length, uint64_t dropped,
                          int *saved_errno)
{
    *saved_errno = 0;
    mp_status_t status = write_pending(writer);
    if (status == MP_OK) {
        status = write_end(writer, info, info_length, dropped);
    }
    mp_status_t closed = mp_sink_close(writer->sink, saved_errno);
    writer_free(writer);
    return status != MP_OK ? status : closed;
}
