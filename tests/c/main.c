/* main.c - runs the C tests: all, some, or one in this process.
 *
 * mp_test.h is the manual.  Knows nothing about profiling. */
#include "mp_test.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

/* A test that hangs is ended after this many seconds. */
#define TEST_LIMIT_S 120

static mp_test_suite_t *suites; /* sorted by name; filled by constructors */

static char temp_dir[4096];
static char *temp_paths[256];
static size_t temp_path_count;

void
mp_test_register(mp_test_suite_t *suite)
{
    mp_test_suite_t **link = &suites;
    while (*link != NULL && strcmp((*link)->name, suite->name) < 0) {
        link = &(*link)->next;
    }
    suite->next = *link;
    *link = suite;
}

void
mp_test_fail(const char *file, int line, const char *format, ...)
{
    char message[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof(message), format, args);
    va_end(args);
    fprintf(stderr, "%s:%d: %s\n", file, line, message);
    fflush(NULL);
    _exit(1); /* no leak report: a failed check leaves things behind */
}

const char *
mp_test_dir(void)
{
    if (temp_dir[0] == '\0') {
        const char *base = getenv("TMPDIR");
        snprintf(temp_dir, sizeof(temp_dir), "%s/mp_test_XXXXXX",
                 base != NULL && base[0] != '\0' ? base : "/tmp");
        if (mkdtemp(temp_dir) == NULL) {
            mp_test_fail(__FILE__, __LINE__, "mkdtemp: %s", strerror(errno));
        }
    }
    return temp_dir;
}

const char *
mp_test_path(const char *name)
{
    const char *dir = mp_test_dir();
    size_t capacity = sizeof(temp_paths) / sizeof(temp_paths[0]);
    size_t size = strlen(dir) + strlen(name) + 2;
    char *path = temp_path_count < capacity ? malloc(size) : NULL;
    if (path == NULL) {
        mp_test_fail(__FILE__, __LINE__, "too many paths, or no memory");
    }
    snprintf(path, size, "%s/%s", dir, name);
    temp_paths[temp_path_count++] = path;
    return path;
}

static void
remove_temp_dir(void)
{
    for (size_t i = 0; i < temp_path_count; i++) {
        free(temp_paths[i]);
    }
    if (temp_dir[0] == '\0') {
        return;
    }
    DIR *dir = opendir(temp_dir);
    if (dir != NULL) {
        struct dirent *entry;
        while ((entry = readdir(dir)) != NULL) {
            (void)unlinkat(dirfd(dir), entry->d_name, 0);
        }
        closedir(dir);
    }
    (void)rmdir(temp_dir);
}

/* NAME is "suite", "test" or "suite.test". */
static bool
matches(const char *name, const mp_test_suite_t *suite, const mp_test_t *test)
{
    size_t length = strlen(suite->name);
    return strcmp(name, suite->name) == 0 || strcmp(name, test->name) == 0 ||
           (strncmp(name, suite->name, length) == 0 && name[length] == '.' &&
            strcmp(name + length + 1, test->name) == 0);
}

static int
list_tests(void)
{
    for (const mp_test_suite_t *suite = suites; suite; suite = suite->next) {
        for (const mp_test_t *test = suite->tests; test->name; test++) {
            printf("%s.%s\n", suite->name, test->name);
        }
    }
    return 0;
}

static int
run_here(const char *name)
{
    for (const mp_test_suite_t *suite = suites; suite; suite = suite->next) {
        for (const mp_test_t *test = suite->tests; test->name; test++) {
            if (matches(name, suite, test)) {
                alarm(TEST_LIMIT_S);
                test->run();
                remove_temp_dir();
                return 0; /* LeakSanitizer has its say after this */
            }
        }
    }
    fprintf(stderr, "no test is named %s\n", name);
    return 2;
}

/* Run one test in a new process of this program; true: it passed. */
static bool
run_in_child(const char *program, const mp_test_suite_t *suite,
             const mp_test_t *test)
{
    char full_name[512];
    snprintf(full_name, sizeof(full_name), "%s.%s", suite->name, test->name);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        execl("/proc/self/exe", program, "--here", full_name, (char *)NULL);
        execl(program, program, "--here", full_name, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (child > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        printf("ok     %s\n", full_name);
        return true;
    }
    if (child > 0 && WIFSIGNALED(status)) {
        bool late = WTERMSIG(status) == SIGALRM;
        printf("FAILED %s (%s)\n", full_name,
               late ? "ran past its limit" : strsignal(WTERMSIG(status)));
    }
    else {
        printf("FAILED %s (exit status %d)\n", full_name,
               child > 0 ? WEXITSTATUS(status) : -1);
    }
    return false;
}

int
main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        return list_tests();
    }
    if (argc == 3 && strcmp(argv[1], "--here") == 0) {
        return run_here(argv[2]);
    }
    int passed = 0;
    int failed = 0;
    for (const mp_test_suite_t *suite = suites; suite; suite = suite->next) {
        for (const mp_test_t *test = suite->tests; test->name; test++) {
            bool wanted = argc == 1;
            for (int i = 1; i < argc && !wanted; i++) {
                wanted = matches(argv[i], suite, test);
            }
            if (wanted && run_in_child(argv[0], suite, test)) {
                passed++;
            }
            else if (wanted) {
                failed++;
            }
        }
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0 || passed == 0;
}
