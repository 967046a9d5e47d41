/* cupti_records.c - CUPTI's records of what ran on a GPU.
 *
 * The offsets are those of CUpti_ActivityKernel8 to 10, Memcpy5 and 6,
 * MemcpyPtoP4 and Memset4; tests/c checks them with NVIDIA's headers. */
#include "cupti_records.h"

#include <stdio.h>
#include <string.h>

enum {
    START = 16,
    END = 24,
    KERNEL_DEVICE = 40,
    KERNEL_STREAM = 48,
    KERNEL_CORRELATION = 92,
    KERNEL_NAME = 104,
    COPY_KIND = 4,
    COPY_FROM = 5,
    COPY_TO = 6,
    COPY_BYTES = 8,
    COPY_DEVICE = 32,
    COPY_STREAM = 40,
    COPY_CORRELATION = 44,
    PEER_CORRELATION = 60,
    SET_MEMORY = 50
};

enum {
    FAULTY = 130000, /* its activity API crashes and deadlocks */
    NEWEST = 130001, /* the last whose lengths are known */
    BEYOND = 140000  /* another CUDA, of which nothing is known */
};

/* Bytes of the records from version FIRST on. */
typedef struct {
    uint32_t first, kernel, copy, peer, set;
} lengths_t;

static const lengths_t known[] = {
    {18, 200, 88, 96, 88},
    {19, 208, 88, 96, 88},
    {26, 208, 96, 96, 88},
    {130000, 216, 96, 96, 88},
};

/* In a buffer full of headers of KIND the second record begins where the first
 * one ends; 0: the library does not say. */
static size_t
measure(const mp_cupti_library_t *library, uint32_t kind)
{
    uint64_t words[256];
    void *first = NULL, *second;
    for (size_t i = 0; i < MP_ARRAY_LENGTH(words); i++) {
        words[i] = 0;
        memcpy(&words[i], &kind, sizeof(kind));
    }
    uint8_t *buffer = (uint8_t *)words;
    if (library->ActivityGetNextRecord(buffer, sizeof(words), &first) != 0 ||
        first != (void *)buffer) {
        return 0;
    }
    second = first;
    if (library->ActivityGetNextRecord(buffer, sizeof(words), &second) != 0 ||
        (uint8_t *)second <= buffer ||
        (uint8_t *)second >= buffer + sizeof(words)) {
        return 0;
    }
    return (size_t)((uint8_t *)second - buffer);
}

static bool
fits(const mp_cupti_library_t *library, uint32_t kind, uint32_t bytes,
     char *why, size_t size)
{
    size_t length = measure(library, kind);
    bool later = library->version > NEWEST;
    if (length == bytes || (later && length > bytes)) {
        return true;
    }
    (void)snprintf(why, size,
                   "the records of this CUPTI (API version %u) are not those "
                   "that memprof knows: kind %u has %zu bytes and not %s%u",
                   library->version, kind, length, later ? "at least " : "",
                   bytes);
    return false;
}

bool
mp_cupti_records_known(const mp_cupti_library_t *library, char *why,
                       size_t size)
{
    if (library->ActivityGetNextRecord == NULL) {
        (void)snprintf(why, size, "this CUPTI has no activity API");
        return false;
    }
    if (library->version == FAULTY) {
        (void)snprintf(why, size,
                       "CUPTI 13.0.0 can crash while it records kernels; "
                       "update nvidia-cuda-cupti to 13.0.1 or later");
        return false;
    }
    if (library->version >= BEYOND) {
        (void)snprintf(why, size,
                       "the records of CUPTI's API version %u are newer than "
                       "this memprof; update memprof",
                       library->version);
        return false;
    }
    const lengths_t *lengths = &known[0];
    for (size_t i = 0; i < MP_ARRAY_LENGTH(known); i++) {
        lengths = library->version >= known[i].first ? &known[i] : lengths;
    }
    return fits(library, MP_CUPTI_KERNEL, lengths->kernel, why, size) &&
           fits(library, MP_CUPTI_MEMCPY, lengths->copy, why, size) &&
           fits(library, MP_CUPTI_MEMCPY_PEER, lengths->peer, why, size) &&
           fits(library, MP_CUPTI_MEMSET, lengths->set, why, size);
}

