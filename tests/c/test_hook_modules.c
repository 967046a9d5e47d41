/* test_hook_modules.c - modules and backward that hooks find on the Python
 * stack, and what they tell where there is none. */
#include "fake_pystack.h"
#include "fake_shim.h"
#include "hook.h"
#include "mem.h"
#include "mp_test.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <string.h>

#define ALL                                                                   \
    (MP_HOOK_CUDA | MP_HOOK_CPU | MP_HOOK_OPS | MP_HOOK_STACKS |              \
     MP_HOOK_MODULES | MP_HOOK_SESSION)

/* Names and addresses of a model and of parts of it. */
enum {
    NET = 70,
    LAYER = 71,
    HEAD = 72,
    NET_AT = 0x7000,
    LAYER_AT = 0x7100,
    HEAD_AT = 0x7200,
    STACK = 5
};

static const mp_core_api_t *core;

static void
set_up(void)
{
    MP_CHECK(mp_hook_init() == MP_OK);
    mp_hook_set_shim(fake_shim());
    core = mp_hook_core_api();
    mp_hook_set_wanted(ALL);
}

/* The thread runs the forward of MODULE, innermost, inside of the model at
 * ROOT. */
static void
run_in(uint32_t module, uint64_t root)
{
    mp_pystack_t stack = {.stack = STACK, .module = module, .root = root};
    fake_pystack_set_all(&stack);
}

static void
run_in_unnamed(uint32_t class_name, uint64_t unnamed, uint64_t root)
{
    mp_pystack_t stack = {.stack = STACK,
                          .module = class_name,
                          .unnamed = unnamed,
                          .root = root};
    fake_pystack_set_all(&stack);
}

/* In torch.autograd.backward, and inside of that in MODULE's forward. */
static void
run_backward(uint32_t module)
{
    mp_pystack_t stack = {.stack = STACK,
                          .module = module,
                          .root = module == MP_NO_INDEX ? 0 : NET_AT,
                          .backward = true};
    fake_pystack_set_all(&stack);
}

static void
run_no_python(void)
{
    fake_pystack_set(MP_NO_INDEX);
}

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
alloc(void)
{
    core->cpu_alloc((void *)0x9000, 64);
}

/* The event of a fresh allocation; what came before it is skipped. */
static mp_event_t
probe(void)
{
    alloc();
    mp_event_t event = {0};
    size_t count;
    while (mp_log_peek(mp_hook_log(), &count), count > 0) {
        event = mp_log_peek(mp_hook_log(), &count)[0];
        mp_log_consume(mp_hook_log(), 1);
    }
    MP_CHECK_EQ(event.kind, MP_EVENT_ALLOC);
    return event;
}

#define PLACE (MP_FLAG_IN_MODULE | MP_FLAG_RECOMPUTE)

/* A fresh allocation is in MODULE, in PHASE; of PLACE it has FLAGS. */
static void
check_place(uint32_t module, uint8_t phase, uint32_t flags)
{
    mp_event_t event = probe();
    MP_CHECK_EQ(event.module, module);
    MP_CHECK_EQ(event.phase, phase);
    MP_CHECK_EQ(event.flags & PLACE, flags);
}

static void
check_strangers(uint64_t unnamed, uint64_t unhooked)
{
    uint64_t seen_unnamed = 1, seen_unhooked = 1;
    mp_hook_take_strangers(&seen_unnamed, &seen_unhooked);
    MP_CHECK_EQ(seen_unnamed, unnamed);
    MP_CHECK_EQ(seen_unhooked, unhooked);
}

static void
begin(fake_op_t *op, mp_op_scope_t scope)
{
    core->op_begin(op, scope);
}

static void
run_thread(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    MP_CHECK(pthread_create(&thread, NULL, body, argument) == 0);
    MP_CHECK(pthread_join(thread, NULL) == 0);
}

/* ---- where a thread is
 * ---------------------------------------------------------------- */

static void
test_hook_modules_innermost_of_the_stack_counts(void)
{
    set_up();
    run_in(LAYER, NET_AT);
    mp_event_t event = probe();
    MP_CHECK_EQ(event.module, LAYER);
    MP_CHECK_EQ(event.stack, STACK);
    MP_CHECK_EQ(event.phase, MP_PHASE_FORWARD);
    MP_CHECK_EQ(event.flags, MP_FLAG_IN_MODULE);
    run_in(HEAD, NET_AT);
    check_place(HEAD, MP_PHASE_FORWARD, MP_FLAG_IN_MODULE);
    run_in(NET, NET_AT); /* between its parts */
    check_place(NET, MP_PHASE_FORWARD, MP_FLAG_IN_MODULE);
    run_no_python();
    check_place(MP_NO_INDEX, MP_PHASE_OTHER, 0);
}

