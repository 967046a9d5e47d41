/* test_tracker.c - the one replay, against words and against a naive model. */
#include "mem.h"
#include "mp_test.h"
#include "tracker.h"

#include <stdlib.h>
#include <time.h>

enum {
    SESSION = 42,
    CPU = MP_DEVICE_CPU
};
#define NONE MP_NO_INDEX
#define NO_SEQUENCE UINT64_MAX

static int64_t now_ns; /* every event is one later */

static mp_event_t
make(uint8_t kind, int16_t device, uint64_t addr, uint64_t size)
{
    return (mp_event_t){.kind = kind,
                        .device = device,
                        .addr = addr,
                        .size = size,
                        .time_ns = ++now_ns,
                        .thread = 1,
                        .op = NONE,
                        .module = NONE,
                        .stack = NONE};
}

static mp_tracker_t *
new_tracker(bool keep_dead)
{
    mp_tracker_options_t options = {.session_id = SESSION,
                                    .keep_dead = keep_dead};
    mp_tracker_t *tracker = NULL;
    MP_CHECK(mp_tracker_new(&options, &tracker) == MP_OK);
    return tracker;
}

static void
apply(mp_tracker_t *tracker, mp_event_t event)
{
    MP_CHECK(mp_tracker_apply(tracker, &event) == MP_OK);
}

static void
say(mp_tracker_t *tracker, uint8_t kind, int16_t device, uint64_t addr,
    uint64_t size)
{
    apply(tracker, make(kind, device, addr, size));
}

static void
alloc(mp_tracker_t *tracker, int16_t device, uint64_t addr, uint64_t size)
{
    say(tracker, MP_EVENT_ALLOC, device, addr, size);
}

static void
request(mp_tracker_t *tracker, int16_t device, uint64_t addr)
{
    say(tracker, MP_EVENT_FREE_REQUESTED, device, addr, 0);
}

static void
complete(mp_tracker_t *tracker, int16_t device, uint64_t addr)
{
    say(tracker, MP_EVENT_FREE_COMPLETED, device, addr, 0);
}

static void
step(mp_tracker_t *tracker, uint64_t number)
{
    say(tracker, MP_EVENT_STEP, CPU, SESSION, number);
}

static const mp_allocation_t *
row(const mp_tracker_t *tracker, size_t index)
{
    size_t count;
    const mp_allocation_t *rows = mp_tracker_allocations(tracker, &count);
    MP_CHECK(index < count);
    return &rows[index];
}

static size_t
row_count(const mp_tracker_t *tracker)
{
    size_t count;
    (void)mp_tracker_allocations(tracker, &count);
    return count;
}

static mp_device_stats_t
stats_of(const mp_tracker_t *tracker, int16_t device)
{
    mp_device_stats_t stats;
    MP_CHECK(mp_tracker_stats(tracker, device, &stats));
    return stats;
}

static mp_defects_t
defects_of(const mp_tracker_t *tracker)
{
    mp_defects_t defects;
    mp_tracker_defects(tracker, &defects);
    return defects;
}

static void
check_stat(mp_stat_t stat, int64_t current, int64_t peak, int64_t total)
{
    MP_CHECK_EQ(stat.current, current);
    MP_CHECK_EQ(stat.peak, peak);
    MP_CHECK_EQ(stat.total, total);
}

/* ---- lives ----------------------------------------------------------------
 */

static void
test_tracker_block_lives_from_alloc_to_free(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    mp_event_t birth = make(MP_EVENT_ALLOC, 0, 0x1000, 512);
    birth.thread = 7;
    birth.op = 3;
    birth.module = 4;
    birth.stack = 5;
    birth.stream = 6;
    birth.pool = 2;
    birth.phase = MP_PHASE_FORWARD;
    birth.flags = MP_FLAG_GRAD_MODE;
    step(tracker, 9);
    apply(tracker, birth);
    const mp_allocation_t *life = row(tracker, 0);
    MP_CHECK_EQ(life->id, 0);
    MP_CHECK_EQ(life->address, 0x1000);
    MP_CHECK_EQ(life->size, 512);
    MP_CHECK_EQ(life->stream, 6);
    MP_CHECK_EQ(life->thread, 7);
    MP_CHECK_EQ(life->op, 3);
    MP_CHECK_EQ(life->module, 4);
    MP_CHECK_EQ(life->stack, 5);
    MP_CHECK_EQ(life->pool, 2);
    MP_CHECK_EQ(life->phase, MP_PHASE_FORWARD);
    MP_CHECK_EQ(life->flags, MP_FLAG_GRAD_MODE);
    MP_CHECK_EQ(life->born_event, 1);
    MP_CHECK_EQ(life->born_ns, birth.time_ns);
    MP_CHECK_EQ(life->born_step, 9);
    MP_CHECK_EQ(life->died_event, -1);
    MP_CHECK_EQ(life->completed_event, -1);
    MP_CHECK_EQ(life->forward_op, NONE);
    step(tracker, 10);
    mp_event_t death = make(MP_EVENT_FREE_COMPLETED, 0, 0x1000, 512);
    death.phase = MP_PHASE_BACKWARD;
    apply(tracker, death);
    MP_CHECK_EQ(life->died_event, 3);
    MP_CHECK_EQ(life->completed_event, 3);
    MP_CHECK_EQ(life->died_ns, death.time_ns);
    MP_CHECK_EQ(life->died_step, 10);
    MP_CHECK_EQ(life->died_phase, MP_PHASE_BACKWARD);
    mp_device_stats_t stats = stats_of(tracker, 0);
    check_stat(stats.requested_bytes, 0, 512, 512);
    check_stat(stats.active_bytes, 0, 512, 512);
    check_stat(stats.allocated_blocks, 0, 1, 1);
    check_stat(stats.active_blocks, 0, 1, 1);
    mp_tracker_free(tracker);
}

static void
test_tracker_pending_free_is_active_until_completed(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    alloc(tracker, 0, 0x1000, 100);
    request(tracker, 0, 0x1000);
    mp_device_stats_t stats = stats_of(tracker, 0);
    check_stat(stats.requested_bytes, 0, 100, 100);
    check_stat(stats.active_bytes, 100, 100, 100);
    MP_CHECK_EQ(row(tracker, 0)->died_event, 1);
    MP_CHECK_EQ(row(tracker, 0)->completed_event, -1);
    request(tracker, 0, 0x1000); /* twice */
    MP_CHECK_EQ(defects_of(tracker).unmatched_frees, 1);
    complete(tracker, 0, 0x1000);
    MP_CHECK_EQ(stats_of(tracker, 0).active_bytes.current, 0);
    MP_CHECK_EQ(row(tracker, 0)->died_event, 1);
    MP_CHECK_EQ(row(tracker, 0)->completed_event, 3);
    mp_tracker_free(tracker);
}

static void
test_tracker_reused_address_is_another_life(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    for (uint64_t i = 1; i <= 3; i++) {
        alloc(tracker, 0, 0x1000, i * 10);
        request(tracker, 0, 0x1000);
        complete(tracker, 0, 0x1000);
    }
    MP_CHECK_EQ(row_count(tracker), 3);
    MP_CHECK_EQ(row(tracker, 1)->born_event, 3);
    MP_CHECK_EQ(row(tracker, 2)->size, 30);
    check_stat(stats_of(tracker, 0).requested_bytes, 0, 30, 60);
    MP_CHECK_EQ(defects_of(tracker).replaced_blocks, 0);
    mp_tracker_free(tracker);
}

static void
test_tracker_birth_at_a_live_address_ends_the_old_life(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    alloc(tracker, CPU, 0x1000, 100);
    alloc(tracker, CPU, 0x1000, 30); /* the free we never saw */
    MP_CHECK_EQ(defects_of(tracker).replaced_blocks, 1);
    MP_CHECK_EQ(row(tracker, 0)->died_event, 1);
    MP_CHECK_EQ(row(tracker, 1)->died_event, -1);
    check_stat(stats_of(tracker, CPU).requested_bytes, 30, 100, 130);
    check_stat(stats_of(tracker, CPU).allocated_blocks, 1, 1, 2);
    mp_tracker_free(tracker);
}

