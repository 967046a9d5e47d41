/* test_ledger.c - what is held of the driver: the replay, without CUPTI. */
#include "accounts.h"
#include "mem.h"
#include "mp_test.h"
#include "tracker.h"

#include <stdlib.h>

enum {
    SESSION = 42,
    CPU = MP_DEVICE_CPU,
    NCCL = 7, /* owners: string ids of nobody's */
    TORCH = 8,
    CONTEXT = 0xc0,
    OTHER_CONTEXT = 0xc1
};

static int64_t now_ns;

static mp_event_t
make(uint8_t kind, unsigned group, uint64_t addr, uint64_t size)
{
    return (mp_event_t){.kind = kind,
                        .pool = (uint16_t)group,
                        .addr = addr,
                        .size = size,
                        .stream = CONTEXT,
                        .time_ns = ++now_ns,
                        .thread = 1,
                        .op = MP_NO_INDEX,
                        .module = MP_NO_INDEX,
                        .stack = MP_NO_INDEX,
                        .op_instance = NCCL};
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
take(mp_tracker_t *tracker, unsigned group, uint64_t addr, uint64_t size)
{
    apply(tracker, make(MP_EVENT_DRIVER_ALLOC, group, addr, size));
}

static void
give(mp_tracker_t *tracker, unsigned group, uint64_t addr, uint64_t size,
     uint64_t token)
{
    mp_event_t event = make(MP_EVENT_DRIVER_FREE, group, addr, size);
    event.stream = token;
    apply(tracker, event);
}

static void
put_back(mp_tracker_t *tracker, unsigned group, uint64_t addr, uint64_t token)
{
    mp_event_t event = make(MP_EVENT_DRIVER_PUT_BACK, group, addr, 0);
    event.stream = token;
    apply(tracker, event);
}

static void
map(mp_tracker_t *tracker, uint64_t addr, uint64_t size, uint64_t handle)
{
    mp_event_t event =
        make(MP_EVENT_DRIVER_ALLOC, MP_DRIVER_MAPPING, addr, size);
    event.stream = handle;
    event.device = MP_DEVICE_UNKNOWN;
    apply(tracker, event);
}

static const mp_driver_life_t *
row(const mp_tracker_t *tracker, size_t index)
{
    size_t count;
    const mp_driver_life_t *rows =
        mp_ledger_rows(mp_tracker_ledger(tracker), &count);
    MP_CHECK(index < count);
    return &rows[index];
}

static mp_ledger_counts_t
counts(const mp_tracker_t *tracker)
{
    mp_ledger_counts_t found;
    mp_ledger_counts(mp_tracker_ledger(tracker), &found);
    return found;
}

/* What GROUP holds after EVENT, all owners and devices together. */
static mp_account_t
held_at(const mp_tracker_t *tracker, unsigned group, int64_t event)
{
    mp_account_t *accounts;
    size_t count;
    mp_account_t sum = {0};
    MP_CHECK(mp_accounts_at(mp_tracker_ledger(tracker), event, &accounts,
                            &count) == MP_OK);
    for (size_t i = 0; i < count; i++) {
        if (accounts[i].group == group) {
            sum.bytes += accounts[i].bytes;
            sum.peak += accounts[i].peak;
            sum.total += accounts[i].total;
            sum.count += accounts[i].count;
            sum.taken += accounts[i].taken;
        }
    }
    mp_free(accounts);
    return sum;
}

static mp_account_t
held(const mp_tracker_t *tracker, unsigned group)
{
    return held_at(tracker, group, INT64_MAX);
}

/* ---- taking and giving -------------------------------------------------- */

static void
test_ledger_is_empty_without_driver_events(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    size_t count = 9;
    MP_CHECK(mp_tracker_ledger(tracker) == NULL);
    MP_CHECK(mp_ledger_rows(NULL, &count) == NULL && count == 0);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_DEVICE).count, 0);
    MP_CHECK_EQ(counts(tracker).unknown_gives, 0);
    mp_tracker_free(tracker);
}

