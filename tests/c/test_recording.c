/* test_recording.c - what was written comes back, whatever happens to the
 * file in between. */
#include "mem.h"
#include "mp_test.h"
#include "recording.h"
#include "recording_format.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#define START_NS INT64_C(123456789)
#define START_WALL_NS INT64_C(1700000000000000000)
#define INFO "{\"torch\": \"2.8.0\"}"

/* ---- made-up names and events ------------------------------------------ */

static uint64_t random_state = 1;

static uint64_t
random_u64(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * UINT64_C(0x9e3779b97f4a7c15);
}

static uint32_t
random_below(uint32_t limit)
{
    return (uint32_t)((random_u64() >> 32) % limit);
}

static void
add_names(mp_intern_t *intern, uint32_t count)
{
    char text[64];
    for (uint32_t i = 0; i < count; i++) {
        uint32_t have = mp_intern_strings(intern);
        int length = snprintf(text, sizeof(text), "name%" PRIu32 "%c\xc3\xa9",
                              have, '\0');
        uint32_t string = mp_intern_string(intern, text, (size_t)length);
        uint32_t file = random_below(string + 1);
        uint32_t line = i % 3 == 0 ? UINT32_MAX : random_below(1000);
        uint32_t frame = mp_intern_frame(intern, string, file, line);
        uint32_t stacks = mp_intern_stacks(intern);
        uint32_t parent =
            stacks == 0 || i % 5 == 0 ? MP_NO_INDEX : random_below(stacks);
        MP_CHECK(mp_intern_stack(intern, parent, frame) != MP_NO_INDEX);
    }
}

static mp_intern_t *
new_intern(uint32_t names)
{
    mp_intern_t *intern;
    MP_CHECK(mp_intern_new(&intern) == MP_OK);
    /* The empty string is a name like any other. */
    MP_CHECK(mp_intern_string(intern, "", 0) == 0);
    add_names(intern, names);
    return intern;
}

/* Any 64-bit number, the ends of every width often among them. */
static uint64_t
wild(void)
{
    static const uint64_t ends[] = {0,
                                    1,
                                    127,
                                    128,
                                    255,
                                    UINT16_MAX,
                                    INT32_MAX,
                                    UINT32_MAX,
                                    INT64_MAX,
                                    UINT64_MAX,
                                    UINT64_MAX - 1,
                                    UINT64_C(1) << 63,
                                    UINT64_C(1) << 31,
                                    0x7f3a40000000};
    switch (random_below(4)) {
    case 0:
        return ends[random_below(MP_ARRAY_LENGTH(ends))];
    case 1:
        return random_u64() >> random_below(64);
    case 2:
        return random_below(1000);
    default:
        return 0 - (uint64_t)random_below(1000);
    }
}

static uint32_t
wild_id(uint32_t count)
{
    return random_below(4) == 0 ? MP_NO_INDEX : random_below(count);
}

static void
fill_events(const mp_intern_t *intern, mp_event_t *events, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        events[i] = (mp_event_t){
            .addr = wild(),
            .size = wild(),
            .time_ns = (int64_t)wild(),
            .stream = wild(),
            .thread = (uint32_t)wild(),
            .op = wild_id(mp_intern_strings(intern)),
            .module = wild_id(mp_intern_strings(intern)),
            .stack = wild_id(mp_intern_stacks(intern)),
            .step = (int32_t)wild(),
            .op_instance = (uint32_t)wild(),
            .kind = (uint8_t)wild(),
            .phase = (uint8_t)wild(),
            .device = (int16_t)wild(),
            .pool = (uint16_t)wild(),
            .flags = (uint16_t)wild(),
        };
    }
}

static mp_event_t *
new_events(const mp_intern_t *intern, size_t count)
{
    mp_event_t *events = calloc(count + 1, sizeof(*events));
    MP_CHECK(events != NULL);
    fill_events(intern, events, count);
    return events;
}

/* ---- files ---------------------------------------------------------------
 */

static mp_recording_writer_t *
open_writer(const char *path, const mp_intern_t *intern)
{
    mp_recording_writer_t *writer;
    int error;
    MP_CHECK(mp_recording_writer_open(path, intern, START_NS, START_WALL_NS,
                                      &writer, &error) == MP_OK);
    return writer;
}

static void
close_writer(mp_recording_writer_t *writer, uint64_t dropped)
{
    int error = -1;
    MP_CHECK(mp_recording_writer_close(writer, INFO, strlen(INFO), dropped,
                                       &error) == MP_OK);
    MP_CHECK_EQ(error, 0);
}

/* A whole recording, a block for every BLOCK events (0: as they fill). */
static void
write_recording(const char *path, const mp_intern_t *intern,
                const mp_event_t *events, size_t count, size_t block)
{
    mp_recording_writer_t *writer = open_writer(path, intern);
    size_t batch = block == 0 ? 1000 : block;
    for (size_t done = 0; done < count; done += batch) {
        size_t some = count - done < batch ? count - done : batch;
        MP_CHECK(mp_recording_writer_append(writer, events + done, some) ==
                 MP_OK);
        if (block != 0) {
            MP_CHECK(mp_recording_writer_flush(writer) == MP_OK);
        }
    }
    close_writer(writer, 7);
}

static mp_status_t
try_read(const char *path, mp_recording_data_t *data, char *error,
         size_t error_size)
{
    int saved_errno = -1;
    mp_status_t status =
        mp_recording_read(path, data, &saved_errno, error, error_size);
    MP_CHECK((saved_errno != 0) == (status == MP_ERR_IO));
    bool whole = status == MP_OK && data->finished;
    MP_CHECK(status == MP_ERR_NOMEM || (error[0] == '\0') == whole);
    return status;
}

static mp_recording_data_t
read_recording(const char *path)
{
    mp_recording_data_t data;
    char error[256];
    mp_status_t status = try_read(path, &data, error, sizeof(error));
    if (status != MP_OK) {
        mp_test_fail(__FILE__, __LINE__, "status %d: %s", status, error);
    }
    return data;
}

static void
check_same_names(const mp_intern_t *got, const mp_intern_t *wanted)
{
    MP_CHECK(mp_intern_strings(got) <= mp_intern_strings(wanted));
    MP_CHECK(mp_intern_frames(got) <= mp_intern_frames(wanted));
    MP_CHECK(mp_intern_stacks(got) <= mp_intern_stacks(wanted));
    for (uint32_t id = 0; id < mp_intern_strings(got); id++) {
        const char *a;
        const char *b;
        size_t a_length;
        size_t b_length;
        MP_CHECK(mp_intern_text(got, id, &a, &a_length));
        MP_CHECK(mp_intern_text(wanted, id, &b, &b_length));
        MP_CHECK(a_length == b_length && memcmp(a, b, a_length) == 0);
    }
    for (uint32_t id = 0; id < mp_intern_frames(got); id++) {
        mp_frame_t a;
        mp_frame_t b;
        MP_CHECK(mp_intern_get_frame(got, id, &a));
        MP_CHECK(mp_intern_get_frame(wanted, id, &b));
        MP_CHECK(memcmp(&a, &b, sizeof(a)) == 0);
    }
    for (uint32_t id = 0; id < mp_intern_stacks(got); id++) {
        mp_stack_t a;
        mp_stack_t b;
        MP_CHECK(mp_intern_get_stack(got, id, &a));
        MP_CHECK(mp_intern_get_stack(wanted, id, &b));
        MP_CHECK(memcmp(&a, &b, sizeof(a)) == 0);
    }
}

