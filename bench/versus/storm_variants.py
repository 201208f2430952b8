"""What `versus.py storm` records: each variant is a target, what is recorded of it, and what is special about the machine meanwhile."""

import contextlib
import dataclasses
import os
from typing import Callable

from versus.runner import Refusal, output
from versus.slow_disk import slow_disk

SWITCHES = ["-a", "-e", "sched:sched_switch", "-c", "1", "--call-graph", "dwarf,8192"]
# Hardly anybody makes this call but bench/workloads/calls.c.
CALL = "syscalls:sys_enter_getsid"
# Above every recorder: perf's runs without real-time priority, kymo's drains have 2.
PRIORITY = 50


@dataclasses.dataclass
class Variant:
    """One kind of storm."""

    help: str
    # The event whose samples are judged, and the options that record it.
    event: str
    what: list
    # The target's command: it prints the microseconds of one operation as `N usecs/op`.
    target: Callable
    # Operations in one run, and bytes of the largest recording of one.
    loops: int
    bytes_per_loop: int
    # Where recordings go: a context manager of a folder.
    folder: Callable = lambda bench, args: contextlib.nullcontext(bench.scratch)
    # The event is counted by `perf stat`, too, and samples and lost samples must be just as many.
    counted: bool = False
    # How many times more often than the loop something happens in the target: threads, CPUs.
    times: Callable = lambda args: 1


def pipe(bench, args):
    return [bench.perf, "bench", "sched", "pipe", "-l", args.loops]


def forks(bench, args):
    return [bench.compile("bench/workloads/forks.c"), args.loops, args.forks]


def crowd(bench, args):
    return [bench.compile("bench/workloads/crowd.c", "-pthread"), args.threads, args.loops]


def calls(bench, args):
    return [bench.compile("bench/workloads/calls.c"), args.loops, PRIORITY, *cpus(args)]


def cpus(args):
    """The CPUs of the target."""
    if not args.target_cpus:
        return sorted(os.sched_getaffinity(0))
    return [int(cpu) for cpu in output(["taskset", "-c", args.target_cpus, "sh", "-c", "taskset -cp $$ | sed 's/.*: //'"]).split(",")]


VARIANTS = {
    # Two switches an operation and what they wake, 8 KB and a header each; measured 28 KB, half of it again is kept free.
    "switches": Variant("every context switch, two processes that wake each other", "sched:sched_switch", SWITCHES, pipe, 200_000, 42_000),
    "packed": Variant("the same, all recorders pack with -z", "sched:sched_switch", [*SWITCHES, "-z"], pipe, 200_000, 42_000),
    "slow-disk": Variant("the same, recorded on a disk of --disk-mb-s", "sched:sched_switch", SWITCHES, pipe, 200_000, 42_000,
                         folder=lambda bench, args: slow_disk(bench.scratch, args.disk_mb_s)),
    "forks": Variant("every context switch, a target that forks --forks processes a second", "sched:sched_switch", SWITCHES, forks,
                     3000, 300_000),
    # The time of a piece of work is some 20 us; at 4 kHz not one in ten has a sample of 8 KB.
    "threads": Variant("--threads threads that compute, cpu-clock at 4 kHz", "cpu-clock",
                       ["-e", "cpu-clock", "-F", "4000", "--call-graph", "dwarf,8192"], crowd, 50, 1000, times=lambda args: args.threads),
    "busy": Variant("every CPU is busy with what is recorded, at a higher priority than any recorder: what is lost must be counted", CALL,
                    ["-a", "-e", CALL, "-c", "1", "--call-graph", "dwarf,8192"], calls, 50_000, 10_000, counted=True,
                    times=lambda args: len(cpus(args))),
}


def add_arguments(parser):
    names = "\n".join(f"{name}: {variant.help}" for name, variant in VARIANTS.items())
    parser.add_argument("--variant", choices=VARIANTS, default="switches", metavar="NAME",
                        help="; ".join(names.splitlines()) + " (default: switches)")
    loops = ", ".join(f"{variant.loops} in {name}" for name, variant in VARIANTS.items())
    parser.add_argument("--loops", type=int, help=f"operations of the target in one run, of each thread or CPU (default: {loops})")
    parser.add_argument("--threads", type=int, default=2000, help="threads of the variant threads (default: 2000)")
    parser.add_argument("--forks", type=int, default=1000, help="forks a second of the variant forks (default: 1000)")
    parser.add_argument("--disk-mb-s", type=int, default=50, help="megabytes a second of the variant slow-disk (default: 50)")


def chosen(args):
    """The variant, with its defaults put into the arguments."""
    variant = VARIANTS[args.variant]
    if args.loops is None:
        args.loops = variant.loops
    if args.loops < 1:
        raise Refusal("--loops must be at least 1")
    return variant
