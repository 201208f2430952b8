"""How often `kymo diff` is right.

Equal builds: two sets of runs of one real program are compared. Any difference that is reported is a false one. Seeded slow-downs: builds of
`fixtures/programs/rows.c` differ in one function by a known amount of work; counted is how often it is found, and how often its interval holds
the amount. Then 20 recordings are compared, and the time is taken.

Runs are made in turns. Where false differences and intervals are counted, each comparison has runs of its own. For seeded slow-downs all runs
of a pool are recorded first, and each comparison draws turns from it, so comparisons share runs: their number says less than as many independent
ones would. The same runs are compared by absolute costs and by shares.
"""

import concurrent.futures
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

from versus.runner import Refusal, environment, measure, seconds, spread, table

HELP = "how often kymo diff is right: equal builds, seeded slow-downs, intervals; and how long it takes"

# What gcc compiles, python and sort read, and gzip packs.
REAL = {
    "gzip": "gzip -9 -c {text}",
    "sort": "sort -r {text}",
    "python": "python3 -c 'import json; [json.loads(json.dumps(list(range(9000)))) for _ in range(60)]'",
    "sha": "sha256sum" + 12 * " {text}",
}
# Name, flags of the new build, the function, and how much more it costs.
SEEDED = [
    ("+5 % of a tenth", ["-DHASH=105"], "hash_rows", 0.05),
    ("+20 % of a fiftieth", ["-DEMIT=120"], "emit_rows", 0.20),
]
# The options of each way to compare costs.
WEIGHTS = {"absolute": [], "share": ["--share"]}
# Lines of the text that real programs read: so many that a run takes a tenth of a second or more.
TEXT_LINES = 100_000
# How often a recording is repeated that lost samples.
ATTEMPTS = 10
# How often rows.c does its work in a second, about.
ROUNDS_A_SECOND = 700
BUILD = ["-O1", "-g", "-fno-omit-frame-pointer"]


def add_arguments(parser):
    parser.add_argument("--pool", type=int, default=20, help="runs of each seeded build (default: 20)")
    parser.add_argument("--trials", type=int, default=50, help="comparisons of each kind (default: 50)")
    parser.add_argument("--side", type=int, default=10, help="runs a side (default: 10)")
    parser.add_argument("--seconds", type=float, default=1.0, help="how long a run of rows.c takes (default: 1)")
    parser.add_argument("--interval-seconds", type=float, default=0.5,
                        help="how long a run of rows.c takes where each comparison has runs of its own (default: 0.5)")
    parser.add_argument("--jobs", type=int, default=1,
                        help="comparisons that are recorded at the same time, where each has runs of its own (default: 1)")
    parser.add_argument("--parts", default="equal,seeded,intervals,speed", help="what is measured (default: equal,seeded,intervals,speed)")
    parser.add_argument("--recordings", metavar="DIR", help="record into this folder, and take what an earlier run has left there")
    parser.add_argument("--samples", type=int, default=1_000_000, help="samples of each of the 20 recordings (default: 1000000)")


def run(bench, args):
    if args.pool < args.side:
        raise Refusal("--pool must be at least --side")
    draws = random.Random(1)
    bench.pools = Path(args.recordings).resolve() if args.recordings else bench.scratch
    bench.pools.mkdir(exist_ok=True)
    result = {"runs_a_side": args.side, "pool": args.pool, "trials": args.trials, "jobs": args.jobs, "run_seconds": args.seconds,
              "interval_seconds": args.interval_seconds}
    parts = {"equal": equal_builds, "seeded": seeded, "intervals": intervals, "speed": speed}
    for part in args.parts.split(","):
        if part not in parts:
            raise Refusal(f"--parts knows {', '.join(parts)}, not {part}")
        result[part] = parts[part](bench, args, draws)
    return result


