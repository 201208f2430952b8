"""What recording costs the recorded program.

Two programs, each bare, under `perf record -F 999 -g` and under `kymo record -F 999`: `spin`, which only computes, and
`spawn`, which starts and joins threads. The time is the program's own, from its fork to its end, taken by a small launcher inside
the recording, so the recorder's start and its work after the end are not in it (`versus.py start` has those).
Slowdown is the ratio of medians to the bare program, with a 95 % bootstrap interval.
"""

from versus.runner import alternate, measure, ratio_interval, seconds, spread, table

HELP = "the slowdown of a computing and of a thread-starting program under record"

# name: source, compiler flags, arguments of the program
PROGRAMS = {
    "spin": ("fixtures/programs/spin.c", ["-lm"], []),
    "spawn": ("fixtures/programs/spawn.c", ["-pthread"], []),
}


def add_arguments(parser):
    parser.add_argument("--programs", default="spin,spawn", help="which programs (default: spin,spawn)")
    parser.add_argument("--spin-arguments", default="", help="arguments of spin")
    parser.add_argument("--spawn-arguments", default="", help="arguments of spawn")
    parser.add_argument("--frequency", type=int, default=999, help="samples per second and CPU (default: 999)")


def run(bench, args):
    rounds = args.rounds or 15
    launcher = bench.compile("bench/workloads/timed.c")
    programs, rows = {}, []
    for name in args.programs.split(","):
        source, flags, arguments = PROGRAMS[name]
        arguments = getattr(args, f"{name}_arguments").split() or arguments
        target = [launcher, bench.scratch / "took", bench.compile(source, *flags), *arguments]
        frequency = str(args.frequency)
        commands = {
            "bare": target,
            "perf": [bench.perf, "record", "-o", bench.scratch / "perf.data", "-F", frequency, "-g", "--", *target],
            "kymo": [bench.kymo, "record", "-o", bench.scratch / "kymo.data", "-F", frequency, "--", *target],
        }
        competitors = {who: timed(bench, command) for who, command in commands.items()}
        runs = alternate(competitors, rounds, say=lambda words, name=name: bench.say(f"{name}: {words}"))
        programs[name] = {"arguments": arguments}
        for who, of in runs.items():
            slowdown = ratio_interval(of, runs["bare"])
            programs[name][who] = {"took_s": spread(of), "slowdown": slowdown}
            rows.append([f"{name}: {who}", *(seconds(f(of)) for f in (median, min, max)),
                         "" if who == "bare" else f"{slowdown[0]:.4f}", "" if who == "bare" else f"{slowdown[1]:.4f} .. {slowdown[2]:.4f}"])
    table(["program", "median", "min", "max", "slowdown", "95 % interval"], rows)
    return {"rounds": rounds, "frequency": args.frequency, "programs": programs}


def median(values):
    return spread(values)["median"]


def timed(bench, command):
    """A function that runs the command once and returns the seconds that the program itself took."""
    def once():
        measure(command, cwd=bench.scratch)
        return int((bench.scratch / "took").read_text().split()[0]) / 1e9
    return once
