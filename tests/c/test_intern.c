/* test_intern.c - the same thing, the same number; on every thread. */
#include "intern.h"
#include "mem.h"
#include "mp_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static mp_intern_t *
new_intern(void)
{
    mp_intern_t *intern = NULL;
    MP_CHECK(mp_intern_new(&intern) == MP_OK);
    MP_CHECK(intern != NULL);
    return intern;
}

static uint32_t
intern_text(mp_intern_t *intern, const char *text)
{
    return mp_intern_string(intern, text, strlen(text));
}

/* The text of ID, which must exist and end with a NUL. */
static const char *
text_of(const mp_intern_t *intern, uint32_t id)
{
    const char *text = NULL;
    size_t length = 0;
    MP_CHECK(mp_intern_text(intern, id, &text, &length));
    MP_CHECK_EQ(text[length], 0);
    return text;
}

static void
test_intern_gives_equal_texts_one_id(void)
{
    mp_intern_t *intern = new_intern();
    char copy[] = "aten::mm";
    uint32_t id = intern_text(intern, "aten::mm");
    MP_CHECK_EQ(id, 0);
    MP_CHECK_EQ(intern_text(intern, copy), id);
    MP_CHECK_EQ(intern_text(intern, "aten::add"), 1);
    copy[0] = 'X'; /* the text was copied */
    MP_CHECK_STR(text_of(intern, id), "aten::mm");
    MP_CHECK_EQ(mp_intern_strings(intern), 2);
    mp_intern_free(intern);
    mp_intern_free(NULL);
}

static void
test_intern_tells_texts_apart_by_every_byte(void)
{
    mp_intern_t *intern = new_intern();
    char text[65];
    memset(text, 'a', sizeof(text));
    uint32_t expected = 0;
    for (size_t length = 0; length <= 64; length++) {
        MP_CHECK_EQ(mp_intern_string(intern, text, length), expected++);
        for (size_t i = 0; i < length; i++) {
            text[i] = 'b';
            MP_CHECK_EQ(mp_intern_string(intern, text, length), expected++);
            text[i] = 'a';
        }
    }
    mp_intern_free(intern);
}

static void
test_intern_keeps_empty_long_and_binary_texts(void)
{
    mp_intern_t *intern = new_intern();
    uint32_t empty = mp_intern_string(intern, NULL, 0);
    MP_CHECK_EQ(mp_intern_string(intern, "", 0), empty);
    MP_CHECK_STR(text_of(intern, empty), "");

    uint32_t binary = mp_intern_string(intern, "a\0b", 3);
    MP_CHECK(mp_intern_string(intern, "a\0c", 3) != binary);
    MP_CHECK(mp_intern_string(intern, "a", 1) != binary);
    const char *text;
    size_t length;
    MP_CHECK(mp_intern_text(intern, binary, &text, &length));
    MP_CHECK_EQ(length, 3);
    MP_CHECK(memcmp(text, "a\0b", 4) == 0);

    size_t long_length = 1000000; /* longer than a chunk of texts */
    char *long_text = malloc(long_length);
    MP_CHECK(long_text != NULL);
    memset(long_text, 'x', long_length);
    uint32_t id = mp_intern_string(intern, long_text, long_length);
    MP_CHECK_EQ(mp_intern_string(intern, long_text, long_length), id);
    MP_CHECK(mp_intern_text(intern, id, &text, &length));
    MP_CHECK_EQ(length, long_length);
    MP_CHECK(memcmp(text, long_text, length) == 0);
    free(long_text);

    MP_CHECK_EQ(mp_intern_string(intern, "", SIZE_MAX), MP_NO_INDEX);
    mp_intern_free(intern);
}

static void
test_intern_frame_needs_strings_that_exist(void)
{
    mp_intern_t *intern = new_intern();
    uint32_t function = intern_text(intern, "forward");
    uint32_t file = intern_text(intern, "model.py");
    MP_CHECK_EQ(mp_intern_frame(intern, function, 2, 1), MP_NO_INDEX);
    MP_CHECK_EQ(mp_intern_frame(intern, MP_NO_INDEX, file, 1), MP_NO_INDEX);
    MP_CHECK_EQ(mp_intern_frames(intern), 0);

    uint32_t id = mp_intern_frame(intern, function, file, 12);
    MP_CHECK_EQ(id, 0);
    MP_CHECK_EQ(mp_intern_frame(intern, function, file, 12), id);
    MP_CHECK_EQ(mp_intern_frame(intern, function, file, 13), 1);
    MP_CHECK_EQ(mp_intern_frame(intern, file, function, 12), 2);
    mp_frame_t frame;
    MP_CHECK(mp_intern_get_frame(intern, id, &frame));
    MP_CHECK_EQ(frame.function, function);
    MP_CHECK_EQ(frame.file, file);
    MP_CHECK_EQ(frame.line, 12);
    mp_intern_free(intern);
}

