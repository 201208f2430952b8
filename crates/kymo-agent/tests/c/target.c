/* Does as it is told: a number N on a line of stdin calls work() N times, on another thread every second time; -N in a forked child. Allocates all the while
 * on a further thread, so that who borrows a thread meets the allocator's locks. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) unsigned work(unsigned seed)
{
	unsigned sum = seed;
	for (unsigned i = 0; i < 7; i++)
		sum = sum * 31 + i;
	return sum;
}

/* Whoever listens to work() counts itself here. */
unsigned short listeners = 40;

static unsigned total;
static long times;

static void *call(void *unused)
{
	for (long i = 0; i < times; i++)
		total += work((unsigned)i);
	return unused;
}

static void *allocate(void *unused)
{
	for (;;) {
		void *some[8];
		for (int i = 0; i < 8; i++)
			some[i] = malloc(1 << (4 + i));
		for (int i = 0; i < 8; i++)
			free(some[i]);
		usleep(100);
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	char line[64];
	if (argc > 1 && !strcmp(argv[1], "allocate"))
		pthread_create(&thread, NULL, allocate, NULL);
	for (int turn = 0; fgets(line, sizeof line, stdin); turn++) {
		times = atol(line);
		total = 0;
		if (times < 0) {
			pid_t child = fork();
			times = -times;
			if (!child) {
				call(NULL);
				_exit(0);
			}
			waitpid(child, NULL, 0);
		} else if (turn % 2) {
			pthread_create(&thread, NULL, call, NULL);
			pthread_join(thread, NULL);
		} else {
			call(NULL);
		}
		printf("%u\n", total);
		fflush(stdout);
	}
	return 0;
}
