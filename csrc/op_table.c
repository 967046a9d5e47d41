/* op_table.c - one walk over the events, with what each thread is inside of.
 *
 * A thread has a stack of open frames: ops, backward nodes and regions as they
 * began.  Memory counts in the innermost frame alone; a frame that ends hands
 * its sums to the one around it, and its peak too, on top of what that one
 * held when it began.  So an event costs the same however deep it is. */
#include "op_table.h"

#include "mem.h"
#include "table.h"

#include <string.h>

/* A frame and one device. */
typedef struct {
    int64_t self_allocated, self_freed, self_peak;
    int64_t allocated, freed, peak; /* with what has ended inside */
    bool touched;
} cell_t;

typedef struct {
    uint32_t row;
    uint32_t name;
    bool region;
    bool top;       /* it began inside nothing */
    bool inner;     /* its row is open already, further out on this thread */
    bool same_call; /* of the frame around it: an op that calls an overload of
                       its own, a node in the engine's frame for it */
} frame_t;

typedef struct {
    frame_t *frames; /* innermost last */
    cell_t *cells;   /* [frame * device_count] */
    size_t count, capacity;
} thread_t;

typedef struct {
    const mp_intern_t *intern;
    uint32_t frames;
    size_t device_count;
    uint16_t *column; /* [device + 1], from 1; 0: left out */

    mp_table_t *names;      /* kind and name -> a number */
    mp_table_t *named_rows; /* that number and short stack -> row */
    uint32_t name_count;
    mp_table_t *short_of;    /* stack -> short stack */
    mp_table_t *short_steps; /* short stack and one frame more -> longer */
    uint32_t short_count;

    mp_op_row_t *rows;
    mp_op_bytes_t *bytes;
    uint32_t *open; /* [row] frames of it, of all threads */
    size_t row_count, row_capacity;

    mp_table_t *index; /* thread number -> its place */
    thread_t *threads;
    size_t thread_count, thread_capacity;
    uint32_t last_id, last_place; /* most events are of the last one's thread
                                   */
    thread_t outside;             /* one frame, of all threads */
} builder_t;

/* Sizes in a damaged file may be anything: sums wrap, never overflow. */
static int64_t
plus(int64_t left, int64_t right)
{
    return (int64_t)((uint64_t)left + (uint64_t)right);
}

static int64_t
minus(int64_t left, int64_t right)
{
    return (int64_t)((uint64_t)left - (uint64_t)right);
}

static int64_t
higher(int64_t left, int64_t right)
{
    return left > right ? left : right;
}

/* ARRAY, of HELD elements, with room for CAPACITY; what is new is zeroed.
 * NULL: out of memory, ARRAY is unchanged. */
static void *
grown(void *array, size_t held, size_t capacity, size_t element)
{
    char *larger = mp_realloc(array, capacity * element);
    if (larger != NULL) {
        memset(larger + held * element, 0, (capacity - held) * element);
    }
    return larger;
}

/* ---- rows --------------------------------------------------------------- */

/* The number behind KEY in TABLE, the next of *COUNT if it is new. */
static uint32_t
number_of(mp_table_t *table, uint64_t key, uint32_t *count, bool *is_new)
{
    uint32_t number = mp_table_get(table, key), previous;
    *is_new = number == MP_NO_INDEX;
    if (*is_new) {
        if (mp_table_put(table, key, *count, &previous) != MP_OK) {
            return MP_NO_INDEX;
        }
        number = (*count)++;
    }
    return number;
}

/* A number for the innermost frames of STACK: equal for equal frames.  The
 * first is that of no stack.  MP_NO_INDEX: out of memory. */
static uint32_t
short_stack(builder_t *builder, uint32_t stack)
{
    uint32_t found = mp_table_get(builder->short_of, stack);
    if (found != MP_NO_INDEX) {
        return found;
    }
    uint32_t shorter = 0, at = stack;
    mp_stack_t node;
    for (uint32_t i = 0; i < builder->frames && at != MP_NO_INDEX &&
                         mp_intern_get_stack(builder->intern, at, &node);
         i++) {
        bool is_new;
        shorter = number_of(builder->short_steps,
                            (uint64_t)shorter << 32 | node.frame,
                            &builder->short_count, &is_new);
        if (shorter == MP_NO_INDEX) {
            return MP_NO_INDEX;
        }
        at = node.parent;
    }
    uint32_t previous;
    return mp_table_put(builder->short_of, stack, shorter, &previous) == MP_OK
               ? shorter
               : MP_NO_INDEX;
}

