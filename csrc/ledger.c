/* ledger.c - what the process holds of the driver, whoever asked for it. */
#include "ledger.h"

#include "mem.h"
#include "table.h"

#include <string.h>

#define MAX_ROWS ((size_t)1 << 22)
#define RECENT 256 /* ends that may still be put back */
#define MAX_CONTEXTS 64

/* What is given back by the same calls: one table of addresses each. */
enum {
    LINEAR, /* cuMemFree and its kin */
    HANDLES,
    MAPPINGS,
    RANGES,
    POOLS,
    PINNED,
    ARRAYS,
    OBJECTS, /* of external memory */
    FAMILIES
};

struct mp_ledger {
    bool keep_dead;
    bool gap_open;
    mp_driver_life_t *rows; /* reserved: never moves */
    size_t count;
    uint32_t free_row;       /* chain, by `op`; MP_NO_INDEX: none */
    uint32_t recent[RECENT]; /* rows that ended last; MP_NO_INDEX: none */
    size_t recent_at;
    mp_table_t *live[FAMILIES];
    struct {
        uint64_t context;
        int16_t device;
    } contexts[MAX_CONTEXTS]; /* whose device is known */
    size_t context_count;
    mp_driver_gap_t *gaps;
    size_t gap_count;
    mp_ledger_counts_t counts;
};

static int
family_of(unsigned group)
{
    switch (group) {
    case MP_DRIVER_PHYSICAL:
    case MP_DRIVER_HOST_PHYSICAL:
    case MP_DRIVER_MULTICAST:
        return HANDLES;
    case MP_DRIVER_MAPPING:
        return MAPPINGS;
    case MP_DRIVER_ADDRESS_RANGE:
        return RANGES;
    case MP_DRIVER_POOL:
        return POOLS;
    case MP_DRIVER_HOST:
    case MP_DRIVER_HOST_REGISTERED:
        return PINNED;
    case MP_DRIVER_ARRAY:
        return ARRAYS;
    case MP_DRIVER_EXTERNAL:
        return OBJECTS;
    default:
        return LINEAR;
    }
}

/* ---- life cycle --------------------------------------------------------- */

mp_status_t
mp_ledger_new(bool keep_dead, mp_ledger_t **out)
{
    mp_ledger_t *ledger = mp_calloc(1, sizeof(*ledger));
    if (ledger == NULL) {
        return MP_ERR_NOMEM;
    }
    ledger->keep_dead = keep_dead;
    ledger->free_row = MP_NO_INDEX;
    memset(ledger->recent, 0xff, sizeof(ledger->recent));
    ledger->rows = mp_reserve(MAX_ROWS * sizeof(mp_driver_life_t));
    bool whole = ledger->rows != NULL;
    for (int i = 0; whole && i < FAMILIES; i++) {
        ledger->live[i] = mp_table_new(16);
        whole = ledger->live[i] != NULL;
    }
    if (!whole) {
        mp_ledger_free(ledger);
        return MP_ERR_NOMEM;
    }
    *out = ledger;
    return MP_OK;
}

void
mp_ledger_free(mp_ledger_t *ledger)
{
    if (ledger != NULL) {
        for (int i = 0; i < FAMILIES; i++) {
            mp_table_free(ledger->live[i]);
        }
        mp_unreserve(ledger->rows, MAX_ROWS * sizeof(mp_driver_life_t));
        mp_free(ledger->gaps);
        mp_free(ledger);
    }
}

/* ---- rows --------------------------------------------------------------- */

static mp_driver_life_t *
live_row(const mp_ledger_t *ledger, int family, uint64_t address)
{
    uint32_t index = mp_table_get(ledger->live[family], address);
    return index == MP_NO_INDEX ? NULL : &ledger->rows[index];
}

static uint32_t
row_new(mp_ledger_t *ledger)
{
    if (ledger->free_row != MP_NO_INDEX) {
        uint32_t index = ledger->free_row;
        ledger->free_row = ledger->rows[index].op;
        return index;
    }
    return ledger->count < MAX_ROWS ? (uint32_t)ledger->count++ : MP_NO_INDEX;
}

/* What was put back since is no end any more. */
static void
row_recycle(mp_ledger_t *ledger, uint32_t index)
{
    if (!ledger->keep_dead && index != MP_NO_INDEX) {
        ledger->rows[index].op = ledger->free_row;
        ledger->free_row = index;
    }
}

