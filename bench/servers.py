#!/usr/bin/env python3
"""What servers wait for, idle and under load: `kymo record --wall -p` beside what /proc says of their threads.

    bench/servers.py [--kymo target/release/kymo] [--seconds 5] [--note TEXT]

Needs root; servers that are not installed are named and left out. Each is recorded while nobody wants anything of it: its
time is shown by state, and none of it may be a lock's. Then it is recorded under load, while /proc/PID/task/TID/syscall is
read some hundred times a second by a process of real-time priority, and /proc/PID/task/TID/schedstat before and after: the
shares of both must be the same. /proc knows the system call of a wait, not what it is for, so that locks, conditions and joins are one kind there. The
text goes into bench/runs.
"""
import argparse
import collections
import contextlib
import datetime
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
CLIENTS = 4
# Points of all time by which both may differ: /proc is read some hundred times a second.
MOST_POINTS = 5.0
# What else than idle a server may do that nobody wants anything of: it looks at clocks.
IDLE_STATES = {"timer", "running", "runnable"}
KINDS = {
    "running": "CPU", "runnable": "CPU", "throttled": "CPU", "lock": "futex", "condition": "futex", "child": "futex", "poll": "poll",
    "network": "read or write", "pipe": "read or write", "disk": "read or write", "timer": "timer",
}
# Waits for a lock of its tables and rows are in its event loop: kymo knows them by the functions around.
LOCK_KINDS = {"PostgreSQL": "poll"}
# System calls of x86-64 by what a thread waits for in them; all others are `other`.
CALLS = {
    202: "futex", 7: "poll", 23: "poll", 232: "poll", 270: "poll", 271: "poll", 281: "poll", 0: "read or write",
    1: "read or write", 17: "read or write", 18: "read or write", 44: "read or write", 45: "read or write",
    46: "read or write", 47: "read or write", 43: "read or write", 288: "read or write", 74: "read or write",
    75: "read or write", 35: "timer", 230: "timer", 61: "futex", 247: "futex",
}
POOL_CC = r"""
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>
static std::mutex lock;
static std::condition_variable arrived;
static std::queue<int> work;
static volatile unsigned long sum;
static void serve() {
    for (;;) {
        std::unique_lock<std::mutex> held(lock);
        arrived.wait(held, [] { return !work.empty(); });
        work.pop();
        held.unlock();
        for (int i = 0; i < 100000; i++) sum += i;
    }
}
int main() {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; i++) threads.emplace_back(serve);
    for (int c; (c = getchar()) != EOF;) {
        std::lock_guard<std::mutex> held(lock);
        work.push(c);
        arrived.notify_one();
    }
    for (auto &thread : threads) thread.join();
}
"""
POOL_PYTHON = """
import queue, sys, threading
work = queue.Queue()
def serve():
    while True:
        work.get()
        sum(range(5000))
for _ in range(8):
    threading.Thread(target=serve, daemon=True).start()
while sys.stdin.buffer.raw.read(1):
    work.put(1)
"""
POOL_JAVA = """
import java.util.concurrent.*;
public class Pool {
    static volatile long sum;
    public static void main(String[] words) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(8);
        for (int i = 0; i < 8; i++) pool.submit(() -> {});
        while (System.in.read() >= 0) pool.submit(() -> { for (int i = 0; i < 100000; i++) sum += i; });
    }
}
"""
SERVER_GO = """
package main

import (
	"fmt"
	"net/http"
	"os"
)

func main() {
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, r.URL.Path) })
	http.ListenAndServe("127.0.0.1:"+os.Args[1], nil)
}
"""
SERVER_NODE = "require('http').createServer((q, a) => a.end(q.url)).listen(Number(process.argv[1]), '127.0.0.1')"


