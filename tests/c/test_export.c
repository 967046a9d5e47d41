/* test_export.c - files of random events: whole or none, whatever fails. */
#include "category.h"
#include "export_chrome.h"
#include "export_timeline.h"
#include "mem.h"
#include "mp_test.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    EVENTS = 800,
    BLOCKS = 64
};

static mp_event_t events[EVENTS];
static mp_intern_t *intern;
static mp_tracker_t *tracker;
static mp_export_t source;
static mp_span_t steps[4], phases[8];
static uint32_t state = 12345;
static const char *out_path;

static uint32_t
random_below(uint32_t bound)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % bound;
}

/* Anything at all: begins without ends, frees without births, devices and
 * names that are not there. */
static void
make_events(bool sane)
{
    static const uint8_t kinds[] = {
        MP_EVENT_ALLOC,
        MP_EVENT_ALLOC,
        MP_EVENT_ALLOC,
        MP_EVENT_FREE_REQUESTED,
        MP_EVENT_FREE_COMPLETED,
        MP_EVENT_FREE_COMPLETED,
        MP_EVENT_SEGMENT_ALLOC,
        MP_EVENT_SEGMENT_FREE,
        MP_EVENT_OOM,
        MP_EVENT_OP_BEGIN,
        MP_EVENT_OP_END,
        MP_EVENT_MODULE_BEGIN,
        MP_EVENT_MODULE_END,
        MP_EVENT_REGION_BEGIN,
        MP_EVENT_REGION_END,
        MP_EVENT_STEP,
        MP_EVENT_SEED_BLOCK,
        MP_EVENT_SEED_SEGMENT,
    };
    int64_t now = 1000;
    for (size_t i = 0; i < EVENTS; i++) {
        now += random_below(3000);
        events[i] = (mp_event_t){
            .kind = kinds[random_below(MP_ARRAY_LENGTH(kinds))],
            .device = (int16_t)((int)random_below(3) - 1),
            .addr = (random_below(BLOCKS) + 1) * UINT64_C(2097152),
            .size =
                sane ? random_below(2097152) : UINT64_MAX - random_below(9),
            .time_ns = sane ? now : (int64_t)random_below(UINT32_MAX),
            .thread = random_below(4),
            .op = random_below(sane ? 8 : 99),
            .module = random_below(sane ? 8 : 99),
            .stack = MP_NO_INDEX,
            .phase = (uint8_t)random_below(sane ? 4 : 255),
        };
    }
}

static void
begin(bool sane)
{
    static const char *const names[] = {
        "a",     "quote\"",       "nul\x01",
        "\xff",  "\xed\xa0\x80",  "emoji \xf0\x9f\x98\x80",
        "\\end", "ProfilerStep#x"};
    out_path = out_path == NULL ? mp_test_path("out") : out_path;
    MP_CHECK(mp_intern_new(&intern) == MP_OK);
    for (size_t i = 0; i < MP_ARRAY_LENGTH(names); i++) {
        (void)mp_intern_string(intern, names[i], strlen(names[i]));
    }
    make_events(sane);
    mp_tracker_options_t options = {.session_id = 1, .keep_dead = true};
    MP_CHECK(mp_tracker_new(&options, &tracker) == MP_OK);
    for (size_t i = 0; i < EVENTS; i++) {
        (void)mp_tracker_apply(tracker, &events[i]);
    }
    size_t count;
    mp_allocation_t *lives = mp_tracker_allocations_mutable(tracker, &count);
    mp_category_assign(lives, count, intern);
    source = (mp_export_t){.events = events,
                           .event_count = EVENTS,
                           .intern = intern,
                           .start_ns = 1000,
                           .start_wall_ns = 1700000000000000000};
    source.lives = mp_tracker_allocations(tracker, &source.life_count);
    source.device_count =
        mp_tracker_devices(tracker, source.devices, MP_EXPORT_DEVICES);
    for (int64_t i = 0; i < 8; i++) {
        int64_t first = i * EVENTS / 8, last = (i + 1) * EVENTS / 8 - 1;
        phases[i] = (mp_span_t){i, events[first].time_ns, events[last].time_ns,
                                first, last};
        if (i % 2 == 0) {
            steps[i / 2] = phases[i];
        }
    }
}

static void
end(void)
{
    mp_tracker_free(tracker);
    mp_intern_free(intern);
}

static int
files_here(void)
{
    DIR *folder = opendir(mp_test_dir());
    MP_CHECK(folder != NULL);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        count += entry->d_name[0] != '.';
    }
    closedir(folder);
    return count;
}

/* Export number WHICH of those there are. */
enum {
    EXPORTS = 6
};

