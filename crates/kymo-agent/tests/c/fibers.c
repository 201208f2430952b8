/* Two fibers on this thread, two jobs on two threads, and everything that can be done wrong. Prints what was counted. */
#define _GNU_SOURCE
#include "kymo.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

#define CHECK(is, wanted)                                                                        \
    do {                                                                                         \
        long long is_ = (long long)(is), wanted_ = (long long)(wanted);                          \
        if (is_ != wanted_) {                                                                    \
            printf("line %d: %s is %lld, not %lld: %s\n", __LINE__, #is, is_, wanted_, kymo_last_error()); \
            return 1;                                                                            \
        }                                                                                        \
    } while (0)

static uint64_t cpu_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void burn(uint64_t ns) {
    for (uint64_t end = cpu_ns() + ns; cpu_ns() < end;) {
    }
}

static ucontext_t thread_context, contexts[2];
static kymo_task fibers[2];

/* Works, and hands over to the other fiber, three times; the last to end goes back to the thread. */
static void fiber(int own) {
    int other = 1 - own;
    for (int turn = 0; turn < 3; turn++) {
        burn(own == 0 ? 1000000 : 3000000);
        if (turn == 2 && own == 1) {
            break;
        }
        if (kymo_task_switch(fibers[own], fibers[other]) != 0) {
            printf("switch: %s\n", kymo_last_error());
        }
        swapcontext(&contexts[own], &contexts[other]);
    }
    if (kymo_task_switch(fibers[own], 0) != 0) {
        printf("switch back: %s\n", kymo_last_error());
    }
    setcontext(&thread_context);
}

static void *job(void *argument) {
    kymo_task task = *(kymo_task *)argument;
    if (kymo_task_switch(0, task) != 0) {
        return "cannot begin";
    }
    burn(2000000);
    return kymo_task_switch(task, 0) == 0 ? NULL : "cannot end";
}

static void *wrong_thread(void *argument) {
    kymo_task task = *(kymo_task *)argument;
    int refused[] = {kymo_task_switch(task, 0), kymo_task_switch(0, task), kymo_task_exit(task, NULL)};
    int wanted[] = {KYMO_ENOTHERE, KYMO_ERUNNING, KYMO_ERUNNING};
    return memcmp(refused, wanted, sizeof refused) == 0 && strstr(kymo_last_error(), "runs already") ? NULL : "not refused";
}

static void *ends_while_running(void *argument) {
    return kymo_task_switch(0, *(kymo_task *)argument) == 0 ? NULL : "cannot begin";
}

static const char *on_a_thread(void *(*what)(void *), kymo_task task) {
    pthread_t thread;
    void *problem = "no thread";
    if (pthread_create(&thread, NULL, what, &task) == 0) {
        pthread_join(thread, &problem);
    }
    return problem;
}

int main(void) {
    struct kymo_reading reading = {.size_bytes = sizeof reading};
    kymo_group group = kymo_group_new("fibers", KYMO_PER_TASK);
    CHECK(group != 0, 1);
    CHECK(kymo_publish(), 0);

    static char stacks[2][256 * 1024];
    for (int own = 0; own < 2; own++) {
        fibers[own] = kymo_task_spawn(group, own == 0 ? "short" : "long");
        CHECK(fibers[own] != 0, 1);
        getcontext(&contexts[own]);
        contexts[own].uc_stack.ss_sp = stacks[own];
        contexts[own].uc_stack.ss_size = sizeof stacks[own];
        makecontext(&contexts[own], (void (*)(void))fiber, 1, own);
    }
    CHECK(kymo_task_switch(0, fibers[0]), 0);
    swapcontext(&thread_context, &contexts[0]);

    uint64_t sum = 0;
    for (int own = 0; own < 2; own++) {
        CHECK(kymo_task_read(fibers[own], &reading), 0);
        printf("fiber %d: %" PRIu64 " switches, %" PRIu64 " ns\n", own, reading.switches, reading.cpu_ns);
        CHECK(reading.switches, 3);
        CHECK(reading.cpu_ns >= (own == 0 ? 2500000u : 8500000u), 1);
        CHECK(reading.allocations == KYMO_UNKNOWN, 1);
        sum += reading.cpu_ns;
    }
    CHECK(kymo_group_read(group, &reading), 0);
    CHECK(reading.cpu_ns, sum);

    for (int thread = 0; thread < 2; thread++) {
        const char *problem = on_a_thread(job, fibers[0]);
        CHECK(problem == NULL, 1);
    }
    CHECK(kymo_task_read(fibers[0], &reading), 0);
    CHECK(reading.migrations, 2);

    /* Counters of its own. */
    uint64_t value = 0;
    kymo_group counting = kymo_group_new_counting("counting", KYMO_PER_TASK, "own:2,own:15");
    CHECK(counting != 0, 1);
    kymo_task counted = kymo_task_spawn(counting, "counted");
    CHECK(kymo_task_switch(0, counted), 0);
    kymo_count(2, 40);
    kymo_count(15, 1);
    kymo_count(2, 2);
    kymo_count(4000000000u, 5);
    CHECK(kymo_task_switch(counted, 0), 0);
    kymo_count(2, 1000);
    CHECK(kymo_task_get(counted, "own:2", &value), 0);
    CHECK(value, 42);
    CHECK(kymo_group_get(counting, "own:15", &value), 0);
    CHECK(value, 1);
    CHECK(kymo_group_get(counting, "allocations", &value), 0);
    CHECK(value == KYMO_UNKNOWN, 1);
    CHECK(kymo_group_get(counting, "no-such", &value), KYMO_ECOUNTER);
    CHECK(kymo_group_get(counting, "own:2", NULL), KYMO_EARGUMENT);
    CHECK(kymo_group_new_counting("unknown", 0, "own:2,cycels"), 0);
    CHECK(strstr(kymo_last_error(), "there is no counter \"cycels\"") != NULL, 1);
    CHECK(kymo_group_new_counting("unknown", 0, "own:16"), 0);
    CHECK(kymo_task_exit(counted, NULL), 0);
    CHECK(kymo_group_free(counting), 0);

    /* Wrong use. */
    CHECK(kymo_task_switch(0, 987654321), KYMO_EUNKNOWN);
    CHECK(kymo_task_switch(fibers[1], 0), KYMO_ENOTHERE);
    CHECK(kymo_task_switch(0, fibers[1]), 0);
    CHECK(on_a_thread(wrong_thread, fibers[1]) == NULL, 1);
    CHECK(kymo_task_switch(0, fibers[0]), KYMO_EANOTHER);
    CHECK(kymo_task_switch(fibers[1], fibers[1]), KYMO_ERUNNING);
    CHECK(kymo_task_exit(fibers[1], &reading), 0);
    CHECK(kymo_task_exit(fibers[1], NULL), KYMO_EENDED);
    CHECK(kymo_task_switch(fibers[1], 0), KYMO_EENDED);
    CHECK(kymo_task_read(fibers[1], &reading), KYMO_EENDED);
    CHECK(strstr(kymo_last_error(), "has ended already") != NULL, 1);
    CHECK(on_a_thread(ends_while_running, fibers[0]) == NULL, 1);
    CHECK(kymo_task_switch(0, fibers[0]), KYMO_ETHREADENDED);
    CHECK(kymo_task_exit(fibers[0], NULL), 0);
    CHECK(kymo_task_exit(fibers[0], NULL), KYMO_EENDED);
    CHECK(kymo_group_new(NULL, 0), 0);
    CHECK(kymo_group_new("flags", 1u << 20), 0);
    CHECK(strstr(kymo_last_error(), "unknown flags") != NULL, 1);
    struct kymo_reading unsized_reading = {0};
    CHECK(kymo_group_read(group, &unsized_reading), KYMO_EARGUMENT);
    CHECK(kymo_group_read(group, NULL), KYMO_EARGUMENT);
    CHECK(kymo_group_free(group), 0);
    CHECK(kymo_group_free(group), KYMO_EUNKNOWN);
    CHECK(kymo_task_spawn(group, "late"), 0);
    puts("done");
    return 0;
}
