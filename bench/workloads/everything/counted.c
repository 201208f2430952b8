// Functions of many shapes, called known numbers of times: the hooks count them.
#include "hooks.h"
#include <pthread.h>
#include <stdarg.h>
#include <string.h>

struct large {
    double values[9];
};

static volatile unsigned sink;

static void empty(void) {}
static int one(void) { return 1; }
static unsigned fib(unsigned n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
static int is_odd(int n);
static int is_even(int n) { return n == 0 ? one() : is_odd(n - 1); }
static int is_odd(int n) { return n == 0 ? 0 : is_even(n - 1); }
static int deep(int n) { return n == 0 ? 0 : deep(n - 1) + 1; }

static int sum(int count, ...)
{
    va_list all;
    va_start(all, count);
    int total = 0;
    while (count-- > 0)
        total += va_arg(all, int);
    va_end(all);
    return total;
}

static struct large fill(double value)
{
    struct large all;
    for (int i = 0; i < 9; i++)
        all.values[i] = value + i;
    return all;
}

static long double precise(float a, double b, long double c) { return a + b + c; }

static int choose(unsigned n)
{
    switch (n % 9) {
    case 0: return one();
    case 1: return (int)n * 3;
    case 2: empty(); return 7;
    case 3: return sum(2, 3, (int)n);
    case 4: return is_even((int)n % 5);
    case 5: return -1;
    case 6: return (int)(n ^ 0x55);
    case 7: return (int)strlen("seven");
    default: return (int)fib(n % 4);
    }
}

static int compare(const void *a, const void *b)
{
    int left = *(const int *)a, right = *(const int *)b;
    return (left > right) - (left < right);
}

static int by_pointer(int (*function)(unsigned), unsigned n) { return function(n) + 1; }

static int loop(unsigned n)
{
    do
        sink = sink + n;
    while (--n);
    return (int)sink;
}

static void *work(void *argument)
{
    uintptr_t total = 0;
    for (unsigned i = 0; i < (uintptr_t)argument; i++)
        total += (uintptr_t)(choose(i) + by_pointer(choose, i));
    return (void *)total;
}

int main(void)
{
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, work, (void *)(20000 + i));
    int numbers[500];
    for (int i = 0; i < 500; i++)
        numbers[i] = i * 7919 % 500;
    qsort(numbers, 500, sizeof *numbers, compare);
    double total = 0;
    for (int i = 0; i < 1000; i++)
        total += fill(i).values[i % 9] + (double)precise(1, i, 2) + deep(i % 40) + loop(1 + (unsigned)i % 3);
    void *results[2];
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], &results[i]);
    printf("%u %d %g %lu %lu\n", fib(20), numbers[499], total > 0, (unsigned long)results[0], (unsigned long)results[1]);
    return 0;
}
