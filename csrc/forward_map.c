/* forward_map.c - a direct-mapped store of ops, a list of module spans. */
#include "forward_map.h"

#include "mem.h"

#include <string.h>

#define OP_SLOTS (1u << 17) /* a power of two */
#define MAX_SPANS (1u << 16)
#define MAX_GAP 64 /* how far a neighbour may be */
#define MAX_THREADS 1024

typedef struct {
    uint64_t thread;
    uint64_t sequence_plus_1; /* 0: empty */
    mp_forward_t forward;
} op_slot_t;

/* A finished forward.  Spans of one thread end in the order of their `high`,
 * an inner one before its outer one: the first span that reaches beyond a
 * number and begins at or before it is the innermost. */
typedef struct {
    uint64_t low;
    uint64_t high;
    uint32_t module;
} span_t;

typedef struct {
    uint64_t id;
    span_t *done; /* by rising `high` */
    span_t *open; /* outermost first */
    uint32_t done_count, done_capacity;
    uint32_t open_count, open_capacity;
    uint64_t used; /* map->uses at the last module begin */
} thread_spans_t;

struct mp_forward_map {
    op_slot_t *slots; /* reserved: pages cost nothing until touched */
    thread_spans_t *threads;
    uint32_t thread_count;
    uint32_t slots_used;
    uint64_t uses;
};

mp_status_t
mp_forward_map_new(mp_forward_map_t **out)
{
    mp_forward_map_t *map = mp_calloc(1, sizeof(*map));
    if (map == NULL) {
        return MP_ERR_NOMEM;
    }
    map->slots = mp_reserve(OP_SLOTS * sizeof(op_slot_t));
    if (map->slots == NULL) {
        mp_free(map);
        return MP_ERR_NOMEM;
    }
    *out = map;
    return MP_OK;
}

void
mp_forward_map_free(mp_forward_map_t *map)
{
    if (map == NULL) {
        return;
    }
    for (uint32_t i = 0; i < map->thread_count; i++) {
        mp_free(map->threads[i].done);
        mp_free(map->threads[i].open);
    }
    mp_free(map->threads);
    mp_unreserve(map->slots, OP_SLOTS * sizeof(op_slot_t));
    mp_free(map);
}

/* Consecutive numbers of a thread fall into consecutive slots. */
static op_slot_t *
slot_of(const mp_forward_map_t *map, uint64_t thread, uint64_t sequence)
{
    uint64_t spread = thread * UINT64_C(0x9E3779B97F4A7C15) >> 40;
    return &map->slots[(sequence + spread) & (OP_SLOTS - 1)];
}

void
mp_forward_map_put_op(mp_forward_map_t *map, uint64_t thread,
                      uint64_t sequence, const mp_forward_t *forward)
{
    op_slot_t *slot = slot_of(map, thread, sequence);
    map->slots_used += slot->sequence_plus_1 == 0;
    *slot = (op_slot_t){thread, sequence + 1, *forward};
}

static thread_spans_t *
thread_find(const mp_forward_map_t *map, uint64_t id)
{
    for (uint32_t i = 0; i < map->thread_count; i++) {
        if (map->threads[i].id == id) {
            return &map->threads[i];
        }
    }
    return NULL;
}

static bool
span_push(span_t **spans, uint32_t *count, uint32_t *capacity,
          const span_t *span)
{
    if (*count == *capacity) {
        uint32_t wanted = *capacity == 0 ? 64 : *capacity * 2;
        span_t *larger = mp_realloc(*spans, wanted * sizeof(span_t));
        if (larger == NULL) {
            return false;
        }
        *spans = larger;
        *capacity = wanted;
    }
    (*spans)[(*count)++] = *span;
    return true;
}

/* The thread's spans, made if need be; NULL: out of memory.  The one that
 * was used longest ago gives its place to a thread too many. */
static thread_spans_t *
thread_of(mp_forward_map_t *map, uint64_t id)
{
    thread_spans_t *spans = thread_find(map, id);
    if (spans != NULL) {
        return spans;
    }
    if (map->thread_count == MAX_THREADS) {
        spans = &map->threads[0];
        for (uint32_t i = 1; i < MAX_THREADS; i++) {
            if (map->threads[i].used < spans->used) {
                spans = &map->threads[i];
            }
        }
        mp_free(spans->done);
        mp_free(spans->open);
    }
    else {
        thread_spans_t *larger = mp_realloc(
            map->threads, (map->thread_count + 1) * sizeof(*larger));
        if (larger == NULL) {
            return NULL;
        }
        map->threads = larger;
        spans = &larger[map->thread_count++];
    }
    *spans = (thread_spans_t){.id = id};
    return spans;
}

