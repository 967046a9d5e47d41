/* recording_read.c - a recording back from its file.
 *
 * Trusts nothing: every size is checked against the file before memory is
 * taken for it, every id against the lists so far, every checksum.  What
 * precedes the first damage is kept.
 *
 * Inside this file MP_ERR_FORMAT from a block means "damaged from here on",
 * which makes the recording an unfinished one and is no error. */
#include "mem.h"
#include "recording.h"
#include "recording_columns.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

typedef struct {
    uint8_t *bytes;
    size_t capacity;
} buffer_t;

/* A block's head, decoded, and its payload. */
typedef struct {
    uint32_t type;
    uint32_t records;
    uint32_t raw_length;
    uint32_t stored_length;
    const uint8_t *raw; /* NULL: a type we do not know */
} block_t;

typedef struct {
    int fd;
    uint64_t size;   /* of the file */
    uint64_t offset; /* of the block being read */
    uint8_t header[MP_HEADER_BYTES];
    z_stream zlib;
    bool zlib_ready;
    buffer_t stored;
    buffer_t raw;
    uint32_t blocks;   /* met so far */
    uLong entries_crc; /* of the directory that they should have */
    size_t event_capacity;
    mp_recording_data_t data; /* in the making */
    int *saved_errno;
    char *error;
    size_t error_size;
} reader_t;

/* Tell the caller; MP_ERR_FORMAT. */
static mp_status_t
damage(reader_t *reader, const char *sentence)
{
    (void)snprintf(reader->error, reader->error_size, "%s", sentence);
    return MP_ERR_FORMAT;
}

static mp_status_t
damaged_block(reader_t *reader, const char *what)
{
    (void)snprintf(reader->error, reader->error_size,
                   "block %" PRIu32 " at byte %" PRIu64 ": %s", reader->blocks,
                   reader->offset, what);
    return MP_ERR_FORMAT;
}

static mp_status_t
io_failed(reader_t *reader, const char *what)
{
    *reader->saved_errno = errno;
    (void)snprintf(reader->error, reader->error_size, "%s: %s", what,
                   strerror(errno));
    return MP_ERR_IO;
}

static mp_status_t
buffer_ensure(buffer_t *buffer, size_t size)
{
    if (size <= buffer->capacity) {
        return MP_OK;
    }
    uint8_t *bytes = mp_realloc(buffer->bytes, size);
    if (bytes == NULL) {
        return MP_ERR_NOMEM;
    }
    buffer->bytes = bytes;
    buffer->capacity = size;
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

/* Exactly LENGTH bytes; a file that has meanwhile been cut is damage. */
static mp_status_t
read_at(reader_t *reader, uint64_t offset, uint8_t *bytes, size_t length)
{
    while (length != 0) {
        ssize_t got = pread(reader->fd, bytes, length, (off_t)offset);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return io_failed(reader, "reading failed");
        }
        if (got == 0) {
            return damaged_block(reader, "the file is cut");
        }
        bytes += got;
        offset += (uint64_t)got;
        length -= (size_t)got;
    }
    return MP_OK;
}

/* ---- header ------------------------------------------------------------ */

static mp_status_t
open_file(reader_t *reader, const char *path)
{
    /* O_NONBLOCK: a named pipe must not hang us. */
    reader->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat facts;
    if (reader->fd < 0 || fstat(reader->fd, &facts) != 0) {
        return io_failed(reader, "the file cannot be opened");
    }
    if (!S_ISREG(facts.st_mode)) {
        return damage(reader, "not a memprof recording: not a regular file");
    }
    reader->size = (uint64_t)facts.st_size;
    return MP_OK;
}

