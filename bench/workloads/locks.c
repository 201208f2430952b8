// locks MODE COUNT: what a lock costs, in nanoseconds for each turn, by the program's own clock.
//
//   pair       one thread takes a lock that is free, and gives it back
//   call       one thread makes a system call that has nothing to do with locks
//   contended  two threads on one CPU take turns with a lock that the other wants: each turn is a wait
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long count;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

// The other thread gets the CPU while this one has the lock, so that it wants it.
static void *wants_lock(void *unused) {
    for (long i = 0; i < count; i++) {
        pthread_mutex_lock(&lock);
        sched_yield();
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

int main(int words, char **word) {
    if (words != 3) return 2;
    count = atol(word[2]);
    double begun = now();
    if (!strcmp(word[1], "pair")) {
        for (long i = 0; i < count; i++) {
            pthread_mutex_lock(&lock);
            pthread_mutex_unlock(&lock);
        }
    } else if (!strcmp(word[1], "call")) {
        for (long i = 0; i < count; i++) syscall(SYS_getppid);
    } else {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(sched_getcpu(), &one);
        sched_setaffinity(0, sizeof one, &one);
        pthread_t other;
        pthread_create(&other, NULL, wants_lock, NULL);
        wants_lock(NULL);
        pthread_join(other, NULL);
    }
    printf("%.2f ns\n", (now() - begun) / (double)count);
    return 0;
}