static void
test_intern_stack_leads_outwards(void)
{
    mp_intern_t *intern = new_intern();
    uint32_t name = intern_text(intern, "f");
    uint32_t outer = mp_intern_frame(intern, name, name, 1);
    uint32_t inner = mp_intern_frame(intern, name, name, 2);
    MP_CHECK_EQ(mp_intern_stack(intern, MP_NO_INDEX, 2), MP_NO_INDEX);
    MP_CHECK_EQ(mp_intern_stack(intern, 0, outer), MP_NO_INDEX);

    uint32_t root = mp_intern_stack(intern, MP_NO_INDEX, outer);
    uint32_t leaf = mp_intern_stack(intern, root, inner);
    MP_CHECK_EQ(root, 0);
    MP_CHECK_EQ(leaf, 1);
    MP_CHECK_EQ(mp_intern_stack(intern, MP_NO_INDEX, inner), 2);
    MP_CHECK_EQ(mp_intern_stack(intern, root, inner), leaf);
    mp_stack_t stack;
    MP_CHECK(mp_intern_get_stack(intern, leaf, &stack));
    MP_CHECK_EQ(stack.frame, inner);
    MP_CHECK_EQ(stack.parent, root);
    MP_CHECK(mp_intern_get_stack(intern, stack.parent, &stack));
    MP_CHECK_EQ(stack.frame, outer);
    MP_CHECK_EQ(stack.parent, MP_NO_INDEX);
    mp_intern_free(intern);
}

static void
test_intern_knows_no_ids_beyond_the_count(void)
{
    mp_intern_t *intern = new_intern();
    const char *text;
    size_t length;
    mp_frame_t frame;
    mp_stack_t stack;
    static const uint32_t ids[] = {0, 1, 63, 64, MP_NO_INDEX - 1, MP_NO_INDEX};
    for (size_t i = 0; i < MP_ARRAY_LENGTH(ids); i++) {
        MP_CHECK(!mp_intern_text(intern, ids[i], &text, &length));
        MP_CHECK(!mp_intern_get_frame(intern, ids[i], &frame));
        MP_CHECK(!mp_intern_get_stack(intern, ids[i], &stack));
    }
    mp_intern_free(intern);
}

/* A chain of COUNT stacks, one below the other. */
static void
test_intern_grows_to_hundreds_of_thousands(void)
{
    enum {
        COUNT = 300000
    };
    mp_intern_t *intern = new_intern();
    uint32_t name = intern_text(intern, "f");
    uint32_t frame = mp_intern_frame(intern, name, name, 1);
    for (uint32_t pass = 0; pass < 2; pass++) {
        uint32_t parent = MP_NO_INDEX;
        for (uint32_t i = 0; i < COUNT; i++) {
            char text[32];
            int length = snprintf(text, sizeof(text), "text %u", i);
            MP_CHECK_EQ(mp_intern_string(intern, text, (size_t)length), i + 1);
            parent = mp_intern_stack(intern, parent, frame);
            MP_CHECK_EQ(parent, i);
        }
    }
    MP_CHECK_EQ(mp_intern_stacks(intern), COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        mp_stack_t stack;
        char text[32];
        snprintf(text, sizeof(text), "text %u", i);
        MP_CHECK(mp_intern_get_stack(intern, i, &stack));
        MP_CHECK_EQ(stack.parent, i == 0 ? MP_NO_INDEX : i - 1);
        MP_CHECK_STR(text_of(intern, i + 1), text);
    }
    mp_intern_free(intern);
}