static mp_status_t
read_header(reader_t *reader)
{
    uint8_t *header = reader->header;
    uint64_t there =
        reader->size < MP_HEADER_BYTES ? reader->size : MP_HEADER_BYTES;
    mp_status_t status = read_at(reader, 0, header, (size_t)there);
    if (status != MP_OK) {
        return status;
    }
    if (there < MP_HEADER_MIN_READER + 2 ||
        memcmp(header, MP_RECORDING_MAGIC, MP_RECORDING_MAGIC_BYTES) != 0) {
        return damage(reader, "not a memprof recording: it does not begin "
                              "with the bytes \"MEMPROF\"");
    }
    unsigned version = mp_get_u16(header + MP_HEADER_VERSION);
    unsigned needed = mp_get_u16(header + MP_HEADER_MIN_READER);
    if (needed > MP_RECORDING_VERSION) {
        (void)snprintf(
            reader->error, reader->error_size,
            "the recording has format version %u and needs a reader of "
            "version %u or later; this memprof reads up to version %d: "
            "update memprof",
            version, needed, MP_RECORDING_VERSION);
        return MP_ERR_NEWER;
    }
    if (there < MP_HEADER_BYTES) {
        return damage(reader, "the recording ends inside its header");
    }
    uint32_t size = mp_get_u16(header + MP_HEADER_SIZE);
    if (crc32(0, header, MP_HEADER_CRC) !=
            mp_get_u32(header + MP_HEADER_CRC) ||
        size < MP_HEADER_BYTES || size > reader->size) {
        return damage(reader, "the recording's header is damaged");
    }
    reader->offset = size;
    reader->data.format_version = version;
    reader->data.start_ns = (int64_t)mp_get_u64(header + MP_HEADER_START_NS);
    reader->data.start_wall_ns =
        (int64_t)mp_get_u64(header + MP_HEADER_START_WALL_NS);
    reader->data.dropped = mp_get_u64(header + MP_HEADER_DROPPED);
    return MP_OK;
}

static bool
header_says_finished(const reader_t *reader)
{
    return (mp_get_u32(reader->header + MP_HEADER_FLAGS) &
            MP_HEADER_FINISHED) != 0;
}

/* ---- one block --------------------------------------------------------- */

static bool
type_is_known(uint32_t type)
{
    switch (type) {
#define X(name, number, text) case MP_BLOCK_##name:
        MP_BLOCK_LIST(X)
#undef X
        return true;
    default:
        return false;
    }
}

/* Read and check the block at reader->offset; decompress it if known. */
static mp_status_t
read_block(reader_t *reader, block_t *block)
{
    uint64_t left = reader->size - reader->offset;
    uint8_t head[MP_BLOCK_BYTES];
    if (left < MP_BLOCK_BYTES) {
        return damaged_block(reader, "the file ends inside its head");
    }
    mp_status_t status = read_at(reader, reader->offset, head, sizeof(head));
    if (status != MP_OK) {
        return status;
    }
    left -= MP_BLOCK_BYTES;
    block->type = mp_get_u32(head + MP_BLOCK_TYPE);
    block->records = mp_get_u32(head + MP_BLOCK_RECORDS);
    block->raw_length = mp_get_u32(head + MP_BLOCK_RAW_LENGTH);
    block->stored_length = mp_get_u32(head + MP_BLOCK_STORED_LENGTH);
    block->raw = NULL;
    if (block->stored_length > left) {
        return damaged_block(reader, "the file ends inside it");
    }
    status = buffer_ensure(&reader->stored, block->stored_length);
    if (status == MP_OK) {
        status = read_at(reader, reader->offset + MP_BLOCK_BYTES,
                         reader->stored.bytes, block->stored_length);
    }
    if (status != MP_OK) {
        return status;
    }
    uLong crc = crc32(0, head, MP_BLOCK_CRC);
    if (block->stored_length != 0) {
        crc = crc32(crc, reader->stored.bytes, block->stored_length);
    }
    if (crc != mp_get_u32(head + MP_BLOCK_CRC)) {
        return damaged_block(reader, "its checksum is wrong");
    }
    if (!type_is_known(block->type)) {
        return MP_OK;
    }

    uint64_t allowed = (uint64_t)MP_BLOCK_MAX_RATIO * block->stored_length;
    if (block->raw_length > MP_BLOCK_MAX_RAW_BYTES ||
        block->raw_length > allowed) {
        return damaged_block(reader, "its sizes cannot be true");
    }
    /* One byte more than needed: also room for an empty payload. */
    status = buffer_ensure(&reader->raw, (size_t)block->raw_length + 1);
    if (status != MP_OK) {
        return status;
    }
    if (inflateReset(&reader->zlib) != Z_OK) {
        return MP_ERR_STATE;
    }
    reader->zlib.next_in = reader->stored.bytes;
    reader->zlib.avail_in = block->stored_length;
    reader->zlib.next_out = reader->raw.bytes;
    reader->zlib.avail_out = block->raw_length + 1;
    int result = inflate(&reader->zlib, Z_FINISH);
    if (result == Z_MEM_ERROR) {
        return MP_ERR_NOMEM;
    }
    if (result != Z_STREAM_END || reader->zlib.avail_in != 0 ||
        reader->zlib.avail_out != 1) {
        return damaged_block(reader, "it does not decompress");
    }
    block->raw = reader->raw.bytes;
    return MP_OK;
}

