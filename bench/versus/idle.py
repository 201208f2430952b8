"""What an attached agent costs a program that meets none of its probes.

One process of `fixtures/programs/many.c` does the same work again and again, in turn alone and with kymo's agent in it, whose only probe
is at `main`, which is not called again. Compared is the CPU time of the working thread (`schedstat`), in which waiting for a CPU does not count.
"""

import os
import signal
import subprocess

from versus.runner import Refusal, alternate, environment, ratio_interval, spread, table

HELP = "an idle agent in a program: CPU time of the same work with and without it"


def add_arguments(parser):
    parser.add_argument("--turns", type=int, default=200_000, help="calls of each of 64 functions in a round (default: 200000)")


def run(bench, args):
    rounds = args.rounds or 21
    program = bench.compile("fixtures/programs/many.c", "-pthread", "-g")
    target = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment())
    try:
        said = set()

        def cpu_ns():
            with open(f"/proc/{target.pid}/task/{target.pid}/schedstat", encoding="ascii") as numbers:
                return int(numbers.read().split()[0])

        def work():
            begin = cpu_ns()
            target.stdin.write(f"{args.turns}\n")
            target.stdin.flush()
            said.add(target.stdout.readline())
            return cpu_ns() - begin

        def attached():
            kymo = subprocess.Popen([bench.kymo, "probe", "--engine", "inproc", "-p", str(target.pid), "main"],
                                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment())
            first = kymo.stderr.readline()
            if " in process " not in first:
                kymo.wait()
                raise Refusal(f"kymo did not attach: {first.strip()}")
            try:
                return work()
            finally:
                kymo.send_signal(signal.SIGINT)
                kymo.communicate()

        runs = alternate({"alone": work, "attached": attached}, rounds, say=bench.say)
    finally:
        os.kill(target.pid, signal.SIGKILL)
        target.wait()
    if len(said) != 1:
        raise Refusal("THE ANSWERS DIFFER: the program computed something else with the agent in it")
    ratio, low, high = ratio_interval(runs["attached"], runs["alone"])
    table(["", "CPU time", "least", "most"],
          [[who] + [f"{value / 1e6:.2f} ms" for value in (shown["median"], shown["min"], shown["max"])]
           for who, shown in ((who, spread(values)) for who, values in runs.items())])
    print(f"attached / alone: {ratio:.4f} ({low:.4f} to {high:.4f})")
    return {"turns": args.turns, "cpu_ns": {who: spread(values) for who, values in runs.items()},
            "ratio": {"median": ratio, "low": low, "high": high}}
