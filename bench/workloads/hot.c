/* Calls one small function as often as it can for a while, and says what a call took and how many there were.
 *
 *     hot SECONDS THREADS [wait]
 *
 * With `wait` it says "ready" and begins when a line comes, so that a tracer can attach first, and ends with its standard input. Each thread runs on a CPU of its own.
 * With -DLTTNG the function has an event of LTTng-UST compiled in, with the argument as its field. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef LTTNG
#define LTTNG_UST_TRACEPOINT_DEFINE
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#include "hot_event.h"
#endif

static double seconds;

__attribute__((noinline, noclone)) uint64_t hot(uint64_t number)
{
#ifdef __x86_64__
    /* So that it begins with a push, as most functions do: the kernel's uprobes emulate that, and single-step what they do not know, which takes
     * far longer. */
    asm volatile("" ::: "rbx");
#endif
#ifdef LTTNG
    lttng_ust_tracepoint(kymo_hot, call, number);
#endif
    number ^= number << 13;
    number ^= number >> 7;
    number ^= number << 17;
    return number;
}

struct work {
    pthread_t thread;
    int cpu;
    uint64_t calls, number;
    double ns;
};

static uint64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

__attribute__((no_instrument_function)) static void *run(void *given)
{
    struct work *work = given;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(work->cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    uint64_t begun = now_ns(), end = begun + (uint64_t)(seconds * 1e9), time, number = 88172645463325252ull;
    do {
        for (int i = 0; i < 1000; i++)
            number = hot(number);
        work->calls += 1000;
    } while ((time = now_ns()) < end);
    work->number = number;
    work->ns = time - begun;
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    seconds = atof(argv[1]);
    int threads = atoi(argv[2]);
    if (threads < 1 || threads > 1024 || !(seconds > 0))
        return 2;
    if (argc > 3 && !strcmp(argv[3], "wait")) {
        puts("ready");
        fflush(stdout);
        for (int c; (c = getchar()) != '\n';)
            if (c == EOF)
                return 1;
    }
    cpu_set_t mine;
    sched_getaffinity(0, sizeof mine, &mine);
    struct work *works = calloc(threads, sizeof *works);
    int cpu = -1;
    for (int i = 0; i < threads; i++) {
        do
            cpu = (cpu + 1) % CPU_SETSIZE;
        while (!CPU_ISSET(cpu, &mine));
        works[i].cpu = cpu;
        if (pthread_create(&works[i].thread, NULL, run, &works[i]))
            return 1;
    }
    uint64_t calls = 0, mixed = 0;
    double per_call = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(works[i].thread, NULL);
        calls += works[i].calls;
        mixed ^= works[i].number;
        per_call += works[i].ns / works[i].calls / threads;
    }
    printf("{\"calls\": %llu, \"ns_per_call\": %.3f, \"number\": %llu}\n", (unsigned long long)calls, per_call,
           (unsigned long long)mixed);
    fflush(stdout);
    /* Until who waits for it has looked at what a tool left here. */
    if (argc > 3)
        while (getchar() != EOF)
            ;
    return 0;
}
