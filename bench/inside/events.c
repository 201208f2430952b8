// What a call costs whose event a probe writes: rounds of calls, as few as a ring holds, with
// pauses in which the recorder reads them. Waits for a line before each series; prints the least
// and the median.
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 41, CALLS = 10000, PAUSE_US = 60000 };

// With neighbours, so that it has room for a jump.
__attribute__((noinline, used)) int before(int x) { return x; }
__attribute__((noinline, noclone)) long work(long a, long b, long c) {
    __asm__ volatile("" ::: "memory");
    return a + b + c;
}
__attribute__((noinline, used)) int after(int x) { return x; }

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e9 + now.tv_nsec;
}

static int ascending(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return a < b ? -1 : a > b;
}

int main(void) {
    char line[8];
    while (puts("ready") >= 0 && fflush(stdout) == 0 && fgets(line, sizeof line, stdin)) {
        double rounds[ROUNDS];
        for (int round = 0; round < ROUNDS; round++) {
            long sum = 0;
            double begin = now_ns();
            for (long call = 0; call < CALLS; call++) sum += work(call, round, sum);
            rounds[round] = (now_ns() - begin) / CALLS;
            usleep(PAUSE_US);
        }
        qsort(rounds, ROUNDS, sizeof *rounds, ascending);
        printf("least %6.2f ns  median %6.2f ns\n", rounds[0], rounds[ROUNDS / 2]);
    }
    return 0;
}
