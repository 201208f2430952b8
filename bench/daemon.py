#!/usr/bin/env python3
"""What the daemon costs: CPU time and memory over minutes, at several rates, one after the other.

    bench/daemon.py --minutes 30 --rates 19,99 [--daemon target/fleet/release/kymo-daemon]

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
HEALTH = "127.0.0.1:9479"
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


def health():
    with urllib.request.urlopen(f"http://{HEALTH}/", timeout=2) as answer:
        return json.load(answer)


def measure(options, rate, scratch):
    """Runs the daemon for so many minutes; its CPU time, memory and counters."""
    config = scratch / "daemon.toml"
    config.write_text(f'stacks = "{options.stacks}"\nstate = "{scratch}/state"\n[dataset]\nurl = "{scratch}/dataset"\n')
    command = [options.daemon, "--config", str(config), "-F", str(rate), "--health", HEALTH]
    command += ["--off-cpu"] if options.off_cpu else []
    began, busy = time.monotonic(), machine_busy()
    daemon = subprocess.Popen(command)
    points = []
    while time.monotonic() - began < options.minutes * 60:
        time.sleep(min(10, options.minutes * 6))
        if daemon.poll() is not None:
            sys.exit(f"the daemon ended with status {daemon.returncode}")
        seconds = time.monotonic() - began
        points.append({
            "seconds": round(seconds, 2),
            "cpu_s": cpu_seconds(daemon.pid),
            "rss_kib": status_kib(daemon.pid, "VmRSS"),
        })
        print(f"\r{rate} Hz: {seconds:5.0f} s, {points[-1]['cpu_s']:.2f} s of CPU, "
              f"{points[-1]['rss_kib'] / 1024:.1f} MiB", end="", file=sys.stderr)
    peak = status_kib(daemon.pid, "VmHWM")
    counters = health()
    seconds, cpu = time.monotonic() - began, cpu_seconds(daemon.pid)
    busy = machine_busy() - busy
    daemon.send_signal(signal.SIGTERM)
    status = daemon.wait(timeout=60)
    print(file=sys.stderr)
    files = [path for path in (scratch / "dataset").rglob("*") if path.is_file()]
    return {
        "rate_hz": rate,
        "seconds": round(seconds, 2),
        "cpu_s": cpu,
        "percent_of_a_cpu": round(100 * cpu / seconds, 3),
        "rss_last_kib": points[-1]["rss_kib"],
        "rss_peak_kib": peak,
        "machine_busy_percent": round(100 * busy / seconds / os.cpu_count(), 1),
        "samples": counters["samples"],
        "lost_samples": counters["lost_samples"],
        "dataset_files": len(files),
        "dataset_bytes": sum(path.stat().st_size for path in files),
        "exit": status,
        "points": points,
    }


def main():
    options = arguments()
    busy = [subprocess.Popen([sys.executable, "-c", "while True: sorted(range(5000))"]) for _ in range(options.busy)]
    results = []
    try:
        for rate in options.rates.split(","):
            scratch = pathlib.Path(tempfile.mkdtemp(prefix="kymo-daemon-"))
            try:
                results.append(measure(options, int(rate), scratch))
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
    finally:
        for program in busy:
            program.kill()
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
            "off_cpu": options.off_cpu, "busy_programs": options.busy, "machine": machine, "results": results,
        }, indent=1) + "\n")
        print(f"written to {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
