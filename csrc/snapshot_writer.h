/* snapshot_writer.h - what the parts of a snapshot's writer share.
 *
 * Only for export_snapshot.c (traces, steps, the whole), snapshot_parts.c
 * (texts, stacks, what is known of a life) and snapshot_segments.c. */
#ifndef MP_SNAPSHOT_WRITER_H
#define MP_SNAPSHOT_WRITER_H

#include "export_snapshot.h"
#include "pickle.h"
#include "snapshot_words.h"
#include "survey.h"

#define MP_SNAPSHOT_PHASES 4

/* What allocations in one place have in common. */
typedef struct {
    uint32_t op, module, region;
    int32_t step;
    uint8_t phase, category;
    uint32_t number; /* in the pickle; MP_NO_INDEX: a free slot */
} mp_snapshot_place_t;

typedef struct {
    size_t event; /* at which it began */
    int64_t number;
    int64_t time_ns, end_ns;
} mp_snapshot_step_t;

typedef struct mp_snapshot_writer {
    const mp_export_t *source;
    const mp_snapshot_options_t *options;
    mp_survey_t survey;
    mp_pickle_t pickle;
    uint32_t word_numbers[MP_WORD_LIMIT];
    uint32_t category_numbers[MP_CATEGORY_COUNT];
    uint32_t phase_numbers[MP_SNAPSHOT_PHASES];
    uint32_t nothing; /* the empty list */
    /* By id; MP_NO_INDEX: not written yet. */
    uint32_t *strings, *frames, *stacks, *forwards, *lines;
    uint32_t string_count, frame_count, stack_count;
    mp_snapshot_place_t *place_slots;
    size_t place_mask, place_count;
    uint32_t disguised; /* the life that is called unknown, or MP_NO_INDEX */
    mp_snapshot_step_t *steps;
    uint32_t *step_marks; /* a row a step: entries in each trace before it */
    size_t step_count;
    mp_status_t status; /* the first failure that is not the file's */
} mp_snapshot_writer_t;

void mp_snapshot_fail(mp_snapshot_writer_t *writer, mp_status_t status);
void mp_snapshot_put_word(mp_snapshot_writer_t *writer, int word);
void mp_snapshot_put_key(mp_snapshot_writer_t *writer,
                         mp_pickle_items_t *items, int word);
void mp_snapshot_put_int(mp_snapshot_writer_t *writer,
                         mp_pickle_items_t *items, int word, uint64_t value);
void mp_snapshot_put_literal(mp_snapshot_writer_t *writer,
                             mp_pickle_items_t *items, const char *text);
/* The text of a string id, which is written once. */
void mp_snapshot_put_string(mp_snapshot_writer_t *writer, uint32_t id);
/* Unix time in microseconds, never below 0. */
int64_t mp_snapshot_wall_us(const mp_snapshot_writer_t *writer,
                            int64_t time_ns);
void mp_snapshot_put_pool(mp_snapshot_writer_t *writer, uint16_t pool);
/* A stack as a list of frames, innermost first; equal ones are one list. */
void mp_snapshot_put_frames(mp_snapshot_writer_t *writer, uint32_t stack);
/* Where a life was made, and because of what. */
void mp_snapshot_put_known(mp_snapshot_writer_t *writer,
                           mp_pickle_items_t *entry,
                           const mp_allocation_t *life);
/* The category for the page, which has torch's eight. */
uint32_t mp_snapshot_shown_category(const mp_snapshot_writer_t *writer,
                                    uint32_t row);
/* The page has to find `unknown` on an alloc, or throws: the smallest is
 * called that if no other is. */
uint32_t mp_snapshot_find_disguised(const mp_snapshot_writer_t *writer);
bool mp_snapshot_places_grow(mp_snapshot_writer_t *writer);

/* snapshot_segments.c: the state at the end. */
void mp_snapshot_put_segments(mp_snapshot_writer_t *writer);

#endif
