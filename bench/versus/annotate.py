"""One function of a large program with debug information, annotated by both tools.

The program is kymo itself, which reads a small recording; the function is the hottest one of its own. perf runs objdump.
With `--megabytes` it is a C++ program of that size, most of it debug information: one unit with many templates, linked again
and again under other names; the function is `work` of the unit in the middle.
Before the race, the counts of all instructions are compared: a fast wrong answer would win nothing.

kymo runs without its symbol cache, with an empty one (cold), and with one that an earlier run has filled (warm).
"""

import re
import shutil
from pathlib import Path

from versus.runner import Refusal, alternate, measure, megabytes, output, seconds, spread, table

UNIT = Path(__file__).parent.parent / "workloads/templates.cc"
MAIN = """.globl main
main: sub $8, %rsp; mov $20000, %edi; call {work}; xor %eax, %eax; add $8, %rsp; ret
.section .note.GNU-stack, "", @progbits
"""

HELP = "a function of a large program, annotated by perf and by kymo"


def add_arguments(parser):
    parser.add_argument("--program", metavar="PATH", help="a kymo to record, instead of the one that is measured")
    parser.add_argument("--megabytes", type=int, metavar="N", help="record a C++ program of at least this size instead")


def run(bench, args):
    rounds = args.rounds or 5
    program = large_program(bench, args.megabytes) if args.megabytes else Path(args.program or bench.kymo)
    recording, function = make_recording(bench, program, args.megabytes is None)
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


def large_program(bench, megabytes):
    """A C++ program of at least so many MB."""
    unit, program = bench.scratch / "templates.o", bench.scratch / "templates"
    output(["g++", "-std=c++17", "-O1", "-g", "-c", UNIT, "-o", unit])
    names = [line.split()[-1] for line in output(["nm", "--defined-only", unit]).splitlines()]
    # What linking makes of a unit: its strings are shared, and relocations go.
    copies = 2
    while True:
        objects = [renamed(bench, unit, names, copy) for copy in range(copies)]
        main = bench.scratch / "main.s"
        main.write_text(MAIN.format(work=f"work.v{copies // 2}"))
        output(["g++", "-no-pie", "-o", program, main, *objects])
        size = program.stat().st_size
        if size >= megabytes * 1_000_000:
            return program
        copies = max(copies + 1, int(copies * megabytes * 1_020_000 / size))


def renamed(bench, unit, names, copy):
    """The unit with a suffix to all of its symbols, as compilers give it to clones."""
    path, renames = bench.scratch / f"templates-{copy}.o", bench.scratch / "renames"
    if not path.exists():
        renames.write_text("".join(f"{name} {name}.v{copy}\n" for name in names))
        output(["objcopy", f"--redefine-syms={renames}", unit, path])
    return path


def make_recording(bench, program, is_kymo):
    """A recording of the program, and its hottest function."""
    small, path = bench.scratch / "small.data", bench.scratch / "annotate.data"
    words = []
    if is_kymo:
        measure([bench.perf, "record", "-q", "-o", small, "-e", "cpu-clock", "--", "true"], cwd=bench.scratch)
        words = ["--no-symbol-cache", "report", "--stdio", "-i", small]
    measure([bench.perf, "record", "-q", "-o", path, "-e", "cpu-clock:u", "-F", "4000", "--", program, *words], cwd=bench.scratch)
    rows = output([bench.kymo, "query", "--json", path, "top 50"])
    found = re.findall(rf'"name": "([^"\\]+)",\s*"module": "{re.escape(program.name)}"', rows)
    if not found:
        raise Refusal(f"{path} has no function of {program.name}")
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
