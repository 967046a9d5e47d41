/* fuzz_snapshot.c - any bytes at all, read as a memory snapshot.
 *
 * Two kinds of input are made of each: the bytes as they are, and the bytes as
 * a program that builds a snapshot of known words, which gets further. What is
 * read must be usable: it is replayed, exported and read again, and the second
 * time nothing may be odd.  Memory stays a multiple of the input.
 *
 *     clang -g -O1 -fsanitize=fuzzer,address,undefined ... (README.md)
 *     or with a plain compiler and -DMP_FUZZ_MAIN: runs the files given */
#include "category.h"
#include "export_snapshot.h"
#include "free_blocks.h"
#include "fuzz.h"
#include "import_snapshot.h"
#include "mem.h"
#include "tracker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool
id_exists(uint32_t id, uint32_t count)
{
    return id == MP_NO_INDEX || id < count;
}

/* Write what was read as a snapshot; its bytes, or NULL if no page could show
 * its numbers. */
static uint8_t *
exported(const mp_recording_data_t *data, size_t *length)
{
    mp_tracker_t *tracker;
    mp_tracker_options_t options = {.keep_dead = true,
                                    .session_id = 1,
                                    .allocation_budget_bytes =
                                        (data->count + 1) *
                                        sizeof(mp_allocation_t)};
    require(mp_tracker_new(&options, &tracker) == MP_OK);
    for (size_t i = 0; i < data->count; i++) {
        mp_status_t status = mp_tracker_apply(tracker, &data->events[i]);
        require(status == MP_OK);
    }
    size_t count;
    mp_allocation_t *lives = mp_tracker_allocations_mutable(tracker, &count);
    mp_category_assign(lives, count, data->intern);
    mp_export_t source = {.events = data->events,
                          .event_count = data->count,
                          .lives = lives,
                          .life_count = count,
                          .intern = data->intern,
                          .start_ns = data->start_ns,
                          .start_wall_ns = data->start_wall_ns};
    mp_snapshot_options_t snapshot = {.version = "0", .info = ""};
    char path[64];
    (void)snprintf(path, sizeof(path), "/dev/shm/fuzz_snapshot.%ld",
                   (long)getpid());
    for (int16_t device = MP_DEVICE_CPU; device < 2; device++) {
        mp_free_level_t *levels;
        size_t samples;
        require(mp_free_blocks_build(&source, device, 8, &levels, &samples) ==
                MP_OK);
        for (size_t i = 0; i < samples; i++) {
            require(levels[i].bytes >= 0);
            require(levels[i].event < (int64_t)data->count);
            require(i == 0 || levels[i].event > levels[i - 1].event);
        }
        mp_free(levels);
    }
    uint64_t written = 0;
    int saved_errno;
    mp_status_t status =
        mp_export_snapshot(&source, &snapshot, path, &written, &saved_errno);
    mp_tracker_free(tracker);
    require(status == MP_OK || status == MP_ERR_ARG);
    if (status != MP_OK) {
        return NULL;
    }
    FILE *file = fopen(path, "rb");
    require(file != NULL);
    uint8_t *bytes = malloc((size_t)written + 1);
    require(bytes != NULL &&
            fread(bytes, 1, (size_t)written, file) == written);
    fclose(file);
    require(remove(path) == 0);
    *length = (size_t)written;
    return bytes;
}

/* Everything that a user of the recording would rely on. */
static void
use(const mp_recording_data_t *data, const mp_import_facts_t *facts,
    size_t length)
{
    uint32_t strings = mp_intern_strings(data->intern);
    uint32_t stacks = mp_intern_stacks(data->intern);
    require(data->count <= length * 8 + 16);
    require(facts->good_bytes <= length);
    require(facts->whole == data->finished);
    for (size_t i = 0; i < data->count; i++) {
        require(id_exists(data->events[i].op, strings));
        require(id_exists(data->events[i].module, strings));
        require(id_exists(data->events[i].stack, stacks));
    }
    size_t again_length;
    uint8_t *again = exported(data, &again_length);
    if (again == NULL) {
        return;
    }
    mp_recording_data_t second;
    mp_import_facts_t second_facts;
    char error[200];
    require(mp_import_snapshot(again, again_length, &second, &second_facts,
                               error, sizeof(error)) == MP_OK);
    require(second_facts.whole && second_facts.ours);
    require(error[0] == '\0');
    mp_recording_data_clear(&second);
    free(again);
}

