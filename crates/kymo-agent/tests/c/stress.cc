// Work for examples/stress: functions that count their own calls and returns, and all that a program does with calls besides calling.
// Each act gives 0, or the line at which something was not as it should be.
#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdexcept>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#define C extern "C" __attribute__((noinline, noclone))
#define CHECK(is) do { if (!(is)) return __LINE__; } while (0)

enum Function {
    LEAF, TAIL, LOOPS, HALVES, THROWS, CATCHES, JUMPS, LANDS, RECURSES, CALLS_BACK, FORKS, EXECS, SPAWNS, VFORKS, IN_VFORK, YIELDS,
    SWITCHED, TASK, COROUTINES, STARTS, MIGRATES, THREAD_BODY, ENDS_THREAD, THREADS, ON_SIGNAL, NESTED, BLOCKS, FUNCTIONS
};

struct Count {
    alignas(64) unsigned long began;
    unsigned long ended;
};

// What the probes are compared with. Who is interrupted, or in another process, counts once all the same.
extern "C" {
Count stress_counts[FUNCTIONS];
const char *stress_names[FUNCTIONS + 1] = {
    "leaf", "tail", "loops", "halves", "throws", "catches", "jumps", "lands", "recurses", "calls_back", "forks", "execs", "spawns",
    "vforks", "in_vfork", "yields", "switched", "task", "coroutines", "starts", "migrates", "thread_body", "ends_thread", "threads",
    "on_signal", "nested", "blocks", nullptr,
};
}

static inline void began(Function function) { __atomic_fetch_add(&stress_counts[function].began, 1, __ATOMIC_RELAXED); }
static inline void ended(Function function) { __atomic_fetch_add(&stress_counts[function].ended, 1, __ATOMIC_RELAXED); }

static volatile int sink;

C int leaf(int n)
{
    began(LEAF);
    int result = n + 1 + sink - sink;
    ended(LEAF);
    return result;
}

// Its return is leaf's.
C int tail(int n)
{
    began(TAIL);
    ended(TAIL);
    return leaf(n);
}

C int loops(int n)
{
    began(LOOPS);
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += leaf(i);
    ended(LOOPS);
    return sum;
}

struct Halves {
    double a, b;
};

C Halves halves(double n)
{
    began(HALVES);
    Halves result = {n / 2, n / 2 + sink - sink};
    ended(HALVES);
    return result;
}

C int throws(int n, int depth)
{
    began(THROWS);
    struct Guard {
        ~Guard() { sink = 0; }
    } guard;
    int result = n + 1;
    if (depth > 0)
        result = throws(n, depth - 1) + sink;
    else if (n % 2)
        throw std::runtime_error("odd");
    ended(THROWS);
    return result;
}

C int catches(int n, int depth)
{
    began(CATCHES);
    int result = 0;
    try {
        result = throws(n, depth);
    } catch (const std::runtime_error &error) {
        result = strcmp(error.what(), "odd") == 0 && n % 2 ? n + 1 : -1;
    }
    ended(CATCHES);
    return result;
}

static thread_local sigjmp_buf landing;

C int jumps(int n, int depth)
{
    began(JUMPS);
    int result = n + 1;
    if (depth > 0)
        result = jumps(n, depth - 1) + sink;
    else if (n % 2)
        siglongjmp(landing, n + 1);
    ended(JUMPS);
    return result;
}

C int lands(int n, int depth, int with_mask)
{
    began(LANDS);
    volatile int kept = n;
    int result = sigsetjmp(landing, with_mask);
    if (result == 0)
        result = jumps(kept, depth);
    ended(LANDS);
    return result;
}

C int recurses(int depth)
{
    began(RECURSES);
    volatile int here = depth;
    int result = here == 0 ? 0 : recurses(here - 1) + 1;
    ended(RECURSES);
    return result;
}

// The callback may panic.
C int calls_back(int (*callback)(int), int n)
{
    began(CALLS_BACK);
    int result = callback(n) + sink - sink;
    ended(CALLS_BACK);
    return result;
}

