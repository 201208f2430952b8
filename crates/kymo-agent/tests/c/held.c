/* Does as its first argument says, while probes come and go in it, until a byte comes on stdin; then says how it was.
 *   waits      a thread for each system call that waits: none may see that it was stopped
 *   makes      makes threads and processes in all ways, with all signals blocked
 *   handler    stands in a signal's handler that interrupted a function between its first instructions; "alternate": on another stack
 *   inside     stands inside of a function's first instructions nearly always
 *   many       two thousand threads that sleep, and two that call
 *   calls      calls getppid() as often as each line of stdin says
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

extern char **environ;
static volatile int done;

/* Where threads cannot be held, one that is about to wait may be asked by a signal where it stands, which ends this call once. */
static int byte_came(int wait)
{
	struct pollfd in = { 0, POLLIN, 0 };
	int came;
	do
		came = poll(&in, 1, wait);
	while (came < 0 && errno == EINTR);
	return came != 0;
}

/* The probed functions: the second instruction is where threads stand. */
__asm__(".text\n.globl faults\n.type faults,@function\nfaults:\n\tpush %rbx\n\tmov (%rdi),%eax\n\tlea 1(%rax),%ebx\n\tmov %ebx,%eax\n"
	"\tpop %rbx\n\tret\n.size faults,.-faults\n.p2align 4\n"
	".globl fills\n.type fills,@function\nfills:\n\tcld\n\trep stosb\n\tmov %rdi,%rax\n\tsub %rdx,%rax\n\tret\n.size fills,.-fills\n.p2align 4\n");
int faults(int *of);
/* The fourth argument is the count, in its register already. */
long fills(char *to, long byte, char *from, long count);

static void fail(const char *what)
{
	printf("disturbed: %s: %s\n", what, strerror(errno));
	fflush(stdout);
	_exit(1);
}

/* ---- waits ---- */
static int sets;
static int futex_word;

static void *in_epoll(void *unused)
{
	int set = epoll_create1(0), ends[2];
	struct epoll_event event = { EPOLLIN, { 0 } };
	if (pipe(ends) == 0)
		epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event);
	for (;;)
		if (epoll_wait(set, &event, 1, -1) < 0)
			fail("epoll_wait");
	return unused;
}

static void *in_nanosleep(void *unused)
{
	struct timespec some = { 0, 3000000 };
	for (;;)
		if (nanosleep(&some, NULL) != 0)
			fail("nanosleep");
	return unused;
}

static void *in_futex(void *unused)
{
	for (;;)
		if (syscall(SYS_futex, &futex_word, FUTEX_WAIT, 0, NULL, NULL, 0) != 0)
			fail("futex");
	return unused;
}

static void *in_read(void *unused)
{
	int ends[2];
	char byte;
	if (pipe(ends) == 0 && read(ends[0], &byte, 1) != 1)
		fail("read");
	return unused;
}

static void *in_semop(void *unused)
{
	struct sembuf take = { 0, -1, 0 };
	if (semop(sets, &take, 1) != 0 && !done)
		fail("semop");
	return unused;
}

static void *in_accept(void *timeout)
{
	struct sockaddr_in here = { AF_INET, 0, { htonl(INADDR_LOOPBACK) }, { 0 } };
	struct timeval limit = { 1000, 0 };
	int socket_ = socket(AF_INET, SOCK_STREAM, 0);
	if (bind(socket_, (struct sockaddr *)&here, sizeof here) != 0 || listen(socket_, 1) != 0)
		return NULL;
	if (timeout)
		setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	if (accept(socket_, NULL, NULL) < 0)
		fail(timeout ? "accept with a time limit" : "accept");
	return NULL;
}

static void *in_sigtimedwait(void *unused)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	struct timespec limit = { 1000, 0 };
	if (sigtimedwait(&set, NULL, &limit) < 0)
		fail("sigtimedwait");
	return unused;
}

static void *in_select(void *unused)
{
	if (select(0, NULL, NULL, NULL, NULL) < 0)
		fail("select");
	return unused;
}

static int waits(void)
{
	typedef void *body(void *);
	static body *const bodies[] = { in_epoll, in_nanosleep, in_futex, in_read, in_semop, in_accept, in_sigtimedwait, in_select };
	pthread_t thread;
	sets = semget(IPC_PRIVATE, 1, 0600);
	for (unsigned i = 0; i < sizeof bodies / sizeof *bodies; i++)
		pthread_create(&thread, NULL, bodies[i], NULL);
	pthread_create(&thread, NULL, in_accept, &futex_word);
	puts("here");
	fflush(stdout);
	struct pollfd in = { 0, POLLIN, 0 };
	if (poll(&in, 1, -1) != 1)
		fail("poll");
	done = 1;
	semctl(sets, 0, IPC_RMID);
	return 1;
}

