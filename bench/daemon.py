#!/usr/bin/env python3
"""What the daemon costs: CPU time and memory over minutes, at several rates, one after the other.

    bench/daemon.py --minutes 30 --rates 19,99 [--daemon target/fleet/release/kymo-daemon]
    bench/daemon.py --minutes 30 --rates 19,99 --together --mix

With --together a daemon for each rate runs at the same time: each has a CPU time and a memory of its own, and profiles the
others, too. --mix runs compilers (C and Rust, a process storm) and two servers with their clients, at the lowest priority:
who builds on the machine meanwhile is a load, too.

Needs root. The daemon writes a dataset into a scratch folder. What its interrupts cost the programs
that they hit is not in its own CPU time; `bench/versus.py overhead` measures that.
"""
import argparse
import datetime
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEALTH = "127.0.0.1:9{rate:03}"
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGESIZE")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30, help="how long each rate is measured")
    parser.add_argument("--rates", default="19,99", help="samples per second on each CPU, with commas")
    parser.add_argument("--daemon", default=str(ROOT / "target/fleet/release/kymo-daemon"))
    parser.add_argument("--stacks", default="unwound", help="unwound, frame-pointers or none")
    parser.add_argument("--off-cpu", action="store_true", help="record waits, too")
    parser.add_argument("--busy", type=int, default=0, help="run so many programs that use a CPU each")
    parser.add_argument("--mix", action="store_true", help="run compilers and servers")
    parser.add_argument("--together", action="store_true", help="measure all rates at the same time")
    parser.add_argument("--note", default="", help="a sentence about the machine, kept with the result")
    parser.add_argument("--no-save", action="store_true", help="write no result")
    return parser.parse_args()


def processes_of(pid):
    """The daemon and its helper processes."""
    children = pathlib.Path(f"/proc/{pid}/task").glob("*/children")
    return [pid, *(int(child) for file in children for child in file.read_text().split())]


def cpu_seconds(pid):
    """CPU time of the daemon, all threads, and of its helpers, those that ended too."""
    ticks = 0
    for process in processes_of(pid):
        fields = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / TICKS


def status_kib(pid, key):
    """A figure of the daemon's memory, and of what its helpers have for themselves."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) + sum(map(private_kib, processes_of(pid)[1:]))
    return 0


def private_kib(pid):
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(("Private_Clean:", "Private_Dirty:")))


def machine_busy():
    """CPU seconds of the machine that were not idle."""
    fields = [int(word) for word in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(fields[:8]) - fields[3] - fields[4]) / TICKS


def health(rate):
    with urllib.request.urlopen(f"http://{HEALTH.format(rate=rate)}/", timeout=10) as answer:
        return json.load(answer)


# Each in a process group of its own, at the lowest priority, in a folder that is removed.
MIX = {
    # A make with two jobs: shells, drivers, compilers and assemblers.
    "C compilers": r"""
for i in $(seq 40); do
  for f in $(seq 60); do echo "int f$f(int x) { int y = 0; for (int i = 0; i < x; i++) y += i * $f ^ x; return y; }"; done > u$i.c
done
printf 'all: %s\n%%.o: %%.c\n\tcc -O2 -c -o $@ $<\n' "$(seq -f u%g.o -s ' ' 40)" > Makefile
while :; do rm -f *.o; make -s -j2; done""",
    # One large process with deep stacks.
    "Rust compiler": r"""
for f in $(seq 300); do echo "pub fn f$f(v: &[u32]) -> Vec<String> { v.iter().map(|x| (x * $f).to_string()).collect() }"; done > lib.rs
while :; do rustc --crate-type lib -O lib.rs; done""",
    # A server in Python; its client is a process for fifty requests.
    "server in Python": r"""
echo hello > page; python3 -m http.server --bind 127.0.0.1 9598 &
sleep 1; while :; do python3 -c 'import urllib.request as u
for _ in range(50): u.urlopen("http://127.0.0.1:9598/page").read()'; done""",
    # A server in Node.js, whose code is generated, with a client in the same process.
    "server in Node.js": r"""
node -e 'const h=require("http");const a=new h.Agent({keepAlive:true});
h.createServer((q,r)=>r.end(JSON.stringify([...Array(200).keys()].sort()))).listen(9599,"127.0.0.1",()=>{
 const go=()=>h.get({port:9599,host:"127.0.0.1",agent:a},r=>{r.resume();r.on("end",go)});go();go()})'""",
}


class Mix:
    """Compilers and servers in loops."""

    def __init__(self, folder):
        self.running = []
        for number, script in enumerate(MIX.values()):
            place = folder / f"mix-{number}"
            place.mkdir()
            command = ["nice", "-n", "19", "sh", "-c", script]
            output = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            self.running.append(subprocess.Popen(command, cwd=place, start_new_session=True, **output))

    def stop(self):
        ended = [name for name, process in zip(MIX, self.running) if process.poll() is not None]
        for process in self.running:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        return ended


