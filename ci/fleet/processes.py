#!/usr/bin/env python3
"""Many processes of one program are one service, and a function of them is one row.

    python3 -m ci.fleet.processes --kymo target/release/kymo

Twenty processes each of Node, Java and Python run while kymo records the machine. In the dataset of that recording each of
their hot functions must be one row of top-functions, however many processes run it; and each process of the machine must
have the service that the book promises: the unit of systemd, else pod or container, else the name of its main thread.
A third of the Python processes run in a cgroup that has the name of a unit, where there is cgroup2. It needs root, node,
java and python3.
"""

import argparse
import collections
import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

from .engines import ROOT, Failed, run

COPIES = 20
PF_KTHREAD = 0x00200000
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
    """The service of a process as the book has it, and where it is from; None: the process is gone."""
    process = pathlib.Path("/proc") / str(pid)
    with contextlib.suppress(OSError):
        comm, is_kernel = (process / "comm").read_text().rstrip("\n"), is_of_kernel(pid)
        for line in (process / "cgroup").read_text().splitlines():
            units = [part for part in line.split(":", 2)[2].split("/") if part.endswith((".service", ".scope"))]
            if units:
                return units[-1], "unit", is_kernel
        return comm, "thread of the kernel" if is_kernel else "main thread", is_kernel
    return None


def is_of_kernel(pid):
    """Whether it is a thread of the kernel, by its flags."""
    with contextlib.suppress(OSError):
        fields = (pathlib.Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()
        return bool(int(fields[6]) & PF_KTHREAD)
    return False


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


def check_services(program, dataset, expected, wrong):
    """Each process has one service, the right one."""
    rows = ask(program, "SELECT DISTINCT pid, service FROM samples WHERE pid > 0", dataset)
    by_pid = collections.defaultdict(set)
    for row in rows:
        by_pid[row["pid"]].add(row["service"])
    compared, kinds = 0, collections.Counter()
    for pid, services in sorted(by_pid.items()):
        known = expected.get(pid)
        if known is None:
            continue
        # Before it was moved it had the name of its main thread, for a moment.
        if known[1] == "unit":
            services = services - {"python3"}
        compared, kinds[known[1]] = compared + 1, kinds[known[1]] + 1
        names = {own_name(service, known[2]) for service in services}
        if names != {own_name(safe(known[0]), known[2])}:
            wrong.append(f"process {pid} is {sorted(services)} instead of {safe(known[0])} ({known[1]})")
    print(f"services: {len(by_pid)} processes have samples, {compared} compared with /proc: {dict(kinds)}")
    if compared < COPIES:
        wrong.append(f"only {compared} processes were compared")


def main():
    parser = argparse.ArgumentParser(description="One row a function and one service a process, of many processes.")
    parser.add_argument("--kymo", type=pathlib.Path, default=ROOT / "target/release/kymo")
    parser.add_argument("--kymo-sql", type=pathlib.Path, default=ROOT / "target/fleet/release/kymo-sql")
    args = parser.parse_args()
    wrong = []
    with tempfile.TemporaryDirectory(prefix="kymo-processes.") as name, unit() as group:
        folder = pathlib.Path(name)
        programs = commands(folder)
        for missing in sorted(set(FUNCTIONS) - set(programs)):
            print(f"SKIPPED {missing}: it is not installed")
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = [args.kymo, "record", "-a", "-g", "-F", "49", "--all-cgroups", "-o", folder / "all.data", "--", "sleep", str(SECONDS + 8)]
        record = subprocess.Popen(command, **quiet)
        time.sleep(2)
        busy = []
        for words in programs.values():
            for copy in range(COPIES):
                process = subprocess.Popen([str(word) for word in [*words, SECONDS]], cwd=folder, **quiet)
                busy.append(process)
                if group and words[0] == "python3" and copy % 3 == 0:
                    (group / "cgroup.procs").write_text(str(process.pid))
        # A process has its name after exec, and its cgroup for all of its life.
        expected = {}
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            for process in pathlib.Path("/proc").iterdir():
                if process.name.isdigit() and (found := service_of(int(process.name))):
                    expected[int(process.name)] = found
            time.sleep(0.5)
        for process in busy:
            process.wait()
        if record.wait() != 0:
            raise Failed("kymo record failed")
        run([args.kymo, "export", "--to", "parquet", "--quiet", "-o", folder / "dataset", "-i", folder / "all.data"])
        check_functions(args.kymo_sql, folder / "dataset", programs, wrong)
        check_services(args.kymo_sql, folder / "dataset", expected, wrong)
    for line in wrong:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
