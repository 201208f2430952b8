#!/usr/bin/env python3
"""Functions and lines of programs that hang: `kymo stacks` beside what their runtimes tell of themselves.

    bench/hung_names.py [--kymo target/release/kymo] [--py-spy py-spy] [--note TEXT]

Python beside py-spy, Java beside jstack, Go beside the dump that SIGQUIT asks for. All frames of each thread or goroutine
are compared by function and line, innermost first; of a thread that runs, the outermost one alone. Needs root. What is not
installed is named and left out. The text goes into bench/runs.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import hung

FIXTURES = hung.FIXTURES
POOL = """
import concurrent.futures, queue, threading, time
items = queue.Queue()
pool = concurrent.futures.ThreadPoolExecutor(4)
for _ in range(4): pool.submit(items.get)
lock, other = threading.Lock(), threading.RLock()
def holds(first, second):
    with first:
        time.sleep(0.3)
        with second: pass
threading.Thread(target=holds, args=(lock, other)).start()
threading.Thread(target=holds, args=(other, lock)).start()
barrier = threading.Barrier(3)
threading.Thread(target=barrier.wait).start()
print("hung", flush=True)
input()
"""
ASYNC = """
import asyncio, threading
async def sleeps(): await asyncio.sleep(1000)
async def main():
    print("hung", flush=True)
    await asyncio.gather(*(sleeps() for _ in range(3)))
asyncio.run(main())
"""
SOCKET = """
import socket, threading
server = socket.create_server(("127.0.0.1", 0))
def asks(): socket.create_connection(server.getsockname()).recv(10)
threading.Thread(target=asks, daemon=True).start()
peer, _ = server.accept()
print("hung", flush=True)
server.accept()
"""
JAVA = """
import java.util.*; import java.util.concurrent.*; import java.util.concurrent.locks.*;
public class Waits {
    static final ReentrantLock lock = new ReentrantLock();
    static void wants() { lock.lock(); }
    static void meets(CyclicBarrier barrier) { try { barrier.await(); } catch (Exception e) { } }
    static synchronized void waits() { try { Waits.class.wait(); } catch (InterruptedException e) { } }
    static int deep(int n) { return n == 0 ? sleeps() : deep(n - 1) + 1; }
    static int sleeps() { try { Thread.sleep(1000000); } catch (InterruptedException e) { } return 0; }
    public static void main(String[] words) throws Exception {
        lock.lock();
        new Thread(Waits::wants, "wants").start();
        new Thread(Waits::waits, "waits").start();
        new Thread(() -> meets(new CyclicBarrier(2)), "meets").start();
        new Thread(() -> deep(50), "deep").start();
        var pool = Executors.newFixedThreadPool(3);
        for (int i = 0; i < 3; i++) pool.submit(() -> { });
        var items = new LinkedBlockingQueue<Integer>();
        new Thread(() -> { try { items.take(); } catch (InterruptedException e) { } }, "takes").start();
        Thread.sleep(300);
        System.out.println("hung");
        System.in.read();
    }
}
"""
GO = """
package main
import ("fmt"; "net"; "sync"; "time"; "bufio"; "os")
type store struct { sync.RWMutex; items map[int]int }
func (s *store) get(n int) int { s.RLock(); defer s.RUnlock(); return s.items[n] }
func deep(n int, done chan bool) { if n > 0 { deep(n-1, done); return }; <-done }
func serve(l net.Listener) { for { l.Accept() } }
func main() {
    s, done, full := &store{}, make(chan bool), make(chan int)
    s.Lock()
    for i := 0; i < 4; i++ { go s.get(i) }
    go deep(40, done)
    go func() { full <- 1 }()
    l, _ := net.Listen("tcp", "127.0.0.1:0")
    go serve(l)
    var group sync.WaitGroup
    group.Add(1)
    go group.Wait()
    cond := sync.NewCond(&sync.Mutex{})
    go func() { cond.L.Lock(); cond.Wait() }()
    go func() { select { case <-done: case full <- 2: } }()
    go time.Sleep(time.Hour)
    time.Sleep(300 * time.Millisecond)
    fmt.Println("hung")
    bufio.NewReader(os.Stdin).ReadString('\\n')
}
"""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kymo", default=str(hung.ROOT / "target/release/kymo"))
    parser.add_argument("--py-spy", default="py-spy")
    parser.add_argument("--note", default="", help="a sentence about the machine, for the text")
    return parser.parse_args()


def kymo_stacks(options, pid):
    """Of each thread and goroutine: its frames as (function, line), outlined by kymo."""
    said = subprocess.run([options.kymo, "stacks", "--json", "-q", "-p", str(pid)], check=True, capture_output=True)
    for stack in json.loads(said.stdout)["stacks"]:
        for thread in stack["threads"]:
            yield thread, stack["activity"], stack["frames"]


def of_python(options, pid):
    """{thread: (ours, theirs)}; frames of the interpreter itself are not in py-spy's answer."""
    said = subprocess.run([options.py_spy, "dump", "--json", "-p", str(pid)], capture_output=True)
    if said.returncode != 0:
        sys.exit(f"py-spy does not look at {pid}: {said.stderr.decode(errors='replace')[:300]}")
    theirs = {thread["os_thread_id"]: [(frame["name"], frame["line"]) for frame in thread["frames"]]
              for thread in json.loads(said.stdout)}
    found = {}
    for thread, activity, frames in kymo_stacks(options, pid):
        is_python = lambda frame: (frame["file"] or "").endswith(".py") or "importlib" in (frame["file"] or "")
        ours = [(frame["function"], frame["line"]) for frame in frames if is_python(frame)]
        if thread["tid"] in theirs or ours:
            found[thread["tid"]] = (ours, theirs.get(thread["tid"], []), activity)
    return found