static void
row_end(mp_ledger_t *ledger, mp_driver_life_t *row, uint64_t token,
        int64_t time_ns, int64_t index, int32_t step)
{
    (void)mp_table_take(ledger->live[family_of(row->group)], row->address);
    row->died_event = index;
    row->died_ns = time_ns;
    row->died_step = step;
    row->token = token;
    uint32_t *place = &ledger->recent[ledger->recent_at++ % RECENT];
    row_recycle(ledger, *place);
    *place = (uint32_t)(row - ledger->rows);
}

/* An end that an event tells of. */
typedef struct {
    mp_ledger_t *ledger;
    const mp_event_t *event;
    uint64_t token;
    int64_t index;
    int32_t step;
} ending_t;

static void
end(const ending_t *ending, mp_driver_life_t *row)
{
    row_end(ending->ledger, row, ending->token, ending->event->time_ns,
            ending->index, ending->step);
}

/* A handle loses one reference, the last one with its bytes. */
static void
handle_release(const ending_t *ending, mp_driver_life_t *handle)
{
    if (handle->references > 0) {
        handle->references--;
    }
    if (handle->references == 0) {
        end(ending, handle);
    }
}

static void
mapping_end(const ending_t *ending, mp_driver_life_t *mapping)
{
    mp_driver_life_t *handle =
        live_row(ending->ledger, HANDLES, mapping->handle);
    end(ending, mapping);
    if (handle != NULL) {
        handle_release(ending, handle);
    }
}

/* Whether there is another mapping that lies wholly in [*AT, END): *ROW, and
 * *AT behind it.  They mostly follow each other without holes. */
static bool
next_mapping(const mp_ledger_t *ledger, uint64_t *at, uint64_t end_address,
             mp_driver_life_t **row)
{
    if (*at >= end_address) {
        return false;
    }
    mp_driver_life_t *found = live_row(ledger, MAPPINGS, *at);
    if (found == NULL) {
        size_t cursor = 0;
        uint64_t address;
        uint32_t index;
        while (
            mp_table_next(ledger->live[MAPPINGS], &cursor, &address, &index)) {
            if (address > *at && address < end_address &&
                (found == NULL || address < found->address)) {
                found = &ledger->rows[index];
            }
        }
    }
    if (found == NULL || found->size > end_address - found->address) {
        return false;
    }
    *at = found->address + (found->size > 0 ? found->size : 1);
    *row = found;
    return true;
}

static uint64_t
range_end(const mp_event_t *event)
{
    uint64_t end_address = event->addr + event->size;
    return end_address < event->addr ? UINT64_MAX : end_address;
}

/* The device of a context, if a DRIVER_CONTEXT has told it. */
static int16_t
device_of(const mp_ledger_t *ledger, uint64_t context)
{
    for (size_t i = 0; i < ledger->context_count; i++) {
        if (ledger->contexts[i].context == context) {
            return ledger->contexts[i].device;
        }
    }
    return MP_DEVICE_UNKNOWN;
}

/* ---- taking ------------------------------------------------------------- */

static void
row_fill(mp_driver_life_t *row, const mp_event_t *event, int64_t index,
         int32_t step)
{
    bool seed = (event->flags & MP_FLAG_SEED) != 0;
    *row = (mp_driver_life_t){
        .born_event = seed ? -1 : index,
        .died_event = -1,
        .born_ns = seed ? -1 : event->time_ns,
        .died_ns = -1,
        .address = event->addr,
        .size = event->size,
        .handle = event->stream,
        .thread = event->thread,
        .op = event->op,
        .module = event->module,
        .stack = event->stack,
        .owner = event->op_instance,
        .born_step = seed ? -1 : step,
        .died_step = -1,
        .references = 1,
        .device = event->device,
        .flags = event->flags,
        .group = (uint8_t)event->pool,
        .phase = event->phase,
        .is_torch = (event->flags & MP_FLAG_TORCH) != 0,
    };
}