static bool
rows_fit_one_more(builder_t *builder)
{
    size_t held = builder->row_capacity, wanted = held == 0 ? 64 : held * 2;
    if (builder->row_count < held) {
        return true;
    }
    size_t devices = builder->device_count;
    mp_op_row_t *rows =
        grown(builder->rows, held, wanted, sizeof(mp_op_row_t));
    builder->rows = rows != NULL ? rows : builder->rows;
    uint32_t *open = grown(builder->open, held, wanted, sizeof(uint32_t));
    builder->open = open != NULL ? open : builder->open;
    mp_op_bytes_t *bytes = grown(builder->bytes, held * devices,
                                 wanted * devices, sizeof(mp_op_bytes_t));
    builder->bytes = bytes != NULL ? bytes : builder->bytes;
    if (rows == NULL || open == NULL || bytes == NULL) {
        return false;
    }
    builder->row_capacity = wanted;
    return true;
}

/* The row of a name.  MP_NO_INDEX: out of memory. */
static uint32_t
row_of(builder_t *builder, mp_op_kind_t kind, uint32_t name, uint32_t stack)
{
    bool is_new;
    uint32_t number = number_of(builder->names, (uint64_t)kind << 32 | name,
                                &builder->name_count, &is_new);
    uint32_t shorter = 0;
    if (builder->frames > 0 && stack != MP_NO_INDEX) {
        shorter = short_stack(builder, stack);
    }
    if (number == MP_NO_INDEX || shorter == MP_NO_INDEX) {
        return MP_NO_INDEX;
    }
    uint64_t key = (uint64_t)number << 32 | shorter;
    uint32_t row = mp_table_get(builder->named_rows, key), previous;
    if (row != MP_NO_INDEX) {
        return row;
    }
    if (!rows_fit_one_more(builder)) {
        return MP_NO_INDEX;
    }
    row = (uint32_t)builder->row_count;
    if (mp_table_put(builder->named_rows, key, row, &previous) != MP_OK) {
        return MP_NO_INDEX;
    }
    builder->rows[row] = (mp_op_row_t){
        .name = name,
        .stack = shorter == 0 ? MP_NO_INDEX : stack,
        .kind = (uint8_t)kind,
    };
    builder->row_count++;
    return row;
}

/* ---- frames ------------------------------------------------------------- */

/* The thread's frames; NULL: none, or with ADD: out of memory. */
static thread_t *
thread_of(builder_t *builder, uint32_t id, bool add)
{
    if (id == builder->last_id && builder->last_place != MP_NO_INDEX) {
        return &builder->threads[builder->last_place];
    }
    uint32_t place = mp_table_get(builder->index, id), previous;
    if (place == MP_NO_INDEX) {
        if (!add) {
            return NULL;
        }
        size_t held = builder->thread_capacity;
        if (builder->thread_count == held) {
            size_t wanted = held == 0 ? 8 : held * 2;
            thread_t *threads =
                grown(builder->threads, held, wanted, sizeof(thread_t));
            if (threads == NULL) {
                return NULL;
            }
            builder->threads = threads;
            builder->thread_capacity = wanted;
        }
        place = (uint32_t)builder->thread_count;
        if (mp_table_put(builder->index, id, place, &previous) != MP_OK) {
            return NULL;
        }
        builder->thread_count++;
    }
    builder->last_id = id;
    builder->last_place = place;
    return &builder->threads[place];
}

static bool
push(builder_t *builder, thread_t *thread, const frame_t *frame)
{
    size_t devices = builder->device_count;
    if (thread->count == thread->capacity) {
        size_t held = thread->capacity, wanted = held == 0 ? 8 : held * 2;
        frame_t *frames = grown(thread->frames, held, wanted, sizeof(frame_t));
        thread->frames = frames != NULL ? frames : thread->frames;
        cell_t *cells = grown(thread->cells, held * devices, wanted * devices,
                              sizeof(cell_t));
        thread->cells = cells != NULL ? cells : thread->cells;
        if (frames == NULL || cells == NULL) {
            return false;
        }
        thread->capacity = wanted;
    }
    memset(&thread->cells[thread->count * devices], 0,
           devices * sizeof(cell_t));
    thread->frames[thread->count++] = *frame;
    builder->open[frame->row]++;
    return true;
}

