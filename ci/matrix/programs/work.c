// work THREADS ROUNDS [MS]: each thread computes, and calls tick ROUNDS times. With MS it sleeps first, to be attached to.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

volatile long counter, sink;
static long rounds;

__attribute__((noinline)) long inner(long n) {
    long sum = 0;
    for (long i = 0; i < n; i++)
        sum += i ^ (sum << 1);
    sink = sum;
    return sum;
}

__attribute__((noinline)) long heavy(long n) {
    return inner(3 * n) + 1;
}

__attribute__((noinline)) long light(long n) {
    return inner(n) + 2;
}

__attribute__((noinline)) long tick(long n) {
    counter = n;
    return n + sink;
}

__attribute__((noinline)) void *body(void *start) {
    long sum = (long)start;
    for (long i = 0; i < rounds; i++) {
        sum += heavy(20000);
        sum += light(20000);
        sum += tick(i);
    }
    return (void *)sum;
}

int main(int argc, char **argv) {
    int threads = atoi(argv[1]);
    rounds = atol(argv[2]);
    if (argc > 3)
        usleep(atoi(argv[3]) * 1000);
    pthread_t thread[threads];
    for (int i = 1; i < threads; i++)
        pthread_create(&thread[i], 0, body, 0);
    body(0);
    for (int i = 1; i < threads; i++)
        pthread_join(thread[i], 0);
    printf("work: %ld calls of tick\n", threads * rounds);
}