/* ---- makes ---- */
static void *nothing(void *unused)
{
	return unused;
}

static void *spawns(void *unused)
{
	while (!done) {
		char *const arguments[] = { "true", NULL };
		pid_t pid;
		int status = 0;
		int error = posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environ);
		if (error != 0 || waitpid(pid, &status, 0) != pid || status != 0) {
			errno = error;
			printf("spawned %d status %x\n", (int)pid, status);
			fail("posix_spawn");
		}
	}
	return unused;
}

static int makes(void)
{
	sigset_t all;
	pthread_t other, spawner;
	/* Around the C library, as a runtime of its own would: traps, too. */
	unsigned long every = ~0UL;
	sigfillset(&all);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &every, NULL, 8);
	puts("here");
	fflush(stdout);
	pthread_create(&spawner, NULL, spawns, NULL);
	while (!byte_came(0)) {
		int status = 0;
		if (pthread_create(&other, NULL, nothing, NULL) != 0 || pthread_join(other, NULL) != 0)
			fail("pthread_create");
		pid_t pid = fork();
		if (pid == 0)
			_exit(7);
		if (waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 7) {
			printf("forked %d status %x\n", (int)pid, status);
			fail("fork");
		}
		syscall(SYS_rt_sigprocmask, SIG_SETMASK, &every, NULL, 8);
	}
	done = 1;
	pthread_join(spawner, NULL);
	return 1;
}

/* ---- handler ---- */
static int value = 41;

static void handler(int signal, siginfo_t *info, void *context)
{
	ucontext_t *interrupted = context;
	(void)signal, (void)info;
	if (write(1, "here\n", 5) != 5)
		_exit(2);
	char byte;
	if (read(0, &byte, 1) != 1)
		_exit(3);
	interrupted->uc_mcontext.gregs[REG_RDI] = (long)&value;
}

static int in_handler(int alternate)
{
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | (alternate ? SA_ONSTACK : 0) };
	static char other[1 << 16];
	stack_t stack = { .ss_sp = other, .ss_size = sizeof other };
	/* What others left on the stack is not to be taken for who calls. */
	volatile char clean[8 << 10];
	for (unsigned i = 0; i < sizeof clean; i++)
		clean[i] = 0;
	sigaltstack(&stack, NULL);
	sigaction(SIGSEGV, &action, NULL);
	return faults((int *)8) == 42;
}

/* ---- inside ---- */
static void *fill(void *memory)
{
	while (!done)
		if (fills(memory, 1, memory, 1 << 20) != 1 << 20)
			fail("fills");
	return NULL;
}

static int inside(void)
{
	pthread_t thread;
	pthread_create(&thread, NULL, fill, malloc(1 << 20));
	puts("here");
	fflush(stdout);
	byte_came(-1);
	done = 1;
	return pthread_join(thread, NULL) == 0;
}

/* ---- many ---- */
static void *sleeps(void *unused)
{
	for (;;)
		pause();
	return unused;
}

static void *asks(void *unused)
{
	while (!done)
		if (getppid() <= 0)
			fail("getppid");
	return unused;
}

static int many(void)
{
	pthread_attr_t small;
	pthread_t thread, busy[2];
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (int i = 0; i < 2000; i++)
		if (pthread_create(&thread, &small, sleeps, NULL) != 0)
			fail("pthread_create");
	for (int i = 0; i < 2; i++)
		pthread_create(&busy[i], NULL, asks, NULL);
	puts("here");
	fflush(stdout);
	byte_came(-1);
	done = 1;
	return pthread_join(busy[0], NULL) == 0 && pthread_join(busy[1], NULL) == 0;
}

/* ---- calls ---- */
static int calls(void)
{
	char line[32];
	puts("here");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin) && *line != 'x') {
		for (long i = atol(line); i > 0; i--)
			(void)getppid();
		puts("called");
		fflush(stdout);
	}
	return 1;
}

int main(int argc, char **argv)
{
	const char *how = argc > 1 ? argv[1] : "calls";
	int well = !strcmp(how, "waits")       ? waits()
		   : !strcmp(how, "makes")     ? makes()
		   : !strcmp(how, "handler")   ? in_handler(0)
		   : !strcmp(how, "alternate") ? in_handler(1)
		   : !strcmp(how, "inside")    ? inside()
		   : !strcmp(how, "many")      ? many()
					       : calls();
	printf("%s\n", well ? "ok" : "wrong");
	fflush(stdout);
	/* Threads that wait go with the process. */
	_exit(!well);
}
