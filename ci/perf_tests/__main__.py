#!/usr/bin/env python3
"""perf's own shell tests, run with perf and with kymo in perf's place: `make perf-tests`.

    python3 -m ci.perf_tests                     # every test of three Debian releases; takes an hour or two
    python3 -m ci.perf_tests --suite sid evlist  # tests of one release whose names contain `evlist`
    python3 -m ci.perf_tests --book FILE         # the table as a page of the book, too

The tests come with Debian's linux-perf packages, which `ci/perfs.sh` unpacks. They call `perf`; here that is the
release's own perf, and then a command that runs kymo. `perf test`, which also runs the tests' workloads, is always
perf's. `reasons.txt` names the tests that kymo does not pass, and why. The command fails on any other test that perf
passes and kymo does not, and on a reason that is no longer true.
"""

import argparse
import pathlib
import sys

from . import runner, table

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent


def main():
    parser = argparse.ArgumentParser(description="Run perf's shell tests with perf and with kymo.")
    parser.add_argument("only", nargs="*", help="run only tests whose names contain one of these")
    parser.add_argument("--suite", action="append", choices=runner.SUITES, help="run only tests of this release")
    parser.add_argument("--kymo", type=pathlib.Path, default=ROOT / "target/debug/kymo")
    parser.add_argument("--perfs", type=pathlib.Path, default=ROOT / "target/perfs")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target/perf-tests")
    parser.add_argument("--limit", type=float, default=120, help="seconds that one test may take")
    parser.add_argument("--book", type=pathlib.Path, help="write the table as Markdown, too")
    args = parser.parse_args()

    machine = runner.Machine(args.perfs.resolve(), args.kymo.resolve(), args.work.resolve(), args.limit)
    reasons = table.read_reasons(HERE / "reasons.txt")
    rows, suites = [], args.suite or runner.SUITES
    for suite in suites:
        release = machine.release(suite)
        if release is None:
            print(f"SKIPPED ci::perf_tests: no perf of {suite} in {args.perfs}, or no patchelf: make setup")
            continue
        for test in release.tests():
            if args.only and not any(word in test.name for word in args.only):
                continue
            row = table.Row(suite, test.name, machine.run(release, test, "perf"), machine.run(release, test, "kymo"))
            rows.append(row)
            print(table.line(row, reasons), flush=True)
    print(table.summary(rows, reasons))
    if args.book:
        args.book.write_text(table.page(rows, reasons, machine))
    wrong = table.wrong(rows, reasons)
    for message in wrong:
        print(message, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
