#!/usr/bin/env python3
"""The stacks of programs that hang: whether `kymo stacks` and gdb see the same frames, and how long both take.

    bench/hung.py [--kymo target/release/kymo] [--threads 2000] [--note TEXT]

Needs root, gdb and a C compiler; programs that are not installed are named and left out. Each program is brought to where
it stays, looked at by kymo, then by gdb, and compared thread by thread: the addresses of all frames, innermost first. A
thread that runs is where it happens to be: of it the outermost frame alone is compared. Python's frames stand in the
place of the interpreter's, so its threads differ from gdb's. The text goes into bench/runs.
"""
import argparse
import collections
import datetime
import os
import pathlib

import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# It waits for ever for a thread that does not stop.
GDB_TIMEOUT_S = 10
FIXTURES = ROOT / "fixtures/programs"
KINDS = ["equal", "longer", "runs", "other"]
GDB = """
import gdb
for thread in sorted(gdb.selected_inferior().threads(), key=lambda thread: thread.ptid[1]):
    thread.switch()
    frame, counters = gdb.newest_frame(), []
    while frame is not None:
        # What debug information tells of calls that are not on the stack.
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            counters.append(frame.pc())
        frame = frame.older()
    print("STACK", thread.ptid[1], " ".join("%x" % counter for counter in counters))
"""
MANY = r"""
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static void *rests(void *unused) { for (;;) pause(); return unused; }
int main(int count, char **words) {
    pthread_t thread;
    for (int left = atoi(words[count - 1]); left > 0; left--) pthread_create(&thread, NULL, rests, NULL);
    for (;;) pause();
}
"""
VFORK = r"""
#include <unistd.h>
static void __attribute__((noinline)) waits_for_child(void) { if (vfork() == 0) { sleep(1000); _exit(0); } }
int main(void) { waits_for_child(); return 0; }
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kymo", default=str(ROOT / "target/release/kymo"))
    parser.add_argument("--threads", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5, help="of the program with many threads")
    parser.add_argument("--note", default="", help="a sentence about the machine, for the text")
    return parser.parse_args()


def compiled(folder, name, text, *flags):
    (folder / f"{name}.c").write_text(text)
    subprocess.run(["cc", "-g", "-O1", "-pthread", *flags, "-o", folder / name, folder / f"{name}.c"], check=True)
    return str(folder / name)


def programs(folder):
    """Name and command line of each that is there."""
    hung = compiled(folder, "hung", (FIXTURES / "hung.c").read_text())
    frames = compiled(folder, "frames", (FIXTURES / "hung.c").read_text(), "-fno-omit-frame-pointer", "-O0")
    static = compiled(folder, "static", (FIXTURES / "hung.c").read_text(), "-static")
    vfork = compiled(folder, "vfork", VFORK)
    listed = [
        ("deadlock in C", [hung]),
        ("the same, not optimized", [frames]),
        ("the same, static", [static]),
        ("a parent of vfork (state D)", [vfork]),
        ("sleep", ["sleep", "1000"]),
        ("cat at a pipe", ["cat"]),
        ("a shell that waits for a child", ["bash", "-c", "sleep 1000; true"]),
        ("tail that follows", ["tail", "-f", "/dev/null"]),
        ("flock", ["flock", str(folder / "lock"), "sleep", "1000"]),
        ("Python, deadlock and queues", ["python3", str(FIXTURES / "hung.py")]),
        ("perl", ["perl", "-e", "sleep 1000"]),
        ("ruby with threads", ["ruby", "-e", "3.times { Thread.new { Queue.new.pop } }; sleep 1000"]),
        ("node", ["node", "-e", "setInterval(() => {}, 1e6)"]),
        ("redis", ["redis-server", "--port", "0", "--unixsocket", str(folder / "redis"), "--save", ""]),
        ("nginx worker", ["nginx", "-p", str(folder), "-c", "nginx.conf", "-e", str(folder / "error.log")]),
        ("gdb at its prompt", ["gdb", "-q"]),
        ("a server of Python", ["python3", "-m", "http.server", "0", "--bind", "127.0.0.1"]),
        ("sort at a pipe", ["sort"]),
        ("make with a child", ["make", "-f", str(folder / "Makefile")]),
        ("openssl server", ["openssl", "s_server", "-accept", "0", "-nocert"]),
        ("git that waits", ["git", "cat-file", "--batch"]),
        ("vim", ["vim", "-es"]),
        ("sqlite", ["sqlite3"]),
    ]
    (folder / "Makefile").write_text("all:\n\tsleep 1000; true\n")
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/nginx.pid; events {{}}\n"
        f"http {{ access_log off; server {{ listen unix:{folder}/nginx; }} }}\n")
    return listed


def gdb(pid):
    begun = time.monotonic()
    script = tempfile.NamedTemporaryFile("w", suffix=".py")
    script.write(GDB)
    script.flush()
    words = ["gdb", "-p", str(pid), "-batch", "-nx", "-iex", "set debuginfod enabled off", "-x", script.name]
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=GDB_TIMEOUT_S).stdout
    except subprocess.TimeoutExpired:
        return {}, GDB_TIMEOUT_S
    stacks = {}
    for line in said.splitlines():
        if line.startswith("STACK "):
            _, thread, *counters = line.split()
            stacks[int(thread)] = [int(counter, 16) for counter in counters]
    return stacks, time.monotonic() - begun


def kymo(program, pid, folder):
    begun = time.monotonic()
    file = folder / "stacks.data"
    subprocess.run([program, "stacks", "-q", "--no-jvm", "-p", str(pid), "-o", file], check=True, capture_output=True)
    took = time.monotonic() - begun
    said = subprocess.run([program, "script", "--no-inline", "-i", file, "-F", "tid,ip"], capture_output=True, text=True).stdout
    stacks, frames = {}, None
    for line in said.splitlines():
        words = line.split()
        if not words:
            frames = None
        elif frames is None:
            frames = stacks.setdefault(int(words[0]), [])
        else:
            frames.append(int(words[0], 16))
    return stacks, took


def compare(ours, theirs):
    """`equal`, `longer` (gdb's frames and more callers), `runs` (another innermost frame, the same outermost one), or what
    differs. Callers are told within their calls by kymo, behind them by gdb."""
    expected = theirs[:1] + [counter - 1 for counter in theirs[1:]]
    if ours == expected:
        return "equal"
    if len(expected) > 1 and ours[:len(expected)] == expected:
        return "longer"
    if ours[:1] != expected[:1] and ours[-1:] == expected[-1:]:
        return "runs"
    return f"{len(ours)} frames of kymo, {len(expected)} of gdb"


def look(options, folder, name, command):
    pipe_out, pipe_in = os.pipe()
    child = subprocess.Popen(command, stdin=pipe_out, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                             cwd=folder, start_new_session=True)
    try:
        time.sleep(1.5)
        if child.poll() is not None:
            return f"{name:34} did not stay: exit {child.returncode}", None
        ours, took = kymo(options.kymo, child.pid, folder)
        theirs, their_time = gdb(child.pid)
        if not theirs:
            return f"{name:34} {len(ours):4} threads {took * 1e3:8.0f} ms   gdb does not look at it", None
        found, notes = collections.Counter(), []
        for thread, counters in theirs.items():
            result = compare(ours.get(thread, []), counters)
            kind = result if result in KINDS else "other"
            found[kind] += 1
            if kind == "other":
                notes.append(f"thread {thread}: {result}")
        counts = " ".join(f"{found[kind]:7}" for kind in KINDS)
        line = f"{name:34} {counts} {took * 1e3:8.0f} ms {their_time * 1e3:8.0f} ms"
        return line + ("" if not notes else "  " + "; ".join(notes[:2])), found
    finally:
        os.close(pipe_in)
        os.close(pipe_out)
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def many(options, folder):
    program = compiled(folder, "many", MANY)
    child = subprocess.Popen([program, str(options.threads)])
    times = {"kymo": [], "gdb": []}
    try:
        time.sleep(2)
        for _ in range(options.rounds):
            begun = time.monotonic()
            subprocess.run([options.kymo, "stacks", "-q", "-p", str(child.pid)], check=True, capture_output=True)
            times["kymo"].append(time.monotonic() - begun)
            times["gdb"].append(gdb(child.pid)[1])
    finally:
        child.kill()
        child.wait()
    median = lambda values: sorted(values)[len(values) // 2]
    return [f"{options.threads} threads that wait, from start to end, {options.rounds} rounds in turns, medians and all:"] + [
        f"  {tool:5} {median(values):7.2f} s   " + " ".join(f"{value:.2f}" for value in values)
        for tool, values in times.items()]


def head(tool, note):
    """The first line of a run."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return f"{tool}, {now:%Y-%m-%d %H:%M}, kernel {os.uname().release}, {os.cpu_count()} CPUs. {note}".rstrip()


def keep(name, lines):
    """Writes a run into bench/runs, beside those of the same day."""
    runs, begin = ROOT / "bench/runs", f"{datetime.date.today()}-{name}"
    names = [f"{begin}.txt"] + [f"{begin}-{number}.txt" for number in range(2, 100)]
    (runs / next(name for name in names if not (runs / name).exists())).write_text("\n".join(lines) + "\n")


def main():
    options = arguments()
    if os.geteuid() != 0 or not shutil.which("gdb"):
        sys.exit("bench/hung.py needs root and gdb")
    options.kymo = str(pathlib.Path(options.kymo).resolve())
    lines = [head("bench/hung.py", options.note), "",
             "Threads whose stacks are equal, have gdb's frames and more callers, run, or differ; time from start to end.", "",
             f"{'program':34} " + " ".join(f"{kind:>7}" for kind in KINDS) + f" {'kymo':>11} {'gdb':>11}"]
    with tempfile.TemporaryDirectory() as place:
        folder, everything = pathlib.Path(place), collections.Counter()
        for name, command in programs(folder):
            if not shutil.which(command[0]):
                lines.append(f"{name:34} {command[0]} is not installed")
                continue
            line, found = look(options, folder, name, command)
            print(line, flush=True)
            lines.append(line)
            everything.update(found or {})
        lines += [f"{'all':34} " + " ".join(f"{everything[kind]:7}" for kind in KINDS), ""]
        lines += many(options, folder)
    print("\n".join(lines))
    keep("hung", lines)


if __name__ == "__main__":
    main()
