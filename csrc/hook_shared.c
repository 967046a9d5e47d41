/* hook_shared.c - what all hooks share: made once, and the switches. */
#include "hook_shared.h"

#define DEFAULT_LOG_BYTES ((size_t)16 << 20)

mp_log_t *mp_the_log;
mp_intern_t *mp_the_intern;
mp_names_t *mp_the_module_names;
_Atomic(const mp_shim_api_t *) mp_the_shim;
atomic_uint mp_the_wanted;
atomic_uint mp_the_generation;
atomic_uint mp_the_news;
volatile uint32_t mp_the_active;
static _Atomic(void (*)(void)) the_wake;

mp_status_t
mp_hook_init(void)
{
    mp_status_t status = MP_OK;
    if (mp_the_intern == NULL) {
        status = mp_intern_new(&mp_the_intern);
    }
    if (status == MP_OK && mp_the_module_names == NULL) {
        mp_the_module_names = mp_names_new();
        status = mp_the_module_names == NULL ? MP_ERR_NOMEM : MP_OK;
    }
    if (status == MP_OK && mp_the_log == NULL) {
        status = mp_log_new(DEFAULT_LOG_BYTES, &mp_the_log);
    }
    return status;
}

mp_log_t *
mp_hook_log(void)
{
    return mp_the_log;
}

mp_intern_t *
mp_hook_intern(void)
{
    return mp_the_intern;
}

mp_names_t *
mp_hook_module_names(void)
{
    return mp_the_module_names;
}

void
mp_hook_set_shim(const mp_shim_api_t *shim)
{
    atomic_store_explicit(&mp_the_shim, shim, memory_order_release);
}

void
mp_hook_set_wanted(uint32_t flags)
{
    if (flags != 0 && mp_hook_wanted() == 0) {
        atomic_fetch_add_explicit(&mp_the_generation, 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&mp_the_news, 1, memory_order_release);
    }
    atomic_store_explicit(&mp_the_wanted, flags, memory_order_release);
    __atomic_store_n(&mp_the_active, flags, __ATOMIC_RELAXED);
}

void
mp_hook_set_wake(void (*wake)(void))
{
    atomic_store_explicit(&the_wake, wake, memory_order_release);
}

void
mp_hook_wake(void)
{
    void (*wake)(void) = atomic_load_explicit(&the_wake, memory_order_acquire);
    if (wake != NULL) {
        wake();
    }
}
