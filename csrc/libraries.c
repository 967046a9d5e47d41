/* libraries.c - which library asked: from return addresses to a name. */
#include "libraries.h"

#include "mem.h"
#include "native_stack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES 128

/* ---- names -------------------------------------------------------------- */

/* A file's name begins so: what it goes by.  NULL: never the one that asked.
 */
static const struct {
    const char *begins;
    const char *name;
} known_files[] = {
    {"libcuda.so", NULL},        {"libcudart", NULL},
    {"libcupti", NULL},          {"libnvidia-", NULL},
    {"libnccl", "NCCL"},         {"libcublas", "cuBLAS"},
    {"libcudnn", "cuDNN"},       {"libcusparse", "cuSPARSE"},
    {"libcusolver", "cuSOLVER"}, {"libcufft", "cuFFT"},
    {"libcurand", "cuRAND"},     {"libnvshmem", "NVSHMEM"},
    {"nvshmem", "NVSHMEM"},      {"libc10", "torch"},
    {"libtorch", "torch"},       {"libffi", "ctypes"},
    {"_ctypes", "ctypes"},
};

static bool
begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* The folder behind the last "-packages/" of PATH, which is the package that
 * an extension module belongs to; 0: there is none. */
static size_t
package_of(const char *path, const char **package)
{
    const char *found = NULL;
    for (const char *at = path; (at = strstr(at, "-packages/")) != NULL;) {
        at += strlen("-packages/");
        found = at;
    }
    const char *slash = found == NULL ? NULL : strchr(found, '/');
    *package = found;
    return slash == NULL ? 0 : (size_t)(slash - found);
}

bool
mp_library_name(const char *path, char *name, size_t size, bool *torch)
{
    const char *slash = strrchr(path, '/');
    const char *file = slash == NULL ? path : slash + 1;
    *torch = false;
    for (size_t i = 0; i < MP_ARRAY_LENGTH(known_files); i++) {
        if (begins(file, known_files[i].begins)) {
            if (known_files[i].name == NULL) {
                return false;
            }
            *torch = strcmp(known_files[i].name, "torch") == 0;
            (void)snprintf(name, size, "%s", known_files[i].name);
            return true;
        }
    }
    const char *package;
    size_t length = package_of(path, &package);
    bool extension =
        strstr(file, ".cpython-") != NULL || strstr(file, ".abi3.so") != NULL;
    if (extension && length > 0) {
        (void)snprintf(name, size, "%.*s", (int)length, package);
    }
    else {
        (void)snprintf(name, size, "%s", file);
    }
    return true;
}

/* ---- the map ------------------------------------------------------------ */

typedef struct {
    uintptr_t begin, end;
    bool asks; /* false: the driver and its kin */
    bool own;
    bool torch;
    char name[NAME_BYTES];
} stretch_t;

/* All under the session lock. */
static struct {
    stretch_t *at; /* by address */
    size_t count, capacity;
    uint32_t owners[MP_NATIVE_STACKS]; /* of native stacks, plus 1; 0: not
                                          asked for yet */
    bool torch[MP_NATIVE_STACKS];
} the_map;

static bool
map_add(uintptr_t from, uintptr_t to, const char *path)
{
    if (the_map.count == the_map.capacity) {
        size_t capacity = the_map.capacity == 0 ? 256 : 2 * the_map.capacity;
        stretch_t *more = mp_realloc(the_map.at, capacity * sizeof(stretch_t));
        if (more == NULL) {
            return false;
        }
        the_map.at = more;
        the_map.capacity = capacity;
    }
    stretch_t *stretch = &the_map.at[the_map.count++];
    *stretch = (stretch_t){.begin = from, .end = to};
    uintptr_t here = (uintptr_t)map_add;
    stretch->own = here >= from && here < to;
    stretch->asks =
        mp_library_name(path, stretch->name, NAME_BYTES, &stretch->torch);
    if (stretch->own) {
        (void)snprintf(stretch->name, NAME_BYTES, "memprof");
    }
    return true;
}

/* Code of files only, in order of addresses, as the kernel lists it. */
static void
map_read(void)
{
    FILE *file = fopen("/proc/self/maps", "re");
    char *line = NULL;
    size_t capacity = 0;
    the_map.count = 0;
    while (file != NULL && getline(&line, &capacity, file) > 0) {
        char *rest;
        uintptr_t from = strtoull(line, &rest, 16);
        uintptr_t to = *rest == '-' ? strtoull(rest + 1, &rest, 16) : 0;
        char *path = strchr(line, '/');
        if (to <= from || path == NULL || strlen(rest) < 5 || rest[3] != 'x') {
            continue;
        }
        char *end = strstr(path, " (deleted)");
        end = end == NULL ? strchr(path, '\n') : end;
        if (end != NULL) {
            *end = '\0';
        }
        if (!map_add(from, to, path)) {
            break;
        }
    }
    free(line);
    if (file != NULL) {
        (void)fclose(file);
    }
}

static const stretch_t *
map_find(uintptr_t pc)
{
    size_t low = 0;
    size_t high = the_map.count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (the_map.at[middle].end <= pc) {
            low = middle + 1;
        }
        else {
            high = middle;
        }
    }
    return low < the_map.count && the_map.at[low].begin <= pc
               ? &the_map.at[low]
               : NULL;
}

uint32_t
mp_libraries_owner(const uintptr_t *pcs, size_t count, mp_intern_t *intern,
                   bool *torch)
{
    bool fresh = false;
    bool inside = true; /* still among our callback's own frames */
    *torch = false;
    for (size_t i = 0; i < count; i++) {
        /* A return address may be the first byte behind the function. */
        const stretch_t *stretch = map_find(pcs[i] - 1);
        if (stretch == NULL && !fresh) {
            map_read();
            fresh = true;
            stretch = map_find(pcs[i] - 1);
        }
        if (stretch != NULL && stretch->own && inside) {
            continue;
        }
        inside = false;
        if (stretch == NULL || !stretch->asks) {
            continue;
        }
        *torch = stretch->torch;
        return mp_intern_string(intern, stretch->name, strlen(stretch->name));
    }
    return MP_NO_INDEX;
}

void
mp_libraries_name_event(mp_intern_t *intern, mp_event_t *event)
{
    if (!mp_event_is_driver(event->kind) ||
        (event->flags & MP_FLAG_NATIVE) == 0) {
        return;
    }
    uint32_t id = event->op_instance;
    size_t count;
    const uintptr_t *pcs = mp_native_get(id, &count);
    event->flags &= (uint16_t)~MP_FLAG_NATIVE;
    event->op_instance = MP_NO_INDEX;
    if (pcs == NULL) {
        return;
    }
    if (the_map.owners[id] == 0) {
        bool torch;
        uint32_t owner = mp_libraries_owner(pcs, count, intern, &torch);
        if (owner == MP_NO_INDEX) {
            return;
        }
        the_map.owners[id] = owner + 1;
        the_map.torch[id] = torch;
    }
    event->op_instance = the_map.owners[id] - 1;
    if (the_map.torch[id]) {
        event->flags |= MP_FLAG_TORCH_ASKED;
    }
}
