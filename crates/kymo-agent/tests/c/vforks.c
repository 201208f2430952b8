/* A child of vfork that changes the handler of traps, as programs do that give all signals back to their children. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void own_handler(int signal)
{
	(void)signal;
}

long probed(long number, long unused)
{
	(void)unused;
	return number + 1;
}

/* Whether the parent's handler is the parent's afterwards. `how`: what the child puts there: 0 the default, 1 nobody, 2 a handler. */
long child_changes_traps(long how, long unused)
{
	struct sigaction own = { .sa_handler = own_handler }, before, after;
	(void)unused;
	if (sigaction(SIGILL, &own, &before) != 0)
		return -1;
	pid_t child = vfork();
	if (child == 0) {
		struct sigaction other = { .sa_handler = how == 0 ? SIG_DFL : how == 1 ? SIG_IGN : (void (*)(int))_exit };
		_exit(sigaction(SIGILL, &other, NULL) != 0 || probed(1, 0) != 2);
	}
	int status = -1;
	if (waitpid(child, &status, 0) != child || status != 0)
		return -2;
	if (sigaction(SIGILL, &before, &after) != 0)
		return -3;
	return after.sa_handler == own_handler;
}
