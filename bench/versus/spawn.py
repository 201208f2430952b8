"""What a recorded program pays for each thread that it creates.

`fixtures/programs/spawn.c` creates and joins threads one after the other and prints the nanoseconds for each. Bare, under
`perf record`, and under `kymo record` with each of its scopes; all with call chains and the same frequency. The ratio is that to the bare
program, with a 95 % bootstrap interval.
"""

from versus.runner import Refusal, alternate, output, ratio_interval, spread, table

HELP = "the cost of creating threads while being recorded"


def add_arguments(parser):
    parser.add_argument("--threads", type=int, default=20_000, help="threads to create in one run (default: 20000)")
    parser.add_argument("--frequency", type=int, default=999, help="samples per second and CPU (default: 999)")
    parser.add_argument("--event", default="cpu-clock", help="what to record (default: cpu-clock)")
    parser.add_argument("--scopes", default="cgroup,filtered,inherit,thread-cpu",
                        help="scopes of kymo beside its own choice (default: all; thread-cpu does not follow the threads)")


def run(bench, args):
    rounds = args.rounds or 15
    program = [bench.compile("fixtures/programs/spawn.c", "-pthread"), str(args.threads)]
    what = ["-e", args.event, "-F", str(args.frequency)]
    commands = {
        "bare": program,
        "perf": [bench.perf, "record", "-o", bench.scratch / "perf.data", *what, "-g", "--", *program],
        "kymo": [bench.kymo, "record", "-o", bench.scratch / "kymo.data", *what, "--", *program],
    }
    if "--scope" in output([bench.kymo, "record", "--help"]):
        for scope in filter(None, args.scopes.split(",")):
            commands[f"kymo --scope {scope}"] = [bench.kymo, "record", "--scope", scope, "-o", bench.scratch / "kymo.data",
                                                 *what, "--", *program]
    competitors, refused = {}, {}
    for who, command in commands.items():
        competitors[who] = lambda command=command: int(output(command, cwd=bench.scratch))
        try:
            competitors[who]()
        except Refusal as refusal:
            refused[who] = str(refusal)
            del competitors[who]
            bench.say(f"{who} cannot: {refusal}")
    runs = alternate(competitors, rounds, say=bench.say)
    result, rows = {}, []
    for who, of in runs.items():
        slowdown = ratio_interval(of, runs["bare"])
        result[who] = {"per_thread_ns": spread(of), "to_bare": slowdown}
        rows.append([who, *(f"{result[who]['per_thread_ns'][k] / 1e3:.2f} us" for k in ("median", "min", "max")),
                     "" if who == "bare" else f"{slowdown[0]:.3f}",
                     "" if who == "bare" else f"{slowdown[1]:.3f} .. {slowdown[2]:.3f}"])
    rows += [[who, "cannot", "", "", "", ""] for who in refused]
    table(["create + join", "median", "min", "max", "to bare", "95 % interval"], rows)
    return {"rounds": rounds, "threads": args.threads, "event": args.event, "frequency": args.frequency, "who": result, "refused": refused}
