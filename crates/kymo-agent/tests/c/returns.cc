// Functions whose calls do not all end with a plain return, for tests of probes that look at returns.
#include <alloca.h>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <pthread.h>
#include <stdexcept>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define C extern "C" __attribute__((noinline, noclone))

static volatile int sink;

// n + 1; n is odd: by an exception from as many frames below
C int throws(int n, int depth)
{
    struct Guard {
        ~Guard() { sink = sink + 1; }
    } guard;
    if (depth == 0) {
        if (n % 2)
            throw std::runtime_error("odd");
        return n + 1;
    }
    return throws(n, depth - 1);
}

C int catches(int n, int depth)
{
    try {
        return throws(n, depth);
    } catch (const std::runtime_error &error) {
        return strcmp(error.what(), "odd") == 0 ? n + 1 : -1;
    }
}

static sigjmp_buf target;

C int jumps(int n, int depth)
{
    volatile int here = n;
    if (depth == 0) {
        if (n % 2)
            siglongjmp(target, n + 1);
        return here + 1;
    }
    return jumps(here, depth - 1) + sink - sink;
}

// n + 1; n is odd: by a longjmp over as many frames
C int lands(int n, int depth)
{
    int back = sigsetjmp(target, 0);
    if (back)
        return back;
    return jumps(n, depth);
}

// depth, by as many nested calls
C int recurses(int depth, int)
{
    volatile int here = depth;
    return here == 0 ? 0 : recurses(here - 1, 0) + 1;
}

C int leaf(int n, int)
{
    return n + 1 + sink - sink;
}

// n + 1, by a tail call
C int tail(int n, int unused)
{
    sink = sink + 1;
    return leaf(n, unused);
}

static volatile int signals;

C void on_signal(int)
{
    signals = signals + (leaf(1, 0) == 2);
}

C int interrupted(int n, int)
{
    raise(SIGUSR1);
    return n + 1;
}

// n signals, on a stack of their own, whose handler calls leaf(): how many came
C int storms(int n, int)
{
    static char stack[65536];
    stack_t own = {}, before = {};
    own.ss_sp = stack;
    own.ss_size = sizeof stack;
    sigaltstack(&own, &before);
    struct sigaction action = {}, old = {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR1, &action, &old);
    signals = 0;
    for (int i = 0; i < n; i++)
        if (interrupted(i, 0) != i + 1)
            return -1;
    sigaction(SIGUSR1, &old, nullptr);
    sigaltstack(&before, nullptr);
    return signals;
}

C int waits_for_child(int n, int);

// The child returns through the same frames as the parent: n + 1 from both
C int forks(int n, int)
{
    pid_t child = fork();
    if (child == 0)
        return -(n + 1);
    int status = 0;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status))
        return 0;
    return WEXITSTATUS(status) == (n + 1) % 100 ? n + 1 : 0;
}

C int forks_below(int n, int)
{
    int result = forks(n, 0);
    if (result < 0)
        _exit(-result % 100);
    return result;
}

static ucontext_t main_context, task_context[2];
static int steps;

C int yields(int task, int)
{
    swapcontext(&task_context[task], &main_context);
    return task + 1;
}

C void task(int number)
{
    for (int i = 0; i < 10; i++)
        steps += yields(number, 0) == number + 1;
}

// Two coroutines in turns, each 10 times inside yields(): 20
C int coroutines(int, int)
{
    static char stacks[2][65536];
    steps = 0;
    for (int i = 0; i < 2; i++) {
        getcontext(&task_context[i]);
        task_context[i].uc_stack.ss_sp = stacks[i];
        task_context[i].uc_stack.ss_size = sizeof stacks[i];
        task_context[i].uc_link = &main_context;
        makecontext(&task_context[i], (void (*)())task, 1, i);
    }
    for (int round = 0; round < 11; round++)
        for (int i = 0; i < 2; i++)
            swapcontext(&main_context, &task_context[i]);
    return steps;
}

