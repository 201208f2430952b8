// writers THREADS WRITES [MS]: each thread writes a global so many times. With MS it sleeps first, to be attached to.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

long total;
long cells[4];
static int writes;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((noinline)) void bump(long by) {
    pthread_mutex_lock(&lock);
    *(volatile long *)&total += by;
    for (int i = 0; i < 4; i++)
        *(volatile long *)&cells[i] += by;
    pthread_mutex_unlock(&lock);
}

static void *body(void *nothing) {
    for (int i = 0; i < writes; i++) {
        bump(1);
        usleep(100);
    }
    return nothing;
}

int main(int argc, char **argv) {
    int threads = atoi(argv[1]);
    writes = atoi(argv[2]);
    if (argc > 3)
        usleep(atoi(argv[3]) * 1000);
    pthread_t thread[threads];
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], 0, body, 0);
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], 0);
    printf("writers: %d writes, total = %ld\n", threads * writes, total);
}
