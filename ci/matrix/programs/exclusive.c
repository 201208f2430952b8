// exclusive THREADS ADDITIONS: each thread adds to a global so many times, on aarch64 by exclusive
// loads and stores.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

long total;
static int additions;

__attribute__((noinline)) void add_one(void) {
#ifdef __aarch64__
    long value;
    int failed;
    do {
        __asm__ volatile("ldxr %0, [%2]\n\tadd %0, %0, #1\n\tstxr %w1, %0, [%2]"
                         : "=&r"(value), "=&r"(failed)
                         : "r"(&total)
                         : "memory");
    } while (failed);
#else
    __atomic_fetch_add(&total, 1, __ATOMIC_SEQ_CST);
#endif
}

static void *body(void *nothing) {
    for (int i = 0; i < additions; i++)
        add_one();
    return nothing;
}

int main(int argc, char **argv) {
    int threads = atoi(argv[1]);
    additions = atoi(argv[2]);
    pthread_t thread[threads];
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], 0, body, 0);
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], 0);
    printf("total = %ld\n", total);
}