static mp_status_t
take(mp_ledger_t *ledger, const mp_event_t *event, int64_t index, int32_t step)
{
    bool seed = (event->flags & MP_FLAG_SEED) != 0;
    int family = family_of(event->pool);
    uint32_t known = mp_table_get(ledger->live[family], event->addr);
    if (known != MP_NO_INDEX && family == HANDLES &&
        (event->flags & MP_FLAG_RETAINED)) {
        ledger->rows[known].references++;
        return MP_OK;
    }
    if (known != MP_NO_INDEX && seed) {
        return MP_OK;
    }
    uint32_t number = row_new(ledger);
    if (number == MP_NO_INDEX) {
        return MP_ERR_FULL;
    }
    if (known != MP_NO_INDEX) {
        mp_driver_life_t *there = &ledger->rows[known];
        ending_t replaced = {ledger, event, 0, index, step};
        if (family == MAPPINGS) {
            mapping_end(&replaced, there);
        }
        else {
            end(&replaced, there);
        }
        ledger->counts.replaced++;
    }
    mp_driver_life_t *row = &ledger->rows[number];
    row_fill(row, event, index, step);
    if (row->device == MP_DEVICE_UNKNOWN) {
        /* The callback had looked just before it became known. */
        row->device = device_of(ledger, event->stream);
    }
    uint32_t previous;
    if (mp_table_put(ledger->live[family], event->addr, number, &previous) !=
        MP_OK) {
        if (number + 1 == ledger->count) {
            ledger->count--;
        }
        else {
            row_recycle(ledger, number);
        }
        return MP_ERR_NOMEM;
    }
    if (family == HANDLES) { /* it belongs to no context */
        row->references = seed ? (uint32_t)event->stream : 1;
        row->handle = 0;
    }
    if (family == MAPPINGS) {
        mp_driver_life_t *handle = live_row(ledger, HANDLES, row->handle);
        if (handle != NULL) {
            row->device = handle->device;
            handle->references += !seed;
        }
    }
    return MP_OK;
}

/* ---- giving back -------------------------------------------------------- */

static void
unmap(const ending_t *ending)
{
    uint64_t at = ending->event->addr;
    mp_driver_life_t *mapping;
    bool any = false;
    while (next_mapping(ending->ledger, &at, range_end(ending->event),
                        &mapping)) {
        mapping_end(ending, mapping);
        any = true;
    }
    ending->ledger->counts.unknown_gives += !any;
}

static void
give(mp_ledger_t *ledger, const mp_event_t *event, int64_t index, int32_t step)
{
    ending_t ending = {ledger, event, event->stream, index, step};
    int family = family_of(event->pool);
    if (family == MAPPINGS) {
        unmap(&ending);
        return;
    }
    mp_driver_life_t *row = live_row(ledger, family, event->addr);
    if (row == NULL) {
        ledger->counts.unknown_gives++;
    }
    else if (family == HANDLES) {
        handle_release(&ending, row);
    }
    else {
        end(&ending, row);
    }
}

/* Undo the end of ROW, whose place in `recent` is PLACE.  False: something
 * else is there by now. */
static bool
revive(mp_ledger_t *ledger, uint32_t *place)
{
    mp_driver_life_t *row = &ledger->rows[*place];
    int family = family_of(row->group);
    uint32_t previous;
    if (live_row(ledger, family, row->address) != NULL ||
        mp_table_put(ledger->live[family], row->address, *place, &previous) !=
            MP_OK) {
        return false;
    }
    row->died_event = -1;
    row->died_ns = -1;
    row->died_step = -1;
    row->token = 0;
    *place = MP_NO_INDEX;
    return true;
}

/* Undo all ends in FAMILY that the give TOKEN has caused; how many. */
static size_t
revive_all(mp_ledger_t *ledger, int family, uint64_t token)
{
    size_t count = 0;
    for (size_t i = 0; i < RECENT; i++) {
        uint32_t *place = &ledger->recent[i];
        if (*place == MP_NO_INDEX) {
            continue;
        }
        mp_driver_life_t *row = &ledger->rows[*place];
        if (row->token != token || family_of(row->group) != family ||
            !revive(ledger, place)) {
            continue;
        }
        count++;
        if (family == MAPPINGS) {
            mp_driver_life_t *handle = live_row(ledger, HANDLES, row->handle);
            if (handle != NULL) {
                handle->references++;
            }
        }
    }
    return count;
}

static void
put_back(mp_ledger_t *ledger, const mp_event_t *event)
{
    int family = family_of(event->pool);
    size_t revived = 0;
    if (family == HANDLES) { /* it may have lost but one reference */
        mp_table_t *live = ledger->live[HANDLES];
        revived = mp_table_get(live, event->addr) != MP_NO_INDEX
                      ? 1
                      : revive_all(ledger, HANDLES, event->stream);
        uint32_t index = mp_table_get(live, event->addr);
        if (index != MP_NO_INDEX) {
            ledger->rows[index].references++;
        }
    }
    else {
        if (family == MAPPINGS) { /* a handle may have gone with its last */
            (void)revive_all(ledger, HANDLES, event->stream);
        }
        revived = revive_all(ledger, family, event->stream);
    }
    if (revived > 0) {
        ledger->counts.failed_gives++;
    }
    else {
        ledger->counts.lost_put_backs++;
    }
}