/* The row is open on this thread.  Looked for only if it is open at all. */
static bool
is_open(const builder_t *builder, const thread_t *thread, uint32_t row)
{
    for (size_t i = builder->open[row] > 0 ? thread->count : 0; i-- > 0;) {
        if (thread->frames[i].row == row) {
            return true;
        }
    }
    return false;
}

/* Add what INNER holds to OUTER, inside which it began. */
static void
fold(cell_t *outer, const cell_t *inner)
{
    int64_t held = minus(outer->allocated, outer->freed);
    outer->peak = higher(outer->peak, plus(held, inner->peak));
    outer->allocated = plus(outer->allocated, inner->allocated);
    outer->freed = plus(outer->freed, inner->freed);
    outer->touched |= inner->touched;
}

/* A call of a row is over: WHOLE is what happened in it on one device. */
static void
bytes_add(mp_op_bytes_t *bytes, const frame_t *frame, const cell_t *whole)
{
    bytes->self_allocated = plus(bytes->self_allocated, whole->self_allocated);
    bytes->self_freed = plus(bytes->self_freed, whole->self_freed);
    bytes->self_peak = higher(bytes->self_peak, whole->self_peak);
    if (!frame->inner) {
        bytes->allocated = plus(bytes->allocated, whole->allocated);
        bytes->freed = plus(bytes->freed, whole->freed);
        bytes->peak = higher(bytes->peak, whole->peak);
    }
    bytes->calls += whole->touched && !frame->same_call;
}

/* Frame PLACE ends.  What began inside it and has not ended goes on: a region
 * may end while ops inside it run. */
static void
leave(builder_t *builder, thread_t *thread, size_t place)
{
    size_t devices = builder->device_count;
    const frame_t frame = thread->frames[place];
    bool touched = false;
    for (size_t d = 0; d < devices; d++) {
        const cell_t *own = &thread->cells[place * devices + d];
        cell_t whole = *own;
        for (size_t i = place + 1; i < thread->count; i++) {
            fold(&whole, &thread->cells[i * devices + d]);
        }
        bytes_add(&builder->bytes[frame.row * devices + d], &frame, &whole);
        touched |= whole.touched;
        if (place > 0) {
            fold(&thread->cells[(place - 1) * devices + d], own);
        }
    }
    mp_op_row_t *row = &builder->rows[frame.row];
    row->calls += touched && !frame.same_call;
    row->top |= touched && frame.top;
    builder->open[frame.row]--;
    size_t behind = --thread->count - place;
    if (behind > 0) {
        memmove(&thread->frames[place], &thread->frames[place + 1],
                behind * sizeof(frame_t));
        memmove(&thread->cells[place * devices],
                &thread->cells[(place + 1) * devices],
                behind * devices * sizeof(cell_t));
    }
}

static mp_status_t
begin(builder_t *builder, const mp_event_t *event)
{
    bool region = event->kind == MP_EVENT_REGION_BEGIN;
    thread_t *thread = thread_of(builder, event->thread, true);
    if (thread == NULL) {
        return MP_ERR_NOMEM;
    }
    const frame_t *around =
        thread->count > 0 ? &thread->frames[thread->count - 1] : NULL;
    bool node = (event->flags & MP_FLAG_BACKWARD_OP) != 0;
    bool same_call = !region && !node && around != NULL && !around->region &&
                     around->name == event->op;
    uint32_t row = same_call ? around->row
                             : row_of(builder,
                                      region ? MP_OP_KIND_REGION
                                      : node ? MP_OP_KIND_BACKWARD
                                             : MP_OP_KIND_OP,
                                      event->op, event->stack);
    if (row == MP_NO_INDEX) {
        return MP_ERR_NOMEM;
    }
    frame_t frame = {
        .row = row,
        .name = event->op,
        .region = region,
        .top = around == NULL,
        .inner = around != NULL && is_open(builder, thread, row),
        .same_call = same_call,
    };
    return push(builder, thread, &frame) ? MP_OK : MP_ERR_NOMEM;
}

