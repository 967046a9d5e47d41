/* fuzz_recording.c - any bytes at all, read as a recording.
 *
 * Checksums would keep a fuzzer outside, so two kinds of input are made of
 * each: the bytes as they are, and the bytes as the payloads of blocks that
 * are framed and summed rightly here.  What is read must be usable: ids that
 * exist, a text behind every one.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined ... (README.md)
 *     or with a plain compiler and -DMP_FUZZ_MAIN: runs the files given */
#include "fuzz.h"
#include "recording.h"
#include "recording_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

typedef struct {
    uint8_t *bytes;
    size_t length;
} file_t;

static void
append(file_t *file, const void *bytes, size_t length)
{
    if (length != 0) {
        file->bytes = realloc(file->bytes, file->length + length);
        require(file->bytes != NULL);
        memcpy(file->bytes + file->length, bytes, length);
        file->length += length;
    }
}

static bool
id_exists(uint32_t id, uint32_t count)
{
    return id == MP_NO_INDEX || id < count;
}

/* Everything that a user of the recording would rely on. */
static void
use(const mp_recording_data_t *data, size_t file_length)
{
    uint32_t strings = mp_intern_strings(data->intern);
    uint32_t frames = mp_intern_frames(data->intern);
    uint32_t stacks = mp_intern_stacks(data->intern);
    require(data->count <=
            file_length * MP_BLOCK_MAX_RATIO / sizeof(mp_event_t));
    require(data->damaged_bytes <= file_length);
    require(!data->finished || data->damaged_bytes == 0);
    require(data->info[data->info_length] == '\0');
    for (uint32_t id = 0; id < frames; id++) {
        mp_frame_t frame;
        require(mp_intern_get_frame(data->intern, id, &frame));
        require(frame.function < strings && frame.file < strings);
    }
    for (uint32_t id = 0; id < stacks; id++) {
        mp_stack_t stack;
        require(mp_intern_get_stack(data->intern, id, &stack));
        require(stack.frame < frames);
        require(stack.parent == MP_NO_INDEX || stack.parent < id);
    }
    for (size_t i = 0; i < data->count; i++) {
        require(id_exists(data->events[i].op, strings));
        require(id_exists(data->events[i].module, strings));
        require(id_exists(data->events[i].stack, stacks));
    }
}

static void
read_bytes(const uint8_t *bytes, size_t length)
{
    char path[64];
    snprintf(path, sizeof(path), "/dev/shm/fuzz_recording.%ld",
             (long)getpid());
    FILE *file = fopen(path, "wb");
    require(file != NULL);
    require(fwrite(bytes, 1, length, file) == length);
    require(fclose(file) == 0);
    mp_recording_data_t data;
    int saved_errno;
    char error[200];
    mp_status_t status =
        mp_recording_read(path, &data, &saved_errno, error, sizeof(error));
    if (status == MP_OK) {
        use(&data, length);
        mp_recording_data_clear(&data);
    }
    else {
        require(status == MP_ERR_FORMAT || status == MP_ERR_NEWER);
        require(error[0] != '\0');
    }
    require(remove(path) == 0);
}

/* One piece of the input becomes a block: a byte for the type, two for the
 * records, two for the length of the payload. */
static void
append_block(file_t *file, const uint8_t **at, const uint8_t *end)
{
    if (end - *at < 5) {
        *at = end;
        return;
    }
    uint32_t type = (*at)[0];
    uint32_t records = mp_get_u16(*at + 1);
    size_t length = mp_get_u16(*at + 3);
    *at += 5;
    if (length > (size_t)(end - *at)) {
        length = (size_t)(end - *at);
    }
    uLongf stored_length = compressBound(length);
    uint8_t *stored = malloc(stored_length);
    require(stored != NULL);
    require(compress2(stored, &stored_length, *at, length, 1) == Z_OK);
    *at += length;

    uint8_t head[MP_BLOCK_BYTES];
    mp_put_u32(head + MP_BLOCK_TYPE, type);
    mp_put_u32(head + MP_BLOCK_RECORDS, records);
    mp_put_u32(head + MP_BLOCK_RAW_LENGTH, (uint32_t)length);
    mp_put_u32(head + MP_BLOCK_STORED_LENGTH, (uint32_t)stored_length);
    uLong crc = crc32(0, head, MP_BLOCK_CRC);
    crc = crc32(crc, stored, (uInt)stored_length);
    mp_put_u32(head + MP_BLOCK_CRC, (uint32_t)crc);
    append(file, head, sizeof(head));
    append(file, stored, stored_length);
    free(stored);
}

static void
read_as_payloads(const uint8_t *bytes, size_t length)
{
    uint8_t header[MP_HEADER_BYTES] = MP_RECORDING_MAGIC;
    mp_put_u16(header + MP_HEADER_VERSION, MP_RECORDING_VERSION);
    mp_put_u16(header + MP_HEADER_MIN_READER, MP_RECORDING_MIN_READER);
    mp_put_u16(header + MP_HEADER_SIZE, MP_HEADER_BYTES);
    mp_put_u32(header + MP_HEADER_FLAGS, MP_HEADER_FINISHED);
    mp_put_u64(header + MP_HEADER_EVENT_COUNT, length);
    mp_put_u32(header + MP_HEADER_CRC,
               (uint32_t)crc32(0, header, MP_HEADER_CRC));
    file_t file = {NULL, 0};
    append(&file, header, sizeof(header));
    const uint8_t *at = bytes;
    const uint8_t *end = bytes + length;
    while (at < end) {
        append_block(&file, &at, end);
    }
    read_bytes(file.bytes, file.length);
    free(file.bytes);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    read_bytes(bytes, length);
    read_as_payloads(bytes, length);
    return 0;
}
