/* test_measure.c - what process and devices hold, by a scripted driver. */
#include "fake_driver.h"
#include "gpu_driver.h"
#include "measure.h"
#include "mp_test.h"
#include "nvml.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (INT64_C(1) << 20)
#define TOTAL ((int64_t)FAKE_TOTAL)
#define NA UINT64_MAX

static void
begin(void)
{
    mp_gpu_driver_use(fake_driver_lookup);
    mp_nvml_use(fake_driver_lookup);
}

static mp_total_t
look(int16_t device)
{
    mp_total_t row;
    mp_measure_device(device, &row);
    MP_CHECK_EQ(row.device, device);
    MP_CHECK_EQ(row.event, -1);
    MP_CHECK(row.time_ns > 0 && row.cost_ns >= 0);
    /* Whatever is asked, nothing is left behind. */
    MP_CHECK_EQ(fake_driver.contexts_made, 0);
    MP_CHECK_EQ(fake_driver.cuda_inits, 0);
    MP_CHECK_EQ(fake_driver.retained, 0);
    MP_CHECK_EQ(fake_driver.pushed, 0);
    MP_CHECK_EQ(fake_driver.strict_calls, 0);
    /* A figure has a method, and none has a reason. */
    MP_CHECK(row.process_bytes != 0);
    MP_CHECK_EQ(row.process_bytes < 0, row.why != MP_TOTAL_WHY_NOTHING);
    MP_CHECK_EQ(row.device_used_bytes < 0,
                row.device_why != MP_TOTAL_WHY_NOTHING);
    MP_CHECK_EQ(row.device_used_bytes < 0,
                row.device_method == MP_TOTAL_METHOD_NONE);
    MP_CHECK_EQ(row.device_total_bytes < 0, row.device_used_bytes < 0);
    return row;
}

/* No figure of the process, for that reason; the device's by METHOD. */
static void
check_missing(mp_total_why_t why, mp_total_method_t method)
{
    mp_total_t row = look(0);
    MP_CHECK_EQ(row.process_bytes, -1);
    MP_CHECK_EQ(row.why, why);
    MP_CHECK_EQ(row.method, method);
    MP_CHECK_EQ(row.device_method, method);
}

/* ---- of the process ----------------------------------------------------- */

static void
test_measure_this_process(void)
{
    begin();
    mp_total_t row = look(0);
    MP_CHECK_EQ(row.process_bytes, 642 * MIB);
    MP_CHECK_EQ(row.method, MP_TOTAL_METHOD_NVML_PROCESS);
    MP_CHECK_EQ(row.device_total_bytes, TOTAL);
    MP_CHECK_EQ(row.device_used_bytes, TOTAL - TOTAL / 4);
    MP_CHECK_EQ(row.device_reserved_bytes, 600 * MIB);
    MP_CHECK_EQ(row.device_method, MP_TOTAL_METHOD_NVML_ALL);
    MP_CHECK_EQ(row.memory, MP_TOTAL_MEMORY_OWN);
    MP_CHECK_EQ(row.pool_reserved_bytes, 0); /* measured */
    MP_CHECK_EQ(fake_driver.inits, 1);
    (void)look(0);
    MP_CHECK_EQ(fake_driver.inits, 1);
}

static void
test_measure_a_device_by_its_uuid(void)
{
    begin();
    MP_CHECK_EQ(look(0).device_total_bytes, TOTAL);
    MP_CHECK_EQ(look(1).device_total_bytes, TOTAL + 1);
}

static void
test_measure_an_instance_of_a_device(void)
{
    begin();
    fake_driver.mig = 1;
    mp_total_t row = look(1);
    MP_CHECK_EQ(row.device_total_bytes, TOTAL + 1);
    MP_CHECK_EQ(row.process_bytes, 642 * MIB);
}

static void
test_measure_sums_the_entries_of_a_process(void)
{
    begin();
    fake_driver.processes = 3;
    fake_driver.pid[1] = 4242;
    fake_driver.used[1] = 1000;
    fake_driver.used[2] = 58 << 20; /* another compute instance */
    MP_CHECK_EQ(look(0).process_bytes, 700 * MIB);
}

static void
test_measure_takes_no_zero_for_a_figure(void)
{
    begin();
    fake_driver.used[0] = 0;
    check_missing(MP_TOTAL_WHY_ZERO, MP_TOTAL_METHOD_NVML_ALL);
    fake_driver.processes = 2; /* and does not take another's instead */
    fake_driver.pid[1] = 4242;
    fake_driver.used[1] = 77;
    check_missing(MP_TOTAL_WHY_ZERO, MP_TOTAL_METHOD_NVML_ALL);
}

