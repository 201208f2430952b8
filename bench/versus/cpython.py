"""Whether CPython's own test suite ends the same way while it is recorded.

Each round runs `python -m test` bare and under `kymo record` at 997 samples per second. Each case's outcome (passed,
failed, skipped) comes from the suite's own XML. A case whose outcome differs between two bare rounds is unstable, and is
listed apart. Every other case must have the same outcome in all rounds, or the command fails.
"""

import collections
import pathlib
import subprocess
import sys
import xml.etree.ElementTree as xml

from versus.runner import Refusal, alternate, measure, table

HELP = "CPython's own tests, bare and recorded"

# They need a network, a display or hours, or look at what profilers do to the process.
LEFT_OUT = [
    "test_urllib2net", "test_urllibnet", "test_smtpnet", "test_ssl", "test_asyncore", "test_tools", "test_gdb",
    "test_peg_generator", "test_multiprocessing_spawn", "test_multiprocessing_forkserver", "test_multiprocessing_fork",
    "test_concurrent_futures", "test_distutils", "test_venv", "test_ensurepip", "test_perf_profiler",
]
LIMIT_S = 600


def add_arguments(parser):
    parser.add_argument("--python", default=sys.executable, help="an interpreter with its test package")
    parser.add_argument("tests", nargs="*", help="names such as test_dict (default: all but those that need a network)")


def run(bench, args):
    if subprocess.run([args.python, "-c", "import test.libregrtest"], capture_output=True).returncode:
        raise Refusal(f"{args.python} has no test package; on Debian: apt-get install libpython3-testsuite")
    recorded = lambda words: [bench.kymo, "record", "-q", "-F", "997", "-o", bench.scratch / "recording", "--", *words]
    rounds = alternate(
        {"bare": lambda: outcomes(bench, args, lambda words: words), "recorded": lambda: outcomes(bench, args, recorded)},
        args.rounds or 2, warm_up=0, say=bench.say,
    )
    cases = sorted(set().union(*rounds["bare"], *rounds["recorded"]))
    seen = {case: {name: [one.get(case, "absent") for one in ends] for name, ends in rounds.items()} for case in cases}
    unstable = {case: ends for case, ends in seen.items() if len(set(ends["bare"])) > 1}
    changed = {case: ends for case, ends in seen.items()
               if case not in unstable and set(ends["recorded"]) != set(ends["bare"])}
    counts = {name: [dict(collections.Counter(one.values())) for one in ends] for name, ends in rounds.items()}
    words = ("passed", "failed", "skipped")
    table(["round", *words], [[f"{name} {turn}", *(one.get(word, 0) for word in words)]
                              for name, ends in counts.items() for turn, one in enumerate(ends, 1)])
    for title, some in (("unstable without kymo", unstable), ("CHANGED", changed)):
        for case, ends in some.items():
            print(f"{title}: {case}: bare {', '.join(ends['bare'])}; recorded {', '.join(ends['recorded'])}")
    return {"python": version(args.python), "tests": args.tests, "left_out": [] if args.tests else LEFT_OUT,
            "counts": counts, "unstable": unstable, "changed": changed}


def outcomes(bench, args, recorded):
    """Case -> how it ended, of one run of the suite."""
    report = bench.scratch / "suite.xml"
    report.unlink(missing_ok=True)
    chosen = args.tests or ["-x", *LEFT_OUT]
    suite = [args.python, "-m", "test", "--timeout", str(LIMIT_S), "--junit-xml", report, *chosen]
    measure(recorded(suite), cwd=bench.scratch, expect=None)
    if not report.exists():
        raise Refusal(f"the suite of {args.python} wrote no results; it was ended before its last test")
    ends = {}
    for case in xml.parse(report).getroot().iter("testcase"):
        words = [word for word in ("failure", "error", "skipped") if case.find(word) is not None]
        ends[case.get("name")] = {"failure": "failed", "error": "failed"}.get(*words[:1], "skipped") if words else "passed"
    return ends


def version(python):
    return subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.strip()
