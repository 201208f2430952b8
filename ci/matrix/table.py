"""The results as text and as a page of the book."""

import dataclasses
import textwrap

from . import rows


@dataclasses.dataclass(frozen=True)
class Result:
    """What one row did in one machine."""

    kernel: str
    variant: str
    row: rows.Row
    expectation: rows.Expectation | None
    outcome: rows.Outcome | None

    def deviation(self):
        """How it differs from what is expected; None where it does not."""
        return rows.deviation(self.row, self.expectation, self.outcome)

    def answer(self):
        """`yes` or `no`, as expected."""
        return "yes" if self.expectation is None or self.expectation.works else "no"


def line(result):
    """A result as text."""
    deviation = result.deviation()
    seconds = f"{result.outcome.milliseconds / 1000:6.1f} s" if result.outcome else " " * 8
    verdict = f"NOT AS EXPECTED: {deviation}" if deviation else result.answer()
    return f"{result.kernel:5} {result.variant:8} {result.row.name:24} {seconds}  {verdict}"


def page(results, kernels, variants):
    """The page of the book: features and kernels, then the other machines."""
    plain = [result for result in results if result.variant == "plain"]
    out = [
        "# Kernels",
        "",
        "`make matrix` boots the cloud kernels of four Debian releases in virtual machines, and tries each",
        "line below. It checks what comes of it: the number of hits, lost samples, and the program's own",
        "output. perf of that release must read the recording. The machines have two CPUs and no hardware",
        "counters, but for those below that say so.",
        "",
        "A *no* is a refusal: kymo ends with the documented status and says why. The reasons are below.",
        "",
    ]
    releases = ", ".join(f"{kernel} is Debian's {release}" for kernel, release in kernels.items())
    out += [textwrap.fill(f"{releases}.", 100, break_on_hyphens=False), ""]
    notes = []
    for group in dict.fromkeys(result.row.group for result in plain):
        out += [f"## {group}", "", *header(kernels)]
        mine = [result for result in plain if result.row.group == group]
        for row in dict.fromkeys(result.row for result in mine):
            by_kernel = {result.kernel: result for result in mine if result.row == row}
            out.append(f"| {row.title} | {' | '.join(cell(by_kernel.get(kernel), notes) for kernel in kernels)} |")
        out.append("")
    for variant in variants:
        there = [result for result in results if result.variant == variant.name and result.outcome]
        if not there:
            continue
        tried = [kernel for kernel in kernels if any(result.kernel == kernel for result in there)]
        out += [f"## {variant.title[0].upper()}{variant.title[1:]}", "", *header(tried)]
        for row in dict.fromkeys(result.row for result in there):
            by_kernel = {result.kernel: result for result in there if result.row == row}
            out.append(f"| {row.title} | {' | '.join(cell(by_kernel.get(kernel), notes) for kernel in tried)} |")
        out.append("")
    wrong = [result for result in results if result.outcome and result.deviation()]
    if wrong:
        out += ["## Not as expected in this run", ""]
        for result in wrong:
            place = f"{result.kernel}, {result.row.group}, {result.row.title}"
            out.append(textwrap.fill(f"- {place}: {result.deviation()}.", 100, subsequent_indent="  "))
        out.append("")
    out += ["## Why", ""]
    for number, reason in enumerate(notes, 1):
        out.append(textwrap.fill(f"{number}. {reason}.", 100, subsequent_indent="   ", break_on_hyphens=False))
    return "\n".join(out) + "\n"


def header(kernels):
    """The head of a table with a column for each kernel."""
    return [f"| | {' | '.join(kernels)} |", f"|---|{'---|' * len(kernels)}"]


def cell(result, notes):
    """The answer, with the number of its reason among the notes; one that is not as expected says so."""
    if result is None or result.outcome is None:
        return "not tried"
    if result.deviation():
        return "**not as expected**"
    if not result.expectation.reason:
        return result.answer()
    reason = result.expectation.reason
    if reason not in notes:
        notes.append(reason)
    return f"{result.answer()} ({notes.index(reason) + 1})"