/* DATA is the first DATA->count of EVENTS. */
static void
check_prefix(const mp_recording_data_t *data, const mp_intern_t *intern,
             const mp_event_t *events, size_t count)
{
    MP_CHECK(data->count <= count);
    MP_CHECK(data->count == 0 ||
             memcmp(data->events, events, data->count * sizeof(*events)) == 0);
    check_same_names(data->intern, intern);
    MP_CHECK_EQ(data->start_ns, START_NS);
    MP_CHECK_EQ(data->start_wall_ns, START_WALL_NS);
}

static void
check_whole(const mp_recording_data_t *data, const mp_intern_t *intern,
            const mp_event_t *events, size_t count)
{
    check_prefix(data, intern, events, count);
    MP_CHECK_EQ(data->count, count);
    MP_CHECK(data->finished);
    MP_CHECK_EQ(data->damaged_bytes, 0);
    MP_CHECK_STR(data->info, INFO);
    MP_CHECK_EQ(data->info_length, strlen(INFO));
    MP_CHECK_EQ(data->dropped, 7);
    if (count != 0) {
        MP_CHECK_EQ(mp_intern_strings(data->intern),
                    mp_intern_strings(intern));
        MP_CHECK_EQ(mp_intern_frames(data->intern), mp_intern_frames(intern));
        MP_CHECK_EQ(mp_intern_stacks(data->intern), mp_intern_stacks(intern));
    }
}

typedef struct {
    uint8_t *bytes;
    size_t length;
} bytes_t;

static bytes_t
load_bytes(const char *path)
{
    FILE *file = fopen(path, "rb");
    MP_CHECK(file != NULL);
    MP_CHECK(fseek(file, 0, SEEK_END) == 0);
    bytes_t all = {NULL, (size_t)ftell(file)};
    all.bytes = malloc(all.length + 1);
    rewind(file);
    MP_CHECK(all.bytes != NULL &&
             fread(all.bytes, 1, all.length, file) == all.length);
    fclose(file);
    return all;
}

static void
store_bytes(const char *path, const uint8_t *bytes, size_t length)
{
    FILE *file = fopen(path, "wb");
    MP_CHECK(file != NULL);
    MP_CHECK(fwrite(bytes, 1, length, file) == length);
    MP_CHECK(fclose(file) == 0);
}

static void
append_bytes(bytes_t *all, const void *bytes, size_t length)
{
    all->bytes = realloc(all->bytes, all->length + length + 1);
    MP_CHECK(all->bytes != NULL);
    if (length != 0) {
        memcpy(all->bytes + all->length, bytes, length);
    }
    all->length += length;
}

/* ---- blocks made by hand ---------------------------------------------------
 */

static void
append_stored_block(bytes_t *all, uint32_t type, uint32_t records,
                    uint32_t raw_length, const uint8_t *stored,
                    size_t stored_length)
{
    uint8_t head[MP_BLOCK_BYTES];
    mp_put_u32(head + MP_BLOCK_TYPE, type);
    mp_put_u32(head + MP_BLOCK_RECORDS, records);
    mp_put_u32(head + MP_BLOCK_RAW_LENGTH, raw_length);
    mp_put_u32(head + MP_BLOCK_STORED_LENGTH, (uint32_t)stored_length);
    uLong crc = crc32(0, head, MP_BLOCK_CRC);
    crc = crc32(crc, stored, (uInt)stored_length);
    mp_put_u32(head + MP_BLOCK_CRC, (uint32_t)crc);
    append_bytes(all, head, sizeof(head));
    append_bytes(all, stored, stored_length);
}

static void
append_block(bytes_t *all, uint32_t type, uint32_t records, const void *raw,
             size_t raw_length)
{
    uLongf stored_length = compressBound(raw_length);
    uint8_t *stored = malloc(stored_length);
    MP_CHECK(stored != NULL);
    MP_CHECK(compress2(stored, &stored_length, raw, raw_length, 0) == Z_OK);
    append_stored_block(all, type, records, (uint32_t)raw_length, stored,
                        stored_length);
    free(stored);
}

/* A header as the specification says, unfinished. */
static bytes_t
new_file(void)
{
    uint8_t header[64] = "MEMPROF";
    mp_put_u16(header + 8, 1);
    mp_put_u16(header + 10, 1);
    mp_put_u16(header + 12, 64);
    mp_put_u16(header + 14, 64);
    mp_put_u64(header + 16, (uint64_t)START_NS);
    mp_put_u64(header + 24, (uint64_t)START_WALL_NS);
    mp_put_u32(header + 60, (uint32_t)crc32(0, header, 60));
    bytes_t file = {NULL, 0};
    append_bytes(&file, header, sizeof(header));
    return file;
}

/* Give the header's and the footer's checksums their right values. */
static void
seal(bytes_t *file)
{
    uint8_t *footer = file->bytes + file->length - MP_FOOTER_BYTES;
    uint32_t crc = (uint32_t)crc32(0, file->bytes, MP_HEADER_CRC);
    mp_put_u32(file->bytes + MP_HEADER_CRC, crc);
    mp_put_u32(footer + MP_FOOTER_HEADER_CRC, crc);
    mp_put_u32(footer + MP_FOOTER_CRC,
               (uint32_t)crc32(0, footer, MP_FOOTER_CRC));
}

/* The block at OFFSET, decompressed; *NEXT: where the next one begins. */
static bytes_t
block_payload(const bytes_t *file, size_t offset, uint32_t *type,
              uint32_t *records, size_t *next)
{
    const uint8_t *head = file->bytes + offset;
    uLongf raw_length = mp_get_u32(head + MP_BLOCK_RAW_LENGTH);
    uint32_t stored_length = mp_get_u32(head + MP_BLOCK_STORED_LENGTH);
    bytes_t raw = {malloc(raw_length + 1), raw_length};
    MP_CHECK(uncompress(raw.bytes, &raw_length, head + MP_BLOCK_BYTES,
                        stored_length) == Z_OK);
    MP_CHECK_EQ(raw_length, raw.length);
    *type = mp_get_u32(head + MP_BLOCK_TYPE);
    *records = mp_get_u32(head + MP_BLOCK_RECORDS);
    *next = offset + MP_BLOCK_BYTES + stored_length;
    return raw;
}

/* Read FILE from a path of its own: the count of events, whole blocks only;
 * MP_CHECKs that they end before the damage. */
static void
check_reads(const bytes_t *file, size_t events, uint64_t damaged)
{
    const char *path = mp_test_path("made.memprof");
    store_bytes(path, file->bytes, file->length);
    mp_recording_data_t data = read_recording(path);
    MP_CHECK_EQ(data.count, events);
    MP_CHECK(!data.finished);
    MP_CHECK_EQ(data.damaged_bytes, damaged);
    mp_recording_data_clear(&data);
}

/* ---- round trips -----------------------------------------------------------
 */

static void
round_trip(size_t count, size_t block)
{
    const char *path = mp_test_path("a.memprof");
    mp_intern_t *intern = new_intern(300);
    mp_event_t *events = new_events(intern, count);
    write_recording(path, intern, events, count, block);
    mp_recording_data_t data = read_recording(path);
    check_whole(&data, intern, events, count);
    mp_recording_data_clear(&data);
    free(events);
    mp_intern_free(intern);
}

