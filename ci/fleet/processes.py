#!/usr/bin/env python3
"""Many processes of one program are one service, and a function of them is one row.

    python3 -m ci.fleet.processes --kymo target/release/kymo
    python3 -m ci.fleet.processes --services-for 600         # only the services, of whatever runs for so long

Twenty processes each of Node, Java and Python run while kymo records the machine. In the dataset of that recording each of
their hot functions must be one row of top-functions, however many processes run it; and each process of the machine must
have the service that the book promises: the unit of systemd, else pod or container, else the name of its main thread, as
/proc has it now and then, and the kernel's events of forks and renames all the time. A third of the Python processes run in a cgroup that has the name of a unit, where there is cgroup2. It needs root,
node, java and python3.
"""

import argparse
import collections
import contextlib
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from .engines import ROOT, Failed, run

COPIES = 20
PF_KTHREAD = 0x00200000
# An instance of tracefs of its own.
TRACE = pathlib.Path("/sys/kernel/tracing/instances/kymo-processes")
SECONDS = 12
NODE = "function busyNode(n) { let s = 0; for (let i = 0; i < n; i++) s = (s * 31 + i) % 1000003; return s }\n" \
       "const end = Date.now() + Number(process.argv[2]) * 1000; let x = 0; while (Date.now() < end) x += busyNode(200000)\n"
JAVA = """public class BusyJava {
    static int busyJava(int n) { int s = 0; for (int i = 0; i < n; i++) s = (s * 31 + i) % 1000003; return s; }
    public static void main(String[] words) {
        long end = System.currentTimeMillis() + Long.parseLong(words[0]) * 1000; int x = 0;
        while (System.currentTimeMillis() < end) x += busyJava(200000);
        System.out.println(x);
    }
}
"""
PYTHON = """import sys, time
def busy_python(n):
    s = 0
    for i in range(n):
        s = (s * 31 + i) % 1000003
    return s
end = time.time() + float(sys.argv[1])
while time.time() < end:
    busy_python(20000)
"""
# A function's part in the names that runtimes give: JS:*busyNode file:1:1, int BusyJava.busyJava(int), busy_python.
FUNCTIONS = {"node": "busyNode", "java": "busyJava", "python3": "busy_python"}


def commands(folder):
    """The program of each runtime, ready to start."""
    (folder / "busy.js").write_text(NODE)
    (folder / "BusyJava.java").write_text(JAVA)
    (folder / "busy.py").write_text(PYTHON)
    found = {
        "node": ["node", "--perf-basic-prof", folder / "busy.js"],
        "python3": ["python3", folder / "busy.py"],
    }
    if shutil.which("javac"):
        run(["javac", "-d", folder, folder / "BusyJava.java"])
        found["java"] = ["java", "-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit", "-cp", folder, "BusyJava"]
    else:
        found["java"] = ["java", "-XX:+UnlockDiagnosticVMOptions", "-XX:+DumpPerfMapAtExit", folder / "BusyJava.java"]
    return {name: words for name, words in found.items() if shutil.which(words[0])}


