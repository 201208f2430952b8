"""Who writes this memory: `kymo watch` and gdb's hardware watchpoint on the same program.

`fixtures/programs/watched.c` makes its threads, says "ready", and begins to write when a line comes. Both tools attach before that. What
is counted: how many of the writes were told (lost ones are those that the tool itself says it lost), by how many of the threads, and the
hits per second from the line until the program has ended. gdb stops the whole process at each hit, so it gets fewer threads and
writes; its commands count a hit and go on, and print nothing.

The crowd is kymo alone: thousands of threads, four addresses at once. `armed` is what kymo says it took from opening its first event
until everything was armed.
"""

import json
import os
import re
import shutil
import subprocess
import time

from versus.runner import Refusal, alternate, spread, table

HELP = "who writes this memory: hits per second, and whether all threads are seen"

PATIENCE_S = 300


def add_arguments(parser):
    parser.add_argument("--threads", type=int, default=20, help="threads of the program that both watch (default: 20)")
    parser.add_argument("--writes", type=int, default=100, help="writes of each of them (default: 100)")
    parser.add_argument("--crowd", type=int, default=2000, help="threads of kymo's own program (default: 2000)")
    parser.add_argument("--crowd-writes", type=int, default=1000, help="writes of each of them (default: 1000)")
    parser.add_argument("--gdb", metavar="PATH", default="gdb", help="the gdb to race (default: the one in PATH)")


def run(bench, args):
    rounds = args.rounds or 5
    if not shutil.which(args.gdb):
        raise Refusal(f"there is no {args.gdb} (Debian: apt-get install gdb)")
    program = bench.compile("fixtures/programs/watched.c", "-pthread", "-g")
    few = [program, str(args.threads), str(args.writes), "wait", "crowd"]
    crowd = [program, str(args.crowd), str(args.crowd_writes), "wait", "crowd", "four"]
    four = [f"spread+{8 * at}:8" for at in range(4)]
    details = {"kymo": [], "gdb": [], "crowd": []}

    def race(who, watch, target):
        def once():
            found = watch(target)
            details[who].append(found)
            return found["hits_per_s"]
        return once

    runs = alternate({
        "kymo": race("kymo", lambda target: by_kymo(bench, target, ["counter"]), few),
        "gdb": race("gdb", lambda target: by_gdb(bench, args, target), few),
        "crowd": race("crowd", lambda target: by_kymo(bench, target, four), crowd),
    }, rounds, say=bench.say)
    writes = {"kymo": args.threads * args.writes, "gdb": args.threads * args.writes,
              "crowd": args.crowd * args.crowd_writes}
    threads = {"kymo": args.threads, "gdb": args.threads, "crowd": args.crowd}
    result, rows = {}, []
    for who, speeds in runs.items():
        # The warm-up counts for nothing.
        found = details[who][-len(speeds):]
        least = min(found, key=lambda one: one["hits"])
        armed = [one["armed_ms"] for one in found if one.get("armed_ms") is not None]
        result[who] = {"hits_per_s": spread(speeds), "writes": writes[who], "threads": threads[who], "runs": found,
                       "armed_ms": spread(armed) if armed else None}
        rows.append([who, f"{result[who]['hits_per_s']['median']:,.0f}", f"{writes[who]:,}", f"{least['hits']:,}",
                     "" if least["lost"] is None else f"{max(one['lost'] for one in found):,}",
                     f"{min(one['threads'] for one in found)} of {threads[who]}",
                     f"{result[who]['armed_ms']['median']:.1f} ms, at most {max(armed):.1f}" if armed else ""])
    table(["watch", "hits/s", "writes", "hits, least", "lost, most", "threads, least", "armed"], rows)
    return {"rounds": rounds, "who": result}


class Program:
    """A `watched` that has made its threads and waits for its line."""

    def __init__(self, argv):
        self.process = subprocess.Popen([str(a) for a in argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise Refusal(f"{argv[0]} did not get ready")

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


def by_kymo(bench, target, places):
    with Program(target) as program:
        command = [bench.kymo, "watch", "--json", "-q", "-p", program.process.pid, *places]
        watch = subprocess.Popen([str(a) for a in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        header = watch.stdout.readline()
        if not header:
            raise Refusal(f"kymo watch: {watch.stderr.read().strip()}")
        begun = time.monotonic()
        program.go()
        program.process.wait(PATIENCE_S)
        took = time.monotonic() - begun
        rest, _ = watch.communicate(timeout=PATIENCE_S)
    summary = json.loads(rest.splitlines()[-1])
    tids = {thread["tid"] for place in summary["places"] for row in place["rows"] for thread in row["threads"]}
    return {"hits": summary["counted"], "lost": summary["lost"], "threads": len(tids), "took_s": took,
            "hits_per_s": summary["counted"] / took, "armed_ms": json.loads(header)["armed_ns"] / 1e6,
            "scope": json.loads(header)["scope"]}


def by_gdb(bench, args, target):
    fifo = bench.scratch / "go"
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo)
    script = bench.scratch / "watch.gdb"
    script.write_text("\n".join([
        "set pagination off", "set confirm off", "set print thread-events off", "set $hits = 0",
        "watch counter", "commands", "silent", "set $hits = $hits + 1", 'printf "T %d\\n", $_thread', "continue", "end",
        f"shell echo go > {fifo}", "continue", 'printf "H %d\\n", $hits', "",
    ]))
    with Program(target) as program:
        log = bench.scratch / "gdb.log"
        with open(log, "w") as out:
            gdb = subprocess.Popen([args.gdb, "-q", "-nx", "-batch", "-p", str(program.process.pid), "-x", str(script)],
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
            with open(fifo) as told:
                told.read()
            begun = time.monotonic()
            program.go()
            program.process.wait(PATIENCE_S)
            took = time.monotonic() - begun
            gdb.wait(PATIENCE_S)
        text = log.read_text(errors="replace")
    threads = re.findall(r"^T (\d+)$", text, re.MULTILINE)
    return {"hits": len(threads), "lost": None, "threads": len(set(threads)), "took_s": took,
            "hits_per_s": len(threads) / took}