static void
test_hook_modules_of_gpu_memory_alike(void)
{
    set_up();
    run_in(LAYER, NET_AT);
    mp_memory_fact_t fact = {.kind = MP_EVENT_ALLOC, .addr = 1, .size = 512};
    core->memory(&fact);
    mp_event_t event = next(MP_EVENT_ALLOC);
    MP_CHECK_EQ(event.module, LAYER);
    MP_CHECK_EQ(event.phase, MP_PHASE_FORWARD);
    fact.kind = MP_EVENT_FREE_REQUESTED; /* frees walk no stack */
    core->memory(&fact);
    event = next(MP_EVENT_FREE_REQUESTED);
    MP_CHECK_EQ(event.module, MP_NO_INDEX);
    MP_CHECK_EQ(event.phase, MP_PHASE_OTHER);
}

/* The model told of its forward by a hook; its parts do not. */
static void
test_hook_modules_stack_knows_more_than_the_root_hook(void)
{
    set_up();
    mp_hook_module_begin(NET);
    run_in(LAYER, NET_AT);
    check_place(LAYER, MP_PHASE_FORWARD, MP_FLAG_IN_MODULE);
    core->cpu_free((void *)0x9000); /* looks at no stack: the root's */
    MP_CHECK_EQ(next(MP_EVENT_FREE_COMPLETED).module, NET);
    run_no_python(); /* a thread's own work inside of the model */
    check_place(NET, MP_PHASE_FORWARD, MP_FLAG_IN_MODULE);
    mp_hook_module_end(NET);
    check_place(MP_NO_INDEX, MP_PHASE_OTHER, 0);
}

static void
test_hook_modules_are_in_the_ops_that_run_there(void)
{
    set_up();
    fake_op_t op = FAKE_OP("aten::add");
    begin(&op, MP_OP_SCOPE_FUNCTION);
    run_in(LAYER, NET_AT);
    alloc();
    mp_event_t event = next(MP_EVENT_OP_BEGIN);
    MP_CHECK_EQ(event.module, LAYER);
    MP_CHECK_EQ(event.stack, STACK);
    MP_CHECK_EQ(event.phase, MP_PHASE_FORWARD);
    MP_CHECK_EQ(event.flags, MP_FLAG_IN_OP | MP_FLAG_IN_MODULE);
    event = next(MP_EVENT_ALLOC);
    MP_CHECK_EQ(event.module, LAYER);
    core->op_end(&op);
}

static void
test_hook_modules_only_if_asked_for(void)
{
    set_up();
    run_in(LAYER, NET_AT);
    mp_hook_set_wanted(ALL & ~MP_HOOK_MODULES); /* stacks, but no modules */
    mp_event_t event = probe();
    MP_CHECK_EQ(event.module, MP_NO_INDEX);
    MP_CHECK_EQ(event.stack, STACK);
    MP_CHECK_EQ(event.phase, MP_PHASE_OTHER);
    check_strangers(0, 0);
    mp_hook_set_wanted(ALL & ~MP_HOOK_STACKS); /* modules, but no stacks */
    event = probe();
    MP_CHECK_EQ(event.module, LAYER);
    MP_CHECK_EQ(event.stack, MP_NO_INDEX);
    mp_hook_set_wanted(ALL & ~(MP_HOOK_STACKS | MP_HOOK_MODULES));
    event = probe();
    MP_CHECK_EQ(event.module, MP_NO_INDEX);
    MP_CHECK_EQ(event.stack, MP_NO_INDEX);
    run_backward(LAYER); /* nobody looks, so nobody knows */
    check_place(MP_NO_INDEX, MP_PHASE_OTHER, 0);
}

/* ---- backward
 * ------------------------------------------------------------------------- */

static void
test_hook_modules_frame_of_autograd_is_backward(void)
{
    set_up();
    run_backward(MP_NO_INDEX); /* before the first node, say: its seed */
    check_place(MP_NO_INDEX, MP_PHASE_BACKWARD, 0);
    fake_op_t op = FAKE_OP("aten::ones_like");
    op.fact.sequence = 4; /* makes a node: a forward's, anywhere else */
    begin(&op, MP_OP_SCOPE_FUNCTION);
    alloc();
    MP_CHECK_EQ(next(MP_EVENT_OP_BEGIN).phase, MP_PHASE_BACKWARD);
    MP_CHECK_EQ(next(MP_EVENT_ALLOC).phase, MP_PHASE_BACKWARD);
    core->op_end(&op);
    run_no_python();
    check_place(MP_NO_INDEX, MP_PHASE_OTHER, 0);
    mp_hook_set_wanted(ALL & ~MP_HOOK_MODULES); /* the stack is walked still */
    run_backward(MP_NO_INDEX);
    check_place(MP_NO_INDEX, MP_PHASE_BACKWARD, 0);
}

