/* life_walk.c - which life each event ends and begins. */
#include "life_walk.h"

#include "mem.h"

#include <string.h>

mp_status_t
mp_life_walk_open(mp_life_walk_t *walk, size_t event_count,
                  const mp_allocation_t *lives, size_t life_count,
                  int16_t device)
{
    walk->died = mp_calloc(event_count + 1, sizeof(uint32_t));
    if (walk->died == NULL) {
        return MP_ERR_NOMEM;
    }
    walk->lives = lives;
    walk->life_count = life_count;
    walk->next = 0;
    memset(walk->died, 0xff, (event_count + 1) * sizeof(uint32_t));
    for (size_t i = 0; i < life_count; i++) {
        const mp_allocation_t *life = &lives[i];
        if ((device == MP_WALK_ALL || life->device == device) &&
            life->died_event >= 0 && !mp_life_is_over(life) &&
            (size_t)life->died_event < event_count) {
            walk->died[life->died_event] = (uint32_t)i;
        }
    }
    return MP_OK;
}

void
mp_life_walk_close(mp_life_walk_t *walk)
{
    mp_free(walk->died);
    *walk = (mp_life_walk_t){0};
}
