"""Hits that are compared with counts known otherwise: of hooks that a compiler put into every function, and of the kernel's uprobes."""

import ctypes
import errno
import os
import shutil
import signal
import struct
import subprocess
from pathlib import Path

from everything.modes import environment, read_report
from everything.programs import LIMIT_S, SOURCES, SQL, call, payload, python_with_tests
from versus.runner import TRACEFS

# One event of the tracing has so many probes: enabling and disabling wait once for each event.
PROBES_PER_EVENT = 256
# Besides all functions that were hit, so many that were not, which must not be hit in the kernel's eyes either.
NOT_HIT = 300


def compare_all(scratch, library, quick, say):
    results = []
    for source, compiler, options in (("counted.c", "gcc", ["-O2"]), ("counted.cc", "g++", ["-O2"]), ("counted.c", "gcc", ["-O0"]),
                                      ("counted.cc", "g++", ["-O0"])):
        if quick and options == ["-O0"]:
            continue
        results += with_hooks(scratch, library, source, compiler, options)
        say(f"{source} {options[0]}: {results[-1]['outcome']}")
    if not quick:
        for name, path, prepare in (("zstd", shutil.which("zstd"), zstd), ("sqlite3", shutil.which("sqlite3"), sqlite),
                                    ("python3", python_with_tests(), cpython)):
            results += with_kernel(scratch, library, name, path, prepare, say)
    return results


def judged(program, against, do, equal, unequal, hits):
    outcome = "equal" if not unequal and equal else "nothing to compare" if not equal else f"{len(unequal)} differ"
    return {"program": program, "against": against, "do": do, "functions": equal + len(unequal), "equal": equal, "hits": hits,
            "outcome": outcome, "differences": unequal[:50]}


def skipped(program, against, reason):
    print(f"SKIPPED everything::counts::{program}: {reason}", flush=True)
    return [{"program": program, "against": against, "do": "", "outcome": "skipped", "reason": reason}]


def fresh(scratch, name):
    folder = scratch / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def with_hooks(scratch, library, source, compiler, options):
    program = f"{source} {options[0]}"
    if not shutil.which(compiler):
        return skipped(program, "hooks", f"{compiler} is not installed")
    binary = scratch / f"hooked-{source.replace('.', '-')}{options[0]}"
    # Functions that are inlined or cloned would be counted by the hooks under their own names all the same.
    made = call([compiler, *options, "-pthread", "-finstrument-functions", "-finstrument-functions-exclude-file-list=/usr/", "-fno-inline",
                 "-fno-ipa-cp", "-fno-ipa-icf", "-fno-ipa-sra", "-fno-partial-inlining", "-o", binary, SOURCES / source], None)
    if made.status:
        return skipped(program, "hooks", f"it does not compile: {made.said[-200:]}")
    results = []
    for do in ("count", "returns", "latency", "record"):
        folder, hooks = fresh(scratch, "report"), scratch / "hooks"
        got = call([binary], {**environment(library, [str(binary)], do, "all", folder), "HOOKS": str(hooks)})
        report = read_report(folder)
        known = {int(line.split()[0], 16): tuple(map(int, line.split()[1:])) for line in hooks.read_text().splitlines()}
        equal, unequal = 0, [] if got.status == 0 else [f"it ended with {got.status}"]
        looks = do in ("returns", "latency")
        found = {offset: counts for (_, offset), counts in report.hits.items()}
        for offset, (entries, exits) in known.items():
            hits, returns = found.get(offset, (0, 0))
            # An exit that an exception makes is one for the hooks, and none for the patcher.
            fine = hits == entries and (not looks or returns == exits or source.endswith(".cc") and returns < exits)
            if fine:
                equal += 1
            else:
                unequal.append(f"{offset:#x}: {hits} hits, {returns} returns; hooks: {entries}, {exits}")
        results.append(judged(program, "hooks", do, equal, unequal, sum(entries for entries, _ in known.values())))
    return results


def zstd(folder):
    (folder / "text").write_bytes(payload(400_000))
    return ["-9", "--single-thread", "--no-asyncio", "-q", "-f", folder / "text", "-o", folder / "packed"], None


def sqlite(folder):
    return ["-batch", folder / "one.db"], SQL.format(journal="delete", rows=700).encode()