static void
test_recording_random_events_come_back(void)
{
    for (size_t count = 1; count < 700; count += 1 + count / 3) {
        round_trip(count, 0);
        round_trip(count, 50);
    }
    round_trip(65535, 0);
    round_trip(65536, 0);
    round_trip(65537, 0);
    round_trip(200001, 0);
    MP_CHECK_EQ(mp_mem_bytes(), 0);
}

/* Every field at both ends of its range, one after the other. */
static void
test_recording_extremes_come_back(void)
{
    const char *path = mp_test_path("a.memprof");
    mp_intern_t *intern = new_intern(2);
    mp_event_t low = {.time_ns = INT64_MIN,
                      .op = MP_NO_INDEX,
                      .module = MP_NO_INDEX,
                      .stack = MP_NO_INDEX,
                      .step = INT32_MIN,
                      .device = INT16_MIN};
    mp_event_t high = {.addr = UINT64_MAX,
                       .size = UINT64_MAX,
                       .time_ns = INT64_MAX,
                       .stream = UINT64_MAX,
                       .thread = UINT32_MAX,
                       .op = mp_intern_strings(intern) - 1,
                       .module = mp_intern_strings(intern) - 1,
                       .stack = mp_intern_stacks(intern) - 1,
                       .step = INT32_MAX,
                       .op_instance = UINT32_MAX,
                       .kind = UINT8_MAX,
                       .phase = UINT8_MAX,
                       .device = INT16_MAX,
                       .pool = UINT16_MAX,
                       .flags = UINT16_MAX};
    mp_event_t events[] = {low, high, low, low, high, high, low};
    size_t count = MP_ARRAY_LENGTH(events);
    write_recording(path, intern, events, count, 0);
    mp_recording_data_t data = read_recording(path);
    check_whole(&data, intern, events, count);
    mp_recording_data_clear(&data);
    mp_intern_free(intern);
}

/* A block that compresses beyond what a reader believes is stored plainly. */
static void
test_recording_equal_events_come_back(void)
{
    const char *path = mp_test_path("a.memprof");
    mp_intern_t *intern = new_intern(1);
    size_t length = 3 * 1024 * 1024;
    char *text = calloc(length, 1);
    uint32_t op = mp_intern_string(intern, text, length);
    size_t count = 150000;
    mp_event_t *events = calloc(count, sizeof(*events));
    for (size_t i = 0; i < count; i++) {
        events[i] = (mp_event_t){.kind = MP_EVENT_ALLOC, .op = op};
    }
    write_recording(path, intern, events, count, 0);
    mp_recording_data_t data = read_recording(path);
    check_whole(&data, intern, events, count);
    mp_recording_data_clear(&data);
    free(events);
    free(text);
    mp_intern_free(intern);
}

static void
test_recording_empty_comes_back(void)
{
    const char *path = mp_test_path("a.memprof");
    mp_intern_t *intern = new_intern(10);
    write_recording(path, intern, NULL, 0, 0);
    mp_recording_data_t data = read_recording(path);
    check_whole(&data, intern, NULL, 0);
    mp_recording_data_clear(&data);

    mp_recording_writer_t *writer = open_writer(path, intern);
    int error;
    MP_CHECK(mp_recording_writer_close(writer, NULL, 0, UINT64_MAX, &error) ==
             MP_OK);
    data = read_recording(path);
    MP_CHECK(data.finished);
    MP_CHECK_STR(data.info, "");
    MP_CHECK(data.dropped == UINT64_MAX);
    mp_recording_data_clear(&data);
    mp_intern_free(intern);
}

/* Names arrive while the recording runs; each is written once. */
static void
test_recording_writes_new_names_once(void)
{
    const char *path = mp_test_path("a.memprof");
    mp_intern_t *intern = new_intern(5);
    mp_event_t events[20];
    mp_recording_writer_t *writer = open_writer(path, intern);
    for (size_t i = 0; i < MP_ARRAY_LENGTH(events); i++) {
        add_names(intern, i % 4);
        fill_events(intern, &events[i], 1);
        MP_CHECK(mp_recording_writer_append(writer, &events[i], 1) == MP_OK);
        MP_CHECK(mp_recording_writer_flush(writer) == MP_OK);
        MP_CHECK(mp_recording_writer_flush(writer) == MP_OK); /* no-op */
    }
    close_writer(writer, 7);
    mp_recording_data_t data = read_recording(path);
    check_whole(&data, intern, events, MP_ARRAY_LENGTH(events));
    mp_recording_data_clear(&data);

    bytes_t file = load_bytes(path);
    uint64_t records[MP_BLOCK_DIRECTORY + 1] = {0};
    size_t offset = MP_HEADER_BYTES;
    while (offset < file.length - MP_FOOTER_BYTES) {
        uint32_t type;
        uint32_t count;
        free(block_payload(&file, offset, &type, &count, &offset).bytes);
        MP_CHECK(type <= MP_BLOCK_DIRECTORY);
        records[type] += count;
    }
    MP_CHECK_EQ(records[MP_BLOCK_STRINGS], mp_intern_strings(intern));
    MP_CHECK_EQ(records[MP_BLOCK_FRAMES], mp_intern_frames(intern));
    MP_CHECK_EQ(records[MP_BLOCK_STACKS], mp_intern_stacks(intern));
    MP_CHECK_EQ(records[MP_BLOCK_EVENTS], MP_ARRAY_LENGTH(events));
    MP_CHECK_EQ(records[MP_BLOCK_INFO], 1);
    free(file.bytes);
    mp_intern_free(intern);
}

static void
test_recording_many_names_take_many_blocks(void)
{
    const char *path = mp_test_path("a.memprof");
    mp_intern_t *intern = new_intern(100000);
    mp_event_t *events = new_events(intern, 100);
    write_recording(path, intern, events, 100, 0);
    mp_recording_data_t data = read_recording(path);
    check_whole(&data, intern, events, 100);
    mp_recording_data_clear(&data);
    free(events);
    mp_intern_free(intern);
}

static void
test_recording_refuses_ids_that_do_not_exist(void)
{
    const char *path = mp_test_path("a.memprof");
    mp_intern_t *intern = new_intern(3);
    mp_event_t events[3];
    fill_events(intern, events, 3);
    mp_recording_writer_t *writer = open_writer(path, intern);
    MP_CHECK(mp_recording_writer_append(writer, events, 3) == MP_OK);
    mp_event_t bad[3];
    memcpy(bad, events, sizeof(bad));
    bad[2].op = mp_intern_strings(intern);
    MP_CHECK(mp_recording_writer_append(writer, bad, 3) == MP_ERR_ARG);
    bad[2] = events[2];
    bad[1].stack = mp_intern_stacks(intern);
    MP_CHECK(mp_recording_writer_append(writer, bad, 3) == MP_ERR_ARG);
    bad[1] = events[1];
    bad[0].module = MP_NO_INDEX - 1;
    MP_CHECK(mp_recording_writer_append(writer, bad, 3) == MP_ERR_ARG);
    close_writer(writer, 7);
    mp_recording_data_t data = read_recording(path);
    check_whole(&data, intern, events, 3);
    mp_recording_data_clear(&data);
    mp_intern_free(intern);
}

/* ---- unfinished and damaged files ------------------------------------------
 */

/* A small finished recording of several blocks. */
static bytes_t
small_file(const char *path, mp_intern_t **intern, mp_event_t *events,
           size_t count)
{
    *intern = new_intern(4);
    fill_events(*intern, events, count);
    write_recording(path, *intern, events, count, count / 3);
    return load_bytes(path);
}