/* ---- names ------------------------------------------------------------- */

/* Read COUNT ids, each at most LIMIT, from *AT. */
static bool
get_ids(const uint8_t **at, const uint8_t *end, const uint64_t *limits,
        uint32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t value;
        if (!mp_get_varint(at, end, &value) || value > limits[i]) {
            return false;
        }
        ids[i] = (uint32_t)value;
    }
    return true;
}

/* Add the next string to the intern: its id, MP_NO_INDEX when out of memory.
 * False: damage. */
static bool
get_string(mp_intern_t *intern, const uint8_t **at, const uint8_t *end,
           uint32_t *id)
{
    uint64_t length;
    if (!mp_get_varint(at, end, &length) || length > (size_t)(end - *at)) {
        return false;
    }
    *id = mp_intern_string(intern, (const char *)*at, (size_t)length);
    *at += length;
    return true;
}

static bool
get_frame(mp_intern_t *intern, const uint8_t **at, const uint8_t *end,
          uint32_t *id)
{
    uint32_t strings = mp_intern_strings(intern);
    uint32_t fields[3]; /* function, file, line */
    if (strings == 0 ||
        !get_ids(at, end, (uint64_t[]){strings - 1, strings - 1, UINT32_MAX},
                 fields, 3)) {
        return false;
    }
    *id = mp_intern_frame(intern, fields[0], fields[1], fields[2]);
    return true;
}

static bool
get_stack(mp_intern_t *intern, const uint8_t **at, const uint8_t *end,
          uint32_t *id)
{
    uint32_t own = mp_intern_stacks(intern);
    uint32_t frames = mp_intern_frames(intern);
    uint32_t fields[2]; /* up, frame */
    if (frames == 0 ||
        !get_ids(at, end, (uint64_t[]){own, frames - 1}, fields, 2)) {
        return false;
    }
    uint32_t parent = fields[0] == 0 ? MP_NO_INDEX : own - fields[0];
    *id = mp_intern_stack(intern, parent, fields[1]);
    return true;
}

typedef bool (*get_name_t)(mp_intern_t *intern, const uint8_t **at,
                           const uint8_t *end, uint32_t *id);

static mp_status_t
read_names(reader_t *reader, const block_t *block, get_name_t get_name,
           uint32_t (*count_names)(const mp_intern_t *intern))
{
    mp_intern_t *intern = reader->data.intern;
    const uint8_t *at = block->raw;
    const uint8_t *end = at + block->raw_length;
    for (uint32_t i = 0; i < block->records; i++) {
        uint32_t expected = count_names(intern);
        uint32_t id;
        if (!get_name(intern, &at, end, &id)) {
            return damaged_block(reader, "a name in it is damaged");
        }
        if (id == MP_NO_INDEX) {
            return MP_ERR_NOMEM; /* what it needs exists: that was checked */
        }
        if (id != expected) {
            return damaged_block(reader, "a name in it occurs twice");
        }
    }
    if (at != end) {
        return damaged_block(reader, "bytes are left behind its names");
    }
    return MP_OK;
}

/* ---- events ------------------------------------------------------------ */

