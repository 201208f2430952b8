#!/usr/bin/env python3
"""How long a thread that runs is held while `kymo stacks`, or gdb, looks at its process.

    bench/held.py [--kymo target/release/kymo] [--rounds 20] [--note TEXT]

Needs root, gdb, two CPUs and a C compiler. One thread reads the clock without end, before all others of its CPU
(SCHED_FIFO), beside 50 that wait, and tells its longest gap between two readings in each half second: what interrupts and
the machine's host take, and what a tool takes that looks at it. The tools run on another CPU, in turns with half seconds
in which none does. The text goes into bench/runs.
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
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}
static void *rests(void *unused) { for (;;) pause(); return unused; }
int main(void) {
    pthread_t thread;
    for (int left = 50; left > 0; left--) pthread_create(&thread, NULL, rests, NULL);
    struct sched_param priority = {.sched_priority = 50};
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(sysconf(_SC_NPROCESSORS_ONLN) - 1, &cpus);
    if (sched_setaffinity(0, sizeof cpus, &cpus) || sched_setscheduler(0, SCHED_FIFO, &priority)) return 1;
    char word;
    // A letter in, half a second, the longest gap out.
    while (read(0, &word, 1) == 1) {
        long begun = now(), last = begun, longest = 0;
        while (last - begun < 500000000) {
            long read = now();
            if (read - last > longest) longest = read - last;
            last = read;
        }
        printf("%ld\n", longest);
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


def longest_gap(child, command):
    """ns of the longest gap in half a second, in which this command runs."""
    child.stdin.write("x")
    child.stdin.flush()
    tool = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    gap = int(child.stdout.readline())
    said, words = tool.communicate(timeout=60)
    if tool.returncode != 0:
        sys.exit(f"{' '.join(command)}: {words}")
    return gap, said


def main():
    options = arguments()
    if os.geteuid() != 0 or not shutil.which("gdb") or os.cpu_count() < 2:
        sys.exit("bench/held.py needs root, gdb and two CPUs")
    others = ["taskset", "-c", f"0-{os.cpu_count() - 2}"]
    gaps = {"none": [], "kymo": [], "gdb": []}
    with tempfile.TemporaryDirectory() as place:
        program = compiled(pathlib.Path(place), "reads", READS)
        child = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            commands = {"none": ["true"],
                        "kymo": [str(pathlib.Path(options.kymo).resolve()), "stacks", "-q", "-p", str(child.pid)],
                        "gdb": ["gdb", "-nx", "-batch", "-ex", "thread apply all backtrace", "-p", str(child.pid)]}
            for _ in range(options.rounds):
                for tool, command in commands.items():
                    gap, said = longest_gap(child, others + command)
                    if tool != "none" and "main" not in said:
                        sys.exit(f"{tool} does not say where the thread runs: {said}")
                    gaps[tool].append(gap)
        finally:
            child.kill()
            child.wait()
    median = lambda values: sorted(values)[len(values) // 2]
    lines = [head("bench/held.py", options.note), "",
             f"The longest gap of a thread that runs, in half a second, us; {options.rounds} rounds in turns:", "",
             f"{'tool':6} {'median':>9} {'longest':>9}"]
    lines += [f"{tool:6} {median(values) / 1e3:9.0f} {max(values) / 1e3:9.0f}   "
              + " ".join(f"{value / 1e3:.0f}" for value in values) for tool, values in gaps.items()]
    print("\n".join(lines))
    keep("held", lines)


if __name__ == "__main__":
    main()
