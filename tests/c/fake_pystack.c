/* fake_pystack.c - stands in for pystack.c, which needs Python: a thread has
 * the stack that the test gives it. */
#include "fake_pystack.h"

#include "mem.h"
#include "pystack.h"

struct mp_pystack_cache {
    char nothing;
};

static _Thread_local uint32_t stack_now = MP_NO_INDEX;

void
fake_pystack_set(uint32_t stack)
{
    stack_now = stack;
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

uint32_t
mp_pystack_current(mp_pystack_cache_t *cache, mp_intern_t *intern)
{
    (void)intern;
    return cache == NULL ? MP_NO_INDEX : stack_now;
}
