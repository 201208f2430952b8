/* Runs a program and writes into a file the nanoseconds from its fork to its end, and those of CPU time that it and
 * the children it waited for took.
 *
 *     timed FILE PROGRAM [ARGUMENT...]
 *
 * It stands between a recorder and the program, so that the measured time is the program's own and not the
 * recorder's start or the writing of its file.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static long long ns(struct timeval t)
{
	return t.tv_sec * 1000000000LL + t.tv_usec * 1000LL;
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: %s FILE PROGRAM [ARGUMENT...]\n", argv[0]);
		return 2;
	}
	long long begin = now_ns();
	pid_t child = fork();
	if (child < 0) {
		perror("fork");
		return 1;
	}
	if (child == 0) {
		execvp(argv[2], argv + 2);
		perror(argv[2]);
		_exit(127);
	}
	int status;
	struct rusage usage;
	if (wait4(child, &status, 0, &usage) < 0) {
		perror("wait4");
		return 1;
	}
	long long took = now_ns() - begin;
	FILE *file = fopen(argv[1], "w");
	if (!file || fprintf(file, "%lld %lld\n", took, ns(usage.ru_utime) + ns(usage.ru_stime)) < 0 || fclose(file)) {
		perror(argv[1]);
		return 1;
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
