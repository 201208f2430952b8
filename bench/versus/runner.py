"""What all races share: running commands and measuring them, alternating, the machine's facts, the dated result.

Rules that every race keeps, because a comparison is worth what its method is worth:

* All competitors run in one process of this script, on the same input, and take turns; every second round in
  reverse order, so that a machine that gets slower over time hurts each of them alike.
* One unmeasured round comes first (page cache, build-id caches, CPU frequency).
* Every single measurement goes into the result file; tables show medians, and the ratio comes last.
"""

import dataclasses
import datetime
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "bench" / "runs"
TRACEFS = Path("/sys/kernel/tracing")


class Refusal(Exception):
    """The race cannot be run here; the text says why and what to do."""


@dataclasses.dataclass
class Run:
    """One measured execution of one command."""

    wall_s: float
    user_s: float
    sys_s: float
    # Highest resident size of the command and of the children it waited for. The kernel starts this counter at the size
    # of the process that forked, so nothing below this script's own size (about 20 MB) can be seen.
    peak_bytes: int
    status: int


def measure(argv, *, stdout=subprocess.DEVNULL, stderr=None, cwd=None, expect=0, variables=None):
    """Runs `argv` to its end and says what it took. `expect` is the exit status that counts as success, None for any.
    `variables` are added to the environment."""
    with tempfile.TemporaryFile() as words:
        begin = time.perf_counter()
        child = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=stdout,
                                 stderr=words if stderr is None else stderr, cwd=cwd,
                                 env=environment() | (variables or {}))
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - begin
        child.returncode = os.waitstatus_to_exitcode(status)
        if expect is not None and child.returncode != expect:
            words.seek(0)
            said = words.read().decode(errors="replace").strip()[-2000:]
            raise Refusal(f"`{' '.join(map(str, argv))}` ended with {child.returncode} instead of {expect}:\n{said}")
    return Run(wall, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024, child.returncode)


def environment():
    """The environment of all competitors: nothing that makes one of them page, colour or ask the network, and no
    symbols that an earlier run has found."""
    env = dict(os.environ)
    env.pop("DEBUGINFOD_URLS", None)
    env.update(LC_ALL="C", NO_COLOR="1", PAGER="cat", PERF_CONFIG_NOSYSTEM="1", PERF_CONFIG_NOGLOBAL="1",
               KYMO_SYMBOL_CACHE="off")
    return env


def output(argv, cwd=None):
    """The standard output of a helper command that must succeed."""
    try:
        done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, cwd=cwd, env=environment(), check=True)
    except FileNotFoundError as missing:
        raise Refusal(f"{argv[0]} is not installed") from missing
    except subprocess.CalledProcessError as failed:
        said = failed.stderr.decode(errors="replace").strip()[-2000:]
        raise Refusal(f"`{' '.join(map(str, argv))}` ended with {failed.returncode}:\n{said}") from failed
    return done.stdout.decode(errors="replace")


def alternate(competitors, rounds, *, warm_up=1, say=None):
    """Runs each competitor once per round, in turn, and returns {name: [what it returned, ...]} without the warm-up.

    `competitors` maps a name to a function without arguments.
    """
    results = {name: [] for name in competitors}
    for turn in range(-warm_up, rounds):
        order = list(competitors.items())
        if turn % 2:
            order.reverse()
        for name, race in order:
            result = race()
            if turn >= 0:
                results[name].append(result)
        if say:
            say(f"round {turn + 1} of {rounds}" if turn >= 0 else "warm-up")
    return results


def spread(values):
    """Median, least and greatest of the measured values, and the values themselves in the order measured."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "values": list(values)}


def ratio_interval(above, below, *, level=0.95, draws=10_000):
    """The ratio of two medians with its bootstrap confidence interval: (ratio, low, high).

    Rounds are resampled as pairs, because what disturbed the machine in a round disturbed both.
    """
    pairs = list(zip(above, below))
    dice = random.Random(1)
    seen = []
    for _ in range(draws):
        drawn = dice.choices(pairs, k=len(pairs))
        seen.append(statistics.median(a for a, _ in drawn) / statistics.median(b for _, b in drawn))
    seen.sort()
    tail = (1 - level) / 2
    return (statistics.median(above) / statistics.median(below),
            seen[int(tail * draws)], seen[min(draws - 1, int((1 - tail) * draws))])


def table(head, rows):
    """Prints rows under their head; the first column is words, the others are numbers."""
    cells = [head] + [[str(c) for c in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for row in cells:
        print("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip())


def seconds(value):
    """A duration for people."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.1f} ms"


