// Calls the functions that the agent stands in for: a library that comes while probes do.
#include <pthread.h>
#include <signal.h>
#include <stdint.h>

uint32_t guarded(uint64_t number, uint64_t other)
{
    struct sigaction action;
    sigset_t set;
    sigemptyset(&set);
    pthread_sigmask(SIG_BLOCK, 0, &set);
    sigprocmask(SIG_BLOCK, 0, &set);
    sigaction((int)number, 0, &action);
    return (uint32_t)(number * 3 + other);
}

// The loader has much to fill in before it makes it, and the tables, read-only.
#define FOUR(what) what, what, what, what
#define FOUR_2(what) FOUR(what), FOUR(what), FOUR(what), FOUR(what)
#define FOUR_4(what) FOUR_2(what), FOUR_2(what), FOUR_2(what), FOUR_2(what)
#define FOUR_6(what) FOUR_4(what), FOUR_4(what), FOUR_4(what), FOUR_4(what)
#define MANY(what) FOUR_6(what), FOUR_6(what), FOUR_6(what), FOUR_6(what), FOUR_6(what), FOUR_6(what), FOUR_6(what), FOUR_6(what)
void *const addresses[] = {MANY((void *)guarded)};