static void
test_recording_that_was_not_closed_keeps_its_blocks(void)
{
    const char *path = mp_test_path("a.memprof");
    mp_intern_t *intern = new_intern(10);
    mp_event_t events[40];
    fill_events(intern, events, 40);
    mp_recording_writer_t *writer = open_writer(path, intern);
    MP_CHECK(mp_recording_writer_append(writer, events, 30) == MP_OK);
    mp_recording_data_t data = read_recording(path); /* header only */
    MP_CHECK_EQ(data.count, 0);
    mp_recording_data_clear(&data);

    MP_CHECK(mp_recording_writer_flush(writer) == MP_OK);
    MP_CHECK(mp_recording_writer_append(writer, events + 30, 10) == MP_OK);
    data = read_recording(path); /* while it is being written */
    check_prefix(&data, intern, events, 40);
    MP_CHECK_EQ(data.count, 30);
    MP_CHECK(!data.finished);
    MP_CHECK_EQ(data.damaged_bytes, 0);
    MP_CHECK_STR(data.info, "");
    mp_recording_data_clear(&data);

    mp_recording_writer_abandon(writer);
    data = read_recording(path);
    MP_CHECK_EQ(data.count, 30);
    MP_CHECK(!data.finished);
    mp_recording_data_clear(&data);
    mp_recording_writer_abandon(NULL);
    mp_intern_free(intern);
}

static void
test_recording_info_is_there_before_the_end_and_the_last_counts(void)
{
    const char *path = mp_test_path("a.memprof");
    mp_intern_t *intern = new_intern(10);
    mp_event_t events[40];
    fill_events(intern, events, 40);
    mp_recording_writer_t *writer = open_writer(path, intern);
    MP_CHECK(mp_recording_writer_append(writer, events, 30) == MP_OK);
    MP_CHECK(mp_recording_writer_info(writer, "{}", 2) == MP_OK);
    mp_recording_data_t data = read_recording(path); /* events still wait */
    MP_CHECK_EQ(data.count, 0);
    MP_CHECK(!data.finished);
    MP_CHECK_STR(data.info, "{}");
    mp_recording_data_clear(&data);

    MP_CHECK(mp_recording_writer_append(writer, events + 30, 10) == MP_OK);
    close_writer(writer, 0);
    data = read_recording(path);
    check_prefix(&data, intern, events, 40);
    MP_CHECK_EQ(data.count, 40);
    MP_CHECK(data.finished);
    MP_CHECK_STR(data.info, INFO);
    mp_recording_data_clear(&data);
    mp_intern_free(intern);
}

static void
test_recording_abandoned_by_a_child_is_the_parents(void)
{
    const char *path = mp_test_path("a.memprof");
    mp_intern_t *intern = new_intern(10);
    mp_event_t events[40];
    fill_events(intern, events, 40);
    mp_recording_writer_t *writer = open_writer(path, intern);
    MP_CHECK(mp_recording_writer_append(writer, events, 20) == MP_OK);
    pid_t child = fork();
    if (child == 0) {
        mp_recording_writer_abandon(writer);
        _exit(0);
    }
    int status;
    MP_CHECK(waitpid(child, &status, 0) == child && status == 0);
    MP_CHECK(mp_recording_writer_append(writer, events + 20, 20) == MP_OK);
    close_writer(writer, 7);
    mp_recording_data_t data = read_recording(path);
    check_whole(&data, intern, events, 40);
    mp_recording_data_clear(&data);
    mp_intern_free(intern);
}

static void
test_recording_cut_anywhere_keeps_whole_blocks(void)
{
    const char *path = mp_test_path("a.memprof");
    enum {
        COUNT = 9
    };
    mp_event_t events[COUNT];
    mp_intern_t *intern;
    bytes_t file = small_file(path, &intern, events, COUNT);
    size_t block_end = MP_HEADER_BYTES; /* of the last whole block */
    size_t whole = 0;                   /* events up to there */
    for (size_t length = 0; length <= file.length; length++) {
        store_bytes(path, file.bytes, length);
        mp_recording_data_t data;
        char error[256];
        mp_status_t status = try_read(path, &data, error, sizeof(error));
        if (length < MP_HEADER_BYTES) {
            MP_CHECK_EQ(status, MP_ERR_FORMAT);
            continue;
        }
        const uint8_t *head = file.bytes + block_end;
        if (block_end + MP_FOOTER_BYTES < file.length &&
            length == block_end + MP_BLOCK_BYTES +
                          mp_get_u32(head + MP_BLOCK_STORED_LENGTH)) {
            block_end = length;
            whole += mp_get_u32(head) == MP_BLOCK_EVENTS
                         ? mp_get_u32(head + MP_BLOCK_RECORDS)
                         : 0;
        }
        MP_CHECK_EQ(status, MP_OK);
        check_prefix(&data, intern, events, COUNT);
        MP_CHECK_EQ(data.count, whole);
        MP_CHECK_EQ(data.finished, length == file.length);
        MP_CHECK_EQ(data.damaged_bytes,
                    data.finished ? 0 : length - block_end);
        mp_recording_data_clear(&data);
    }
    MP_CHECK_EQ(whole, COUNT);
    free(file.bytes);
    mp_intern_free(intern);
}

static void
test_recording_flipped_bits_are_noticed(void)
{
    const char *path = mp_test_path("a.memprof");
    enum {
        COUNT = 9
    };
    mp_event_t events[COUNT];
    mp_intern_t *intern;
    bytes_t file = small_file(path, &intern, events, COUNT);
    for (size_t bit = 0; bit < file.length * 9; bit++) {
        uint8_t *byte = &file.bytes[bit / 9];
        uint8_t before = *byte;
        *byte ^= bit % 9 == 8 ? 0xff : (uint8_t)(1u << bit % 9);
        store_bytes(path, file.bytes, file.length);
        mp_recording_data_t data;
        char error[256];
        mp_status_t status = try_read(path, &data, error, sizeof(error));
        if (status == MP_OK) {
            MP_CHECK(!data.finished);
            MP_CHECK(data.damaged_bytes != 0);
            check_prefix(&data, intern, events, COUNT);
            mp_recording_data_clear(&data);
        }
        else {
            MP_CHECK(status == MP_ERR_FORMAT || status == MP_ERR_NEWER);
            MP_CHECK(bit / 9 < MP_HEADER_BYTES);
        }
        *byte = before;
    }
    free(file.bytes);
    mp_intern_free(intern);
}

static void
test_recording_with_bytes_behind_is_unfinished(void)
{
    const char *path = mp_test_path("a.memprof");
    mp_event_t events[9];
    mp_intern_t *intern;
    bytes_t file = small_file(path, &intern, events, 9);
    append_bytes(&file, "xyz", 3);
    check_reads(&file, 9, 3);
    free(file.bytes);
    mp_intern_free(intern);
}

