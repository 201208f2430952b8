#!/usr/bin/env python3
"""How long a thread that runs is held while `kymo stacks`, or gdb, looks at its process.

    bench/held.py [--kymo target/release/kymo] [--rounds 20] [--note TEXT]

Needs root, gdb and a C compiler. One thread reads the clock without end, beside 50 that wait, and tells how much of each half
second it neither ran nor was ready to, by the kernel's account of it: it was stopped, or the machine's host took its CPU. The tools look at it in turns with half seconds in which none does. The text goes into bench/runs.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from hung import ROOT, compiled, head, keep

READS = r"""
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static int schedstat;
static long read_clock(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}
static long now(void) { return read_clock(CLOCK_MONOTONIC); }
// How long this thread has run or been ready, ns.
static long active(void) {
    char text[100] = {0}, *end;
    if (pread(schedstat, text, sizeof text - 1, 0) <= 0) exit(1);
    // Its own count of the time on a CPU is that of the last tick.
    strtol(text, &end, 10);
    return read_clock(CLOCK_THREAD_CPUTIME_ID) + strtol(end, NULL, 10);
}
static void *rests(void *unused) { for (;;) pause(); return unused; }
int main(void) {
    pthread_t thread;
    for (int left = 50; left > 0; left--) pthread_create(&thread, NULL, rests, NULL);
    schedstat = open("/proc/self/schedstat", O_RDONLY);
    char word;
    // A letter in, half a second, out how long it was held.
    while (read(0, &word, 1) == 1) {
        long begun = now(), before = active();
        while (now() - begun < 500000000) {}
        long after = active();
        printf("%ld\n", now() - begun - (after - before));
        fflush(stdout);
    }
    return 0;
}
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kymo", default=str(ROOT / "target/release/kymo"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--note", default="", help="a sentence about the machine, for the text")
    return parser.parse_args()


def held(child, command):
    """ns for which the thread is held in half a second, in which this command runs."""
    child.stdin.write("x")
    child.stdin.flush()
    tool = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time = int(child.stdout.readline())
    said, words = tool.communicate(timeout=60)
    if tool.returncode != 0:
        sys.exit(f"{' '.join(command)}: {words}")
    return time, said


def main():
    options = arguments()
    if os.geteuid() != 0 or not shutil.which("gdb"):
        sys.exit("bench/held.py needs root and gdb")
    times = {"none": [], "kymo": [], "gdb": []}
    with tempfile.TemporaryDirectory() as place:
        program = compiled(pathlib.Path(place), "reads", READS)
        child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            commands = {"none": ["true"],
                        "kymo": [str(pathlib.Path(options.kymo).resolve()), "stacks", "-q", "-p", str(child.pid)],
                        "gdb": ["gdb", "-nx", "-batch", "-ex", "thread apply all backtrace", "-p", str(child.pid)]}
            for _ in range(options.rounds):
                for tool, command in commands.items():
                    time, said = held(child, command)
                    if tool != "none" and "main" not in said:
                        sys.exit(f"{tool} does not say where the thread runs: {said}")
                    times[tool].append(time)
        finally:
            child.kill()
            child.wait()
    median = lambda values: sorted(values)[len(values) // 2]
    lines = [head("bench/held.py", options.note), "",
             f"How long a thread that runs is held in half a second, us; {options.rounds} rounds in turns:", "",
             f"{'tool':6} {'median':>9} {'longest':>9}"]
    lines += [f"{tool:6} {median(values) / 1e3:9.0f} {max(values) / 1e3:9.0f}   "
              + " ".join(f"{value / 1e3:.0f}" for value in values) for tool, values in times.items()]
    print("\n".join(lines))
    keep("held", lines)


if __name__ == "__main__":
    main()