static void
test_tracker_frees_that_nobody_saw_born_are_counted(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    complete(tracker, CPU, 0x1);
    request(tracker, 0, 0x2);
    complete(tracker, 0, 0x2);
    MP_CHECK_EQ(defects_of(tracker).foreign_frees, 1);
    MP_CHECK_EQ(defects_of(tracker).unmatched_frees, 1);
    MP_CHECK_EQ(mp_tracker_devices(tracker, NULL, 0), 0);
    mp_tracker_free(tracker);
}

static void
test_tracker_same_address_on_two_devices_is_two_blocks(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    alloc(tracker, 11, 0x1000, 1);
    alloc(tracker, CPU, 0x1000, 2);
    alloc(tracker, 0, 0x1000, 4);
    int16_t devices[2];
    MP_CHECK_EQ(mp_tracker_devices(tracker, devices, 2), 3);
    MP_CHECK_EQ(devices[0], CPU);
    MP_CHECK_EQ(devices[1], 0);
    complete(tracker, 0, 0x1000);
    MP_CHECK_EQ(stats_of(tracker, 11).requested_bytes.current, 1);
    MP_CHECK_EQ(stats_of(tracker, CPU).requested_bytes.current, 2);
    MP_CHECK_EQ(stats_of(tracker, 0).requested_bytes.current, 0);
    mp_device_stats_t stats;
    MP_CHECK(!mp_tracker_stats(tracker, 5, &stats));
    MP_CHECK(!mp_tracker_stats(tracker, -2, &stats));
    mp_tracker_free(tracker);
}

static void
test_tracker_knows_what_died_inside_its_op(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    const struct {
        uint32_t born_instance, died_instance, died_thread;
        uint16_t born_flags, died_flags;
        bool inside;
    } cases[] = {
        {5, 5, 1, MP_FLAG_IN_OP, MP_FLAG_IN_OP, true},
        {5, 6, 1, MP_FLAG_IN_OP, MP_FLAG_IN_OP, false},
        {5, 5, 2, MP_FLAG_IN_OP, MP_FLAG_IN_OP, false},
        {5, 5, 1, 0, MP_FLAG_IN_OP, false},
        {5, 5, 1, MP_FLAG_IN_OP, 0, false},
    };
    for (size_t i = 0; i < MP_ARRAY_LENGTH(cases); i++) {
        mp_event_t birth = make(MP_EVENT_ALLOC, CPU, 0x1000, 1);
        birth.op_instance = cases[i].born_instance;
        birth.flags = cases[i].born_flags;
        apply(tracker, birth);
        mp_event_t death = make(MP_EVENT_FREE_COMPLETED, CPU, 0x1000, 0);
        death.op_instance = cases[i].died_instance;
        death.thread = cases[i].died_thread;
        death.flags = cases[i].died_flags;
        apply(tracker, death);
        MP_CHECK_EQ(row(tracker, i)->died_in_op, cases[i].inside);
    }
    mp_tracker_free(tracker);
}

static void
test_tracker_other_kinds_change_nothing(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    alloc(tracker, 0, 0x1000, 64);
    mp_device_stats_t before = stats_of(tracker, 0);
    say(tracker, MP_EVENT_OOM, 0, 0x1000, 99);
    say(tracker, MP_EVENT_SNAPSHOT, 0, 0, 64);
    say(tracker, MP_EVENT_OTHER, 0, 0x1000, 1);
    say(tracker, MP_EVENT_OPTIMIZER_BEGIN, CPU, 0, 0);
    say(tracker, MP_EVENT_OPTIMIZER_END, CPU, 0, 0);
    say(tracker, 0, 0, 0x1000, 1);
    say(tracker, 255, 0, 0x1000, 1);
    mp_device_stats_t after = stats_of(tracker, 0);
    MP_CHECK(memcmp(&before, &after, sizeof(before)) == 0);
    MP_CHECK_EQ(row_count(tracker), 1);
    request(tracker, 0, 0x1000);
    MP_CHECK_EQ(row(tracker, 0)->died_event, 8); /* they have an index */
    mp_tracker_free(tracker);
}

static void
test_tracker_any_size_is_survived(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    for (uint64_t i = 0; i < 4; i++) {
        alloc(tracker, 0, i, UINT64_MAX / 2 + i);
        say(tracker, MP_EVENT_SEGMENT_ALLOC, 0, UINT64_MAX - i, UINT64_MAX);
        say(tracker, MP_EVENT_SEGMENT_ALLOC, 0, i << 40, (uint64_t)1 << 63);
    }
    for (uint64_t i = 0; i < 4; i++) {
        complete(tracker, 0, i);
        say(tracker, MP_EVENT_SEGMENT_FREE, 0, 0, UINT64_MAX);
    }
    MP_CHECK_EQ(stats_of(tracker, 0).requested_bytes.current, 0);
    MP_CHECK_EQ(stats_of(tracker, 0).reserved_bytes.current, 0);
    mp_event_t odd = make(MP_EVENT_ALLOC, INT16_MIN, 1, 1);
    MP_CHECK(mp_tracker_apply(tracker, &odd) != MP_OK); /* no such device */
    mp_tracker_free(tracker);
}

/* ---- seeds
 * ------------------------------------------------------------------ */

static void
test_tracker_seeds_are_older_than_the_recording(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    step(tracker, 3);
    alloc(tracker, 0, 0x2000, 7);
    mp_event_t seed = make(MP_EVENT_SEED_BLOCK, 0, 0x1000, 100);
    seed.op = 8;
    apply(tracker, seed);
    say(tracker, MP_EVENT_SEED_BLOCK, 0, 0x2000, 55); /* known already */
    mp_event_t origin = make(MP_EVENT_SEED_ORIGIN, 0, 0x1000, 0);
    origin.op = 1;
    origin.module = 2;
    origin.stack = 3;
    origin.op_instance = 4; /* the region */
    apply(tracker, origin);
    origin.addr = 0x2000; /* we saw its birth: we know better */
    apply(tracker, origin);
    const mp_allocation_t *life = row(tracker, 1);
    MP_CHECK_EQ(life->born_event, -1);
    MP_CHECK_EQ(life->born_ns, -1);
    MP_CHECK_EQ(life->born_step, -1);
    MP_CHECK_EQ(life->op, 8);
    MP_CHECK_EQ(life->forward_op, 1);
    MP_CHECK_EQ(life->forward_module, 2);
    MP_CHECK_EQ(life->forward_stack, 3);
    MP_CHECK_EQ(life->region, 4);
    MP_CHECK_EQ(row(tracker, 0)->size, 7);
    MP_CHECK_EQ(row(tracker, 0)->forward_op, NONE);
    MP_CHECK_EQ(row_count(tracker), 2);
    size_t steps;
    const mp_step_stats_t *rows = mp_tracker_steps(tracker, &steps);
    MP_CHECK_EQ(rows[0].allocated_total, 7); /* a seed is not an allocation */
    MP_CHECK_EQ(rows[0].requested_bytes_peak, 107);
    mp_tracker_free(tracker);
}

static void
test_tracker_pending_seed_is_active_only(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    mp_event_t seed = make(MP_EVENT_SEED_BLOCK, 0, 0x1000, 100);
    seed.flags = MP_FLAG_PENDING;
    apply(tracker, seed);
    check_stat(stats_of(tracker, 0).requested_bytes, 0, 0, 0);
    check_stat(stats_of(tracker, 0).active_bytes, 100, 100, 100);
    complete(tracker, 0, 0x1000);
    check_stat(stats_of(tracker, 0).active_bytes, 0, 100, 100);
    MP_CHECK_EQ(defects_of(tracker).unmatched_frees, 0);
    mp_tracker_free(tracker);
}

