/* test_hook.c - the facts that hooks write, read from the log. */
#include "clock.h"
#include "fake_pystack.h"
#include "fake_shim.h"
#include "hook.h"
#include "mem.h"
#include "mp_test.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ALL                                                                   \
    (MP_HOOK_CUDA | MP_HOOK_CPU | MP_HOOK_OPS | MP_HOOK_STACKS |              \
     MP_HOOK_SESSION)

static const mp_core_api_t *core;

static void
set_up(void)
{
    MP_CHECK(mp_hook_init() == MP_OK);
    MP_CHECK(mp_hook_init() == MP_OK); /* does nothing */
    mp_hook_set_shim(fake_shim());
    core = mp_hook_core_api();
    mp_hook_set_wanted(ALL);
}

/* The next event; it must be of KIND. */
static mp_event_t
next(uint8_t kind)
{
    size_t count;
    const mp_event_t *events = mp_log_peek(mp_hook_log(), &count);
    MP_CHECK(count > 0);
    mp_event_t event = events[0];
    mp_log_consume(mp_hook_log(), 1);
    MP_CHECK_EQ(event.kind, kind);
    return event;
}

static void
check_no_more(void)
{
    size_t count;
    (void)mp_log_peek(mp_hook_log(), &count);
    MP_CHECK_EQ(count, 0);
}

static size_t
skip_all(void)
{
    size_t count, all = 0;
    while ((void)mp_log_peek(mp_hook_log(), &count), count > 0) {
        mp_log_consume(mp_hook_log(), count);
        all += count;
    }
    return all;
}

static void
alloc(uintptr_t addr)
{
    core->cpu_alloc((void *)addr, 64);
}

/* The event of a fresh allocation; what came before it is skipped. */
static mp_event_t
probe(void)
{
    alloc(0x9000);
    mp_event_t event = {0};
    size_t count;
    while (mp_log_peek(mp_hook_log(), &count), count > 0) {
        event = mp_log_peek(mp_hook_log(), &count)[0];
        mp_log_consume(mp_hook_log(), 1);
    }
    MP_CHECK_EQ(event.kind, MP_EVENT_ALLOC);
    return event;
}

static void
begin(fake_op_t *op)
{
    core->op_begin(op, MP_OP_SCOPE_FUNCTION);
}

static void
begin_region(fake_op_t *op)
{
    core->op_begin(op, MP_OP_SCOPE_USER);
}

static void
end(fake_op_t *op)
{
    core->op_end(op);
    op->over = true;
}

static uint32_t
name(const char *text)
{
    return mp_intern_string(mp_hook_intern(), text, strlen(text));
}

/* ---- switches, allocators
 * ----------------------------------------------------- */

static void
test_hook_writes_only_what_is_wanted(void)
{
    set_up();
    mp_memory_fact_t fact = {.kind = MP_EVENT_ALLOC, .addr = 1, .size = 2};
    MP_CHECK_EQ(core->version, MP_SHIM_API_VERSION);
    MP_CHECK(__atomic_load_n(core->active, __ATOMIC_RELAXED) != 0);
    mp_hook_set_wanted(0);
    MP_CHECK_EQ(__atomic_load_n(core->active, __ATOMIC_RELAXED), 0);
    core->memory(&fact);
    alloc(0x1000);
    core->cpu_free((void *)0x1000);
    mp_hook_module_begin(1);
    mp_hook_module_end(1);
    mp_hook_optimizer_begin(1);
    MP_CHECK_EQ(mp_hook_optimizer_end(1), 0);
    mp_hook_role(1, 0, MP_ROLE_INPUT, 1);
    mp_hook_seed_cpu(1, 1);
    check_no_more();
    mp_hook_set_wanted(MP_HOOK_SESSION | MP_HOOK_CPU);
    core->memory(&fact);
    check_no_more();
    alloc(0x1000);
    (void)next(MP_EVENT_ALLOC);
    mp_hook_set_wanted(MP_HOOK_SESSION | MP_HOOK_CUDA);
    alloc(0x1000);
    core->cpu_free((void *)0x1000);
    check_no_more();
    core->memory(&fact);
    (void)next(MP_EVENT_ALLOC);
}

static void
test_hook_cpu_block_is_born_and_freed(void)
{
    set_up();
    fake_pystack_set(17);
    fake_grad_mode = true;
    int64_t before = mp_clock_now();
    core->cpu_alloc((void *)0x1000, 640);
    core->cpu_free((void *)0x1000);
    mp_event_t birth = next(MP_EVENT_ALLOC);
    MP_CHECK_EQ(birth.addr, 0x1000);
    MP_CHECK_EQ(birth.size, 640);
    MP_CHECK_EQ(birth.device, MP_DEVICE_CPU);
    MP_CHECK_EQ(birth.thread, mp_thread_number());
    MP_CHECK_EQ(birth.stack, 17);
    MP_CHECK_EQ(birth.op, MP_NO_INDEX);
    MP_CHECK_EQ(birth.module, MP_NO_INDEX);
    MP_CHECK_EQ(birth.flags, MP_FLAG_GRAD_MODE);
    MP_CHECK_EQ(birth.phase, MP_PHASE_OTHER);
    MP_CHECK(birth.time_ns >= before);
    mp_event_t death = next(MP_EVENT_FREE_COMPLETED);
    MP_CHECK_EQ(death.addr, 0x1000);
    MP_CHECK_EQ(death.stack, MP_NO_INDEX); /* frees walk no stack */
    MP_CHECK(death.time_ns >= birth.time_ns);
    mp_hook_set_wanted(ALL & ~MP_HOOK_STACKS);
    fake_grad_mode = false;
    alloc(0x1000);
    birth = next(MP_EVENT_ALLOC);
    MP_CHECK_EQ(birth.stack, MP_NO_INDEX);
    MP_CHECK_EQ(birth.flags, 0);
}

static void
test_hook_cuda_facts_keep_stream_and_pool(void)
{
    set_up();
    static const uint8_t kinds[] = {
        MP_EVENT_ALLOC,          MP_EVENT_FREE_REQUESTED,
        MP_EVENT_FREE_COMPLETED, MP_EVENT_SEGMENT_ALLOC,
        MP_EVENT_SEGMENT_UNMAP,  MP_EVENT_OOM};
    for (size_t i = 0; i < MP_ARRAY_LENGTH(kinds); i++) {
        mp_memory_fact_t fact = {.kind = kinds[i],
                                 .addr = 0x7000,
                                 .size = 512,
                                 .stream = 99,
                                 .device = 3,
                                 .pool_first = i % 3,
                                 .pool_second = 0};
        core->memory(&fact);
        mp_event_t event = next(kinds[i]);
        MP_CHECK_EQ(event.addr, 0x7000);
        MP_CHECK_EQ(event.size, 512);
        MP_CHECK_EQ(event.stream, 99);
        MP_CHECK_EQ(event.device, 3);
        MP_CHECK_EQ(event.pool, i % 3); /* numbered as they come */
    }
}