C void *starts(void *)
{
    swapcontext(&main_context, &task_context[0]);
    return nullptr;
}

C void travels(int number)
{
    steps = yields(number, 0);
}

// A coroutine begins on one thread and returns on another: 1
C int migrates(int, int)
{
    static char stack[65536];
    steps = 0;
    getcontext(&task_context[0]);
    task_context[0].uc_stack.ss_sp = stack;
    task_context[0].uc_stack.ss_size = sizeof stack;
    task_context[0].uc_link = &main_context;
    makecontext(&task_context[0], (void (*)())travels, 1, 0);
    pthread_t thread;
    pthread_create(&thread, nullptr, starts, nullptr);
    pthread_join(thread, nullptr);
    swapcontext(&main_context, &task_context[0]);
    return steps;
}

struct Outlived {
    ucontext_t main, own;
    char stack[32768];
};

C int waits(Outlived *own, int n)
{
    swapcontext(&own->own, &own->main);
    return n + 1;
}

C void outlived(unsigned low, unsigned high)
{
    Outlived *own = (Outlived *)((uintptr_t)low | (uintptr_t)high << 32);
    int right = waits(own, 7) == 8;
    steps += right;
}

C void *begins(void *argument)
{
    Outlived *own = (Outlived *)argument;
    swapcontext(&own->main, &own->own);
    return nullptr;
}

// n coroutines, each of which begins on a thread that ends; then all go on here: n
C int outlives(int n, int)
{
    Outlived *all = new Outlived[n];
    steps = 0;
    for (int i = 0; i < n; i++) {
        Outlived *own = all + i;
        getcontext(&own->own);
        own->own.uc_stack.ss_sp = own->stack;
        own->own.uc_stack.ss_size = sizeof own->stack;
        own->own.uc_link = &own->main;
        makecontext(&own->own, (void (*)())outlived, 2, (unsigned)(uintptr_t)own, (unsigned)((uintptr_t)own >> 32));
        pthread_t thread;
        pthread_create(&thread, nullptr, begins, own);
        pthread_join(thread, nullptr);
    }
    for (int i = 0; i < n; i++)
        swapcontext(&all[i].main, &all[i].own);
    delete[] all;
    return steps;
}

C int ends_thread(int n, int)
{
    if (n)
        pthread_exit((void *)(intptr_t)n);
    return 0;
}

C void *thread_body(void *n)
{
    struct Guard {
        ~Guard() { sink = sink + 1; }
    } guard;
    ends_thread((int)(intptr_t)n, 0);
    return nullptr;
}

// n + 1, from a thread that ends inside a function
C int exits(int n, int)
{
    pthread_t thread;
    void *result = nullptr;
    pthread_create(&thread, nullptr, thread_body, (void *)(intptr_t)(n + 1));
    pthread_join(thread, &result);
    return (int)(intptr_t)result;
}

// The callback may panic.
C int calls_back(int (*callback)(int), int n)
{
    return callback(n) + sink - sink;
}

struct Big {
    double a, b;
};

// A return in two vector registers, and of a long double
C Big halves(double n)
{
    return Big{n / 2, n / 2 + sink - sink};
}

C long double extended(double n)
{
    return (long double)n + sink - sink;
}

// 1 if all kinds of values come back whole
C int values(int n, int)
{
    Big big = halves(n);
    return big.a + big.b == n && extended(n) == n;
}

// Blocks all signals in this thread, as often as asked, while it calls leaf(): 1 if each mask is put back as it was
C int blocks_all(int n, int)
{
    sigset_t all, before, after;
    sigfillset(&all);
    for (int i = 0; i < n; i++) {
        if (pthread_sigmask(SIG_BLOCK, &all, &before) != 0 || leaf(i, 0) != i + 1)
            return 0;
        if (i % 2 ? sigprocmask(SIG_SETMASK, &before, nullptr) : pthread_sigmask(SIG_SETMASK, &before, nullptr))
            return 0;
        if (pthread_sigmask(SIG_BLOCK, nullptr, &after) != 0)
            return 0;
        if (sigismember(&after, SIGUSR2) != sigismember(&before, SIGUSR2))
            return 0;
    }
    return pthread_sigmask(99, &all, nullptr) != 0;
}

