"""What it costs to know which locks are contended.

`workloads/locks.c` measures itself, in turns bare, bare again, under `kymo locks`, without its stacks, and under it where the kernel attaches programs to
tracepoints only (`--tracepoints`):

    pair       a lock that is free is taken and given back; the fastest of 200 parts of a run
    call       a system call that has nothing to do with locks; the same
    contended  two threads on one CPU that wait for each other at a lock

The ratio is that to the bare program, with a 95 % bootstrap interval; that of bare again is the noise. The ratio of the fastest rounds is what is left where
the machine's speed changes from round to round.

With `--holds` the same for `kymo locks --holds`, which has code of its own at each lock and unlock: the pair, and what it takes longer than bare.
"""

import re

from versus.runner import alternate, output, ratio_interval, spread, table

HELP = "what it costs to know which locks are contended"

TURNS = {"pair": 50_000_000, "call": 5_000_000, "contended": 100_000}


def add_arguments(parser):
    parser.add_argument("--only", choices=tuple(TURNS), help="one of them")
    parser.add_argument("--holds", action="store_true", help="what it costs to time how long locks are held: the pair")


def run(bench, args):
    program = bench.compile("bench/workloads/locks.c", "-pthread")
    locks = [bench.kymo, "locks", "-q", "-o", bench.scratch / "locks.data"]
    before = {"bare": [], "bare again": [], "kymo locks": [*locks, "--"], "without stacks": [*locks, "--stacks", "1", "--"], "at tracepoints": [*locks, "--tracepoints", "--"]}
    if args.holds:
        before = {**{who: before[who] for who in ("bare", "bare again", "kymo locks")}, "holds": [*locks, "--holds", "--"]}
    result = {}
    for mode, turns in TURNS.items():
        if args.only in (None, mode) and (not args.holds or mode == "pair"):
            result[mode] = compare(bench, args, before, [program, mode, str(turns)])
    return result


def compare(bench, args, before, program):
    def measure(words):
        return float(re.search(r"^([0-9.]+) ns$", output([*words, *program], cwd=bench.scratch), re.MULTILINE)[1])

    competitors = {who: lambda words=words: measure(words) for who, words in before.items()}
    runs = alternate(competitors, args.rounds or 15, say=bench.say)
    result, rows = {}, []
    for who, of in runs.items():
        ratio = ratio_interval(of, runs["bare"])
        fastest = min(of) / min(runs["bare"])
        result[who] = {"ns": spread(of), "to_bare": ratio, "fastest_to_bare": fastest}
        if args.holds:
            result[who]["added_ns"] = spread([with_it - bare for with_it, bare in zip(of, runs["bare"])])
        rows.append([who, *(f"{spread(of)[key]:.2f}" for key in ("median", "min", "max")), f"{ratio[0]:.3f}", f"{ratio[1]:.3f} .. {ratio[2]:.3f}", f"{fastest:.3f}"])
    if args.holds:
        table(["added to bare, ns", "median", "min", "max"], [[who, *(f"{of['added_ns'][key]:.1f}" for key in ("median", "min", "max"))] for who, of in result.items()])
    table([f"{program[1]}: ns", "median", "min", "max", "to bare", "95 % interval", "fastest to bare"], rows)
    return result
