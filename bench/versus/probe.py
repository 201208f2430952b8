"""Probes on one small function: what a call costs, beside the same call without a probe.

`workloads/hot.c` calls a function of some instructions as often as it can, and says what a call took. `kymo probe` by its engine inside the
program and by the kernel's uprobes, bpftrace (which uses the same uprobes), frida-gum (handlers in C), uftrace (compiled in, and
dynamic) and LTTng-UST (compiled in) watch it in turns, the bare program among them. What is not installed is left out, and named.

The cost is the difference to the bare program of the same round. `hits` says which part of the calls the tool saw.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

from versus.runner import ROOT, Refusal, alternate, environment, output, spread, table

HELP = "probes on a hot function: nanoseconds per call, by kymo, bpftrace, frida-gum, uftrace and LTTng-UST"

PATIENCE_S = 120


def add_arguments(parser):
    parser.add_argument("--seconds", type=float, default=0.3, help="how long the program calls (default: 0.3)")
    parser.add_argument("--threads", type=int, default=1, help="threads that call, each on a CPU of its own (default: 1)")
    parser.add_argument("--frida-python", metavar="PATH", default=sys.executable,
                        help="a Python that has the package `frida` (default: this one)")


def run(bench, args):
    race = Race(bench, args)
    with race:
        competitors = race.competitors()
        runs = alternate(competitors, args.rounds or 7, say=bench.say)
    result, rows = {}, []
    bare = [one["ns_per_call"] for one in runs["bare"]]
    for who, found in runs.items():
        cost = [one["ns_per_call"] - none for one, none in zip(found, bare)]
        shares = [one["hits"] / one["calls"] for one in found if one.get("hits") is not None]
        result[who] = {"ns_per_call": spread([one["ns_per_call"] for one in found]), "cost_ns": spread(cost), "runs": found}
        rows.append([who, f"{statistics.median(one['ns_per_call'] for one in found):.2f}",
                     "" if who == "bare" else f"{statistics.median(cost):.1f}",
                     f"{min(shares):.4f} to {max(shares):.4f}" if shares else ""])
    table(["probe", "ns/call", "cost", "hits / calls"], rows)
    for who, why in race.missing.items():
        print(f"{who}: left out, {why}")
    return {"rounds": args.rounds or 7, "seconds": args.seconds, "threads": args.threads, "missing": race.missing,
            "versions": race.versions, "who": result}


class Race:
    """The programs, and the tools that are here."""

    def __init__(self, bench, args):
        self.bench, self.args = bench, args
        self.missing, self.versions = {}, {}
        self.sessions = bench.scratch / "lttng"
        self.daemon = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.daemon:
            self.daemon.terminate()
            self.daemon.wait()

    def built(self, name, *flags):
        program = self.bench.scratch / name
        # In the same place for all, so that the loop is as fast in each of them.
        output(["cc", "-O2", "-g", "-falign-functions=64", "-falign-loops=64", "-rdynamic", "-pthread", "-o", program,
                ROOT / "bench/workloads/hot.c", *flags])
        return program

    def competitors(self):
        hot = self.built("hot")
        kymo = [self.bench.kymo, "probe", "-q", "--json", "hot"]
        racers = {
            "bare": lambda: self.attached(hot, None),
            "kymo count": lambda: self.attached(hot, [*kymo, "--engine", "inproc"]),
            "kymo latency": lambda: self.attached(hot, [*kymo, "--engine", "inproc", "--ret"]),
            "kymo event": lambda: self.recorded(hot),
            "kernel count": lambda: self.attached(hot, [*kymo, "--engine", "kernel"]),
            "kernel latency": lambda: self.attached(hot, [*kymo, "--engine", "kernel", "--ret"]),
        }
        if self.has("bpftrace", "bpftrace", ["bpftrace", "--version"]):
            racers["bpftrace count"] = lambda: self.bpftrace(hot)
        if self.has("frida-gum", self.args.frida_python, [self.args.frida_python, "-c", "import frida; print(frida.__version__)"]):
            racers["frida entry"] = lambda: self.frida(hot, "entry")
            racers["frida entry, return"] = lambda: self.frida(hot, "return")
        if self.has("uftrace", "uftrace", ["uftrace", "--version"]):
            # It writes both, always: there is no counting alone.
            compiled, dynamic = self.built("hot-pg", "-pg"), self.built("hot-patchable", "-fpatchable-function-entry=5")
            racers["uftrace entry, return"] = lambda: self.uftrace(compiled)
            racers["uftrace -P entry, return"] = lambda: self.uftrace(dynamic, "-P", "hot")
        if self.has("LTTng-UST", "lttng", ["lttng", "--version"]):
            try:
                traced = self.built("hot-lttng", "-DLTTNG", f"-I{ROOT / 'bench/workloads'}", "-llttng-ust", "-ldl")
                racers["LTTng-UST event"] = lambda: self.lttng(traced)
                self.start_lttng()
            except Refusal as refusal:
                racers.pop("LTTng-UST event", None)
                self.missing["LTTng-UST"] = str(refusal).splitlines()[-1]
        return racers

    def has(self, who, program, version):
        try:
            if not shutil.which(program):
                raise Refusal(f"{program} is not installed")
            self.versions[who] = output(version).strip().splitlines()[0]
        except Refusal as refusal:
            self.missing[who] = str(refusal).splitlines()[-1]
        return who in self.versions

    def program(self, path, *more):
        return [str(path), str(self.args.seconds), str(self.args.threads), *more]

    def attached(self, path, tracer):
        """The program with a tool of kymo's attached, which ends with it."""
        with Waiting(self.program(path, "wait")) as program:
            tool = None
            if tracer:
                address = program.address_of("hot")
                before = program.bytes_at(address)
                tool = subprocess.Popen([str(a) for a in tracer] + ["-p", str(program.pid)], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=environment())
                until_probed(program, tool, address, before)
            found = program.go()
            if tool:
                out, words = tool.communicate(timeout=PATIENCE_S)
                if tool.returncode:
                    raise Refusal(f"kymo probe: {words.strip()}")
                probe = json.loads(out)["probes"][0]
                found.update(hits=probe["hits"], engine=probe["engine"])
        return found

    def recorded(self, path):
        """An event for each call, written by the program and drained by kymo; nobody can drain what a loop of nothing but events writes, so that
        many of them are lost, and counted."""
        into = self.bench.scratch / "events.data"
        with Waiting(self.program(path, "wait")) as program:
            address = program.address_of("hot")
            before = program.bytes_at(address)
            tool = subprocess.Popen([str(self.bench.kymo), "probe", "--engine", "inproc", "-o", str(into), "hot", "-p",
                                     str(program.pid)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
            until_probed(program, tool, address, before)
            # It tries its patches before the recording begins, and takes them back.
            time.sleep(0.5)
            until_probed(program, tool, address, before)
            found = program.go()
            _, words = tool.communicate(timeout=PATIENCE_S)
            if tool.returncode:
                raise Refusal(f"kymo probe -o: {words.strip()}")
        into.unlink()
        samples = re.search(r"\((\d+) samples\)", words)
        lost = re.search(r"lost (\d+) samples", words)
        found["recorded"] = int(samples[1]) if samples else 0
        found["hits"] = found["recorded"] + (int(lost[1]) if lost else 0)
        return found

    def bpftrace(self, path):
        with Waiting(self.program(path, "wait")) as program:
            address = program.address_of("hot")
            script = f'BEGIN {{ printf("attached\\n"); }} uprobe:{path}:hot {{ @hits = count(); }}'
            tool = subprocess.Popen(["bpftrace", "-p", str(program.pid), "-e", script], stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True, env=environment())
            seen = []
            for line in tool.stdout:
                seen.append(line)
                if line.strip() == "attached":
                    break
            else:
                raise Refusal(f"bpftrace: {''.join(seen).strip()}")
            while program.bytes_at(address)[:1] != b"\xcc" and tool.poll() is None:
                pass
            found = program.go()
            out, _ = tool.communicate(timeout=PATIENCE_S)
        hits = [line.split(":")[1] for line in out.splitlines() if line.startswith("@hits:")]
        found["hits"] = int(hits[0]) if hits else 0
        return found

    def frida(self, path, kind):
        with Waiting(self.program(path, "wait")) as program:
            hook = [self.args.frida_python, ROOT / "bench/workloads/frida_hook.py", program.pid, "hot", kind]
            tool = subprocess.Popen([str(a) for a in hook], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE, text=True, env=environment())
            if tool.stdout.readline() != "attached\n":
                raise Refusal(f"frida: {tool.stderr.read().strip()[-500:]}")
            # Its count is in the program: it is asked before that ends.
            found = program.go(end=False)
            tool.stdin.write("end\n")
            tool.stdin.flush()
            found.update(json.loads(tool.stdout.readline()))
            tool.communicate(timeout=PATIENCE_S)
        return found

    def uftrace(self, path, *flags):
        into = self.bench.scratch / "uftrace"
        shutil.rmtree(into, ignore_errors=True)
        text = output(["uftrace", "record", "--no-event", *flags, "-d", into, *self.program(path)])
        found = json.loads(text.splitlines()[-1])
        report = output(["uftrace", "report", "-d", into, "-f", "call"])
        calls = [line.split() for line in report.splitlines() if line.split()[-1:] == ["hot"]]
        found["hits"] = int(calls[0][0]) if calls else 0
        shutil.rmtree(into, ignore_errors=True)
        return found

    def lttng_environment(self):
        return {**environment(), "LTTNG_HOME": str(self.sessions), "LTTNG_UST_REGISTER_TIMEOUT": "-1"}

    def start_lttng(self):
        self.sessions.mkdir(exist_ok=True)
        # As an ordinary user's, apart from one of the machine's.
        self.daemon = subprocess.Popen(["lttng-sessiond", "--no-kernel", "-q"], env=self.lttng_environment(),
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(100):
            if subprocess.run(["lttng", "list"], env=self.lttng_environment(), capture_output=True).returncode == 0:
                return
        raise Refusal("its session daemon did not come up")

    def lttng(self, path):
        def lttng(*words):
            done = subprocess.run(["lttng", *words], env=self.lttng_environment(), capture_output=True, text=True)
            if done.returncode:
                raise Refusal(f"lttng {words[0]}: {(done.stdout + done.stderr).strip()}")
        # Into rings that are overwritten, and never to a disk.
        lttng("create", "--snapshot", "hot")
        try:
            lttng("enable-event", "--userspace", "kymo_hot:call")
            lttng("start")
            done = subprocess.run(self.program(path), env=self.lttng_environment(), capture_output=True, text=True, check=True)
            return json.loads(done.stdout)
        finally:
            lttng("destroy", "hot")


def until_probed(program, tool, address, before):
    """The tool says nothing when it is ready: its patch, or the kernel's, is in the program's code then."""
    # Inside the program it is written in steps, of which the last one makes it a jump.
    while (now := program.bytes_at(address)) == before or (now[:1] == b"\xcc" and "inproc" in tool.args):
        if tool.poll() is not None:
            raise Refusal(f"kymo probe: {tool.stderr.read().strip()}")


class Waiting:
    """A program that is ready and waits for its line."""

    def __init__(self, argv):
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
        self.path = argv[0]
        if self.process.stdout.readline() != "ready\n":
            raise Refusal(f"{self.path} did not get ready")

    @property
    def pid(self):
        return self.process.pid

    def address_of(self, function):
        symbols = output(["nm", self.path])
        at = next(int(line.split()[0], 16) for line in symbols.splitlines() if line.split()[1:] == ["T", function])
        with open(f"/proc/{self.pid}/maps") as maps:
            base = next(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(self.path))
        return base + at

    def bytes_at(self, address):
        descriptor = os.open(f"/proc/{self.pid}/mem", os.O_RDONLY)
        try:
            return os.pread(descriptor, 5, address)
        finally:
            os.close(descriptor)

    def go(self, end=True):
        """Lets it run, and gives what it said. Without `end` it stays until its standard input is closed."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline()
        if not said:
            raise Refusal(f"{self.path} died")
        if end:
            self.process.stdin.close()
            self.process.wait(PATIENCE_S)
        return json.loads(said)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
