/* unpickle_values.c - what a pickle that was read holds. */
#include "unpickle_values.h"

bool
mp_unpickled_is_whole(const mp_unpickled_t *unpickled)
{
    return unpickled->whole;
}

uint64_t
mp_unpickled_read(const mp_unpickled_t *unpickled)
{
    return unpickled->good_bytes;
}

mp_value_t
mp_unpickled_root(const mp_unpickled_t *unpickled)
{
    return unpickled->root;
}

uint32_t
mp_unpickled_texts(const mp_unpickled_t *unpickled)
{
    return (uint32_t)unpickled->texts.count;
}

uint32_t
mp_unpickled_containers(const mp_unpickled_t *unpickled)
{
    return (uint32_t)unpickled->containers.count;
}

bool
mp_value_is_cut(const mp_unpickled_t *unpickled, mp_value_t value)
{
    return is_container(value) && container_of(unpickled, value)->is_cut;
}

mp_value_kind_t
mp_value_kind(const mp_unpickled_t *unpickled, mp_value_t value)
{
    static const mp_value_kind_t kinds[] = {
        [0] = MP_VALUE_MISSING,       [TAG_NONE] = MP_VALUE_NONE,
        [TAG_BOOL] = MP_VALUE_BOOL,   [TAG_INT] = MP_VALUE_INT,
        [TAG_WIDE] = MP_VALUE_INT,    [TAG_DOUBLE] = MP_VALUE_DOUBLE,
        [TAG_TEXT] = MP_VALUE_TEXT,   [TAG_LIST] = MP_VALUE_LIST,
        [TAG_TUPLE] = MP_VALUE_TUPLE, [TAG_DICT] = MP_VALUE_DICT,
    };
    (void)unpickled;
    return kinds[tag_of(value)];
}

int64_t
mp_value_int(const mp_unpickled_t *unpickled, mp_value_t value,
             int64_t fallback)
{
    switch (tag_of(value)) {
    case TAG_BOOL:
        return (int64_t)(value & PAYLOAD);
    case TAG_INT:
        return (int64_t)(value & PAYLOAD) - INT_BIAS;
    case TAG_WIDE:
        return (int64_t)((const uint64_t *)
                             unpickled->wides.items)[value & PAYLOAD];
    default:
        return fallback;
    }
}

bool
mp_value_text(const mp_unpickled_t *unpickled, mp_value_t value,
              const char **text, size_t *length)
{
    if (tag_of(value) != TAG_TEXT) {
        return false;
    }
    const text_t *found =
        (const text_t *)unpickled->texts.items + (value & PAYLOAD);
    *text = found->text;
    *length = found->length;
    return true;
}

uint32_t
mp_value_atom(const mp_unpickled_t *unpickled, mp_value_t value)
{
    if (tag_of(value) != TAG_TEXT) {
        return 0;
    }
    return ((const text_t *)unpickled->texts.items)[value & PAYLOAD].atom;
}

uint32_t
mp_value_number(mp_value_t value)
{
    return tag_of(value) >= TAG_TEXT ? (uint32_t)(value & PAYLOAD)
                                     : MP_NO_INDEX;
}

size_t
mp_value_count(const mp_unpickled_t *unpickled, mp_value_t value)
{
    if (!is_container(value)) {
        return 0;
    }
    uint32_t count = container_of(unpickled, value)->count;
    return tag_of(value) == TAG_DICT ? count / 2 : count;
}

mp_value_t
mp_value_item(const mp_unpickled_t *unpickled, mp_value_t value, size_t index)
{
    return container_of(unpickled, value)->values[index];
}

void
mp_value_pair(const mp_unpickled_t *unpickled, mp_value_t value, size_t index,
              mp_value_t *key, mp_value_t *item)
{
    const mp_value_t *values = container_of(unpickled, value)->values;
    *key = values[2 * index];
    *item = values[2 * index + 1];
}

mp_value_t
mp_value_find(const mp_unpickled_t *unpickled, mp_value_t value, uint32_t atom)
{
    if (tag_of(value) != TAG_DICT) {
        return MP_NO_VALUE;
    }
    const container_t *dict = container_of(unpickled, value);
    for (size_t i = dict->count; i >= 2; i -= 2) {
        if (mp_value_atom(unpickled, dict->values[i - 2]) == atom) {
            return dict->values[i - 1];
        }
    }
    return MP_NO_VALUE;
}