static void
test_ledger_keeps_a_row_a_life_and_accounts_at_any_event(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    take(tracker, MP_DRIVER_DEVICE, 0x1000, 100); /* event 0 */
    take(tracker, MP_DRIVER_DEVICE, 0x2000, 30);  /* 1 */
    give(tracker, MP_DRIVER_DEVICE, 0x1000, 0, 1);
    take(tracker, MP_DRIVER_DEVICE, 0x1000, 50); /* 3: the address again */
    MP_CHECK_EQ(held_at(tracker, MP_DRIVER_DEVICE, -1).count, 0);
    MP_CHECK_EQ(held_at(tracker, MP_DRIVER_DEVICE, 0).bytes, 100);
    MP_CHECK_EQ(held_at(tracker, MP_DRIVER_DEVICE, 2).bytes, 30);
    mp_account_t end = held(tracker, MP_DRIVER_DEVICE);
    MP_CHECK_EQ(end.bytes, 80);
    MP_CHECK_EQ(end.peak, 130);
    MP_CHECK_EQ(end.total, 180);
    MP_CHECK_EQ(end.count, 2);
    MP_CHECK_EQ(end.taken, 3);
    MP_CHECK_EQ(row(tracker, 0)->died_event, 2);
    MP_CHECK_EQ(row(tracker, 1)->died_event, -1);
    MP_CHECK_EQ(row(tracker, 2)->born_event, 3);
    MP_CHECK_EQ(row(tracker, 2)->owner, NCCL);
    mp_tracker_free(tracker);
}

static void
test_ledger_frees_managed_and_stream_ordered_by_the_common_free(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    take(tracker, MP_DRIVER_MANAGED, 0x1000, 10);
    take(tracker, MP_DRIVER_STREAM_ORDERED, 0x2000, 20);
    take(tracker, MP_DRIVER_HOST, 0x1000, 40); /* another family */
    give(tracker, MP_DRIVER_DEVICE, 0x1000, 0, 1);
    give(tracker, MP_DRIVER_DEVICE, 0x2000, 0, 2);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_MANAGED).bytes, 0);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_STREAM_ORDERED).bytes, 0);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_HOST).bytes, 40);
    give(tracker, MP_DRIVER_HOST_REGISTERED, 0x1000, 0, 3);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_HOST).bytes, 0);
    mp_tracker_free(tracker);
}

static void
test_ledger_counts_unknown_gives_and_missed_ones(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    give(tracker, MP_DRIVER_DEVICE, 0x1000, 0, 1);
    take(tracker, MP_DRIVER_DEVICE, 0x2000, 20);
    take(tracker, MP_DRIVER_DEVICE, 0x2000, 30);
    MP_CHECK_EQ(counts(tracker).unknown_gives, 1);
    MP_CHECK_EQ(counts(tracker).replaced, 1);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_DEVICE).bytes, 30);
    MP_CHECK_EQ(row(tracker, 0)->died_event, 2);
    apply(tracker, make(MP_EVENT_DRIVER_OOM, MP_DRIVER_DEVICE, 0, 1 << 30));
    MP_CHECK_EQ(counts(tracker).ooms, 1);
    mp_tracker_free(tracker);
}

static void
test_ledger_puts_back_what_could_not_be_given(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    take(tracker, MP_DRIVER_DEVICE, 0x1000, 100);
    give(tracker, MP_DRIVER_DEVICE, 0x1000, 0, 5);
    put_back(tracker, MP_DRIVER_DEVICE, 0x1000, 5);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_DEVICE).bytes, 100);
    MP_CHECK_EQ(row(tracker, 0)->died_event, -1);
    MP_CHECK_EQ(counts(tracker).failed_gives, 1);
    put_back(tracker, MP_DRIVER_DEVICE, 0x1000, 6); /* nothing of it known */
    MP_CHECK_EQ(counts(tracker).lost_put_backs, 1);
    give(tracker, MP_DRIVER_DEVICE, 0x1000, 0, 7);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_DEVICE).bytes, 0);
    mp_tracker_free(tracker);
}

