/* intern.h - every text, frame and stack once, behind a small number.
 *
 * Knows nothing about Python.  Three append-only sets:
 *
 *   string   id -> bytes (UTF-8), with a NUL after them
 *   frame    id -> (function string, file string, line)
 *   stack    id -> (parent stack or MP_NO_INDEX, frame): a trie; a stack id
 *            names the innermost frame and its parents lead outwards
 *
 * Ids count from 0 without gaps, in order of arrival, and never change; a
 * parent's id is always smaller than its child's.  Records never move.
 * Thread-safe: finding what is there takes no lock, adding takes one short
 * lock (a leaf: nothing else is taken under it).  May be called from a hook.
 * A recording loaded from a file has an intern of its own. */
#ifndef MP_INTERN_H
#define MP_INTERN_H

#include "common.h"

typedef struct mp_intern mp_intern_t;

typedef struct {
    uint32_t function; /* string id */
    uint32_t file;     /* string id */
    uint32_t line;     /* from 1; 0: unknown */
} mp_frame_t;

typedef struct {
    uint32_t parent; /* stack id, or MP_NO_INDEX: outermost */
    uint32_t frame;
} mp_stack_t;

mp_status_t mp_intern_new(mp_intern_t **out);
void mp_intern_free(mp_intern_t *intern); /* accepts NULL */

/* The id of a record, added if new.  MP_NO_INDEX: out of memory, or an id
 * argument that does not exist; nothing is changed then. */
uint32_t mp_intern_string(mp_intern_t *intern, const char *text,
                          size_t length);
uint32_t mp_intern_frame(mp_intern_t *intern, uint32_t function, uint32_t file,
                         uint32_t line);
uint32_t mp_intern_stack(mp_intern_t *intern, uint32_t parent, uint32_t frame);

/* How many there are.  Every id below the count may be read. */
uint32_t mp_intern_strings(const mp_intern_t *intern);
uint32_t mp_intern_frames(const mp_intern_t *intern);
uint32_t mp_intern_stacks(const mp_intern_t *intern);

/* Read a record; false if the id does not exist.  The text lives as long as
 * the intern. */
bool mp_intern_text(const mp_intern_t *intern, uint32_t id, const char **text,
                    size_t *length);
bool mp_intern_get_frame(const mp_intern_t *intern, uint32_t id,
                         mp_frame_t *frame);
bool mp_intern_get_stack(const mp_intern_t *intern, uint32_t id,
                         mp_stack_t *stack);

/* Bytes of memory held. */
size_t mp_intern_bytes(const mp_intern_t *intern);

/* After fork, in the child: make the lock free again.  All ids stay. */
void mp_intern_reset_lock(mp_intern_t *intern);

#endif