static void
test_intern_counts_its_bytes(void)
{
    size_t before = mp_mem_bytes();
    mp_intern_t *intern = new_intern();
    for (uint32_t i = 0; i < 10000; i++) {
        char text[32];
        int length = snprintf(text, sizeof(text), "text %u", i);
        uint32_t id = mp_intern_string(intern, text, (size_t)length);
        MP_CHECK(mp_intern_frame(intern, id, id, i) != MP_NO_INDEX);
        MP_CHECK_EQ(mp_intern_bytes(intern), mp_mem_bytes() - before);
    }
    mp_intern_free(intern);
    MP_CHECK_EQ(mp_mem_bytes(), before);
}

/* --- threads ------------------------------------------------------------ */

enum {
    THREADS = 4,
    STACKS = 20000
};

typedef struct {
    mp_intern_t *intern;
    uint32_t start; /* where in the set this thread begins */
    uint32_t strings[STACKS];
    uint32_t frames[STACKS];
    uint32_t roots[STACKS];
    uint32_t leaves[STACKS];
} interner_t;

static void *
intern_everything(void *argument)
{
    interner_t *self = argument;
    for (uint32_t k = 0; k < STACKS; k++) {
        uint32_t i = (self->start + k) % STACKS;
        char text[32];
        int length = snprintf(text, sizeof(text), "function %u", i);
        uint32_t string = mp_intern_string(self->intern, text, (size_t)length);
        uint32_t frame = mp_intern_frame(self->intern, string, string, i);
        uint32_t root = mp_intern_stack(self->intern, MP_NO_INDEX, frame);
        uint32_t leaf = mp_intern_stack(self->intern, root, frame);
        self->strings[i] = string;
        self->frames[i] = frame;
        self->roots[i] = root;
        self->leaves[i] = leaf;

        /* What one thread got may be read at once. */
        mp_stack_t stack;
        MP_CHECK(mp_intern_get_stack(self->intern, leaf, &stack));
        MP_CHECK_EQ(stack.parent, root);
        MP_CHECK_EQ(stack.frame, frame);
        MP_CHECK_STR(text_of(self->intern, string), text);
    }
    return NULL;
}

static void
test_intern_gives_threads_the_same_ids(void)
{
    mp_intern_t *intern = new_intern();
    interner_t *interners = calloc(THREADS, sizeof(*interners));
    MP_CHECK(interners != NULL);
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        interners[i].intern = intern;
        /* Two that race for every record and two that come to it late. */
        interners[i].start = (i / 2) * (STACKS / 2);
        MP_CHECK(pthread_create(&threads[i], NULL, intern_everything,
                                &interners[i]) == 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        MP_CHECK(pthread_join(threads[i], NULL) == 0);
    }
    MP_CHECK_EQ(mp_intern_strings(intern), STACKS);
    MP_CHECK_EQ(mp_intern_frames(intern), STACKS);
    MP_CHECK_EQ(mp_intern_stacks(intern), 2 * STACKS);
    for (uint32_t i = 1; i < THREADS; i++) {
        for (uint32_t k = 0; k < STACKS; k++) {
            MP_CHECK_EQ(interners[i].strings[k], interners[0].strings[k]);
            MP_CHECK_EQ(interners[i].frames[k], interners[0].frames[k]);
            MP_CHECK_EQ(interners[i].roots[k], interners[0].roots[k]);
            MP_CHECK_EQ(interners[i].leaves[k], interners[0].leaves[k]);
        }
    }
    free(interners);
    mp_intern_free(intern);
}

typedef struct {
    mp_intern_t *intern;
    atomic_bool done;
} watched_t;

/* Reads everything below the count while others add. */
static void *
read_everything(void *argument)
{
    watched_t *watched = argument;
    bool last = false;
    while (!last) {
        last = atomic_load(&watched->done);
        uint32_t count = mp_intern_stacks(watched->intern);
        for (uint32_t id = count > 500 ? count - 500 : 0; id < count; id++) {
            mp_stack_t stack;
            mp_frame_t frame;
            MP_CHECK(mp_intern_get_stack(watched->intern, id, &stack));
            MP_CHECK(stack.parent == MP_NO_INDEX || stack.parent < id);
            MP_CHECK(
                mp_intern_get_frame(watched->intern, stack.frame, &frame));
            (void)text_of(watched->intern, frame.function);
        }
    }
    return NULL;
}