// Throws, from a frame that two callers of the same size have below them
C int throws_alone(int n, int)
{
    if (n % 2)
        throw std::runtime_error("odd");
    return n + 1;
}

C int passes(int n, int)
{
    volatile char room[4096];
    room[0] = room[4095] = 1;
    return throws_alone(n, 0) + room[0] - room[4095];
}

C int keeps(int n, int)
{
    volatile char room[4096];
    room[0] = room[4095] = 1;
    try {
        return throws_alone(n, 0) + room[0] - room[4095];
    } catch (const std::runtime_error &) {
        return n + 1;
    }
}

C int above(int n, int which)
{
    return (which ? keeps(n, 0) : passes(n, 0)) + sink - sink;
}

C int above_too(int n, int which)
{
    return (which ? keeps(n, 0) : passes(n, 0)) + sink - sink;
}

// n + 1: an exception that leaves nothing behind but a return address, then one from the same place, that is caught below
C int abandons(int n, int)
{
    int caught = 0;
    try {
        above(1, 0);
    } catch (const std::runtime_error &) {
        caught++;
    }
    try {
        return above_too(n, 1) + caught - 1;
    } catch (const std::runtime_error &) {
        return -1;
    }
}

C void *leaves_slots(void *which)
{
    try {
        return (void *)(intptr_t)above(7, (int)(intptr_t)which);
    } catch (const std::runtime_error &) {
        return (void *)(intptr_t)-1;
    }
}

// The same by two threads, one after the other, on the same stack: 1 if each was caught where it is
C int abandons_on_threads(int, int)
{
    for (intptr_t which = 0; which < 2; which++) {
        pthread_t thread;
        void *result = nullptr;
        pthread_create(&thread, nullptr, leaves_slots, (void *)which);
        pthread_join(thread, &result);
        if ((intptr_t)result != (which ? 8 : -1))
            return 0;
    }
    return 1;
}

// A tail call: two functions return by one return address.
extern "C" int throws_by_tail(int n, int);
asm(".pushsection .text\n"
    ".globl throws_by_tail\n"
    ".type throws_by_tail, @function\n"
    "throws_by_tail:\n"
    ".cfi_startproc\n"
    "xorl %esi, %esi\n"
    "nopl 0(%rax)\n"
    "jmp throws_alone@PLT\n"
    ".cfi_endproc\n"
    ".size throws_by_tail, . - throws_by_tail\n"
    ".popsection\n");

C int catches_by_tail(int n, int)
{
    try {
        return throws_by_tail(n, 0) + sink - sink;
    } catch (const std::runtime_error &) {
        return n + 1;
    }
}

// Nothing, and uses no register
extern "C" void touches_nothing();
asm(".pushsection .text\n"
    ".globl touches_nothing\n"
    ".type touches_nothing, @function\n"
    "touches_nothing:\n"
    ".cfi_startproc\n"
    "nopw 0(%rax,%rax)\n"
    "ret\n"
    ".cfi_endproc\n"
    ".size touches_nothing, . - touches_nothing\n"
    ".popsection\n");

