// counts THREADS: ns of a counted call, by how the counter is chosen and raised; median of the
// rounds of all threads. Pinned.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/rseq.h>
#include <time.h>
#define CALLS 200000
#define ROUNDS 41
__attribute__((used)) static unsigned long shared[64] __attribute__((aligned(64)));
__attribute__((used)) static unsigned long *table[4096];
__attribute__((used)) static long offset;
#define STUB(name, body)                                                                           \
	__attribute__((naked, noinline)) static long name(long x)                                  \
	{                                                                                          \
		__asm__ volatile(body "lea 1(%rdi),%rax\n ret\n");                                 \
	}
#define KEEP "lea -144(%rsp),%rsp\n mov %rax,(%rsp)\n mov %rcx,8(%rsp)\n"
#define BACK "mov (%rsp),%rax\n mov 8(%rsp),%rcx\n lea 144(%rsp),%rsp\n"
#define FLAGS "lahf\n seto %al\n"
#define UNFLAGS "add $127,%al\n sahf\n"
STUB(bare, "")
STUB(locked, KEEP FLAGS "lock incq shared(%rip)\n" UNFLAGS BACK)
// As kymo's restartable sequence: writes rseq_cs, reads cpu_id_start, table, word += 1.
STUB(sequence,
     KEEP "again: mov offset(%rip),%rcx\n lea descriptor(%rip),%rax\n mov %rax,%fs:8(%rcx)\n"
	  "begin: mov %fs:(%rcx),%eax\n lea table(%rip),%rcx\n mov (%rcx,%rax,8),%rcx\n jrcxz 1f\n"
	  "mov (%rcx),%rax\n lea 1(%rax),%rax\n mov %rax,(%rcx)\n end: 1:\n" BACK)
__asm__(".pushsection .data\n .balign 32\n descriptor: .long 0,0\n .quad begin, end-begin, abort\n "
	".popsection\n .pushsection .text\n .long 0x53053053\n abort: jmp again\n .popsection\n");
STUB(area, KEEP FLAGS
     "mov %rax,16(%rsp)\n mov offset(%rip),%rcx\n mov %fs:(%rcx),%ecx\n lea table(%rip),%rax\n mov "
     "(%rax,%rcx,8),%rcx\n lock incq (%rcx)\n mov 16(%rsp),%rax\n" UNFLAGS BACK)
STUB(
    segment, KEEP FLAGS
    "mov %rax,16(%rsp)\n mov $0x7b,%ecx\n lsl %ecx,%ecx\n and $0xfff,%ecx\n lea table(%rip),%rax\n "
    "mov (%rax,%rcx,8),%rcx\n lock incq (%rcx)\n mov 16(%rsp),%rax\n" UNFLAGS BACK)
STUB(rdpid,
     KEEP FLAGS "mov %rax,16(%rsp)\n rdpid %rcx\n and $0xfff,%ecx\n lea table(%rip),%rax\n mov "
		"(%rax,%rcx,8),%rcx\n lock incq (%rcx)\n mov 16(%rsp),%rax\n" UNFLAGS BACK)
static struct {
	const char *name;
	long (*call)(long);
} ways[] = {{"bare", bare},
	    {"locked, one word", locked},
	    {"restartable sequence", sequence},
	    {"locked, CPU of rseq", area},
	    {"locked, CPU by lsl", segment},
	    {"locked, CPU by rdpid", rdpid}};
#define WAYS (sizeof ways / sizeof *ways)
static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}
static int threads;
static pthread_barrier_t gate;
static double took[64][WAYS][ROUNDS];
static void *run(void *number)
{
	long me = (long)number;
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(me % 2, &set);
	sched_setaffinity(0, sizeof set, &set);
	for (int round = 0; round < ROUNDS; round++)
		for (unsigned way = 0; way < WAYS; way++) {
			pthread_barrier_wait(&gate);
			double since = now();
			volatile long sink = 0;
			long (*call)(long) = ways[way].call;
			for (int i = 0; i < CALLS; i++)
				sink = call(i);
			took[me][way][round] = (now() - since) / CALLS;
		}
	return NULL;
}
static int order(const void *a, const void *b)
{
	double x = *(double *)a, y = *(double *)b;
	return (x > y) - (x < y);
}
int main(int argc, char **argv)
{
	threads = argc > 1 ? atoi(argv[1]) : 1;
	offset = __rseq_offset;
	for (int cpu = 0; cpu < 4096; cpu++) {
		table[cpu] =
		    cpu < 8 ? mmap(0, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : table[0];
	}
	pthread_barrier_init(&gate, 0, threads);
	pthread_t all[64];
	for (long t = 0; t < threads; t++)
		pthread_create(&all[t], 0, run, (void *)t);
	for (int t = 0; t < threads; t++)
		pthread_join(all[t], 0);
	for (unsigned way = 0; way < WAYS; way++) {
		static double flat[64 * ROUNDS];
		int n = 0;
		for (int t = 0; t < threads; t++)
			for (int r = 0; r < ROUNDS; r++)
				flat[n++] = took[t][way][r];
		qsort(flat, n, sizeof *flat, order);
		printf("%d threads  %-22s median %6.2f ns  fastest %6.2f ns\n", threads,
		       ways[way].name, flat[n / 2], flat[0]);
	}
}
