#!/usr/bin/env python3
"""Programs whose files move, vanish, are replaced, or lie in other roots: whose names are right?

    python3 -m ci.moved                      # all; as root
    python3 -m ci.moved static/chroot        # these only
    python3 -m ci.moved --perf               # perf beside it, with a ~/.debug of its own
    python3 -m ci.moved --list               # their names

Each program is recorded from its start, by -p, and by -a, and looked at with `kymo top`. Where its
path leads, another program lies, whose functions have other names. Reports and exports are made
after its end. A name or a build id of the other program is a failure; a row without a name is counted.
"""

import argparse
import collections
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from . import cases

ROOT = pathlib.Path(__file__).parent.parent.parent
RIGHT, WRONG = {"work", "even"}, {"travail", "oeuf"}
EXPORTS = ["folded", "pprof", "firefox", "speedscope"]
EVENT = ["-e", "cpu-clock:u", "-F", "499"]


class Tool:
    """kymo or perf, with a cache of build ids of its own."""

    def __init__(self, path, folder):
        self.path, self.folder = path, folder
        self.is_kymo = pathlib.Path(path).name == "kymo"
        self.environment = os.environ | {"PERF_BUILDID_DIR": str(folder / "cache"), "HOME": str(folder)}

    def start(self, *words):
        command = [str(self.path), *map(str, words)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=self.environment)

    def run(self, *words):
        command = [str(self.path), *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment).stdout


def change(what):
    if what:
        what()


def from_start(tool, case, data):
    """Records a program from its start to its end."""
    recorder = tool.start("record", *EVENT, "-o", data, "--", *case.command, cases.ROUNDS)
    recorder.stdout.readline()
    change(case.before or case.while_recorded)
    recorder.communicate()


def attached(tool, case, data, *options):
    """Records a program that runs, for half a second."""
    with subprocess.Popen([*case.command, "1000000"], stdout=subprocess.PIPE, text=True) as program:
        program.stdout.readline()
        change(case.before)
        pid = process(program.pid, case.comm)
        where = options or ("-p", str(pid))
        recorder = tool.start("record", *EVENT, "-o", data, *where, "--", "sh", "-c", "echo on; sleep 0.5")
        recorder.stdout.readline()
        change(case.while_recorded)
        recorder.communicate()
        end(program, pid)


def watched(tool, case, data):
    """What `kymo top` shows of a program that runs; the lines go to the place of a recording."""
    with subprocess.Popen([*case.command, "1000000"], stdout=subprocess.PIPE, text=True) as program:
        program.stdout.readline()
        change(case.before or case.while_recorded)
        pid = process(program.pid, case.comm)
        shown = tool.run("top", "-p", str(pid), "-n", "2", "-d", "400ms", "-e", "cpu-clock:u")
        end(program, pid)
    data.write_text(shown)


def process(pid, comm):
    """The process of this name: the one that was started, or its child."""
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for known in [pid, *map(int, children)]:
        if pathlib.Path(f"/proc/{known}/comm").read_text().strip() == comm:
            return known
    return pid


def end(program, pid):
    os.kill(pid, 9)
    program.kill()


def names(tool, case, data):
    """Samples of the program by name of function."""
    text = tool.run("script", "-i", data, "--hide-call-graph" if tool.is_kymo else "-G", "-F", "comm,ip,sym") if data.suffix == ".data" else data.read_text()
    found = collections.Counter()
    if data.suffix != ".data":
        found.update(word for word in re.findall(r"\w+", text) if word in RIGHT | WRONG)
        return found
    for line in filter(str.strip, text.splitlines()):
        comm, *rest = line.split()
        if comm == case.comm:
            found[rest[1] if len(rest) > 1 else "[unknown]"] += 1
    return found


def exported(tool, data, formats, other):
    """Formats whose export has no right name, and those with a name or the build id of the other program."""
    nameless, wrong = [], []
    for form in formats:
        out = data.with_suffix("." + form)
        tool.run("export", "-i", data, "--to", form, "-o", out)
        text = out.read_bytes() if out.exists() else b""
        text = gzip.decompress(text) if text.startswith(b"\x1f\x8b") else text
        if b"work" not in text:
            nameless.append(form)
        if any(name.encode() in text for name in [*WRONG, *([other] if other else [])]):
            wrong.append(form)
    return nameless, wrong