static void
test_ledger_uses_rows_again_where_the_dead_are_not_kept(void)
{
    mp_tracker_t *tracker = new_tracker(false);
    take(tracker, MP_DRIVER_DEVICE, 0x10, 1);
    for (uint64_t i = 0; i < 100000; i++) {
        take(tracker, MP_DRIVER_DEVICE, 0x1000, 100);
        give(tracker, MP_DRIVER_DEVICE, 0x1000, 0, i);
        if (i % 3 == 0) {
            put_back(tracker, MP_DRIVER_DEVICE, 0x1000, i);
            give(tracker, MP_DRIVER_DEVICE, 0x1000, 0, i + 1000000);
        }
    }
    size_t rows, cursor = 0, live = 0;
    const mp_ledger_t *ledger = mp_tracker_ledger(tracker);
    (void)mp_ledger_rows(ledger, &rows);
    MP_CHECK(rows < 600);
    mp_event_t blank = {0}, seed;
    while (mp_ledger_next_seed(ledger, &cursor, &blank, &seed)) {
        MP_CHECK_EQ(seed.addr, 0x10);
        live++;
    }
    MP_CHECK_EQ(live, 1);
    mp_tracker_free(tracker);
}

/* ---- handles ------------------------------------------------------------ */

static void
test_ledger_holds_a_handle_until_its_last_reference(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    take(tracker, MP_DRIVER_PHYSICAL, 0xa1, 2 << 20);
    map(tracker, 0x100000, 1 << 20, 0xa1);
    map(tracker, 0x200000, 1 << 20, 0xa1);
    give(tracker, MP_DRIVER_PHYSICAL, 0xa1, 0, 1); /* cuMemRelease */
    MP_CHECK_EQ(held(tracker, MP_DRIVER_PHYSICAL).bytes, 2 << 20);
    MP_CHECK_EQ(row(tracker, 1)->device, 0); /* the handle's */
    give(tracker, MP_DRIVER_MAPPING, 0x100000, 1 << 20, 2);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_PHYSICAL).bytes, 2 << 20);
    give(tracker, MP_DRIVER_MAPPING, 0x200000, 1 << 20, 3);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_PHYSICAL).bytes, 0);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_MAPPING).count, 0);
    /* The value is used again: it is another handle. */
    take(tracker, MP_DRIVER_PHYSICAL, 0xa1, 4 << 20);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_PHYSICAL).bytes, 4 << 20);
    MP_CHECK_EQ(counts(tracker).replaced, 0);
    mp_tracker_free(tracker);
}

static void
test_ledger_unmaps_whole_mappings_of_a_range(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    for (uint64_t i = 0; i < 4; i++) {
        take(tracker, MP_DRIVER_PHYSICAL, 0xa0 + i, 0x1000);
        if (i != 1) { /* a hole */
            map(tracker, 0x10000 + i * 0x1000, 0x1000, 0xa0 + i);
        }
        give(tracker, MP_DRIVER_PHYSICAL, 0xa0 + i, 0, i);
    }
    MP_CHECK_EQ(held(tracker, MP_DRIVER_PHYSICAL).bytes, 0x3000);
    give(tracker, MP_DRIVER_MAPPING, 0x10000, 0x3000, 9); /* 0 and 2 */
    MP_CHECK_EQ(held(tracker, MP_DRIVER_PHYSICAL).bytes, 0x1000);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_MAPPING).count, 1);
    give(tracker, MP_DRIVER_MAPPING, 0x13000, 0x800, 10); /* a part: no */
    MP_CHECK_EQ(held(tracker, MP_DRIVER_MAPPING).count, 1);
    MP_CHECK_EQ(counts(tracker).unknown_gives, 1);
    put_back(tracker, MP_DRIVER_MAPPING, 0x10000, 9);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_PHYSICAL).bytes, 0x3000);
    give(tracker, MP_DRIVER_MAPPING, 0x10000, 0x4000, 11);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_PHYSICAL).bytes, 0);
    mp_tracker_free(tracker);
}