static void
test_measure_what_is_not_available(void)
{
    begin();
    fake_driver.used[0] = NA;
    check_missing(MP_TOTAL_WHY_NOT_AVAILABLE, MP_TOTAL_METHOD_NVML_ALL);
    fake_driver.pid[0] = 4242;
    check_missing(MP_TOTAL_WHY_NOT_AVAILABLE, MP_TOTAL_METHOD_NVML_ALL);
}

static void
test_measure_the_only_process(void)
{
    begin();
    fake_driver.pid[0] = 4242; /* the host's number of ours */
    mp_total_t row = look(0);
    MP_CHECK_EQ(row.process_bytes, 642 * MIB);
    MP_CHECK_EQ(row.method, MP_TOTAL_METHOD_NVML_ONLY);
    /* A device that this process does not use: that entry is another's. */
    row = look(1);
    MP_CHECK_EQ(row.process_bytes, -1);
    MP_CHECK_EQ(row.why, MP_TOTAL_WHY_NO_CONTEXT);
    MP_CHECK(row.device_used_bytes > 0);
}

static void
test_measure_takes_no_stranger_for_itself(void)
{
    begin();
    fake_driver.pid[0] = 4242;
    fake_driver.pid[1] = 4243;
    fake_driver.processes = 2;
    check_missing(MP_TOTAL_WHY_NOT_LISTED, MP_TOTAL_METHOD_NVML_ALL);
    fake_driver.processes = 0;
    check_missing(MP_TOTAL_WHY_NOT_LISTED, MP_TOTAL_METHOD_NVML_ALL);
    fake_driver.processes = 1;
    fake_driver.used[0] = 0;
    check_missing(MP_TOTAL_WHY_NOT_LISTED, MP_TOTAL_METHOD_NVML_ALL);
}

static void
test_measure_among_many_processes(void)
{
    begin();
    fake_driver.processes = 300;
    MP_CHECK_EQ(look(0).process_bytes, 642 * MIB);
    fake_driver.processes = 900;
    fake_driver.arrivals = 5; /* between two calls */
    MP_CHECK_EQ(look(0).process_bytes, 642 * MIB);
    fake_driver.arrivals = 0;
    fake_driver.silent = 1;
    fake_driver.processes = 5000;
    MP_CHECK_EQ(look(0).process_bytes, 642 * MIB);
    mp_nvml_use(NULL); /* its list */
}

static void
test_measure_ends_with_a_list_that_never_fits(void)
{
    begin();
    fake_driver.processes = 100000;
    check_missing(MP_TOTAL_WHY_FAILED, MP_TOTAL_METHOD_NVML_ALL);
    fake_driver.processes = 100;
    fake_driver.arrivals = 1000;
    check_missing(MP_TOTAL_WHY_FAILED, MP_TOTAL_METHOD_NVML_ALL);
    MP_CHECK(fake_driver.process_calls < 40);
    mp_nvml_use(NULL);
}

/* ---- what NVML lacks ---------------------------------------------------- */

static void
test_measure_unsupported_questions(void)
{
    begin();
    fake_driver.process_result = 3;
    check_missing(MP_TOTAL_WHY_NOT_SUPPORTED, MP_TOTAL_METHOD_NVML_ALL);
    fake_driver.process_result = 4; /* no permission */
    check_missing(MP_TOTAL_WHY_FAILED, MP_TOTAL_METHOD_NVML_ALL);
    fake_driver.process_result = 0;
    fake_driver.v2_result = 25;
    mp_total_t row = look(0);
    MP_CHECK_EQ(row.device_method, MP_TOTAL_METHOD_NVML_ALL);
    MP_CHECK_EQ(row.device_used_bytes, TOTAL - TOTAL / 4);
    MP_CHECK_EQ(row.device_reserved_bytes, -1);
    MP_CHECK_EQ(row.process_bytes, 642 * MIB);
}

static void
test_measure_missing_functions(void)
{
    fake_driver.missing[0] = "nvmlDeviceGetMemoryInfo_v2";
    fake_driver.missing[1] = "nvmlDeviceGetComputeRunningProcesses_v3";
    begin();
    mp_total_t row = look(0);
    MP_CHECK_EQ(row.device_reserved_bytes, -1);
    MP_CHECK_EQ(row.device_method, MP_TOTAL_METHOD_NVML_ALL);
    MP_CHECK_EQ(row.process_bytes, 642 * MIB); /* _v2 has the same entries */
}