static void
test_tracker_strongest_role_wins(void)
{
    static const uint8_t ranks[] = {MP_ROLE_INPUT, MP_ROLE_GRADIENT,
                                    MP_ROLE_OPTIMIZER_STATE, MP_ROLE_BUFFER,
                                    MP_ROLE_PARAMETER};
    for (uint32_t first = 0; first < 5; first++) {
        for (uint32_t second = 0; second < 5; second++) {
            mp_tracker_t *tracker = new_tracker(true);
            alloc(tracker, 0, 0x1000, 1);
            mp_event_t role = make(MP_EVENT_ROLE, 0, 0x1000, ranks[first]);
            role.op = first;
            apply(tracker, role);
            role.size = ranks[second];
            role.op = second;
            apply(tracker, role);
            uint32_t best = first > second ? first : second;
            MP_CHECK_EQ(row(tracker, 0)->role, ranks[best]);
            MP_CHECK_EQ(row(tracker, 0)->owner, best);
            say(tracker, MP_EVENT_ROLE, 0, 0x5000, 1);  /* not known */
            say(tracker, MP_EVENT_ROLE, 3, 0x1000, 1);  /* no such device */
            say(tracker, MP_EVENT_ROLE, 0, 0x1000, 77); /* no such role */
            MP_CHECK_EQ(row(tracker, 0)->role, ranks[best]);
            mp_tracker_free(tracker);
        }
    }
}

/* ---- segments
 * ----------------------------------------------------------------- */

static void
test_tracker_segments_are_reserved(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    say(tracker, MP_EVENT_SEGMENT_ALLOC, 0, 0x10000, 1000);
    say(tracker, MP_EVENT_SEGMENT_MAP, 0, 0x20000, 500);
    say(tracker, MP_EVENT_SEED_SEGMENT, 0, 0x30000, 50);
    check_stat(stats_of(tracker, 0).reserved_bytes, 1550, 1550, 1550);
    check_stat(stats_of(tracker, 0).segments, 3, 3, 3);
    say(tracker, MP_EVENT_SEGMENT_UNMAP, 0, 0x20000 + 100, 100);
    MP_CHECK_EQ(stats_of(tracker, 0).reserved_bytes.current, 1450);
    MP_CHECK_EQ(stats_of(tracker, 0).segments.current, 4); /* a hole */
    say(tracker, MP_EVENT_SEGMENT_FREE, 0, 0x10000, 1000);
    MP_CHECK_EQ(stats_of(tracker, 0).reserved_bytes.current, 450);
    MP_CHECK_EQ(defects_of(tracker).unmatched_segments, 0);
    say(tracker, MP_EVENT_SEGMENT_FREE, 0, 0x10000, 1000); /* twice */
    say(tracker, MP_EVENT_SEGMENT_FREE, 7, 0x10000, 1000);
    MP_CHECK_EQ(defects_of(tracker).unmatched_segments, 2);
    MP_CHECK_EQ(stats_of(tracker, 0).reserved_bytes.current, 450);
    mp_tracker_free(tracker);
}

static void
test_tracker_segment_over_another_replaces_it(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    say(tracker, MP_EVENT_SEGMENT_ALLOC, 0, 0x10000, 1000);
    say(tracker, MP_EVENT_SEED_SEGMENT, 0, 0x10000, 1000); /* known already */
    MP_CHECK_EQ(stats_of(tracker, 0).reserved_bytes.current, 1000);
    MP_CHECK_EQ(stats_of(tracker, 0).segments.current, 1);
    MP_CHECK_EQ(defects_of(tracker).unmatched_segments, 0);
    say(tracker, MP_EVENT_SEGMENT_ALLOC, 0, 0x10000, 4000); /* a lost free */
    MP_CHECK_EQ(stats_of(tracker, 0).reserved_bytes.current, 4000);
    MP_CHECK_EQ(defects_of(tracker).unmatched_segments, 1);
    mp_tracker_free(tracker);
}

/* ---- ops, regions, modules
 * ------------------------------------------------------ */

static void
op(mp_tracker_t *tracker, uint32_t name, uint64_t sequence)
{
    mp_event_t event = make(MP_EVENT_OP_BEGIN, CPU, sequence, 0);
    event.op = name;
    event.module = name + 100;
    event.stack = name + 200;
    event.stream = 1; /* the logical thread */
    apply(tracker, event);
}

static void
node(mp_tracker_t *tracker, uint32_t name, uint64_t sequence)
{
    mp_event_t event = make(MP_EVENT_OP_BEGIN, CPU, sequence, 1);
    event.op = name;
    event.stream = 2;
    event.flags = MP_FLAG_BACKWARD_OP;
    apply(tracker, event);
}

static void
op_end(mp_tracker_t *tracker, uint32_t name)
{
    mp_event_t event = make(MP_EVENT_OP_END, CPU, 0, 0);
    event.op = name;
    apply(tracker, event);
}

static void
region(mp_tracker_t *tracker, uint8_t kind, uint32_t name)
{
    mp_event_t event = make(kind, CPU, 0, 0);
    event.op = name;
    apply(tracker, event);
}

/* The life that begins now. */
static const mp_allocation_t *
born(mp_tracker_t *tracker)
{
    static uint64_t next = 0x100000;
    alloc(tracker, 0, next += 64, 1);
    return row(tracker, row_count(tracker) - 1);
}

static void
test_tracker_backward_block_knows_its_forward(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    op(tracker, 5, 77);
    op_end(tracker, 5);
    MP_CHECK_EQ(born(tracker)->forward_op, NONE);
    node(tracker, 6, 77);
    op(tracker, 7, NO_SEQUENCE); /* an op that the node calls */
    const mp_allocation_t *life = born(tracker);
    MP_CHECK_EQ(life->forward_op, 5);
    MP_CHECK_EQ(life->forward_module, 105);
    MP_CHECK_EQ(life->forward_stack, 205);
    op_end(tracker, 6); /* the inner one with it */
    MP_CHECK_EQ(born(tracker)->forward_op, NONE);
    node(tracker, 6, 78); /* never seen */
    MP_CHECK_EQ(born(tracker)->forward_op, NONE);
    mp_tracker_free(tracker);
}

/* The engine sums gradients after the node, in its frame around the node. */
static void
test_tracker_gradient_summed_after_its_node_knows_its_forward(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    op(tracker, 5, 77);
    op_end(tracker, 5);
    op(tracker, 8, NO_SEQUENCE); /* evaluate_function */
    MP_CHECK_EQ(born(tracker)->forward_op, NONE);
    node(tracker, 6, 77);
    op_end(tracker, 6);
    op(tracker, 9, NO_SEQUENCE); /* aten::add */
    const mp_allocation_t *life = born(tracker);
    MP_CHECK_EQ(life->forward_op, 5);
    MP_CHECK_EQ(life->forward_module, 105);
    MP_CHECK_EQ(life->forward_stack, 205);
    op_end(tracker, 9);
    MP_CHECK_EQ(born(tracker)->forward_op, 5);
    op_end(tracker, 8);
    MP_CHECK_EQ(born(tracker)->forward_op, NONE);
    op(tracker, 8, NO_SEQUENCE); /* the next node's frame */
    node(tracker, 6, 99);        /* not known: nothing to inherit */
    op_end(tracker, 6);
    MP_CHECK_EQ(born(tracker)->forward_op, NONE);
    mp_tracker_free(tracker);
}

static void
test_tracker_outermost_and_last_op_of_a_number_made_its_node(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    op(tracker, 4, 77); /* made no node */
    op_end(tracker, 4);
    op(tracker, 5, 77);
    op(tracker, 6, 77); /* inside it */
    op_end(tracker, 6);
    op_end(tracker, 5);
    node(tracker, 7, 77);
    MP_CHECK_EQ(born(tracker)->forward_op, 5);
    mp_tracker_free(tracker);
}

