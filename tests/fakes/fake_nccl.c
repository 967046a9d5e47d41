/* fake_nccl.c - a library that takes memory in its own name.
 *
 * Compiled as libnccl.so.2 and under other names: what asks is told by the
 * file. */
#include <stddef.h>
#include <stdint.h>

typedef int (*call_t)(const char *call, const void *params, size_t bytes,
                      int result, uint64_t *out, uint64_t value,
                      uintptr_t context);

__attribute__((visibility("default"))) int
library_alloc(call_t call, uint64_t address, size_t bytes, uintptr_t context)
{
    uint64_t out = 0;
    struct {
        uint64_t *out;
        size_t bytes;
    } params = {&out, bytes};
    int told = call("cuMemAlloc_v2", &params, sizeof(params), 0, &out, address,
                    context);
    return told + (out == address ? 0 : 100); /* and no tail call */
}