static mp_status_t
ensure_events(reader_t *reader, size_t more)
{
    mp_recording_data_t *data = &reader->data;
    size_t needed = data->count + more;
    if (needed <= reader->event_capacity) {
        return MP_OK;
    }
    size_t capacity = reader->event_capacity + reader->event_capacity / 2;
    if (reader->event_capacity == 0 && header_says_finished(reader)) {
        /* Believed as far as the size of the file allows. */
        uint64_t told = mp_get_u64(reader->header + MP_HEADER_EVENT_COUNT);
        uint64_t most = reader->size * MP_BLOCK_MAX_RATIO / sizeof(mp_event_t);
        capacity = (size_t)(told < most ? told : 0);
    }
    capacity = capacity < needed ? needed : capacity;
    mp_event_t *events =
        mp_realloc(data->events, capacity * sizeof(*data->events));
    if (events == NULL) {
        return MP_ERR_NOMEM;
    }
    data->events = events;
    reader->event_capacity = capacity;
    return MP_OK;
}

static mp_status_t
read_events(reader_t *reader, const block_t *block)
{
    size_t count = block->records;
    if (count * sizeof(mp_event_t) >
        (uint64_t)MP_BLOCK_MAX_RATIO * block->stored_length) {
        return damaged_block(reader, "its sizes cannot be true");
    }
    mp_status_t status = ensure_events(reader, count);
    if (status != MP_OK) {
        return status;
    }
    mp_event_t *events =
        count == 0 ? NULL : reader->data.events + reader->data.count;
    if (!mp_columns_decode(block->raw, block->raw_length, events, count)) {
        return damaged_block(reader, "an event in it is damaged");
    }
    if (!mp_columns_ids_exist(reader->data.intern, events, count)) {
        return damaged_block(reader, "an event in it has an unknown name");
    }
    reader->data.count += count;
    return MP_OK;
}

/* ---- info, directory, footer ------------------------------------------- */

static mp_status_t
read_info(reader_t *reader, const block_t *block)
{
    char *info = mp_realloc(reader->data.info, (size_t)block->raw_length + 1);
    if (info == NULL) {
        return MP_ERR_NOMEM;
    }
    memcpy(info, block->raw, block->raw_length);
    info[block->raw_length] = '\0';
    reader->data.info = info;
    reader->data.info_length = block->raw_length;
    return MP_OK;
}

/* The directory's block is at reader->offset: does everything agree?  If so
 * reader->offset ends behind the footer. */
static mp_status_t
read_directory(reader_t *reader, const block_t *block)
{
    if (block->records != reader->blocks ||
        block->raw_length != (uint64_t)reader->blocks * MP_ENTRY_BYTES ||
        crc32(0, block->raw, block->raw_length) != reader->entries_crc) {
        return damaged_block(reader, "the directory does not fit the blocks");
    }
    uint64_t directory_offset = reader->offset;
    reader->offset += MP_BLOCK_BYTES + block->stored_length;
    uint8_t footer[MP_FOOTER_BYTES];
    if (reader->size - reader->offset < MP_FOOTER_BYTES) {
        return damage(reader, "the file ends inside its footer");
    }
    mp_status_t status =
        read_at(reader, reader->offset, footer, MP_FOOTER_BYTES);
    if (status != MP_OK) {
        return status;
    }
    if (memcmp(footer + MP_FOOTER_MAGIC, MP_FOOTER_MAGIC_TEXT, 8) != 0 ||
        crc32(0, footer, MP_FOOTER_CRC) !=
            mp_get_u32(footer + MP_FOOTER_CRC) ||
        mp_get_u64(footer + MP_FOOTER_DIRECTORY_OFFSET) != directory_offset) {
        return damage(reader, "the footer is damaged");
    }
    reader->offset += MP_FOOTER_BYTES;
    if (mp_get_u64(footer + MP_FOOTER_FILE_SIZE) != reader->offset ||
        reader->size != reader->offset) {
        return damage(reader, "bytes follow the footer");
    }
    const uint8_t *header = reader->header;
    if (!header_says_finished(reader)) {
        return damage(reader, "the writer was stopped before it finished");
    }
    if (mp_get_u32(footer + MP_FOOTER_HEADER_CRC) !=
            mp_get_u32(header + MP_HEADER_CRC) ||
        mp_get_u64(header + MP_HEADER_DIRECTORY_OFFSET) != directory_offset ||
        mp_get_u64(header + MP_HEADER_EVENT_COUNT) != reader->data.count) {
        return damage(reader, "the header does not fit the file");
    }
    reader->data.finished = true;
    return MP_OK;
}

