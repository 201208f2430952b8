// locks MODE COUNT: what a lock costs, in nanoseconds for each turn, by the program's own clock.
//
//   pair       one thread takes a lock that is free, and gives it back: the fastest of 200 parts
//   call       one thread makes a system call that has nothing to do with locks: the same
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
enum { PARTS = 200 };

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
    if (strcmp(word[1], "contended")) {
        int is_pair = !strcmp(word[1], "pair");
        double least = 1e9;
        for (long part = 0; part < PARTS; part++) {
            double begun = now();
            for (long i = 0; i < count / PARTS; i++) {
                if (is_pair) {
                    pthread_mutex_lock(&lock);
                    pthread_mutex_unlock(&lock);
                } else {
                    syscall(SYS_getppid);
                }
            }
            double took = (now() - begun) / (double)(count / PARTS);
            if (took < least) least = took;
        }
        printf("%.2f ns\n", least);
        return 0;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    sched_setaffinity(0, sizeof one, &one);
    double begun = now();
    pthread_t other;
    pthread_create(&other, NULL, wants_lock, NULL);
    wants_lock(NULL);
    pthread_join(other, NULL);
    printf("%.2f ns\n", (now() - begun) / (double)count);
    return 0;
}
