"""Programs that wait: a database whose clients want one row, a web server, a JVM's monitor, and node. `kymo record --wall`."""

import json
import os
import pathlib
import shutil
import subprocess

from .servers import NGINX
from .visit import Missing, check, fetch, free_port, load, need, server

ROW = "BEGIN;\nUPDATE pgbench_branches SET bbalance = bbalance + 1 WHERE bid = 1;\nEND;\n"

MONITOR = """
public class Till {
    static final Object drawer = new Object();
    static long sold;

    static void countMoney() throws InterruptedException {
        synchronized (drawer) { sold++; Thread.sleep(20); }
    }

    public static void main(String[] arguments) throws Exception {
        Thread[] all = new Thread[4];
        for (int i = 0; i < all.length; i++) {
            all[i] = new Thread(() -> {
                try { for (int n = 0; n < 25; n++) countMoney(); } catch (InterruptedException gone) { }
            });
            all[i].start();
        }
        for (Thread one : all) one.join();
        System.out.println(sold);
    }
}
"""

NODE = """
const http = require('http'), fs = require('fs');
http.createServer((request, reply) => {
    fs.readFile(__filename, (error, text) => reply.end(String(text.length)));
}).listen(Number(process.argv[2]), '127.0.0.1');
"""


def waits(kymo):
    """`kymo report --wall`: what all threads did, without remainder."""
    said = kymo.run("report", "--wall", "--top", "5", lines=30)
    check(said.code == 0, f"kymo report --wall ended with {said.code}")
    report = json.loads(kymo.plain(kymo.path, "report", "--wall", "--json").out)
    for thread in report["threads"]:
        rest = abs(thread["total_ns"] - sum(thread["states"].values()))
        check(rest * 200 <= thread["total_ns"], f"the states of {thread['name']} are not all of its time")
    return report


def waited(report, *states):
    """How long all threads were in these states."""
    return sum(thread["states"].get(state, 0) for thread in report["threads"] for state in states)


def postgres(kymo):
    """Clients of PostgreSQL that all update one row: the first line says that they wait for it."""
    found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
    if not found or os.geteuid() != 0:
        raise Missing("PostgreSQL, and root")
    data, port = kymo.folder / "data", str(free_port())
    (kymo.folder / "row.sql").write_text(ROW)
    data.mkdir()
    shutil.chown(data, "postgres", "postgres")

    def call(tool, *words, start=subprocess.run, **options):
        user = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups"]
        null = subprocess.DEVNULL
        return start([*user, found[-1] / tool, *words], stdin=null, stdout=null, stderr=null, cwd=kymo.folder, **options)

    call("initdb", "-D", data, check=True)
    call("pg_ctl", "-D", data, "-o", f"-p {port} -k /tmp", "-l", data / "log", "-w", "start", check=True)
    try:
        call("pgbench", "-p", port, "-h", "/tmp", "-i", "-q", "postgres", check=True)
        clients = ["-n", "-c", "8", "-j", "2", "-T", "6", "-f", "row.sql", "postgres"]
        running = call("pgbench", "-p", port, "-h", "/tmp", *clients, start=subprocess.Popen)
        pid = (data / "postmaster.pid").read_text().split()[0]
        kymo.record("--wall", "-p", pid, "--", "sleep", "3")
        locks = kymo.run("locks", "-p", pid, "-d", "1", "--top", "3")
        check(running.wait(60) == 0, "a client failed while the database was recorded")
    finally:
        call("pg_ctl", "-D", data, "-m", "immediate", "stop")
    first = waits(kymo)["places"][0]
    check(first["state"] == "lock" and "ProcSleep" in first["functions"], f"not the row's lock: {first}")
    ended = first["ended_by"]["functions"]
    check("CommitTransactionCommand" in " ".join(ended), f"not ended by a commit: {ended}")
    check(locks.code == 0 and "held by" in locks.out, "kymo locks names no holder")


def nginx_waits(kymo):
    """A web server under load, as `wrk` makes it: it waits for connections."""
    need("nginx", "wrk")
    port, user = free_port(), os.environ.get("USER", "root")
    (kymo.folder / "page").write_text("a page\n")
    (kymo.folder / "conf").write_text(NGINX.format(at=kymo.folder, port=port, user=user))
    with server("nginx", "-c", str(kymo.folder / "conf"), "-e", str(kymo.folder / "log"), port=port) as child:
        wrk = ["wrk", "-t", "1", "-c", "8", "-d", "4", f"http://127.0.0.1:{port}/page"]
        running = subprocess.Popen(wrk, stdout=subprocess.PIPE, text=True)
        kymo.record("--wall", "-p", str(child.pid), "--", "sleep", "2")
        said = running.communicate()[0]
    check("Non-2xx" not in said and "Socket errors" not in said, f"requests failed: {said}")
    report = waits(kymo)
    check(waited(report, "running") > 0 and waited(report, "poll") > 0, "nginx neither ran nor waited for connections")


def java_monitor(kymo):
    """Four threads of a JVM that want one monitor: three of four wait."""
    need("java", "javac")
    (kymo.folder / "Till.java").write_text(MONITOR)
    kymo.make("javac", "Till.java")
    said = kymo.record("--wall", "--", "java", "-cp", ".", "Till")
    check(said.out.strip() == "100", f"it sold {said.out.strip()}")
    report = waits(kymo)
    mine = [thread for thread in report["threads"] if thread["name"].startswith("Thread-")]
    check(len(mine) == 4, f"{len(mine)} threads of the program")
    locked, slept = waited({"threads": mine}, "lock", "condition", "futex"), waited({"threads": mine}, "timer")
    check(locked > 2 * slept * 0.7, f"the threads waited {locked} ns for each other, and slept {slept} ns")
    locks = kymo.run("locks", "--", "java", "-cp", ".", "Till")
    check(locks.code == 0 and locks.out.count("held by") > 0, "kymo locks names no holder")


def node(kymo):
    """A server in JavaScript: its loop polls, and its workers wait for files to read."""
    need("node")
    port = free_port()
    (kymo.folder / "serve.js").write_text(NODE)
    with server("node", "serve.js", str(port), port=port, cwd=kymo.folder) as child:
        with load(port, "/", fetch(port, "/", {}), {}):
            kymo.record("--wall", "-p", str(child.pid), "--", "sleep", "2")
    report = waits(kymo)
    loop = [thread for thread in report["threads"] if thread["tid"] == thread["pid"]]
    check(waited({"threads": loop}, "poll") > 0, "the loop never waited for events")
    idle = [place for place in report["places"] if place["idle"]]
    check(idle, "no place of the waiting workers is folded as idle")


PROGRAMS = {"postgres": postgres, "nginx-waits": nginx_waits, "java-monitor": java_monitor, "node": node}
