/* fake_pystack.c - stands in for pystack.c, which needs Python: a thread has
 * the stack that the test gives it. */
#include "fake_pystack.h"

#include "mem.h"
#include "pystack.h"

struct mp_pystack_cache {
    char nothing;
};

static const mp_pystack_t nothing = {.stack = MP_NO_INDEX,
                                     .module = MP_NO_INDEX};
static _Thread_local mp_pystack_t now = {.stack = MP_NO_INDEX,
                                         .module = MP_NO_INDEX};

void
fake_pystack_set(uint32_t stack)
{
    now = nothing;
    now.stack = stack;
}

void
fake_pystack_set_all(const mp_pystack_t *stack)
{
    now = *stack;
}

mp_pystack_cache_t *
mp_pystack_cache_new(void)
{
    return mp_calloc(1, sizeof(mp_pystack_cache_t));
}

void
mp_pystack_cache_free(mp_pystack_cache_t *cache)
{
    mp_free(cache);
}

bool
mp_pystack_init(const char **why)
{
    *why = "";
    return true;
}

void
mp_pystack_set_codes(const void *module, const void *const *backward,
                     size_t backward_count)
{
    (void)module;
    (void)backward;
    (void)backward_count;
}

void
mp_pystack_current(mp_pystack_cache_t *cache, mp_intern_t *intern,
                   const mp_names_t *names, mp_pystack_t *out)
{
    (void)intern;
    (void)names;
    *out = now;
    if (cache == NULL) {
        *out = nothing;
    }
}