/* As nesting.c: the innermost of that name ends, and with an op those that
 * were left open inside it. */
static void
end(builder_t *builder, const mp_event_t *event)
{
    bool region = event->kind == MP_EVENT_REGION_END;
    thread_t *thread = thread_of(builder, event->thread, false);
    size_t place = thread == NULL ? 0 : thread->count;
    while (place > 0 && (thread->frames[place - 1].region != region ||
                         thread->frames[place - 1].name != event->op)) {
        place--;
    }
    if (place-- == 0) {
        return; /* its begin was not seen */
    }
    if (region) {
        leave(builder, thread, place);
        return;
    }
    for (size_t i = thread->count; i-- > place;) {
        if (!thread->frames[i].region) {
            leave(builder, thread, i);
        }
    }
}

/* ---- memory ------------------------------------------------------------- */

/* The cell that a memory event counts in; NULL: the device is left out. */
static cell_t *
cell_of(builder_t *builder, const mp_event_t *event)
{
    uint16_t column =
        event->device < MP_DEVICE_CPU ? 0 : builder->column[event->device + 1];
    if (column == 0) {
        return NULL;
    }
    const thread_t *thread = thread_of(builder, event->thread, false);
    if (thread == NULL || thread->count == 0) {
        thread = &builder->outside;
    }
    return &thread->cells[(thread->count - 1) * builder->device_count +
                          column - 1];
}

static void
cell_add(cell_t *cell, uint64_t allocated, uint64_t freed)
{
    cell->touched = true;
    cell->self_allocated = plus(cell->self_allocated, (int64_t)allocated);
    cell->self_freed = plus(cell->self_freed, (int64_t)freed);
    cell->allocated = plus(cell->allocated, (int64_t)allocated);
    cell->freed = plus(cell->freed, (int64_t)freed);
    cell->self_peak =
        higher(cell->self_peak, minus(cell->self_allocated, cell->self_freed));
    cell->peak = higher(cell->peak, minus(cell->allocated, cell->freed));
}

/* Which life an event ends.  Not of the kind that begin and end in one event:
 * those were over before.  NULL: out of memory. */
static uint32_t *
ends_new(size_t event_count, const mp_allocation_t *lives, size_t life_count)
{
    uint32_t *died = mp_calloc(event_count + 1, sizeof(uint32_t));
    if (died == NULL) {
        return NULL;
    }
    memset(died, 0xff, event_count * sizeof(uint32_t));
    for (size_t i = 0; i < life_count; i++) {
        const mp_allocation_t *life = &lives[i];
        if (life->died_event >= 0 && life->died_event != life->born_event &&
            (size_t)life->died_event < event_count) {
            died[life->died_event] = (uint32_t)i;
        }
    }
    return died;
}

static mp_status_t
walk(builder_t *builder, const mp_event_t *events, size_t event_count,
     const mp_allocation_t *lives, size_t life_count)
{
    uint32_t *died = ends_new(event_count, lives, life_count);
    mp_status_t status = died == NULL ? MP_ERR_NOMEM : MP_OK;
    size_t life = 0; /* they are in order of birth */
    for (size_t i = 0; status == MP_OK && i < event_count; i++) {
        const mp_event_t *event = &events[i];
        switch (event->kind) {
        case MP_EVENT_OP_BEGIN:
        case MP_EVENT_REGION_BEGIN:
            status = begin(builder, event);
            continue;
        case MP_EVENT_OP_END:
        case MP_EVENT_REGION_END:
            end(builder, event);
            continue;
        case MP_EVENT_ALLOC: /* may replace a block whose free was lost */
        case MP_EVENT_FREE_REQUESTED:
        case MP_EVENT_FREE_COMPLETED:
            break;
        default:
            continue;
        }
        while (life < life_count && lives[life].born_event < (int64_t)i) {
            life++;
        }
        bool born = event->kind == MP_EVENT_ALLOC && life < life_count &&
                    lives[life].born_event == (int64_t)i;
        cell_t *cell =
            born || died[i] != MP_NO_INDEX ? cell_of(builder, event) : NULL;
        if (cell != NULL && died[i] != MP_NO_INDEX) {
            cell_add(cell, 0, lives[died[i]].size);
        }
        if (cell != NULL && born) {
            cell_add(cell, lives[life].size, 0);
        }
    }
    mp_free(died);
    return status;
}