/* A view: nothing is born in it, in its backward there may be. */
static void
test_tracker_op_that_touched_no_memory_made_a_node(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    mp_event_t event = make(MP_EVENT_NODE, CPU, 77, 0);
    event.op = 5;
    event.module = 105;
    event.stack = 205;
    event.stream = 1;
    apply(tracker, event);
    MP_CHECK_EQ(born(tracker)->op, NONE); /* it is over */
    node(tracker, 6, 77);
    const mp_allocation_t *life = born(tracker);
    MP_CHECK_EQ(life->forward_op, 5);
    MP_CHECK_EQ(life->forward_module, 105);
    MP_CHECK_EQ(life->forward_stack, 205);
    op_end(tracker, 6);
    op(tracker, 4, 78);
    event.addr = 78; /* made inside an op that has its number */
    apply(tracker, event);
    op_end(tracker, 4);
    node(tracker, 6, 78);
    MP_CHECK_EQ(born(tracker)->forward_op, 4);
    op_end(tracker, 6);
    op(tracker, 4, 79);
    event.addr = 80; /* a later one of the same op */
    apply(tracker, event);
    op_end(tracker, 4);
    node(tracker, 6, 80);
    MP_CHECK_EQ(born(tracker)->forward_op, 5);
    mp_tracker_free(tracker);
}

static void
test_tracker_node_without_an_op_finds_its_module(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    mp_event_t module = make(MP_EVENT_MODULE_BEGIN, CPU, 70, 0);
    module.stream = 1;
    module.module = 33;
    apply(tracker, module);
    module.kind = MP_EVENT_MODULE_END;
    module.addr = 80;
    apply(tracker, module);
    node(tracker, 6, 75);
    MP_CHECK_EQ(born(tracker)->forward_module, 33);
    MP_CHECK_EQ(born(tracker)->forward_op, NONE);
    mp_tracker_free(tracker);
}

static void
root(mp_tracker_t *tracker, uint8_t kind)
{
    mp_event_t module = make(kind, CPU, 0, 0);
    module.stream = 1;
    module.module = 33;
    apply(tracker, module);
}

static void
birth(mp_tracker_t *tracker, uint8_t kind, uint64_t addr)
{
    mp_event_t event = make(kind, CPU, addr, 64);
    event.phase = MP_PHASE_FORWARD;
    apply(tracker, event);
}

static bool
death_is_in_its_forward(mp_tracker_t *tracker, uint64_t addr, uint32_t row)
{
    mp_event_t event = make(MP_EVENT_FREE_COMPLETED, CPU, addr, 0);
    event.phase = MP_PHASE_FORWARD;
    apply(tracker, event);
    size_t count;
    return mp_tracker_allocations(tracker, &count)[row].flags &
           MP_FLAG_DIED_IN_FORWARD;
}

static void
test_tracker_death_is_in_the_forward_of_birth_or_in_another(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    birth(tracker, MP_EVENT_SEED_BLOCK, 0x1000); /* older than the recording */
    root(tracker, MP_EVENT_MODULE_BEGIN);
    birth(tracker, MP_EVENT_ALLOC, 0x2000);
    birth(tracker, MP_EVENT_ALLOC, 0x3000);
    birth(tracker, MP_EVENT_ALLOC, 0x4000);
    MP_CHECK(!death_is_in_its_forward(tracker, 0x1000, 0));
    MP_CHECK(death_is_in_its_forward(tracker, 0x2000, 1));
    root(tracker, MP_EVENT_MODULE_END);
    MP_CHECK(!death_is_in_its_forward(tracker, 0x3000, 2)); /* between two */
    root(tracker, MP_EVENT_MODULE_BEGIN);
    MP_CHECK(!death_is_in_its_forward(tracker, 0x4000, 3)); /* a cache */
    root(tracker, MP_EVENT_MODULE_END);
    birth(tracker, MP_EVENT_ALLOC, 0x5000); /* its root tells of nothing */
    MP_CHECK(death_is_in_its_forward(tracker, 0x5000, 4));
    mp_tracker_free(tracker);
}

static void
test_tracker_block_is_in_the_innermost_open_region(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    MP_CHECK_EQ(born(tracker)->region, NONE);
    region(tracker, MP_EVENT_REGION_BEGIN, 1);
    region(tracker, MP_EVENT_REGION_BEGIN, 2);
    region(tracker, MP_EVENT_REGION_BEGIN, 1);
    MP_CHECK_EQ(born(tracker)->region, 1);
    region(tracker, MP_EVENT_REGION_END, 1);
    MP_CHECK_EQ(born(tracker)->region, 2);
    region(tracker, MP_EVENT_REGION_END, 1); /* not the innermost */
    MP_CHECK_EQ(born(tracker)->region, 2);
    region(tracker, MP_EVENT_REGION_END, 2);
    region(tracker, MP_EVENT_REGION_END, 2); /* not open */
    MP_CHECK_EQ(born(tracker)->region, NONE);
    mp_event_t other = make(MP_EVENT_REGION_BEGIN, CPU, 0, 0);
    other.thread = 2;
    other.op = 9;
    apply(tracker, other);
    MP_CHECK_EQ(born(tracker)->region, NONE);
    mp_tracker_free(tracker);
}

static void
test_tracker_threads_without_end_stay_bounded(void)
{
    mp_tracker_t *tracker = new_tracker(false);
    region(tracker, MP_EVENT_REGION_BEGIN, 5); /* of thread 1, stays open */
    size_t after_some = 0;
    for (uint32_t i = 2; i < 20000; i++) {
        mp_event_t event = make(MP_EVENT_OP_BEGIN, CPU, NO_SEQUENCE, 0);
        event.thread = i;
        event.op = 3;
        apply(tracker, event);
        event.kind = MP_EVENT_OP_END;
        apply(tracker, event);
        event.thread = 100000 + i; /* ends only */
        apply(tracker, event);
        after_some = i == 5000 ? mp_mem_bytes() : after_some;
    }
    MP_CHECK_EQ(mp_mem_bytes(), after_some);
    MP_CHECK_EQ(born(tracker)->region, 5);
    mp_tracker_free(tracker);
}

/* ---- steps and windows
 * ------------------------------------------------------------ */

static void
test_tracker_step_has_a_row_per_device(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    step(tracker, 4);
    alloc(tracker, CPU, 0x1000, 100);
    alloc(tracker, 0, 0x1000, 10);
    alloc(tracker, 0, 0x2000, 10);
    say(tracker, MP_EVENT_SEGMENT_ALLOC, 0, 0x9000, 500);
    request(tracker, 0, 0x2000);
    say(tracker, MP_EVENT_STEP, CPU, SESSION + 1, 99); /* somebody else's */
    MP_CHECK_EQ(mp_tracker_step(tracker), 4);
    step(tracker, 5);
    MP_CHECK_EQ(mp_tracker_step(tracker), 5);
    alloc(tracker, CPU, 0x3000, 1);
    complete(tracker, CPU, 0x1000);
    size_t count;
    const mp_step_stats_t *rows = mp_tracker_steps(tracker, &count);
    MP_CHECK_EQ(count, 4);
    MP_CHECK_EQ(rows[0].number, 4);
    MP_CHECK_EQ(rows[0].device, CPU);
    MP_CHECK_EQ(rows[0].begin_event, 1); /* when the device was first seen */
    MP_CHECK_EQ(rows[0].end_event, 7);
    MP_CHECK(rows[0].end_ns > rows[0].begin_ns);
    MP_CHECK_EQ(rows[0].requested_bytes_at_end, 100);
    MP_CHECK_EQ(rows[1].device, 0);
    MP_CHECK_EQ(rows[1].requested_bytes_at_end, 10);
    MP_CHECK_EQ(rows[1].requested_bytes_peak, 20);
    MP_CHECK_EQ(rows[1].active_bytes_peak, 20);
    MP_CHECK_EQ(rows[1].reserved_bytes_peak, 500);
    MP_CHECK_EQ(rows[1].allocated_total, 20);
    MP_CHECK_EQ(rows[2].number, 5);
    MP_CHECK_EQ(rows[2].device, CPU);
    MP_CHECK_EQ(rows[2].end_event, -1); /* open: where it stands */
    MP_CHECK_EQ(rows[2].requested_bytes_at_end, 1);
    MP_CHECK_EQ(rows[2].requested_bytes_peak, 101);
    MP_CHECK_EQ(rows[3].device, 0);
    MP_CHECK_EQ(rows[3].active_bytes_peak, 20); /* one is still pending */
    MP_CHECK_EQ(rows[3].requested_bytes_peak, 10);
    mp_tracker_free(tracker);
}