static int wait_for(pid_t child)
{
    int status = -1;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    if (status != 0)
        dprintf(2, "a child ended with %#x\n", (unsigned)status);
    return status;
}

// The child returns through the frames that were probed before the fork, and calls what is probed: 0 there, too.
C int forks(int n, pid_t *child)
{
    began(FORKS);
    int result = 0;
    *child = fork();
    if (*child == 0)
        result = leaf(n) == n + 1 && loops(4) == 10 && catches(n, 2) == n + 1 ? 0 : __LINE__;
    ended(FORKS);
    return result;
}

static char *const arguments[] = {(char *)"true", nullptr};
static char *const environment[] = {nullptr};

// Whatever is probed is not in the program that the child executes.
C void execs(int n)
{
    began(EXECS);
    if (leaf(n) == n + 1)
        execve("/bin/true", arguments, environment);
    _exit(99);
}

C int spawns(pid_t *child)
{
    began(SPAWNS);
    int result = posix_spawn(child, "/bin/true", nullptr, nullptr, arguments, environment);
    ended(SPAWNS);
    return result;
}

C int in_vfork(int n)
{
    began(IN_VFORK);
    int result = n + 1 + sink - sink;
    ended(IN_VFORK);
    return result;
}

C pid_t vforks(int n, bool executes)
{
    began(VFORKS);
    pid_t child = vfork();
    if (child == 0) {
        for (int i = 0; i < n; i++)
            if (in_vfork(i) != i + 1)
                _exit(98);
        if (executes)
            execve("/bin/true", arguments, environment);
        _exit(executes ? 97 : 0);
    }
    ended(VFORKS);
    return child;
}

// Coroutines by the C library, of which each thread has two.
struct Contexts {
    ucontext_t main, tasks[2];
    int steps;
    alignas(16) char stacks[2][64 << 10];
};
static thread_local Contexts *contexts;

C int yields(Contexts *own, int number)
{
    began(YIELDS);
    swapcontext(&own->tasks[number], &own->main);
    ended(YIELDS);
    return number + 1;
}

C void task(unsigned low, unsigned high, int number)
{
    began(TASK);
    Contexts *own = (Contexts *)((uintptr_t)low | (uintptr_t)high << 32);
    for (int i = 0; i < 5; i++)
        own->steps += yields(own, number) == number + 1;
    ended(TASK);
}

static void prepare(Contexts *own, int number)
{
    getcontext(&own->tasks[number]);
    own->tasks[number].uc_stack.ss_sp = own->stacks[number];
    own->tasks[number].uc_stack.ss_size = sizeof own->stacks[number];
    own->tasks[number].uc_link = &own->main;
    makecontext(&own->tasks[number], (void (*)())task, 3, (unsigned)(uintptr_t)own, (unsigned)((uintptr_t)own >> 32), number);
}

C int coroutines(Contexts *own)
{
    began(COROUTINES);
    own->steps = 0;
    for (int i = 0; i < 2; i++)
        prepare(own, i);
    for (int round = 0; round < 6; round++)
        for (int i = 0; i < 2; i++)
            swapcontext(&own->main, &own->tasks[i]);
    ended(COROUTINES);
    return own->steps;
}

// Coroutines by hand: registers on the stack, and another stack.
asm(R"(
    .text
    .globl stress_switch
    .hidden stress_switch
    .type stress_switch, @function
stress_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size stress_switch, . - stress_switch
)");
extern "C" __attribute__((visibility("hidden"))) void stress_switch(void **from, void *to);

struct Switched {
    void *main, *own;
    int steps;
    alignas(16) char stack[64 << 10];
};
static thread_local Switched *switching;

C int switched(Switched *own, int n)
{
    began(SWITCHED);
    stress_switch(&own->own, own->main);
    ended(SWITCHED);
    return n + 1;
}

