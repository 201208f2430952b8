// forks COUNT PER_SECOND: makes COUNT children, so many a second as long as that can be kept up; each child calls a few functions deep
// and ends. Prints how long a child took from fork to wait, on average, and how many there really were a second.
// Build: cc -O2 -g -fno-omit-frame-pointer forks.c -o forks
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static volatile unsigned long sink;

__attribute__((noinline)) static unsigned long down(int depth)
{
    unsigned long below = depth > 0 ? down(depth - 1) : 1;
    sink += below;
    return below + depth;
}

int main(int argc, char **argv)
{
    long count = argc > 1 ? atol(argv[1]) : 0;
    long rate = argc > 2 ? atol(argv[2]) : 0;
    if (count <= 0 || rate <= 0) {
        fprintf(stderr, "usage: forks COUNT PER_SECOND\n");
        return 2;
    }
    long long begin = now_ns(), busy = 0;
    for (long i = 0; i < count; i++) {
        long long due = begin + i * 1000000000LL / rate, from = now_ns();
        if (from < due) {
            struct timespec until = { due / 1000000000LL, due % 1000000000LL };
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0);
            from = now_ns();
        }
        pid_t child = fork();
        if (child < 0) {
            perror("forks: fork");
            return 1;
        }
        if (child == 0)
            _exit(down(8) ? 0 : 1);
        int status;
        if (waitpid(child, &status, 0) != child || status != 0) {
            fprintf(stderr, "forks: a child failed\n");
            return 1;
        }
        busy += now_ns() - from;
    }
    double took = (now_ns() - begin) / 1e9;
    printf("%14.6f usecs/op\n%14.0f ops/sec\n", busy / 1e3 / count, count / took);
    return 0;
}