static void
test_tracker_window_marks_its_steps(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    alloc(tracker, CPU, 0x1000, 1);
    step(tracker, 1);
    say(tracker, MP_EVENT_WINDOW_BEGIN, CPU, SESSION + 1, 0);
    step(tracker, 2);
    say(tracker, MP_EVENT_WINDOW_BEGIN, CPU, SESSION, 0);
    step(tracker, 3);
    say(tracker, MP_EVENT_WINDOW_END, CPU, SESSION + 1, 0);
    alloc(tracker, CPU, 0x2000, 1);
    say(tracker, MP_EVENT_WINDOW_END, CPU, SESSION, 0);
    alloc(tracker, CPU, 0x3000, 1); /* between two steps: in no row */
    step(tracker, 4);
    size_t count;
    const mp_step_stats_t *rows = mp_tracker_steps(tracker, &count);
    MP_CHECK_EQ(count, 5);
    static const int recorded[] = {0, 0, 1, 1, 0};
    for (size_t i = 0; i < count; i++) {
        MP_CHECK_EQ(rows[i].number, i);
        MP_CHECK_EQ(rows[i].recorded, recorded[i]);
    }
    MP_CHECK_EQ(rows[3].requested_bytes_at_end, 2);
    MP_CHECK_EQ(rows[4].requested_bytes_peak, 3);
    mp_tracker_free(tracker);
}

/* ---- scopes
 * ------------------------------------------------------------------------- */

static int64_t
scope_peak(const mp_tracker_t *tracker, mp_scope_t scope)
{
    mp_device_stats_t stats;
    MP_CHECK(mp_tracker_scope_peak(tracker, scope, 0, &stats) == MP_OK);
    return stats.requested_bytes.peak;
}

static void
test_tracker_scopes_nest_and_close_in_any_order(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    mp_scope_t outer, inner, later;
    alloc(tracker, 0, 0x1000, 1000);
    complete(tracker, 0, 0x1000);
    MP_CHECK(mp_tracker_scope_open(tracker, &outer) == MP_OK);
    MP_CHECK_EQ(scope_peak(tracker, outer), 0);
    alloc(tracker, 0, 0x2000, 300);
    complete(tracker, 0, 0x2000);
    MP_CHECK(mp_tracker_scope_open(tracker, &inner) == MP_OK);
    alloc(tracker, 0, 0x3000, 100);
    MP_CHECK_EQ(scope_peak(tracker, outer), 300);
    MP_CHECK_EQ(scope_peak(tracker, inner), 100);
    mp_tracker_scope_close(tracker, outer); /* before what is inside it */
    alloc(tracker, 0, 0x4000, 50);
    MP_CHECK_EQ(scope_peak(tracker, inner), 150);
    MP_CHECK(mp_tracker_scope_open(tracker, &later) == MP_OK);
    MP_CHECK_EQ(scope_peak(tracker, later), 150); /* what it began with */
    complete(tracker, 0, 0x3000);
    mp_device_stats_t stats;
    MP_CHECK(mp_tracker_scope_peak(tracker, inner, 0, &stats) == MP_OK);
    check_stat(stats.requested_bytes, 50, 150, 150); /* total: inside it */
    mp_tracker_scope_close(tracker, inner);
    mp_tracker_scope_close(tracker, later);
    MP_CHECK(mp_tracker_scope_peak(tracker, inner, 0, &stats) == MP_ERR_ARG);
    check_stat(stats_of(tracker, 0).requested_bytes, 50, 1000, 1450);
    mp_tracker_free(tracker);
}

static void
test_tracker_scope_sees_devices_that_come_later(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    mp_scope_t scope;
    mp_device_stats_t stats;
    MP_CHECK(mp_tracker_scope_open(tracker, &scope) == MP_OK);
    MP_CHECK(mp_tracker_scope_peak(tracker, scope, 0, &stats) == MP_ERR_ARG);
    MP_CHECK(mp_tracker_scope_peak(tracker, 64, 0, &stats) == MP_ERR_ARG);
    alloc(tracker, 0, 0x1000, 8);
    MP_CHECK_EQ(scope_peak(tracker, scope), 8);
    mp_tracker_scope_close(tracker, scope);
    mp_tracker_scope_close(tracker, 1000);
    mp_tracker_free(tracker);
}

static void
test_tracker_has_64_scopes(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    mp_scope_t scope;
    alloc(tracker, 0, 0x1000, 8);
    for (int i = 0; i < 64; i++) {
        MP_CHECK(mp_tracker_scope_open(tracker, &scope) == MP_OK);
    }
    alloc(tracker, 0, 0x2000, 8);
    MP_CHECK_EQ(scope_peak(tracker, scope), 16);
    MP_CHECK(mp_tracker_scope_open(tracker, &scope) == MP_ERR_FULL);
    mp_tracker_scope_close(tracker, 17);
    MP_CHECK(mp_tracker_scope_open(tracker, &scope) == MP_OK);
    MP_CHECK_EQ(scope, 17);
    mp_tracker_free(tracker);
}

/* ---- memory and budgets
 * ---------------------------------------------------------------- */

static void
test_tracker_that_only_follows_stays_bounded(void)
{
    mp_tracker_t *tracker = new_tracker(false);
    size_t bytes = 0, heap = 0;
    for (uint64_t i = 0; i < 1000000; i++) {
        mp_event_t event = make(MP_EVENT_ALLOC, 0, i * 64, 8);
        (void)mp_tracker_apply(tracker, &event);
        if (i % 10 == 9) { /* ten at a time, in another order */
            for (uint64_t k = 0; k < 10; k++) {
                event.addr = (i - (k * 7) % 10) * 64;
                event.kind = MP_EVENT_FREE_REQUESTED;
                (void)mp_tracker_apply(tracker, &event);
                event.kind = MP_EVENT_FREE_COMPLETED;
                (void)mp_tracker_apply(tracker, &event);
            }
        }
        if (i == 100) {
            bytes = mp_tracker_bytes(tracker);
            heap = mp_mem_bytes();
        }
    }
    MP_CHECK_EQ(mp_tracker_bytes(tracker), bytes);
    MP_CHECK_EQ(mp_mem_bytes(), heap);
    MP_CHECK_EQ(row_count(tracker), 10);
    mp_defects_t defects = defects_of(tracker);
    MP_CHECK_EQ(defects.unmatched_frees, 0);
    check_stat(stats_of(tracker, 0).requested_bytes, 0, 80, 8000000);
    mp_tracker_free(tracker);
}

static void
test_tracker_without_budget_says_full_and_goes_on(void)
{
    mp_tracker_options_t options = {.session_id = SESSION,
                                    .keep_dead = true,
                                    .allocation_budget_bytes =
                                        10 * sizeof(mp_allocation_t)};
    mp_tracker_t *tracker;
    MP_CHECK(mp_tracker_new(&options, &tracker) == MP_OK);
    for (uint64_t i = 0; i < 15; i++) {
        mp_event_t event = make(MP_EVENT_ALLOC, 0, i * 64, 8);
        MP_CHECK(mp_tracker_apply(tracker, &event) ==
                 (i < 10 ? MP_OK : MP_ERR_FULL));
    }
    MP_CHECK_EQ(defects_of(tracker).unapplied_events, 5);
    MP_CHECK_EQ(stats_of(tracker, 0).requested_bytes.current, 80);
    complete(tracker, 0, 0);
    MP_CHECK_EQ(row(tracker, 0)->died_event, 10); /* those have no index */
    mp_tracker_free(tracker);
}

/* ---- the state as events
 * --------------------------------------------------------------- */

enum {
    MAX_EMITTED = 4096
};

typedef struct {
    mp_event_t events[MAX_EMITTED];
    size_t count, limit;
} emitted_t;

static bool
keep(void *context, const mp_event_t *event)
{
    emitted_t *emitted = context;
    if (emitted->count >= emitted->limit) {
        return false;
    }
    emitted->events[emitted->count++] = *event;
    return true;
}

