"""The table of results, in text and as a page of the book, and what is wrong with it."""

import collections
import dataclasses

from .runner import Result


@dataclasses.dataclass
class Row:
    """One test of one release, with both results."""

    suite: str
    test: str
    perf: Result
    kymo: Result

    def falls_short(self):
        """perf passes it and kymo does not. A skip is no pass: kymo may not lack what the test asks for."""
        return self.perf.status == "pass" and self.kymo.status != "pass"

    def reason(self, reasons):
        """Why kymo does not pass it: that of this release's test, or of the test in all releases."""
        return reasons.get(f"{self.suite} {self.test}") or reasons.get(self.test)


def read_reasons(path):
    """From a test's name, or a release and a test, to why kymo does not pass it: lines of `[suite ]test: reason`."""
    lines = (line for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return dict(line.split(": ", 1) for line in lines)


def line(row, reasons):
    """A row as text."""
    return f"{row.suite:9} {row.test:40} {row.perf.status:5} {row.kymo.status:5} {remark(row, reasons)}".rstrip()


def remark(row, reasons):
    """Why kymo does not pass what perf passes."""
    if not row.falls_short():
        return ""
    return row.reason(reasons) or row.kymo.first_failure()[:160]


def counts(rows):
    """How many tests perf passes, how many of those kymo passes, and how many kymo passes in all."""
    passed = [row for row in rows if row.perf.status == "pass"]
    both = sum(row.kymo.status == "pass" for row in passed)
    return len(passed), both, sum(row.kymo.status == "pass" for row in rows)


def summary(rows, reasons):
    """The numbers below the table."""
    passed, both, kymo = counts(rows)
    named = sum(row.falls_short() and row.reason(reasons) is not None for row in rows)
    return f"{len(rows)} tests: perf passes {passed}, kymo {both} of those and {kymo} in all; {named} have a named reason"


def wrong(rows, reasons):
    """Tests that fall short without a reason, and reasons of tests that pass."""
    ran = collections.defaultdict(list)
    for row in rows:
        ran[row.test].append(row)
        ran[f"{row.suite} {row.test}"].append(row)
    messages = [
        f"{row.suite} {row.test}: perf passes and kymo does not: {row.kymo.first_failure()}"
        for row in rows
        if row.falls_short() and row.reason(reasons) is None
    ]
    for test, reason in reasons.items():
        # Not everywhere does the machine have what such a reason speaks of.
        if reason.startswith("where "):
            continue
        if any(row.perf.status == "pass" for row in ran[test]) and not any(row.falls_short() for row in ran[test]):
            messages.append(f"reasons.txt has a reason for {test}, which kymo passes where perf does: take it out")
    return messages


def page(rows, reasons, machine):
    """The page of the book."""
    passed, both, kymo = counts(rows)
    kernel = machine.kernel()
    out = [
        "# perf's own tests",
        "",
        "Debian's perf packages contain perf's shell tests. `make perf-tests` runs each of them twice: with",
        "that release's perf, and with kymo in its place. `perf test` itself, which has the tests'",
        "workloads, is perf's in both runs. This is the table of one run.",
        "",
        f"perf passes {passed} of {len(rows)} tests on that machine ({kernel}). kymo passes {both} of",
        f"those, and {kymo} in all. A test skips where it finds that the machine or the tool lacks what it",
        "needs.",
        "",
    ]
    for suite in dict.fromkeys(row.suite for row in rows):
        mine = [row for row in rows if row.suite == suite]
        out += [f"## perf {machine.release(suite).version} (Debian {suite})", ""]
        out += ["| test | perf | kymo |", "|---|---|---|"]
        out += [f"| `{row.test}` | {row.perf.status} | {row.kymo.status} |" for row in mine]
        out.append("")
    # Releases may have different reasons.
    short = {(row.test, row.reason(reasons) or "not known yet") for row in rows if row.falls_short()}
    out += ["## Why kymo does not pass", "", "| test | reason |", "|---|---|"]
    out += [f"| `{test}` | {reason} |" for test, reason in sorted(short)]
    return "\n".join(out) + "\n"
