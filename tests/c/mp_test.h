/* mp_test.h - the C test harness: checks, suites, a scratch folder.
 *
 * Knows nothing about profiling.  How to write a test file,
 * tests/c/test_table.c:
 *
 *     #include "mp_test.h"
 *     #include "table.h"
 *
 *     static void
 *     test_table_forgets_what_was_taken(void)
 *     {
 *         ...
 *         MP_CHECK(mp_table_take(table, 0x1000) == 8);
 *     }
 *
 *     MP_TEST_SUITE(table,
 *                   MP_TEST(test_table_forgets_what_was_taken),
 *                   MP_TEST(test_table_grows))
 *
 * That is all: no other file is edited.  The suite carries the name of its
 * file (test_table.c -> table), one suite a file; tests/c/test_c.py fails
 * when a file has none.
 *
 * Every .c file of tests/c (test_*.c, and helpers such as fake_*.c that
 * define what a Python-only source would have provided) is linked with an
 * archive of every csrc file that is free of Python, into one plain binary.
 * Free of Python: it includes neither <Python.h> nor "edge.h" nor "state.h"
 * nor a header that includes <Python.h>.
 *
 * Each test runs in a child process of its own (main.c starts itself again),
 * so a test may leave process-wide state as it likes, a crash or a sanitizer
 * report is one failed test, and a failed check simply ends the process: in
 * helper functions and on any thread alike.  What a passing test leaves
 * allocated is reported by LeakSanitizer and fails it.
 *
 *     mp_tests                 run all
 *     mp_tests table log       run these suites (or tests, by name)
 *     mp_tests --list          one "suite.test" a line
 *     mp_tests --here NAME     run one test in this process (for a debugger)
 */
#ifndef MP_TEST_H
#define MP_TEST_H

#include <inttypes.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct mp_test {
    const char *name;
    void (*run)(void);
} mp_test_t;

/* One file's tests; main.c links them into a list, the suite owns itself. */
typedef struct mp_test_suite {
    const char *name;
    const mp_test_t *tests; /* ends with {NULL, NULL} */
    struct mp_test_suite *next;
} mp_test_suite_t;

void mp_test_register(mp_test_suite_t *suite);

/* Print the failure and end the process.  Safe on every thread. */
_Noreturn void mp_test_fail(const char *file, int line, const char *format,
                            ...) __attribute__((format(printf, 3, 4)));

/* A fresh folder for this test, made at the first call and removed with all
 * its files at the end of a passing test.  Never NULL. */
const char *mp_test_dir(void);

/* The path of NAME in mp_test_dir().  Owned by the harness; valid until the
 * end of the test.  Never NULL. */
const char *mp_test_path(const char *name);

/* End the test as failed unless CONDITION holds. */
#define MP_CHECK(condition)                                                   \
    do {                                                                      \
        if (!(condition)) {                                                   \
            mp_test_fail(__FILE__, __LINE__, "MP_CHECK(%s)", #condition);     \
        }                                                                     \
    } while (0)

/* The same for two integers; a failure shows both values. */
#define MP_CHECK_EQ(actual, expected)                                         \
    do {                                                                      \
        int64_t mp_actual_ = (int64_t)(actual);                               \
        int64_t mp_expected_ = (int64_t)(expected);                           \
        if (mp_actual_ != mp_expected_) {                                     \
            mp_test_fail(__FILE__, __LINE__,                                  \
                         "%s is %" PRId64 ", expected %" PRId64, #actual,     \
                         mp_actual_, mp_expected_);                           \
        }                                                                     \
    } while (0)

/* The same for two strings; NULL equals nothing. */
#define MP_CHECK_STR(actual, expected)                                        \
    do {                                                                      \
        const char *mp_actual_ = (actual);                                    \
        const char *mp_expected_ = (expected);                                \
        if (mp_actual_ == NULL || mp_expected_ == NULL ||                     \
            strcmp(mp_actual_, mp_expected_) != 0) {                          \
            mp_test_fail(__FILE__, __LINE__, "%s is \"%s\", expected \"%s\"", \
                         #actual, mp_actual_ == NULL ? "(null)" : mp_actual_, \
                         mp_expected_ == NULL ? "(null)" : mp_expected_);     \
        }                                                                     \
    } while (0)

#define MP_TEST(function)                                                     \
    {                                                                         \
#function, function                                                   \
    }

/* A constructor registers the suite, so that no list needs an edit. */
#define MP_TEST_SUITE(noun, ...)                                              \
    static const mp_test_t mp_tests_##noun[] = {__VA_ARGS__, {NULL, NULL}};   \
    static mp_test_suite_t mp_suite_##noun = {#noun, mp_tests_##noun, NULL};  \
    __attribute__((constructor)) static void mp_register_##noun(void)         \
    {                                                                         \
        mp_test_register(&mp_suite_##noun);                                   \
    }

#endif /* MP_TEST_H */