def quiet(command, **more):
    return subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **more)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def answers(probe, seconds=30):
    """Waits until a probe succeeds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(OSError, subprocess.CalledProcessError):
            probe()
            return
        time.sleep(0.1)
    raise RuntimeError("it did not answer")


class Pool:
    """A pool of threads that takes a piece of work for each byte of its input."""

    def __init__(self, folder, name, command):
        self.name, self.process = name, quiet(command, cwd=folder, stdin=subprocess.PIPE, bufsize=0)
        time.sleep(2)

    def load(self, until):
        while time.monotonic() < until:
            self.process.stdin.write(b"x" * 4)
            time.sleep(0.002)

    def end(self):
        self.process.kill()
        self.process.wait()


class HttpServer:
    """A server of HTTP, which clients ask one thing after another."""

    def __init__(self, folder, name, command):
        self.name, self.url = name, f"http://127.0.0.1:{command[-1]}/"
        self.process = quiet(command, cwd=folder)
        answers(self.ask)

    def ask(self):
        urllib.request.urlopen(self.url).read()

    def load(self, until):
        def client():
            while time.monotonic() < until:
                self.ask()

        clients = [threading.Thread(target=client) for _ in range(CLIENTS)]
        [thread.start() for thread in clients]
        [thread.join() for thread in clients]

    def end(self):
        self.process.kill()
        self.process.wait()


class Database:
    """A database in a folder, and the command that loads it."""

    def __init__(self, name, command, probe, load, **more):
        self.name, self.process, self.command = name, quiet(command, **more), load
        answers(lambda: subprocess.run(probe, check=True, capture_output=True))

    def load(self, until):
        clients = [quiet(self.command) for _ in range(CLIENTS)]
        time.sleep(max(until - time.monotonic(), 0))
        for client in clients:
            client.kill()
            client.wait()

    def end(self):
        self.process.terminate()
        self.process.wait()


def mariadb(folder):
    data, path = folder / "mariadb", folder / "mariadb.sock"
    install = ["mariadb-install-db", "--no-defaults", "--user=root", "--auth-root-authentication-method=normal", f"--datadir={data}"]
    subprocess.run(install, check=True, capture_output=True)
    server = [shutil.which("mariadbd"), "--no-defaults", "--user=root", f"--datadir={data}", "--skip-networking", f"--socket={path}"]
    client = ["mariadb", "--no-defaults", "-u", "root", f"--socket={path}", "-e"]
    rows = "CREATE DATABASE IF NOT EXISTS b; CREATE TABLE IF NOT EXISTS b.t (i INT PRIMARY KEY, n INT); INSERT IGNORE INTO b.t VALUES (1, 0);"
    work = "UPDATE b.t SET n = n + 1;" * 5000
    return Database("MariaDB", server, [*client, rows], [*client, work])


def postgresql(folder):
    [programs, *_] = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    data = folder / "postgresql"
    data.mkdir()
    shutil.chown(data, "nobody")
    nobody = {"user": "nobody", "group": "nogroup", "cwd": "/"}
    subprocess.run([programs / "initdb", "-A", "trust", "-U", "postgres", "--no-sync", "-D", data], check=True, capture_output=True, **nobody)
    server = [programs / "postgres", "-D", data, "-k", data, "-c", "listen_addresses="]
    options = ["-h", str(data), "-U", "postgres"]
    pgbench = str(programs / "pgbench")
    ready = ["sh", "-c", f'{programs}/pg_isready -h {data} && "$@"', "sh", pgbench, "-i", "-q", *options, "postgres"]
    return Database("PostgreSQL", server, ready, [pgbench, "-T", "600", "-n", *options, "postgres"], **nobody)


def pool_cc(folder):
    (folder / "pool.cc").write_text(POOL_CC)
    subprocess.run(["g++", "-O1", "-g", "-pthread", "-o", folder / "pool", folder / "pool.cc"], check=True)
    return Pool(folder, "C++ pool", [folder / "pool"])


def pool_python(folder):
    (folder / "pool.py").write_text(POOL_PYTHON)
    return Pool(folder, "Python queue", ["/usr/bin/python3", folder / "pool.py"])


def pool_java(folder):
    (folder / "Pool.java").write_text(POOL_JAVA)
    subprocess.run(["javac", "-d", folder, folder / "Pool.java"], check=True)
    return Pool(folder, "Java pool", ["java", "-cp", folder, "Pool"])


def server_go(folder):
    (folder / "main.go").write_text(SERVER_GO)
    environment = os.environ | {"GO111MODULE": "off", "GOCACHE": str(folder / "go-cache"), "GOFLAGS": ""}
    subprocess.run(["go", "build", "-o", folder / "server-go", folder / "main.go"], check=True, env=environment)
    return HttpServer(folder, "Go server", [folder / "server-go", free_port()])


def server_node(folder):
    return HttpServer(folder, "node server", ["node", "-e", SERVER_NODE, free_port()])


SERVERS = {
    "mariadbd": mariadb, "/usr/lib/postgresql": postgresql, "g++": pool_cc, "/usr/bin/python3": pool_python, "javac": pool_java,
    "go": server_go, "node": server_node,
}


def family(pid):
    """A process and its descendants."""
    found, new = [], [pid]
    while new:
        found += new
        children = (pathlib.Path(f"/proc/{one}/task").glob("*/children") for one in new)
        new = [int(word) for paths in children for path in paths for word in path.read_text().split()]
    return found


def on_cpu_ns(pid):
    """How long threads ran and waited for a CPU, by thread: the kernel's own account."""
    found = {}
    for process in family(pid):
        for thread in pathlib.Path(f"/proc/{process}/task").glob("*"):
            with contextlib.suppress(OSError):
                found[thread.name] = sum(map(int, (thread / "schedstat").read_text().split()[:2]))
    return found


