/* Watches from C: what several threads write is told to a handler in each of them, and wrong use is told in words. */
#include "kymo.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            printf("line %d: %s (%s)\n", __LINE__, #what, kymo_last_error()); \
            exit(1); \
        } \
    } while (0)

enum { THREADS = 4, WRITES = 500 };

static volatile uint64_t counter;
static volatile uint32_t flag = 1;
static atomic_ulong hits, strange;
static _Thread_local unsigned long mine;
static atomic_ulong others;

static void count(const struct kymo_hit *hit, void *argument)
{
    atomic_fetch_add((atomic_ulong *)argument, 1);
    if (hit->size_bytes != sizeof(struct kymo_hit) || hit->address != (uintptr_t)&counter || hit->len_bytes != 8
        || hit->kind != KYMO_WRITE || hit->flags != (KYMO_HIT_OLD_KNOWN | KYMO_HIT_NEW_KNOWN | KYMO_HIT_SYNCHRONOUS))
        atomic_fetch_add(&strange, 1);
    mine++;
}

static void *write_often(void *nothing)
{
    (void)nothing;
    for (int i = 0; i < WRITES; i++)
        __atomic_fetch_add(&counter, 1, __ATOMIC_RELAXED);
    atomic_fetch_add(&others, mine);
    return NULL;
}

static kymo_watch once;
static uint64_t cleared_from, cleared_to;
static int stopped, stopped_again;

static void stop_at_zero(const struct kymo_hit *hit, void *argument)
{
    (void)argument;
    if (hit->new_value != 0)
        return;
    cleared_from = hit->old_value;
    cleared_to = hit->new_value;
    stopped = kymo_watch_stop(once);
    stopped_again = kymo_watch_stop(once);
}

int main(void)
{
    kymo_watch watch = kymo_watch_start((const void *)&counter, 8, KYMO_WRITE, count, &hits);
    if (watch == 0) {
        printf("skip: %s\n", kymo_last_error());
        return 0;
    }
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, write_often, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    CHECK(hits == THREADS * WRITES && others == THREADS * WRITES && strange == 0);
    CHECK(kymo_watch_stop(watch) == 0);
    counter = 0;
    CHECK(hits == THREADS * WRITES);
    CHECK(kymo_watch_stop(watch) == KYMO_EUNKNOWN);

    once = kymo_watch_start((const void *)&flag, 4, KYMO_WRITE, stop_at_zero, NULL);
    CHECK(once != 0);
    flag = 7;
    flag = 0;
    flag = 3;
    flag = 0;
    CHECK(cleared_from == 7 && cleared_to == 0 && stopped == 0 && stopped_again == KYMO_EUNKNOWN);

    CHECK(kymo_watch_start((const void *)&flag, 3, KYMO_WRITE, count, &hits) == 0);
    CHECK(strstr(kymo_last_error(), "3 bytes cannot be watched") != NULL);
    CHECK(kymo_watch_start((const void *)&flag, 4, 0, count, &hits) == 0);
    CHECK(kymo_watch_start((const void *)&flag, 4, KYMO_WRITE, NULL, NULL) == 0);
    CHECK(strstr(kymo_last_error(), "there is no handler") != NULL);

    kymo_watch all[64];
    int most = 0;
    while (most < 64 && (all[most] = kymo_watch_start((const void *)&counter, 8, KYMO_WRITE, count, &hits)) != 0)
        most++;
    CHECK(most < 64 && strstr(kymo_last_error(), "are in use") != NULL);
    for (int i = 0; i < most; i++)
        CHECK(kymo_watch_stop(all[i]) == 0);
    CHECK(kymo_watch_release_slots() == 0);
    printf("done\n");
    return 0;
}