static void
test_hook_pools_beyond_the_last_share_a_number(void)
{
    set_up();
    for (uint64_t round = 0; round < 2; round++) {
        for (uint64_t i = 1; i <= 5000; i++) {
            mp_memory_fact_t fact = {.kind = MP_EVENT_OTHER, .pool_second = i};
            core->memory(&fact);
            MP_CHECK_EQ(next(MP_EVENT_OTHER).pool, i < 4096 ? i : 4096);
        }
    }
}

static void
touch_everything(void)
{
    fake_op_t op = FAKE_OP("aten::inside");
    mp_memory_fact_t fact = {.kind = MP_EVENT_ALLOC, .addr = 1};
    begin(&op);
    alloc(0x2000);
    core->cpu_free((void *)0x2000);
    core->memory(&fact);
    end(&op);
}

static void
test_hook_inside_itself_writes_nothing(void)
{
    set_up();
    fake_in_describe = touch_everything;
    fake_op_t region = FAKE_OP("region"), op = FAKE_OP("aten::add");
    begin_region(&region);
    begin(&op);
    alloc(0x1000);
    end(&op);
    end(&region);
    (void)next(MP_EVENT_REGION_BEGIN);
    (void)next(MP_EVENT_OP_BEGIN);
    MP_CHECK_EQ(next(MP_EVENT_ALLOC).addr, 0x1000);
    (void)next(MP_EVENT_OP_END);
    (void)next(MP_EVENT_REGION_END);
    check_no_more();
}

static void
test_hook_roles_and_seeds(void)
{
    set_up();
    mp_hook_role(0x5000, 2, MP_ROLE_PARAMETER, 77);
    mp_event_t role = next(MP_EVENT_ROLE);
    MP_CHECK_EQ(role.addr, 0x5000);
    MP_CHECK_EQ(role.size, MP_ROLE_PARAMETER);
    MP_CHECK_EQ(role.device, 2);
    MP_CHECK_EQ(role.op, 77);
    mp_hook_seed_cpu(0x6000, 123);
    mp_event_t seed = next(MP_EVENT_SEED_BLOCK);
    MP_CHECK_EQ(seed.addr, 0x6000);
    MP_CHECK_EQ(seed.size, 123);
    MP_CHECK_EQ(seed.device, MP_DEVICE_CPU);
    MP_CHECK_EQ(seed.thread, 0);
    MP_CHECK(mp_hook_feed(&seed, 1));
    (void)next(MP_EVENT_SEED_BLOCK);
    fake_pystack_set(5);
    MP_CHECK_EQ(mp_hook_stack(), 5);
}

/* ---- shapes
 * ------------------------------------------------------------------------ */

static const int64_t sizes[] = {64, 3, 224, 224};
static const mp_tensor_fact_t picture = {.addr = 0x5000,
                                         .sizes = sizes,
                                         .dimensions = 4,
                                         .item_size = 4,
                                         .scalar = "Float",
                                         .device = MP_DEVICE_CPU};

static void
check_text(uint32_t id, const char *expected)
{
    const char *text;
    size_t length;
    MP_CHECK(mp_intern_text(mp_hook_intern(), id, &text, &length));
    MP_CHECK_STR(text, expected);
}

static void
test_hook_tells_a_tensor(void)
{
    set_up();
    core->tensor(&picture); /* nobody wants shapes */
    check_no_more();
    MP_CHECK(!mp_hook_op_wants_outputs(NULL));

    mp_hook_set_wanted(ALL | MP_HOOK_SHAPES);
    core->tensor(&picture);
    mp_event_t shape = next(MP_EVENT_SHAPE);
    MP_CHECK_EQ(shape.addr, 0x5000);
    MP_CHECK_EQ(shape.size, 64 * 3 * 224 * 224 * 4);
    MP_CHECK_EQ(shape.device, MP_DEVICE_CPU);
    check_text(shape.op, "float32[64, 3, 224, 224]");

    mp_tensor_fact_t other = picture;
    other.scalar = "Float8_e4m3fn";
    other.device = 1;
    core->tensor(&other);
    shape = next(MP_EVENT_SHAPE);
    MP_CHECK_EQ(shape.device, 1);
    check_text(shape.op, "float8_e4m3fn[64, 3, 224, 224]");

    mp_hook_set_wanted((ALL | MP_HOOK_SHAPES) & ~MP_HOOK_CPU);
    core->tensor(&picture); /* its block is nobody's */
    check_no_more();
}

static void
test_hook_tells_no_small_or_impossible_tensor(void)
{
    set_up();
    mp_hook_set_wanted(ALL | MP_HOOK_SHAPES);
    static const int64_t many[] = {INT64_MAX, 4};
    static const int64_t negative[] = {-1, 4};
    mp_tensor_fact_t fact = picture;
    int64_t one = 65535;
    fact.sizes = &one;
    fact.dimensions = 1;
    fact.item_size = 1;
    core->tensor(&fact);
    fact.dimensions = 2;
    fact.item_size = 4;
    fact.sizes = many;
    core->tensor(&fact);
    fact.sizes = negative;
    core->tensor(&fact);
    check_no_more();
    one = 65536;
    fact.sizes = &one;
    fact.dimensions = 1;
    fact.item_size = 1;
    core->tensor(&fact);
    check_text(next(MP_EVENT_SHAPE).op, "float32[65536]");
    fact.dimensions = 0; /* a scalar of 64 KiB: there is none, but safe */
    fact.item_size = 65536;
    core->tensor(&fact);
    check_text(next(MP_EVENT_SHAPE).op, "float32[]");
}

static void
test_hook_tensor_of_too_many_dimensions_is_cut(void)
{
    set_up();
    mp_hook_set_wanted(ALL | MP_HOOK_SHAPES);
    int64_t ones[300];
    for (size_t i = 0; i < MP_ARRAY_LENGTH(ones); i++) {
        ones[i] = 1;
    }
    mp_tensor_fact_t fact = picture;
    fact.sizes = ones;
    fact.dimensions = MP_ARRAY_LENGTH(ones);
    fact.item_size = 1 << 16;
    core->tensor(&fact);
    const char *text;
    size_t length;
    MP_CHECK(mp_intern_text(mp_hook_intern(), next(MP_EVENT_SHAPE).op, &text,
                            &length));
    MP_CHECK(length > 400 && length < 512);
    MP_CHECK_STR(text + length - 8, "1, 1...]");
}