/* A lie with a right checksum: what no accident makes, but a person can. */
static void
test_recording_lies_under_right_checksums_are_noticed(void)
{
    mp_event_t events[30];
    mp_intern_t *intern;
    const char *path = mp_test_path("a.memprof");
    bytes_t file = small_file(path, &intern, events, 30);
    for (int round = 0; round < 6000; round++) {
        bytes_t made = {NULL, 0};
        append_bytes(&made, file.bytes, MP_HEADER_BYTES);
        size_t offset = MP_HEADER_BYTES;
        uint32_t victim = random_below(7);
        for (uint32_t block = 0; offset < file.length - MP_FOOTER_BYTES;
             block++) {
            uint32_t type;
            uint32_t records;
            bytes_t raw =
                block_payload(&file, offset, &type, &records, &offset);
            if (block == victim && raw.length != 0) {
                uint32_t place = random_below((uint32_t)raw.length);
                raw.bytes[place] = (uint8_t)wild();
                records += random_below(8) == 0 ? (uint32_t)wild() : 0;
                raw.length -= random_below(8) == 0;
            }
            append_block(&made, type, records, raw.bytes, raw.length);
            free(raw.bytes);
        }
        append_bytes(&made, file.bytes + file.length - MP_FOOTER_BYTES,
                     MP_FOOTER_BYTES);
        store_bytes(path, made.bytes, made.length);
        mp_recording_data_t data;
        char error[256];
        mp_status_t status = try_read(path, &data, error, sizeof(error));
        MP_CHECK_EQ(status, MP_OK);
        MP_CHECK(!data.finished); /* offsets and checksums have changed */
        for (size_t i = 0; i < data.count; i++) {
            const mp_event_t *event = &data.events[i];
            MP_CHECK(event->op == MP_NO_INDEX ||
                     event->op < mp_intern_strings(data.intern));
            MP_CHECK(event->module == MP_NO_INDEX ||
                     event->module < mp_intern_strings(data.intern));
            MP_CHECK(event->stack == MP_NO_INDEX ||
                     event->stack < mp_intern_stacks(data.intern));
        }
        mp_recording_data_clear(&data);
        free(made.bytes);
    }
    free(file.bytes);
    mp_intern_free(intern);
}

/* The directory is what a reader may seek by: it must name what is there. */
static void
test_recording_wrong_directory_is_damage(void)
{
    const char *path = mp_test_path("a.memprof");
    mp_event_t events[9];
    mp_intern_t *intern;
    bytes_t file = small_file(path, &intern, events, 9);
    size_t offset =
        (size_t)mp_get_u64(file.bytes + MP_HEADER_DIRECTORY_OFFSET);
    uint32_t type;
    uint32_t records;
    size_t next;
    bytes_t raw = block_payload(&file, offset, &type, &records, &next);
    MP_CHECK_EQ(type, MP_BLOCK_DIRECTORY);
    MP_CHECK_EQ(raw.length, records * MP_ENTRY_BYTES);
    /* The first round is right, then one byte after the other is not. */
    for (size_t i = 0; i <= raw.length; i++) {
        if (i != 0) {
            raw.bytes[i - 1] ^= 1;
        }
        file.length = offset;
        append_block(&file, type, records, raw.bytes, raw.length);
        size_t size = file.length + MP_FOOTER_BYTES;
        uint8_t footer[MP_FOOTER_BYTES] = {0};
        mp_put_u64(footer + MP_FOOTER_DIRECTORY_OFFSET, offset);
        mp_put_u64(footer + MP_FOOTER_FILE_SIZE, size);
        memcpy(footer + MP_FOOTER_MAGIC, MP_FOOTER_MAGIC_TEXT, 8);
        append_bytes(&file, footer, sizeof(footer));
        seal(&file);
        store_bytes(path, file.bytes, file.length);
        mp_recording_data_t data = read_recording(path);
        check_prefix(&data, intern, events, 9);
        MP_CHECK_EQ(data.finished, i == 0);
        MP_CHECK_EQ(data.damaged_bytes, i == 0 ? 0 : size - offset);
        mp_recording_data_clear(&data);
        if (i != 0) {
            raw.bytes[i - 1] ^= 1;
        }
    }
    free(raw.bytes);
    free(file.bytes);
    mp_intern_free(intern);
}

