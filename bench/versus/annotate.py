"""One function of a large program with debug information, annotated by both tools.

The program is kymo itself, which reads a small recording; the function is the hottest one of its own. perf runs objdump.
Before the race, the counts of all instructions are compared: a fast wrong answer would win nothing.

kymo runs without its symbol cache, with an empty one (cold), and with one that an earlier run has filled (warm).
"""

import re
import shutil

from versus.runner import Refusal, alternate, measure, megabytes, output, seconds, spread, table

HELP = "a function of a large program, annotated by perf and by kymo"


def add_arguments(parser):
    parser.add_argument("--program", metavar="PATH", help="a kymo to record, instead of the one that is measured")


def run(bench, args):
    rounds = args.rounds or 5
    program = args.program or bench.kymo
    recording, function = make_recording(bench, program)
    counts = {tool: counts_of(tool, recording, function) for tool in (bench.perf, bench.kymo)}
    perf, kymo = (counts[tool] for tool in (bench.perf, bench.kymo))
    if perf != kymo:
        print(f"THE ANSWERS DIFFER: perf {sorted(perf.items() - kymo.items())[:5]}, kymo {sorted(kymo.items() - perf.items())[:5]}")
    print(f"{function}: {sum(kymo.values())} samples at {len(kymo)} instructions\n")
    competitors = {"perf": annotator(bench, bench.perf, recording, function)}
    for name in ("kymo", "kymo cold", "kymo warm"):
        competitors[name] = annotator(bench, bench.kymo, recording, function, name.removeprefix("kymo").strip() or "none")
    runs = alternate(competitors, rounds)
    result, rows = {}, []
    for name, of in runs.items():
        wall = spread([r.wall_s for r in of])
        result[name] = {"wall_s": wall, "peak_bytes": spread([r.peak_bytes for r in of])}
        ratio = result["perf"]["wall_s"]["median"] / wall["median"]
        rows.append([name, *(seconds(wall[k]) for k in ("median", "min", "max")),
                     megabytes(result[name]["peak_bytes"]["max"]), f"{ratio:.2f}x"])
    table(["annotate", "median", "min", "max", "peak memory", "faster"], rows)
    return {"function": function, "rounds": rounds, "same_counts": perf == kymo, "who": result}


def make_recording(bench, program):
    """A recording of the program, and its hottest function."""
    small, path = bench.scratch / "small.data", bench.scratch / "annotate.data"
    measure([bench.perf, "record", "-q", "-o", small, "-e", "cpu-clock", "--", "true"], cwd=bench.scratch)
    measure([bench.perf, "record", "-q", "-o", path, "-e", "cpu-clock:u", "-F", "4000", "--",
             program, "--no-symbol-cache", "report", "--stdio", "-i", small], cwd=bench.scratch)
    rows = output([bench.kymo, "query", "--json", path, "top 50"])
    found = re.findall(r'"name": "([^"\\]+)",\s*"module": "kymo"', rows)
    if not found:
        raise Refusal(f"{path} has no function of kymo")
    return path, found[0]


def counts_of(tool, recording, function):
    """Samples by address."""
    text = output([tool, "annotate", "--stdio", "-n", "--no-source", "-i", recording, "-s", function])
    lines = re.findall(r"^\s*([1-9]\d*) :\s+([0-9a-f]+):", text, re.MULTILINE)
    return {address: int(samples) for samples, address in lines}


def annotator(bench, tool, recording, function, cache=None):
    """A function that makes `tool` annotate once; `cache`: what kymo's symbol cache has."""
    folder = bench.scratch / f"symbols-{cache}"
    variables = {"XDG_CACHE_HOME": str(folder), "KYMO_SYMBOL_CACHE": "off" if cache == "none" else ""} if cache else {}

    def annotate_once():
        if cache == "cold":
            shutil.rmtree(folder, ignore_errors=True)
        if cache:
            folder.mkdir(exist_ok=True)
        with open(bench.scratch / "annotate.txt", "wb") as text:
            return measure([tool, "annotate", "--stdio", "-i", recording, "-s", function], stdout=text, variables=variables)
    return annotate_once