static void
test_hook_wants_outputs_of_ops_that_touched_memory(void)
{
    set_up();
    mp_hook_set_wanted(ALL | MP_HOOK_SHAPES);
    fake_op_t outer = FAKE_OP("aten::linear"), inner = FAKE_OP("aten::addmm"),
              view = FAKE_OP("aten::view");
    core->op_begin(&outer, MP_OP_SCOPE_FUNCTION);
    core->op_begin(&inner, MP_OP_SCOPE_FUNCTION);
    MP_CHECK(!core->op_wants_outputs(&inner));
    alloc(0x1000);
    MP_CHECK(core->op_wants_outputs(&inner));
    core->op_end(&inner);
    core->op_begin(&view, MP_OP_SCOPE_FUNCTION);
    MP_CHECK(!core->op_wants_outputs(&view));
    core->op_end(&view);
    MP_CHECK(core->op_wants_outputs(&outer));
    skip_all();
    core->tensor(&picture);
    mp_event_t shape = next(MP_EVENT_SHAPE);
    MP_CHECK(shape.flags & MP_FLAG_IN_OP);
    MP_CHECK(shape.op_instance != 0);
    mp_hook_set_wanted(ALL);
    MP_CHECK(!core->op_wants_outputs(&outer));
    core->op_end(&outer);
    skip_all();
}

/* ---- ops
 * ------------------------------------------------------------------------ */

static void
test_hook_op_is_written_when_memory_is_touched(void)
{
    set_up();
    fake_op_t outer = FAKE_OP("aten::linear");
    fake_op_t inner = FAKE_OP("aten::addmm");
    outer.fact.sequence = 12;
    fake_sequence = 13; /* it has made its node */
    inner.fact.thread = 4;
    fake_pystack_set(6);
    begin(&outer);
    begin(&inner);
    check_no_more();
    alloc(0x1000);
    mp_event_t event = next(MP_EVENT_OP_BEGIN);
    MP_CHECK_EQ(event.op, name("aten::linear"));
    MP_CHECK_EQ(event.addr, 12);
    MP_CHECK_EQ(event.size, 0);
    MP_CHECK_EQ(event.stream, 1);
    MP_CHECK_EQ(event.stack, 6);
    MP_CHECK_EQ(event.flags & MP_FLAG_BACKWARD_OP, 0);
    event = next(MP_EVENT_OP_BEGIN);
    MP_CHECK_EQ(event.op, name("aten::addmm"));
    MP_CHECK_EQ(event.addr, UINT64_MAX);
    MP_CHECK_EQ(event.stream, 4);
    event = next(MP_EVENT_ALLOC);
    MP_CHECK_EQ(event.op, name("aten::addmm"));
    MP_CHECK_EQ(event.flags, MP_FLAG_IN_OP | MP_FLAG_MADE_NODE);
    MP_CHECK_EQ(event.phase, MP_PHASE_FORWARD);
    alloc(0x2000); /* only once */
    (void)next(MP_EVENT_ALLOC);
    end(&inner);
    MP_CHECK_EQ(next(MP_EVENT_OP_END).op, name("aten::addmm"));
    end(&outer);
    MP_CHECK_EQ(next(MP_EVENT_OP_END).op, name("aten::linear"));
    check_no_more();
    MP_CHECK_EQ(outer.described, 1);
    MP_CHECK_EQ(inner.described, 1);
}

static void
test_hook_op_that_touches_nothing_is_not_written(void)
{
    set_up();
    fake_op_t op = FAKE_OP("aten::view");
    for (int i = 0; i < 10; i++) {
        begin(&op);
        core->op_end(&op);
    }
    MP_CHECK_EQ(op.described, 0);
    check_no_more();
    MP_CHECK_EQ(probe().op, MP_NO_INDEX);
}

static void
test_hook_free_needs_no_op_but_carries_its_instance(void)
{
    set_up();
    fake_op_t op = FAKE_OP("aten::add");
    begin(&op);
    alloc(0x1000);
    (void)next(MP_EVENT_OP_BEGIN);
    uint32_t first = next(MP_EVENT_ALLOC).op_instance;
    core->cpu_free((void *)0x1000);
    mp_event_t death = next(MP_EVENT_FREE_COMPLETED);
    MP_CHECK_EQ(death.op_instance, first);
    MP_CHECK(death.flags & MP_FLAG_IN_OP);
    end(&op);
    (void)next(MP_EVENT_OP_END);
    fake_op_t other = FAKE_OP("aten::mul");
    begin(&other);
    core->cpu_free((void *)0x2000);
    death = next(MP_EVENT_FREE_COMPLETED);
    MP_CHECK_EQ(death.op_instance, first + 1);
    end(&other);
    core->cpu_free((void *)0x3000);
    death = next(MP_EVENT_FREE_COMPLETED);
    MP_CHECK_EQ(death.flags, 0);
    check_no_more();
}

static void
test_hook_names_the_op_that_called_the_allocator(void)
{
    set_up();
    fake_op_t relu = FAKE_OP("aten::relu"), empty = FAKE_OP("aten::empty");
    begin(&relu);
    begin(&empty);
    MP_CHECK_EQ(probe().op, name("aten::relu"));
    end(&empty);
    end(&relu);
    empty.over = false;
    fake_op_t zeros = FAKE_OP("aten::zeros");
    begin(&zeros);
    begin(&empty);
    MP_CHECK_EQ(probe().op, name("aten::zeros")); /* the one called */
    end(&empty);
    end(&zeros);
}

static void
test_hook_op_end_without_begin_is_ignored(void)
{
    set_up();
    fake_op_t stranger = FAKE_OP("aten::add"), op = FAKE_OP("aten::mul");
    end(&stranger);
    begin(&op);
    MP_CHECK_EQ(probe().op, name("aten::mul"));
    end(&stranger);
    MP_CHECK_EQ(probe().op, name("aten::mul"));
    end(&op);
    end(&op);
    MP_CHECK_EQ(next(MP_EVENT_OP_END).op, name("aten::mul"));
    check_no_more();
}

static void
test_hook_op_end_ends_what_is_inside(void)
{
    set_up();
    fake_op_t outer = FAKE_OP("aten::add"), inner = FAKE_OP("aten::mul");
    begin(&outer);
    begin(&inner);
    (void)probe();
    end(&outer);
    MP_CHECK_EQ(next(MP_EVENT_OP_END).op, name("aten::mul"));
    MP_CHECK_EQ(next(MP_EVENT_OP_END).op, name("aten::add"));
    MP_CHECK_EQ(probe().flags, 0);
}