static void
test_ledger_retained_and_imported_handles(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    mp_event_t another =
        make(MP_EVENT_DRIVER_ALLOC, MP_DRIVER_PHYSICAL, 0xa1, 0);
    another.flags = MP_FLAG_FOREIGN | MP_FLAG_RETAINED;
    take(tracker, MP_DRIVER_PHYSICAL, 0xa1, 0x1000);
    apply(tracker, another); /* the same handle: one more reference */
    give(tracker, MP_DRIVER_PHYSICAL, 0xa1, 0, 1);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_PHYSICAL).bytes, 0x1000);
    put_back(tracker, MP_DRIVER_PHYSICAL, 0xa1, 1); /* it lives: a reference */
    give(tracker, MP_DRIVER_PHYSICAL, 0xa1, 0, 2);
    give(tracker, MP_DRIVER_PHYSICAL, 0xa1, 0, 3);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_PHYSICAL).bytes, 0);
    put_back(tracker, MP_DRIVER_PHYSICAL, 0xa1, 3); /* it was dead */
    MP_CHECK_EQ(held(tracker, MP_DRIVER_PHYSICAL).bytes, 0x1000);
    MP_CHECK_EQ(row(tracker, 0)->references, 1);
    give(tracker, MP_DRIVER_PHYSICAL, 0xa1, 0, 4);
    another.addr = 0xb2; /* imported: the exporter owns the bytes */
    apply(tracker, another);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_PHYSICAL).bytes, 0);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_PHYSICAL).count, 1);
    mp_tracker_free(tracker);
}

/* ---- torch -------------------------------------------------------------- */

static void
segment(mp_tracker_t *tracker, uint8_t kind, uint64_t addr, uint64_t size)
{
    apply(tracker, make(kind, 0, addr, size));
}

static void
test_ledger_marks_segments_of_torch_whoever_asked(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    mp_event_t event =
        make(MP_EVENT_DRIVER_ALLOC, MP_DRIVER_DEVICE, 0x1000, 100);
    event.op_instance = TORCH;
    event.flags = MP_FLAG_TORCH_ASKED;
    apply(tracker, event);
    segment(tracker, MP_EVENT_SEGMENT_ALLOC, 0x1000, 100);
    MP_CHECK_EQ(row(tracker, 0)->is_torch, 1);
    MP_CHECK_EQ(counts(tracker).disagreements, 0);
    take(tracker, MP_DRIVER_DEVICE, 0x2000, 200); /* NCCL asked: a MemPool */
    segment(tracker, MP_EVENT_SEGMENT_ALLOC, 0x2000, 200);
    MP_CHECK_EQ(row(tracker, 1)->is_torch, 1);
    MP_CHECK_EQ(counts(tracker).disagreements, 1);
    take(tracker, MP_DRIVER_DEVICE, 0x3000, 300); /* NCCL's own */
    MP_CHECK_EQ(row(tracker, 2)->is_torch, 0);
    mp_account_t *accounts;
    size_t count;
    MP_CHECK(mp_accounts_at(mp_tracker_ledger(tracker), INT64_MAX, &accounts,
                            &count) == MP_OK);
    MP_CHECK_EQ(count, 3);
    int64_t outside = 0;
    for (size_t i = 0; i < count; i++) {
        outside += accounts[i].is_torch ? 0 : accounts[i].bytes;
    }
    MP_CHECK_EQ(outside, 300);
    mp_free(accounts);
    mp_tracker_free(tracker);
}

static void
test_ledger_marks_the_handles_of_expandable_segments(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    for (uint64_t i = 0; i < 3; i++) {
        take(tracker, MP_DRIVER_PHYSICAL, 0xa0 + i, 0x1000);
        map(tracker, 0x10000 + i * 0x1000, 0x1000, 0xa0 + i);
    }
    segment(tracker, MP_EVENT_SEGMENT_MAP, 0x10000, 0x2000);
    MP_CHECK_EQ(row(tracker, 0)->is_torch, 1);
    MP_CHECK_EQ(row(tracker, 1)->is_torch, 1);
    MP_CHECK_EQ(row(tracker, 2)->is_torch, 1);
    MP_CHECK_EQ(row(tracker, 4)->is_torch, 0);
    MP_CHECK_EQ(counts(tracker).disagreements, 2); /* a handle each */
    mp_tracker_free(tracker);
}

/* ---- contexts, gaps, the state ------------------------------------------ */

static bool
feed(void *context, const mp_event_t *event)
{
    return mp_tracker_apply(context, event) == MP_OK;
}