static void switched_body()
{
    Switched *own = switching;
    for (int i = 0;; i++)
        own->steps += switched(own, i) == i + 1;
}

C void *starts(void *argument)
{
    began(STARTS);
    Contexts *own = (Contexts *)argument;
    swapcontext(&own->main, &own->tasks[0]);
    ended(STARTS);
    return nullptr;
}

// A coroutine that began on another thread goes on here.
C int migrates(Contexts *own)
{
    began(MIGRATES);
    own->steps = 0;
    prepare(own, 0);
    pthread_t thread;
    int result = 0;
    if (pthread_create(&thread, nullptr, starts, own) != 0)
        result = -1;
    else
        pthread_join(thread, nullptr);
    for (int i = 0; result == 0 && i < 5; i++)
        swapcontext(&own->main, &own->tasks[0]);
    ended(MIGRATES);
    return result == 0 ? own->steps : result;
}

C void ends_thread(int n)
{
    began(ENDS_THREAD);
    if (n % 2)
        pthread_exit((void *)(intptr_t)(n + 1));
    ended(ENDS_THREAD);
}

C void *thread_body(void *argument)
{
    began(THREAD_BODY);
    int n = (int)(intptr_t)argument;
    struct Guard {
        ~Guard() { sink = 0; }
    } guard;
    void *result = (void *)(intptr_t)leaf(n);
    ends_thread(n);
    ended(THREAD_BODY);
    return result;
}

C int threads(int n)
{
    began(THREADS);
    pthread_t thread;
    void *result = nullptr;
    if (pthread_create(&thread, nullptr, thread_body, (void *)(intptr_t)n) == 0)
        pthread_join(thread, &result);
    ended(THREADS);
    return (int)(intptr_t)result;
}

C void nested(int)
{
    began(NESTED);
    int before = errno;
    leaf(1);
    errno = before;
    ended(NESTED);
}

// Called at any instruction of any of the others.
C void on_signal(int)
{
    began(ON_SIGNAL);
    int before = errno;
    if (leaf(2) != 3 || tail(3) != 4 || halves(4).a != 2)
        abort();
    if (sink == 0)
        raise(SIGUSR2);
    errno = before;
    ended(ON_SIGNAL);
}

// Blocks all signals in this thread while it calls.
C int blocks(int n)
{
    began(BLOCKS);
    sigset_t all, before;
    sigfillset(&all);
    int result = pthread_sigmask(SIG_BLOCK, &all, &before) == 0 && leaf(n) == n + 1;
    result &= (n % 2 ? sigprocmask(SIG_SETMASK, &before, nullptr) : pthread_sigmask(SIG_SETMASK, &before, nullptr)) == 0;
    ended(BLOCKS);
    return result;
}

// Handlers of two signals; `full`: they block all signals while they run.
static int handle(int full)
{
    struct sigaction action = {};
    action.sa_flags = SA_ONSTACK | SA_RESTART;
    if (full)
        sigfillset(&action.sa_mask);
    action.sa_handler = on_signal;
    CHECK(sigaction(SIGUSR1, &action, nullptr) == 0);
    action.sa_handler = nested;
    CHECK(sigaction(SIGUSR2, &action, nullptr) == 0);
    return 0;
}

static void on_foreign_trap(int)
{
}

enum Act {
    CALLS, EXCEPTIONS, LONG_JUMPS, DEEP, FORK, FORK_EXEC, SPAWN, VFORK, COROUTINE, BY_HAND, MIGRATION, THREAD, SIGNALS, HANDLERS, MASKS,
    TRAPS, ACTS
};

extern "C" {
int stress_acts = ACTS;
int stress_inexact = IN_VFORK;
int stress_deep = DEEP;

// Of each thread, before its acts.
int stress_begin(void)
{
    constexpr size_t bytes = 256 << 10;
    stack_t own = {};
    own.ss_sp = malloc(bytes);
    own.ss_size = bytes;
    CHECK(sigaltstack(&own, nullptr) == 0);
    contexts = new Contexts();
    switching = new Switched();
    return handle(0);
}

// Of each thread, after its acts.
void stress_end(void)
{
    stack_t none = {}, own = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, &own);
    free(own.ss_sp);
    delete contexts;
    delete switching;
}