mp_status_t
mp_forward_map_module_begin(mp_forward_map_t *map, uint64_t thread,
                            uint64_t sequence, uint32_t module)
{
    thread_spans_t *spans = thread_of(map, thread);
    if (spans == NULL) {
        return MP_ERR_NOMEM;
    }
    spans->used = ++map->uses;
    span_t span = {.low = sequence, .high = sequence, .module = module};
    return span_push(&spans->open, &spans->open_count, &spans->open_capacity,
                     &span)
               ? MP_OK
               : MP_ERR_NOMEM;
}

void
mp_forward_map_module_end(mp_forward_map_t *map, uint64_t thread,
                          uint64_t sequence, uint32_t module)
{
    thread_spans_t *spans = thread_find(map, thread);
    if (spans == NULL) {
        return;
    }
    uint32_t i = spans->open_count;
    while (i > 0 && spans->open[i - 1].module != module) {
        i--;
    }
    if (i == 0) {
        return; /* it began before us */
    }
    span_t span = spans->open[i - 1];
    spans->open_count = i - 1; /* and what an exception left open inside */
    span.high = sequence;
    if (span.high == span.low) {
        return; /* made no node */
    }
    if (spans->done_count >= MAX_SPANS) {
        spans->done_count = MAX_SPANS / 2;
        memmove(spans->done, spans->done + MAX_SPANS / 2,
                MAX_SPANS / 2 * sizeof(span_t));
    }
    /* Out of memory: these nodes will not find their module. */
    (void)span_push(&spans->done, &spans->done_count, &spans->done_capacity,
                    &span);
}

static uint32_t
module_of(const mp_forward_map_t *map, uint64_t thread, uint64_t sequence)
{
    const thread_spans_t *spans = thread_find(map, thread);
    if (spans == NULL) {
        return MP_NO_INDEX;
    }
    uint32_t low = 0, high = spans->done_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (spans->done[middle].high > sequence) {
            high = middle;
        }
        else {
            low = middle + 1;
        }
    }
    for (uint32_t i = low; i < spans->done_count; i++) {
        if (spans->done[i].low <= sequence) {
            return spans->done[i].module;
        }
    }
    for (uint32_t i = spans->open_count; i-- > 0;) { /* backward inside */
        if (spans->open[i].low <= sequence) {
            return spans->open[i].module;
        }
    }
    return MP_NO_INDEX;
}

/* The nearest logged op of THREAD from SEQUENCE on in DIRECTION. */
static const op_slot_t *
neighbour(const mp_forward_map_t *map, uint64_t thread, uint64_t sequence,
          int direction)
{
    for (uint64_t i = 1; i <= MAX_GAP; i++) {
        uint64_t number = direction < 0 ? sequence - i : sequence + i;
        const op_slot_t *slot = slot_of(map, thread, number);
        if (slot->sequence_plus_1 == number + 1 && slot->thread == thread) {
            return slot;
        }
    }
    return NULL;
}

void
mp_forward_map_find(const mp_forward_map_t *map, uint64_t thread,
                    uint64_t sequence, mp_forward_t *forward)
{
    const op_slot_t *slot = slot_of(map, thread, sequence);
    if (slot->sequence_plus_1 == sequence + 1 && slot->thread == thread) {
        *forward = slot->forward;
        return;
    }
    /* The op touched no memory (a view, say).  Between two ops of one module
     * it was that module's; else the hooked module that spanned it. */
    const op_slot_t *before = neighbour(map, thread, sequence, -1);
    const op_slot_t *after = neighbour(map, thread, sequence, 1);
    uint32_t module = MP_NO_INDEX;
    if (before != NULL && after != NULL &&
        before->forward.module == after->forward.module) {
        module = before->forward.module;
    }
    if (module == MP_NO_INDEX) {
        module = module_of(map, thread, sequence);
    }
    *forward = (mp_forward_t){MP_NO_INDEX, module, MP_NO_INDEX};
}

size_t
mp_forward_map_bytes(const mp_forward_map_t *map)
{
    size_t bytes = map->slots_used * sizeof(op_slot_t);
    for (uint32_t i = 0; i < map->thread_count; i++) {
        bytes +=
            (map->threads[i].done_capacity + map->threads[i].open_capacity) *
            sizeof(span_t);
    }
    return bytes;
}
