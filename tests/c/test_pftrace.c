/* test_pftrace.c - a small trace, byte for byte, and every failure. */
#include "mem.h"
#include "mp_test.h"
#include "pftrace.h"

#include <errno.h>
#include <stdlib.h>

static const mp_pftrace_text_t texts[] = {{"t", 1}, {"e", 1}, {"f", 1}};
static const mp_pftrace_track_t tracks[] = {
    {.uuid = 5, .name = 0, .description = MP_NO_INDEX, .kind = 0},
    {.uuid = 6,
     .parent = 5,
     .name = 1,
     .description = MP_NO_INDEX,
     .rank = 2,
     .kind = MP_PFTRACE_SLICES},
};
static const mp_pftrace_frame_t frames[] = {
    {.function = 2, .file = 0, .line = 9}};
static const int64_t offsets[] = {0, 1};
static const uint32_t stack_frames[] = {0};
static const mp_pftrace_arg_t args[] = {
    {.number = -1, .name = 1, .text = MP_NO_INDEX}};
static const mp_pftrace_event_t events[] = {
    {.time_ns = 3,
     .weight = 8,
     .track = 1,
     .name = 1,
     .category = 0,
     .args_count = 1,
     .kind = MP_PFTRACE_BEGIN},
    {.time_ns = 4,
     .track = 1,
     .name = MP_NO_INDEX,
     .category = MP_NO_INDEX,
     .stack = MP_NO_INDEX,
     .kind = MP_PFTRACE_END},
};

static mp_pftrace_t
small(void)
{
    return (mp_pftrace_t){
        .texts = texts,
        .texts_count = 3,
        .tracks = tracks,
        .tracks_count = 2,
        .events = events,
        .events_count = 2,
        .args = args,
        .args_count = 1,
        .frames = frames,
        .frames_count = 1,
        .stack_offsets = offsets,
        .stack_frames = stack_frames,
        .stacks_count = 1,
        .stack_frames_count = 1,
    };
}

static void
test_pftrace_is_what_perfetto_reads(void)
{
    mp_pftrace_t trace = small();
    const char *path = mp_test_path("a.pftrace");
    int saved_errno;
    MP_CHECK(mp_pftrace_check(&trace));
    MP_CHECK(mp_pftrace_write(&trace, path, &saved_errno) == MP_OK);
    static const unsigned char expected[] = {
        /* packet: track 5 "t", its children by rank; sequence 1, flags 3 */
        0x0a, 0x0e, 0xe2, 0x03, 0x07, 0x08, 5, 0x12, 1, 't', 0x58, 3, 0x50, 1,
        0x68, 3,
        /* packet: track 6 "e" in 5, rank 2 */
        0x0a, 0x10, 0xe2, 0x03, 0x09, 0x08, 6, 0x12, 1, 'e', 0x28, 5, 0x60, 2,
        0x50, 1, 0x68, 2,
        /* packet: time 3; begin on 6, category 1, name 2, an argument -1 */
        0x0a, 0x62, 0x40, 3, 0x5a, 0x24, 0x48, 1, 0x58, 6, 0x18, 1, 0x50, 2,
        0x22, 0x0d, 0x08, 2, 0x20, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
        0xff, 0xff, 1,
        /* ... a stack of weight 8 */
        0xc0, 0x03, 1, 0xc9, 0x03, 0, 0, 0, 0, 0, 0, 0x20, 0x40,
        /* ... and what all that means */
        0x62, 0x34, 0x0a, 5, 0x08, 1, 0x12, 1, 't', 0x12, 5, 0x08, 2, 0x12, 1,
        'e', 0x1a, 5, 0x08, 2, 0x12, 1, 'e', 0x2a, 5, 0x08, 3, 0x12, 1, 'f',
        0x92, 0x01, 5, 0x08, 1, 0x12, 1, 't', 0x32, 8, 0x08, 1, 0x10, 3, 0x28,
        1, 0x30, 9, 0x3a, 4, 0x08, 1, 0x10, 1, 0x50, 1, 0x68, 2,
        /* packet: time 4; end on 6 */
        0x0a, 0x0c, 0x40, 4, 0x5a, 4, 0x48, 2, 0x58, 6, 0x50, 1, 0x68, 2};
    unsigned char found[sizeof(expected) + 1];
    FILE *file = fopen(path, "rb");
    MP_CHECK(file != NULL);
    size_t length = fread(found, 1, sizeof(found), file);
    (void)fclose(file);
    for (size_t i = 0; i < length && i < sizeof(expected); i++) {
        if (found[i] != expected[i]) {
            mp_test_fail(__FILE__, __LINE__, "byte %zu: %02x, not %02x", i,
                         found[i], expected[i]);
        }
    }
    MP_CHECK_EQ(length, sizeof(expected));
}

static void
test_pftrace_says_why_it_cannot_write(void)
{
    mp_pftrace_t trace = small();
    int saved_errno;
    MP_CHECK(mp_pftrace_write(&trace, mp_test_path("none/a"), &saved_errno) ==
             MP_ERR_IO);
    MP_CHECK_EQ(saved_errno, ENOENT);
    MP_CHECK(mp_pftrace_write(&trace, "/dev/full", &saved_errno) == MP_ERR_IO);
    MP_CHECK_EQ(saved_errno, ENOSPC);
}

static void
test_pftrace_survives_every_failed_allocation(void)
{
    mp_pftrace_t trace = small();
    int saved_errno;
    bool done = false;
    for (long n = 1; !done && n < 50; n++) {
        mp_mem_fail_after(n);
        mp_status_t status =
            mp_pftrace_write(&trace, mp_test_path("a"), &saved_errno);
        mp_mem_fail_after(0);
        MP_CHECK(status == MP_OK || status == MP_ERR_NOMEM);
        done = status == MP_OK;
        MP_CHECK(!done || n > 3);
        MP_CHECK_EQ(mp_mem_bytes(), 0);
    }
    MP_CHECK(done);
}

static void
test_pftrace_check_finds_rows_that_are_not_there(void)
{
    mp_pftrace_t trace = small();
    trace.frames_count = 0;
    MP_CHECK(!mp_pftrace_check(&trace));
    trace = small();
    trace.texts_count = 2;
    MP_CHECK(!mp_pftrace_check(&trace));
    trace = small();
    trace.tracks_count = 1;
    MP_CHECK(!mp_pftrace_check(&trace));
    trace = small();
    trace.args_count = 0;
    MP_CHECK(!mp_pftrace_check(&trace));
    trace = small();
    trace.stacks_count = 0;
    MP_CHECK(!mp_pftrace_check(&trace));
    trace = small();
    trace.stack_frames_count = 0;
    MP_CHECK(!mp_pftrace_check(&trace));
}

MP_TEST_SUITE(pftrace, MP_TEST(test_pftrace_is_what_perfetto_reads),
              MP_TEST(test_pftrace_says_why_it_cannot_write),
              MP_TEST(test_pftrace_survives_every_failed_allocation),
              MP_TEST(test_pftrace_check_finds_rows_that_are_not_there))
