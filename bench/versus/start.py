"""What it takes to record next to nothing: `record -- true`, from start to a finished file.

Bare `true` is there for scale. Defaults of both tools, with call chains for both.
"""

from versus.runner import alternate, measure, megabytes, ratio_interval, seconds, spread, table

HELP = "the time of `record -- true`"


def add_arguments(parser):
    parser.add_argument("--all-cpus", action="store_true", help="record the whole system (-a) instead of the command")


def run(bench, args):
    rounds = args.rounds or 31
    scope = ["-a"] if args.all_cpus else []
    commands = {
        "bare": ["true"],
        "perf": [bench.perf, "record", "-o", bench.scratch / "perf.data", "-g", *scope, "--", "true"],
        "kymo": [bench.kymo, "record", "-o", bench.scratch / "kymo.data", *scope, "--", "true"],
    }
    competitors = {who: (lambda command=command: measure(command, cwd=bench.scratch)) for who, command in commands.items()}
    runs = alternate(competitors, rounds)
    result, rows = {}, []
    for who, of in runs.items():
        walls = [r.wall_s for r in of]
        faster = ratio_interval([r.wall_s for r in runs["perf"]], walls)
        result[who] = {"wall_s": spread(walls), "peak_bytes": spread([r.peak_bytes for r in of]), "faster_than_perf": faster}
        rows.append([who, *(seconds(result[who]["wall_s"][k]) for k in ("median", "min", "max")),
                     megabytes(result[who]["peak_bytes"]["max"]),
                     f"{faster[0]:.2f}x ({faster[1]:.2f} .. {faster[2]:.2f})" if who == "kymo" else ""])
    table(["record -- true", "median", "min", "max", "peak memory", "faster"], rows)
    return {"rounds": rounds, "all_cpus": args.all_cpus, "who": result}