def service_of(pid):
    """The service of a process as the book has it, where it is from, and its maker; None: the process is gone."""
    process = pathlib.Path("/proc") / str(pid)
    with contextlib.suppress(OSError):
        comm = (process / "comm").read_text(errors="replace").rstrip("\n")
        fields = (process / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()
        is_kernel, maker = bool(int(fields[6]) & PF_KTHREAD), int(fields[1])
        for line in (process / "cgroup").read_text().splitlines():
            units = [part for part in line.split(":", 2)[2].split("/") if part.endswith((".service", ".scope"))]
            if units:
                return (units[-1], "unit", is_kernel), maker
        return (comm, "thread of the kernel" if is_kernel else "main thread", is_kernel), maker
    return None


class Observer:
    """What /proc and the kernel's events say of the processes of this machine."""

    def __init__(self):
        self.services = collections.defaultdict(set)
        self.makers = collections.defaultdict(set)

    def __enter__(self):
        TRACE.mkdir()
        (TRACE / "buffer_size_kb").write_text("32768")
        for event in ("sched/sched_process_fork", "task/task_rename"):
            (TRACE / "events" / event / "enable").write_text("1")
        self.look()
        return self

    def __exit__(self, *_):
        TRACE.rmdir()

    def look(self):
        for process in pathlib.Path("/proc").iterdir():
            if process.name.isdigit() and (found := service_of(int(process.name))):
                self.services[int(process.name)].add(found[0])
                self.makers[int(process.name)].add(found[1])

    def observe_for(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            time.sleep(0.5)

    def read_events(self):
        """Every name that a main thread had: that of the thread which made it, and those that it was given."""
        (TRACE / "tracing_on").write_text("0")
        lost = [line for stats in TRACE.glob("per_cpu/cpu*/stats") for line in stats.read_text().splitlines() if line.startswith("overrun: ")]
        if any(line != "overrun: 0" for line in lost):
            raise Failed(f"the kernel lost events: {lost}")
        for line in (TRACE / "trace").read_text(errors="replace").splitlines():
            made = re.search(r"child_comm=(.*) child_pid=(\d+)", line)
            renamed = re.search(r"pid=(\d+) oldcomm=(.*) newcomm=(.*) oom_score_adj=", line)
            if made:
                self.services[int(made[2])].add((made[1], "main thread", False))
            elif renamed:
                self.services[int(renamed[1])].add((renamed[3], "main thread", False))

    def names_of(self, pid):
        """The names that its samples may have: until it is moved into a unit, that of its main thread or of its maker."""
        makers = set().union(*(self.services.get(maker, set()) for maker in self.makers[pid]))
        return {own_name(safe(name), is_kernel) for name, _, is_kernel in self.services[pid] | makers}


def own_name(service, is_kernel):
    """The name without what a worker of the kernel does at the moment, which is cut after 15 bytes in records."""
    return service.split("-")[0] if is_kernel and service.startswith("kworker") else service


@contextlib.contextmanager
def unit():
    """A cgroup with the name of a unit; None where there is no cgroup2."""
    mounts = (line.split() for line in pathlib.Path("/proc/mounts").read_text().splitlines())
    place = next((pathlib.Path(words[1]) for words in mounts if words[2] == "cgroup2"), None)
    if place is None:
        print("SKIPPED unit: there is no cgroup2")
        yield None
        return
    folder = place / "kymo-check.service"
    folder.mkdir()
    try:
        yield folder
    finally:
        folder.rmdir()


def safe(name):
    """The name as folders have it."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "._-@") else "_" for c in name)
    return "unknown" if not kept.strip("._") else kept


def ask(program, query, dataset):
    return json.loads(run([program, "--json", query, dataset]))["rows"]


def check_functions(program, dataset, started, wrong):
    """Each hot function is one row, with the samples of all processes."""
    top = json.loads(run([program, "--json", "--query", "top-functions", dataset]))["rows"]
    for name in started:
        rows = [row for row in top if FUNCTIONS[name] in str(row["function"])]
        pids = ask(program, f"SELECT COUNT(DISTINCT pid) AS pids FROM samples WHERE command = '{name}'", dataset)
        print(f"{name}: {pids[0]['pids']} processes; rows of {FUNCTIONS[name]}: {json.dumps(rows)}")
        if len({row["function"] for row in rows}) != len(rows):
            wrong.append(f"{name}: a function has several rows: {rows}")
        # A function may run interpreted and compiled: each form is a function of the runtime.
        if not 1 <= len(rows) <= 3:
            wrong.append(f"{name}: {len(rows)} rows of {FUNCTIONS[name]}")
    print(f"top-functions: {len(top)} rows")


def check_services(program, dataset, observer, wrong):
    """Each process has the services that /proc has seen, and no others."""
    rows = ask(program, "SELECT DISTINCT pid, service FROM samples WHERE pid > 0", dataset)
    by_pid = collections.defaultdict(set)
    for row in rows:
        by_pid[row["pid"]].add(row["service"])
    compared, kinds = 0, collections.Counter()
    for pid, services in sorted(by_pid.items()):
        known = observer.services.get(pid)
        if known is None:
            continue
        compared += 1
        kinds.update(kind for _, kind, _ in known)
        is_kernel = any(is_kernel for _, _, is_kernel in known)
        names = {own_name(service, is_kernel) for service in services}
        if not names <= observer.names_of(pid):
            wrong.append(f"process {pid} is {sorted(services)} instead of one of {sorted(observer.names_of(pid))}")
        # A process that was in a unit whenever it was seen may have begun outside of it, but did not stay there.
        units = {safe(name) for name, kind, _ in known if kind == "unit"}
        if units and not units & services:
            wrong.append(f"process {pid} is {sorted(services)} and not of its unit, {sorted(units)}")
    print(f"services: {len(by_pid)} processes have samples, {compared} compared with /proc: {dict(kinds)}")
    if compared < COPIES:
        wrong.append(f"only {compared} processes were compared")


def recording(kymo, file, seconds):
    """A recording of the machine that has begun."""
    command = [kymo, "record", "-a", "-g", "-F", "49", "--all-cgroups", "-o", file, "--", "sleep", str(seconds)]
    record = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(2)
    return record


def ended(record, kymo, file, dataset):
    """The recording as a dataset."""
    if record.wait() != 0:
        raise Failed("kymo record failed")
    run([kymo, "export", "--to", "parquet", "--quiet", "-o", dataset, "-i", file])


def check_many_processes(args, folder, group, observer, wrong):
    """Twenty processes of each runtime."""
    programs = commands(folder)
    for missing in sorted(set(FUNCTIONS) - set(programs)):
        print(f"SKIPPED {missing}: it is not installed")
    record = recording(args.kymo, folder / "all.data", SECONDS + 8)
    busy = []
    for words in programs.values():
        for copy in range(COPIES):
            command = [str(word) for word in [*words, SECONDS]]
            process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            busy.append(process)
            if group and words[0] == "python3" and copy % 3 == 0:
                (group / "cgroup.procs").write_text(str(process.pid))
    observer.observe_for(SECONDS)
    for process in busy:
        process.wait()
    observer.read_events()
    ended(record, args.kymo, folder / "all.data", folder / "dataset")
    check_functions(args.kymo_sql, folder / "dataset", programs, wrong)
    check_services(args.kymo_sql, folder / "dataset", observer, wrong)


def main():
    parser = argparse.ArgumentParser(description="One row a function and one service a process, of many processes.")
    parser.add_argument("--kymo", type=pathlib.Path, default=ROOT / "target/release/kymo")
    parser.add_argument("--kymo-sql", type=pathlib.Path, default=ROOT / "target/fleet/release/kymo-sql")
    parser.add_argument("--services-for", type=int, metavar="SECONDS", help="only the services of what runs for so long")
    args = parser.parse_args()
    wrong = []
    with tempfile.TemporaryDirectory(prefix="kymo-processes.") as name, unit() as group, Observer() as observer:
        folder = pathlib.Path(name)
        if args.services_for is None:
            check_many_processes(args, folder, group, observer, wrong)
        else:
            record = recording(args.kymo, folder / "all.data", args.services_for)
            observer.observe_for(args.services_for)
            observer.read_events()
            ended(record, args.kymo, folder / "all.data", folder / "dataset")
            check_services(args.kymo_sql, folder / "dataset", observer, wrong)
    for line in wrong:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
