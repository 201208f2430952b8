/* Three processes, one after another, with one process number. Prints the number. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile unsigned long x;

static void work(const char *name)
{
    prctl(PR_SET_NAME, name);
    for (long i = 0; i < 100000000; i++)
        x += i;
    _exit(0);
}

int main(void)
{
    const char *names[] = {"again-1", "again-2", "again-3"};
    pid_t pid = fork();
    if (pid == 0)
        work(names[0]);
    waitpid(pid, NULL, 0);
    for (int n = 1; n < 3; n++) {
        struct clone_args args;
        memset(&args, 0, sizeof args);
        args.exit_signal = SIGCHLD;
        args.set_tid = (uintptr_t)&pid;
        args.set_tid_size = 1;
        pid_t child = syscall(SYS_clone3, &args, sizeof args);
        if (child == 0)
            work(names[n]);
        if (child != pid)
            return 77;
        waitpid(child, NULL, 0);
    }
    printf("%d\n", pid);
    return 0;
}
