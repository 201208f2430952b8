// Calls that a signal interrupts at each of their instructions in turn, whose handler calls functions itself and goes back, or jumps away.
#include <csetjmp>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define C extern "C" __attribute__((noinline))

static volatile int sink;
static volatile long left;
static volatile int wrong;
static sigjmp_buf out, target;

// What the handler does, and where.
enum { JUMPS = 1, JUMPS_BELOW = 2, LOW = 4, HIGH = 8, ABANDONED = 16 };
static int how;

C int leaf(int n)
{
    return n + 1 + sink - sink;
}

C int recurses(int depth)
{
    volatile int here = depth;
    return here == 0 ? 0 : recurses(here - 1) + 1;
}

C int jumps(int n, int depth)
{
    volatile int here = n;
    if (depth == 0)
        siglongjmp(target, here + 1);
    return jumps(here, depth - 1) + sink - sink;
}

// n + 1, by a longjmp over frames below
C int lands(int n)
{
    int back = sigsetjmp(target, 0);
    return back ? back : jumps(n, 3);
}

C int leaves(int n)
{
    siglongjmp(out, n + 1 + sink - sink);
    return 0;
}

// Recursion that nobody looks at, so that memory is overwritten.
__attribute__((noinline)) static int overwrites(int (*function)(int), int n)
{
    volatile char room[4096];
    memset((char *)room, 0x55, sizeof room);
    return function(n) + room[0] - room[4095];
}

__attribute__((noinline)) static int stepped(int (*function)(int), int n)
{
    asm volatile("pushfq\n orq $0x100, (%%rsp)\n popfq" ::: "memory", "cc");
    int result = function(n);
    asm volatile("pushfq\n andq $~0x100, (%%rsp)\n popfq" ::: "memory", "cc");
    return result;
}

static void on_step(int, siginfo_t *, void *context)
{
    if (--left != 0)
        return;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_EFL] &= ~0x100LL;
    wrong |= leaf(1) != 2 || recurses(2) != 2;
    if (how & JUMPS)
        siglongjmp(out, 1);
    if (how & JUMPS_BELOW)
        leaves(1);
}

__attribute__((noinline)) static int one(int (*function)(int), int n)
{
    if (sigsetjmp(out, 1))
        return n + 1;
    if (how & ABANDONED) {
        // What is left lies above what is called next, and its slots are overwritten.
        if (sigsetjmp(target, 0) == 0)
            jumps(n, 5);
        return overwrites([](int n) { return overwrites(leaf, n) == n + 1 ? stepped(leaf, n) : 0; }, n);
    }
    return stepped(function, n);
}

// The C library's own, not what a program's modules are led to.
static int handle(const struct sigaction *action, struct sigaction *before)
{
    auto *function = (int (*)(int, const struct sigaction *, struct sigaction *))dlsym(RTLD_DEFAULT, "sigaction");
    return function(SIGTRAP, action, before);
}

// A restartable sequence begins again after each signal: it would never end. Whether this thread has none now.
static bool without_sequences()
{
    auto *offset = (std::ptrdiff_t *)dlsym(RTLD_DEFAULT, "__rseq_offset");
    if (!offset)
        return false;
    for (unsigned bytes = 32; bytes <= 512; bytes += 32)
        if (syscall(SYS_rseq, (char *)__builtin_thread_pointer() + *offset, bytes, 1, 0x53053053) == 0)
            return true;
    return false;
}

struct Work {
    char *memory;
    int which, stride;
    long result;
};
static const size_t PART = 256 << 10;

// The steps that were interrupted; -1: something was wrong, -2: it cannot be done here
static void *works(void *argument)
{
    Work *work = (Work *)argument;
    work->result = -2;
    if (leaf(1) != 2 || !without_sequences())
        return nullptr;
    stack_t own = {}, before = {};
    own.ss_sp = how & HIGH ? work->memory + 2 * PART : work->memory;
    own.ss_size = PART;
    if (how & (LOW | HIGH))
        sigaltstack(&own, &before);
    struct sigaction action = {}, old = {};
    action.sa_sigaction = on_step;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    handle(&action, &old);
    int (*function)(int) = work->which ? lands : leaf;
    wrong = 0;
    long at = 1;
    // The first ones each, then fewer and fewer.
    for (;; at += 1 + at / work->stride) {
        left = 0;
        // What the last one left is dropped, so that this one finds the short way.
        wrong |= !(how & ABANDONED) && leaf(2) != 3;
        left = at;
        if (one(function, (int)at) != (int)at + 1 || wrong)
            break;
        if (left > 0)
            break;
    }
    work->result = wrong || left <= 0 ? -1 : at;
    handle(&old, nullptr);
    // Nothing of it is left: all of these have room.
    if (recurses(63) != 63)
        work->result = -1;
    before.ss_flags = SS_DISABLE;
    sigaltstack(&before, nullptr);
    return nullptr;
}

// Steps through leaf(), or lands(), on a thread whose stack lies between what may be signal stacks.
C long step(int which, int handled, int stride)
{
    how = handled;
    Work work = {nullptr, which, stride, -1};
    work.memory = (char *)mmap(nullptr, 3 * PART, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, work.memory + PART, PART);
    pthread_t thread;
    if (pthread_create(&thread, &attributes, works, &work) == 0)
        pthread_join(thread, nullptr);
    munmap(work.memory, 3 * PART);
    return work.result;
}