def sampled(pid, seconds):
    """The shares of what the threads do, as /proc says: time on CPUs and ready for them exactly, the rest by samples."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    kinds, begun, before = collections.Counter(), time.monotonic(), on_cpu_ns(pid)
    while time.monotonic() < begun + seconds:
        for process in family(pid):
            for thread in pathlib.Path(f"/proc/{process}/task").glob("*"):
                with contextlib.suppress(OSError):
                    call = (thread / "syscall").read_text().split()[0]
                    runs = call == "running" or (thread / "stat").read_text().rsplit(")", 1)[1].split()[0] == "R"
                    kinds["CPU" if runs else CALLS.get(int(call), "other")] += 1
        time.sleep(0.01)
    spent = [ns - before[tid] for tid, ns in on_cpu_ns(pid).items() if tid in before]
    cpu = 100 * sum(spent) / (len(spent) * 1e9 * (time.monotonic() - begun))
    del kinds["CPU"]
    waits = {kind: (100 - cpu) * count / kinds.total() for kind, count in kinds.items()}
    return {"CPU": cpu, **waits}


def recorded(kymo, pid, seconds, folder, samples=False):
    """What kymo's report says of so many seconds, and what /proc said meanwhile."""
    file, known = folder / "wall.data", None
    # What ends soon was not asked about.
    before = family(pid)
    time.sleep(1)
    pids = ",".join(str(one) for one in family(pid) if one in before)
    command = [kymo, "record", "--wall", "-q", "-p", pids, "-o", file, "--duration", str(seconds)]
    record = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    time.sleep(0.5)
    if samples:
        known = json.loads(subprocess.check_output([sys.executable, __file__, "--sample", f"{pid},{seconds - 1}"]))
    _, words = record.communicate()
    if record.returncode != 0:
        raise RuntimeError(f"kymo record ended with {record.returncode}: {words}")
    report = subprocess.run([kymo, "report", "--wall", "--json", "-i", file], check=True, capture_output=True)
    return json.loads(report.stdout), known


