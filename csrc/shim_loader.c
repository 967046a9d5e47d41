/* shim_loader.c - dlopen, then compare what both sides say they are. */
#include "shim_loader.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

/* TORCH_VERSION, which the shim carries, is only "major.minor.patch";
 * `torch.__version__` may go on ("2.15.0a0", "2.6.0.post1").  What goes on is
 * compared by the stamp. */
static bool
same_release(const char *torch_version, const char *release)
{
    size_t length = strlen(release);
    if (strncmp(torch_version, release, length) != 0) {
        return false;
    }
    char next = torch_version[length];
    return next < '0' || next > '9';
}

/* How messages name a build: the stamp holds the whole version string. */
static const char *
build_name(const char *torch_version, const char *stamp)
{
    return stamp[0] != '\0' ? stamp : torch_version;
}

mp_status_t
mp_shim_load(const char *path, const mp_core_api_t *core,
             const char *torch_version, const char *stamp, uint32_t cxx11_abi,
             const mp_shim_api_t **out, char *error, size_t error_size)
{
    /* NODELETE: torch keeps pointers into it, until after exit handlers.
     * LOCAL: two torch versions' shims would offer the same symbol. */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == NULL) {
        const char *reason = dlerror();
        snprintf(error, error_size,
                 "the torch shim %s cannot be loaded beside torch %s: %s",
                 path, build_name(torch_version, stamp),
                 reason != NULL ? reason : "unknown reason");
        return MP_ERR_LOAD;
    }
    mp_shim_entry_t entry;
    /* The detour that POSIX gives for function pointers. */
    *(void **)&entry = dlsym(library, MP_SHIM_ENTRY_NAME);
    if (entry == NULL) {
        snprintf(error, error_size, "%s is no torch shim: it has no %s", path,
                 MP_SHIM_ENTRY_NAME);
        return MP_ERR_LOAD;
    }
    char reason[256] = "unknown reason";
    const mp_shim_api_t *shim = entry(core, reason, sizeof(reason));
    if (shim == NULL) {
        snprintf(error, error_size, "the torch shim %s refuses: %s", path,
                 reason);
        return MP_ERR_MISMATCH;
    }
    if (shim->version != MP_SHIM_API_VERSION ||
        shim->size < sizeof(mp_shim_api_t)) {
        snprintf(error, error_size,
                 "the torch shim %s speaks version %u (%u bytes) of the shim "
                 "interface, memprof's core version %u (%zu bytes)",
                 path, shim->version, shim->size, MP_SHIM_API_VERSION,
                 sizeof(mp_shim_api_t));
        return MP_ERR_MISMATCH;
    }
    /* A wrong build would call wrong virtual slots without any error. */
    if (!same_release(torch_version, shim->torch_version) ||
        strcmp(stamp, shim->build_stamp) != 0 ||
        cxx11_abi != shim->cxx11_abi) {
        snprintf(error, error_size,
                 "the torch shim %s was compiled for torch %s (C++11 ABI %u); "
                 "this is torch %s (C++11 ABI %u)",
                 path, build_name(shim->torch_version, shim->build_stamp),
                 shim->cxx11_abi, build_name(torch_version, stamp), cxx11_abi);
        return MP_ERR_MISMATCH;
    }
    *out = shim;
    return MP_OK;
}