static void
write_state(const mp_tracker_t *tracker, emitted_t *emitted)
{
    *emitted = (emitted_t){.limit = MAX_EMITTED};
    MP_CHECK(mp_tracker_write_state(tracker, keep, emitted) == MP_OK);
}

static emitted_t first, second;

/* Feed a fresh tracker with TRACKER's state; its own state must be the same
 * events, and its counters stand at the same values. */
static mp_tracker_t *
copy_of(const mp_tracker_t *tracker)
{
    write_state(tracker, &first);
    mp_tracker_t *copy = new_tracker(true);
    for (size_t i = 0; i < first.count; i++) {
        apply(copy, first.events[i]);
    }
    write_state(copy, &second);
    MP_CHECK_EQ(second.count, first.count);
    for (size_t i = 0; i < first.count; i++) {
        MP_CHECK(memcmp(&first.events[i], &second.events[i],
                        sizeof(mp_event_t)) == 0);
    }
    MP_CHECK_EQ(mp_tracker_step(copy), mp_tracker_step(tracker));
    int16_t devices[64];
    size_t count = mp_tracker_devices(tracker, devices, 64);
    for (size_t i = 0; i < count; i++) {
        mp_device_stats_t a = stats_of(tracker, devices[i]);
        mp_device_stats_t b = {0}; /* a device on which nothing is left */
        (void)mp_tracker_stats(copy, devices[i], &b);
#define X(name, text) MP_CHECK_EQ(b.name.current, a.name.current);
        MP_STAT_LIST(X)
#undef X
    }
    return copy;
}

static void
tell_shape(mp_tracker_t *tracker, uint64_t bytes, uint32_t text,
           uint32_t instance)
{
    mp_event_t event = make(MP_EVENT_SHAPE, 0, 0x1000, bytes);
    event.op = text;
    event.op_instance = instance;
    event.flags = instance != 0 ? MP_FLAG_IN_OP : 0;
    apply(tracker, event);
}

static uint32_t
shape_of(const mp_tracker_t *tracker)
{
    size_t count;
    return mp_tracker_allocations(tracker, &count)[0].shape;
}

static void
test_tracker_keeps_the_shape_of_the_largest_tensor(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    tell_shape(tracker, 10, 1, 0); /* no block there */
    mp_event_t birth = make(MP_EVENT_ALLOC, 0, 0x1000, 100);
    birth.op_instance = 7;
    birth.flags = MP_FLAG_IN_OP;
    apply(tracker, birth);
    MP_CHECK_EQ(shape_of(tracker), NONE);
    tell_shape(tracker, 101, 2, 7); /* an expanded view */
    MP_CHECK_EQ(shape_of(tracker), NONE);
    tell_shape(tracker, 50, 3, 0);
    MP_CHECK_EQ(shape_of(tracker), 3);
    tell_shape(tracker, 50, 4, 0);
    MP_CHECK_EQ(shape_of(tracker), 3); /* the first */
    tell_shape(tracker, 100, 5, 7);
    tell_shape(tracker, 100, 6, 7); /* the op around the first */
    MP_CHECK_EQ(shape_of(tracker), 6);
    mp_tracker_t *copy = copy_of(tracker);
    MP_CHECK_EQ(shape_of(copy), 6);
    tell_shape(copy, 100, 9, 8);
    MP_CHECK_EQ(shape_of(copy), 6);
    tell_shape(copy, 100, 9, 7); /* the op goes on in the window */
    MP_CHECK_EQ(shape_of(copy), 9);
    mp_tracker_free(copy);
    tell_shape(tracker, 100, 10, 8); /* a view that a later op made */
    MP_CHECK_EQ(shape_of(tracker), 6);
    say(tracker, MP_EVENT_FREE_REQUESTED, 0, 0x1000, 100);
    tell_shape(tracker, 100, 11, 7);
    MP_CHECK_EQ(shape_of(tracker), 6);
    say(tracker, MP_EVENT_FREE_COMPLETED, 0, 0x1000, 100);
    mp_tracker_free(tracker);
}

static void
test_tracker_shape_of_a_huge_block_survives_a_copy(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    alloc(tracker, 0, 0x1000, UINT64_C(1) << 40);
    tell_shape(tracker, 1 << 20, 3, 0);
    tell_shape(tracker, 1 << 30, 4, 0); /* both lack 4 GiB and more */
    MP_CHECK_EQ(shape_of(tracker), 3);
    tell_shape(tracker, (UINT64_C(1) << 40) - 5, 5, 0);
    MP_CHECK_EQ(shape_of(tracker), 5);
    mp_tracker_free(copy_of(tracker));
    mp_tracker_free(tracker);
}

static void
test_tracker_state_feeds_another_tracker(void)
{
    mp_tracker_t *tracker = new_tracker(false);
    step(tracker, 6);
    say(tracker, MP_EVENT_SEGMENT_ALLOC, 0, 0x10000, 1000);
    say(tracker, MP_EVENT_SEGMENT_MAP, 0, 0x20000, 1000);
    say(tracker, MP_EVENT_SEGMENT_UNMAP, 0, 0x20000 + 10, 10);
    op(tracker, 5, 77);
    region(tracker, MP_EVENT_REGION_BEGIN, 21);
    region(tracker, MP_EVENT_REGION_BEGIN, 22);
    node(tracker, 6, 77);
    for (uint64_t i = 0; i < 20; i++) {
        mp_event_t event =
            make(MP_EVENT_ALLOC, i % 3 == 0 ? CPU : 0, 0x10000 + i, i);
        event.thread = 1 + (uint32_t)i % 2;
        event.op = 3;
        event.flags = MP_FLAG_IN_OP | MP_FLAG_GRAD_MODE;
        event.op_instance = (uint32_t)i;
        event.phase = MP_PHASE_BACKWARD;
        event.pool = 3;
        event.stream = 4;
        apply(tracker, event);
        mp_event_t role = make(MP_EVENT_ROLE, event.device, event.addr, i % 6);
        role.op = (uint32_t)i;
        apply(tracker, role);
    }
    request(tracker, 0, 0x10004); /* pending: keeps its origin and role */
    complete(tracker, 0, 0x10002);
    mp_tracker_t *copy = copy_of(tracker);
    region(copy, MP_EVENT_REGION_END, 22);
    MP_CHECK_EQ(born(copy)->region, 21);
    complete(copy, 0, 0x10004);
    MP_CHECK_EQ(defects_of(copy).unmatched_frees, 0);
    const mp_allocation_t *pending = row(copy, 3);
    MP_CHECK_EQ(pending->address, 0x10004);
    MP_CHECK_EQ(pending->op_instance, 4);
    MP_CHECK_EQ(pending->forward_op, 5);
    MP_CHECK_EQ(pending->region, 22);
    MP_CHECK_EQ(pending->role, 4);
    mp_tracker_free(copy);
    mp_tracker_free(tracker);
}

static void
test_tracker_state_stops_when_told(void)
{
    mp_tracker_t *tracker = new_tracker(false);
    for (uint64_t i = 0; i < 10; i++) {
        alloc(tracker, 0, i, 1);
    }
    write_state(tracker, &first);
    for (size_t limit = 0; limit < first.count; limit++) {
        second = (emitted_t){.limit = limit};
        MP_CHECK(mp_tracker_write_state(tracker, keep, &second) ==
                 MP_ERR_FULL);
        MP_CHECK_EQ(second.count, limit);
    }
    mp_tracker_free(tracker);
}

/* ---- random streams against a naive model
 * ------------------------------------------------ */

enum {
    BLOCKS = 4000,
    ADDRS = 40,
    DEVICES = 3,
    THREADS = 3,
    DEEP = 12
};

typedef struct {
    uint64_t addr, size;
    int16_t device;
    int state; /* 0 dead, 1 live, 2 pending */
    int64_t born, died, completed;
    uint32_t region, forward, thread;
    int32_t born_step, died_step;
    uint8_t role;
} model_block_t;

typedef struct {
    uint32_t name;
    uint32_t forward; /* op; NONE: not known */
    bool is_node;
} model_op_t;