/* ---- contexts and gaps -------------------------------------------------- */

/* The context is gone, and with it what was allocated in it; physical handles
 * belong to none. */
static void
context_end(mp_ledger_t *ledger, const mp_event_t *event, int64_t index,
            int32_t step)
{
    ending_t ending = {ledger, event, 0, index, step};
    for (size_t i = 0; i < ledger->context_count; i++) {
        if (ledger->contexts[i].context == event->addr) {
            ledger->contexts[i] = ledger->contexts[--ledger->context_count];
        }
    }
    for (size_t i = 0; i < ledger->count; i++) {
        mp_driver_life_t *row = &ledger->rows[i];
        int family = family_of(row->group);
        if ((family == LINEAR || family == ARRAYS) &&
            row->handle == event->addr && row->died_event < 0 &&
            live_row(ledger, family, row->address) == row) {
            end(&ending, row);
        }
    }
}

static void
context_known(mp_ledger_t *ledger, const mp_event_t *event)
{
    if (device_of(ledger, event->addr) == MP_DEVICE_UNKNOWN &&
        ledger->context_count < MAX_CONTEXTS) {
        size_t place = ledger->context_count++;
        ledger->contexts[place].context = event->addr;
        ledger->contexts[place].device = event->device;
    }
    for (size_t i = 0; i < ledger->count; i++) {
        mp_driver_life_t *row = &ledger->rows[i];
        if (row->device == MP_DEVICE_UNKNOWN && row->handle == event->addr &&
            family_of(row->group) != MAPPINGS) {
            row->device = event->device;
        }
    }
}

static mp_status_t
gap(mp_ledger_t *ledger, const mp_event_t *event, int64_t index)
{
    if (event->addr == 0) {
        if (ledger->gap_open) {
            mp_driver_gap_t *last = &ledger->gaps[ledger->gap_count - 1];
            last->end_event = index;
            last->end_ns = event->time_ns;
            ledger->gap_open = false;
        }
        return MP_OK;
    }
    if (ledger->gap_open) {
        return MP_OK;
    }
    mp_driver_gap_t *gaps = mp_realloc(
        ledger->gaps, (ledger->gap_count + 1) * sizeof(mp_driver_gap_t));
    if (gaps == NULL) {
        return MP_ERR_NOMEM;
    }
    gaps[ledger->gap_count++] = (mp_driver_gap_t){
        .begin_event = event->flags & MP_FLAG_SEED ? -1 : index,
        .end_event = -1,
        .begin_ns = event->time_ns,
        .end_ns = -1,
        .reason = event->op,
    };
    ledger->gaps = gaps;
    ledger->gap_open = true;
    ledger->counts.gaps++;
    return MP_OK;
}

/* ---- the replay --------------------------------------------------------- */

mp_status_t
mp_ledger_apply(mp_ledger_t *ledger, const mp_event_t *event, int64_t index,
                int32_t step)
{
    switch (event->kind) {
    case MP_EVENT_DRIVER_ALLOC:
        return take(ledger, event, index, step);
    case MP_EVENT_DRIVER_FREE:
        give(ledger, event, index, step);
        return MP_OK;
    case MP_EVENT_DRIVER_PUT_BACK:
        put_back(ledger, event);
        return MP_OK;
    case MP_EVENT_DRIVER_OOM:
        ledger->counts.ooms++;
        return MP_OK;
    case MP_EVENT_DRIVER_MARK:
        if (event->pool == MP_DRIVER_MARK_CONTEXT_DESTROYED) {
            context_end(ledger, event, index, step);
        }
        return MP_OK;
    case MP_EVENT_DRIVER_GAP:
        return gap(ledger, event, index);
    case MP_EVENT_DRIVER_CONTEXT:
        context_known(ledger, event);
        return MP_OK;
    default:
        return MP_OK;
    }
}

/* Whether somebody else than torch is known to have asked for ROW. */
static void
mark_torch(mp_ledger_t *ledger, mp_driver_life_t *row)
{
    if (row->is_torch == 0) {
        row->is_torch = 1;
        row->flags |= MP_FLAG_TORCH;
        if (row->owner != MP_NO_INDEX && !(row->flags & MP_FLAG_TORCH_ASKED)) {
            ledger->counts.disagreements++;
        }
    }
}