def megabytes(value):
    """A size for people, in 10^6 bytes."""
    return f"{value / 1e6:.0f} MB"


class Bench:
    """One run of versus.py: where the tools are, where scratch files go, how the result is kept."""

    def __init__(self, args):
        self.args = args
        self.begun = datetime.datetime.now().astimezone()
        self.scratch = None
        self.kymo = None
        self.perf = shutil.which(args.perf)
        if not self.perf:
            raise Refusal(f"{args.perf} was not found; on Debian: apt-get install linux-perf")

    def __enter__(self):
        if self.args.work:
            self.scratch = Path(self.args.work).resolve()
            self.scratch.mkdir(parents=True, exist_ok=True)
        else:
            self.scratch = Path(tempfile.mkdtemp(prefix="kymo-versus-"))
        self.kymo = Path(self.args.kymo).resolve() if self.args.kymo else build_kymo()
        if not os.access(self.kymo, os.X_OK):
            raise Refusal(f"{self.kymo} is not an executable file")
        return self

    def __exit__(self, *_):
        if not self.args.work:
            shutil.rmtree(self.scratch, ignore_errors=True)

    def say(self, words):
        """Progress, for people: standard output stays the table."""
        print(f"versus: {words}", file=sys.stderr, flush=True)

    def compile(self, source, *flags):
        """Builds one C program of the repository into the scratch folder."""
        program = self.scratch / Path(source).stem
        output(["cc", "-O2", "-g", "-fno-omit-frame-pointer", "-o", program, ROOT / source, *flags])
        return program

    def save(self, subject, result):
        """Writes the dated file; a second run on one day gets a number."""
        if self.args.no_save:
            return
        record = {
            "subject": subject,
            "begun": self.begun.isoformat(timespec="seconds"),
            "command": sys.argv,
            "note": self.args.note,
            "machine": machine(),
            "tools": {
                "kymo": output([self.kymo, "--version"]).strip(),
                "kymo_commit": commit(),
                "perf": output([self.perf, "--version"]).strip(),
            },
            **result,
        }
        RUNS.mkdir(parents=True, exist_ok=True)
        name = f"{self.begun:%Y-%m-%d}-{subject}"
        path, number = RUNS / f"{name}.json", 1
        while path.exists():
            number += 1
            path = RUNS / f"{name}-{number}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")
        self.say(f"written: {path.relative_to(ROOT)}")


def build_kymo():
    """The release build of this working tree."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    print("versus: cargo build --release", file=sys.stderr, flush=True)
    if subprocess.run(["cargo", "build", "--release", "--locked", "--quiet"], cwd=ROOT, stdin=subprocess.DEVNULL).returncode:
        raise Refusal("kymo does not build; name one with --kymo PATH")
    return (ROOT / target / "release" / "kymo").resolve()


def machine():
    """What a reader must know about the machine to judge the numbers."""
    facts = {"kernel": platform.release(), "arch": platform.machine(), "cores": os.cpu_count(), "cpu": "unknown"}
    for line in read("/proc/cpuinfo").splitlines():
        if line.startswith(("model name", "CPU part")):
            facts["cpu"] = line.split(":", 1)[1].strip()
            break
    for line in read("/proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            facts["memory_bytes"] = int(line.split()[1]) * 1024
    facts["hypervisor"] = "hypervisor" in read("/proc/cpuinfo")
    facts["pmu"] = Path("/sys/bus/event_source/devices/cpu").exists()
    facts["load_average"] = os.getloadavg()
    for name in ("perf_event_paranoid", "kptr_restrict", "perf_event_max_sample_rate"):
        facts[name] = read(f"/proc/sys/kernel/{name}").strip()
    return facts


def read(path):
    """A small file's text, or nothing if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def commit():
    """The commit that was measured, with `+` after it when the tree had changes."""
    try:
        head = output(["git", "rev-parse", "HEAD"], cwd=ROOT).strip()
        dirty = output(["git", "status", "--porcelain", "--untracked-files=no"], cwd=ROOT).strip()
    except Refusal:
        return "unknown"
    return head + ("+" if dirty else "")


def need_tracefs():
    """Tracepoints need tracefs; mounts it where that is permitted."""
    if not (TRACEFS / "events").is_dir():
        subprocess.run(["mount", "-t", "tracefs", "none", TRACEFS], stderr=subprocess.DEVNULL)
    if not (TRACEFS / "events" / "sched" / "sched_switch" / "id").exists():
        raise Refusal("tracefs is not readable; as root: mount -t tracefs none /sys/kernel/tracing")
