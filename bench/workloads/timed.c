/* Runs a program and writes the nanoseconds from its fork to its end into a file.
 *
 *     timed FILE PROGRAM [ARGUMENT...]
 *
 * It stands between a recorder and the program, so that the measured time is the program's own and not the
 * recorder's start or the writing of its file.
 */
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
	if (waitpid(child, &status, 0) < 0) {
		perror("waitpid");
		return 1;
	}
	long long took = now_ns() - begin;
	FILE *file = fopen(argv[1], "w");
	if (!file || fprintf(file, "%lld\n", took) < 0 || fclose(file)) {
		perror(argv[1]);
		return 1;
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