def of_java(options, pid):
    said = subprocess.run(["jstack", str(pid)], check=True, capture_output=True, text=True).stdout
    theirs, thread = {}, None
    for line in said.splitlines():
        if head := re.match(r'".*" #\d+.* nid=(\w+)', line):
            thread = theirs.setdefault(int(head[1], 0), [])
        elif not line:
            thread = None
        elif thread is not None and (frame := re.match(r"\s+at ([^(]+)\(([^)]*)\)", line)):
            place = frame[2].rpartition(":")[2]
            # The module stands before the class's file: `java.lang.Thread.run(java.base@17/Thread.java:840)`.
            thread.append((hidden(frame[1].rpartition("/")[2]), int(place) if place.isdigit() else None))
    found = {}
    for thread, activity, frames in kymo_stacks(options, pid):
        ours = [(hidden(frame["function"]), frame["line"]) for frame in frames
                if (frame["module"] or "").endswith(".java") or frame["module"] in ("Native Method", "Unknown Source")]
        if thread["tid"] in theirs:
            found[thread["tid"]] = (ours, theirs[thread["tid"]], activity)
    return found


def hidden(name):
    """Without the address of a hidden class, `Hung$$Lambda$1/0x00007f0f14000c10.run`: jstack's name of it is cut above."""
    return re.sub(r".*0x[0-9a-f]+\.", "", name)


def of_go(options, pid, errors):
    ours = {thread["goroutine"]: ([(frame["function"].removesuffix(".abi0"), frame["line"]) for frame in frames], activity)
            for thread, activity, frames in kymo_stacks(options, pid) if thread["goroutine"]}
    os.kill(pid, signal.SIGQUIT)
    time.sleep(1)
    theirs, stack, function = {}, None, None
    for line in errors.read_text().splitlines():
        if head := re.match(r"goroutine (\d+) .*\[", line):
            stack = theirs.setdefault(int(head[1]), [])
        elif line.startswith("created by") or not line:
            stack = stack if line else None
            function = None
        elif stack is not None and line.startswith("\t"):
            if function:
                stack.append((function, int(re.search(r":(\d+)", line)[1])))
        else:
            function = re.sub(r"\((?:[^()]|\([^()]*\))*\)$", "", line)
    return {number: (ours.get(number, ([], "missing"))[0], frames, ours.get(number, ([], "missing"))[1])
            for number, frames in theirs.items() if number}


