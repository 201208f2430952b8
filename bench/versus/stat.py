"""What counting costs the program that is counted.

Two programs, each bare, under `perf stat` (events per task, the default set), under `perf stat -a` and under `kymo stat`:

* `perf bench sched pipe`, two processes that wake each other: pinned to one CPU, where every operation is two switches, and free;
* `fixtures/programs/spawn.c`, which creates and joins threads one after the other.

Two times of each: what the program itself measures (wall), and the CPU time of its processes, which `workloads/timed.c` takes between tool
and program. The work of a tool at a switch is done by the tasks that switch, so it is in their CPU time; what other programs do beside is
not. Free, the scheduler's choice of one CPU or two is most of the wall time. The ratio is that to bare, with a 95 % bootstrap interval;
"bare again" is the same as bare, so its interval is the noise of the race.

The kernel looks for events at every switch for a second after the last event of a task was closed, so before each run there is a pause that is
longer: nobody pays for the one before.
"""

import os
import re
import time

from versus.runner import Refusal, alternate, output, ratio_interval, spread, table

# The kernel's own delay is one second (perf_sched_work).
PAUSE_S = 1.2

HELP = "the slowdown of switching tasks and of creating threads under stat"


def add_arguments(parser):
    parser.add_argument("--loops", type=int, default=100_000, help="operations of the ping-pong in one run (default: 100000)")
    parser.add_argument("--threads", type=int, default=20_000, help="threads to create in one run (default: 20000)")
    parser.add_argument("--cpu", type=int, default=0, help="the CPU to pin both tasks to (default: 0)")
    parser.add_argument("--programs", default="pinned,free,spawn", help="which programs (default: pinned,free,spawn)")
    parser.add_argument("--more", action="store_true",
                        help="also perf stat -e dummy, perf stat -i, kymo stat --source perf and kymo stat -a")


def run(bench, args):
    rounds = args.rounds or 21
    launcher = bench.compile("bench/workloads/timed.c")
    programs, rows, refused = {}, [], {}
    for name in args.programs.split(","):
        target, said_ns, operations = program(bench, args, name)
        competitors, refused[name] = {}, {}
        for who, tool in tools(bench, args).items():
            once = timed(bench, [*tool, launcher, bench.scratch / "took", *target], said_ns, operations)
            try:
                once()
                competitors[who] = once
            except Refusal as refusal:
                if who == "bare":
                    raise
                refused[name][who] = str(refusal)
                bench.say(f"{name}: {who} cannot: {refusal}")
        runs = alternate(competitors, rounds, say=lambda words, name=name: bench.say(f"{name}: {words}"))
        programs[name] = {"command": [str(a) for a in target], "who": {}}
        for who, of in runs.items():
            found = {}
            for key in ("wall_us", "cpu_us"):
                values = [one[key] for one in of]
                found[key] = spread(values)
                found[f"{key}_to_bare"] = ratio_interval(values, [one[key] for one in runs["bare"]])
            programs[name]["who"][who] = found
            rows.append([f"{name}: {who}", *cells(found, "cpu_us", who), *cells(found, "wall_us", who)])
        rows += [[f"{name}: {who}", "cannot", "", "", "", "", ""] for who in refused[name]]
    table(["us per operation", "CPU", "to bare", "95 % interval", "wall", "to bare", "95 % interval"], rows)
    return {"rounds": rounds, "loops": args.loops, "threads": args.threads, "programs": programs, "refused": refused}


def program(bench, args, name):
    """The command, a function that reads the nanoseconds of one operation from what it prints, and the number of operations."""
    pipe = [bench.perf, "bench", "sched", "pipe", "-l", str(args.loops)]
    if name == "pinned":
        return ["taskset", "-c", str(args.cpu), *pipe], pipe_ns, args.loops
    if name == "free":
        return pipe, pipe_ns, args.loops
    if name == "spawn":
        return [bench.compile("fixtures/programs/spawn.c", "-pthread"), str(args.threads)], int, args.threads
    raise Refusal(f"there is no program {name}; there are pinned, free and spawn")


def pipe_ns(text):
    found = re.search(r"([0-9.]+) usecs/op", text)
    if not found:
        raise Refusal(f"perf bench sched pipe printed something else:\n{text}")
    return float(found[1]) * 1e3


def tools(bench, args):
    """Who counts, as the words before the program."""
    perf, kymo = [bench.perf, "stat", "-o", os.devnull], [bench.kymo, "stat", "-o", os.devnull]
    found = {
        "bare": [],
        "bare again": [],
        "perf stat": [*perf, "--"],
        "perf stat -a": [*perf, "-a", "--"],
        "kymo stat": [*kymo, "--"],
    }
    if args.more:
        found["perf stat -e dummy"] = [*perf, "-e", "dummy", "--"]
        found["perf stat -i"] = [*perf, "-i", "--"]
        found["kymo stat --source perf"] = [*kymo, "--source", "perf", "--"]
        found["kymo stat -a"] = [*kymo, "-a", "--"]
    return found


def timed(bench, command, said_ns, operations):
    """A function that runs the command once: microseconds of wall and of CPU time for one operation."""
    def once():
        time.sleep(PAUSE_S)
        wall_ns = said_ns(output(command, cwd=bench.scratch))
        _, cpu_ns = map(int, (bench.scratch / "took").read_text().split())
        return {"wall_us": wall_ns / 1e3, "cpu_us": cpu_ns / 1e3 / operations}
    return once


def cells(found, key, who):
    ratio, low, high = found[f"{key}_to_bare"]
    alone = who == "bare"
    return [f"{found[key]['median']:.3f}", "" if alone else f"{ratio:.3f}", "" if alone else f"{low:.3f} .. {high:.3f}"]
