/* test_pickle.c - pickles of plain values: the writer, and the reader. */
#include "mem.h"
#include "mp_test.h"
#include "pickle.h"
#include "unpickle.h"

#include <stdlib.h>

/* ---- the writer ----------------------------------------------------------
 */

typedef struct {
    uint8_t bytes[1 << 16];
    size_t length;
} file_t;

static void
slurp(const char *path, file_t *out)
{
    FILE *file = fopen(path, "rb");
    MP_CHECK(file != NULL);
    out->length = fread(out->bytes, 1, sizeof(out->bytes), file);
    MP_CHECK(fclose(file) == 0);
}

typedef struct {
    mp_outfile_t *outfile;
    mp_pickle_t pickle;
    const char *path;
} made_t;

static made_t
begin(void)
{
    made_t made = {.path = mp_test_path("a.pickle")};
    int saved_errno;
    MP_CHECK(mp_outfile_open(made.path, false, &made.outfile, &saved_errno) ==
             MP_OK);
    mp_pickle_begin(&made.pickle, made.outfile);
    return made;
}

static void
end(made_t *made, file_t *out)
{
    int saved_errno;
    mp_pickle_end(&made->pickle);
    MP_CHECK(mp_outfile_close(made->outfile, MP_OK, &saved_errno) == MP_OK);
    slurp(made->path, out);
}

static void
check_bytes(const file_t *file, const char *expected, size_t length)
{
    MP_CHECK_EQ(file->length, length);
    MP_CHECK(memcmp(file->bytes, expected, length) == 0);
}

#define CHECK_BYTES(file, text) check_bytes(file, text, sizeof(text) - 1)

static void
test_pickle_ints_have_the_shortest_form(void)
{
    static const struct {
        int64_t value;
        const char *bytes;
        size_t length;
    } cases[] = {
        {0, "K\0", 2},
        {255, "K\xff", 2},
        {256, "M\0\1", 3},
        {65535, "M\xff\xff", 3},
        {65536, "J\0\0\1\0", 5},
        {-1, "J\xff\xff\xff\xff", 5},
        {INT32_MAX, "J\xff\xff\xff\x7f", 5},
        {INT32_MIN, "J\0\0\0\x80", 5},
        {(int64_t)INT32_MAX + 1, "\x8a\5\0\0\0\x80\0", 7},
        {(int64_t)INT32_MIN - 1, "\x8a\5\xff\xff\xff\x7f\xff", 7},
        {INT64_C(0x7FFFFFFFFF), "\x8a\5\xff\xff\xff\xff\x7f", 7},
        {INT64_C(0x8000000000), "\x8a\6\0\0\0\0\x80\0", 8},
        {INT64_MAX, "\x8a\x8\xff\xff\xff\xff\xff\xff\xff\x7f", 10},
        {INT64_MIN, "\x8a\x8\0\0\0\0\0\0\0\x80", 10},
    };
    for (size_t i = 0; i < MP_ARRAY_LENGTH(cases); i++) {
        made_t made = begin();
        mp_pickle_int(&made.pickle, cases[i].value);
        file_t file;
        end(&made, &file);
        MP_CHECK_EQ(file.length, cases[i].length + 3);
        MP_CHECK(memcmp(file.bytes, "\x80\4", 2) == 0);
        MP_CHECK(memcmp(file.bytes + 2, cases[i].bytes, cases[i].length) == 0);
        MP_CHECK(file.bytes[file.length - 1] == '.');
    }
}