/* One payload of each kind, wrong in one way. */
static void
test_recording_wrong_payloads_are_damage(void)
{
    static const struct {
        uint32_t type;
        uint32_t records;
        size_t length;
        const char *raw;
    } cases[] = {
        {MP_BLOCK_STRINGS, 1, 2, "\2a"},    /* longer than the payload */
        {MP_BLOCK_STRINGS, 2, 2, "\1a"},    /* one is missing */
        {MP_BLOCK_STRINGS, 1, 4, "\1a\1b"}, /* one too many */
        {MP_BLOCK_STRINGS, 2, 4, "\1b\1b"}, /* twice */
        {MP_BLOCK_STRINGS, 1, 2, "\1x"},    /* it is there already */
        {MP_BLOCK_STRINGS, 1, 10, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\2"},
        {MP_BLOCK_FRAMES, 1, 3, "\0\1\0"},                   /* no such file */
        {MP_BLOCK_FRAMES, 1, 2, "\0\0"},                     /* no line */
        {MP_BLOCK_FRAMES, 1, 7, "\0\0\x80\x80\x80\x80\x10"}, /* 2^32 */
        {MP_BLOCK_STACKS, 1, 2, "\0\0"},                     /* no frame yet */
        {MP_BLOCK_EVENTS, 1, 3, "\0\0\0"},                   /* no columns */
        {MP_BLOCK_EVENTS, 1, 4, "\0\0\0\0"},
        {MP_BLOCK_EVENTS, 1, 4, "\xff\xff\xff\xff"},
        {MP_BLOCK_DIRECTORY, 1, 0, ""},
    };
    const char *path = mp_test_path("a.memprof");
    for (size_t i = 0; i < MP_ARRAY_LENGTH(cases); i++) {
        bytes_t file = new_file();
        append_block(&file, MP_BLOCK_STRINGS, 1, "\1x", 2);
        size_t good = file.length;
        append_block(&file, cases[i].type, cases[i].records, cases[i].raw,
                     cases[i].length);
        store_bytes(path, file.bytes, file.length);
        mp_recording_data_t data = read_recording(path);
        if (data.damaged_bytes != file.length - good) {
            mp_test_fail(__FILE__, __LINE__, "case %zu passed", i);
        }
        MP_CHECK(!data.finished);
        mp_recording_data_clear(&data);
        free(file.bytes);
    }
}

/* ---- the layout, by hand ---------------------------------------------------
 */

/* The columns of two events, in the order and with the encodings that the
 * writer does not choose. */
typedef struct {
    uint16_t number;
    uint16_t encoding;
    uint32_t length;
    const char *bytes;
} hand_column_t;

static const hand_column_t hand_columns[] = {
    {77, 9, 3, "???"}, /* of a newer memprof: skipped */
    {15, MP_ENCODING_PLAIN, 2, "\5\6"},
    {14, MP_ENCODING_PLAIN, 2, "\1\2"}, /* -1, 1 */
    {13, MP_ENCODING_RUNS, 2, "\2\0"},  /* none, none */
    {12, MP_ENCODING_DELTA, 2, "\2\0"}, /* id 0; none */
    {11, MP_ENCODING_RUNS, 4, "\1\1\1\0"},
    {10, MP_ENCODING_PLAIN, 3, "\xac\2\0"}, /* 300, 0 */
    {9, MP_ENCODING_RUNS, 2, "\2\3"},
    {8, MP_ENCODING_PLAIN, 11, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\1\4"},
    {7, MP_ENCODING_DELTA, 2, "\x10\x10"}, /* 8, 8: one of each class */
    {6, MP_ENCODING_PLAIN, 2, "\x40\1"},
    {5, MP_ENCODING_DELTA, 2, "\0\2"},
    {4, MP_ENCODING_RUNS, 2, "\2\1"},
    {3, MP_ENCODING_RUNS, 4, "\1\0\1\5"},
    {2, MP_ENCODING_PLAIN, 2, "\1\2"},
    {1, MP_ENCODING_PLAIN, 2, "\1\x10"}, /* alloc, op_begin */
};

static void
append_columns(bytes_t *file, const hand_column_t *columns, size_t count,
               uint32_t records)
{
    bytes_t raw = {NULL, 0};
    uint8_t number[4];
    mp_put_u32(number, (uint32_t)count);
    append_bytes(&raw, number, 4);
    for (size_t i = 0; i < count; i++) {
        uint8_t entry[8];
        mp_put_u16(entry, columns[i].number);
        mp_put_u16(entry + 2, columns[i].encoding);
        mp_put_u32(entry + 4, columns[i].length);
        append_bytes(&raw, entry, 8);
    }
    for (size_t i = 0; i < count; i++) {
        append_bytes(&raw, columns[i].bytes, columns[i].length);
    }
    append_block(file, MP_BLOCK_EVENTS, records, raw.bytes, raw.length);
    free(raw.bytes);
}

#define HAND_COLUMNS MP_ARRAY_LENGTH(hand_columns)

static void
test_recording_layout_is_the_documented_one(void)
{
    bytes_t file = new_file();
    append_block(&file, 99, 12, "of a newer memprof: skipped", 27);
    append_block(&file, MP_BLOCK_STRINGS, 2, "\1x\0", 3);
    append_block(&file, MP_BLOCK_FRAMES, 1, "\0\1\x2a", 3);
    append_block(&file, MP_BLOCK_STACKS, 2, "\0\0\1\0", 4);
    append_columns(&file, hand_columns, HAND_COLUMNS, 2);
    append_block(&file, MP_BLOCK_INFO, 1, "{}", 2);
    const char *path = mp_test_path("a.memprof");
    store_bytes(path, file.bytes, file.length);
    mp_recording_data_t data = read_recording(path);
    free(file.bytes);

    mp_event_t wanted[] = {
        {.kind = MP_EVENT_ALLOC,
         .phase = 1,
         .device = -1,
         .addr = 0x40,
         .size = 8,
         .time_ns = -1,
         .stream = 3,
         .thread = 300,
         .op = 0,
         .module = 0,
         .stack = MP_NO_INDEX,
         .step = -1,
         .op_instance = 5},
        {.kind = MP_EVENT_OP_BEGIN,
         .phase = 2,
         .flags = 5,
         .device = -1,
         .pool = 1,
         .addr = 1,
         .size = 8,
         .time_ns = 4,
         .stream = 3,
         .op = MP_NO_INDEX,
         .module = MP_NO_INDEX,
         .stack = MP_NO_INDEX,
         .step = 1,
         .op_instance = 6},
    };
    MP_CHECK_EQ(data.count, 2);
    MP_CHECK(memcmp(data.events, wanted, sizeof(wanted)) == 0);
    MP_CHECK_STR(data.info, "{}");
    MP_CHECK_EQ(data.damaged_bytes, 0);
    mp_frame_t frame;
    mp_stack_t stack;
    const char *text;
    size_t length;
    MP_CHECK(mp_intern_text(data.intern, 1, &text, &length));
    MP_CHECK_EQ(length, 0);
    MP_CHECK(mp_intern_get_frame(data.intern, 0, &frame));
    MP_CHECK(frame.function == 0 && frame.file == 1 && frame.line == 42);
    MP_CHECK(mp_intern_get_stack(data.intern, 0, &stack));
    MP_CHECK(stack.parent == MP_NO_INDEX && stack.frame == 0);
    MP_CHECK(mp_intern_get_stack(data.intern, 1, &stack));
    MP_CHECK(stack.parent == 0 && stack.frame == 0);
    mp_recording_data_clear(&data);
}

/* One column is replaced; the events block must be refused. */
static void
check_column_is_damage(hand_column_t column)
{
    hand_column_t columns[HAND_COLUMNS];
    memcpy(columns, hand_columns, sizeof(columns));
    for (size_t i = 0; i < HAND_COLUMNS; i++) {
        columns[i] = columns[i].number == column.number ? column : columns[i];
    }
    bytes_t file = new_file();
    append_block(&file, MP_BLOCK_STRINGS, 1, "\1x", 2);
    size_t good = file.length;
    append_columns(&file, columns, HAND_COLUMNS, 2);
    check_reads(&file, 0, file.length - good);
    free(file.bytes);
}

static void
test_recording_wrong_columns_are_damage(void)
{
    static const hand_column_t cases[] = {
        {1, MP_ENCODING_DELTA, 2, "\2\2"},     /* kind is never a delta */
        {1, MP_ENCODING_PLAIN, 3, "\1\x80\2"}, /* 256 */
        {2, 0, 2, "\1\1"},                     /* unknown encodings */
        {2, 4, 2, "\1\1"},
        {3, MP_ENCODING_PLAIN, 4, "\1\x80\x80\4"}, /* 65536 */
        {4, MP_ENCODING_PLAIN, 4, "\1\x80\x80\4"}, /* 32768 */
        {4, MP_ENCODING_PLAIN, 4, "\1\x81\x80\4"}, /* -32769 */
        {6, MP_ENCODING_PLAIN, 1, "\1"},           /* one too few */
        {6, MP_ENCODING_PLAIN, 3, "\1\1\1"},       /* one too many */
        {6, MP_ENCODING_PLAIN, 2, "\1\x80"},       /* cut */
        {6, MP_ENCODING_DELTA, 2, "\1\x80"},
        {6, MP_ENCODING_RUNS, 2, "\1\1"},         /* too short */
        {6, MP_ENCODING_RUNS, 2, "\3\1"},         /* too long */
        {6, MP_ENCODING_RUNS, 6, "\1\1\0\1\1\1"}, /* a run of none */
        {6, MP_ENCODING_RUNS, 1, "\2"},           /* no value */
        {11, MP_ENCODING_PLAIN, 2, "\0\2"},       /* no such string */
        {12, MP_ENCODING_PLAIN, 2, "\2\0"},
        {13, MP_ENCODING_PLAIN, 2, "\0\1"}, /* no such stack */
        {13, MP_ENCODING_PLAIN, 6, "\0\x80\x80\x80\x80\x10"}, /* 2^32 */
        {14, MP_ENCODING_PLAIN, 6, "\0\x80\x80\x80\x80\x10"}, /* 2^31 */
        {15, MP_ENCODING_DELTA, 2, "\1\1"},                   /* -1 */
    };
    for (size_t i = 0; i < MP_ARRAY_LENGTH(cases); i++) {
        check_column_is_damage(cases[i]);
    }
    /* A column twice, and one that is missing. */
    hand_column_t columns[HAND_COLUMNS];
    memcpy(columns, hand_columns, sizeof(columns));
    columns[0] = columns[1];
    bytes_t file = new_file();
    append_block(&file, MP_BLOCK_STRINGS, 1, "\1x", 2);
    size_t good = file.length;
    append_columns(&file, columns, HAND_COLUMNS, 2);
    check_reads(&file, 0, file.length - good);
    file.length = good;
    append_columns(&file, hand_columns, HAND_COLUMNS - 1, 2);
    check_reads(&file, 0, file.length - good);
    /* An events block without events: odd, but no damage. */
    for (size_t i = 0; i < HAND_COLUMNS; i++) {
        columns[i] = hand_columns[i];
        columns[i].length = 0;
    }
    file.length = good;
    append_columns(&file, columns, HAND_COLUMNS, 0);
    check_reads(&file, 0, 0);
    /* The same without the damage. */
    file.length = good;
    append_columns(&file, hand_columns, HAND_COLUMNS, 2);
    check_reads(&file, 2, 0);
    free(file.bytes);
}

/* ---- limits
 * ----------------------------------------------------------------- */

static void
test_recording_sizes_are_not_believed(void)
{
    /* A bomb: 64 MB of zeros in 64 KB. */
    uLongf stored_length = 100000;
    uint8_t *stored = malloc(stored_length);
    uint8_t *zeros = calloc(1, 1 << 26);
    MP_CHECK(compress2(stored, &stored_length, zeros, 1 << 26, 9) == Z_OK);
    free(zeros);
    bytes_t file = new_file();
    append_stored_block(&file, MP_BLOCK_INFO, 1, 1 << 26, stored,
                        stored_length);
    check_reads(&file, 0, file.length - MP_HEADER_BYTES);

    /* A raw length of 4 GB, and one that is not the payload's. */
    file.length = MP_HEADER_BYTES;
    append_stored_block(&file, MP_BLOCK_INFO, 1, UINT32_MAX, stored,
                        stored_length);
    check_reads(&file, 0, file.length - MP_HEADER_BYTES);
    file.length = MP_HEADER_BYTES;
    append_stored_block(&file, MP_BLOCK_INFO, 1, 1 << 20, stored,
                        stored_length);
    check_reads(&file, 0, file.length - MP_HEADER_BYTES);
    free(stored);

    /* A payload that is shorter than it says. */
    uint8_t tiny[64];
    uLongf tiny_length = sizeof(tiny);
    MP_CHECK(compress(tiny, &tiny_length, (const uint8_t *)"{}", 2) == Z_OK);
    file.length = MP_HEADER_BYTES;
    append_stored_block(&file, MP_BLOCK_INFO, 1, 3, tiny, tiny_length);
    check_reads(&file, 0, file.length - MP_HEADER_BYTES);

    /* Nothing, and what is no zlib stream. */
    file.length = MP_HEADER_BYTES;
    append_stored_block(&file, MP_BLOCK_INFO, 1, 0, (const uint8_t *)"", 0);
    check_reads(&file, 0, file.length - MP_HEADER_BYTES);
    file.length = MP_HEADER_BYTES;
    append_stored_block(&file, MP_BLOCK_INFO, 1, 9, (const uint8_t *)"no zlib",
                        7);
    check_reads(&file, 0, file.length - MP_HEADER_BYTES);

    /* A million events in runs of a few bytes. */
    hand_column_t columns[MP_COLUMN_END - 1];
    for (uint16_t i = 0; i < MP_ARRAY_LENGTH(columns); i++) {
        columns[i] = (hand_column_t){(uint16_t)(i + 1), MP_ENCODING_RUNS, 4,
                                     "\xc0\x84\x3d\0"};
    }
    file.length = MP_HEADER_BYTES;
    append_columns(&file, columns, MP_ARRAY_LENGTH(columns), 1000000);
    check_reads(&file, 0, file.length - MP_HEADER_BYTES);

    /* A finished header that promises too many events. */
    file.length = MP_HEADER_BYTES;
    append_block(&file, MP_BLOCK_STRINGS, 1, "\1x", 2);
    append_columns(&file, hand_columns, HAND_COLUMNS, 2);
    mp_put_u32(file.bytes + MP_HEADER_FLAGS, MP_HEADER_FINISHED);
    mp_put_u64(file.bytes + MP_HEADER_EVENT_COUNT, UINT64_MAX);
    mp_put_u32(file.bytes + MP_HEADER_CRC,
               (uint32_t)crc32(0, file.bytes, MP_HEADER_CRC));
    check_reads(&file, 2, 0);
    free(file.bytes);
}

/* ---- versions, and what is no recording ------------------------------------
 */

static void
test_recording_of_a_newer_memprof(void)
{
    const char *path = mp_test_path("a.memprof");
    mp_event_t events[9];
    mp_intern_t *intern;
    bytes_t file = small_file(path, &intern, events, 9);
    mp_put_u16(file.bytes + MP_HEADER_VERSION, MP_RECORDING_VERSION + 1);
    seal(&file);
    store_bytes(path, file.bytes, file.length);
    mp_recording_data_t data = read_recording(path);
    check_whole(&data, intern, events, 9);
    MP_CHECK_EQ(data.format_version, MP_RECORDING_VERSION + 1);
    mp_recording_data_clear(&data);

    mp_put_u16(file.bytes + MP_HEADER_MIN_READER, MP_RECORDING_VERSION + 1);
    seal(&file);
    store_bytes(path, file.bytes, file.length);
    char error[256];
    MP_CHECK_EQ(try_read(path, &data, error, sizeof(error)), MP_ERR_NEWER);
    MP_CHECK(strstr(error, "version 2 or later") != NULL);
    MP_CHECK(strstr(error, "update memprof") != NULL);
    int saved_errno;
    MP_CHECK_EQ(mp_recording_read(path, &data, &saved_errno, NULL, 0),
                MP_ERR_NEWER);
    free(file.bytes);
    mp_intern_free(intern);
}

static void
test_recording_of_a_larger_header(void)
{
    bytes_t file = new_file();
    append_bytes(&file, "whatever", 8);
    mp_put_u16(file.bytes + MP_HEADER_SIZE, MP_HEADER_BYTES + 8);
    mp_put_u32(file.bytes + MP_HEADER_CRC,
               (uint32_t)crc32(0, file.bytes, MP_HEADER_CRC));
    append_block(&file, MP_BLOCK_STRINGS, 1, "\1x", 2);
    append_columns(&file, hand_columns, HAND_COLUMNS, 2);
    check_reads(&file, 2, 0);
    free(file.bytes);
}

static void
test_recording_refuses_what_is_none(void)
{
    const char *path = mp_test_path("a.memprof");
    mp_recording_data_t data;
    char error[256];
    store_bytes(path, (const uint8_t *)"", 0);
    MP_CHECK_EQ(try_read(path, &data, error, sizeof(error)), MP_ERR_FORMAT);
    MP_CHECK(strstr(error, "not a memprof recording") != NULL);
    uint8_t zeros[200] = {0};
    store_bytes(path, zeros, sizeof(zeros));
    MP_CHECK_EQ(try_read(path, &data, error, sizeof(error)), MP_ERR_FORMAT);
    MP_CHECK_EQ(try_read("/", &data, error, sizeof(error)), MP_ERR_FORMAT);
    MP_CHECK(strstr(error, "not a regular file") != NULL);
    const char *pipe = mp_test_path("pipe");
    MP_CHECK(mkfifo(pipe, 0600) == 0);
    MP_CHECK_EQ(try_read(pipe, &data, error, sizeof(error)), MP_ERR_FORMAT);
    const char *missing = mp_test_path("missing");
    int saved_errno;
    MP_CHECK_EQ(
        mp_recording_read(missing, &data, &saved_errno, error, sizeof(error)),
        MP_ERR_IO);
    MP_CHECK_EQ(saved_errno, ENOENT);
}

/* ---- failures
 * ---------------------------------------------------------------- */

static void
test_recording_cannot_be_opened(void)
{
    mp_intern_t *intern = new_intern(1);
    mp_recording_writer_t *writer;
    int error;
    MP_CHECK_EQ(mp_recording_writer_open("/nowhere/a.memprof", intern, 0, 0,
                                         &writer, &error),
                MP_ERR_IO);
    MP_CHECK_EQ(error, ENOENT);
    MP_CHECK_EQ(
        mp_recording_writer_open("/dev/full", intern, 0, 0, &writer, &error),
        MP_ERR_IO);
    MP_CHECK_EQ(error, ENOSPC);
    mp_intern_free(intern);
    MP_CHECK_EQ(mp_mem_bytes(), 0);
}

/* The disk is full after LIMIT bytes. */
static void
check_full_after(rlim_t limit, const mp_intern_t *intern,
                 const mp_event_t *events, size_t count)
{
    const char *path = mp_test_path("full.memprof");
    struct rlimit before;
    MP_CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    struct rlimit small = {limit, before.rlim_max};
    mp_recording_writer_t *writer = open_writer(path, intern);
    MP_CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    mp_status_t status = MP_OK;
    size_t written = 0;
    for (size_t done = 0; done < count; done += 100) {
        mp_status_t now =
            mp_recording_writer_append(writer, events + done, 100);
        now = now == MP_OK ? mp_recording_writer_flush(writer) : now;
        MP_CHECK(status == MP_OK || now == status); /* a failure stays */
        status = now;
        written += status == MP_OK ? 100 : 0;
    }
    int error = 0;
    MP_CHECK_EQ(
        mp_recording_writer_close(writer, INFO, strlen(INFO), 0, &error),
        MP_ERR_IO);
    MP_CHECK_EQ(error, EFBIG);
    MP_CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    mp_recording_data_t data = read_recording(path);
    check_prefix(&data, intern, events, count);
    MP_CHECK_EQ(data.count, written);
    MP_CHECK(!data.finished);
    mp_recording_data_clear(&data);
}

static void
test_recording_survives_a_full_disk(void)
{
    MP_CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    mp_intern_t *intern = new_intern(200);
    mp_event_t *events = new_events(intern, 1000);
    const char *path = mp_test_path("a.memprof");
    write_recording(path, intern, events, 1000, 100);
    bytes_t whole = load_bytes(path);
    for (rlim_t limit = 64; limit < whole.length; limit += 997) {
        check_full_after(limit, intern, events, 1000);
    }
    check_full_after(whole.length - 1, intern, events, 1000);
    free(whole.bytes);
    free(events);
    mp_intern_free(intern);
    MP_CHECK_EQ(mp_mem_bytes(), 0);
}

/* Write all, the N-th allocation fails; the first failure that was told. */
static mp_status_t
write_with_failure(const char *path, const mp_intern_t *intern,
                   const mp_event_t *events, size_t count, long n)
{
    mp_recording_writer_t *writer;
    int error;
    mp_mem_fail_after(n);
    mp_status_t status = mp_recording_writer_open(
        path, intern, START_NS, START_WALL_NS, &writer, &error);
    if (status == MP_OK) {
        mp_status_t first = MP_OK;
        for (size_t i = 0; i < count; i += 50) {
            status = mp_recording_writer_append(writer, events + i, 50);
            if (status == MP_OK) {
                status = mp_recording_writer_flush(writer);
            }
            MP_CHECK(first == MP_OK || status == first);
            first = status;
        }
        status =
            mp_recording_writer_close(writer, INFO, strlen(INFO), 7, &error);
        MP_CHECK(first == MP_OK || status == first);
        MP_CHECK_EQ(error, 0);
    }
    mp_mem_fail_after(0);
    return status;
}

static void
test_recording_writer_survives_want_of_memory(void)
{
    const char *path = mp_test_path("a.memprof");
    mp_intern_t *intern = new_intern(300);
    mp_event_t *events = new_events(intern, 500);
    size_t held = mp_mem_bytes();
    long n = 1;
    for (;; n++) {
        (void)unlink(path);
        mp_status_t status = write_with_failure(path, intern, events, 500, n);
        MP_CHECK_EQ(mp_mem_bytes(), held);
        if (status == MP_OK) {
            break;
        }
        MP_CHECK_EQ(status, MP_ERR_NOMEM);
        if (access(path, F_OK) == 0) {
            mp_recording_data_t data = read_recording(path);
            check_prefix(&data, intern, events, 500);
            MP_CHECK(!data.finished);
            mp_recording_data_clear(&data);
        }
    }
    MP_CHECK(n > 10); /* it did fail at every place */
    mp_recording_data_t data = read_recording(path);
    check_whole(&data, intern, events, 500);
    mp_recording_data_clear(&data);
    free(events);
    mp_intern_free(intern);
}

static void
test_recording_reader_survives_want_of_memory(void)
{
    const char *path = mp_test_path("a.memprof");
    mp_intern_t *intern = new_intern(300);
    mp_event_t *events = new_events(intern, 500);
    write_recording(path, intern, events, 500, 50);
    size_t held = mp_mem_bytes();
    long n = 1;
    for (;; n++) {
        mp_recording_data_t data;
        char error[256];
        mp_mem_fail_after(n);
        mp_status_t status = try_read(path, &data, error, sizeof(error));
        mp_mem_fail_after(0);
        if (status == MP_OK) {
            check_whole(&data, intern, events, 500);
            mp_recording_data_clear(&data);
            MP_CHECK_EQ(mp_mem_bytes(), held);
            break;
        }
        MP_CHECK_EQ(status, MP_ERR_NOMEM);
        MP_CHECK_EQ(mp_mem_bytes(), held);
    }
    MP_CHECK(n > 10);
    free(events);
    mp_intern_free(intern);
}

MP_TEST_SUITE(
    recording, MP_TEST(test_recording_random_events_come_back),
    MP_TEST(test_recording_extremes_come_back),
    MP_TEST(test_recording_equal_events_come_back),
    MP_TEST(test_recording_empty_comes_back),
    MP_TEST(test_recording_writes_new_names_once),
    MP_TEST(test_recording_many_names_take_many_blocks),
    MP_TEST(test_recording_refuses_ids_that_do_not_exist),
    MP_TEST(test_recording_info_is_there_before_the_end_and_the_last_counts),
    MP_TEST(test_recording_that_was_not_closed_keeps_its_blocks),
    MP_TEST(test_recording_abandoned_by_a_child_is_the_parents),
    MP_TEST(test_recording_cut_anywhere_keeps_whole_blocks),
    MP_TEST(test_recording_flipped_bits_are_noticed),
    MP_TEST(test_recording_with_bytes_behind_is_unfinished),
    MP_TEST(test_recording_lies_under_right_checksums_are_noticed),
    MP_TEST(test_recording_wrong_directory_is_damage),
    MP_TEST(test_recording_wrong_payloads_are_damage),
    MP_TEST(test_recording_layout_is_the_documented_one),
    MP_TEST(test_recording_wrong_columns_are_damage),
    MP_TEST(test_recording_sizes_are_not_believed),
    MP_TEST(test_recording_of_a_newer_memprof),
    MP_TEST(test_recording_of_a_larger_header),
    MP_TEST(test_recording_refuses_what_is_none),
    MP_TEST(test_recording_cannot_be_opened),
    MP_TEST(test_recording_survives_a_full_disk),
    MP_TEST(test_recording_writer_survives_want_of_memory),
    MP_TEST(test_recording_reader_survives_want_of_memory))
