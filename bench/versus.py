#!/usr/bin/env python3
"""Races kymo against its peers, side by side in one run.

    bench/versus.py report            the same big recording read by perf and by kymo
    bench/versus.py view              how soon a big recording is seen in the browser, and a selection counted
    bench/versus.py sql               queries over a dataset of many hosts
    bench/versus.py export            a big recording written in each format of other tools
    bench/versus.py annotate          a function of a large program, annotated by perf and by kymo
    bench/versus.py diff              how often kymo diff is right: equal builds, seeded slow-downs, intervals
    bench/versus.py overhead          what recording costs the recorded program
    bench/versus.py stacks            how many call chains of real programs are whole
    bench/versus.py runtimes          how much code of Java and node has names
    bench/versus.py start             what `record -- true` takes
    bench/versus.py evlist            event lists opened and closed by both tools
    bench/versus.py attach            from the start of `record -p` on thousands of threads until it records
    bench/versus.py spawn             the cost of creating threads while being recorded
    bench/versus.py stat              what counting costs switching tasks and the creation of threads
    bench/versus.py wall              what it costs to know where threads wait
    bench/versus.py locks             what it costs to know which locks are contended
    bench/versus.py breakpoint        threads that inherit watchpoints, by the benchmarks of both tools
    bench/versus.py watch             who writes this memory, by kymo and by gdb: hits per second, threads seen
    bench/versus.py probe             a probe on a hot function: kymo, bpftrace, frida-gum, uftrace, LTTng-UST
    bench/versus.py releases          two builds of kymo in turns: whether a change made something slower
    bench/versus.py idle              what an attached agent costs when no probe is met

Every subject is one module in bench/versus/; bench/README.md says what each one measures and how to read it.
Needs Python 3.9 and nothing else from the Python world.
"""

import sys

from versus import cli

if __name__ == "__main__":
    sys.exit(cli.main())
