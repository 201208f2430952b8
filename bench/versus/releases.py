"""Two builds of kymo in turns: whether a change made something slower.

`--before PATH` names the older one. Each race gives one number a run:

    report            CPU time of `kymo report` on a recording of context switches with call chains
    storm             time per operation of two processes that wake each other on one CPU, every switch recorded with its stack
    attach            from the start of `record -p` on sleeping threads until it records, along frame pointers
    attach default    the same without an option for call chains, which may mean different work in both
    stat              time per operation of the same two processes, counted by `kymo stat`
    probe count       time per call of a function that a probe inside the program counts
    probe latency     the same, with the time until it returns
    probe event       the same, with an event in a recording for each call

The ratio is of medians, with a 95 % bootstrap interval over pairs of runs.
"""

import copy
import os
import re
from pathlib import Path

from versus import attach, probe
from versus.runner import Refusal, alternate, measure, need_tracefs, output, ratio_interval, spread, table
from versus.sleepers import raise_descriptors, sleeping

HELP = "two builds of kymo in turns"


def add_arguments(parser):
    parser.add_argument("--before", metavar="PATH", required=True, help="the older kymo")
    parser.add_argument("--loops", type=int, default=20_000, help="operations of the ping-pong in one run (default: 20000)")
    parser.add_argument("--threads", type=int, default=1000, help="sleeping threads (default: 1000)")
    parser.add_argument("--seconds", type=float, default=0.3, help="how long the probed program calls (default: 0.3)")
    parser.add_argument("--only", help="which races, separated by commas (default: all)")


def run(bench, args):
    if os.geteuid() != 0:
        raise Refusal("recording all CPUs needs root")
    need_tracefs()
    raise_descriptors()
    rounds = args.rounds or 11
    before = copy.copy(bench)
    before.kymo = Path(args.before).resolve()
    builds = {"before": before, "after": bench}
    found, rows = {}, []
    with sleeping(bench, args.threads) as pid:
        races = {
            "report": report(bench, args),
            "storm": lambda of: storm(of, args),
            "attach": attached(bench, pid, "--call-graph", "fp"),
            "attach default": attached(bench, pid),
            "stat": lambda of: pipe([of.kymo, "stat", "-o", os.devnull, "--"], bench, args),
            **probes(builds, args),
        }
        for name, race in races.items():
            if args.only and name not in args.only.split(","):
                continue
            competitors = {which: lambda of=of, race=race: race(of) for which, of in builds.items()}
            runs = alternate(competitors, rounds, say=lambda words, name=name: bench.say(f"{name}: {words}"))
            ratio = ratio_interval(runs["after"], runs["before"])
            found[name] = {**{which: spread(values) for which, values in runs.items()}, "ratio": ratio}
            rows.append([name, *(f"{found[name][which]['median']:.4g}" for which in builds),
                         f"{ratio[0]:.3f}", f"{ratio[1]:.3f} .. {ratio[2]:.3f}"])
    table(["race", "before", "after", "after / before", "95 % interval"], rows)
    versions = {which: output([of.kymo, "--version"]).strip() for which, of in builds.items()}
    return {"rounds": rounds, "builds": versions, "races": found}


def report(bench, args):
    recording = bench.scratch / "switches.data"
    measure([bench.perf, "record", "-q", "-a", "-g", "-e", "sched:sched_switch", "-c", "1", "-o", recording, "--",
             bench.perf, "bench", "sched", "pipe", "-l", 10 * args.loops], cwd=bench.scratch)

    def once(of):
        run = measure([of.kymo, "report", "-i", recording, "--stdio"])
        return run.user_s + run.sys_s
    return once


def storm(of, args):
    recording = of.scratch / "storm.data"
    recorder = [of.kymo, "record", "-a", "-e", "sched:sched_switch", "-c", "1", "--call-graph", "dwarf,8192", "-o", recording]
    took = pipe([*recorder, "--"], of, args)
    recording.unlink()
    return took


def pipe(tool, bench, args):
    """Microseconds per operation of the ping-pong under this tool."""
    said = output([*tool, "taskset", "-c", "0", bench.perf, "bench", "sched", "pipe", "-l", args.loops], cwd=bench.scratch)
    return float(re.search(r"([\d.]+) usecs/op", said)[1])


def attached(bench, pid, *options):
    folder = bench.scratch / "attach"
    folder.mkdir(exist_ok=True)
    for fifo in ("commands", "acks"):
        if not (folder / fifo).exists():
            os.mkfifo(folder / fifo)
    control = f"fifo:{folder}/commands,{folder}/acks"
    target = ["-e", "cpu-clock", "-p", str(pid), "-o", str(folder / "recording"), "--control", control, *options]
    return lambda of: attach.attach(folder, [str(of.kymo), "record", *target])[0]


def probes(builds, args):
    """The races of `versus.py probe` with each build, as functions of the build."""
    args = copy.copy(args)
    args.threads, args.frida_python = 1, "-"
    by_build = {id(of): probe.Race(of, args).competitors() for of in builds.values()}
    names = {"probe count": "kymo count", "probe latency": "kymo latency", "probe event": "kymo event"}
    return {name: lambda of, who=who: by_build[id(of)][who]()["ns_per_call"] for name, who in names.items()}
