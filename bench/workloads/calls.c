// calls COUNT PRIORITY CPU...: on each of the CPUs a process that does nothing but make COUNT calls of getsid, which hardly anybody else
// makes; with a PRIORITY above 0 at that real-time priority (SCHED_FIFO), so that nothing of a lower one runs there meanwhile.
// Prints the time of a call, the average of all.
// Build: cc -O2 -g -fno-omit-frame-pointer calls.c -o calls
#define _GNU_SOURCE
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

__attribute__((noinline)) static void call_all(long count)
{
    for (long i = 0; i < count; i++)
        syscall(SYS_getsid, 0);
}

static int child(int cpu, int priority, long count, int go, long long *took)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) {
        perror("calls: sched_setaffinity");
        return 1;
    }
    char byte;
    if (read(go, &byte, 1) < 0) /* ends when all can begin */
        return 1;
    struct sched_param param = { .sched_priority = priority };
    if (priority > 0 && sched_setscheduler(0, SCHED_FIFO, &param)) {
        perror("calls: SCHED_FIFO");
        return 1;
    }
    long long begin = now_ns();
    call_all(count);
    *took = now_ns() - begin;
    return 0;
}

int main(int argc, char **argv)
{
    long count = argc > 1 ? atol(argv[1]) : 0;
    int priority = argc > 2 ? atoi(argv[2]) : 0, cpus = argc - 3;
    if (count <= 0 || cpus < 1) {
        fprintf(stderr, "usage: calls COUNT PRIORITY CPU...\n");
        return 2;
    }
    long long *took = mmap(0, cpus * sizeof *took, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int go[2];
    if (took == MAP_FAILED || pipe(go))
        return 1;
    for (int i = 0; i < cpus; i++) {
        pid_t pid = fork();
        if (pid < 0)
            return 1;
        if (pid == 0) {
            close(go[1]);
            _exit(child(atoi(argv[3 + i]), priority, count, go[0], &took[i]));
        }
    }
    close(go[1]);
    int status, bad = 0;
    while (wait(&status) > 0)
        bad |= status;
    double all = 0;
    for (int i = 0; i < cpus; i++)
        all += took[i];
    if (!bad)
        printf("%14.6f usecs/op\n", all / 1e3 / cpus / count);
    return bad != 0;
}
