"""The command line of versus.py: options that all subjects share, one subcommand per subject.

A subject is a module with three names:

    HELP                         one line for `--help`
    add_arguments(parser)        its own options
    run(bench, args) -> dict     races, prints its table, returns what goes into the dated JSON file

A new subject is a new file and a new entry in SUBJECTS.
"""

import argparse
import signal
import sys

from versus import annotate, attach, breakpoint, cpython, diff, evlist, export, idle, locks, overhead, probe, releases, report, runtimes, spawn, sql, stacks, start, stat, storm, upstream, view, wall, watch
from versus.runner import Bench, Refusal

SUBJECTS = {
    "report": report,
    "annotate": annotate,
    "overhead": overhead,
    "runtimes": runtimes,
    "cpython": cpython,
    "stacks": stacks,
    "start": start,
    "diff": diff,
    "evlist": evlist,
    "attach": attach,
    "spawn": spawn,
    "storm": storm,
    "stat": stat,
    "breakpoint": breakpoint,
    "idle": idle,
    "watch": watch,
    "probe": probe,
    "upstream": upstream,
    "view": view,
    "export": export,
    "sql": sql,
    "wall": wall,
    "locks": locks,
    "releases": releases,
}


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="bench/versus.py", description="Races kymo against its peers, side by side in one run."
    )
    subjects = parser.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    for name, module in SUBJECTS.items():
        sub = subjects.add_parser(name, help=module.HELP, description=module.__doc__,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
        shared_arguments(sub)
        module.add_arguments(sub)
    args = parser.parse_args(argv)
    # What a subject has started must not outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with Bench(args) as bench:
            result = SUBJECTS[args.subject].run(bench, args)
            # A subject with variants has a file for each.
            bench.save(result.pop("saved_as", args.subject), result)
    except Refusal as refusal:
        print(f"versus {args.subject}: {refusal}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def shared_arguments(parser):
    parser.add_argument("--kymo", metavar="PATH",
                        help="the kymo to race (default: `cargo build --release`, then target/release/kymo)")
    parser.add_argument("--perf", metavar="PATH", default="perf", help="the perf to race (default: the one in PATH)")
    parser.add_argument("--rounds", "-K", type=int, metavar="K", help="measured rounds after one warm-up")
    parser.add_argument("--work", metavar="DIR", help="where recordings go (default: a new folder in $TMPDIR, removed at the end)")
    parser.add_argument("--no-save", action="store_true", help="print the table only, write no file to bench/runs/")
    parser.add_argument("--note", default="", help="a sentence to keep with the result, such as what was special about the machine")
