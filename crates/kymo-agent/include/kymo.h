/* Counters for tasks inside a program: fibers, jobs of a thread pool, whatever switches in user space.
 *
 * A group is what you want a number of; tasks run for it. Tell where threads switch between tasks:
 *
 *     kymo_group group = kymo_group_new("requests", KYMO_PER_TASK);
 *     kymo_task task = kymo_task_spawn(group, "GET /");
 *     kymo_task_switch(0, task);       this thread runs the task now
 *     ...
 *     kymo_task_switch(task, 0);       and now itself again
 *     kymo_task_exit(task, NULL);
 *
 * Link with libkymo_agent. Every function may be called from any thread, none from a signal handler (but see kymo_watch_stop).
 * Functions that return int return 0 or one of KYMO_E*; those that return a number return 0 if refused. In both cases
 * kymo_last_error() says it in words, and nothing was changed.
 */
#ifndef KYMO_H
#define KYMO_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint64_t kymo_group;
typedef uint64_t kymo_task;

/* Flags of kymo_group_new. */
#define KYMO_PER_TASK 1u      /* keep the numbers of each task, not only the sums */
#define KYMO_WHOLE_THREADS 2u /* what threads do between tasks of this group counts for it, too: switches cost least then */
#define KYMO_ALLOCATIONS 4u   /* count allocations; needs the counting allocator, which Rust programs can have */

/* A count that is not known: the group keeps sums only, or does not count this. */
#define KYMO_UNKNOWN UINT64_MAX

#define KYMO_EENDED (-1)         /* the task has ended before */
#define KYMO_EUNKNOWN (-2)       /* nobody has this number */
#define KYMO_ERUNNING (-3)       /* the task runs already, or is being switched by another thread */
#define KYMO_ENOTHERE (-4)       /* the task does not run on this thread */
#define KYMO_EANOTHER (-5)       /* this thread runs another task than it said */
#define KYMO_EDROPPED (-6)       /* a task was dropped while this thread ran it; said once */
#define KYMO_ETHREADENDED (-7)   /* the task ended with the thread that ran it */
#define KYMO_EFORKED (-8)        /* this process was forked from the one that counts */
#define KYMO_ETHREADS (-9)       /* too many threads run tasks */
#define KYMO_ENOTNOW (-10)       /* called at the very end of a thread, or from within a switch */
#define KYMO_EUNSUPPORTED (-11)  /* this machine cannot count that */
#define KYMO_ECOUNTER (-12)      /* no such counter */
#define KYMO_ENOTPERTASK (-13)   /* the group keeps sums only */
#define KYMO_EARGUMENT (-14)     /* a NULL, an unknown flag, a wrong size */
#define KYMO_EINTERNAL (-15)     /* the system refused, or a mistake in kymo */
#define KYMO_ESLOT (-16)         /* all watchpoints of the processor are in use */

/* The numbers of a task, or the sums of a group. Set size_bytes to sizeof(struct kymo_reading) before reading. */
struct kymo_reading {
    uint64_t size_bytes;
    uint64_t cpu_ns;          /* nanoseconds of CPU time, or KYMO_UNKNOWN */
    uint64_t polls;           /* polls of futures, in Rust programs */
    uint64_t switches;        /* how often a thread began to run it */
    uint64_t migrations;      /* how many of these were on another thread than before */
    uint64_t uncounted;       /* polls that were not counted */
    uint64_t allocations;     /* or KYMO_UNKNOWN */
    uint64_t allocated_bytes; /* or KYMO_UNKNOWN */
};

/* A new group, which lives until it is freed and its last task has ended. */
kymo_group kymo_group_new(const char *name, uint32_t flags);
/* The same, counting more: names with commas between them. There are cycles, instructions, cache-references, cache-misses, branches,
 * branch-misses (of user code, where the machine has them), and own:0 to own:15 for kymo_count. */
kymo_group kymo_group_new_counting(const char *name, uint32_t flags, const char *counters);
int kymo_group_free(kymo_group group);
/* Sums over living and ended tasks, exact now. */
int kymo_group_read(kymo_group group, struct kymo_reading *reading);
/* One sum, by the counter's name (cpu-time, allocations and allocated-bytes, too); KYMO_UNKNOWN if the group does not count it. */
int kymo_group_get(kymo_group group, const char *counter, uint64_t *value);

/* A new task, which rests. */
kymo_task kymo_task_spawn(kymo_group group, const char *name);
/* This thread stops running `from` and runs `to`. 0 is the thread itself, outside of tasks. */
int kymo_task_switch(kymo_task from, kymo_task to);
/* The task ends, at rest or where it runs, and tells its last numbers unless `reading` is NULL. */
int kymo_task_exit(kymo_task task, struct kymo_reading *reading);
/* Its numbers so far. */
int kymo_task_read(kymo_task task, struct kymo_reading *reading);
/* One of them, by the counter's name; KYMO_UNKNOWN if its group does not count it, or keeps sums only. */
int kymo_task_get(kymo_task task, const char *counter, uint64_t *value);
/* Adds to own:N for the task that runs on this thread. A few instructions. */
void kymo_count(uint32_t own, uint64_t by);

/* Begins to count what this thread does outside of tasks; otherwise its first task begins that. */
int kymo_thread_enter(void);
/* Lets `kymo stat --tasks -p PID` see the tasks of this process. */
int kymo_publish(void);
/* Watching memory: a handler is called at every access to some bytes, by any thread, in the thread that did it, before its next
 * instruction. See docs/reference/watch-api.md. */
typedef uint64_t kymo_watch;

#define KYMO_WRITE 2u
#define KYMO_READ_WRITE 3u
#define KYMO_EXECUTE 4u /* the address is that of an instruction; the length is not looked at */

#define KYMO_HIT_OLD_KNOWN 1u
#define KYMO_HIT_NEW_KNOWN 2u
#define KYMO_HIT_SYNCHRONOUS 4u /* the thread is still where it did it; otherwise it had SIGTRAP blocked */

/* One access. Later versions may have more fields at the end: look at size_bytes before you use those. */
struct kymo_hit {
    uint64_t size_bytes;
    uint64_t address;     /* what is watched: the access was somewhere in its len_bytes */
    uint64_t instruction; /* where the thread goes on: after the access */
    uint64_t old_value;   /* at the last hit, or when the watch started */
    uint64_t new_value;   /* now */
    uint32_t flags;       /* KYMO_HIT_* */
    uint32_t len_bytes;
    uint32_t kind;        /* what the watch is for */
    int32_t thread;       /* by the kernel's number */
};

/* Runs in any thread at any moment, as a signal handler does: only what signal-safety(7) permits. It may stop watches, not start them. */
typedef void (*kymo_hit_handler)(const struct kymo_hit *hit, void *argument);

/* Watches 1, 2, 4 or 8 bytes at a multiple of that; 0 if refused. */
kymo_watch kymo_watch_start(const void *address, uint64_t len_bytes, uint32_t kind, kymo_hit_handler handler, void *argument);
/* No handler runs for it afterwards, unless this is called by a handler. In a handler no words are kept for kymo_last_error(). */
int kymo_watch_stop(kymo_watch watch);
/* Gives back to debuggers what is kept for the next watch. */
int kymo_watch_release_slots(void);
/* Why this thread's last refused call was refused. Valid until the next refusal on this thread. */
const char *kymo_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