def compare(ours, theirs, activity):
    if ours == theirs:
        return "equal"
    # Of a goroutine in a system call Go tells the line where it told the scheduler of it, some lines before the call.
    if activity == "waiting" and theirs and ours[len(ours) - len(theirs) + 1:] == theirs[1:] \
            and (theirs[0][0] in [function for function, _ in ours[:len(ours) - len(theirs) + 1]]):
        return "longer"
    if activity == "running" and ours[-1:] == theirs[-1:]:
        return "runs"
    return "other"


def pythons():
    """Those that start: a version manager has commands for what is not installed, and scripts in front of what is."""
    for minor in range(9, 16):
        command = [f"python3.{minor}", "-c", "import sys; print(sys.executable)"]
        if shutil.which(command[0]) and (said := subprocess.run(command, capture_output=True, text=True)).returncode == 0:
            yield pathlib.Path(said.stdout.strip()).resolve()


def programs(folder, options):
    for name, text in [("pool", POOL), ("async", ASYNC), ("connected", SOCKET), ("hung", (FIXTURES / "hung.py").read_text())]:
        (folder / f"{name}.py").write_text(text)
        for python in pythons() if shutil.which(options.py_spy) else []:
            yield f"{python.name}, {name}", [str(python), str(folder / f"{name}.py")], of_python
    for name, text in [("Waits", JAVA), ("Hung", (FIXTURES / "Hung.java").read_text())]:
        (folder / f"{name}.java").write_text(text)
        if shutil.which("jstack"):
            subprocess.run(["javac", "-d", folder, folder / f"{name}.java"], check=True)
            yield f"Java, {name}", ["java", "-cp", str(folder), name], of_java
    for name, text in [("waits", GO), ("hung", (FIXTURES / "hung.go").read_text())]:
        (folder / f"{name}.go").write_text(text)
        if shutil.which("go"):
            subprocess.run(["go", "build", "-o", folder / f"{name}-go", folder / f"{name}.go"], check=True, cwd=folder,
                           env={**os.environ, "GO111MODULE": "off"})
            yield f"Go, {name}", [str(folder / f"{name}-go")], of_go


def look(options, folder, command, read):
    errors = folder / "errors"
    with open(errors, "w") as file:
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file,
                                 env={**os.environ, "GOTRACEBACK": "system"})
    try:
        child.stdout.readline()
        time.sleep(1)
        return read(options, child.pid, *([errors] if read is of_go else []))
    finally:
        child.kill()
        child.wait()


def main():
    options = arguments()
    if os.geteuid() != 0:
        sys.exit("bench/hung_names.py needs root")
    lines = [hung.head("bench/hung_names.py", options.note), "",
             "Threads and goroutines whose functions and lines are equal, equal behind more inner frames of kymo, that run, or "
             "differ.", "", f"{'program':24} " + " ".join(f"{kind:>7}" for kind in hung.KINDS)]
    everything = collections.Counter()
    with tempfile.TemporaryDirectory() as place:
        for name, command, read in programs(pathlib.Path(place), options):
            found = look(options, pathlib.Path(place), command, read)
            kinds = collections.Counter(compare(*stacks) for stacks in found.values())
            everything.update(kinds)
            lines.append(f"{name:24} " + " ".join(f"{kinds[kind]:7}" for kind in hung.KINDS))
            for number, (ours, theirs, activity) in found.items():
                if compare(ours, theirs, activity) == "other":
                    lines.append(f"  {number} ({activity}): kymo {ours}, the runtime {theirs}")
    lines.append(f"{'all':24} " + " ".join(f"{everything[kind]:7}" for kind in hung.KINDS))
    print("\n".join(lines))
    hung.keep("hung-names", lines)


if __name__ == "__main__":
    main()
