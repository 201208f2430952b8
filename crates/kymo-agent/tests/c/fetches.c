/* Functions whose arguments point to numbers and texts. */
#include <stdint.h>
#include <stddef.h>

struct inner {
    int32_t number;
    const char *text;
};

struct outer {
    uint64_t first;
    struct inner *inner;
    char name[12];
};

/* Two callers, for who called. */
__attribute__((noinline)) uint32_t takes(struct outer *outer, const char *text) {
    __asm__ volatile("" ::: "memory");
    return outer != 0 && text != 0;
}

__attribute__((noinline)) const char *gives(const char *text, uint64_t n) {
    __asm__ volatile("" ::: "memory");
    return n % 2 ? text : NULL;
}

__attribute__((noinline)) uint32_t takes_here(struct outer *outer, const char *text) {
    uint32_t got = takes(outer, text);
    __asm__ volatile("" ::: "memory");
    return got;
}

__attribute__((noinline)) uint32_t takes_there(struct outer *outer, const char *text) {
    uint32_t got = takes(outer, text) + takes(outer, text);
    __asm__ volatile("" ::: "memory");
    return got;
}