static void
read_bytes(const uint8_t *bytes, size_t length)
{
    /* A copy of exactly that size: ASan sees what lies behind. */
    uint8_t *copy = malloc(length + (length == 0));
    require(copy != NULL);
    if (length != 0) {
        memcpy(copy, bytes, length);
    }
    mp_recording_data_t data;
    mp_import_facts_t facts;
    char error[200];
    size_t before = mp_mem_bytes();
    mp_status_t status =
        mp_import_snapshot(copy, length, &data, &facts, error, sizeof(error));
    free(copy); /* what was read does not need it */
    if (status == MP_OK) {
        use(&data, &facts, length);
        mp_recording_data_clear(&data);
    }
    else {
        require(status == MP_ERR_FORMAT || status == MP_ERR_FULL);
        require(error[0] != '\0');
    }
    require(mp_mem_bytes() == before);
}

/* ---- bytes as a program ---------------------------------------------------
 */

static const char *const words[] = {
    "segments",
    "device_traces",
    "device",
    "address",
    "total_size",
    "stream",
    "blocks",
    "size",
    "requested_size",
    "state",
    "active_allocated",
    "active_pending_free",
    "inactive",
    "frames",
    "filename",
    "line",
    "name",
    "action",
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "oom",
    "snapshot",
    "addr",
    "time_us",
    "category",
    "unknown",
    "user_metadata",
    "op",
    "memprof",
    "format",
    "memprof_steps",
    "cpu",
    "forward_frames",
    "a.py:3:f",
    "is_expandable",
    "segment_pool_id",
    "external_annotations",
    "ProfilerStep#3",
    "stage",
    "START",
    "history",
    "real_size",
    "memprof_made",
};

typedef struct {
    uint8_t *bytes;
    size_t length, room;
} program_t;

static void
emit(program_t *program, const void *bytes, size_t length)
{
    if (program->length + length > program->room) {
        /* Seldom: sanitizers make of each of these a new block. */
        program->room = 2 * program->room + length + 256;
        program->bytes = realloc(program->bytes, program->room);
        require(program->bytes != NULL);
    }
    memcpy(program->bytes + program->length, bytes, length);
    program->length += length;
}

static void
emit_text(program_t *program, const char *text)
{
    uint8_t head[2] = {0x8c, (uint8_t)strlen(text)};
    emit(program, head, 2);
    emit(program, text, strlen(text));
}

/* An entry of a trace, made of four bytes. */
static void
emit_entry(program_t *program, const uint8_t *at)
{
    static const char *const actions[] = {
        "alloc",        "free_requested", "free_completed", "segment_alloc",
        "segment_free", "segment_map",    "segment_unmap",  "oom",
    };
    emit(program, "}(", 2);
    emit_text(program, "action");
    emit_text(program, actions[at[0] % MP_ARRAY_LENGTH(actions)]);
    emit_text(program, "addr");
    uint8_t number[3] = {'M', (uint8_t)(at[1] & 0xE0u), at[1] & 0x0Fu};
    emit(program, number, 3);
    emit_text(program, "size");
    number[1] = (uint8_t)(at[2] & 0xE0u);
    number[2] = at[2] & 0x07u;
    emit(program, number, 3);
    emit_text(program, "time_us");
    uint8_t small[2] = {'K', at[3]};
    emit(program, small, 2);
    if (at[3] % 3 == 0) {
        emit_text(program, "category");
        emit_text(program, at[3] % 2 ? "activation" : "unknown");
    }
    emit(program, "u", 1);
}

static void
read_as_program(const uint8_t *bytes, size_t length)
{
    program_t program = {NULL, 0, 0};
    emit(&program, "\x80\4}(", 4);
    const uint8_t *at = bytes, *end = bytes + length;
    for (; end - at >= 5; at += 5) {
        if (at[0] < 0x80) {
            emit_text(&program, words[at[0] % MP_ARRAY_LENGTH(words)]);
            at -= 4;
        }
        else if (at[0] < 0xC0) {
            emit_entry(&program, at + 1);
        }
        else if (at[0] < 0xF0) {
            static const char opcodes[] = "}](eut)Nu";
            emit(&program, &opcodes[at[0] % 9], 1);
            at -= 4;
        }
        else {
            uint8_t number[2] = {'K', at[1]};
            emit(&program, number, 2);
            at -= 3;
        }
    }
    read_bytes(program.bytes, program.length);
    free(program.bytes);
}

/* Traces that make sense, of whatever entries the bytes make. */
static void
read_as_trace(const uint8_t *bytes, size_t length)
{
    program_t program = {NULL, 0, 0};
    emit(&program, "\x80\4}(", 4);
    emit_text(&program, "device_traces");
    emit(&program, "](](", 4);
    for (size_t i = 0; i + 4 <= length; i += 4) {
        emit_entry(&program, bytes + i);
    }
    emit(&program, "eeu.", 4);
    read_bytes(program.bytes, program.length);
    free(program.bytes);
}

int
LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    read_bytes(bytes, length);
    read_as_program(bytes, length);
    read_as_trace(bytes, length);
    return 0;
}