static void
test_hook_ops_deeper_than_it_keeps(void)
{
    set_up();
    enum {
        DEPTH = 400,
        KEPT = 256
    };
    static fake_op_t ops[DEPTH];
    for (int i = 0; i < DEPTH; i++) {
        ops[i] = (fake_op_t)FAKE_OP(i == KEPT - 1 ? "aten::last" : "aten::x");
        begin(&ops[i]);
    }
    MP_CHECK_EQ(probe().op, name("aten::last"));
    for (int i = DEPTH; i-- > 0;) {
        end(&ops[i]);
    }
    MP_CHECK_EQ(skip_all(), KEPT);
    mp_event_t event = probe();
    MP_CHECK_EQ(event.op, MP_NO_INDEX);
    MP_CHECK_EQ(event.flags, 0);
}

static void
test_hook_same_pointer_with_another_name(void)
{
    set_up();
    char text[16] = "one";
    fake_op_t op = FAKE_OP(text);
    begin(&op);
    MP_CHECK_EQ(probe().op, name("one"));
    core->op_end(&op);
    memcpy(text, "two", 4);
    begin(&op);
    MP_CHECK_EQ(probe().op, name("two"));
    core->op_end(&op);
    op.fact.name = NULL; /* torch knows none */
    begin(&op);
    MP_CHECK_EQ(probe().op, MP_NO_INDEX);
    core->op_end(&op);
}

/* ---- phases
 * --------------------------------------------------------------------- */

static void
test_hook_backward_node_makes_the_phase(void)
{
    set_up();
    fake_op_t node = FAKE_NODE("MulBackward0"), op = FAKE_OP("aten::mul");
    const mp_node_fact_t fact = {.sequence = 33, .thread = 8};
    fake_node = &fact;
    begin(&node);
    begin(&op);
    alloc(0x1000);
    mp_event_t event = next(MP_EVENT_OP_BEGIN);
    MP_CHECK(event.flags & MP_FLAG_BACKWARD_OP);
    MP_CHECK_EQ(event.op, name("MulBackward0"));
    MP_CHECK_EQ(event.addr, 33);
    MP_CHECK_EQ(event.size, 8);
    event = next(MP_EVENT_OP_BEGIN);
    MP_CHECK_EQ(event.flags & MP_FLAG_BACKWARD_OP, 0);
    event = next(MP_EVENT_ALLOC);
    MP_CHECK_EQ(event.phase, MP_PHASE_BACKWARD);
    MP_CHECK_EQ(event.op, name("aten::mul"));
    end(&op);
    (void)skip_all();
    event = probe(); /* in the engine's frame, after the node's ops */
    MP_CHECK_EQ(event.phase, MP_PHASE_BACKWARD);
    MP_CHECK_EQ(event.op, name("MulBackward0"));
    end(&node);
    fake_node = NULL;
    MP_CHECK_EQ(probe().phase, MP_PHASE_OTHER);
}

static void
test_hook_free_in_a_backward_node_is_in_backward(void)
{
    set_up();
    fake_op_t call = FAKE_OP("MyFunction"), node = FAKE_NODE("MulBackward0");
    alloc(0x1000);
    begin(&call); /* a forward that runs a backward inside it */
    begin(&node);
    (void)skip_all();
    core->cpu_free((void *)0x1000); /* the first that touches memory there */
    MP_CHECK_EQ(next(MP_EVENT_FREE_COMPLETED).phase, MP_PHASE_BACKWARD);
    end(&node);
    MP_CHECK_EQ(probe().phase, MP_PHASE_OTHER);
    end(&call);
}

/* Its backward will ask what made the node. */
static void
test_hook_view_that_made_a_node_is_told(void)
{
    set_up();
    fake_op_t view = FAKE_OP("aten::view"), inner = FAKE_OP("aten::alias");
    view.fact.sequence = 40;
    view.fact.thread = 8;
    fake_sequence = 40;
    mp_hook_module_begin(name("layer"));
    (void)skip_all();
    begin(&view);
    fake_sequence = 41; /* torch makes the node, then computes */
    begin(&inner);
    end(&inner); /* no number of its own */
    check_no_more();
    end(&view);
    mp_event_t event = next(MP_EVENT_NODE);
    MP_CHECK_EQ(event.addr, 40);
    MP_CHECK_EQ(event.stream, 8);
    MP_CHECK_EQ(event.op, name("aten::view"));
    MP_CHECK_EQ(event.module, name("layer"));
    MP_CHECK_EQ(event.phase, MP_PHASE_FORWARD);
    check_no_more();
    fake_op_t again = FAKE_OP("aten::view"); /* makes none */
    again.fact.sequence = 41;
    begin(&again);
    end(&again);
    MP_CHECK_EQ(again.described, 0); /* nothing was asked for it */
    check_no_more();
    fake_op_t add = FAKE_OP("aten::add"); /* tells by what it allocates */
    add.fact.sequence = 41;
    begin(&add);
    fake_sequence = 42;
    alloc(0x1000);
    (void)next(MP_EVENT_OP_BEGIN);
    (void)next(MP_EVENT_ALLOC);
    end(&add);
    (void)next(MP_EVENT_OP_END);
    check_no_more();
    mp_hook_module_end(name("layer"));
    fake_sequence = 0;
}

static void
test_hook_node_inside_a_node(void)
{
    set_up();
    fake_op_t outer = FAKE_NODE("CheckpointFunctionBackward");
    fake_op_t inner = FAKE_NODE("MulBackward0");
    const mp_node_fact_t outer_fact = {.sequence = 5, .thread = 1};
    const mp_node_fact_t inner_fact = {.sequence = -1, .thread = 1};
    fake_node = &outer_fact;
    begin(&outer);
    alloc(0x1000);
    mp_event_t event = next(MP_EVENT_OP_BEGIN);
    MP_CHECK_EQ(event.addr, 5);
    MP_CHECK_EQ(event.size, 1);
    fake_node = &inner_fact;
    begin(&inner);
    (void)skip_all();
    alloc(0x2000);
    event = next(MP_EVENT_OP_BEGIN);
    MP_CHECK_EQ(event.op, name("MulBackward0"));
    MP_CHECK_EQ(event.addr, UINT64_MAX); /* it accumulates a gradient */
    end(&inner);
    end(&outer);
    /* Without a touch of memory in between, the outer one is not known. */
    outer.over = inner.over = false;
    begin(&outer);
    begin(&inner);
    (void)skip_all();
    fake_node = &outer_fact; /* whatever it is: it is the inner one's */
    alloc(0x3000);
    event = next(MP_EVENT_OP_BEGIN);
    MP_CHECK_EQ(event.op, name("CheckpointFunctionBackward"));
    MP_CHECK_EQ(event.addr, UINT64_MAX);
    event = next(MP_EVENT_OP_BEGIN);
    MP_CHECK_EQ(event.addr, 5);
    end(&inner);
    end(&outer);
    fake_node = NULL;
}