static void
test_intern_reads_while_others_add(void)
{
    watched_t watched = {.intern = new_intern()};
    interner_t *interners = calloc(2, sizeof(*interners));
    MP_CHECK(interners != NULL);
    pthread_t writers[2];
    pthread_t reader;
    MP_CHECK(pthread_create(&reader, NULL, read_everything, &watched) == 0);
    for (uint32_t i = 0; i < 2; i++) {
        interners[i].intern = watched.intern;
        interners[i].start = i * (STACKS / 2);
        MP_CHECK(pthread_create(&writers[i], NULL, intern_everything,
                                &interners[i]) == 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        MP_CHECK(pthread_join(writers[i], NULL) == 0);
    }
    atomic_store(&watched.done, true);
    MP_CHECK(pthread_join(reader, NULL) == 0);
    MP_CHECK_EQ(mp_intern_stacks(watched.intern), 2 * STACKS);
    free(interners);
    mp_intern_free(watched.intern);
}

static void
test_intern_works_on_in_a_forked_child(void)
{
    mp_intern_t *intern = new_intern();
    uint32_t id = intern_text(intern, "before");
    pid_t child = fork();
    MP_CHECK(child >= 0);
    if (child == 0) {
        mp_intern_reset_lock(intern);
        bool same = intern_text(intern, "before") == id;
        bool next = intern_text(intern, "after") == id + 1;
        _exit(same && next ? 0 : 1);
    }
    int status = -1;
    MP_CHECK(waitpid(child, &status, 0) == child);
    MP_CHECK_EQ(status, 0);
    mp_intern_free(intern);
}

/* --- want of memory ----------------------------------------------------- */

/* Ids stay without gaps: what failed is there at the next attempt and then
 * has the id it would have had. */
static void
test_intern_survives_every_failed_allocation(void)
{
    enum {
        COUNT = 6000
    };
    bool failed = true;
    for (long n = 1; failed; n++) {
        failed = false;
        mp_mem_fail_after(n);
        mp_intern_t *intern = NULL;
        if (mp_intern_new(&intern) != MP_OK) {
            failed = true;
            MP_CHECK(intern == NULL);
            MP_CHECK_EQ(mp_mem_bytes(), 0);
            intern = new_intern();
        }
        uint32_t parent = MP_NO_INDEX;
        for (uint32_t i = 0; i < COUNT; i++) {
            char text[64];
            int length = snprintf(text, sizeof(text),
                                  "a text so long that chunks fill up %u", i);
            uint32_t string;
            while ((string = mp_intern_string(intern, text, (size_t)length)) ==
                   MP_NO_INDEX) {
                MP_CHECK(!failed);
                failed = true;
                MP_CHECK_EQ(mp_intern_strings(intern), i);
            }
            uint32_t frame;
            while ((frame = mp_intern_frame(intern, string, string, i)) ==
                   MP_NO_INDEX) {
                MP_CHECK(!failed);
                failed = true;
                MP_CHECK_EQ(mp_intern_frames(intern), i);
            }
            uint32_t stack;
            while ((stack = mp_intern_stack(intern, parent, frame)) ==
                   MP_NO_INDEX) {
                MP_CHECK(!failed);
                failed = true;
                MP_CHECK_EQ(mp_intern_stacks(intern), i);
            }
            MP_CHECK_EQ(string, i);
            MP_CHECK_EQ(frame, i);
            MP_CHECK_EQ(stack, i);
            MP_CHECK_STR(text_of(intern, i), text);
            parent = stack;
        }
        mp_mem_fail_after(0);
        MP_CHECK_EQ(mp_intern_bytes(intern), mp_mem_bytes());
        mp_intern_free(intern);
        MP_CHECK_EQ(mp_mem_bytes(), 0);
        MP_CHECK(failed || n > 40); /* it did grow under failures */
    }
}

MP_TEST_SUITE(intern, MP_TEST(test_intern_gives_equal_texts_one_id),
              MP_TEST(test_intern_tells_texts_apart_by_every_byte),
              MP_TEST(test_intern_keeps_empty_long_and_binary_texts),
              MP_TEST(test_intern_frame_needs_strings_that_exist),
              MP_TEST(test_intern_stack_leads_outwards),
              MP_TEST(test_intern_knows_no_ids_beyond_the_count),
              MP_TEST(test_intern_grows_to_hundreds_of_thousands),
              MP_TEST(test_intern_counts_its_bytes),
              MP_TEST(test_intern_gives_threads_the_same_ids),
              MP_TEST(test_intern_reads_while_others_add),
              MP_TEST(test_intern_works_on_in_a_forked_child),
              MP_TEST(test_intern_survives_every_failed_allocation))