def build_ids(tool, data):
    """The build ids that a recording has for its user files."""
    return set(re.findall(r"^([0-9a-f]{40}) ", tool.run("buildid-list", "-i", data), re.MULTILINE))


def build_id_of(path):
    notes = subprocess.run(["readelf", "-n", str(path)], capture_output=True, text=True).stdout
    found = re.search(r"Build ID: ([0-9a-f]+)", notes)
    return found.group(1) if found else None


WAYS = {
    "start": from_start,
    "pid": attached,
    "all": lambda tool, case, data: attached(tool, case, data, "-a"),
    "top": watched,
}


def judge(tool, programs, case, data):
    """Right names, wrong names, all samples, and whether the build id is right, wrong or not there."""
    found = names(tool, case, data)
    right, wrong = sum(found[name] for name in RIGHT), sum(found[name] for name in WRONG)
    if data.suffix != ".data":
        return right, wrong, right + wrong, "-"
    ids = build_ids(tool, data)
    own, other = (build_id_of(programs.folder / name) for name in (case.build, case.build.replace("right", "wrong")))
    state = "wrong" if other in ids else "right" if own in ids else "none"
    return right, wrong, sum(found.values()), state


def main():
    parser = argparse.ArgumentParser(description="Judge names of programs whose files move.")
    parser.add_argument("only", nargs="*", choices=[[], *cases.names()], help="these only")
    parser.add_argument("--list", action="store_true", help="print the names")
    parser.add_argument("--perf", action="store_true", help="perf beside it")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--kymo", type=pathlib.Path, default=target / "debug/kymo")
    args = parser.parse_args()
    if args.list:
        print("\n".join(cases.names()))
        return 0
    if os.geteuid() != 0:
        print("SKIPPED ci::moved: needs root")
        return 0
    tools = {"kymo": args.kymo.resolve()} | ({"perf": shutil.which("perf")} if args.perf else {})
    totals = collections.defaultdict(collections.Counter)
    with tempfile.TemporaryDirectory(prefix="kymo-moved.") as folder:
        folder = pathlib.Path(folder)
        programs = cases.Programs(folder)
        for name in args.only or cases.names():
            for way in WAYS:
                for tool in tools if way != "top" else ["kymo"]:
                    visit(tool, tools[tool], programs, folder, (name, way), totals[tool])
    for tool, total in totals.items():
        print(f"{tool}: " + ", ".join(f"{count} {what}" for what, count in sorted(total.items())))
    kymo = totals["kymo"]
    return 1 if kymo["wrong names"] or kymo["wrong build ids"] or kymo["wrong exports"] else 0


def visit(tool, path, programs, folder, which, total):
    name, way = which
    place = folder / f"{name.replace('/', '-')}-{way}-{tool}"
    place.mkdir()
    case = cases.make(programs, place, name)
    data = place / ("seen.text" if way == "top" else "seen.data")
    tool_there = Tool(path, place)
    WAYS[way](tool_there, case, data)
    right, wrong, samples, state = judge(tool_there, programs, case, data)
    total["runs"] += 1
    total["wrong names"] += wrong > 0
    total["wrong build ids"] += state == "wrong"
    total["right names"] += right > 0.9 * samples > 0
    total["right build ids"] += state == "right"
    other = build_id_of(programs.folder / case.build.replace("right", "wrong"))
    # Of the whole machine one suffices: each reads the symbols of all its programs.
    formats = {"top": [], "all": EXPORTS[:1]}.get(way, EXPORTS) if tool_there.is_kymo else []
    nameless, false = exported(tool_there, data, formats, other)
    total["exports without names"] += len(nameless)
    total["wrong exports"] += len(false)
    mark = "  <<<" if wrong or state == "wrong" or false else ""
    mark += f"  no names: {' '.join(nameless)}" if nameless else ""
    print(f"{tool:5} {way:6} {name:32} {right:5} right {wrong:5} wrong of {samples:5}, build id {state}{mark}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