static void
test_measure_all_functions_missing(void)
{
    fake_driver.missing[0] = "nvmlDeviceGetMemoryInfo_v2";
    fake_driver.missing[1] = "nvmlDeviceGetComputeRunningProcesses_v3";
    fake_driver.missing[2] = "nvmlDeviceGetComputeRunningProcesses_v2";
    fake_driver.missing[3] = "nvmlDeviceGetMemoryInfo";
    begin();
    check_missing(MP_TOTAL_WHY_NVML_TOO_OLD, MP_TOTAL_METHOD_CUDA_ALL);
}

static void
test_measure_nvml_without_its_base(void)
{
    fake_driver.missing[0] = "nvmlDeviceGetHandleByUUID";
    begin();
    check_missing(MP_TOTAL_WHY_NVML_TOO_OLD, MP_TOTAL_METHOD_CUDA_ALL);
    MP_CHECK_EQ(fake_driver.inits, 0);
}

static void
test_measure_without_nvml(void)
{
    begin();
    mp_nvml_use(NULL);
    check_missing(MP_TOTAL_WHY_NO_NVML, MP_TOTAL_METHOD_CUDA_ALL);
    mp_total_t row = look(0);
    MP_CHECK_EQ(row.device_total_bytes, TOTAL);
    MP_CHECK_EQ(row.device_used_bytes, TOTAL - TOTAL / 2);
    /* No context, so nobody to ask, and none is made. */
    row = look(1);
    MP_CHECK_EQ(row.device_method, MP_TOTAL_METHOD_NONE);
    MP_CHECK_EQ(row.device_why, MP_TOTAL_WHY_NO_NVML);
    MP_CHECK_EQ(row.pool_reserved_bytes, -1);
    fake_driver.cuda_fails = 1;
    row = look(0);
    MP_CHECK_EQ(row.device_why, MP_TOTAL_WHY_CUDA_FAILED);
    MP_CHECK_EQ(row.method, MP_TOTAL_METHOD_NONE);
}

static void
test_measure_where_nvml_cannot_begin(void)
{
    begin();
    fake_driver.init_result = 9; /* no driver */
    check_missing(MP_TOTAL_WHY_NVML_INIT, MP_TOTAL_METHOD_CUDA_ALL);
    (void)look(0);
    MP_CHECK_EQ(fake_driver.inits, 1); /* it is not tried again */
}

/* ---- memory that is shared ---------------------------------------------- */

static void
test_measure_an_integrated_device(void)
{
    begin();
    fake_driver.integrated = 1;
    fake_driver.v2_result = 3;
    fake_driver.v1_result = 3;
    mp_total_t row = look(0);
    MP_CHECK_EQ(row.memory, MP_TOTAL_MEMORY_INTEGRATED);
    MP_CHECK_EQ(row.process_bytes, 642 * MIB);
    MP_CHECK_EQ(row.method, MP_TOTAL_METHOD_NVML_PROCESS);
    MP_CHECK_EQ(row.device_method, MP_TOTAL_METHOD_CUDA_ALL);
    fake_driver.v2_result = 0; /* it answers, but with nothing */
    fake_driver.total = 0;
    row = look(0);
    MP_CHECK_EQ(row.device_used_bytes, -1);
}

static void
test_measure_a_device_that_is_a_node_of_the_host(void)
{
    begin();
    fake_driver.node = 1;
    MP_CHECK_EQ(look(0).memory, MP_TOTAL_MEMORY_NODE);
}

static void
test_measure_pools(void)
{
    begin();
    fake_driver.pool_reserved = 64 << 20;
    fake_driver.pool_used = 5 << 20;
    mp_total_t row = look(0);
    MP_CHECK_EQ(row.pool_reserved_bytes, 64 * MIB);
    MP_CHECK_EQ(row.pool_used_bytes, 5 * MIB);
    MP_CHECK_EQ(look(1).pool_reserved_bytes, -1); /* not used: not asked */
    fake_driver.no_pools = 1;
    MP_CHECK_EQ(look(0).pool_reserved_bytes, -1);
}

