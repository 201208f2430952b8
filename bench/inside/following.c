// following MODE command...: what it costs to be told of each program that a command executes,
// before its first instruction.
//   bare      nothing
//   trace     PTRACE_SEIZE for good: followed at fork, vfork, clone and exec
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static long execs, stops;
static int pause_pipe[2];
static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}
static pid_t begin(char **argv)
{
	if (pipe(pause_pipe))
		exit(9);
	pid_t pid = fork();
	if (pid)
		return pid;
	char c;
	close(pause_pipe[1]);
	if (read(pause_pipe[0], &c, 1)) {
	}
	close(pause_pipe[0]);
	execvp(argv[0], argv);
	_exit(127);
}
static void go(void)
{
	close(pause_pipe[0]);
	close(pause_pipe[1]);
}
static int trace(char **argv)
{
	pid_t first = begin(argv);
	long options =
	    PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC;
	if (ptrace(PTRACE_SEIZE, first, 0, options)) {
		perror("seize");
		return 9;
	}
	go();
	int status, code = 0;
	for (;;) {
		pid_t pid = waitpid(-1, &status, __WALL);
		if (pid < 0)
			return code;
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (pid == first)
				code = WEXITSTATUS(status);
			continue;
		}
		stops++;
		int event = status >> 16, signal = WSTOPSIG(status);
		if (event == PTRACE_EVENT_EXEC)
			execs++;
		if (event == PTRACE_EVENT_STOP && (signal == SIGSTOP || signal == SIGTSTP ||
						   signal == SIGTTIN || signal == SIGTTOU))
			ptrace(PTRACE_LISTEN, pid, 0, 0);
		else
			ptrace(PTRACE_CONT, pid, 0, event ? 0 : signal);
	}
}
int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	double since = now();
	int code, status;
	if (!strcmp(argv[1], "trace"))
		code = trace(argv + 2);
	else {
		pid_t pid = begin(argv + 2);
		go();
		waitpid(pid, &status, 0);
		code = WEXITSTATUS(status);
	}
	fprintf(stderr, "%-7s %.3f s, status %d, %ld programs, %ld stops\n", argv[1], now() - since,
		code, execs, stops);
	return code;
}
