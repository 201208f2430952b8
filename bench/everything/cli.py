"""The command line of everything.py: which programs, which modes, the table, the dated result."""

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from everything import counts, modes, outside, programs
from versus.runner import ROOT, RUNS, commit, machine, table

ROWS = """Rows are programs, as `--only` names them:

  throws        a C++ program of exceptions, coroutines, threads; itself and libstdc++
  panics        a Rust program of panics, threads, an executor of futures; itself, with Rust's library
  cpython       CPython's tests of its core and of modules in C (dictionaries, generators, exceptions, SQLite, ...); libpython, its modules, libsqlite3
  processes     CPython's tests of signals, forks and child processes, which are probed, too
  threads       CPython's tests of threads, asyncio and subprocesses
  sqlite        the shell of SQLite with a long script; itself and libsqlite3
  zstd          zstd at many levels and formats; itself, liblzma, liblz4, zlib
  redis         redis-server under commands of all kinds and its benchmark; itself, jemalloc, lzf
  libc          cpython's and processes' tests, while `kymo probe` comes and goes from outside, with all functions of the C library, and at times of libpython
  libc-threads  the same beside the tests of `threads`

`probes` says how they come: `all` at once before main; `each` one after another, over as many runs as it takes until each function had its turn;
`random` all, and parts go and come back; `outside` by a kymo that enters the process, leaves, or is killed. `do` says what they do at a hit."""
HEAD = ["program", "probes", "do", "functions", "served", "probed", "attaches", "detaches", "hits", "returns", "seconds", "outcome"]


def main(argv=None):
    parser = argparse.ArgumentParser(prog="bench/everything.py", description=__doc__, epilog=ROWS,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAMES", help=f"some of {','.join(programs.NAMES)}, divided by commas")
    parser.add_argument("--how", metavar="NAMES", help=f"some of {','.join(modes.HOW)}")
    parser.add_argument("--do", metavar="NAMES", help=f"some of {','.join(modes.DO)}")
    parser.add_argument("--quick", action="store_true", help="small programs and few modes, in seconds: what `make test` runs")
    parser.add_argument("--no-counts", action="store_true", help="compare no counts")
    parser.add_argument("--only-counts", action="store_true", help="compare counts, and nothing else")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="what comes and goes at random is another for each N")
    parser.add_argument("--group", type=int, metavar="N",
                        help="how many functions have probes at a time where one after another has (default: 1; with --quick 400)")
    parser.add_argument("--release", action="store_true", help="build with optimisation, as kymo is when it is used")
    parser.add_argument("--kymo", metavar="PATH", help="the kymo that probes from outside, which has the agent in it")
    parser.add_argument("--library", metavar="PATH", help="the library to preload (default: build it)")
    parser.add_argument("--work", metavar="DIR", help="where files go (default: a new folder in $TMPDIR, removed at the end)")
    parser.add_argument("--limit", type=int, default=programs.LIMIT_S, metavar="SECONDS",
                        help="a program that is not at its end by then is killed (default: %(default)s)")
    parser.add_argument("--no-save", action="store_true", help="print the table only, write no file to bench/runs/")
    parser.add_argument("--note", default="", help="a sentence to keep with the result")
    args = parser.parse_args(argv)
    # A shell's background job ignores it, and so would all programs, whose tests ask for it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # What is running must not outlive this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    programs.LIMIT_S = args.limit
    begun = datetime.datetime.now().astimezone()
    scratch = Path(args.work or tempfile.mkdtemp(prefix="kymo-everything-"))
    scratch.mkdir(parents=True, exist_ok=True)
    # Programs and their libraries are copied there, so that nobody else's hits are counted; other users may run them.
    scratch.chmod(0o755)
    try:
        library = Path(args.library) if args.library else build(args.release)
        runs = [] if args.only_counts else run_all(args, scratch, library.resolve())
        compared = [] if args.no_counts else counts.compare_all(scratch, library.resolve(), quick=args.quick, say=say)
    finally:
        if not args.work:
            shutil.rmtree(scratch, ignore_errors=True)
    show(runs, compared)
    if not args.no_save:
        save(args, begun, runs, compared)
    wrong = [run for run in runs if not run["outcome"].startswith(("same", "skipped"))]
    wrong += [one for one in compared if one["outcome"] not in ("equal", "skipped")]
    return 1 if wrong else 0


