"""The same big recording read by both tools: the full report, then the flat one.

The recording is system-wide and has call chains: `perf record -a -g -e sched:sched_switch -c 1` over perf's own
`bench sched pipe`, about 1.2 million samples; its size depends on how deep the call chains are. Both tools print the whole text report into a file.
Before the race, both answers are compared: a fast wrong report would win nothing.

kymo runs without its symbol cache, with an empty one (cold), and with one that an earlier run has filled (warm).
"""

import re
import shutil
from pathlib import Path

from versus.runner import Refusal, alternate, measure, megabytes, need_tracefs, output, seconds, spread, table

HELP = "the same big recording, read by perf and by kymo"

# How often `bench sched pipe` switches per loop depends on the machine and its load, from 2 upwards: a short run tells.
PILOT_LOOPS = 40_000
RACES = {
    "full": ["--stdio"],
    "flat": ["--stdio", "--no-children", "-g", "none"],
}


def add_arguments(parser):
    parser.add_argument("--file", metavar="PATH", help="a recording that exists, instead of making the reference one")
    parser.add_argument("--samples", type=int, default=1_200_000, help="size of the recording to make (default: 1200000)")
    parser.add_argument("--keep", metavar="PATH", help="keep the recording that was made under this name")
    parser.add_argument("--races", default="full,flat", help="which reports to race (default: full,flat)")
    parser.add_argument("--kymo-only", action="store_true", help="measure kymo alone, for work on kymo")


def run(bench, args):
    recording = Path(args.file).resolve() if args.file else make_recording(bench, args)
    rounds = args.rounds or 5
    samples = sample_count(bench, recording)
    facts = {"bytes": sum(f.stat().st_size for f in files_of(recording)), "samples": samples}
    print(f"recording: {facts['bytes'] / 1e6:.0f} MB, {samples} samples\n")
    differences = [] if args.kymo_only else compare_answers(bench, recording)
    races, rows = {}, []
    for race in args.races.split(","):
        competitors = {}
        if not args.kymo_only:
            competitors["perf"] = reader(bench, bench.perf, recording, race)
        for name in ("kymo", "kymo cold", "kymo warm"):
            competitors[name] = reader(bench, bench.kymo, recording, race, cache=name.removeprefix("kymo").strip())
        runs = alternate(competitors, rounds, say=lambda words, race=race: bench.say(f"{race}: {words}"))
        races[race] = {"arguments": RACES[race], **{
            name: {"wall_s": spread([r.wall_s for r in of]), "cpu_s": spread([r.user_s + r.sys_s for r in of]),
                   "peak_bytes": spread([r.peak_bytes for r in of])} for name, of in runs.items()}}
        for name in runs:
            took = races[race][name]
            ratio = races[race]["perf"]["wall_s"]["median"] / took["wall_s"]["median"] if "perf" in runs else 0
            rows.append([f"{race}: {name}", *(seconds(took["wall_s"][k]) for k in ("median", "min", "max")),
                         seconds(took["cpu_s"]["median"]), megabytes(took["peak_bytes"]["max"]),
                         f"{ratio:.2f}x" if ratio else ""])
    table(["report", "median", "min", "max", "cpu", "peak memory", "faster"], rows)
    return {"recording": facts, "rounds": rounds, "differences": differences, "races": races}


def make_recording(bench, args):
    """The reference recording, made now on this machine."""
    need_tracefs()
    path = bench.scratch / "reference.data"

    def record(loops):
        bench.say(f"recording perf bench sched pipe -l {loops}")
        measure([bench.perf, "record", "-o", path, "-a", "-g", "-e", "sched:sched_switch", "-c", "1", "--",
                 bench.perf, "bench", "sched", "pipe", "-l", str(loops)], cwd=bench.scratch)

    pilot = max(1, min(PILOT_LOOPS, args.samples // 2))
    record(pilot)
    record(round(args.samples * pilot / sample_count(bench, path)))
    if args.keep:
        path = path.rename(Path(args.keep).resolve())
    return path


def files_of(recording):
    """The files of a recording, which is a folder when it was made with --threads."""
    return [f for f in recording.iterdir() if f.is_file()] if recording.is_dir() else [recording]


def sample_count(bench, recording):
    """How many samples perf sees in the file."""
    stats = output([bench.perf, "report", "-i", recording, "--stats", "--stdio"])
    found = re.search(r"^\s*SAMPLE events:\s*(\d+)", stats, re.MULTILINE)
    if not found:
        raise Refusal(f"{recording} has no samples")
    return int(found.group(1))


def reader(bench, tool, recording, race, cache=""):
    """A function that makes `tool` print its report once: without kymo's symbol cache, with one that is empty
    ("cold"), or with what the warm-up has left in it ("warm")."""
    folder = bench.scratch / f"symbols-{cache}-{race}"
    variables = {"XDG_CACHE_HOME": str(folder), "KYMO_SYMBOL_CACHE": ""} if cache else {}

    def read_once():
        if cache == "cold":
            shutil.rmtree(folder, ignore_errors=True)
        if cache:
            folder.mkdir(exist_ok=True)
        with open(bench.scratch / "report.txt", "wb") as text:
            return measure([tool, "report", "-i", recording, *RACES[race]], stdout=text, variables=variables)
    return read_once


def compare_answers(bench, recording):
    """Lines of the flat report that only one tool has, at most ten; empty when both agree on every count."""
    answers = []
    for tool in (bench.perf, bench.kymo):
        # perf cuts names of threads to a column that it sizes by their last names; 16 bytes hold every name.
        widths = ["-w", "0,16"] if tool == bench.perf else []
        text = output([tool, "report", "-i", recording, *RACES["flat"], "-F", "sample,comm,dso,sym", *widths])
        answers.append({" ".join(line.split()) for line in text.splitlines() if line.strip() and not line.startswith("#")})
    perf, kymo = answers
    differences = [f"only perf: {line}" for line in sorted(perf - kymo)] + [f"only kymo: {line}" for line in sorted(kymo - perf)]
    if differences:
        print(f"THE ANSWERS DIFFER in {len(differences)} lines, so the race below proves little:")
        print("\n".join(f"  {line}" for line in differences[:10]) + "\n")
    else:
        print(f"both tools give the same {len(perf)} lines of counts\n")
    return differences[:10]
