// crowd THREADS ROUNDS: so many threads that all compute, each ROUNDS times a fixed piece of work at the end of a chain of calls. Prints
// the time of all from the first thread's creation to the last one's end, divided by the number of pieces.
// Build: cc -O2 -g -fno-omit-frame-pointer -pthread crowd.c -o crowd
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static long rounds;

__attribute__((noinline)) static unsigned long work(unsigned long seed)
{
    for (int i = 0; i < 20000; i++)
        seed = seed * 6364136223846793005UL + 1442695040888963407UL;
    return seed;
}

__attribute__((noinline)) static unsigned long down(int depth, unsigned long seed)
{
    unsigned long below = depth > 0 ? down(depth - 1, seed) : work(seed);
    __asm__ volatile("" : "+r"(below)); /* the call is not the last thing done here */
    return below + depth;
}

static void *run(void *argument)
{
    unsigned long seed = (unsigned long)argument;
    for (long i = 0; i < rounds; i++)
        seed = down(10, seed);
    return (void *)seed;
}

int main(int argc, char **argv)
{
    long threads = argc > 1 ? atol(argv[1]) : 0;
    rounds = argc > 2 ? atol(argv[2]) : 0;
    if (threads <= 0 || rounds <= 0) {
        fprintf(stderr, "usage: crowd THREADS ROUNDS\n");
        return 2;
    }
    pthread_t *all = calloc(threads, sizeof *all);
    if (!all)
        return 1;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (long i = 0; i < threads; i++) {
        int failed = pthread_create(&all[i], &small, run, (void *)i);
        if (failed) {
            fprintf(stderr, "crowd: thread %ld of %ld: %s\n", i + 1, threads, strerror(failed));
            return 1;
        }
    }
    for (long i = 0; i < threads; i++)
        pthread_join(all[i], 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    double us = (end.tv_sec - begin.tv_sec) * 1e6 + (end.tv_nsec - begin.tv_nsec) / 1e3;
    printf("%14.6f usecs/op\n", us / ((double)threads * rounds));
    return 0;
}