__attribute__((target("avx"))) static bool vectors_stay()
{
    alignas(32) unsigned char before[16][32], after[16][32];
    for (unsigned i = 0; i < sizeof before; i++)
        before[0][i] = (unsigned char)(i * 37 + 11);
    memset(after, 0, sizeof after);
#define EACH(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13) DO(14) DO(15)
#define LOAD(n) "vmovups 32*" #n "(%0), %%ymm" #n "\n"
#define STORE(n) "vmovups %%ymm" #n ", 32*" #n "(%1)\n"
    asm volatile("subq $256, %%rsp\n" EACH(LOAD) "call touches_nothing@PLT\n" EACH(STORE) "vzeroupper\naddq $256, %%rsp\n"
                 :
                 : "b"(before), "r"((unsigned char(*)[32])after)
                 : "memory", "cc", "rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4",
                   "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
    return memcmp(before, after, sizeof before) == 0;
}

C int vectors_below(int depth)
{
    volatile int here = depth;
    return vectors_stay() && (here == 0 || vectors_below(here - 1));
}

C void *vectors_body(void *)
{
    return (void *)(intptr_t)vectors_below(70);
}

// 1 if all vector registers, with their upper halves, are what they were behind a call; on this thread and on one that makes its first such call
C int vectors(int, int)
{
    if (!__builtin_cpu_supports("avx"))
        return 1;
    pthread_t thread;
    void *result = nullptr;
    pthread_create(&thread, nullptr, vectors_body, nullptr);
    pthread_join(thread, &result);
    return vectors_below(70) && result;
}

// Not declared as what never throws
static int (*volatile sends)(int) = raise;

C void on_throw(int)
{
    if (leaf(1, 0) == 2)
        throw std::runtime_error("signal");
}

C int sends_below(int n, int depth)
{
    return (depth ? sends_below(n, depth - 1) : sends(SIGUSR2)) + sink - sink;
}

// n signals, on a stack of their own if so wished, whose handler throws what is caught below where it came: how many were caught
C int throws_out(int n, int on_its_own)
{
    static char stack[65536];
    stack_t own = {}, before = {};
    own.ss_sp = stack;
    own.ss_size = sizeof stack;
    sigaltstack(&own, &before);
    struct sigaction action = {}, old = {};
    action.sa_handler = on_throw;
    action.sa_flags = SA_NODEFER | (on_its_own ? SA_ONSTACK : 0);
    sigaction(SIGUSR2, &action, &old);
    int caught = 0;
    for (int i = 0; i < n; i++) {
        try {
            sends_below(i, i % 9);
        } catch (const std::runtime_error &error) {
            caught += strcmp(error.what(), "signal") == 0;
        }
    }
    // While it is the signal stack, what is left on it is known to be over.
    caught -= leaf(1, 0) != 2;
    sigaction(SIGUSR2, &old, nullptr);
    sigaltstack(&before, nullptr);
    return caught;
}

static ucontext_t outside, inside;

// Calls probed functions as often as it is gone on with.
static void generates()
{
    for (int i = 0;; i++) {
        steps += leaf(i, 0) == i + 1;
        swapcontext(&inside, &outside);
    }
}

C int resumes(int n, int)
{
    swapcontext(&outside, &inside);
    if (n % 2)
        throw std::runtime_error("odd");
    return n + 1 + sink - sink;
}

// A tail call: two functions return by one return address.
extern "C" int resumes_by_tail(int n, int);
asm(".pushsection .text\n"
    ".globl resumes_by_tail\n"
    ".type resumes_by_tail, @function\n"
    "resumes_by_tail:\n"
    ".cfi_startproc\n"
    "xorl %esi, %esi\n"
    "nopl 0(%rax)\n"
    "jmp resumes@PLT\n"
    ".cfi_endproc\n"
    ".size resumes_by_tail, . - resumes_by_tail\n"
    ".popsection\n");

C int resumes_below(int n, int depth)
{
    return (depth ? resumes_below(n, depth - 1) : resumes_by_tail(n, 0)) + sink - sink;
}

// A coroutine whose stack lies in the middle of this one's, above the calls that go on with it; of these n, every other one ends by an exception: how
// often all was as it should be
C int embeds(int n, int depth)
{
    char stack[32768];
    steps = 0;
    getcontext(&inside);
    inside.uc_stack.ss_sp = stack;
    inside.uc_stack.ss_size = sizeof stack;
    inside.uc_link = nullptr;
    makecontext(&inside, generates, 0);
    int right = 0;
    for (int i = 0; i < n; i++) {
        try {
            right += resumes_below(i, depth) == i + 1;
        } catch (const std::runtime_error &) {
            right += i % 2;
        }
    }
    return steps == n ? right : -1;
}