class Measured:
    """A daemon that is measured."""

    def __init__(self, options, rate, scratch):
        self.rate, self.scratch, self.points = rate, scratch, []
        config = scratch / "daemon.toml"
        config.write_text(f'stacks = "{options.stacks}"\nstate = "{scratch}/state"\n[dataset]\nurl = "{scratch}/dataset"\n')
        command = [options.daemon, "--config", str(config), "-F", str(rate), "--health", HEALTH.format(rate=rate)]
        command += ["--off-cpu"] if options.off_cpu else []
        self.began, self.busy = time.monotonic(), machine_busy()
        self.daemon = subprocess.Popen(command)

    def look(self):
        if self.daemon.poll() is not None:
            sys.exit(f"the daemon ended with status {self.daemon.returncode}")
        pid = self.daemon.pid
        self.points.append({
            "seconds": round(time.monotonic() - self.began, 2),
            "cpu_s": cpu_seconds(pid),
            "rss_kib": status_kib(pid, "VmRSS"),
        })

    def shown(self):
        point = self.points[-1]
        return f"{self.rate} Hz: {point['seconds']:5.0f} s, {point['cpu_s']:.2f} s of CPU, {point['rss_kib'] / 1024:.1f} MiB"

    def end(self):
        pid = self.daemon.pid
        peak = status_kib(pid, "VmHWM")
        counters = health(self.rate)
        seconds, cpu = time.monotonic() - self.began, cpu_seconds(pid)
        busy = machine_busy() - self.busy
        self.daemon.send_signal(signal.SIGTERM)
        status = self.daemon.wait(timeout=120)
        files = [path for path in (self.scratch / "dataset").rglob("*") if path.is_file()]
        return {
            "rate_hz": self.rate,
            "seconds": round(seconds, 2),
            "cpu_s": cpu,
            "percent_of_a_cpu": round(100 * cpu / seconds, 3),
            "rss_last_kib": self.points[-1]["rss_kib"],
            "rss_peak_kib": peak,
            "machine_busy_percent": round(100 * busy / seconds / os.cpu_count(), 1),
            "samples": counters["samples"],
            "lost_samples": counters["lost_samples"],
            "recorder_starts": counters["recorder_starts"],
            "dataset_files": len(files),
            "dataset_bytes": sum(path.stat().st_size for path in files),
            "exit": status,
            "points": self.points,
        }


def measure(options, rates, scratch):
    """Runs a daemon for each of these rates for so many minutes; CPU time, memory and counters of each."""
    measured = []
    try:
        for rate in rates:
            folder = scratch / str(rate)
            folder.mkdir()
            measured.append(Measured(options, rate, folder))
        until = time.monotonic() + options.minutes * 60
        while time.monotonic() < until:
            time.sleep(min(10, options.minutes * 6))
            for one in measured:
                one.look()
            print("\r" + "; ".join(one.shown() for one in measured), end="", file=sys.stderr)
        print(file=sys.stderr)
        return [one.end() for one in measured]
    finally:
        for one in measured:
            one.daemon.kill()


def processes_started():
    """How many processes and threads the machine has started since its boot."""
    lines = pathlib.Path("/proc/stat").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("processes "))


def main():
    options = arguments()
    # Its programs run in loops: they must not outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    busy = [subprocess.Popen([sys.executable, "-c", "while True: sorted(range(5000))"]) for _ in range(options.busy)]
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="kymo-daemon-"))
    mix = Mix(scratch) if options.mix else None
    rates = [int(rate) for rate in options.rates.split(",")]
    results, ended, started = [], [], processes_started()
    try:
        for some in [rates] if options.together else [[rate] for rate in rates]:
            results += measure(options, some, scratch)
    finally:
        for program in busy:
            program.kill()
        if mix:
            ended = mix.stop()
        shutil.rmtree(scratch, ignore_errors=True)
    started = (processes_started() - started) / sum(result["seconds"] for result in results)
    started *= len(rates) if options.together else 1
    if ended:
        print(f"these ended early: {', '.join(ended)}", file=sys.stderr)
    print("  rate   of a CPU   resident    peak   samples  lost  bytes/sample  machine busy")
    for result in results:
        print(f"{result['rate_hz']:>4} Hz   {result['percent_of_a_cpu']:>6.3f} %  "
              f"{result['rss_last_kib'] / 1024:>5.1f} MiB  {result['rss_peak_kib'] / 1024:>5.1f}  "
              f"{result['samples']:>8}  {result['lost_samples']:>4}  "
              f"{result['dataset_bytes'] / max(result['samples'], 1):>12.1f}  {result['machine_busy_percent']:>10.1f} %")
    if not options.no_save:
        day, number = datetime.date.today().isoformat(), 1
        while (path := ROOT / f"bench/runs/{day}-daemon{'' if number == 1 else f'-{number}'}.json").exists():
            number += 1
        machine = {"cpus": os.cpu_count(), "kernel": os.uname().release}
        path.write_text(json.dumps({
            "subject": "daemon", "command": sys.argv, "minutes": options.minutes, "stacks": options.stacks,
            "off_cpu": options.off_cpu, "busy_programs": options.busy, "mix": list(MIX) if options.mix else [],
            "mix_ended_early": ended, "together": options.together, "note": options.note,
            "tasks_started_per_second": round(started, 1), "machine": machine, "results": results,
        }, indent=1) + "\n")
        print(f"written to {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