static mp_status_t export(int which, uint64_t max_bytes, int *saved_errno)
{
    const char *path = out_path;
    if (which < 3) {
        return mp_export_timeline(&source, (int16_t)(which - 1), which == 2,
                                  path, which > 0, saved_errno);
    }
    static const char *const libraries[] = {"/lib/"};
    mp_chrome_options_t options = {
        .head = "{\"traceEvents\":[",
        .tail = "]}",
        .head_length = 16,
        .tail_length = 2,
        .host = which != 5,
        .memory = true,
        .full = which == 4,
        .stacked = which == 4,
        .pid = 77,
        .pid_name = "python",
        .base_ns = 1700000000000000000,
        .max_bytes = max_bytes,
        .steps = {steps, 4},
        .phases = {phases, 8},
        .libraries = libraries,
        .library_count = 1,
    };
    mp_chrome_result_t result;
    return mp_export_chrome(&source, &options, path, which == 3, &result,
                            saved_errno);
}

/* A text has brackets that match outside of strings; crude, but enough to
 * see a torn file.  tests/unit reads the files for good. */
static void
check_brackets(const char *path)
{
    FILE *file = fopen(path, "rb");
    MP_CHECK(file != NULL);
    int depth = 0, character;
    bool inside = false;
    while ((character = fgetc(file)) != EOF) {
        MP_CHECK(character == '\n' || (character >= 0x20 && character < 0x7f));
        if (inside) {
            if (character == '\\') {
                (void)fgetc(file);
            }
            inside = character != '"';
        }
        else {
            inside = character == '"';
            depth += character == '{' || character == '[';
            depth -= character == '}' || character == ']';
            MP_CHECK(depth >= 0);
        }
    }
    MP_CHECK_EQ(depth, 0);
    MP_CHECK(!inside);
    fclose(file);
}

static void
test_export_random_and_damaged_events(void)
{
    for (int round = 0; round < 4; round++) {
        begin(round % 2 == 0);
        for (int which = 0; which < EXPORTS; which++) {
            int saved_errno = -1;
            MP_CHECK_EQ(export(which, 0, &saved_errno), MP_OK);
            if (which == 0 || which > 3) {
                check_brackets(out_path);
            }
        }
        end();
    }
    MP_CHECK_EQ(files_here(), 1);
}

static void
test_export_out_of_memory_leaves_nothing(void)
{
    begin(true);
    size_t held = mp_mem_bytes();
    for (int which = 0; which < EXPORTS; which++) {
        int failed = 0;
        for (long n = 1; n < 80; n++) {
            int saved_errno = -1;
            mp_mem_fail_after(n);
            mp_status_t status = export(which, 0, &saved_errno);
            mp_mem_fail_after(0);
            /* What only a helping thread lacked, others did. */
            MP_CHECK(status == MP_OK || status == MP_ERR_NOMEM);
            MP_CHECK_EQ(files_here(), status == MP_OK);
            MP_CHECK_EQ(mp_mem_bytes(), held);
            (void)unlink(out_path);
            failed += status != MP_OK;
        }
        MP_CHECK(failed >= 5);
    }
    end();
}

static void
test_export_full_disk_leaves_nothing(void)
{
    begin(true);
    struct rlimit limit = {300, 300};
    MP_CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    for (int which = 0; which < EXPORTS; which++) {
        int saved_errno = -1;
        MP_CHECK_EQ(export(which, 0, &saved_errno), MP_ERR_IO);
        MP_CHECK_EQ(saved_errno, EFBIG);
        MP_CHECK_EQ(files_here(), 0);
    }
    end();
}

static void
test_export_too_large_is_refused(void)
{
    begin(true);
    int saved_errno = -1;
    MP_CHECK_EQ(export(4, 5000, &saved_errno), MP_ERR_FULL);
    MP_CHECK_EQ(files_here(), 0);
    MP_CHECK_EQ(export(4, 1 << 30, &saved_errno), MP_OK);
    end();
}

/* Of a device that was not seen, and of no events at all. */
static void
test_export_nothing(void)
{
    begin(true);
    int saved_errno = -1;
    const char *path = out_path;
    char text[64] = {0};
    for (int raw = 0; raw < 2; raw++) {
        MP_CHECK_EQ(mp_export_timeline(&source, INT16_MAX, raw, path, false,
                                       &saved_errno),
                    MP_OK);
        FILE *file = fopen(path, "rb");
        MP_CHECK(file != NULL);
        size_t length = fread(text, 1, sizeof(text) - 1, file);
        fclose(file);
        text[length] = '\0';
        MP_CHECK_STR(text, raw ? "[]" : "[[],\n[]]");
    }
    source.event_count = source.life_count = source.device_count = 0;
    for (int which = 0; which < 3; which++) {
        MP_CHECK_EQ(export(which, 0, &saved_errno), MP_OK);
    }
    end();
}

MP_TEST_SUITE(export, MP_TEST(test_export_random_and_damaged_events),
              MP_TEST(test_export_out_of_memory_leaves_nothing),
              MP_TEST(test_export_full_disk_leaves_nothing),
              MP_TEST(test_export_too_large_is_refused),
              MP_TEST(test_export_nothing))