typedef struct {
    model_block_t blocks[BLOCKS];
    size_t count;
    model_op_t ops[THREADS][DEEP];
    size_t op_count[THREADS];
    uint32_t regions[THREADS][DEEP];
    size_t region_count[THREADS];
    uint32_t made[1000]; /* sequence number -> op */
    uint64_t next_sequence;
    int64_t peak[DEVICES][2], total[DEVICES][2];
    uint64_t unmatched, foreign, replaced;
    int64_t events;
    int32_t step;
} model_t;

static int64_t
model_sum(const model_t *model, int16_t device, bool active)
{
    int64_t sum = 0;
    for (size_t i = 0; i < model->count; i++) {
        const model_block_t *block = &model->blocks[i];
        if (block->device == device &&
            (block->state == 1 || (active && block->state == 2))) {
            sum += (int64_t)block->size;
        }
    }
    return sum;
}

static model_block_t *
model_find(model_t *model, int16_t device, uint64_t addr)
{
    for (size_t i = model->count; i-- > 0;) {
        model_block_t *block = &model->blocks[i];
        if (block->state != 0 && block->device == device &&
            block->addr == addr) {
            return block;
        }
    }
    return NULL;
}

static void
model_die(model_t *model, model_block_t *block, bool completed)
{
    if (block->state == 1) {
        block->died = model->events;
        block->died_step = model->step;
    }
    if (completed) {
        block->completed = model->events;
    }
    block->state = completed ? 0 : 2;
}

static void
model_alloc(model_t *model, const mp_event_t *event)
{
    model_block_t *old = model_find(model, event->device, event->addr);
    if (old != NULL) {
        model->replaced += old->state == 1;
        model_die(model, old, true);
    }
    uint32_t thread = event->thread;
    model_block_t block = {.addr = event->addr,
                           .size = event->size,
                           .device = event->device,
                           .state = 1,
                           .born = model->events,
                           .died = -1,
                           .completed = -1,
                           .region = NONE,
                           .forward = NONE,
                           .thread = thread,
                           .born_step = model->step,
                           .died_step = -1};
    if (model->region_count[thread] > 0) {
        block.region = model->regions[thread][model->region_count[thread] - 1];
    }
    for (size_t i = 0; i < model->op_count[thread]; i++) {
        if (model->ops[thread][i].forward != NONE) {
            block.forward = model->ops[thread][i].forward;
        }
    }
    model->blocks[model->count++] = block;
    for (int active = 0; active < 2; active++) {
        int64_t sum = model_sum(model, event->device, active);
        int64_t *peak = &model->peak[event->device + 1][active];
        *peak = sum > *peak ? sum : *peak;
        model->total[event->device + 1][active] += (int64_t)event->size;
    }
}

/* One random event, applied to the model. */
static mp_event_t
model_next(model_t *model)
{
    uint32_t thread = (uint32_t)(rand() % THREADS);
    int16_t device = (int16_t)(rand() % DEVICES - 1);
    uint64_t addr = (uint64_t)(rand() % ADDRS) * 16;
    mp_event_t event = make(0, device, addr, 0);
    event.thread = thread;
    model_block_t *block = model_find(model, device, addr);
    size_t *ops = &model->op_count[thread];
    size_t *regions = &model->region_count[thread];
    switch (rand() % 12) {
    default:
        event.kind = MP_EVENT_ALLOC;
        event.size = (uint64_t)(rand() % 1000);
        model_alloc(model, &event);
        break;
    case 0:
    case 1:
        event.kind = MP_EVENT_FREE_REQUESTED;
        if (block == NULL || block->state != 1) {
            model->unmatched++;
        }
        else {
            model_die(model, block, false);
        }
        break;
    case 2:
    case 3:
    case 4:
        event.kind = MP_EVENT_FREE_COMPLETED;
        if (block != NULL) {
            model_die(model, block, true);
        }
        else {
            model->foreign += device == CPU;
        }
        break;
    case 5: /* an op, or a node of an earlier op */
        if (*ops < DEEP) {
            event.kind = MP_EVENT_OP_BEGIN;
            event.op = (uint32_t)(rand() % 50);
            event.addr = NO_SEQUENCE;
            model_op_t mine = {event.op, NONE, false};
            if (rand() % 2 == 0 && model->next_sequence > 0) {
                mine.is_node = true;
                event.flags = MP_FLAG_BACKWARD_OP;
                event.addr = (uint64_t)rand() % (model->next_sequence + 2);
                mine.forward = event.addr < model->next_sequence
                                   ? model->made[event.addr]
                                   : NONE;
            }
            else if (rand() % 2 == 0 && model->next_sequence < 990) {
                event.addr = model->next_sequence++;
                model->made[event.addr] = event.op;
            }
            model->ops[thread][(*ops)++] = mine;
        }
        break;
    case 6:
        if (*ops > 0) { /* the innermost of a name, and what is inside */
            event.kind = MP_EVENT_OP_END;
            event.op = model->ops[thread][rand() % (int)*ops].name;
            size_t i = *ops;
            while (model->ops[thread][--i].name != event.op) {
            }
            model_op_t ended = model->ops[thread][i];
            *ops = i;
            if (i > 0 && ended.is_node && ended.forward != NONE) {
                model->ops[thread][i - 1].forward = ended.forward;
            }
        }
        break;
    case 7:
        if (*regions < DEEP) {
            event.kind = MP_EVENT_REGION_BEGIN;
            event.op = (uint32_t)(rand() % 6);
            model->regions[thread][(*regions)++] = event.op;
        }
        else {
            event.kind = MP_EVENT_REGION_END;
            event.op = model->regions[thread][*regions - 1];
            (*regions)--;
        }
        break;
    case 8:
        event.kind = MP_EVENT_ROLE;
        event.size = MP_ROLE_INPUT;
        if (block != NULL) {
            block->role = MP_ROLE_INPUT;
        }
        break;
    case 9:
        event.kind = MP_EVENT_STEP;
        event.addr = SESSION;
        event.size = (uint64_t)++model->step;
        break;
    }
    model->events++;
    return event;
}

static void
check_against(const mp_tracker_t *tracker, const model_t *model)
{
    for (int16_t device = CPU; device < DEVICES - 1; device++) {
        mp_device_stats_t stats = {0};
        (void)mp_tracker_stats(tracker, device, &stats);
        check_stat(stats.requested_bytes, model_sum(model, device, false),
                   model->peak[device + 1][0], model->total[device + 1][0]);
        check_stat(stats.active_bytes, model_sum(model, device, true),
                   model->peak[device + 1][1], model->total[device + 1][1]);
    }
    mp_defects_t defects = defects_of(tracker);
    MP_CHECK_EQ(defects.unmatched_frees, model->unmatched);
    MP_CHECK_EQ(defects.foreign_frees, model->foreign);
    MP_CHECK_EQ(defects.replaced_blocks, model->replaced);
    MP_CHECK_EQ(defects.unapplied_events, 0);
}

static void
check_row(const mp_allocation_t *life, const model_block_t *block)
{
    MP_CHECK_EQ(life->address, block->addr);
    MP_CHECK_EQ(life->size, block->size);
    MP_CHECK_EQ(life->device, block->device);
    MP_CHECK_EQ(life->born_event, block->born);
    MP_CHECK_EQ(life->died_event, block->died);
    MP_CHECK_EQ(life->completed_event, block->completed);
    MP_CHECK_EQ(life->born_step, block->born_step);
    MP_CHECK_EQ(life->died_step, block->died_step);
    MP_CHECK_EQ(life->region, block->region);
    MP_CHECK_EQ(life->forward_op, block->forward);
    MP_CHECK_EQ(life->role, block->role);
}