static void
test_hook_modules_inside_backward_compute_again(void)
{
    set_up();
    run_backward(LAYER); /* a checkpoint's */
    check_place(LAYER, MP_PHASE_BACKWARD, PLACE);
    fake_op_t node = FAKE_NODE("CheckpointFunctionBackward");
    begin(&node, MP_OP_SCOPE_FUNCTION);
    run_in(LAYER, NET_AT); /* the node alone says that it is a backward */
    check_place(LAYER, MP_PHASE_BACKWARD, PLACE);
    run_no_python();
    check_place(MP_NO_INDEX, MP_PHASE_BACKWARD, 0);
    core->op_end(&node);
}

/* A model of forces: they are the gradients of its energy. */
static void
test_hook_modules_outside_of_backward_compute_nothing_again(void)
{
    set_up();
    mp_hook_module_begin(NET);
    run_backward(MP_NO_INDEX);
    check_place(NET, MP_PHASE_BACKWARD, MP_FLAG_IN_MODULE);
    fake_op_t node = FAKE_NODE("MulBackward0");
    begin(&node, MP_OP_SCOPE_FUNCTION);
    check_place(NET, MP_PHASE_BACKWARD, MP_FLAG_IN_MODULE);
    run_backward(LAYER); /* but a checkpoint of its own does */
    check_place(LAYER, MP_PHASE_BACKWARD, PLACE);
    core->op_end(&node);
    run_in(LAYER, NET_AT);
    check_place(LAYER, MP_PHASE_FORWARD, MP_FLAG_IN_MODULE);
    mp_hook_module_end(NET);
}

static void
test_hook_modules_of_an_optimizer_step_stay_in_it(void)
{
    set_up();
    mp_hook_optimizer_begin(4);
    run_in(LAYER, NET_AT); /* a module that an optimizer calls */
    check_place(LAYER, MP_PHASE_OPTIMIZER, MP_FLAG_IN_MODULE);
    run_backward(
        MP_NO_INDEX); /* an optimizer that runs in a gradient's hook */
    check_place(MP_NO_INDEX, MP_PHASE_OPTIMIZER, 0);
    mp_hook_module_begin(NET); /* a closure's model, which has its hook */
    run_in(LAYER, NET_AT);
    check_place(LAYER, MP_PHASE_FORWARD, MP_FLAG_IN_MODULE);
    mp_hook_module_end(NET);
    (void)mp_hook_optimizer_end(4);
}

/* ---- threads
 * ---------------------------------------------------------------------------
 */

static void *
engine_body(void *argument)
{
    MP_CHECK(pthread_setname_np(pthread_self(), argument) == 0);
    run_no_python();
    check_place(MP_NO_INDEX, MP_PHASE_BACKWARD, 0);
    run_in(LAYER, NET_AT); /* a checkpoint's, on the engine's thread */
    check_place(LAYER, MP_PHASE_BACKWARD, PLACE);
    return NULL;
}

static void *
other_body(void *argument)
{
    MP_CHECK(pthread_setname_np(pthread_self(), argument) == 0);
    run_no_python();
    check_place(MP_NO_INDEX, MP_PHASE_OTHER, 0);
    run_in(LAYER, NET_AT);
    check_place(LAYER, MP_PHASE_FORWARD, MP_FLAG_IN_MODULE);
    return NULL;
}

static void
test_hook_modules_threads_of_the_engine_are_backward(void)
{
    set_up();
    run_thread(engine_body, "pt_autograd_0");
    run_thread(engine_body, "pt_autograd_127");
    run_thread(other_body, "pt_data_worker");
    run_thread(other_body, "autograd");
    check_place(MP_NO_INDEX, MP_PHASE_OTHER, 0);
}

typedef struct {
    uint32_t module;
    uint64_t root;
    sem_t go, done;
} lane_t;

static void *
lane_body(void *argument)
{
    lane_t *lane = argument;
    run_in(lane->module, lane->root);
    for (int i = 0; i < 20; i++) {
        MP_CHECK(sem_wait(&lane->go) == 0);
        check_place(lane->module, MP_PHASE_FORWARD, MP_FLAG_IN_MODULE);
        MP_CHECK(sem_post(&lane->done) == 0);
    }
    return NULL;
}