# No threads, no clock, and nothing that is told apart by where it lies.
SCRIPT = """
import json, re, zlib, hashlib, struct, decimal
class Node:
    def __init__(self, value): self.value, self.next = value, None
    def __eq__(self, other): return self.value == other.value
    def __lt__(self, other): return self.value < other.value
    def __hash__(self): return hash(self.value)
def numbers(count):
    try:
        for number in range(count):
            yield number * number % 1009
    finally:
        pass
def deep(depth):
    if not depth: raise KeyError("deep")
    try: return deep(depth - 1)
    except KeyError as error: raise ValueError(depth) from error
nodes = sorted(map(Node, numbers(700)))
text = json.dumps({str(node.value): [node.value, 1 / (node.value + 1), None, True] for node in nodes})
assert json.loads(text)["4"][0] == 4
words = re.findall(r"([0-9]+)\\.(?P<rest>[0-9]{3,})", text)
packed = zlib.compress(text.encode(), 9)
assert zlib.decompress(packed).decode() == text
for depth in range(12):
    try: deep(depth)
    except (KeyError, ValueError) as error: text += repr(error)
total = sum(decimal.Decimal(word[1]) / 7 for word in words)
print(hashlib.sha256(text.encode()).hexdigest(), total, len({*nodes}), struct.unpack("<IQ", packed[:12].ljust(12)), f"{total:.3e}", text[::-7].title()[:40])
"""


def cpython(folder):
    return ["-s", "-S", "-c", SCRIPT], None


def still():
    """In the child: memory lies where it lay the last time."""
    ctypes.CDLL(None).personality(0x0040000)