static void
test_tracker_agrees_with_a_naive_model(void)
{
    static model_t model;
    for (unsigned seed = 0; seed < 20; seed++) {
        srand(seed);
        model = (model_t){0};
        mp_tracker_t *whole = new_tracker(true);
        mp_tracker_t *follower = new_tracker(false);
        for (int turn = 0; turn < 3000; turn++) {
            mp_event_t event = model_next(&model);
            apply(whole, event);
            apply(follower, event);
            if (turn % 100 == 0) {
                check_against(whole, &model);
                check_against(follower, &model);
            }
        }
        check_against(whole, &model);
        check_against(follower, &model);
        MP_CHECK_EQ(row_count(whole), model.count);
        for (size_t i = 0; i < model.count; i++) {
            MP_CHECK_EQ(row(whole, i)->id, i);
            check_row(row(whole, i), &model.blocks[i]);
        }
        size_t left = 0, modelled = 0;
        for (size_t i = 0; i < row_count(follower); i++) {
            const mp_allocation_t *life = row(follower, i);
            if (life->id >= 0) {
                model_block_t *block =
                    model_find(&model, life->device, life->address);
                MP_CHECK(block != NULL);
                check_row(life, block);
                left++;
            }
        }
        for (size_t i = 0; i < model.count; i++) {
            modelled += model.blocks[i].state != 0;
        }
        MP_CHECK_EQ(left, modelled);
        mp_tracker_free(copy_of(follower));
        mp_tracker_free(copy_of(whole));
        mp_tracker_free(follower);
        mp_tracker_free(whole);
    }
}

/* ---- without memory
 * -------------------------------------------------------------------- */

/* Every kind of event that may need memory; MP_OK: all were applied. */
static mp_status_t
feed_everything(mp_tracker_t *tracker)
{
    static const uint8_t kinds[] = {
        MP_EVENT_ALLOC,        MP_EVENT_SEED_BLOCK,   MP_EVENT_OP_BEGIN,
        MP_EVENT_REGION_BEGIN, MP_EVENT_MODULE_BEGIN, MP_EVENT_SEGMENT_ALLOC,
        MP_EVENT_SEGMENT_UNMAP};
    mp_status_t worst = MP_OK;
    for (uint64_t i = 0; i < 2000; i++) {
        for (size_t k = 0; k < MP_ARRAY_LENGTH(kinds); k++) {
            uint64_t addr = (i * 16 + k) << 12;
            addr -= kinds[k] == MP_EVENT_SEGMENT_UNMAP ? (1 << 12) - 64 : 0;
            mp_event_t event = make(kinds[k], (int16_t)(i % 20), addr, 128);
            event.thread = (uint32_t)(i % 40);
            mp_status_t status = mp_tracker_apply(tracker, &event);
            worst = status != MP_OK ? status : worst;
        }
    }
    return worst;
}

static void
test_tracker_without_memory_counts_what_it_could_not_apply(void)
{
    size_t before = mp_mem_bytes();
    int failures = 0;
    mp_tracker_options_t options = {.session_id = SESSION, .keep_dead = true};
    for (long n = 1;; n++) {
        mp_tracker_t *tracker = NULL;
        mp_mem_fail_after(n);
        mp_status_t status = mp_tracker_new(&options, &tracker);
        if (status == MP_OK) {
            status = feed_everything(tracker);
            mp_mem_fail_after(0);
            MP_CHECK_EQ(defects_of(tracker).unapplied_events, status != MP_OK);
            mp_status_t said = status;
            int64_t live = 0;
            for (size_t i = 0; i < row_count(tracker); i++) {
                live += row(tracker, i)->died_event < 0;
            }
            int64_t counted = 0;
            for (int16_t device = 0; device < 20; device++) {
                mp_device_stats_t stats = {0};
                (void)mp_tracker_stats(tracker, device, &stats);
                counted += stats.allocated_blocks.current;
            }
            MP_CHECK_EQ(live, counted);
            status = said;
        }
        mp_mem_fail_after(0);
        mp_tracker_free(tracker);
        MP_CHECK_EQ(mp_mem_bytes(), before);
        if (status == MP_OK) {
            break;
        }
        MP_CHECK_EQ(status, MP_ERR_NOMEM);
        failures++;
    }
    MP_CHECK(failures > 50);
    mp_tracker_free(NULL);
}

static void
test_tracker_writes_its_state_without_memory(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    alloc(tracker, 0, 0x1000, 1);
    mp_mem_fail_after(1);
    write_state(tracker, &first);
    MP_CHECK(mp_realloc(NULL, 1) == NULL); /* nothing had asked before */
    mp_tracker_free(tracker);
}

/* ---- cost
 * --------------------------------------------------------------------------------
 */

/* Not a timed test: what one event costs is printed. */
static void
test_tracker_cost_of_an_event(void)
{
    mp_tracker_t *tracker = new_tracker(false);
    enum {
        LIVE = 1000,
        EVENTS = 2000000
    };
    mp_event_t event = make(MP_EVENT_ALLOC, 0, 0, 512);
    struct timespec from, to;
    (void)clock_gettime(CLOCK_MONOTONIC, &from);
    for (uint64_t i = 0; i < EVENTS / 2; i++) {
        event.kind = MP_EVENT_ALLOC;
        event.addr = i * 512;
        (void)mp_tracker_apply(tracker, &event);
        event.kind = MP_EVENT_FREE_COMPLETED;
        event.addr = (i - LIVE) * 512;
        (void)mp_tracker_apply(tracker, &event);
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &to);
    double ns = (double)(to.tv_sec - from.tv_sec) * 1e9 +
                (double)(to.tv_nsec - from.tv_nsec);
    printf("       tracker: %.1f ns an event\n", ns / EVENTS);
    MP_CHECK_EQ(stats_of(tracker, 0).allocated_blocks.current, LIVE);
    mp_tracker_free(tracker);
}

MP_TEST_SUITE(
    tracker, MP_TEST(test_tracker_block_lives_from_alloc_to_free),
    MP_TEST(test_tracker_pending_free_is_active_until_completed),
    MP_TEST(test_tracker_reused_address_is_another_life),
    MP_TEST(test_tracker_birth_at_a_live_address_ends_the_old_life),
    MP_TEST(test_tracker_frees_that_nobody_saw_born_are_counted),
    MP_TEST(test_tracker_same_address_on_two_devices_is_two_blocks),
    MP_TEST(test_tracker_knows_what_died_inside_its_op),
    MP_TEST(test_tracker_other_kinds_change_nothing),
    MP_TEST(test_tracker_any_size_is_survived),
    MP_TEST(test_tracker_seeds_are_older_than_the_recording),
    MP_TEST(test_tracker_pending_seed_is_active_only),
    MP_TEST(test_tracker_strongest_role_wins),
    MP_TEST(test_tracker_segments_are_reserved),
    MP_TEST(test_tracker_segment_over_another_replaces_it),
    MP_TEST(test_tracker_backward_block_knows_its_forward),
    MP_TEST(test_tracker_gradient_summed_after_its_node_knows_its_forward),
    MP_TEST(test_tracker_outermost_and_last_op_of_a_number_made_its_node),
    MP_TEST(test_tracker_op_that_touched_no_memory_made_a_node),
    MP_TEST(test_tracker_node_without_an_op_finds_its_module),
    MP_TEST(test_tracker_death_is_in_the_forward_of_birth_or_in_another),
    MP_TEST(test_tracker_block_is_in_the_innermost_open_region),
    MP_TEST(test_tracker_threads_without_end_stay_bounded),
    MP_TEST(test_tracker_step_has_a_row_per_device),
    MP_TEST(test_tracker_window_marks_its_steps),
    MP_TEST(test_tracker_scopes_nest_and_close_in_any_order),
    MP_TEST(test_tracker_scope_sees_devices_that_come_later),
    MP_TEST(test_tracker_has_64_scopes),
    MP_TEST(test_tracker_that_only_follows_stays_bounded),
    MP_TEST(test_tracker_without_budget_says_full_and_goes_on),
    MP_TEST(test_tracker_state_feeds_another_tracker),
    MP_TEST(test_tracker_keeps_the_shape_of_the_largest_tensor),
    MP_TEST(test_tracker_shape_of_a_huge_block_survives_a_copy),
    MP_TEST(test_tracker_state_stops_when_told),
    MP_TEST(test_tracker_agrees_with_a_naive_model),
    MP_TEST(test_tracker_without_memory_counts_what_it_could_not_apply),
    MP_TEST(test_tracker_writes_its_state_without_memory),
    MP_TEST(test_tracker_cost_of_an_event))
