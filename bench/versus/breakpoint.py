"""Threads that inherit watchpoints: `bench breakpoint thread` and `enable` of both tools.

The kernel does the work in both, so what is to be seen is that both say the same. Columns:

    perf        `perf bench breakpoint thread`
    kymo        `kymo bench breakpoint thread`
    bare        kymo's with `-b 0`: threads without any watchpoint, what the others are to be compared with

`kymo/perf` has a 95 % bootstrap interval; equal within noise is an interval that holds 1.
"""

import re

from versus.runner import alternate, output, ratio_interval, spread, table

HELP = "threads that inherit watchpoints: `bench breakpoint thread` and `enable` of both tools"

# name: benchmark, batches, options of both tools; whether there is a bare one
CASES = {
    "1 thread, 1 watchpoint": ("thread", 500, ["-b", "1", "-p", "1", "-t", "1"], True),
    "64 x 64 threads, 4 watchpoints": ("thread", 60, ["-b", "4", "-p", "64", "-t", "64"], True),
    "enable, 1000 asleep": ("enable", 50, ["-p", "1000"], False),
    "enable, 1 spins": ("enable", 200, ["-a", "1"], False),
}
EACH = re.compile(r"([\d.]+) usecs/op\n")


def add_arguments(parser):
    parser.add_argument("--only", metavar="WORD", default="", help="only the cases whose name has this word")


def run(bench, args):
    rounds = args.rounds or 15
    cases, rows = {}, []
    for name, (which, batches, options, has_bare) in CASES.items():
        if args.only not in name:
            continue
        competitors = {"perf": once(bench.perf, which, batches, options), "kymo": once(bench.kymo, which, batches, options)}
        if has_bare:
            competitors["bare"] = once(bench.kymo, which, batches, ["-b", "0", *options[2:]])
        runs = alternate(competitors, rounds, say=lambda words, name=name: bench.say(f"{name}: {words}"))
        of = {who: {"operation_us": spread(took)} for who, took in runs.items()}
        of["kymo_to_perf"] = ratio_interval(runs["kymo"], runs["perf"])
        if has_bare:
            of["kymo_to_bare"] = ratio_interval(runs["kymo"], runs["bare"])
            of["perf_to_bare"] = ratio_interval(runs["perf"], runs["bare"])
        cases[name] = of | {"benchmark": which, "options": options, "batches": batches}
        rows.append([name, *(f"{of[who]['operation_us']['median']:.1f} us" if who in of else "" for who in ("perf", "kymo", "bare")),
                     *(interval(of.get(ratio)) for ratio in ("kymo_to_perf", "perf_to_bare", "kymo_to_bare"))])
    table(["an operation", "perf", "kymo", "bare", "kymo/perf", "perf/bare", "kymo/bare"], rows)
    return {"rounds": rounds, "cases": cases}


def once(tool, which, batches, options):
    """A function that runs the tool's benchmark once: microseconds per operation."""
    argv = [tool, "bench", "-r", str(batches), "breakpoint", which, *options]
    return lambda: float(EACH.search(output(argv)).group(1))


def interval(ratio):
    """A ratio and its interval for people."""
    return f"{ratio[0]:.3f} ({ratio[1]:.3f} .. {ratio[2]:.3f})" if ratio else ""