static void
test_ledger_learns_the_device_of_a_context_later(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    mp_event_t event =
        make(MP_EVENT_DRIVER_ALLOC, MP_DRIVER_DEVICE, 0x1000, 100);
    event.device = MP_DEVICE_UNKNOWN;
    apply(tracker, event);
    event.addr = 0x2000;
    event.stream = OTHER_CONTEXT;
    apply(tracker, event);
    mp_event_t known = make(MP_EVENT_DRIVER_CONTEXT, 0, CONTEXT, 0);
    known.device = 3;
    apply(tracker, known);
    MP_CHECK_EQ(row(tracker, 0)->device, 3);
    MP_CHECK_EQ(row(tracker, 1)->device, MP_DEVICE_UNKNOWN);
    /* A callback had looked before, and tells after; in a later window too. */
    mp_tracker_t *after = new_tracker(true);
    MP_CHECK(mp_tracker_write_state(tracker, feed, after) == MP_OK);
    mp_tracker_t *each[] = {tracker, after};
    for (size_t i = 0; i < MP_ARRAY_LENGTH(each); i++) {
        event.addr = 0x3000;
        event.stream = CONTEXT;
        apply(each[i], event);
        MP_CHECK_EQ(row(each[i], 2)->device, 3);
        /* Another context comes to lie there. */
        apply(each[i], make(MP_EVENT_DRIVER_MARK,
                            MP_DRIVER_MARK_CONTEXT_DESTROYED, CONTEXT, 0));
        apply(each[i], event);
        MP_CHECK_EQ(row(each[i], 3)->device, MP_DEVICE_UNKNOWN);
    }
    mp_tracker_free(after);
    mp_tracker_free(tracker);
}

static void
test_ledger_drops_what_lay_in_a_destroyed_context_but_no_handles(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    take(tracker, MP_DRIVER_DEVICE, 0x1000, 100);
    take(tracker, MP_DRIVER_PHYSICAL, 0xa1, 200);
    mp_event_t other =
        make(MP_EVENT_DRIVER_ALLOC, MP_DRIVER_DEVICE, 0x2000, 400);
    other.stream = OTHER_CONTEXT;
    apply(tracker, other);
    apply(tracker, make(MP_EVENT_DRIVER_MARK, MP_DRIVER_MARK_CONTEXT_DESTROYED,
                        CONTEXT, 0));
    MP_CHECK_EQ(held(tracker, MP_DRIVER_DEVICE).bytes, 400);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_PHYSICAL).bytes, 200);
    mp_tracker_free(tracker);
}

static void
gap(mp_tracker_t *tracker, bool begins)
{
    apply(tracker, make(MP_EVENT_DRIVER_GAP, 0, begins, 0));
}

static void
test_ledger_follows_torch_alone_in_a_gap(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    take(tracker, MP_DRIVER_DEVICE, 0x1000, 100);
    segment(tracker, MP_EVENT_SEGMENT_ALLOC, 0x1000, 100);
    take(tracker, MP_DRIVER_DEVICE, 0x2000, 50);
    segment(tracker, MP_EVENT_SEGMENT_ALLOC, 0x2000, 50);
    segment(tracker, MP_EVENT_SEGMENT_FREE, 0x1000, 100);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_DEVICE).bytes, 150);
    gap(tracker, true); /* event 5 */
    gap(tracker, true); /* again: still the same one */
    segment(tracker, MP_EVENT_SEGMENT_FREE, 0x2000, 50);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_DEVICE).bytes, 100);
    gap(tracker, false);
    size_t count;
    const mp_driver_gap_t *gaps =
        mp_ledger_gaps(mp_tracker_ledger(tracker), &count);
    MP_CHECK_EQ(count, 1);
    MP_CHECK_EQ(gaps[0].begin_event, 5);
    MP_CHECK_EQ(gaps[0].end_event, 8);
    MP_CHECK_EQ(counts(tracker).gaps, 1);
    mp_tracker_free(tracker);
}

