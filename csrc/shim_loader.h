/* shim_loader.h - find the torch shim's entry and swap tables with it.
 *
 * Knows dlopen and versions; decides nothing about where the file is.  The
 * library is never unloaded: torch keeps pointers into it. */
#ifndef MP_SHIM_LOADER_H
#define MP_SHIM_LOADER_H

#include "shim_api.h"

/* Load the shim at PATH (torch must be imported already), give it CORE and
 * return its table.  TORCH_VERSION is `torch.__version__` without the local
 * part; STAMP is "" for a plain release, else the whole version string and
 * the git hash; CXX11_ABI is torch.compiled_with_cxx11_abi().  All three must
 * be what the shim was compiled for.
 * MP_ERR_LOAD, MP_ERR_MISMATCH: ERROR names the file and both versions.
 * Loading the same path again returns the same table. */
mp_status_t mp_shim_load(const char *path, const mp_core_api_t *core,
                         const char *torch_version, const char *stamp,
                         uint32_t cxx11_abi, const mp_shim_api_t **out,
                         char *error, size_t error_size);

#endif
