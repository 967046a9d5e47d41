/* category.h - which category each life belongs to, and why.
 *
 * Rules by direct evidence, first match wins, the reason is kept (the
 * comment at the head of category.c lists them in order).  Pure function of
 * the rows and the op names; may be run again at any time. */
#ifndef MP_CATEGORY_H
#define MP_CATEGORY_H

#include "intern.h"
#include "tracker.h"

void mp_category_assign(mp_allocation_t *allocations, size_t count,
                        const mp_intern_t *intern);

const char *mp_category_text(uint8_t category); /* NULL: no such number */
const char *mp_reason_text(uint8_t reason);     /* NULL: no such number */

#endif