static void
test_ledger_state_makes_the_same_ledger(void)
{
    mp_tracker_t *before = new_tracker(false);
    mp_tracker_t *after = new_tracker(true);
    take(before, MP_DRIVER_DEVICE, 0x1000, 100);
    segment(before, MP_EVENT_SEGMENT_ALLOC, 0x1000, 100);
    take(before, MP_DRIVER_DEVICE, 0x2000, 50);
    give(before, MP_DRIVER_DEVICE, 0x2000, 0, 1);
    take(before, MP_DRIVER_PHYSICAL, 0xa1, 0x1000);
    map(before, 0x10000, 0x1000, 0xa1);
    give(before, MP_DRIVER_PHYSICAL, 0xa1, 0, 2); /* the mapping holds it */
    take(before, MP_DRIVER_HOST, 0x3000, 7);
    gap(before, true);
    MP_CHECK(mp_tracker_write_state(before, feed, after) == MP_OK);
    MP_CHECK_EQ(held_at(after, MP_DRIVER_DEVICE, -1).bytes, 100);
    MP_CHECK_EQ(held_at(after, MP_DRIVER_PHYSICAL, -1).bytes, 0x1000);
    MP_CHECK_EQ(held_at(after, MP_DRIVER_HOST, -1).bytes, 7);
    MP_CHECK_EQ(row(after, 0)->is_torch, 1);
    MP_CHECK_EQ(row(after, 0)->born_event, -1);
    MP_CHECK_EQ(counts(after).disagreements, 0); /* told by who saw it */
    size_t gaps;
    const mp_driver_gap_t *open =
        mp_ledger_gaps(mp_tracker_ledger(after), &gaps);
    MP_CHECK(gaps == 1 && open[0].begin_event == -1);
    give(after, MP_DRIVER_MAPPING, 0x10000, 0x1000, 3);
    MP_CHECK_EQ(held(after, MP_DRIVER_PHYSICAL).bytes, 0);
    mp_tracker_free(before);
    mp_tracker_free(after);
}

static void
test_ledger_foreign_and_graph_memory_counts_nothing(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    mp_event_t event = make(MP_EVENT_DRIVER_ALLOC, MP_DRIVER_IPC, 0x1000, 100);
    event.flags = MP_FLAG_FOREIGN;
    apply(tracker, event);
    event = make(MP_EVENT_DRIVER_ALLOC, MP_DRIVER_STREAM_ORDERED, 0x2000, 50);
    event.flags = MP_FLAG_GRAPH;
    apply(tracker, event);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_IPC).bytes, 0);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_IPC).count, 1);
    MP_CHECK_EQ(held(tracker, MP_DRIVER_STREAM_ORDERED).bytes, 0);
    MP_CHECK_EQ(row(tracker, 1)->size, 50);
    mp_tracker_free(tracker);
}

/* Any events at all, as a damaged file may hold them: nothing breaks. */
static void
test_ledger_survives_any_events(void)
{
    mp_tracker_t *tracker = new_tracker(true);
    uint64_t seed = 1;
    for (int i = 0; i < 200000; i++) {
        seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407;
        mp_event_t event = {
            .kind = (uint8_t)(MP_EVENT_DRIVER_ALLOC + (seed >> 33) % 7),
            .pool = (uint16_t)((seed >> 40) % 20),
            .addr = (seed >> 45) % 8 * 0x1000,
            .size = (seed >> 20) % 3 == 0 ? UINT64_MAX : 0x1000,
            .stream = (seed >> 50) % 8 * 0x1000,
            .device = (int16_t)((seed >> 55) % 4 - 2),
            .flags = (uint16_t)(seed >> 17),
        };
        (void)mp_tracker_apply(tracker, &event);
        if (i % 50 == 0) {
            mp_event_t mapped = {.kind = i % 100 == 0 ? MP_EVENT_SEGMENT_MAP
                                                      : MP_EVENT_SEGMENT_UNMAP,
                                 .addr = event.addr,
                                 .size = 0x3000};
            (void)mp_tracker_apply(tracker, &mapped);
        }
    }
    (void)held(tracker, MP_DRIVER_DEVICE);
    mp_tracker_t *after = new_tracker(true);
    MP_CHECK(mp_tracker_write_state(tracker, feed, after) == MP_OK);
    mp_tracker_free(tracker);
    mp_tracker_free(after);
}

