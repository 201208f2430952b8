"""What it costs to know where threads wait.

Three programs, in turns bare, under `kymo record --wall`, under `perf sched record` and under `kymo record`:

    pipe      `perf bench sched pipe` on one CPU: two processes that do nothing but wake each other; microseconds for each turn
    pgbench   clients of PostgreSQL that all update one row; transactions a second (needs PostgreSQL, and root)
    crowd     2,000 threads that wait, for so many seconds: how large the recording is, and what was lost (kymo alone)

The ratio is that to the bare program, with a 95 % bootstrap interval. `added` is kymo's added time in that of `perf sched record`.
"""

import pathlib
import re
import shutil
import subprocess
import time

from versus.runner import Refusal, alternate, output, ratio_interval, spread, table

HELP = "what it costs to know where threads wait"

ROW = "BEGIN;\nUPDATE pgbench_branches SET bbalance = bbalance + 1 WHERE bid = 1;\nEND;\n"
PORT = "5643"


def add_arguments(parser):
    parser.add_argument("--loops", type=int, default=200_000, help="turns of the pipe in one run (default: 200000)")
    parser.add_argument("--seconds", type=int, default=10, help="of pgbench in one run (default: 10)")
    parser.add_argument("--crowd-seconds", type=int, default=60, help="of 2,000 threads; 0: not at all (default: 60)")
    parser.add_argument("--only", choices=("pipe", "pgbench", "crowd"), help="one of them")


def run(bench, args):
    subjects = {"pipe": pipe, "pgbench": pgbench, "crowd": crowd}
    return {name: subject(bench, args) for name, subject in subjects.items() if args.only in (None, name)}


def recorders(bench):
    """What stands before the program."""
    return {
        "bare": [],
        "kymo --wall": [bench.kymo, "record", "-q", "--wall", "-o", bench.scratch / "wall.data", "--"],
        "perf sched": [bench.perf, "sched", "record", "-o", bench.scratch / "sched.data", "--"],
        "kymo record": [bench.kymo, "record", "-q", "-e", "cpu-clock", "-o", bench.scratch / "plain.data", "--"],
    }


def compare(runs, unit, faster_is_more):
    """The table of what was measured, and the result."""
    result, rows = {}, []
    for who, of in runs.items():
        ratio = ratio_interval(of, runs["bare"])
        result[who] = {unit: spread(of), "to_bare": ratio}
        rows.append([who, *(f"{spread(of)[key]:.2f}" for key in ("median", "min", "max")),
                     f"{ratio[0]:.3f}", f"{ratio[1]:.3f} .. {ratio[2]:.3f}"])
    table([unit, "median", "min", "max", "to bare", "95 % interval"], rows)
    if not faster_is_more and "perf sched" in runs:
        added = [spread(runs[who])["median"] - spread(runs["bare"])["median"] for who in ("kymo --wall", "perf sched")]
        result["added"] = added[0] / added[1] if added[1] > 0 else None
        print(f"kymo adds {added[0]:.2f}, perf sched record {added[1]:.2f}: {result['added']:.2f} of it")
    return result


def pipe(bench, args):
    program = ["taskset", "-c", "1", bench.perf, "bench", "sched", "pipe", "-l", str(args.loops)]

    def measure(before):
        said = output([*before, *program], cwd=bench.scratch)
        return float(re.search(r"([0-9.]+) usecs/op", said)[1])

    competitors = {who: lambda before=before: measure(before) for who, before in recorders(bench).items()}
    return compare(alternate(competitors, args.rounds or 15, say=bench.say), "us per turn", False)


class Server:
    """PostgreSQL in a folder of its own."""

    def __init__(self, bench):
        found = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
        if not found:
            raise Refusal("no PostgreSQL here: apt-get install postgresql")
        self.bin, self.data = found[-1], bench.scratch / "postgres"
        self.sql = bench.scratch / "row.sql"

    def call(self, tool, *arguments, **options):
        command = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", self.bin / tool, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, **options).stdout

    def __enter__(self):
        self.data.mkdir()
        shutil.chown(self.data, "postgres", "postgres")
        for folder in [self.data.parent, *self.data.parent.parents][:2]:
            folder.chmod(folder.stat().st_mode | 0o055)
        self.call("initdb", "-D", self.data)
        self.call("pg_ctl", "-D", self.data, "-o", f"-p {PORT} -k /tmp", "-l", self.data / "log", "-w", "start")
        self.call("pgbench", "-p", PORT, "-h", "/tmp", "-i", "-q", "postgres")
        self.sql.write_text(ROW)
        self.sql.chmod(0o644)
        return self

    def __exit__(self, *_):
        self.call("pg_ctl", "-D", self.data, "-m", "immediate", "stop")

    def pid(self):
        return (self.data / "postmaster.pid").read_text().split()[0]

    def transactions(self, seconds):
        said = self.call("pgbench", "-p", PORT, "-h", "/tmp", "-n", "-c", "8", "-j", "2", "-T", str(seconds), "-f", self.sql, "postgres")
        return float(re.search(r"tps = ([0-9.]+)", said)[1])


def pgbench(bench, args):
    with Server(bench) as server:
        def measure(command):
            recorder = None
            if command:
                recorder = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=bench.scratch)
                time.sleep(1)
            try:
                return server.transactions(args.seconds)
            finally:
                if recorder:
                    recorder.send_signal(2)
                    recorder.wait()

        kymo = [bench.kymo, "record", "-q", "-p", server.pid(), "-o", bench.scratch / "postgres.data"]
        competitors = {
            "bare": lambda: measure(None),
            "kymo --wall": lambda: measure([*kymo, "--wall"]),
            "perf sched": lambda: measure([bench.perf, "sched", "record", "-o", bench.scratch / "sched.data"]),
            "kymo record": lambda: measure([*kymo, "-e", "cpu-clock"]),
        }
        return compare(alternate(competitors, args.rounds or 7, say=bench.say), "transactions per s", True)


def crowd(bench, args):
    if not args.crowd_seconds:
        return {}
    program = [bench.compile("fixtures/programs/waits.c", "-pthread"), "restless", "2000", str(args.crowd_seconds)]
    file = bench.scratch / "crowd.data"
    command = [bench.kymo, "record", "--wall", "-o", file, "--", *program]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    words = [line for line in said.stderr.splitlines() if "lost" in line or "room" in line]
    result = {"bytes": file.stat().st_size, "seconds": args.crowd_seconds, "lost": words, "switches": said.stdout.strip()}
    print(f"2,000 threads for {args.crowd_seconds} s: {result['bytes'] / 1e6:.1f} MB; {said.stdout.strip()}")
    print("\n".join(words))
    return result