static void
test_hook_modules_of_two_threads_never_mix(void)
{
    set_up();
    static lane_t lanes[2] = {{.module = LAYER, .root = NET_AT},
                              {.module = HEAD, .root = HEAD_AT}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        MP_CHECK(sem_init(&lanes[i].go, 0, 0) == 0);
        MP_CHECK(sem_init(&lanes[i].done, 0, 0) == 0);
        MP_CHECK(pthread_create(&threads[i], NULL, lane_body, &lanes[i]) == 0);
    }
    for (int i = 0; i < 40; i++) {
        MP_CHECK(sem_post(&lanes[i % 2].go) == 0);
        MP_CHECK(sem_wait(&lanes[i % 2].done) == 0);
    }
    for (int i = 0; i < 2; i++) {
        MP_CHECK(pthread_join(threads[i], NULL) == 0);
    }
    check_place(MP_NO_INDEX, MP_PHASE_OTHER, 0);
}

/* ---- strangers
 * ------------------------------------------------------------------------- */

static void
test_hook_modules_root_without_a_hook_is_told_once(void)
{
    set_up();
    check_strangers(0, 0);
    run_in(LAYER, NET_AT);
    (void)probe();
    check_strangers(0, NET_AT); /* all have names: the root is what it wants */
    check_strangers(0, 0);
    (void)probe();
    (void)probe();
    check_strangers(0, NET_AT); /* it still runs without its hook */
    mp_hook_module_begin(NET);
    (void)probe();
    check_strangers(0, 0);
    mp_hook_module_end(NET);
}

static void
test_hook_modules_without_a_name_are_told(void)
{
    set_up();
    run_in_unnamed(HEAD, HEAD_AT, NET_AT);
    check_place(HEAD, MP_PHASE_FORWARD, MP_FLAG_IN_MODULE);
    check_strangers(HEAD_AT, NET_AT);
    mp_hook_module_begin(NET); /* new in a model that has its hook */
    (void)probe();
    check_strangers(HEAD_AT, 0);
    mp_hook_module_end(NET);
    run_in_unnamed(LAYER, LAYER_AT, LAYER_AT); /* a model all of its own */
    (void)probe();
    check_strangers(LAYER_AT, LAYER_AT);
    run_in_unnamed(LAYER, LAYER_AT, LAYER_AT);
    (void)probe();
    run_in_unnamed(HEAD, HEAD_AT, NET_AT);
    (void)probe();
    check_strangers(HEAD_AT, NET_AT); /* of several the last */
}

static void
test_hook_modules_known_ones_hide_no_stranger(void)
{
    set_up();
    run_in_unnamed(HEAD, HEAD_AT, NET_AT);
    (void)probe();
    run_in(LAYER, NET_AT);
    (void)probe();
    run_backward(MP_NO_INDEX);
    (void)probe();
    run_no_python();
    (void)probe();
    core->cpu_free((void *)0x9000);
    check_strangers(HEAD_AT, NET_AT);
}

/* Its address is told, and is no use: whoever asks must look who is there.
 * Nothing of it stays with the thread. */
static void
test_hook_modules_that_vanished_leave_nothing(void)
{
    set_up();
    mp_names_t *names = mp_hook_module_names();
    MP_CHECK_EQ(mp_names_put(names, LAYER_AT, LAYER), MP_OK);
    run_in_unnamed(HEAD, HEAD_AT, LAYER_AT);
    (void)probe();
    mp_names_forget(names, LAYER_AT); /* it dies, its name with it */
    run_no_python();
    check_place(MP_NO_INDEX, MP_PHASE_OTHER, 0);
    MP_CHECK(!mp_hook_in_module());
    uint64_t unnamed, unhooked;
    mp_hook_take_strangers(&unnamed, &unhooked);
    MP_CHECK_EQ(mp_names_get(names, unnamed), MP_NO_INDEX);
    MP_CHECK_EQ(mp_names_get(names, unhooked), MP_NO_INDEX);
    check_strangers(0, 0);
}

static void *
strange_body(void *argument)
{
    uintptr_t first = (uintptr_t)argument;
    for (uintptr_t i = 1; i <= 2000; i++) {
        run_in_unnamed(HEAD, first + i, first + i);
        alloc();
    }
    return NULL;
}

