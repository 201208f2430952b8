"""`kymo probe` enters a process and leaves it, again and again, while it works: all functions of the C library, too."""

import json
import os
import random
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from everything import modes, programs
from versus.runner import ROOT

NAMES = ["libc", "libc-threads"]


class Libc(programs.CPython):
    """The tests of two rows, with kymo coming and going."""

    name = "libc"
    tests = programs.CPython.tests + programs.Processes.tests


class LibcThreads(programs.CPython):
    """Threads, asyncio and subprocesses, with kymo coming and going."""

    name = "libc-threads"
    tests = programs.Threads.tests
    left_out = programs.Threads.left_out


# What a visit does; the last one ends by SIGKILL, and the next cleans up.
VISITS = {"count": [], "returns": ["--ret"], "callers": ["--ret", "-g"], "some": ["--every", "7"], "record": ["-o"], "killed": ["--ret"]}


class Visitor:
    """Visits one process until it has ended."""

    def __init__(self, kymo, scratch, seed):
        self.kymo, self.scratch = kymo, scratch
        self.random = random.Random(seed)
        self.visits = dict.fromkeys(VISITS, 0)
        self.sums = {"attaches": 0, "hits": 0, "returns": 0, "missed": 0}
        self.modules, self.refused, self.stood_still_ms = {}, {}, []
        self.reasons = []
        self.troubles = []
        # Until then the agent may be busy with what a killed kymo left.
        self.leaves = 0

    def __call__(self, child):
        while child.poll() is None:
            # Before the loader is through, and between: at any moment.
            time.sleep(self.random.random() * 0.5)
            self.visit(child)

    def visit(self, child):
        kind = self.random.choice(list(VISITS))
        selectors = ["libc:*"] if self.random.random() < 0.7 else ["libc:*", "libpython*:*"]
        if kind == "record":
            # It is all of them, or none.
            selectors = [selector.replace(":*", name) for selector, name in zip(selectors, (":*alloc*", ":PyObject_*"))]
        seconds = self.random.uniform(0.1, 2.0)
        words = [self.kymo, "probe", "--engine", "inproc", "-p", str(child.pid), "-d", f"{seconds:.2f}", *VISITS[kind]]
        words.append(str(self.scratch / "visit.data") if kind == "record" else "--json")
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
            kymo = subprocess.Popen([*words, *selectors], stdin=subprocess.DEVNULL, stdout=out, stderr=said)
            if kind == "killed":
                try:
                    kymo.wait(seconds + 1)
                except subprocess.TimeoutExpired:
                    kymo.send_signal(signal.SIGKILL)
            try:
                kymo.wait(60)
            except subprocess.TimeoutExpired:
                kymo.kill()
                self.troubles.append(f"{kind}: kymo was not at its end after {seconds:.1f} + 60 s")
            kymo.wait()
            out.seek(0)
            said.seek(0)
            self.note(kind, selectors, kymo.returncode, out.read().decode(errors="replace"), said.read().decode(errors="replace"), child)

    def note(self, kind, selectors, status, out, said, child):
        if "another kymo is using the agent" in said and time.monotonic() < self.leaves:
            # What was killed while it put probes in place is still being cleaned up by the agent.
            return
        if kind == "killed":
            self.leaves = time.monotonic() + 15
        if status and not (kind == "killed" and status < 0) and child.poll() is None:
            self.troubles.append(f"{kind}: kymo ended with {status}: {said[-300:]}")
        if status and not (kind == "killed" and status < 0):
            return
        self.visits[kind] += 1
        if status:
            return
        if kind == "record":
            return
        report = json.loads(out)
        served = [probe for probe in report["probes"] if probe["engine"] == "inproc"]
        self.sums["attaches"] += len(served)
        self.sums["hits"] += sum(probe["hits"] for probe in served)
        self.sums["returns"] += sum((probe.get("latencies") or {}).get("count", 0) for probe in served)
        self.sums["missed"] += sum((probe.get("latencies") or {}).get("missed", 0) for probe in served)
        for probe in report["probes"]:
            functions = self.modules.setdefault(probe["module"], {})
            functions[probe["offset"]] = functions.get(probe["offset"], False) or probe["engine"] == "inproc"
        self.refused[len(selectors)] = max(self.refused.get(len(selectors), 0), sum(map(not_probed, report["notes"])))
        self.reasons = max(self.reasons, [note for note in report["notes"] if note.startswith("not probed")], key=len)
        for note in report["notes"]:
            if note.startswith("patched while"):
                self.stood_still_ms.append(float(note.rsplit(", ", 1)[1].split()[0]))


def not_probed(note):
    """How many functions kymo's note says it left out: `a, b and 3 more: why` are five, `12 more, for other reasons` twelve."""
    if not note.startswith("not probed: "):
        return 0
    names = note.removeprefix("not probed: ").split(": ")[0]
    more = re.search(r"(\d+) more", names)
    named = re.sub(r"( and )?\d+ more.*", "", names)
    return (int(more[1]) if more else 0) + len([name for name in named.split(", ") if name])


def run_all(names, kymo, scratch, seed, say):
    if not names:
        return []
    target = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
    paths = [Path(kymo)] if kymo else [target / "release" / "kymo", target / "debug" / "kymo"]
    there = [path for path in paths if path.exists()]
    runs = []
    for kind in (Libc, LibcThreads):
        if kind.name not in names:
            continue
        program = kind(scratch, False)
        reason = program.prepare() if there else "there is no kymo: build it, or say --kymo"
        if reason:
            print(f"SKIPPED everything::{program.name}: {reason}", flush=True)
            runs.append({"program": program.name, "outcome": "skipped", "reason": reason})
            continue
        runs.append(run(program, there[0], scratch, seed, say))
    return runs


def run(program, kymo, scratch, seed, say):
    begin = time.monotonic()
    wanted = program.run(dict(os.environ))
    bare = time.monotonic() - begin
    say(f"{program.name}: {bare:.1f} s unprobed, status {wanted.status}")
    program.beside = visitor = Visitor(kymo, scratch, seed)
    begin = time.monotonic()
    got = program.run(dict(os.environ))
    seconds = time.monotonic() - begin
    outcome = got.compared(wanted, seconds)
    if outcome == "same" and visitor.sums["attaches"] == 0:
        outcome = "nothing was probed"
    elif outcome == "same" and visitor.troubles:
        outcome = f"same, but {len(visitor.troubles)} visits failed"
    modules = [{"path": path, "functions": len(functions), "served": sum(functions.values())} for path, functions in visitor.modules.items()]
    served = sum(module["served"] for module in modules)
    functions = served + max(visitor.refused.values(), default=0)
    result = {"program": program.name, "how": "outside", "do": "mixed", "functions": functions, "served": served, "placed": served, **visitor.sums,
              "detaches": visitor.sums["attaches"], "visits": visitor.visits, "stood_still_ms": visitor.stood_still_ms, "troubles": visitor.troubles, "refused": visitor.reasons,
              "seed": seed, "seconds": round(seconds, 2), "bare_seconds": round(bare, 2), "outcome": outcome, "modules": modules}
    if outcome != "same":
        result["difference"] = modes.difference(wanted.text, got.text)
        result["said"] = got.said[-2000:]
    say(f"{program.name}: outside: {outcome}, {seconds:.1f} s, {sum(visitor.visits.values())} visits, {visitor.sums['hits']:,} hits")
    return result
