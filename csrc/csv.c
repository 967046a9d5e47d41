/* csv.c - columns as lines of comma-separated values. */
#include "csv.h"

#include "sink.h"

#include <string.h>

#define ROOM 32768    /* text that waits for the sink */
#define NUMBER_MAX 21 /* digits, sign and comma of a 64-bit number */

typedef struct {
    mp_sink_t *sink;
    size_t used;
    char text[ROOM];
} page_t;

bool
mp_csv_kind(char kind, size_t *bytes)
{
    switch (kind) {
    case 'b':
    case 'B':
        *bytes = 1;
        return true;
    case 'h':
    case 'H':
        *bytes = 2;
        return true;
    case 'i':
    case 'I':
        *bytes = 4;
        return true;
    case 'q':
    case 'Q':
        *bytes = 8;
        return true;
    default:
        return false;
    }
}

#define READ(type, below_zero)                                                \
    {                                                                         \
        type value;                                                           \
        memcpy(&value, at, sizeof(value));                                    \
        *negative = (below_zero);                                             \
        return (uint64_t)value;                                               \
    }

/* The number at AT; *NEGATIVE: it is one of two's complement below 0. */
static inline uint64_t
number_at(const char *at, char kind, bool *negative)
{
    switch (kind) {
    case 'b':
        READ(int8_t, value < 0)
    case 'B':
        READ(uint8_t, false)
    case 'h':
        READ(int16_t, value < 0)
    case 'H':
        READ(uint16_t, false)
    case 'i':
        READ(int32_t, value < 0)
    case 'I':
        READ(uint32_t, false)
    case 'q':
        READ(int64_t, value < 0)
    default:
        READ(uint64_t, false)
    }
}
#undef READ

static void
page_flush(page_t *page)
{
    (void)mp_sink_write(page->sink, page->text, page->used); /* remembered */
    page->used = 0;
}

static void
page_write(page_t *page, const char *text, size_t length)
{
    if (length > ROOM - page->used) {
        page_flush(page);
        if (length > ROOM) {
            (void)mp_sink_write(page->sink, text, length);
            return;
        }
    }
    memcpy(page->text + page->used, text, length);
    page->used += length;
}

static inline void
page_number(page_t *page, uint64_t value, bool negative)
{
    char digits[NUMBER_MAX];
    size_t at = sizeof(digits);
    uint64_t left = negative ? 0 - value : value;
    do {
        digits[--at] = (char)('0' + left % 10);
        left /= 10;
    } while (left > 0);
    if (negative) {
        digits[--at] = '-';
    }
    page_write(page, digits + at, sizeof(digits) - at);
}

static void
write_row(page_t *page, const mp_csv_column_t *columns, size_t column_count,
          size_t row)
{
    for (size_t i = 0; i < column_count; i++) {
        const mp_csv_column_t *column = &columns[i];
        bool negative;
        uint64_t value =
            number_at(column->values + (ptrdiff_t)row * column->stride,
                      column->kind, &negative);
        if (column->texts == NULL) {
            page_number(page, value, negative);
        }
        else if (value < column->texts_count) { /* negative: it is not */
            const mp_csv_text_t *text = &column->texts[value];
            page_write(page, text->text, text->length);
        }
        page_write(page, i + 1 < column_count ? "," : "\n", 1);
    }
}

mp_status_t
mp_csv_write(const char *path, const mp_csv_text_t *header,
             const mp_csv_column_t *columns, size_t column_count, size_t rows,
             int *saved_errno)
{
    page_t page;
    page.used = 0;
    mp_status_t status = mp_sink_open(path, &page.sink, saved_errno);
    if (status != MP_OK) {
        return status;
    }
    page_write(&page, header->text, header->length);
    for (size_t row = 0; row < rows && mp_sink_errno(page.sink) == 0; row++) {
        write_row(&page, columns, column_count, row);
    }
    page_flush(&page);
    return mp_sink_close(page.sink, saved_errno);
}