/* Two threads tell and a third one takes: only what was told is taken. */
static void
test_hook_modules_strangers_of_threads_at_once(void)
{
    set_up();
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++) {
        MP_CHECK(pthread_create(&threads[i], NULL, strange_body,
                                (void *)((i + 1) << 32)) == 0);
    }
    for (int i = 0; i < 2000; i++) {
        uint64_t taken[2];
        mp_hook_take_strangers(&taken[0], &taken[1]);
        for (int k = 0; k < 2; k++) {
            MP_CHECK(taken[k] == 0 || taken[k] >> 32 == 1 ||
                     taken[k] >> 32 == 2);
            MP_CHECK((taken[k] & UINT32_MAX) <= 2000);
        }
    }
    for (int i = 0; i < 2; i++) {
        MP_CHECK(pthread_join(threads[i], NULL) == 0);
    }
    uint64_t unnamed, unhooked;
    strange_body((void *)(UINT64_C(3) << 32));
    mp_hook_take_strangers(&unnamed, &unhooked);
    MP_CHECK_EQ(unnamed, (UINT64_C(3) << 32) + 2000);
    MP_CHECK_EQ(unhooked, unnamed);
}

/* ---- no stacks
 * ------------------------------------------------------------------------- */

/* This Python's frames cannot be read: every module tells by hooks. */
static void
test_hook_modules_by_hooks_where_stacks_say_nothing(void)
{
    set_up();
    run_no_python();
    mp_hook_module_begin(NET);
    check_place(NET, MP_PHASE_FORWARD, MP_FLAG_IN_MODULE);
    mp_hook_module_begin(LAYER);
    mp_event_t event = probe();
    MP_CHECK_EQ(event.module, LAYER);
    MP_CHECK_EQ(event.stack, MP_NO_INDEX);
    fake_op_t node = FAKE_NODE("MulBackward0");
    begin(&node, MP_OP_SCOPE_FUNCTION);
    check_place(LAYER, MP_PHASE_BACKWARD, PLACE);
    core->op_end(&node);
    mp_hook_module_end(LAYER);
    check_place(NET, MP_PHASE_FORWARD, MP_FLAG_IN_MODULE);
    mp_hook_module_end(NET);
    check_place(MP_NO_INDEX, MP_PHASE_OTHER, 0);
    check_strangers(0, 0);
}

static void *
body_without_cache(void *argument)
{
    (void)argument;
    run_in_unnamed(HEAD, HEAD_AT, NET_AT);
    mp_mem_fail_after(2); /* the context is had, its cache is not */
    check_place(MP_NO_INDEX, MP_PHASE_OTHER, 0);
    mp_mem_fail_after(0);
    MP_CHECK_EQ(probe().stack, MP_NO_INDEX);
    mp_hook_module_begin(LAYER);
    check_place(LAYER, MP_PHASE_FORWARD, MP_FLAG_IN_MODULE);
    mp_hook_module_end(LAYER);
    run_backward(HEAD);
    check_place(MP_NO_INDEX, MP_PHASE_OTHER, 0);
    check_strangers(0, 0);
    MP_CHECK_EQ(mp_hook_stack(), MP_NO_INDEX);
    return NULL;
}

static void
test_hook_modules_by_hooks_on_a_thread_without_a_cache(void)
{
    set_up();
    run_thread(body_without_cache, NULL);
    run_in(LAYER, NET_AT); /* other threads have theirs */
    check_place(LAYER, MP_PHASE_FORWARD, MP_FLAG_IN_MODULE);
}

MP_TEST_SUITE(
    hook_modules, MP_TEST(test_hook_modules_innermost_of_the_stack_counts),
    MP_TEST(test_hook_modules_of_gpu_memory_alike),
    MP_TEST(test_hook_modules_stack_knows_more_than_the_root_hook),
    MP_TEST(test_hook_modules_are_in_the_ops_that_run_there),
    MP_TEST(test_hook_modules_only_if_asked_for),
    MP_TEST(test_hook_modules_frame_of_autograd_is_backward),
    MP_TEST(test_hook_modules_inside_backward_compute_again),
    MP_TEST(test_hook_modules_outside_of_backward_compute_nothing_again),
    MP_TEST(test_hook_modules_of_an_optimizer_step_stay_in_it),
    MP_TEST(test_hook_modules_threads_of_the_engine_are_backward),
    MP_TEST(test_hook_modules_of_two_threads_never_mix),
    MP_TEST(test_hook_modules_root_without_a_hook_is_told_once),
    MP_TEST(test_hook_modules_without_a_name_are_told),
    MP_TEST(test_hook_modules_known_ones_hide_no_stranger),
    MP_TEST(test_hook_modules_that_vanished_leave_nothing),
    MP_TEST(test_hook_modules_strangers_of_threads_at_once),
    MP_TEST(test_hook_modules_by_hooks_where_stacks_say_nothing),
    MP_TEST(test_hook_modules_by_hooks_on_a_thread_without_a_cache))
