/* cupti_library.c - libcupti, opened at run time: its functions and version.
 */
#include "cupti_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* The detour that POSIX gives for function pointers. */
static bool
find(void *library, const char *name, void *function)
{
    *(void **)function = dlsym(library, name);
    return *(void **)function != NULL;
}

mp_status_t
mp_cupti_library_open(const char *path, mp_cupti_library_t *out, char *error,
                      size_t error_size)
{
    void *library =
        dlopen(path[0] == '\0' ? NULL : path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        const char *reason = dlerror();
        (void)snprintf(error, error_size, "%s",
                       reason != NULL ? reason : "unknown reason");
        return MP_ERR_LOAD;
    }
    *out = (mp_cupti_library_t){.version = 0};
    (void)snprintf(out->path, sizeof(out->path), "%s", path);
#define X(name, required, arguments)                                          \
    if (!find(library, "cupti" #name, &out->name) && (required)) {            \
        (void)snprintf(error, error_size, "%s has no cupti" #name, path);     \
        return MP_ERR_LOAD;                                                   \
    }
    MP_CUPTI_FUNCTION_LIST(X)
#undef X
    if (out->GetVersion(&out->version) != MP_CUPTI_OK) {
        (void)snprintf(error, error_size, "%s does not say its version", path);
        return MP_ERR_LOAD;
    }
    if (out->version < MP_CUPTI_OLDEST) {
        (void)snprintf(error, error_size,
                       "%s has CUPTI's API version %u; memprof needs %d (CUDA "
                       "11.8) or later",
                       path, out->version, MP_CUPTI_OLDEST);
        return MP_ERR_LOAD;
    }
    return MP_OK;
}

void
mp_cupti_result_text(const mp_cupti_library_t *library, int result, char *text,
                     size_t size)
{
    const char *said = NULL;
    if (library->GetErrorMessage == NULL ||
        library->GetErrorMessage(result, &said) != MP_CUPTI_OK ||
        said == NULL || said[0] == '\0') {
        said = NULL;
        (void)library->GetResultString(result, &said);
    }
    (void)snprintf(text, size, "%s", said != NULL ? said : "no text");
    text[strcspn(text, "\n")] = '\0';
}