void
mp_ledger_segment_born(mp_ledger_t *ledger, const mp_event_t *event)
{
    mp_driver_life_t *row = live_row(ledger, LINEAR, event->addr);
    if (row != NULL) {
        mark_torch(ledger, row);
        return;
    }
    uint64_t at = event->addr;
    while (mp_table_count(ledger->live[MAPPINGS]) > 0 &&
           next_mapping(ledger, &at, range_end(event), &row)) {
        row->is_torch = 1; /* the handle is what counts */
        row->flags |= MP_FLAG_TORCH;
        mp_driver_life_t *handle = live_row(ledger, HANDLES, row->handle);
        if (handle != NULL) {
            mark_torch(ledger, handle);
        }
    }
}

void
mp_ledger_segment_died(mp_ledger_t *ledger, const mp_event_t *event,
                       int64_t index, int32_t step)
{
    if (!ledger->gap_open) {
        return;
    }
    ending_t ending = {ledger, event, 0, index, step};
    mp_driver_life_t *row = live_row(ledger, LINEAR, event->addr);
    if (row != NULL && row->is_torch) {
        end(&ending, row);
        return;
    }
    uint64_t at = event->addr;
    while (next_mapping(ledger, &at, range_end(event), &row)) {
        if (row->is_torch) {
            /* torch releases the handle with its mapping. */
            mp_driver_life_t *handle = live_row(ledger, HANDLES, row->handle);
            if (handle != NULL) {
                handle->references = 1;
            }
            mapping_end(&ending, row);
        }
    }
}

/* ---- answers ------------------------------------------------------------ */

const mp_driver_life_t *
mp_ledger_rows(const mp_ledger_t *ledger, size_t *count)
{
    *count = ledger == NULL ? 0 : ledger->count;
    return ledger == NULL ? NULL : ledger->rows;
}

const mp_driver_gap_t *
mp_ledger_gaps(const mp_ledger_t *ledger, size_t *count)
{
    *count = ledger == NULL ? 0 : ledger->gap_count;
    return ledger == NULL ? NULL : ledger->gaps;
}

void
mp_ledger_counts(const mp_ledger_t *ledger, mp_ledger_counts_t *counts)
{
    *counts = ledger == NULL ? (mp_ledger_counts_t){0} : ledger->counts;
}

size_t
mp_ledger_bytes(const mp_ledger_t *ledger)
{
    return ledger == NULL ? 0 : ledger->count * sizeof(mp_driver_life_t);
}

/* ---- the state as events ------------------------------------------------ */

bool
mp_ledger_next_seed(const mp_ledger_t *ledger, size_t *cursor,
                    const mp_event_t *blank, mp_event_t *seed)
{
    for (; ledger != NULL && *cursor < ledger->count; (*cursor)++) {
        const mp_driver_life_t *row = &ledger->rows[*cursor];
        int family = family_of(row->group);
        /* A row that waits to be used again is in no table. */
        if (row->died_event >= 0 ||
            live_row(ledger, family, row->address) != row) {
            continue;
        }
        (*cursor)++;
        *seed = *blank;
        seed->kind = MP_EVENT_DRIVER_ALLOC;
        seed->addr = row->address;
        seed->size = row->size;
        seed->stream = family == HANDLES ? row->references : row->handle;
        seed->thread = row->thread;
        seed->op = row->op;
        seed->module = row->module;
        seed->stack = row->stack;
        seed->op_instance = row->owner;
        seed->phase = row->phase;
        seed->device = row->device;
        seed->pool = row->group;
        seed->flags =
            (uint16_t)((row->flags & ~MP_FLAG_RETAINED) | MP_FLAG_SEED);
        return true;
    }
    return false;
}

bool
mp_ledger_next_context(const mp_ledger_t *ledger, size_t *cursor,
                       const mp_event_t *blank, mp_event_t *event)
{
    if (ledger == NULL || *cursor >= ledger->context_count) {
        return false;
    }
    *event = *blank;
    event->kind = MP_EVENT_DRIVER_CONTEXT;
    event->addr = ledger->contexts[*cursor].context;
    event->device = ledger->contexts[(*cursor)++].device;
    event->op_instance = MP_NO_INDEX;
    return true;
}

bool
mp_ledger_open_gap(const mp_ledger_t *ledger, const mp_event_t *blank,
                   mp_event_t *event)
{
    if (ledger == NULL || !ledger->gap_open) {
        return false;
    }
    *event = *blank;
    event->kind = MP_EVENT_DRIVER_GAP;
    event->addr = 1;
    event->op = ledger->gaps[ledger->gap_count - 1].reason;
    event->op_instance = MP_NO_INDEX;
    event->flags = MP_FLAG_SEED;
    return true;
}
