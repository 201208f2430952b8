// children N: so many children, one after the other, each of which computes; every second one by an exec.
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

volatile long sink;

__attribute__((noinline)) void child_work(void) {
    long sum = 0;
    for (long i = 0; i < 400000; i++)
        sum += i * sum + 1;
    sink = sum;
}

int main(int argc, char **argv) {
    if (argc > 2) {
        child_work();
        return 0;
    }
    int children = atoi(argv[1]);
    for (int i = 0; i < children; i++) {
        pid_t child = fork();
        if (child == 0) {
            if (i % 2)
                execl("/proc/self/exe", "children", "1", "child", NULL);
            child_work();
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
    printf("children: %d\n", children);
}