static void
test_measure_pools_that_the_program_made(void)
{
    begin();
    fake_driver.made_reserved = 8 << 20;
    MP_CHECK_EQ(look(0).made_reserved_bytes, 0);
    mp_gpu_driver_pool_made(4000, 0);
    mp_gpu_driver_pool_made(4002, 0);
    mp_gpu_driver_pool_made(4004, 1);  /* of a device that is not in use */
    mp_gpu_driver_pool_made(4006, -2); /* of nobody knows which */
    mp_gpu_driver_pool_made(4001, 0);  /* that cannot be asked */
    MP_CHECK_EQ(look(0).made_reserved_bytes, 16 * MIB);
    MP_CHECK_EQ(look(1).made_reserved_bytes, 0);
    mp_gpu_driver_pool_gone(4002);
    mp_gpu_driver_pool_gone(4002);
    MP_CHECK_EQ(look(0).made_reserved_bytes, 8 * MIB);
    for (uint64_t i = 0; i < 200; i++) { /* more than there are places */
        mp_gpu_driver_pool_made(6000 + 2 * i, 0);
    }
    MP_CHECK(look(0).made_reserved_bytes > 50 * 8 * MIB);
    MP_CHECK(look(0).made_reserved_bytes <= 64 * 8 * MIB);
    mp_gpu_driver_forget_pools();
    MP_CHECK_EQ(look(0).made_reserved_bytes, 0);
    /* As an event, and back. */
    mp_total_t row = look(0), again;
    mp_event_t events[MP_TOTAL_EVENTS];
    row.made_reserved_bytes = 77;
    row.pool_reserved_bytes = row.pool_used_bytes = -1;
    MP_CHECK_EQ(mp_total_write(&row, events), 3);
    for (size_t i = 0; i < 3; i++) {
        mp_total_read(&events[i], &again);
    }
    MP_CHECK_EQ(again.made_reserved_bytes, 77);
    MP_CHECK_EQ(again.pool_reserved_bytes, -1);
    events[2].stream = UINT64_MAX; /* of a damaged file */
    mp_total_read(&events[2], &again);
    MP_CHECK_EQ(again.made_reserved_bytes, 0);
}

static void *
make_and_destroy(void *unused)
{
    (void)unused;
    for (uint64_t i = 0; i < 20000; i++) {
        uint64_t pool = 5000 + 2 * (i % 16);
        mp_gpu_driver_pool_made(pool, 0);
        mp_gpu_driver_pool_gone(pool);
    }
    return NULL;
}

static void
test_measure_pools_while_they_come_and_go(void)
{
    pthread_t thread;
    begin();
    fake_driver.made_reserved = 8 << 20;
    mp_gpu_driver_pool_made(4000, 0);
    MP_CHECK(pthread_create(&thread, NULL, make_and_destroy, NULL) == 0);
    for (int i = 0; i < 300; i++) {
        int64_t made = look(0).made_reserved_bytes;
        MP_CHECK(made >= 8 * MIB && made % (8 * MIB) == 0);
    }
    pthread_join(thread, NULL);
    MP_CHECK_EQ(look(0).made_reserved_bytes, 8 * MIB);
}

/* ---- who does not use CUDA ---------------------------------------------- */

static void
test_measure_touches_nothing_before_cuda_is_up(void)
{
    begin();
    mp_total_t rows[4];
    fake_driver.up = 0;
    MP_CHECK_EQ(mp_measure_all(rows, 4), 0);
    MP_CHECK_EQ(look(0).why, MP_TOTAL_WHY_NO_CUDA);
    fake_driver.up = 1;
    fake_driver.active = 0;
    MP_CHECK_EQ(mp_measure_all(rows, 4), 0);
    MP_CHECK_EQ(fake_driver.inits, 0);
    MP_CHECK_EQ(fake_driver.contexts_made, 0);
    MP_CHECK_EQ(look(2).why, MP_TOTAL_WHY_NO_DEVICE);
    MP_CHECK_EQ(fake_driver.inits, 0);
    fake_driver.active = 1;
    MP_CHECK_EQ(mp_measure_all(rows, 4), 2);
    MP_CHECK_EQ(fake_driver.inits, 1);
}

static void
test_measure_without_any_driver(void)
{
    mp_total_t rows[4];
    (void)setenv("MEMPROF_CUDA_LIB", "/nowhere/libcuda.so.1", 1);
    MP_CHECK_EQ(mp_measure_all(rows, 4), 0);
    MP_CHECK_EQ(look(0).why, MP_TOTAL_WHY_NO_CUDA);
}

static void
test_measure_the_devices_in_use_and_the_host(void)
{
    begin();
    mp_total_t rows[4];
    fake_driver.active = 3;
    MP_CHECK_EQ(mp_measure_all(rows, 4), 3);
    MP_CHECK_EQ(rows[0].device, 0);
    MP_CHECK_EQ(rows[1].device, 1);
    MP_CHECK_EQ(rows[1].device_total_bytes, TOTAL + 1);
    MP_CHECK_EQ(rows[2].device, -1);
    MP_CHECK_EQ(rows[2].method, MP_TOTAL_METHOD_OS_PROCESS);
    MP_CHECK_EQ(mp_measure_all(rows, 2), 2); /* one, and the host */
    MP_CHECK_EQ(rows[1].device, -1);
}

