/* fuzz.h - what all fuzzers share: the entry, a check, and a main program
 * without libFuzzer (-DMP_FUZZ_MAIN), which runs the files given.
 *
 * Each fuzzer is one source file and includes this once. */
#ifndef MP_FUZZ_H
#define MP_FUZZ_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static inline void
require(bool holds)
{
    if (!holds) {
        abort();
    }
}

#ifdef MP_FUZZ_MAIN
static uint8_t *
whole_file(FILE *file, size_t *length)
{
    uint8_t *bytes = NULL;
    size_t got;
    *length = 0;
    do {
        bytes = realloc(bytes, *length + 4096);
        require(bytes != NULL);
        got = fread(bytes + *length, 1, 4096, file);
        *length += got;
    } while (got != 0);
    return bytes;
}

int
main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (file == NULL) {
            perror(argv[i]);
            return 1;
        }
        size_t length;
        uint8_t *bytes = whole_file(file, &length);
        fclose(file);
        LLVMFuzzerTestOneInput(bytes, length);
        free(bytes);
    }
    return 0;
}
#endif

#endif