static void
test_hook_module_makes_the_phase_and_the_name(void)
{
    set_up();
    fake_sequence = 50;
    mp_hook_module_begin(7);
    mp_event_t event = next(MP_EVENT_MODULE_BEGIN);
    MP_CHECK_EQ(event.module, 7);
    MP_CHECK_EQ(event.addr, 50);
    MP_CHECK_EQ(event.stream, 1);
    MP_CHECK(mp_hook_in_module());
    mp_hook_module_begin(8);
    event = probe();
    MP_CHECK_EQ(event.module, 8);
    MP_CHECK_EQ(event.phase, MP_PHASE_FORWARD);
    MP_CHECK_EQ(event.flags, MP_FLAG_IN_MODULE);
    fake_op_t node = FAKE_NODE("CheckpointBackward");
    begin(&node); /* checkpointing runs a forward inside a backward */
    event = probe();
    MP_CHECK_EQ(event.phase, MP_PHASE_BACKWARD);
    MP_CHECK(event.flags & MP_FLAG_RECOMPUTE);
    end(&node);
    (void)skip_all();
    mp_hook_module_end(8);
    MP_CHECK_EQ(next(MP_EVENT_MODULE_END).module, 8);
    MP_CHECK_EQ(probe().module, 7);
    mp_hook_module_end(7);
    (void)skip_all();
    MP_CHECK(!mp_hook_in_module());
    mp_hook_module_end(7); /* not open */
    check_no_more();
    event = probe();
    MP_CHECK_EQ(event.module, MP_NO_INDEX);
    MP_CHECK_EQ(event.phase, MP_PHASE_OTHER);
}

static void
test_hook_exception_leaves_modules_open(void)
{
    set_up();
    mp_hook_module_begin(7);
    mp_hook_module_begin(8);
    mp_hook_module_begin(9);
    mp_hook_module_end(7); /* the others' ends never come */
    MP_CHECK(!mp_hook_in_module());
    mp_hook_module_begin(7);
    mp_hook_module_begin(8); /* a KeyboardInterrupt: no end at all */
    (void)skip_all();
    mp_hook_module_begin(7); /* the root again */
    MP_CHECK_EQ(next(MP_EVENT_MODULE_END).module, 7);
    MP_CHECK_EQ(next(MP_EVENT_MODULE_BEGIN).module, 7);
    MP_CHECK_EQ(probe().module, 7);
    mp_hook_module_end(7);
    MP_CHECK(!mp_hook_in_module());
}

static void
test_hook_modules_deeper_than_it_keeps(void)
{
    set_up();
    for (uint32_t i = 0; i < 300; i++) {
        mp_hook_module_begin(i + 10);
    }
    MP_CHECK_EQ(probe().module, 10 + 255);
    for (uint32_t i = 300; i-- > 0;) {
        mp_hook_module_end(i + 10);
    }
    MP_CHECK(!mp_hook_in_module());
}

static void
test_hook_new_recording_knows_no_old_modules(void)
{
    set_up();
    fake_op_t op = FAKE_OP("aten::add");
    mp_hook_module_begin(7);
    mp_hook_optimizer_begin(3);
    begin(&op);
    alloc(0x1000);
    mp_hook_set_wanted(0);
    mp_hook_set_wanted(ALL);
    (void)skip_all();
    MP_CHECK(!mp_hook_in_module());
    alloc(0x2000); /* the open op is new to this recording */
    MP_CHECK_EQ(next(MP_EVENT_OP_BEGIN).op, name("aten::add"));
    mp_event_t event = next(MP_EVENT_ALLOC);
    MP_CHECK_EQ(event.module, MP_NO_INDEX);
    MP_CHECK_EQ(event.phase, MP_PHASE_OTHER);
    end(&op);
}

static void
test_hook_optimizer_counts_what_it_leaves(void)
{
    set_up();
    mp_hook_optimizer_begin(4);
    MP_CHECK_EQ(next(MP_EVENT_OPTIMIZER_BEGIN).op, 4);
    MP_CHECK_EQ(probe().phase, MP_PHASE_OPTIMIZER);
    alloc(0x2000);
    core->cpu_free((void *)0x2000);
    mp_memory_fact_t fact = {.kind = MP_EVENT_ALLOC, .addr = 1};
    core->memory(&fact);
    core->memory(&fact);
    fact.kind = MP_EVENT_FREE_REQUESTED;
    core->memory(&fact);
    fact.kind = MP_EVENT_FREE_COMPLETED;
    core->memory(&fact);
    (void)skip_all();
    MP_CHECK_EQ(mp_hook_optimizer_end(4), 2);
    MP_CHECK_EQ(next(MP_EVENT_OPTIMIZER_END).op, 4);
    MP_CHECK_EQ(probe().phase, MP_PHASE_OTHER);
    MP_CHECK_EQ(mp_hook_optimizer_end(4), 0); /* none is open */
    check_no_more();
}

static void
test_hook_optimizer_left_by_an_exception(void)
{
    set_up();
    mp_hook_optimizer_begin(4); /* its end never comes */
    mp_hook_module_begin(7);
    MP_CHECK_EQ(probe().phase, MP_PHASE_FORWARD);
    mp_hook_module_end(7);
    mp_hook_optimizer_begin(4);
    MP_CHECK_EQ(probe().phase, MP_PHASE_OPTIMIZER);
    MP_CHECK_EQ(mp_hook_optimizer_end(4), 1);
    MP_CHECK_EQ(probe().phase, MP_PHASE_OTHER);
}

static void
test_hook_optimizer_and_what_runs_inside_it(void)
{
    set_up();
    mp_hook_optimizer_begin(4); /* LBFGS runs a closure */
    mp_hook_module_begin(7);
    MP_CHECK_EQ(probe().phase, MP_PHASE_FORWARD);
    mp_hook_module_end(7);
    fake_op_t node = FAKE_NODE("MulBackward0");
    begin(&node);
    MP_CHECK_EQ(probe().phase, MP_PHASE_BACKWARD);
    mp_hook_optimizer_begin(5); /* a wrapped one */
    (void)mp_hook_optimizer_end(5);
    end(&node);
    MP_CHECK_EQ(probe().phase, MP_PHASE_OPTIMIZER);
    (void)mp_hook_optimizer_end(4);
    node.over = false;
    begin(&node); /* an optimizer that runs in a gradient's hook */
    mp_hook_optimizer_begin(4);
    MP_CHECK_EQ(probe().phase, MP_PHASE_OPTIMIZER);
    (void)mp_hook_optimizer_end(4);
    MP_CHECK_EQ(probe().phase, MP_PHASE_BACKWARD);
    end(&node);
}

