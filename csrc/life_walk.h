/* life_walk.h - which life each event ends and begins.
 *
 * The rows of a tracker tell when a life began and ended; who walks along the
 * events asks the other way round.  Holds one small number an event, changes
 * nothing.  An event ends at most one life, and then begins at most one: an
 * allocation where a block still lies ends that block's life. */
#ifndef MP_LIFE_WALK_H
#define MP_LIFE_WALK_H

#include "life.h"

typedef struct {
    const mp_allocation_t *lives;
    size_t life_count;
    uint32_t *died; /* [event] a life, or MP_NO_INDEX */
    size_t next;    /* the life that begins next, or later */
} mp_life_walk_t;

/* WALK is all zero.  Only lives of DEVICE; MP_WALK_ALL: of all. */
#define MP_WALK_ALL INT16_MIN
mp_status_t mp_life_walk_open(mp_life_walk_t *walk, size_t event_count,
                              const mp_allocation_t *lives, size_t life_count,
                              int16_t device);
void mp_life_walk_close(mp_life_walk_t *walk); /* accepts all zero */

/* Whether a life is alive at no event: its free was asked for before. */
static inline bool
mp_life_is_over(const mp_allocation_t *life)
{
    return life->born_event >= 0 && life->died_event == life->born_event;
}

/* The life that EVENT ends, or NULL.  In any order. */
static inline const mp_allocation_t *
mp_life_walk_died(const mp_life_walk_t *walk, size_t event)
{
    uint32_t life = walk->died[event];
    return life == MP_NO_INDEX ? NULL : &walk->lives[life];
}

/* The life that EVENT begins, on whichever device, or NULL.  Asked in order,
 * but not of every event. */
static inline const mp_allocation_t *
mp_life_walk_born(mp_life_walk_t *walk, size_t event)
{
    while (walk->next < walk->life_count &&
           walk->lives[walk->next].born_event < (int64_t)event) {
        walk->next++;
    }
    if (walk->next == walk->life_count) {
        return NULL;
    }
    const mp_allocation_t *life = &walk->lives[walk->next];
    return life->born_event == (int64_t)event && !mp_life_is_over(life) ? life
                                                                        : NULL;
}

#endif