static void
test_ledger_says_when_memory_runs_out(void)
{
    for (long n = 1; n < 30; n++) {
        mp_tracker_t *tracker = new_tracker(true);
        mp_mem_fail_after(n);
        mp_event_t event =
            make(MP_EVENT_DRIVER_ALLOC, MP_DRIVER_DEVICE, 0x1000, 1);
        bool applied = mp_tracker_apply(tracker, &event) == MP_OK;
        mp_mem_fail_after(0);
        MP_CHECK_EQ(held(tracker, MP_DRIVER_DEVICE).count, applied);
        mp_tracker_free(tracker);
    }
}

/* Three lives for each of many owners, on two devices. */
static void
test_ledger_has_an_account_for_each_of_many_owners(void)
{
    enum {
        OWNERS = 500
    };
    mp_tracker_t *tracker = new_tracker(true);
    for (uint32_t i = 0; i < 3 * OWNERS; i++) {
        mp_event_t event = make(MP_EVENT_DRIVER_ALLOC, MP_DRIVER_DEVICE,
                                0x100000 * (i + 1), i + 1);
        event.op_instance = i % OWNERS;
        event.device = (int16_t)(i % 2);
        apply(tracker, event);
    }
    const mp_ledger_t *ledger = mp_tracker_ledger(tracker);
    mp_account_t *accounts = NULL;
    size_t count = 0;
    MP_CHECK(mp_accounts_at(ledger, INT64_MAX, &accounts, &count) == MP_OK);
    MP_CHECK_EQ(count, OWNERS);
    for (size_t i = 0; i < count; i++) {
        MP_CHECK_EQ(accounts[i].owner, i); /* as they came */
        MP_CHECK_EQ(accounts[i].device, i % 2);
        MP_CHECK_EQ(accounts[i].count, 3);
        MP_CHECK_EQ(accounts[i].bytes, 3 * (i + 1) + 3 * OWNERS);
    }
    mp_free(accounts);
    bool done = false;
    for (long n = 1; !done; n++) {
        mp_mem_fail_after(n);
        mp_status_t status =
            mp_accounts_at(ledger, INT64_MAX, &accounts, &count);
        mp_mem_fail_after(0);
        done = status == MP_OK;
        MP_CHECK(done || (status == MP_ERR_NOMEM && accounts == NULL));
        MP_CHECK_EQ(count, done ? OWNERS : 0);
        MP_CHECK(!done || n > 3); /* what grows was wanting, too */
    }
    mp_free(accounts);
    mp_tracker_free(tracker);
}

MP_TEST_SUITE(
    ledger, MP_TEST(test_ledger_is_empty_without_driver_events),
    MP_TEST(test_ledger_keeps_a_row_a_life_and_accounts_at_any_event),
    MP_TEST(test_ledger_frees_managed_and_stream_ordered_by_the_common_free),
    MP_TEST(test_ledger_counts_unknown_gives_and_missed_ones),
    MP_TEST(test_ledger_puts_back_what_could_not_be_given),
    MP_TEST(test_ledger_uses_rows_again_where_the_dead_are_not_kept),
    MP_TEST(test_ledger_holds_a_handle_until_its_last_reference),
    MP_TEST(test_ledger_unmaps_whole_mappings_of_a_range),
    MP_TEST(test_ledger_retained_and_imported_handles),
    MP_TEST(test_ledger_marks_segments_of_torch_whoever_asked),
    MP_TEST(test_ledger_marks_the_handles_of_expandable_segments),
    MP_TEST(test_ledger_learns_the_device_of_a_context_later),
    MP_TEST(test_ledger_drops_what_lay_in_a_destroyed_context_but_no_handles),
    MP_TEST(test_ledger_follows_torch_alone_in_a_gap),
    MP_TEST(test_ledger_state_makes_the_same_ledger),
    MP_TEST(test_ledger_foreign_and_graph_memory_counts_nothing),
    MP_TEST(test_ledger_survives_any_events),
    MP_TEST(test_ledger_says_when_memory_runs_out),
    MP_TEST(test_ledger_has_an_account_for_each_of_many_owners))
