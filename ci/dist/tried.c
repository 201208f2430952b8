/* The program of ci/dist/try.sh: 200 calls of one function, each of which writes one variable once. */
#include <stdio.h>

volatile int rounds;

__attribute__((noinline)) unsigned compute(unsigned seed) {
    for (int i = 0; i < 2000000; i++) {
        seed = seed * 1664525u + 1013904223u;
        /* Or the compiler computes several rounds at once. */
        __asm__ volatile("" : "+r"(seed));
    }
    rounds = rounds + 1;
    return seed;
}

int main(void) {
    unsigned seed = 1;
    for (int i = 0; i < 200; i++)
        seed = compute(seed);
    printf("%d rounds, %u\n", rounds, seed);
    return 0;
}
