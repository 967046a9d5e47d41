/* total.c - what the driver says of a process and of a device: as events. */
#include "total.h"

#include <stdatomic.h>

#define UNKNOWN UINT64_MAX

static atomic_bool requested;

void
mp_totals_request(void)
{
    atomic_store_explicit(&requested, true, memory_order_relaxed);
}

bool
mp_totals_requested(void)
{
    return atomic_load_explicit(&requested, memory_order_relaxed) &&
           atomic_exchange(&requested, false);
}

static mp_event_t
blank(const mp_total_t *row, uint8_t kind)
{
    return (mp_event_t){
        .kind = kind,
        .time_ns = row->time_ns,
        .op = MP_NO_INDEX,
        .module = MP_NO_INDEX,
        .stack = MP_NO_INDEX,
        .device = row->device,
        .op_instance = row->sample,
    };
}

static uint64_t
bytes_of(int64_t bytes)
{
    return bytes < 0 ? UNKNOWN : (uint64_t)bytes;
}

static uint16_t
flags_of(uint8_t what, uint8_t why)
{
    return (uint16_t)(what | why << 8);
}

size_t
mp_total_write(const mp_total_t *row, mp_event_t events[MP_TOTAL_EVENTS])
{
    size_t count = 0;
    mp_event_t event = blank(row, MP_EVENT_TOTAL_PROCESS);
    event.addr = (uint64_t)row->cost_ns;
    event.size = bytes_of(row->process_bytes);
    event.pool = row->method;
    event.flags = flags_of(row->cause, row->why);
    events[count++] = event;

    event = blank(row, MP_EVENT_TOTAL_DEVICE);
    event.addr = bytes_of(row->device_total_bytes);
    event.size = bytes_of(row->device_used_bytes);
    event.stream = bytes_of(row->device_reserved_bytes);
    event.pool = row->device_method;
    event.flags = flags_of(row->memory, row->device_why);
    events[count++] = event;

    if (row->pool_reserved_bytes >= 0 || row->made_reserved_bytes > 0) {
        event = blank(row, MP_EVENT_TOTAL_POOL);
        event.addr = bytes_of(row->pool_used_bytes);
        event.size = bytes_of(row->pool_reserved_bytes);
        event.stream = (uint64_t)row->made_reserved_bytes;
        events[count++] = event;
    }
    return count;
}

/* What no device has is not known either: a file may hold anything. */
static int64_t
bytes_from(uint64_t value)
{
    return value > INT64_MAX ? -1 : (int64_t)value;
}

#define X(name, number, text) +1
enum {
    METHODS = 0 MP_TOTAL_METHOD_LIST(X),
    WHYS = 0 MP_TOTAL_WHY_LIST(X),
    CAUSES = 0 MP_TOTAL_CAUSE_LIST(X),
    MEMORIES = 0 MP_TOTAL_MEMORY_LIST(X),
};
#undef X

static uint8_t
number_below(unsigned count, unsigned number)
{
    return number < count ? (uint8_t)number : 0;
}

void
mp_total_read(const mp_event_t *event, mp_total_t *row)
{
    unsigned what = event->flags & 0xFFu;
    unsigned why = (unsigned)event->flags >> 8;
    switch (event->kind) {
    case MP_EVENT_TOTAL_PROCESS:
        *row = (mp_total_t){
            .time_ns = event->time_ns,
            .event = -1,
            .process_bytes = bytes_from(event->size),
            .device_used_bytes = -1,
            .device_total_bytes = -1,
            .device_reserved_bytes = -1,
            .pool_reserved_bytes = -1,
            .pool_used_bytes = -1,
            .cost_ns = bytes_from(event->addr),
            .step = event->step,
            .sample = event->op_instance,
            .device = event->device,
            .method = number_below(METHODS, event->pool),
            .why = number_below(WHYS, why),
            .cause = number_below(CAUSES, what),
        };
        break;
    case MP_EVENT_TOTAL_DEVICE:
        row->device_total_bytes = bytes_from(event->addr);
        row->device_used_bytes = bytes_from(event->size);
        row->device_reserved_bytes = bytes_from(event->stream);
        row->device_method = number_below(METHODS, event->pool);
        row->device_why = number_below(WHYS, why);
        row->memory = number_below(MEMORIES, what);
        break;
    case MP_EVENT_TOTAL_POOL:
        row->pool_used_bytes = bytes_from(event->addr);
        row->pool_reserved_bytes = bytes_from(event->size);
        row->made_reserved_bytes =
            event->stream > INT64_MAX ? 0 : (int64_t)event->stream;
        break;
    default:
        break;
    }
}