static void
test_hook_op_that_makes_no_node_is_no_forward(void)
{
    set_up();
    fake_op_t op = FAKE_OP("aten::stack"), inner = FAKE_OP("aten::cat");
    op.fact.sequence = inner.fact.sequence = 20;
    fake_sequence = 20; /* grad mode is on, but nothing requires grad */
    begin(&op);
    mp_event_t event = probe();
    MP_CHECK_EQ(event.flags & MP_FLAG_MADE_NODE, 0);
    MP_CHECK_EQ(event.phase, MP_PHASE_OTHER);
    fake_sequence = 21;
    inner.fact.sequence = 21; /* the outer one made a node, this one not */
    begin(&inner);
    MP_CHECK_EQ(probe().phase, MP_PHASE_OTHER);
    end(&inner);
    event = probe();
    MP_CHECK(event.flags & MP_FLAG_MADE_NODE);
    MP_CHECK_EQ(event.phase, MP_PHASE_FORWARD);
    mp_hook_optimizer_begin(3); /* its closure makes a graph */
    MP_CHECK_EQ(probe().phase, MP_PHASE_FORWARD);
    fake_sequence = 20;
    MP_CHECK_EQ(probe().phase, MP_PHASE_OPTIMIZER);
    (void)mp_hook_optimizer_end(3);
    end(&op);
    fake_sequence = 0;
}

static void
test_hook_forward_inside_a_node_counts_its_own_ops(void)
{
    set_up();
    fake_op_t node = FAKE_NODE("CheckpointFunctionBackward");
    fake_op_t relu = FAKE_OP("aten::relu"), mul = FAKE_OP("aten::mul");
    begin(&node);
    uint32_t whole = probe().op_instance;
    begin(&mul); /* of the node itself */
    MP_CHECK_EQ(probe().op_instance, whole);
    end(&mul);
    mp_hook_module_begin(7);
    begin(&relu);
    uint32_t first = probe().op_instance;
    MP_CHECK(first != whole);
    MP_CHECK_EQ(probe().op_instance, first);
    (void)skip_all();
    core->cpu_free((void *)0x9000);
    MP_CHECK_EQ(next(MP_EVENT_FREE_COMPLETED).op_instance, first);
    end(&relu);
    mul.over = false;
    begin(&mul);
    uint32_t second = probe().op_instance;
    MP_CHECK(second != first && second != whole);
    end(&mul);
    mp_hook_module_end(7);
    MP_CHECK_EQ(probe().op_instance, whole);
    end(&node);
    mul.over = false;
    begin(&mul);
    MP_CHECK(probe().op_instance > second);
    end(&mul);
}

/* ---- regions
 * ---------------------------------------------------------------------- */

static void
test_hook_region_is_written_at_once(void)
{
    set_up();
    fake_op_t region = FAKE_OP("forward");
    begin_region(&region);
    region.over = true; /* nobody may ask later */
    MP_CHECK_EQ(next(MP_EVENT_REGION_BEGIN).op, name("forward"));
    mp_event_t event = probe();
    MP_CHECK_EQ(event.op, MP_NO_INDEX); /* a region is no op */
    MP_CHECK_EQ(event.flags, 0);
    core->op_end(&region);
    MP_CHECK_EQ(next(MP_EVENT_REGION_END).op, name("forward"));
    check_no_more();
}

static void
test_hook_region_ends_alone(void)
{
    set_up();
    fake_op_t outer = FAKE_OP("outer"), inner = FAKE_OP("inner");
    fake_op_t op = FAKE_OP("aten::add");
    begin_region(&outer);
    begin_region(&inner);
    begin(&op);
    alloc(0x1000);
    (void)skip_all();
    end(&outer); /* before what began inside it */
    MP_CHECK_EQ(next(MP_EVENT_REGION_END).op, name("outer"));
    check_no_more();
    mp_event_t event = probe();
    MP_CHECK_EQ(event.op, name("aten::add"));
    MP_CHECK(event.flags & MP_FLAG_IN_OP);
    end(&op);
    MP_CHECK_EQ(next(MP_EVENT_OP_END).op, name("aten::add"));
    end(&inner);
    MP_CHECK_EQ(next(MP_EVENT_REGION_END).op, name("inner"));
    check_no_more();
}

static void *
end_op_here(void *op)
{
    core->op_end(op);
    return NULL;
}

static void
run(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    MP_CHECK(pthread_create(&thread, NULL, body, argument) == 0);
    MP_CHECK(pthread_join(thread, NULL) == 0);
}

static void
test_hook_region_ends_on_another_thread(void)
{
    set_up();
    for (int i = 0; i < 600; i++) { /* more than a thread can be inside of */
        fake_op_t region = FAKE_OP("async");
        begin_region(&region);
        region.over = true;
        run(end_op_here, &region);
        alloc(0x1000);
        MP_CHECK_EQ(next(MP_EVENT_REGION_BEGIN).op, name("async"));
        mp_event_t event = next(MP_EVENT_REGION_END);
        MP_CHECK_EQ(event.op, name("async"));
        MP_CHECK_EQ(event.thread, mp_thread_number()); /* where it began */
        (void)next(MP_EVENT_ALLOC);
    }
    fake_op_t op = FAKE_OP("aten::add");
    begin(&op);
    MP_CHECK_EQ(probe().op, name("aten::add"));
    end(&op);
}

/* Without ops Python tells of regions: any object stands for one. */

static void
test_hook_region_told_by_python(void)
{
    set_up();
    mp_hook_set_wanted(mp_hook_wanted() | MP_HOOK_REGIONS);
    int outer, inner;
    mp_hook_region_begin(&outer, name("outer"));
    mp_hook_region_begin(&inner, name("inner"));
    MP_CHECK_EQ(next(MP_EVENT_REGION_BEGIN).op, name("outer"));
    MP_CHECK_EQ(next(MP_EVENT_REGION_BEGIN).op, name("inner"));
    MP_CHECK_EQ(probe().op, MP_NO_INDEX);
    mp_hook_region_end(&outer);
    MP_CHECK_EQ(next(MP_EVENT_REGION_END).op, name("outer"));
    mp_hook_region_end(&inner);
    MP_CHECK_EQ(next(MP_EVENT_REGION_END).op, name("inner"));
    mp_hook_region_end(&inner); /* nobody is inside of it */
    alloc(0x1000);
    (void)next(MP_EVENT_ALLOC);
    check_no_more();
}

static void
test_hook_region_of_a_callback_is_not_told_again(void)
{
    set_up();
    int object;
    fake_op_t region = FAKE_OP("region");
    begin_region(&region);
    mp_hook_region_begin(&object, name("region"));
    MP_CHECK_EQ(next(MP_EVENT_REGION_BEGIN).op, name("region"));
    mp_hook_region_end(&object);
    check_no_more();
    end(&region);
    MP_CHECK_EQ(next(MP_EVENT_REGION_END).op, name("region"));
    check_no_more();
}

