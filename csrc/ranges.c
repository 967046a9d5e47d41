/* ranges.c - a sorted array: segments are few and change seldom. */
#include "ranges.h"

#include "mem.h"

#include <string.h>

struct mp_ranges {
    mp_range_t *items;
    size_t count, capacity;
};

mp_ranges_t *
mp_ranges_new(void)
{
    return mp_calloc(1, sizeof(mp_ranges_t));
}

void
mp_ranges_free(mp_ranges_t *ranges)
{
    if (ranges != NULL) {
        mp_free(ranges->items);
        mp_free(ranges);
    }
}

/* The first range that ends behind ADDR. */
static size_t
first_behind(const mp_ranges_t *ranges, uint64_t addr)
{
    size_t low = 0, high = ranges->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ranges->items[middle].end > addr) {
            high = middle;
        }
        else {
            low = middle + 1;
        }
    }
    return low;
}

static bool
make_room(mp_ranges_t *ranges)
{
    if (ranges->count < ranges->capacity) {
        return true;
    }
    size_t wanted = ranges->capacity == 0 ? 32 : ranges->capacity * 2;
    mp_range_t *larger =
        mp_realloc(ranges->items, wanted * sizeof(mp_range_t));
    if (larger == NULL) {
        return false;
    }
    ranges->items = larger;
    ranges->capacity = wanted;
    return true;
}

static void
insert_at(mp_ranges_t *ranges, size_t index, const mp_range_t *range)
{
    memmove(&ranges->items[index + 1], &ranges->items[index],
            (ranges->count - index) * sizeof(mp_range_t));
    ranges->items[index] = *range;
    ranges->count++;
}

static void
remove_at(mp_ranges_t *ranges, size_t index)
{
    memmove(&ranges->items[index], &ranges->items[index + 1],
            (ranges->count - index - 1) * sizeof(mp_range_t));
    ranges->count--;
}

mp_status_t
mp_ranges_put(mp_ranges_t *ranges, const mp_range_t *range)
{
    if (!make_room(ranges)) {
        return MP_ERR_NOMEM;
    }
    insert_at(ranges, first_behind(ranges, range->begin), range);
    return MP_OK;
}

mp_status_t
mp_ranges_take(mp_ranges_t *ranges, uint64_t begin, uint64_t size,
               uint64_t *taken)
{
    uint64_t end = begin + size < begin ? UINT64_MAX : begin + size;
    *taken = 0;
    if (size == 0) {
        return MP_OK;
    }
    if (!make_room(ranges)) { /* before anything changes: one may split */
        return MP_ERR_NOMEM;
    }
    size_t index = first_behind(ranges, begin);
    while (index < ranges->count && ranges->items[index].begin < end) {
        mp_range_t *item = &ranges->items[index];
        uint64_t from = item->begin > begin ? item->begin : begin;
        uint64_t to = item->end < end ? item->end : end;
        *taken += to - from;
        if (from == item->begin && to == item->end) {
            remove_at(ranges, index);
        }
        else if (from == item->begin) {
            item->begin = to;
            index++;
        }
        else if (to == item->end) {
            item->end = from;
            index++;
        }
        else {
            mp_range_t rest = *item;
            rest.begin = to;
            item->end = from;
            insert_at(ranges, index + 1, &rest);
            break; /* the hole was inside one range */
        }
    }
    return MP_OK;
}

size_t
mp_ranges_count(const mp_ranges_t *ranges)
{
    return ranges->count;
}

const mp_range_t *
mp_ranges_at(const mp_ranges_t *ranges, size_t index)
{
    return &ranges->items[index];
}