def say(words):
    print(f"everything: {words}", file=sys.stderr, flush=True)


def build(release):
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    how = ["--release"] if release else []
    say(" ".join(["cargo build -p kymo-agent --example everything", *how]))
    subprocess.run(["cargo", "build", "--locked", "--quiet", "-p", "kymo-agent", "--example", "everything", *how], cwd=ROOT, check=True)
    return ROOT / target / ("release" if release else "debug") / "examples" / "libeverything.so"


def chosen(names, wanted, what):
    if not wanted:
        return list(names)
    wanted = wanted.split(",")
    unknown = [name for name in wanted if name not in names]
    if unknown:
        sys.exit(f"everything: no such {what}: {', '.join(unknown)}; there are {', '.join(names)}")
    return wanted


def run_all(args, scratch, library):
    every = programs.every(scratch, quick=args.quick)
    wanted = chosen(programs.NAMES, args.only, "program")
    hows, dos = chosen(modes.HOW, args.how, "way"), chosen(modes.DO, args.do or args.quick and "mixed", "consumer")
    runs = []
    for program in every:
        if program.name not in wanted:
            continue
        reason = program.prepare()
        if reason:
            print(f"SKIPPED everything::{program.name}: {reason}", flush=True)
            skip_log(f"SKIPPED everything::{program.name}: {reason}")
            runs.append({"program": program.name, "outcome": "skipped", "reason": reason})
            continue
        runs += modes.run(program, hows, dos, scratch, library, say, args.seed, args.group or (400 if args.quick else 1))
    if not args.quick:
        runs += outside.run_all([name for name in outside.NAMES if name in wanted], args.kymo, scratch, args.seed, say)
    return runs


def skip_log(line):
    """Where the suite collects what was skipped."""
    if os.environ.get("KYMO_SKIP_LOG"):
        with open(os.environ["KYMO_SKIP_LOG"], "a", encoding="utf-8") as log:
            print(line, file=log)


def show(runs, compared):
    def count(run, key):
        return f"{run[key]:,}" if key in run else ""

    rows = []
    for run in runs:
        share = f"{100 * run['served'] / run['functions']:.2f} %" if run.get("functions") else ""
        rows.append([run["program"], run.get("how", ""), run.get("do", ""), count(run, "functions"), share] +
                    [count(run, key) for key in ("placed", "attaches", "detaches", "hits", "returns")] +
                    [f"{run['seconds']:.1f}" if "seconds" in run else "", run["outcome"]])
    if rows:
        table(HEAD, rows)
    functions = {}
    for run in runs:
        for module in run.get("modules", []):
            functions[module["path"]] = module
    if functions:
        all_of = sum(module["functions"] for module in functions.values())
        served = sum(module["served"] for module in functions.values())
        print(f"\n{served:,} of {all_of:,} functions are served inside the program ({100 * served / all_of:.2f} %), in {len(functions)} modules")
    if compared:
        print()
        head = ["counts of", "against", "do", "functions", "equal", "hits", "outcome"]
        table(head, [[one["program"], one["against"], one["do"], f"{one.get('functions', 0):,}", f"{one.get('equal', 0):,}",
                      f"{one.get('hits', 0):,}", one["outcome"]] for one in compared])


def save(args, begun, runs, compared):
    record = {"subject": "everything", "begun": begun.isoformat(timespec="seconds"), "command": sys.argv, "note": args.note,
              "machine": machine(), "commit": commit(), "runs": runs, "counts": compared}
    RUNS.mkdir(parents=True, exist_ok=True)
    name = f"{begun:%Y-%m-%d}-everything"
    path, number = RUNS / f"{name}.json", 1
    while path.exists():
        number += 1
        path = RUNS / f"{name}-{number}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    say(f"written: {path.relative_to(ROOT)}")