/* It began while Python told of regions; ops are followed since. */
static void
test_hook_region_told_by_python_ends_beside_a_callback(void)
{
    set_up();
    uint32_t without = mp_hook_wanted();
    int object;
    mp_hook_set_wanted(without | MP_HOOK_REGIONS);
    mp_hook_region_begin(&object, name("region"));
    (void)next(MP_EVENT_REGION_BEGIN);
    mp_hook_set_wanted(without);
    fake_op_t deep[300];
    for (int i = 0; i < 300; i++) {
        deep[i] = (fake_op_t)FAKE_OP("aten::add");
        begin(&deep[i]);
    }
    mp_hook_region_end(&deep); /* of a begin that nobody told */
    for (int i = 300; i-- > 0;) {
        end(&deep[i]);
    }
    (void)skip_all();
    mp_hook_region_end(&object);
    MP_CHECK_EQ(next(MP_EVENT_REGION_END).op, name("region"));
    fake_op_t op = FAKE_OP("aten::mul");
    begin(&op);
    MP_CHECK_EQ(probe().op, name("aten::mul"));
    end(&op);
}

static void *
end_region_here(void *object)
{
    mp_hook_region_end(object);
    return NULL;
}

static void
test_hook_region_told_by_python_ends_on_another_thread(void)
{
    set_up();
    mp_hook_set_wanted(mp_hook_wanted() | MP_HOOK_REGIONS);
    int object;
    mp_hook_region_begin(&object, name("async"));
    (void)next(MP_EVENT_REGION_BEGIN);
    run(end_region_here, &object);
    alloc(0x1000);
    MP_CHECK_EQ(next(MP_EVENT_REGION_END).op, name("async"));
    (void)next(MP_EVENT_ALLOC);
}

/* ---- threads, fork
 * ------------------------------------------------------------------ */

static void *
thread_body(void *argument)
{
    (void)argument;
    fake_op_t region = FAKE_OP("worker"), op = FAKE_OP("aten::add");
    begin_region(&region);
    begin(&op);
    mp_hook_module_begin(3);
    alloc(0x1000);
    op.over = true;
    return NULL; /* inside of everything */
}

static void
test_hook_thread_may_end_inside_of_everything(void)
{
    set_up();
    size_t before = 0;
    for (int i = 0; i < 50; i++) {
        run(thread_body, NULL);
        (void)next(MP_EVENT_REGION_BEGIN);
        (void)next(MP_EVENT_MODULE_BEGIN);
        (void)next(MP_EVENT_OP_BEGIN);
        mp_event_t event = next(MP_EVENT_ALLOC);
        MP_CHECK(event.thread != mp_thread_number());
        mp_event_t ended = next(MP_EVENT_REGION_END);
        MP_CHECK_EQ(ended.thread, event.thread);
        MP_CHECK_EQ(ended.op, name("worker"));
        check_no_more();
        before = i == 0 ? mp_mem_bytes() : before;
    }
    MP_CHECK_EQ(mp_mem_bytes(), before);
}

static pthread_key_t late_key;

static void
free_late(void *pointer)
{
    core->cpu_free(pointer);
    fake_op_t op = FAKE_OP("aten::add");
    begin(&op);
    end(&op);
    MP_CHECK(!mp_hook_in_module());
    MP_CHECK_EQ(mp_hook_stack(), MP_NO_INDEX);
}

static void *
thread_with_late_free(void *argument)
{
    alloc(0x1000);
    MP_CHECK(pthread_setspecific(late_key, argument) == 0);
    return NULL;
}

/* A thread's last tensors die when its hooks' context is gone. */
static void
test_hook_free_of_an_ending_thread_is_not_lost(void)
{
    set_up();
    (void)mp_hook_in_module(); /* the context's key is made before ours */
    MP_CHECK(pthread_key_create(&late_key, free_late) == 0);
    run(thread_with_late_free, (void *)0x1000);
    mp_event_t birth = next(MP_EVENT_ALLOC);
    mp_event_t death = next(MP_EVENT_FREE_COMPLETED);
    MP_CHECK_EQ(death.addr, 0x1000);
    MP_CHECK_EQ(death.thread, birth.thread);
    check_no_more();
}

static void *
thread_without_memory(void *argument)
{
    (void)argument;
    fake_op_t op = FAKE_OP("aten::add");
    for (int i = 0; i < 3; i++) {
        mp_mem_fail_after(1);
        if (i == 0) {
            alloc(0x1000);
        }
        else if (i == 1) {
            begin(&op);
        }
        else {
            core->cpu_free((void *)0x1000);
        }
        mp_mem_fail_after(0);
    }
    return NULL;
}

static void
test_hook_without_memory_still_tells_the_fact(void)
{
    set_up();
    run(thread_without_memory, NULL);
    mp_event_t event = next(MP_EVENT_ALLOC);
    MP_CHECK_EQ(event.addr, 0x1000);
    MP_CHECK_EQ(event.op, MP_NO_INDEX);
    MP_CHECK_EQ(event.stack, MP_NO_INDEX);
    (void)next(MP_EVENT_FREE_COMPLETED);
}

static void
test_hook_init_may_fail_and_be_tried_again(void)
{
    long n = 1;
    for (;; n++) {
        mp_mem_fail_after(n);
        mp_status_t status = mp_hook_init();
        mp_mem_fail_after(0);
        if (status == MP_OK) {
            break;
        }
        MP_CHECK_EQ(status, MP_ERR_NOMEM);
    }
    MP_CHECK(n > 1);
    set_up();
    MP_CHECK_EQ(probe().addr, 0x9000);
}

static void
test_hook_child_of_a_fork_is_inside_nothing(void)
{
    set_up();
    fake_op_t region = FAKE_OP("forward"), op = FAKE_OP("aten::add");
    begin_region(&region);
    begin(&op);
    mp_hook_module_begin(7);
    mp_hook_optimizer_begin(4);
    (void)probe();
    pid_t child = fork();
    MP_CHECK(child >= 0);
    if (child == 0) {
        mp_hook_after_fork();
        MP_CHECK_EQ(mp_hook_wanted(), 0);
        alloc(0x1000);
        check_no_more();
        core->op_end(&op); /* its frames are here too */
        core->op_end(&region);
        mp_hook_set_wanted(ALL);
        mp_event_t event = probe();
        MP_CHECK_EQ(event.thread, mp_thread_number());
        MP_CHECK_EQ(event.op, MP_NO_INDEX);
        MP_CHECK_EQ(event.module, MP_NO_INDEX);
        MP_CHECK_EQ(event.phase, MP_PHASE_OTHER);
        _exit(0);
    }
    int status;
    MP_CHECK_EQ(waitpid(child, &status, 0), child);
    MP_CHECK_EQ(status, 0);
    mp_event_t event = probe(); /* unharmed */
    MP_CHECK_EQ(event.op, name("aten::add"));
    MP_CHECK_EQ(event.module, 7);
    end(&op);
    end(&region);
}