def shares(name, report):
    """The shares of the report in the kinds that /proc tells apart."""
    kinds = collections.Counter()
    for state, time_ns in report["states"].items():
        kind = LOCK_KINDS.get(name) if state == "lock" else None
        kinds[kind or KINDS.get(state, "other")] += 100 * time_ns / report["total_ns"]
    return kinds


def idle_line(name, report, wrong):
    """A line about a server that nobody wants anything of."""
    total = report["total_ns"]
    idle = sum(thread["idle_ns"] for thread in report["threads"])
    states = {state: 100 * time_ns / total for state, time_ns in report["states"].items()}
    busy = sum(place["time_ns"] for place in report["places"] if not place["idle"] and place["state"] not in IDLE_STATES)
    if states.get("lock", 0) > 0:
        wrong.append(f"{name}, idle: {states['lock']:.2f} % lock")
    shown = ", ".join(f"{state} {share:.1f}" for state, share in sorted(states.items(), key=lambda item: -item[1]) if share >= 0.05)
    return f"{name:14} {100 * idle / total:6.1f} {100 * busy / total:6.1f} {states.get('lock', 0):6.2f}   {shown}"


def loaded_lines(name, report, known, wrong):
    """Lines about a server under load."""
    found = shares(name, report)
    for kind in sorted({*found, *known}, key=lambda kind: -known.get(kind, 0)):
        points = found[kind] - known.get(kind, 0)
        if abs(points) > MOST_POINTS:
            wrong.append(f"{name}, loaded: {kind} is {found[kind]:.1f} % for kymo and {known.get(kind, 0):.1f} % in /proc")
        if max(found[kind], known.get(kind, 0)) >= 0.1:
            yield f"{name:14} {kind:14} {found[kind]:6.1f} {known.get(kind, 0):6.1f} {points:+6.1f}"
    states = {state: 100 * time_ns / report["total_ns"] for state, time_ns in report["states"].items()}
    yield f"{name:14} by state: " + ", ".join(f"{s} {p:.1f}" for s, p in sorted(states.items(), key=lambda item: -item[1]) if p >= 0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kymo", default=str(ROOT / "target/release/kymo"))
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--note", default="", help="a sentence about the machine, for the text")
    parser.add_argument("--sample", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.sample:
        pid, seconds = args.sample.split(",")
        print(json.dumps(sampled(int(pid), int(seconds))))
        return 0
    idle, loaded, wrong = [], [], []
    with tempfile.TemporaryDirectory(prefix="kymo-servers.") as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        for needed, start in SERVERS.items():
            if not (pathlib.Path(needed).exists() or shutil.which(needed)):
                idle.append(f"{needed} is not installed")
                continue
            server = start(folder)
            try:
                pid = server.process.pid
                report, _ = recorded(args.kymo, pid, args.seconds, folder)
                idle.append(idle_line(server.name, report, wrong))
                load = threading.Thread(target=server.load, args=(time.monotonic() + args.seconds + 3,))
                load.start()
                time.sleep(1.5)
                report, known = recorded(args.kymo, pid, args.seconds, folder, samples=True)
                loaded += loaded_lines(server.name, report, known, wrong)
                load.join()
            finally:
                server.end()
    now = datetime.datetime.now()
    lines = [
        f"bench/servers.py, {now:%Y-%m-%d %H:%M}, kernel {os.uname().release}, {os.cpu_count()} CPUs. {args.note}", "",
        "Idle, % of the time of all threads: what is idle, what is neither idle nor a timer or a CPU, lock; all states.", "", *idle, "",
        f"With {CLIENTS} clients or a steady stream of work, % of the time of all threads: kymo, /proc, difference.", "", *loaded, "",
        *(f"DIFFERS {line}" for line in wrong),
    ]
    text = "\n".join(lines).rstrip() + "\n"
    print(text)
    (ROOT / f"bench/runs/{now:%Y-%m-%d}-servers.txt").write_text(text)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