def with_kernel(scratch, library, name, path, prepare, say):
    if not path:
        return skipped(name, "uprobes", f"{name} is not installed")
    if os.geteuid() != 0 or not (TRACEFS / "uprobe_events").exists():
        return skipped(name, "uprobes", "it takes root and tracefs")
    # Copies, so that nobody else runs this code.
    copies = fresh(scratch, f"{name}-copy")
    program = Path(shutil.copy(os.path.realpath(path), copies / name))
    for line in subprocess.run(["ldd", path], capture_output=True, text=True).stdout.splitlines():
        words = line.split()
        if len(words) > 2 and words[0].startswith(("libsqlite3", "liblzma", "liblz4", "libz.", "libpython3")):
            shutil.copy(os.path.realpath(words[2]), copies / words[0])
    results = []
    for do in ("count", "returns"):
        inside = stopped(scratch, library, program, copies, prepare, do, "all", None)
        if inside is None:
            return results + [judged(name, "uprobes", do, 0, ["it did not run with probes"], 0)]
        # A look at returns would break functions like `_start`, the kernel's look as well.
        sites = {key: counts for key, counts in inside.hits.items() if do == "count" or counts[1] is not None}
        hit = {key: counts for key, counts in sites.items() if counts[0]}
        others = [site for site in sites if site not in hit]
        step = max(1, len(others) // NOT_HIT)
        kernel = Kernel(list(hit) + others[::step][:NOT_HIT], do == "returns")
        ran = stopped(scratch, library, program, copies, prepare, do, "stop", kernel)
        if ran is None:
            return results + [judged(name, "uprobes", do, 0, ["it did not run with uprobes"], 0)]
        equal, unequal = 0, []
        # The kernel's file counts calls of a return probe when they begin: all of them returned, unless some were too deep for a look at that.
        own_returns = do == "returns" and not inside.totals["missed"]
        for site, count in kernel.counts.items():
            hits, returns = hit.get(site, (0, 0))
            own = returns if own_returns else hits
            if own == count:
                equal += 1
            else:
                unequal.append(f"{Path(site[0]).name} {site[1]:#x}: {hits} hits, {returns} returns; the kernel: {count}")
        result = judged(name, "uprobes", do, equal, unequal, sum(counts[0] for counts in hit.values()))
        result["refused_by_kernel"] = len(kernel.refused)
        result["missed"] = inside.totals["missed"]
        say(f"{name}, {do}: {equal} equal, {len(unequal)} not, {len(kernel.refused)} refused by the kernel")
        results.append(result)
    return results


def stopped(scratch, library, program, copies, prepare, do, how, kernel):
    """Runs the program, which stops before `main` and at its end; `kernel` counts in between. The report."""
    report, folder = fresh(scratch, "report"), fresh(scratch, "files")
    words, stdin = prepare(folder)
    env = environment(library, [f"{copies}/"], do, how, report, stop=1)
    env.update(LD_LIBRARY_PATH=str(copies), PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1")
    if program.name == "python3":
        env["PYTHONHOME"] = str(python_with_tests().parent.parent)
    (folder / "stdin").write_bytes(stdin or b"")
    with open(folder / "stdin", "rb") as given:
        child = subprocess.Popen([program, *words], env=env, stdin=given, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 preexec_fn=still)
    try:
        if not stops(child):
            return None
        if kernel:
            kernel.enable()
        child.send_signal(signal.SIGCONT)
        if not stops(child):
            return None
        if kernel:
            kernel.read()
    finally:
        if kernel:
            kernel.remove()
        if child.poll() is None:
            child.send_signal(signal.SIGCONT)
    child.wait(LIMIT_S)
    return read_report(report)


def stops(child):
    """Waits until it is stopped; False if it has ended."""
    _, status = os.waitpid(child.pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return True
    child.returncode = os.waitstatus_to_exitcode(status)
    return False


class Kernel:
    """Uprobes at sites, by the tracing's own files."""

    def __init__(self, sites, returns):
        self.sites, self.kind = sites, "r" if returns else "p"
        self.group = f"kymo_everything_{os.getpid()}"
        self.events, self.refused, self.counts = [], [], {}
        self.files = {}

    def offset(self, path, address):
        if path not in self.files:
            self.files[path] = segments(path)
        return next(address - at + offset for at, offset, size in self.files[path] if at <= address < at + size)

    def write(self, words):
        # Not by open(): it would look for the end of this file, which cannot seek.
        events = os.open(TRACEFS / "uprobe_events", os.O_WRONLY | os.O_APPEND)
        try:
            for line in words:
                os.write(events, line.encode() + b"\n")
        finally:
            os.close(events)

    def enable(self):
        for at in range(0, len(self.sites), PROBES_PER_EVENT):
            self.add(self.sites[at:at + PROBES_PER_EVENT])

    def add(self, sites):
        """One event for all of these, or for each half where the kernel refuses one."""
        name = f"e{len(self.events)}"
        try:
            self.write(f"{self.kind}:{self.group}/{name} {path}:{self.offset(path, address):#x}" for path, address in sites)
            (TRACEFS / "events" / self.group / name / "enable").write_text("1")
            self.events.append((name, sites))
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EEXIST, 524, errno.EIO):
                raise
            try:
                self.write([f"-:{self.group}/{name}"])
            except OSError:
                pass
            if len(sites) == 1:
                self.refused += sites
                return
            # A name that stays unused.
            self.events.append((name, []))
            self.add(sites[:len(sites) // 2])
            self.add(sites[len(sites) // 2:])

    def read(self):
        """The counts, in the order in which both files list the probes."""
        listed = [line.split() for line in (TRACEFS / "uprobe_events").read_text().splitlines()]
        counted = [line.split() for line in (TRACEFS / "uprobe_profile").read_text().splitlines()]
        known = {(path, self.offset(path, address)): (path, address) for path, address in self.sites}
        for words, (path, _, count) in zip(listed, counted):
            if f":{self.group}/" not in words[0]:
                continue
            place, _, offset = words[1].rpartition(":")
            assert place == path, "both files list the same probes"
            self.counts[known[(place, int(offset, 16))]] = int(count)

    def remove(self):
        for name, sites in self.events:
            if sites:
                (TRACEFS / "events" / self.group / name / "enable").write_text("0")
                self.write([f"-:{self.group}/{name}"])
        self.events = []


def segments(path):
    """Address, offset and size of what an ELF file has in memory."""
    data = Path(path).read_bytes()
    at, = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    all_of = []
    for number in range(count):
        kind, _, offset, address, _, in_file, _, _ = struct.unpack_from("<IIQQQQQQ", data, at + number * size)
        if kind == 1:
            all_of.append((address, offset, in_file))
    return all_of