static void
test_pickle_texts_are_utf8(void)
{
    static const struct {
        const char *text;
        size_t length;
        const char *written;
    } cases[] = {
        {"", 0, "\x8c\0"},
        {"plain", 5, "\x8c\5plain"},
        {"a\0b", 3, "\x8c\3a\0b"},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", 9,
         "\x8c\x9\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"x\xffy", 3, "\x8c\5x\xef\xbf\xbdy"},
        {"\xed\xa0\x80", 3, "\x8c\3\xef\xbf\xbd"}, /* as long as before */
        {"\xc0\x80", 2, "\x8c\6\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe2\x82", 2, "\x8c\3\xef\xbf\xbd"},
        {"\xf4\x90\x80\x80", 4,
         "\x8c\xc\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    };
    for (size_t i = 0; i < MP_ARRAY_LENGTH(cases); i++) {
        made_t made = begin();
        mp_pickle_text(&made.pickle, cases[i].text, cases[i].length);
        file_t file;
        end(&made, &file);
        size_t length = 2 + (unsigned char)cases[i].written[1];
        MP_CHECK_EQ(file.length, length + 3);
        MP_CHECK(memcmp(file.bytes + 2, cases[i].written, length) == 0);
    }
    char long_text[300];
    memset(long_text, 'x', sizeof(long_text));
    made_t made = begin();
    mp_pickle_text(&made.pickle, long_text, sizeof(long_text));
    file_t file;
    end(&made, &file);
    MP_CHECK(memcmp(file.bytes + 2, "X\x2c\1\0\0xxx", 8) == 0);
}

static void
test_pickle_batches_and_numbers(void)
{
    made_t made = begin();
    mp_pickle_items_t list, dict;
    mp_pickle_list(&made.pickle, &list);
    for (int i = 0; i < 2001; i++) {
        mp_pickle_item(&made.pickle, &list);
        mp_pickle_none(&made.pickle);
    }
    mp_pickle_close(&made.pickle, &list);
    file_t file;
    end(&made, &file);
    MP_CHECK_EQ(file.length, 2 + 1 + 2001 + 3 * 2 + 1);
    MP_CHECK(memcmp(file.bytes + 2, "](N", 3) == 0);
    MP_CHECK(memcmp(file.bytes + 4 + 1000, "e(N", 3) == 0);

    made = begin();
    mp_pickle_dict(&made.pickle, &dict);
    mp_pickle_item(&made.pickle, &dict);
    mp_pickle_text(&made.pickle, "k", 1);
    MP_CHECK_EQ(mp_pickle_keep(&made.pickle), 0);
    mp_pickle_int(&made.pickle, 1);
    mp_pickle_int(&made.pickle, 2);
    mp_pickle_pair(&made.pickle);
    mp_pickle_item(&made.pickle, &dict);
    mp_pickle_get(&made.pickle, 0);
    mp_pickle_bool(&made.pickle, true);
    mp_pickle_item(&made.pickle, &dict);
    mp_pickle_get(&made.pickle, 256);
    mp_pickle_bool(&made.pickle, false);
    mp_pickle_close(&made.pickle, &dict);
    end(&made, &file);
    CHECK_BYTES(&file, "\x80\4}(\x8c\1k\x94K\1K\2\x86h\0\x88j\0\1\0\0\x89u.");

    made = begin();
    mp_pickle_list(&made.pickle, &list);
    mp_pickle_close(&made.pickle, &list); /* empty: no batch at all */
    end(&made, &file);
    CHECK_BYTES(&file, "\x80\4].");
}

/* ---- the reader ----------------------------------------------------------
 */

static const char *const atoms[] = {"one", "two", "a longer one"};
static char error[300];

static mp_status_t
read_bytes(const char *bytes, size_t length, mp_unpickled_t **out)
{
    mp_unpickle_options_t options = {.atoms = atoms, .atom_count = 3};
    return mp_unpickle((const uint8_t *)bytes, length, &options, out, error,
                       sizeof(error));
}

#define READ(text, out) read_bytes(text, sizeof(text) - 1, out)

static void
test_pickle_reads_every_kind_of_value(void)
{
    static const char bytes[] =
        "\x80\5\x95\1\0\0\0\0\0\0\0" /* a frame whose length is a lie */
        "](NK\7M\0\1J\xff\xff\xff\xff\x8a\0\x8a\1\x80"
        "\x8a\x8\0\0\0\0\0\0\0\x80\x8a\x9\0\0\0\0\0\0\0\0\1\x88\x89"
        "G\x3f\xf8\0\0\0\0\0\0\x8c\3one\x94X\2\0\0\0hi)K\1\x85K\1K\2\x86"
        "NNN\x87(K\1K\2K\3K\4t}\x8c\3twoK\5sh\0e.";
    mp_unpickled_t *made;
    MP_CHECK_EQ(READ(bytes, &made), MP_OK);
    MP_CHECK_STR(error, "");
    MP_CHECK(mp_unpickled_is_whole(made));
    MP_CHECK_EQ(mp_unpickled_read(made), sizeof(bytes) - 1);
    mp_value_t list = mp_unpickled_root(made);
    MP_CHECK_EQ(mp_value_kind(made, list), MP_VALUE_LIST);
    MP_CHECK_EQ(mp_value_count(made, list), 20);
    static const mp_value_kind_t kinds[] = {
        MP_VALUE_NONE,  MP_VALUE_INT,   MP_VALUE_INT,    MP_VALUE_INT,
        MP_VALUE_INT,   MP_VALUE_INT,   MP_VALUE_INT,    MP_VALUE_INT,
        MP_VALUE_BOOL,  MP_VALUE_BOOL,  MP_VALUE_DOUBLE, MP_VALUE_TEXT,
        MP_VALUE_TEXT,  MP_VALUE_TUPLE, MP_VALUE_TUPLE,  MP_VALUE_TUPLE,
        MP_VALUE_TUPLE, MP_VALUE_TUPLE, MP_VALUE_DICT,   MP_VALUE_TEXT};
    static const int64_t ints[] = {-9,        7,         256, -1, 0, -128,
                                   INT64_MIN, INT64_MAX, 1,   0,  -9};
    for (size_t i = 0; i < 20; i++) {
        mp_value_t item = mp_value_item(made, list, i);
        MP_CHECK_EQ(mp_value_kind(made, item), kinds[i]);
        if (i < MP_ARRAY_LENGTH(ints)) {
            MP_CHECK_EQ(mp_value_int(made, item, -9), ints[i]);
        }
    }
    MP_CHECK_EQ(mp_value_atom(made, mp_value_item(made, list, 11)), 1);
    MP_CHECK_EQ(mp_value_atom(made, mp_value_item(made, list, 12)), 0);
    MP_CHECK(mp_value_item(made, list, 11) == mp_value_item(made, list, 19));
    static const size_t counts[] = {0, 1, 2, 3, 4, 1};
    for (size_t i = 0; i < 6; i++) {
        MP_CHECK_EQ(mp_value_count(made, mp_value_item(made, list, 13 + i)),
                    counts[i]);
    }
    mp_value_t dict = mp_value_item(made, list, 18);
    MP_CHECK_EQ(mp_value_int(made, mp_value_find(made, dict, 2), 0), 5);
    MP_CHECK(mp_value_find(made, dict, 1) == MP_NO_VALUE);
    MP_CHECK(mp_value_find(made, list, 1) == MP_NO_VALUE);
    const char *text;
    size_t length;
    MP_CHECK(!mp_value_text(made, dict, &text, &length));
    MP_CHECK(
        mp_value_text(made, mp_value_item(made, list, 12), &text, &length));
    MP_CHECK(length == 2 && memcmp(text, "hi", 2) == 0);
    mp_unpickled_free(made);
    mp_unpickled_free(NULL);
}

static void
test_pickle_atoms_are_whole_words(void)
{
    mp_unpickled_t *made;
    MP_CHECK_EQ(READ("\x80\4(\x8c\3one\x8c\4one\0\x8c\2on\x8c\5oneone"
                     "\x8c\xca longer onet.",
                     &made),
                MP_ERR_FORMAT); /* the last text is cut: nothing is whole */
    MP_CHECK_EQ(READ("\x80\4(\x8c\3one\x8c\4one\0\x8c\2on\x8c\6oneone\x8c\0"
                     "\x8c\x0c"
                     "a longer onet.",
                     &made),
                MP_OK);
    static const uint32_t expected[] = {1, 0, 0, 0, 0, 3};
    for (size_t i = 0; i < 6; i++) {
        mp_value_t item = mp_value_item(made, mp_unpickled_root(made), i);
        MP_CHECK_EQ(mp_value_atom(made, item), expected[i]);
    }
    mp_unpickled_free(made);
}

static void
test_pickle_refuses_what_could_run(void)
{
    static const struct {
        const char *bytes;
        size_t length;
        const char *word;
    } cases[] = {
        {"\x80\2cos\nsystem\n.", 14, "GLOBAL os.system"},
        {"\x80\4\x8c\2os\x8c\6system\x93.", 16, "STACK_GLOBAL"},
        {"\x80\4NR.", 5, "REDUCE"},
        {"\x80\4Nb.", 5, "BUILD"},
        {"\x80\4N)\x81.", 6, "NEWOBJ"},
        {"\x80\4(ios\nsystem\n.", 15, "INST"},
        {"\x80\4(o.", 5, "OBJ"},
        {"\x80\4NQ.", 5, "BINPERSID"},
        {"\x80\4\x82\1.", 5, "EXT1"},
        {"\x80\4"
         "C\1x.",
         6, "SHORT_BINBYTES"},
        {"\x80\5\x97.", 4, "NEXT_BUFFER"},
        {"\x80\4\x8f.", 4, "EMPTY_SET"},
        {"\x80\4N2.", 5, "DUP"},
    };
    for (size_t i = 0; i < MP_ARRAY_LENGTH(cases); i++) {
        mp_unpickled_t *made = NULL;
        MP_CHECK_EQ(read_bytes(cases[i].bytes, cases[i].length, &made),
                    MP_ERR_FORMAT);
        MP_CHECK(made == NULL);
        MP_CHECK(strstr(error, cases[i].word) != NULL);
        MP_CHECK(strstr(error, "refused") != NULL);
    }
    /* An endless name is cut, and odd bytes in it are not shown. */
    char bytes[5000] = "\x80\2(c\n\1\xff";
    memset(bytes + 7, 'x', sizeof(bytes) - 7);
    mp_unpickled_t *made;
    MP_CHECK_EQ(read_bytes(bytes, sizeof(bytes), &made), MP_ERR_FORMAT);
    MP_CHECK(strstr(error, " .??xxx") != NULL);
    MP_CHECK(strlen(error) < 250);
}

static void
test_pickle_keeps_what_precedes_damage(void)
{
    /* {"one": [1, [2, 3  -- and then it is cut */
    static const char bytes[] = "\x80\4}(\x8c\3one](K\1](K\2K\3\x8a\x8\0\0";
    for (size_t length = 0; length < sizeof(bytes) - 1; length++) {
        mp_unpickled_t *made;
        mp_status_t status = read_bytes(bytes, length, &made);
        MP_CHECK(error[0] != '\0');
        if (length < 3) {
            MP_CHECK_EQ(status, MP_ERR_FORMAT);
            continue;
        }
        MP_CHECK_EQ(status, MP_OK);
        MP_CHECK(!mp_unpickled_is_whole(made));
        mp_value_t dict = mp_unpickled_root(made);
        MP_CHECK_EQ(mp_value_kind(made, dict), MP_VALUE_DICT);
        mp_value_t list = mp_value_find(made, dict, 1);
        MP_CHECK_EQ(list != MP_NO_VALUE, length >= 10);
        if (length >= 19) {
            MP_CHECK(mp_value_is_cut(made, list));
            MP_CHECK_EQ(mp_value_count(made, list), 2);
            mp_value_t inner = mp_value_item(made, list, 1);
            MP_CHECK_EQ(mp_value_count(made, inner), 2);
            MP_CHECK(mp_value_is_cut(made, inner));
        }
        mp_unpickled_free(made);
    }
    /* Damage in the middle: what is there, and where. */
    mp_unpickled_t *made;
    MP_CHECK_EQ(READ("\x80\4](K\1h\7K\2e.", &made), MP_OK);
    MP_CHECK_EQ(mp_value_count(made, mp_unpickled_root(made)), 1);
    MP_CHECK_EQ(mp_unpickled_read(made), 6);
    MP_CHECK(strstr(error, "byte") != NULL);
    mp_unpickled_free(made);
}

static void
test_pickle_nonsense_is_damage(void)
{
    static const struct {
        const char *bytes;
        size_t length;
    } cases[] = {
        {"", 0},
        {"\x80", 1},
        {"\x80\4", 2},
        {"\x80\4.", 3},
        {"\x80\6N.", 4},
        {"N.", 2},
        {"\x80\4NN.", 5},
        {"\x80\4e.", 4},
        {"\x80\4u.", 4},
        {"\x80\4t.", 4},
        {"\x80\4\x86.", 4},
        {"\x80\4\x94.", 4},
        {"\x80\4h\0.", 5},
        {"\x80\4j\0\0\0\0.", 8},
        {"\x80\4Nr\xff\xff\xff\xff.", 9},
        {"\x80\4Na.", 5},
        {"\x80\4NNs.", 6},
        {"\x80\4(N.", 5},
        {"\x80\4N(Ne.", 7},
        {"\x80\4\xff", 3},
        {"\x80\4X\xff\xff\xff\xff", 7},
        {"\x80\4(a.", 5},
        {"\x80\4N(\x94.", 6},
    };
    for (size_t i = 0; i < MP_ARRAY_LENGTH(cases); i++) {
        mp_unpickled_t *made = NULL;
        size_t before = mp_mem_bytes();
        MP_CHECK_EQ(read_bytes(cases[i].bytes, cases[i].length, &made),
                    MP_ERR_FORMAT);
        MP_CHECK(made == NULL);
        MP_CHECK(error[0] != '\0');
        MP_CHECK_EQ(mp_mem_bytes(), before);
    }
}

static void
test_pickle_memory_is_a_multiple_of_the_bytes(void)
{
    enum {
        LENGTH = 400000
    };
    static const char *const bodies[] = {"]",   "}",      "N",  "]\x94", ")",
                                         "K\1", "\x8c\0", "](", "]h\0"};
    char *bytes = malloc(LENGTH);
    MP_CHECK(bytes != NULL);
    for (size_t i = 0; i < MP_ARRAY_LENGTH(bodies); i++) {
        size_t step = i == 6 ? 2 : strlen(bodies[i]);
        if (i == 8) {
            step = 3;
        }
        memcpy(bytes, "\x80\4]\x94", 4);
        for (size_t k = 4; k + step <= LENGTH; k += step) {
            memcpy(bytes + k, bodies[i], step);
        }
        mp_unpickled_t *made = NULL;
        size_t before = mp_mem_bytes();
        mp_status_t status = read_bytes(bytes, LENGTH, &made);
        if (status == MP_OK) {
            MP_CHECK(mp_mem_bytes() - before < (size_t)LENGTH * 100);
            mp_unpickled_free(made);
        }
        MP_CHECK_EQ(mp_mem_bytes(), before);
        mp_unpickle_options_t options = {.most_bytes = 70000};
        status = mp_unpickle((const uint8_t *)bytes, LENGTH, &options, &made,
                             error, sizeof(error));
        MP_CHECK(status == MP_ERR_FULL || status == MP_OK);
        if (status == MP_OK) { /* too deep before it was too much */
            mp_unpickled_free(made);
        }
        else {
            MP_CHECK(strstr(error, "70000 bytes") != NULL);
        }
        MP_CHECK_EQ(mp_mem_bytes(), before);
    }
    free(bytes);
}

static void
test_pickle_reader_survives_lack_of_memory(void)
{
    static const char bytes[] =
        "\x80\4](K\1}\x94(\x8c\3one\x8a\x8\0\0\0\0\0\0\0\x80u)K\1\x85"
        "\x8c\2hi\x94h\0e.";
    bool worked = false;
    for (long n = 1; !worked && n < 100; n++) {
        mp_unpickled_t *made = NULL;
        size_t before = mp_mem_bytes();
        mp_mem_fail_after(n);
        mp_status_t status = READ(bytes, &made);
        mp_mem_fail_after(0);
        worked = status == MP_OK;
        if (worked) {
            MP_CHECK(n > 6);
            mp_unpickled_free(made);
        }
        else {
            MP_CHECK_EQ(status, MP_ERR_NOMEM);
            MP_CHECK(made == NULL);
        }
        MP_CHECK_EQ(mp_mem_bytes(), before);
    }
    MP_CHECK(worked);
}

MP_TEST_SUITE(pickle, MP_TEST(test_pickle_ints_have_the_shortest_form),
              MP_TEST(test_pickle_texts_are_utf8),
              MP_TEST(test_pickle_batches_and_numbers),
              MP_TEST(test_pickle_reads_every_kind_of_value),
              MP_TEST(test_pickle_atoms_are_whole_words),
              MP_TEST(test_pickle_refuses_what_could_run),
              MP_TEST(test_pickle_keeps_what_precedes_damage),
              MP_TEST(test_pickle_nonsense_is_damage),
              MP_TEST(test_pickle_memory_is_a_multiple_of_the_bytes),
              MP_TEST(test_pickle_reader_survives_lack_of_memory))
