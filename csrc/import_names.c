/* import_names.c - the texts and stacks of a snapshot, interned.
 *
 * Each text, frame and list of frames of the pickle is looked at once. */
#include "snapshot_reader.h"

#include <string.h>

/* ---- texts and stacks ----------------------------------------------------
 */

mp_status_t
mp_snapshot_intern_text(mp_snapshot_reader_t *reader, mp_value_t value,
                        uint32_t *id)
{
    const char *text;
    size_t length;
    *id = MP_NO_INDEX;
    if (!mp_value_text(reader->pickle, value, &text, &length)) {
        return MP_OK;
    }
    uint32_t *known = &reader->strings[mp_value_number(value)];
    if (*known == MP_NO_INDEX) {
        *known = mp_intern_string(reader->intern, text, length);
    }
    *id = *known;
    return *id == MP_NO_INDEX ? MP_ERR_NOMEM : MP_OK;
}

/* Whether a frame is of Python: it has a .py file, or "<string>", say. */
static bool
is_python(const mp_snapshot_reader_t *reader, mp_value_t frame)
{
    const char *text;
    size_t length;
    mp_value_t file = mp_value_find(reader->pickle, frame, MP_WORD_FILENAME);
    return mp_value_text(reader->pickle, file, &text, &length) &&
           ((length >= 3 && memcmp(text + length - 3, ".py", 3) == 0) ||
            (length >= 1 && text[length - 1] == '>'));
}

static mp_status_t
intern_frame(mp_snapshot_reader_t *reader, mp_value_t value, uint32_t *id)
{
    uint32_t *known = &reader->frames[mp_value_number(value)];
    if (*known != MP_NO_INDEX) {
        *id = *known;
        return MP_OK;
    }
    const mp_unpickled_t *pickle = reader->pickle;
    uint32_t function, file;
    mp_status_t status = mp_snapshot_intern_text(
        reader, mp_value_find(pickle, value, MP_WORD_NAME), &function);
    if (status == MP_OK) {
        status = mp_snapshot_intern_text(
            reader, mp_value_find(pickle, value, MP_WORD_FILENAME), &file);
    }
    if (status != MP_OK) {
        return status;
    }
    uint32_t empty = mp_intern_string(reader->intern, "", 0);
    function = function == MP_NO_INDEX ? empty : function;
    file = file == MP_NO_INDEX ? empty : file;
    int64_t line =
        mp_value_int(pickle, mp_value_find(pickle, value, MP_WORD_LINE), 0);
    *known =
        mp_intern_frame(reader->intern, function, file,
                        line < 0 || line > UINT32_MAX ? 0 : (uint32_t)line);
    *id = *known;
    return *id == MP_NO_INDEX ? MP_ERR_NOMEM : MP_OK;
}

/* The stack of a list of frames, innermost first: of torch's the Python frames
 * if there are any. */
mp_status_t
mp_snapshot_intern_stack(mp_snapshot_reader_t *reader, mp_value_t value,
                         uint32_t *id)
{
    const mp_unpickled_t *pickle = reader->pickle;
    *id = MP_NO_INDEX;
    size_t count = mp_value_count(pickle, value);
    if (mp_value_kind(pickle, value) != MP_VALUE_LIST || count == 0) {
        return MP_OK;
    }
    uint32_t *known = &reader->stacks[mp_value_number(value)];
    if (*known != MP_NO_INDEX) {
        *id = *known;
        return MP_OK;
    }
    bool choose = false;
    for (size_t i = 0; i < count && !reader->facts->ours && !choose; i++) {
        choose = is_python(reader, mp_value_item(pickle, value, i));
    }
    for (size_t i = count; i-- > 0;) {
        mp_value_t item = mp_value_item(pickle, value, i);
        uint32_t frame;
        if (mp_value_kind(pickle, item) != MP_VALUE_DICT ||
            (choose && !is_python(reader, item))) {
            continue;
        }
        mp_status_t status = intern_frame(reader, item, &frame);
        if (status != MP_OK) {
            return status;
        }
        *id = mp_intern_stack(reader->intern, *id, frame);
        if (*id == MP_NO_INDEX) {
            return MP_ERR_NOMEM;
        }
    }
    reader->facts->has_stacks |= *id != MP_NO_INDEX;
    *known = *id;
    return MP_OK;
}

/* "file:line:function" as a frame. */
static mp_status_t
intern_line(mp_snapshot_reader_t *reader, const char *text, size_t length,
            uint32_t *id)
{
    size_t digits = 0, colon = length; /* the ':' before the function */
    uint32_t line = 0;
    for (size_t i = length; i-- > 0;) {
        if (text[i] >= '0' && text[i] <= '9') {
            digits++;
            continue;
        }
        if (text[i] == ':' && digits > 0 && digits < 10 &&
            i + 1 + digits == colon) {
            for (size_t k = i + 1; k < colon; k++) {
                line = line * 10 + (uint32_t)(text[k] - '0');
            }
            uint32_t file = mp_intern_string(reader->intern, text, i);
            uint32_t function = mp_intern_string(
                reader->intern, text + colon + 1, length - colon - 1);
            *id = mp_intern_frame(reader->intern, function, file, line);
            return *id == MP_NO_INDEX ? MP_ERR_NOMEM : MP_OK;
        }
        digits = 0;
        colon = text[i] == ':' ? i : length;
    }
    uint32_t function = mp_intern_string(reader->intern, text, length);
    *id = mp_intern_frame(reader->intern, function,
                          mp_intern_string(reader->intern, "", 0), 0);
    return *id == MP_NO_INDEX ? MP_ERR_NOMEM : MP_OK;
}

mp_status_t
mp_snapshot_intern_forward(mp_snapshot_reader_t *reader, mp_value_t value,
                           uint32_t *id)
{
    const mp_unpickled_t *pickle = reader->pickle;
    *id = MP_NO_INDEX;
    if (mp_value_kind(pickle, value) != MP_VALUE_LIST) {
        return MP_OK;
    }
    uint32_t *known = &reader->forwards[mp_value_number(value)];
    for (size_t i = mp_value_count(pickle, value);
         *known == MP_NO_INDEX && i-- > 0;) {
        const char *text;
        size_t length;
        uint32_t frame;
        if (!mp_value_text(pickle, mp_value_item(pickle, value, i), &text,
                           &length)) {
            continue;
        }
        mp_status_t status = intern_line(reader, text, length, &frame);
        if (status == MP_OK) {
            *id = mp_intern_stack(reader->intern, *id, frame);
            status = *id == MP_NO_INDEX ? MP_ERR_NOMEM : MP_OK;
        }
        if (status != MP_OK) {
            return status;
        }
    }
    if (*known == MP_NO_INDEX) {
        *known = *id;
    }
    *id = *known;
    return MP_OK;
}
