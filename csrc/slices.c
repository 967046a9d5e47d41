/* slices.c - one walk over the events, with what each thread is inside of.
 *
 * Bytes count in the innermost slice alone; one that ends hands its sums to
 * the one around it. */
#include "slices.h"

#include "mem.h"
#include "table.h"

#include <string.h>

typedef struct {
    uint32_t id;
    uint32_t *open; /* slices, innermost last */
    size_t depth, capacity;
} thread_t;

typedef struct {
    mp_slices_t *out;
    size_t capacity;   /* of out->slices */
    mp_table_t *index; /* thread number -> its place */
    thread_t *threads;
    size_t thread_count, thread_capacity;
    size_t last_place; /* most events are of the last one's thread */
    int64_t level;     /* bytes of the device */
} builder_t;

/* *ARRAY with room for one element more than COUNT; what is new is zeroed. */
static bool
grow(void **array, size_t *capacity, size_t count, size_t element)
{
    if (count < *capacity) {
        return true;
    }
    size_t wanted = *capacity == 0 ? 64 : *capacity * 2;
    char *larger = mp_realloc(*array, wanted * element);
    if (larger == NULL) {
        return false;
    }
    memset(larger + count * element, 0, (wanted - count) * element);
    *array = larger;
    *capacity = wanted;
    return true;
}

/* What is known of thread ID; NULL: nothing. */
static thread_t *
thread_find(builder_t *builder, uint32_t id)
{
    size_t place = builder->last_place;
    if (place >= builder->thread_count || builder->threads[place].id != id) {
        place = mp_table_get(builder->index, id);
    }
    if (place >= builder->thread_count) {
        return NULL;
    }
    builder->last_place = place;
    return &builder->threads[place];
}

/* The same, known from now on; NULL: out of memory.  Others move. */
static thread_t *
thread_of(builder_t *builder, uint32_t id)
{
    thread_t *found = thread_find(builder, id);
    size_t count = builder->thread_count;
    uint32_t previous;
    if (found != NULL) {
        return found;
    }
    if (!grow((void **)&builder->threads, &builder->thread_capacity, count,
              sizeof(thread_t)) ||
        mp_table_put(builder->index, id, (uint32_t)count, &previous) !=
            MP_OK) {
        return NULL;
    }
    builder->threads[count].id = id;
    builder->last_place = builder->thread_count++;
    return &builder->threads[count];
}

static uint32_t
innermost(const thread_t *thread)
{
    return thread->depth == 0 ? MP_NO_INDEX : thread->open[thread->depth - 1];
}

static mp_status_t
begin(builder_t *builder, const mp_event_t *event, int64_t at, uint8_t kind,
      uint32_t name)
{
    mp_slices_t *out = builder->out;
    thread_t *thread = thread_of(builder, event->thread);
    if (thread == NULL || out->count >= MP_NO_INDEX - 1 ||
        !grow((void **)&out->slices, &builder->capacity, out->count,
              sizeof(mp_slice_t))) {
        return MP_ERR_NOMEM;
    }
    if (!grow((void **)&thread->open, &thread->capacity, thread->depth,
              sizeof(uint32_t))) {
        return MP_ERR_NOMEM;
    }
    out->slices[out->count] = (mp_slice_t){
        .begin_event = at,
        .peak = builder->level,
        .name = name,
        .thread = (uint32_t)(thread - builder->threads),
        .parent = innermost(thread),
        .kind = kind,
        .is_open = true,
    };
    thread->open[thread->depth++] = (uint32_t)out->count++;
    return MP_OK;
}

/* The innermost slice of THREAD ends; the one around it gets its sums. */
static void
pop(builder_t *builder, thread_t *thread, int64_t at)
{
    mp_slice_t *slice = &builder->out->slices[thread->open[--thread->depth]];
    slice->is_open = false;
    slice->end_event = at;
    if (thread->depth > 0) {
        mp_slice_t *outer =
            &builder->out->slices[thread->open[thread->depth - 1]];
        outer->allocated += slice->allocated;
        outer->freed += slice->freed;
        outer->retained += slice->retained;
        outer->peak = outer->peak > slice->peak ? outer->peak : slice->peak;
        outer->touched |= slice->touched;
    }
}

static void
end(builder_t *builder, const mp_event_t *event, int64_t at, uint8_t kind,
    uint32_t name)
{
    thread_t *thread = thread_find(builder, event->thread);
    if (thread == NULL) {
        return;
    }
    mp_slice_t *slices = builder->out->slices;
    size_t depth = thread->depth;
    bool inside = false; /* of it is something that has not ended */
    for (; depth > 0; depth--) {
        const mp_slice_t *slice = &slices[thread->open[depth - 1]];
        if (slice->kind == kind && slice->name == name && !slice->is_ended) {
            break;
        }
        inside |= !slice->is_ended;
    }
    if (depth == 0) {
        return; /* it began before the recording, or its begin was lost */
    }
    if (kind == MP_SLICE_REGION && inside) {
        slices[thread->open[depth - 1]].is_ended = true;
        return;
    }
    while (thread->depth >= depth) {
        pop(builder, thread, at);
    }
    while (thread->depth > 0 && slices[innermost(thread)].is_ended) {
        pop(builder, thread, at);
    }
}