/* ---- the whole ---------------------------------------------------------- */

static mp_status_t
builder_init(builder_t *builder, const int16_t *devices, size_t device_count)
{
    builder->last_place = MP_NO_INDEX;
    builder->device_count = device_count;
    builder->short_count = 1; /* 0: no stack */
    builder->names = mp_table_new(0);
    builder->named_rows = mp_table_new(0);
    builder->short_of = mp_table_new(0);
    builder->short_steps = mp_table_new(0);
    builder->index = mp_table_new(0);
    builder->column = mp_calloc((size_t)INT16_MAX + 2, sizeof(uint16_t));
    if (builder->names == NULL || builder->named_rows == NULL ||
        builder->short_of == NULL || builder->short_steps == NULL ||
        builder->index == NULL || builder->column == NULL ||
        !rows_fit_one_more(builder)) {
        return MP_ERR_NOMEM;
    }
    for (size_t i = 0; i < device_count; i++) {
        if (devices[i] >= MP_DEVICE_CPU) {
            builder->column[devices[i] + 1] = (uint16_t)(i + 1);
        }
    }
    frame_t outside = {
        .row = row_of(builder, MP_OP_KIND_OUTSIDE, MP_NO_INDEX, MP_NO_INDEX),
        .name = MP_NO_INDEX,
        .top = true,
    };
    return outside.row != MP_NO_INDEX &&
                   push(builder, &builder->outside, &outside)
               ? MP_OK
               : MP_ERR_NOMEM;
}

static void
thread_clear(thread_t *thread)
{
    mp_free(thread->frames);
    mp_free(thread->cells);
}

/* All but the rows. */
static void
builder_clear(builder_t *builder)
{
    for (size_t i = 0; i < builder->thread_count; i++) {
        thread_clear(&builder->threads[i]);
    }
    thread_clear(&builder->outside);
    mp_free(builder->threads);
    mp_free(builder->open);
    mp_free(builder->column);
    mp_table_free(builder->names);
    mp_table_free(builder->named_rows);
    mp_table_free(builder->short_of);
    mp_table_free(builder->short_steps);
    mp_table_free(builder->index);
}

/* End what is open, and keep the rows in which memory was touched.  The first
 * is no call. */
static void
finish(builder_t *builder, mp_op_table_t *out)
{
    for (size_t i = 0; i < builder->thread_count; i++) {
        while (builder->threads[i].count > 0) {
            leave(builder, &builder->threads[i],
                  builder->threads[i].count - 1);
        }
    }
    leave(builder, &builder->outside, 0);
    size_t devices = builder->device_count, kept = 0;
    for (size_t i = 0; i < builder->row_count; i++) {
        if (builder->rows[i].calls > 0) {
            builder->rows[kept] = builder->rows[i];
            memmove(&builder->bytes[kept * devices],
                    &builder->bytes[i * devices],
                    devices * sizeof(mp_op_bytes_t));
            kept++;
        }
    }
    if (kept > 0 && builder->rows[0].kind == MP_OP_KIND_OUTSIDE) {
        builder->rows[0].calls = 0;
        for (size_t d = 0; d < devices; d++) {
            builder->bytes[d].calls = 0;
        }
    }
    *out = (mp_op_table_t){
        .count = kept,
        .device_count = devices,
        .rows = builder->rows,
        .bytes = builder->bytes,
    };
}

mp_status_t
mp_op_table_build(const mp_event_t *events, size_t event_count,
                  const mp_allocation_t *lives, size_t life_count,
                  const int16_t *devices, size_t device_count, uint32_t frames,
                  const mp_intern_t *intern, mp_op_table_t *out)
{
    builder_t builder = {.intern = intern, .frames = frames};
    mp_status_t status = builder_init(&builder, devices, device_count);
    if (status == MP_OK) {
        status = walk(&builder, events, event_count, lives, life_count);
    }
    if (status == MP_OK) {
        finish(&builder, out);
    }
    else {
        mp_free(builder.rows);
        mp_free(builder.bytes);
    }
    builder_clear(&builder);
    return status;
}

void
mp_op_table_clear(mp_op_table_t *table)
{
    mp_free(table->rows);
    mp_free(table->bytes);
    *table = (mp_op_table_t){0};
}
