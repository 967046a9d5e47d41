/* json_scan.h - where things stand in a JSON text, without reading them in.
 *
 * Walks over a text of any size and depth in one go and allocates nothing.
 * Looks at structure only: what is inside of a value may be wrong. */
#ifndef MP_JSON_SCAN_H
#define MP_JSON_SCAN_H

#include "common.h"

/* The first character at or behind AT that is no white space; END: none. */
const char *mp_json_space_end(const char *at, const char *end);

/* Where the value at AT (no white space) ends; NULL: not before END. */
const char *mp_json_value_end(const char *at, const char *end);

/* Where events may be added to a trace. */
typedef struct {
    size_t place;      /* offset; what follows stays behind */
    bool comma_before; /* events precede it, without a comma yet */
    bool comma_after;  /* one follows it */
    bool has_memory;   /* there are [memory] instants */
    int64_t base_ns;   /* baseTimeNanoseconds, or 0 */
} mp_trace_place_t;

/* In a Chrome trace, an object or an array: before the last event if that is
 * Kineto's `Record Window End`, else behind the last.  MP_ERR_FORMAT: it is
 * no trace, or not whole. */
mp_status_t mp_json_trace_place(const char *text, size_t length,
                                mp_trace_place_t *place);

#endif