/* ---- one record ----------------------------------------------------------
 */

static uint64_t
u64_at(const void *record, size_t offset)
{
    uint64_t value;
    memcpy(&value, (const uint8_t *)record + offset, sizeof(value));
    return value;
}

static uint32_t
u32_at(const void *record, size_t offset)
{
    uint32_t value;
    memcpy(&value, (const uint8_t *)record + offset, sizeof(value));
    return value;
}

static uint8_t
u8_at(const void *record, size_t offset)
{
    return ((const uint8_t *)record)[offset];
}

size_t
mp_cupti_record_bytes(const mp_cupti_library_t *library, const void *at)
{
    return measure(library, u32_at(at, 0));
}

/* Kineto's words. */
static const char *
copy_text(uint8_t kind)
{
    static const char *const texts[] = {
        "",     "HtoD", "DtoH", "HtoA", "AtoH", "AtoA",
        "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
    };
    return kind > 0 && kind < MP_ARRAY_LENGTH(texts) ? texts[kind]
                                                     : "<unknown>";
}

static const char *
memory_text(uint8_t kind)
{
    static const char *const texts[] = {
        "Unknown", "Pageable", "Pinned", "Device",
        "Array",   "Managed",  "Device", "Managed",
    };
    return kind < MP_ARRAY_LENGTH(texts) ? texts[kind] : "Unknown";
}

static void
read_copy(const void *at, bool peer, mp_cupti_record_t *record)
{
    record->kind = MP_GPU_MEMCPY;
    record->bytes = u64_at(at, COPY_BYTES);
    record->device = u32_at(at, COPY_DEVICE);
    record->stream = u32_at(at, COPY_STREAM);
    record->correlation =
        u32_at(at, peer ? PEER_CORRELATION : COPY_CORRELATION);
    (void)snprintf(record->name, sizeof(record->name), "Memcpy %s (%s -> %s)",
                   peer ? "PtoP" : copy_text(u8_at(at, COPY_KIND)),
                   memory_text(u8_at(at, COPY_FROM)),
                   memory_text(u8_at(at, COPY_TO)));
}

bool
mp_cupti_record_read(const void *at, mp_cupti_record_t *record)
{
    uint32_t kind = u32_at(at, 0);
    *record = (mp_cupti_record_t){.start = u64_at(at, START),
                                  .end = u64_at(at, END)};
    switch (kind) {
    case MP_CUPTI_KERNEL: {
        uint64_t name = u64_at(at, KERNEL_NAME);
        memcpy(&record->kernel, &name, sizeof(record->kernel));
        record->kind = MP_GPU_KERNEL;
        record->device = u32_at(at, KERNEL_DEVICE);
        record->stream = u32_at(at, KERNEL_STREAM);
        record->correlation = u32_at(at, KERNEL_CORRELATION);
        break;
    }
    case MP_CUPTI_MEMCPY:
        read_copy(at, false, record);
        break;
    case MP_CUPTI_MEMCPY_PEER:
        read_copy(at, true, record);
        break;
    case MP_CUPTI_MEMSET:
        record->kind = MP_GPU_MEMSET;
        record->bytes = u64_at(at, COPY_BYTES);
        record->device = u32_at(at, COPY_DEVICE);
        record->stream = u32_at(at, COPY_STREAM);
        record->correlation = u32_at(at, COPY_CORRELATION);
        (void)snprintf(record->name, sizeof(record->name), "Memset (%s)",
                       memory_text(u8_at(at, SET_MEMORY)));
        break;
    default:
        return false;
    }
    /* Numbers that no machine has: better none than a wrong one. */
    return record->device <= INT16_MAX && record->end >= record->start;
}
