// What -finstrument-functions calls: counts of entries and exits of every function, written at the end as `OFFSET ENTRIES EXITS` lines into the file
// that the variable HOOKS names.
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define PLAIN __attribute__((no_instrument_function))

enum { HOOKED = 1 << 12 };
extern char __ehdr_start;
static struct {
    uintptr_t function;
    uint64_t entries, exits;
} hooked[HOOKED];

PLAIN static unsigned hooked_at(void *function)
{
    uintptr_t wanted = (uintptr_t)function;
    for (unsigned at = (wanted >> 4) % HOOKED;; at = (at + 1) % HOOKED) {
        uintptr_t found = 0;
        if (__atomic_load_n(&hooked[at].function, __ATOMIC_RELAXED) == wanted)
            return at;
        if (__atomic_compare_exchange_n(&hooked[at].function, &found, wanted, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED) || found == wanted)
            return at;
    }
}

#ifdef __cplusplus
extern "C" {
#endif
PLAIN void __cyg_profile_func_enter(void *function, void *from)
{
    (void)from;
    __atomic_fetch_add(&hooked[hooked_at(function)].entries, 1, __ATOMIC_RELAXED);
}

PLAIN void __cyg_profile_func_exit(void *function, void *from)
{
    (void)from;
    __atomic_fetch_add(&hooked[hooked_at(function)].exits, 1, __ATOMIC_RELAXED);
}

PLAIN __attribute__((destructor)) static void hooks_end(void)
{
    const char *name = getenv("HOOKS");
    FILE *file = name ? fopen(name, "w") : NULL;
    if (!file)
        return;
    for (unsigned at = 0; at < HOOKED; at++)
        if (hooked[at].function)
            fprintf(file, "%lx %lu %lu\n", (unsigned long)(hooked[at].function - (uintptr_t)&__ehdr_start),
                    (unsigned long)hooked[at].entries, (unsigned long)hooked[at].exits);
    fclose(file);
}
#ifdef __cplusplus
}
#endif