/* ---- the whole --------------------------------------------------------- */

static mp_status_t
read_payload(reader_t *reader, const block_t *block)
{
    switch (block->type) {
    case MP_BLOCK_STRINGS:
        return read_names(reader, block, get_string, mp_intern_strings);
    case MP_BLOCK_FRAMES:
        return read_names(reader, block, get_frame, mp_intern_frames);
    case MP_BLOCK_STACKS:
        return read_names(reader, block, get_stack, mp_intern_stacks);
    case MP_BLOCK_EVENTS:
        return read_events(reader, block);
    case MP_BLOCK_INFO:
        return read_info(reader, block);
    default:
        return MP_OK; /* written by a newer memprof; not needed */
    }
}

/* Read blocks up to the end or the first damage, MP_ERR_FORMAT. */
static mp_status_t
read_blocks(reader_t *reader)
{
    for (;;) {
        if (reader->offset == reader->size) {
            return damage(reader, "the writer was stopped before it finished");
        }
        block_t block = {0};
        mp_status_t status = read_block(reader, &block);
        if (status == MP_OK && block.type == MP_BLOCK_DIRECTORY) {
            return read_directory(reader, &block);
        }
        if (status == MP_OK) {
            status = read_payload(reader, &block);
        }
        if (status != MP_OK) {
            return status;
        }
        uint8_t entry[MP_ENTRY_BYTES];
        mp_put_u64(entry + MP_ENTRY_OFFSET, reader->offset);
        mp_put_u32(entry + MP_ENTRY_TYPE, block.type);
        mp_put_u32(entry + MP_ENTRY_RECORDS, block.records);
        reader->entries_crc =
            crc32(reader->entries_crc, entry, MP_ENTRY_BYTES);
        reader->blocks++;
        reader->offset += MP_BLOCK_BYTES + block.stored_length;
    }
}

static mp_status_t
read_all(reader_t *reader, const char *path)
{
    mp_status_t status = open_file(reader, path);
    if (status == MP_OK) {
        status = read_header(reader);
    }
    if (status != MP_OK) {
        return status;
    }
    reader->zlib.zalloc = zlib_alloc;
    reader->zlib.zfree = zlib_free;
    if (inflateInit(&reader->zlib) != Z_OK) {
        return MP_ERR_NOMEM;
    }
    reader->zlib_ready = true;
    reader->data.info = mp_calloc(1, 1);
    if (reader->data.info == NULL) {
        return MP_ERR_NOMEM;
    }
    status = mp_intern_new(&reader->data.intern);
    if (status != MP_OK) {
        return status;
    }
    status = read_blocks(reader);
    if (status == MP_ERR_FORMAT) {
        reader->data.damaged_bytes = reader->size - reader->offset;
        status = MP_OK;
    }
    return status;
}

mp_status_t
mp_recording_read(const char *path, mp_recording_data_t *out, int *saved_errno,
                  char *error, size_t error_size)
{
    reader_t reader = {.fd = -1,
                       .saved_errno = saved_errno,
                       .error = error,
                       .error_size = error_size};
    *saved_errno = 0;
    if (error_size != 0) {
        error[0] = '\0';
    }
    mp_status_t status = read_all(&reader, path);
    if (reader.fd >= 0) {
        (void)close(reader.fd);
    }
    if (reader.zlib_ready) {
        (void)inflateEnd(&reader.zlib);
    }
    mp_free(reader.stored.bytes);
    mp_free(reader.raw.bytes);
    if (status != MP_OK) {
        mp_recording_data_clear(&reader.data);
        return status;
    }
    *out = reader.data;
    return MP_OK;
}

void
mp_recording_data_clear(mp_recording_data_t *data)
{
    if (data->mapped_bytes != 0) {
        mp_unreserve(data->events, data->mapped_bytes);
    }
    else {
        mp_free(data->events);
    }
    mp_intern_free(data->intern);
    mp_free(data->info);
    *data = (mp_recording_data_t){0};
}
