"""Opening, mapping, enabling, disabling and closing event lists: `bench internals evlist-open-close` of both tools.

Each measurement is the average that the tool prints for some rounds in one process. Columns:

    perf        `perf bench internals evlist-open-close`
    kymo        kymo as it chooses by itself: scope and number of workers
    same shape  kymo with as many descriptors as perf (`--scope inherit`), workers by its own choice
    serial      the same with the reference, one thread (`--model`)

`auto/serial` above 1 means that the list chose wrongly. Every ratio has a 95 % bootstrap interval.
"""

import contextlib
import re

from versus.runner import alternate, output, ratio_interval, spread, table
from versus.sleepers import raise_descriptors, sleeping

HELP = "event lists opened and closed by both tools"

# name: threads of the target (None: the whole machine), options of both tools, iterations per run
CASES = {
    "dummy": (None, [], 100),
    "dummy, 1 thread": (1, [], 100),
    "dummy, 300 threads": (300, [], 20),
    "dummy, 2000 threads": (2000, [], 4),
    "100 dummies": (None, ["-n", "100"], 20),
    "{cs,cpu-clock}": (None, ["-e", "{cs,cpu-clock}"], 100),
    "{cs,cpu-clock}, 300 threads": (300, ["-e", "{cs,cpu-clock}"], 20),
}
TOOK = re.compile(r"Average open-close took: ([\d.]+) usec")
DESCRIPTORS = re.compile(r"\((\d+) fds\)")


def add_arguments(parser):
    parser.add_argument("--only", metavar="WORD", default="", help="only the cases whose name has this word")


def run(bench, args):
    rounds = args.rounds or 15
    limit = raise_descriptors()
    cases, rows = {}, []
    for name, (threads, options, iterations) in CASES.items():
        if args.only not in name:
            continue
        with contextlib.ExitStack() as stack:
            target = ["-p", str(stack.enter_context(sleeping(bench, threads)))] if threads else []
            ours = {
                "kymo": [],
                "same shape": ["--scope", "inherit"] if threads else [],
                "serial": ["--model", *(["--scope", "inherit"] if threads else [])],
            }
            bench_of = lambda tool, more: once(tool, [*options, *target, *more], iterations)
            competitors = {"perf": bench_of(bench.perf, [])}
            competitors |= {who: bench_of(bench.kymo, more) for who, more in ours.items()}
            runs = alternate(competitors, rounds, say=lambda words, name=name: bench.say(f"{name}: {words}"))
        cases[name] = case(runs) | {"threads": threads, "options": options, "iterations": iterations}
        rows.append(row(name, cases[name]))
    table(["event list", "fds perf", "kymo", "perf", "kymo", "faster", "same shape", "faster", "serial", "faster", "auto/serial"], rows)
    return {"rounds": rounds, "descriptor_limit": limit, "cases": cases}


def once(tool, options, iterations):
    """A function that runs the tool's benchmark once: (microseconds per round, descriptors)."""
    argv = [tool, "bench", "internals", "evlist-open-close", "-i", str(iterations), *options]
    def race():
        said = output(argv)
        return float(TOOK.search(said).group(1)), int(DESCRIPTORS.search(said).group(1))
    return race


def case(runs):
    """What is kept of one case."""
    took = {who: [us for us, _ in of] for who, of in runs.items()}
    result = {who: {"took_us": spread(of), "descriptors": runs[who][0][1]} for who, of in took.items()}
    for who in ("kymo", "same shape", "serial"):
        result[who]["faster_than_perf"] = ratio_interval(took["perf"], took[who])
    result["auto_to_serial"] = ratio_interval(took["same shape"], took["serial"])
    return result


def row(name, of):
    def microseconds(who):
        return f"{of[who]['took_us']['median']:.0f} us"

    def faster(who):
        return interval(of[who]["faster_than_perf"], "x")

    return [name, of["perf"]["descriptors"], of["kymo"]["descriptors"], microseconds("perf"),
            *(cell for who in ("kymo", "same shape", "serial") for cell in (microseconds(who), faster(who))),
            interval(of["auto_to_serial"])]


def interval(ratio, unit=""):
    """A ratio and its interval for people."""
    return f"{ratio[0]:.2f}{unit} ({ratio[1]:.2f} .. {ratio[2]:.2f})"
