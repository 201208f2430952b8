#!/usr/bin/env python3
"""What an event costs that the program writes itself: by the agent, and by stubs in both of their ways.

Usage: bench/events.py KYMO [SERIES]

Compiles bench/inside/events.c, static and dynamic, and records its function. The ways come in turns.
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "inside", "events.c")
WAYS = [
    ("the agent", [], {}),
    ("stubs, in a restartable sequence", ["-static"], {}),
    ("stubs, in slots", ["-static"], {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}),
]


def build(folder, options):
    program = os.path.join(folder, "events" + "".join(options))
    subprocess.run(["gcc", "-O2", "-falign-functions=32", *options, "-o", program, SOURCE], check=True)
    return program


class Calls:
    """The program, which makes its calls when it is told."""

    def __init__(self, program, environment):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([program], env={**os.environ, **environment}, **pipes)
        self.process.stdout.readline()

    def series(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        said = self.process.stdout.readline().strip()
        self.process.stdout.readline()
        return said

    def end(self):
        self.process.stdin.close()
        return self.process.wait()


def patched(pid):
    """Whether kymo's code is in the process, and the recording has begun some time ago."""
    with open(f"/proc/{pid}/maps") as maps:
        found = any("kymo" in line for line in maps)
    time.sleep(1.5 if found else 0.05)
    return found


def measure(kymo, folder, name, program, environment):
    calls = Calls(program, environment)
    bare = calls.series()
    event = f"probe:{os.path.basename(program)}:work(arg1,arg2,arg3)"
    pid, file = calls.process.pid, os.path.join(folder, "events.data")
    command = [kymo, "record", "--engine", "inproc", "-e", event, "-p", str(pid), "-o", file]
    recorder = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not patched(pid) and recorder.poll() is None:
        pass
    with_events = calls.series()
    recorder.send_signal(signal.SIGINT)
    said = recorder.communicate()[1]
    lost = next((line for line in said.splitlines() if "lost" in line), said.strip())
    status = calls.end()
    print(f"{name:34} bare: {bare}   with events: {with_events}   {lost.strip('[] ')}, status {status}")


def main():
    kymo, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with tempfile.TemporaryDirectory() as folder:
        programs = [(name, build(folder, options), environment) for name, options, environment in WAYS]
        for _ in range(count):
            for name, program, environment in programs:
                measure(kymo, folder, name, program, environment)


main()