/* ---- many threads
 * ------------------------------------------------------------------- */

enum {
    THREADS = 4,
    ROUNDS = 2000
};

static void *
hammer(void *argument)
{
    uintptr_t base = (uintptr_t)argument;
    for (uintptr_t i = 0; i < ROUNDS; i++) {
        fake_op_t region = FAKE_OP("region"), op = FAKE_OP("aten::add");
        mp_memory_fact_t fact = {.kind = MP_EVENT_OTHER,
                                 .pool_first = 1 + i % 50};
        begin_region(&region);
        mp_hook_module_begin(1);
        begin(&op);
        alloc(base + i);
        core->cpu_free((void *)(base + i));
        core->memory(&fact);
        end(&op);
        mp_hook_module_end(1);
        core->op_end((void *)(base + 1)); /* a stranger's */
        end(&region);
    }
    return NULL;
}

static int wakes;

static void
wake(void)
{
    __atomic_fetch_add(&wakes, 1, __ATOMIC_RELAXED);
}

static void
test_hook_threads_at_once_lose_nothing(void)
{
    set_up();
    mp_hook_set_wake(wake);
    pthread_t threads[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) {
        MP_CHECK(pthread_create(&threads[i], NULL, hammer,
                                (void *)((i + 1) << 32)) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        MP_CHECK(pthread_join(threads[i], NULL) == 0);
    }
    MP_CHECK_EQ(skip_all() + mp_log_dropped(mp_hook_log()),
                (size_t)THREADS * ROUNDS * 9);
    MP_CHECK_EQ(mp_log_dropped(mp_hook_log()), 0);
    mp_hook_set_wake(NULL);
}

static void
test_hook_wakes_the_reader_at_half(void)
{
    set_up();
    mp_hook_set_wake(wake);
    while (wakes == 0) {
        alloc(0x1000);
    }
    size_t half = skip_all();
    MP_CHECK(half > 1000);
    mp_event_t event = {.kind = MP_EVENT_OTHER};
    for (size_t i = 0; i < half; i++) {
        MP_CHECK(mp_hook_feed(&event, 1));
    }
    MP_CHECK_EQ(wakes, 2); /* a feed does, too */
    mp_hook_set_wake(NULL);
}

/* ---- cost
 * ------------------------------------------------------------------------------
 */

/* Not a timed test: what an allocation and its free cost is printed. */
static void
test_hook_cost_of_an_event(void)
{
    set_up();
    mp_hook_set_wanted(ALL & ~MP_HOOK_STACKS);
    enum {
        PAIRS = 1000000
    };
    struct timespec from, to;
    double ns = 0;
    for (int batch = 0; batch < PAIRS / 10000; batch++) {
        (void)clock_gettime(CLOCK_MONOTONIC, &from);
        for (uintptr_t i = 1; i <= 10000; i++) {
            core->cpu_alloc((void *)(i * 64), 64);
            core->cpu_free((void *)(i * 64));
        }
        (void)clock_gettime(CLOCK_MONOTONIC, &to);
        ns += (double)(to.tv_sec - from.tv_sec) * 1e9 +
              (double)(to.tv_nsec - from.tv_nsec);
        MP_CHECK_EQ(skip_all(), 20000);
    }
    printf("       hook: %.1f ns for an allocation and its free\n",
           ns / PAIRS);
}

MP_TEST_SUITE(hook, MP_TEST(test_hook_writes_only_what_is_wanted),
              MP_TEST(test_hook_cpu_block_is_born_and_freed),
              MP_TEST(test_hook_cuda_facts_keep_stream_and_pool),
              MP_TEST(test_hook_pools_beyond_the_last_share_a_number),
              MP_TEST(test_hook_inside_itself_writes_nothing),
              MP_TEST(test_hook_roles_and_seeds),
              MP_TEST(test_hook_tells_a_tensor),
              MP_TEST(test_hook_tells_no_small_or_impossible_tensor),
              MP_TEST(test_hook_tensor_of_too_many_dimensions_is_cut),
              MP_TEST(test_hook_wants_outputs_of_ops_that_touched_memory),
              MP_TEST(test_hook_op_is_written_when_memory_is_touched),
              MP_TEST(test_hook_op_that_touches_nothing_is_not_written),
              MP_TEST(test_hook_free_needs_no_op_but_carries_its_instance),
              MP_TEST(test_hook_names_the_op_that_called_the_allocator),
              MP_TEST(test_hook_op_end_without_begin_is_ignored),
              MP_TEST(test_hook_op_end_ends_what_is_inside),
              MP_TEST(test_hook_ops_deeper_than_it_keeps),
              MP_TEST(test_hook_same_pointer_with_another_name),
              MP_TEST(test_hook_backward_node_makes_the_phase),
              MP_TEST(test_hook_free_in_a_backward_node_is_in_backward),
              MP_TEST(test_hook_view_that_made_a_node_is_told),
              MP_TEST(test_hook_node_inside_a_node),
              MP_TEST(test_hook_op_that_makes_no_node_is_no_forward),
              MP_TEST(test_hook_forward_inside_a_node_counts_its_own_ops),
              MP_TEST(test_hook_module_makes_the_phase_and_the_name),
              MP_TEST(test_hook_exception_leaves_modules_open),
              MP_TEST(test_hook_modules_deeper_than_it_keeps),
              MP_TEST(test_hook_new_recording_knows_no_old_modules),
              MP_TEST(test_hook_optimizer_counts_what_it_leaves),
              MP_TEST(test_hook_optimizer_left_by_an_exception),
              MP_TEST(test_hook_optimizer_and_what_runs_inside_it),
              MP_TEST(test_hook_region_is_written_at_once),
              MP_TEST(test_hook_region_ends_alone),
              MP_TEST(test_hook_region_ends_on_another_thread),
              MP_TEST(test_hook_region_told_by_python),
              MP_TEST(test_hook_region_of_a_callback_is_not_told_again),
              MP_TEST(test_hook_region_told_by_python_ends_beside_a_callback),
              MP_TEST(test_hook_region_told_by_python_ends_on_another_thread),
              MP_TEST(test_hook_thread_may_end_inside_of_everything),
              MP_TEST(test_hook_free_of_an_ending_thread_is_not_lost),
              MP_TEST(test_hook_without_memory_still_tells_the_fact),
              MP_TEST(test_hook_init_may_fail_and_be_tried_again),
              MP_TEST(test_hook_child_of_a_fork_is_inside_nothing),
              MP_TEST(test_hook_threads_at_once_lose_nothing),
              MP_TEST(test_hook_wakes_the_reader_at_half),
              MP_TEST(test_hook_cost_of_an_event))