/* Bytes were allocated or freed on EVENT's thread. */
static mp_status_t
count_change(builder_t *builder, const mp_event_t *event,
             const mp_allocation_t *died, const mp_allocation_t *born)
{
    mp_slices_t *out = builder->out;
    const thread_t *thread = thread_of(builder, event->thread);
    if (thread == NULL) {
        return MP_ERR_NOMEM;
    }
    uint32_t in = innermost(thread);
    if (in != MP_NO_INDEX) {
        out->slices[in].touched = true;
    }
    if (died != NULL) {
        builder->level = (int64_t)((uint64_t)builder->level - died->size);
        out->died_in[died->id] = in;
        if (in != MP_NO_INDEX) {
            out->slices[in].freed += died->size;
        }
        uint32_t of = out->born_in[died->id];
        while (of != MP_NO_INDEX && !out->slices[of].is_open) {
            of = out->slices[of].parent;
        }
        if (of != MP_NO_INDEX) {
            int64_t *retained = &out->slices[of].retained;
            *retained = (int64_t)((uint64_t)*retained - died->size);
        }
    }
    if (born == NULL) {
        return MP_OK;
    }
    builder->level = (int64_t)((uint64_t)builder->level + born->size);
    out->born_in[born->id] = in;
    if (in != MP_NO_INDEX) {
        mp_slice_t *slice = &out->slices[in];
        slice->allocated += born->size;
        slice->retained = (int64_t)((uint64_t)slice->retained + born->size);
    }
    for (size_t i = 0; i < builder->thread_count; i++) {
        uint32_t open = innermost(&builder->threads[i]);
        if (open != MP_NO_INDEX && out->slices[open].peak < builder->level) {
            out->slices[open].peak = builder->level;
        }
    }
    return MP_OK;
}

static mp_status_t
apply(builder_t *builder, const mp_event_t *event, int64_t at)
{
    switch (event->kind) {
    case MP_EVENT_OP_BEGIN:
        return begin(builder, event, at, MP_SLICE_OP, event->op);
    case MP_EVENT_OP_END:
        end(builder, event, at, MP_SLICE_OP, event->op);
        return MP_OK;
    case MP_EVENT_MODULE_BEGIN:
        return begin(builder, event, at, MP_SLICE_MODULE, event->module);
    case MP_EVENT_MODULE_END:
        end(builder, event, at, MP_SLICE_MODULE, event->module);
        return MP_OK;
    case MP_EVENT_REGION_BEGIN:
        return begin(builder, event, at, MP_SLICE_REGION, event->op);
    case MP_EVENT_REGION_END:
        end(builder, event, at, MP_SLICE_REGION, event->op);
        return MP_OK;
    default:
        return MP_OK;
    }
}

static mp_status_t
build(builder_t *builder, const mp_export_t *source, int16_t device,
      mp_life_walk_t *walk)
{
    mp_status_t status = MP_OK;
    for (size_t i = 0; i < source->life_count; i++) {
        const mp_allocation_t *life = &source->lives[i];
        if (life->device == device && life->born_event < 0) {
            builder->level = (int64_t)((uint64_t)builder->level + life->size);
        }
    }
    for (size_t i = 0; i < source->event_count && status == MP_OK; i++) {
        const mp_event_t *event = &source->events[i];
        if (!mp_event_is_memory(event->kind)) {
            status = apply(builder, event, (int64_t)i);
            continue;
        }
        if (event->device != device) {
            continue;
        }
        const mp_allocation_t *died = mp_life_walk_died(walk, i);
        const mp_allocation_t *born = mp_life_walk_born(walk, i);
        if (died != NULL || born != NULL) {
            status = count_change(builder, event, died, born);
        }
    }
    int64_t last = (int64_t)source->event_count - 1;
    for (size_t i = 0; i < builder->thread_count; i++) {
        while (builder->threads[i].depth > 0) {
            pop(builder, &builder->threads[i], last);
        }
    }
    mp_slices_t *out = builder->out;
    out->threads = mp_calloc(builder->thread_count + 1, sizeof(uint32_t));
    if (out->threads == NULL) {
        return MP_ERR_NOMEM;
    }
    for (size_t i = 0; i < builder->thread_count; i++) {
        out->threads[out->thread_count++] = builder->threads[i].id;
    }
    return status;
}

mp_status_t
mp_slices_build(const mp_export_t *source, int16_t device,
                mp_life_walk_t *walk, mp_slices_t *out)
{
    *out = (mp_slices_t){0};
    builder_t builder = {.out = out};
    size_t bytes = (source->life_count + 1) * sizeof(uint32_t);
    mp_status_t status = MP_ERR_NOMEM;
    builder.index = mp_table_new(0);
    out->born_in = mp_calloc(1, bytes);
    out->died_in = mp_calloc(1, bytes);
    if (builder.index != NULL && out->born_in != NULL &&
        out->died_in != NULL) {
        memset(out->born_in, 0xff, bytes);
        memset(out->died_in, 0xff, bytes);
        status = build(&builder, source, device, walk);
    }
    for (size_t i = 0; i < builder.thread_count; i++) {
        mp_free(builder.threads[i].open);
    }
    mp_free(builder.threads);
    mp_table_free(builder.index);
    if (status != MP_OK) {
        mp_slices_clear(out);
    }
    return status;
}

void
mp_slices_clear(mp_slices_t *slices)
{
    mp_free(slices->slices);
    mp_free(slices->threads);
    mp_free(slices->born_in);
    mp_free(slices->died_in);
    *slices = (mp_slices_t){0};
}
