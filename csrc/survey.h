/* survey.h - what a walk over a recording finds before it is exported.
 *
 * Which life each event begins and ends; what devices there are; and whether a
 * device's segments add up, as a viewer walks them: it knows segments by their
 * address, joins pages that are mapped beside each other on one stream, and
 * looks for the segment of every live block at every event. */
#ifndef MP_SURVEY_H
#define MP_SURVEY_H

#include "export_snapshot.h"
#include "table.h"

/* A stretch of segments: one, or mapped pages beside each other. */
typedef struct {
    uint64_t begin, end, stream;
    uint32_t live; /* blocks in it */
    uint16_t pool;
    bool mapped; /* pages of an expandable segment */
    bool solid;  /* began with a SEGMENT_ALLOC: it is never joined */
} mp_span_t;

typedef struct {
    int16_t device;
    bool met;     /* had an event at all */
    bool started; /* had one that is no seed */
    bool odd;     /* its segments do not add up, or there are none */
    bool has_blocks;
    uint64_t low, high; /* of all its blocks */
    mp_span_t *spans;   /* at the end, by address; none if odd */
    size_t span_count, span_capacity;
    mp_table_t *active; /* address -> row of a block not completely freed */
    mp_table_t *late;   /* or NULL */
} mp_place_t;

/* Rows are MP_NO_INDEX where there is none. */
typedef struct {
    mp_place_t *places; /* GPUs by index, then the CPU if HAS_CPU */
    size_t place_count;
    size_t gpu_count;
    bool has_cpu;
    uint32_t *born;  /* the life that an event begins */
    uint32_t *ended; /* the one that it ends, or whose end it asks for */
    /* For a life: it is in no file, since another was alive at its address
     * when it would have been. */
    bool *left_out;
} mp_survey_t;

/* MP_ERR_ARG: a number is too large (export_snapshot.h); MP_ERR_NOMEM.
 * SURVEY is to be cleared in any case. */
mp_status_t mp_survey(const mp_export_t *source, mp_survey_t *survey);
void mp_survey_clear(mp_survey_t *survey);

/* NULL: no such device was met. */
mp_place_t *mp_survey_place(const mp_survey_t *survey, int16_t device);

#endif