// Signals to a thread from a clock, every so many ns; 0: none any more.
int stress_clock(timer_t *timer, int tid, long every_ns)
{
    if (every_ns == 0)
        return timer_delete(*timer) == 0 ? 0 : __LINE__;
    struct sigevent event = {};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGUSR1;
    event._sigev_un._tid = tid;
    CHECK(timer_create(CLOCK_MONOTONIC, &event, timer) == 0);
    struct itimerspec time = {};
    time.it_value.tv_nsec = time.it_interval.tv_nsec = every_ns;
    CHECK(timer_settime(*timer, 0, &time, nullptr) == 0);
    return 0;
}

int stress_act(int act, int n, int other_tid)
{
    pid_t child = -1;
    switch (act) {
    case CALLS:
        for (int i = 0; i < 200; i++) {
            CHECK(leaf(i) == i + 1 && tail(i) == i + 1);
            Halves two = halves(i);
            CHECK(two.a + two.b == i);
        }
        CHECK(loops(100) == 5050);
        return 0;
    case EXCEPTIONS:
        for (int i = 0; i < 4; i++)
            CHECK(catches(n + i, i * 3) == n + i + 1);
        return 0;
    case LONG_JUMPS:
        for (int i = 0; i < 8; i++)
            CHECK(lands(n + i, i, n % 2) == n + i + 1 && leaf(i) == i + 1);
        return 0;
    case DEEP:
        CHECK(recurses(n % 300) == n % 300);
        return 0;
    case FORK: {
        int result = forks(n, &child);
        if (child == 0)
            _exit(result != 0 || recurses(20) != 20);
        CHECK(child > 0 && wait_for(child) == 0);
        return 0;
    }
    case FORK_EXEC:
        child = fork();
        if (child == 0)
            execs(n);
        CHECK(child > 0 && wait_for(child) == 0);
        return 0;
    case SPAWN:
        CHECK(spawns(&child) == 0 && wait_for(child) == 0);
        return 0;
    case VFORK:
        child = vforks(n % 50, n % 4 == 0);
        CHECK(child > 0 && wait_for(child) == 0);
        return 0;
    case COROUTINE:
        CHECK(coroutines(contexts) == 10);
        return 0;
    case BY_HAND: {
        Switched *own = switching;
        void **frame = (void **)(own->stack + sizeof own->stack) - 1;
        *--frame = (void *)switched_body;
        own->own = frame - 6;
        own->steps = 0;
        for (int i = 0; i < 6; i++)
            stress_switch(&own->main, own->own);
        CHECK(own->steps == 5);
        return 0;
    }
    case MIGRATION:
        CHECK(migrates(contexts) == 5);
        return 0;
    case THREAD:
        CHECK(threads(n) == n + 1);
        return 0;
    case SIGNALS:
        for (int i = 0; i < 20; i++) {
            raise(SIGUSR1);
            if (other_tid > 0)
                syscall(SYS_tgkill, getpid(), other_tid, SIGUSR1);
            CHECK(leaf(i) == i + 1);
        }
        return 0;
    case HANDLERS:
        return handle(n % 2);
    case MASKS:
        for (int i = 0; i < 5; i++)
            CHECK(blocks(i));
        return 0;
    case TRAPS: {
        // A program with a handler of SIGILL of its own finds it there.
        struct sigaction action = {}, now = {};
        action.sa_handler = on_foreign_trap;
        CHECK(sigaction(SIGILL, &action, nullptr) == 0 && sigaction(SIGILL, nullptr, &now) == 0);
        CHECK(now.sa_handler == on_foreign_trap);
        CHECK(leaf(n) == n + 1);
        return 0;
    }
    }
    return __LINE__;
}
}
