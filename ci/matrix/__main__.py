#!/usr/bin/env python3
"""kymo on the kernels that people run, in virtual machines: `make matrix`.

    python3 -m ci.matrix                                  # four kernels; a quarter of an hour
    python3 -m ci.matrix --kernel 6.12 --row watch -v     # rows whose names contain `watch`, with what they print
    python3 -m ci.matrix --again                          # no machine: judges what the last run told
    python3 -m ci.matrix --nightly                        # 16 and 64 CPUs, memory nodes, no systemd, ..., too
    python3 -m ci.matrix --book docs/reference/kernels.md # the table as a page of the book, too

`rows.toml` has what is tried. `expected/KERNEL` has what must come of it: `row: yes`, `row: yes: REMARK`, or
`row: no: REASON`. Words of a reason in double quotes are words of kymo's message. `expected/VARIANT` and
`expected/KERNEL-VARIANT` have what differs in a machine of the nights. The command fails if anything is not as expected.

`ci/matrix/prepare.sh` downloads the kernels and what the machines need into target/matrix.
"""

import argparse
import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys

from . import machine, outcomes, rows, table, variants
from .architecture import AMD64, TARGET

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent


def arguments():
    parser = argparse.ArgumentParser(description="Try kymo in the kernels of four Debian releases.")
    parser.add_argument("--kernel", action="append", choices=machine.SUITES, help="this kernel only")
    parser.add_argument("--row", action="append", help="only the row of this name, or those whose names contain it")
    parser.add_argument("--nightly", action="store_true", help="the machines of the nights, too")
    parser.add_argument("--variant", action="append", choices=[one.name for one in variants.NIGHTLY], help="these machines")
    parser.add_argument("--kymo", type=pathlib.Path, default=ROOT / "target/release/kymo")
    parser.add_argument("--kymo-arm64", type=pathlib.Path, default=ROOT / "target/arm64/target" / TARGET / "release/kymo")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target/matrix")
    parser.add_argument("--jobs", type=int, default=max(os.cpu_count() // 2, 1), help="so many machines at a time")
    parser.add_argument("--again", action="store_true", help="start no machine: judge what the last ones told")
    parser.add_argument("--slowness", type=int, default=1, help="all limits are so many times those of the rows")
    parser.add_argument("--book", type=pathlib.Path, help="write the table as Markdown, too")
    parser.add_argument("-v", "--verbose", action="store_true", help="show what the rows print")
    return parser.parse_args()


def machines(args):
    """Which variants are to run."""
    if args.variant:
        return [one for one in variants.NIGHTLY if one.name in args.variant]
    return [variants.PLAIN, *(variants.NIGHTLY if args.nightly else [])]


def expectations(kernel, variant):
    """What is expected of a machine: that of its kernel, and what differs in the variant, with any kernel or with this one."""
    expected = rows.read_expectations(HERE / "expected" / kernel)
    for name in (variant.name, f"{kernel}-{variant.name}"):
        differs = HERE / "expected" / name
        expected |= rows.read_expectations(differs) if differs.exists() else {}
    return expected


def try_machine(args, kernel, variant, chosen):
    """Runs the rows of one machine, and keeps what comes of them."""
    place = f"{kernel} {variant.name}"
    folder = variant.architecture.folder(args.work)
    print(f"{place}: Linux {machine.kernel_release(folder, kernel)}, {len(chosen)} rows", flush=True)

    def show(said, told):
        outcomes.add(args.work, kernel, variant, told)
        if args.verbose or said.startswith(("ROW ", "READY ")):
            print(f"{place}: {said}", flush=True)

    machine.run(folder, kernel, variant, kymo_of(args, variant.architecture), chosen, args.slowness, show)


def judge(args, kernel, variant, chosen):
    """The results of one machine, shown where they are not as expected."""
    expected, told = expectations(kernel, variant), outcomes.read(args.work, kernel, variant)
    results = [table.Result(kernel, variant.name, row, expected.get(row.name), told.get(row.name)) for row in chosen]
    complaints = rows.Row("The machine", machine.END, "the kernel complains about nothing", "", never=(".+",))
    results.append(table.Result(kernel, variant.name, complaints, rows.Expectation(True), told.get(machine.END)))
    for result in results:
        print(table.line(result), flush=True)
        if result.outcome and (args.verbose or result.deviation()):
            print("".join(f"      | {said}\n" for said in result.outcome.output.splitlines()[-30:]), end="", flush=True)
    return results


def main():
    args = arguments()
    signal.signal(signal.SIGTERM, machine.end_all)
    args.kymo, args.work = args.kymo.resolve(), args.work.resolve()
    all_rows = read_all_rows()
    places = [
        (kernel, variant, [row for row in variant.rows(all_rows) if row.name in wanted(args, all_rows)])
        for variant in machines(args)
        for kernel in args.kernel or machine.SUITES
        if variant.has(kernel) and can_run(args, variant)
    ]
    if not args.again:
        for architecture in {variant.architecture: None for _, variant, _ in places}:
            architecture.prepare(args.work)
            machine.compile_programs(architecture.folder(args.work) / "programs", architecture.prefix)
        for kernel, variant, _ in places:
            if not args.row:
                outcomes.path_of(args.work, kernel, variant).unlink(missing_ok=True)
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda place: try_machine(args, *place), places))
    results = [result for place in places for result in judge(args, *place)]
    wrong = [result for result in results if result.deviation()]
    if args.book:
        kernels = {kernel: machine.kernel_release(args.work, kernel) for kernel in args.kernel or machine.SUITES}
        args.book.write_text(table.page(results, kernels, variants.NIGHTLY))
    print(f"\n{len(results) - len(wrong)} rows as expected, {len(wrong)} not")
    for result in wrong:
        print(f"{result.kernel} {result.variant} {result.row.name}: {result.deviation()}", file=sys.stderr)
    return 1 if wrong else 0


def read_all_rows():
    """The rows of the plain machine, and those about counters, which only some machines have."""
    return rows.read_rows(HERE / "rows.toml") + rows.read_rows(HERE / "counters.toml")


def kymo_of(args, architecture):
    """The program that is tried."""
    return args.kymo if architecture is AMD64 else args.kymo_arm64.resolve()


def can_run(args, variant):
    """Whether there is what this machine needs; says so where there is not."""
    missing = variant.architecture.missing(kymo_of(args, variant.architecture))
    if missing and not args.again:
        print(f"SKIPPED {variant.name}: {missing}", file=sys.stderr)
    return args.again or not missing


def wanted(args, all_rows):
    """The names of the rows that were asked for: by name, or by a part of names where no row has that name."""
    names = [row.name for row in all_rows]
    if not args.row:
        return set(names)
    return {name for word in args.row for name in names if name == word or (word not in names and word in name)}


if __name__ == "__main__":
    sys.exit(main())