/* As another file of /proc says it. */
static int64_t
resident_bytes(void)
{
    long size = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    MP_CHECK(file != NULL);
    MP_CHECK_EQ(fscanf(file, "%ld %ld", &size, &pages), 2);
    (void)fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

static void
test_measure_the_host(void)
{
    size_t bytes = (size_t)64 << 20;
    volatile char *memory = malloc(bytes);
    MP_CHECK(memory != NULL);
    for (size_t i = 0; i < bytes; i += 512) {
        memory[i] = 1;
    }
    mp_total_t row = look(-1);
    int64_t resident = resident_bytes();
    MP_CHECK(memory[bytes / 2] == 1);
    free((void *)memory);
    MP_CHECK(row.process_bytes > 64 * MIB);
    MP_CHECK(row.process_bytes > resident - 8 * MIB);
    MP_CHECK(row.process_bytes < resident + 8 * MIB);
    MP_CHECK_EQ(row.method, MP_TOTAL_METHOD_OS_PROCESS);
    MP_CHECK_EQ(row.device_method, MP_TOTAL_METHOD_OS_ALL);
    MP_CHECK(row.device_total_bytes > row.device_used_bytes);
    MP_CHECK_EQ(row.device_total_bytes,
                (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
}

/* ---- fork --------------------------------------------------------------- */

static int
in_child(int (*what)(void))
{
    pid_t child = fork();
    if (child == 0) {
        _exit(what());
    }
    int status = -1;
    MP_CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int
is_dead(void)
{
    mp_total_t row;
    uint64_t calls = fake_driver.process_calls, inits = fake_driver.inits;
    mp_measure_device(0, &row);
    return row.process_bytes == -1 && row.why == MP_TOTAL_WHY_FORKED &&
           fake_driver.process_calls == calls && fake_driver.inits == inits;
}

static int
is_alive(void)
{
    mp_total_t row;
    fake_driver.up = 1;
    fake_driver.active = 1;
    mp_measure_device(0, &row);
    return row.process_bytes == 642 * MIB;
}

static void
test_measure_in_a_forked_child(void)
{
    begin();
    fake_driver.up = 0;
    MP_CHECK_EQ(look(0).why, MP_TOTAL_WHY_NO_CUDA);
    MP_CHECK_EQ(in_child(is_alive), 1); /* its parent has used nothing */
    fake_driver.up = 1;
    (void)look(0);
    MP_CHECK_EQ(in_child(is_dead), 1);
    MP_CHECK_EQ(look(0).process_bytes, 642 * MIB);
}

MP_TEST_SUITE(measure, MP_TEST(test_measure_this_process),
              MP_TEST(test_measure_a_device_by_its_uuid),
              MP_TEST(test_measure_an_instance_of_a_device),
              MP_TEST(test_measure_sums_the_entries_of_a_process),
              MP_TEST(test_measure_takes_no_zero_for_a_figure),
              MP_TEST(test_measure_what_is_not_available),
              MP_TEST(test_measure_the_only_process),
              MP_TEST(test_measure_takes_no_stranger_for_itself),
              MP_TEST(test_measure_among_many_processes),
              MP_TEST(test_measure_ends_with_a_list_that_never_fits),
              MP_TEST(test_measure_unsupported_questions),
              MP_TEST(test_measure_missing_functions),
              MP_TEST(test_measure_all_functions_missing),
              MP_TEST(test_measure_nvml_without_its_base),
              MP_TEST(test_measure_without_nvml),
              MP_TEST(test_measure_where_nvml_cannot_begin),
              MP_TEST(test_measure_an_integrated_device),
              MP_TEST(test_measure_a_device_that_is_a_node_of_the_host),
              MP_TEST(test_measure_pools),
              MP_TEST(test_measure_pools_that_the_program_made),
              MP_TEST(test_measure_pools_while_they_come_and_go),
              MP_TEST(test_measure_touches_nothing_before_cuda_is_up),
              MP_TEST(test_measure_without_any_driver),
              MP_TEST(test_measure_the_devices_in_use_and_the_host),
              MP_TEST(test_measure_the_host),
              MP_TEST(test_measure_in_a_forked_child))