def record(bench, name, command):
    """A recording without loss: on a busy machine the recorder may get no CPU for too long, and the run is repeated."""
    path = bench.pools / f"{name}.data"
    if path.exists():
        return path
    argv = [bench.kymo, "record", "-q", "--fail-on-loss", "-o", path, "-F", "3999", "-e", "cpu-clock", "--", *command]
    for _ in range(ATTEMPTS):
        done = subprocess.run([str(word) for word in argv], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment(),
                              cwd=bench.scratch, text=True)
        if done.returncode == 0:
            return path
    raise Refusal(f"{path} could not be recorded without loss: {done.stderr.strip()}")


def compare(bench, old, new, weight):
    argv = [bench.kymo, "diff", "-q", "--json", *WEIGHTS[weight], *old, "--", *new]
    done = subprocess.run([str(word) for word in argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True)
    if done.returncode not in (0, 1, 3):
        raise Refusal(f"kymo diff ended with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def differing(answer):
    effects = [answer["total"], *answer["effects"]]
    return [effect["name"] for effect in effects if effect["verdict"] in ("regression", "improvement", "moved")]


def equal_builds(bench, args, draws):
    """How often a program differs from itself."""
    text = bench.scratch / "text"
    text.write_text("\n".join(str(draws.random()) for _ in range(TEXT_LINES)))
    found, rows = {}, []
    for name, command in REAL.items():
        words = command.format(text=text)
        if not shutil.which(words.split()[0]):
            print(f"{words.split()[0]} is not installed: left out", file=sys.stderr)
            continue
        sides = dict.fromkeys((f"{name}-old", f"{name}-new"), ["sh", "-c", words + " >/dev/null"])
        answers = {weight: [] for weight in WEIGHTS}
        for runs in own_runs(bench, args, draws, sides, f"equal builds: {name}"):
            for weight in WEIGHTS:
                answers[weight].append(compare(bench, *([of_turn[side] for of_turn in runs] for side in sides), weight))
        for weight, of_weight in answers.items():
            said = [names for names in map(differing, of_weight) if names]
            undecided = sum(answer["verdict"] == "undecided" for answer in of_weight)
            found.setdefault(name, {})[weight] = {"trials": args.trials, "differ": len(said), "undecided": undecided, "what": said}
            rows.append([name, weight, args.trials, len(said), undecided])
    table(["equal builds", "costs", "comparisons", "report a difference", "undecided"], rows)
    return found


def seeded_builds(bench, run_seconds):
    """The usual build of rows.c, and by function one in which this function costs more: commands of so many seconds."""
    source = "fixtures/programs/rows.c"
    builds = {"old": shutil.copy(bench.compile(source, *BUILD), bench.scratch / "rows-old")}
    for _, flags, function, _ in SEEDED:
        builds[function] = shutil.copy(bench.compile(source, *BUILD, *flags), bench.scratch / f"rows-{function}")
    rounds = str(int(max(1.0, run_seconds * ROUNDS_A_SECOND)))
    return {name: [program, rounds] for name, program in builds.items()}


def record_turn(bench, commands, draws, name):
    """A run of each command, in random order: the recordings by the command's name."""
    turn = list(commands.items())
    draws.shuffle(turn)
    return {of: record(bench, f"{of}-{name}", command) for of, command in turn}


def own_runs(bench, args, draws, commands, title):
    """The turns of each comparison, which no other comparison has. `--jobs` comparisons are recorded at the same time."""
    def record_trial(trial, own):
        return [record_turn(bench, commands, own, f"{trial}-{at}") for at in range(args.side)]

    trials = range(args.trials)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as jobs:
        for trial, turns in enumerate(jobs.map(record_trial, trials, [random.Random(draws.random()) for _ in trials])):
            yield turns
            for path in (path for turn in turns for path in turn.values()):
                path.unlink()
            bench.say(f"{title}: {trial + 1} of {args.trials}")


class SeededEffect:
    """What comparisons say of a function that is known to cost more."""

    def __init__(self, name, function, truth, weight):
        self.name, self.function, self.truth, self.weight = name, function, truth, weight
        self.effects, self.shares = [], []

    def add(self, answer):
        self.effects.append(next(effect for effect in answer["effects"] if effect["name"] == self.function))
        self.shares.append(self.effects[-1]["old"] / answer["total"]["old"])

    def result(self):
        share = spread(self.shares)["median"]
        # A function that grows is a part of a whole that grows, too.
        true = self.truth if self.weight == "absolute" else (1 + self.truth) / (1 + self.truth * share) - 1
        hits = sum(effect["verdict"] == "regression" for effect in self.effects)
        holds = sum(effect["of_itself"]["low"] <= true <= effect["of_itself"]["high"] for effect in self.effects)
        changes = spread([effect["of_itself"]["estimate"] for effect in self.effects])
        return {"function": self.function, "truth": true, "trials": len(self.effects), "found": hits, "held": holds,
                "share": spread(self.shares), "change": changes}


def seeded_effects():
    return [SeededEffect(name, function, truth, weight) for name, _, function, truth in SEEDED for weight in WEIGHTS]


def sides_of_builds(turns, effect):
    return [[runs[build] for runs in turns] for build in ("old", effect.function)]


def show_seeded(title, effects):
    found, rows = {}, []
    for effect in effects:
        told = found.setdefault(effect.name, {})[effect.weight] = effect.result()
        rows.append([effect.name, effect.weight, told["trials"], told["found"], told["held"], f"{told['share']['median']:.1%}",
                     f"{told['change']['median']:.1%}"])
    table([title, "costs", "comparisons", "found", "interval holds it", "share", "estimate"], rows)
    return found


def seeded(bench, args, draws):
    builds = seeded_builds(bench, args.seconds)
    pools = [record_turn(bench, builds, draws, at) for at in range(args.pool)]
    effects, drawn = seeded_effects(), [draws.sample(pools, args.side) for _ in range(args.trials)]
    for effect in effects:
        for turns in drawn:
            effect.add(compare(bench, *sides_of_builds(turns, effect), effect.weight))
    return show_seeded("slower by", effects)


def intervals(bench, args, draws):
    """How often intervals hold the truth."""
    effects = seeded_effects()
    for turns in own_runs(bench, args, draws, seeded_builds(bench, args.interval_seconds), "intervals"):
        for effect in effects:
            effect.add(compare(bench, *sides_of_builds(turns, effect), effect.weight))
    return show_seeded("runs of their own, slower by", effects)


def speed(bench, args, _draws):
    """Twenty recordings: of two, each ten times."""
    program = bench.compile("fixtures/programs/rows.c", *BUILD)
    files = []
    for at in range(2):
        path = bench.scratch / f"large-{at}.data"
        measure([bench.kymo, "record", "-q", "-o", path, "-F", "20000", "-e", "cpu-clock", "--", program,
                 str(max(1, args.samples // 28))], cwd=bench.scratch)
        files += [[shutil.copy(path, bench.scratch / f"large-{at}-{copy}.data") for copy in range(10)]]
    facts = json.loads(subprocess.run([str(bench.kymo), "query", "--json", str(files[0][0]), "events"], stdout=subprocess.PIPE,
                                      env=environment(), text=True, check=True).stdout)
    samples = facts["events"][0]["samples"]
    times = [measure([bench.kymo, "diff", "-q", *files[0], "--", *files[1]], cwd=bench.scratch, expect=None) for _ in range(args.rounds or 3)]
    wall = spread([time.wall_s for time in times])
    table(["20 recordings", "samples of each", "median", "min", "max"],
          [["kymo diff", samples, *(seconds(wall[key]) for key in ("median", "min", "max"))]])
    return {"recordings": 20, "samples_each": samples, "wall_s": wall, "peak_bytes": spread([time.peak_bytes for time in times])}
