"""What is lost while every context switch of the machine is recorded with 8 KB of stack, and how much that slows down the target.

The target of the first variant, `switches`, is `perf bench sched pipe`, two processes that do nothing but wake each other; the recording is
`-a -e sched:sched_switch -c 1 --call-graph dwarf,8192`: as perf makes it by default, with `--aio=4` and with `--threads`; as kymo makes
it by default (stacks are unwound while recording) and with `--raw-stacks` (the bytes are kept, as perf does). The other variants
change one thing each: `--variant` lists them. perf counts what is in the files of both (see lost.py), so one judge reads all; kymo's own
last line must say the same. The time per operation is the target's own, the slowdown its
ratio to the bare target with a 95 % bootstrap interval. A recording is read and removed before the next one begins.

Where the scheduler places the two processes decides what an operation costs, and a recorder changes that: on one CPU it is two
switches; on two CPUs each also goes idle and back, which in a virtual machine may take longer than the whole recording of it.
The table therefore shows events per operation. Times of runs that differ in it compare placements, not recorders; slowdowns
below 1 come from there. `--target-cpus 0` gives all the same placement.

In the variant `busy` nothing of a recorder runs while the target does, so most is lost. What is asked there is whether the account is right
to the sample: samples and lost samples are as many as `perf stat` counted in the same run, and as the target made.
"""

import os
import re
import shutil
import statistics
import subprocess
import tempfile

from versus import storm_variants
from versus.lost import judged
from versus.runner import (Refusal, alternate, environment, measure, megabytes, need_tracefs, output, ratio_interval, seconds,
                           spread, table)

HELP = "samples lost, bytes and slowdown when every context switch is recorded with its stack"


def add_arguments(parser):
    storm_variants.add_arguments(parser)
    parser.add_argument("--target-cpus", metavar="CPUS", help="keep the target on these CPUs, as taskset takes them (default: all)")
    parser.add_argument("--only", metavar="NAMES", help="only these competitors, separated by commas: bare, perf, perf --aio=4, "
                        "perf --threads, kymo, kymo --raw-stacks; bare always runs")


def run(bench, args):
    rounds = args.rounds or 10
    if os.geteuid() != 0:
        raise Refusal("recording all CPUs needs root")
    need_tracefs()
    variant = storm_variants.chosen(args)
    operations = args.loops * variant.times(args)
    need_room(bench, operations * variant.bytes_per_loop)
    target = [str(word) for word in variant.target(bench, args)]
    if args.target_cpus:
        target = ["taskset", "-c", args.target_cpus, *target]
    with variant.folder(bench, args) as folder:
        competitors, refused = {}, {}
        for who, race in everyone(bench, variant, folder, target).items():
            if who != "bare" and args.only and who not in args.only.split(","):
                continue
            # A perf that was built without aio, or has no two options together, says so here.
            if who.startswith("perf --") and (words := refusal(bench, [*who.split()[1:], *set(variant.what) & {"-z"}])):
                refused[who] = words
                bench.say(f"{who} cannot: {words}")
                continue
            competitors[who] = race
        runs = alternate(competitors, rounds, say=bench.say)
    result = {who: summary(who, of, runs["bare"], operations) for who, of in runs.items()}
    differing = differences(runs)
    for words in differing:
        print(f"THE ACCOUNTS DIFFER: {words}")
    for words in miscounts(runs):
        print(f"THE COUNTS DIFFER: {words}")
    show(result, refused, rounds)
    if variant.counted:
        show_counts(result)
    compared = compare(runs)
    return {"saved_as": "storm" if args.variant == "switches" else f"storm-{args.variant}", "variant": args.variant, "rounds": rounds,
            "loops": args.loops, "operations": operations, "target": target, "target_cpus": args.target_cpus,
            "recorded": variant.what, "who": result, "compared": compared, "accounts_differ": differing, "refused": refused}


def everyone(bench, variant, folder, target):
    """All competitors: each a function without arguments that runs the target once and returns what was found."""
    perf, kymo = [bench.perf, "record"], [bench.kymo, "record"]
    recorders = {
        "perf": perf,
        "perf --aio=4": [*perf, "--aio=4"],
        "perf --threads": [*perf, "--threads"],
        "kymo": kymo,
        "kymo --raw-stacks": [*kymo, "--raw-stacks"],
    }
    competitors = {"bare": lambda: bare(target)}
    for who, recorder in recorders.items():
        competitors[who] = lambda recorder=recorder: recorded(bench, variant, folder, recorder, target)
    return competitors


def need_room(bench, need):
    """Refuses to start what would fill the disk."""
    free = shutil.disk_usage(bench.scratch).free
    if free < need:
        raise Refusal(f"{bench.scratch} has {megabytes(free)} free, a recording of so many operations may need {megabytes(need)}; "
                      "name another folder with --work DIR, or take fewer --loops")


def refusal(bench, options):
    """Why this perf does not take the options, or nothing."""
    argv = [bench.perf, "record", *options, "-e", "dummy", "-o", bench.scratch / "try.data", "--", "true"]
    done = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          env=environment())
    remove(bench.scratch / "try.data")
    return done.stderr.decode(errors="replace").strip()[-500:] if done.returncode else None


def bare(target):
    return {"operation_us": operation_us(output(target))}


def recorded(bench, variant, folder, recorder, target):
    """Records the target once, has the file judged, and removes it."""
    file, counts = folder / "storm.data", bench.scratch / "counts.csv"
    remove(file)
    # What the previous recording left to be written must not compete with this one.
    os.sync()
    argv = [*recorder, "-o", file, *variant.what, "--", *target]
    if variant.counted:
        argv = [bench.perf, "stat", "-a", "-x,", "-e", variant.event, "-o", counts, "--", *argv]
    try:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as words:
            took = measure(argv, stdout=out, stderr=words, cwd=bench.scratch, expect=None)
            said, own = text(out), text(words)
        if took.status:
            raise Refusal(f"`{' '.join(map(str, argv))}` ended with {took.status}:\n{own[-2000:]}")
        found = {"operation_us": operation_us(said), **judged(bench.perf, file, variant.event), "file_bytes": size(file),
                 "own_words": own.splitlines(), "wall_s": took.wall_s, "user_s": took.user_s, "sys_s": took.sys_s,
                 "peak_bytes": took.peak_bytes}
    finally:
        remove(file)
    if variant.counted:
        found["counted"] = counted(counts.read_text())
    if line := re.search(r"lost (\d+) samples", own):
        found["own_lost"] = int(line[1])
        found["own_samples"] = int(re.search(r"\((\d+) samples\)", own)[1])
    return found


def counted(said):
    """What `perf stat -x,` says: the count comes first in its line."""
    if not (line := re.search(r"^(\d+),", said, re.MULTILINE)):
        raise Refusal(f"perf stat counted nothing:\n{said[-500:]}")
    return int(line[1])


def text(file):
    file.seek(0)
    return file.read().decode(errors="replace")


def operation_us(said):
    """What the target says about itself: `       8.153500 usecs/op`."""
    if not (line := re.search(r"([\d.]+) usecs/op", said)):
        raise Refusal(f"the target did not say how long an operation took:\n{said[-500:]}")
    return float(line[1])


def size(path):
    """Bytes of a recording, which is a folder under `perf record --threads`."""
    return sum(f.stat().st_size for f in path.iterdir()) if path.is_dir() else path.stat().st_size


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def summary(who, of, bares, operations):
    """All measurements of one competitor, and what the table shows of them."""
    times = column(of, "operation_us")
    found = {"operation_us": spread(times)}
    if who == "bare":
        return found
    found["slowdown"] = ratio_interval(times, column(bares, "operation_us"))
    found["loss_percent"] = spread([100 * r["lost"] / (r["samples"] + r["lost"]) for r in of])
    found["bytes_per_sample"] = spread([bytes_per_sample(r) for r in of])
    found["events_per_operation"] = spread([(r["samples"] + r["lost"]) / operations for r in of])
    found["rounds_without_loss"] = sum(r["lost_in_all"] == 0 for r in of)
    if "counted" in of[0]:
        found["counted"] = spread(column(of, "counted"))
        found["rounds_counted_right"] = sum(r["samples"] + r["lost_samples"] == r["counted"] for r in of)
    for name in ("samples", "lost", "lost_samples", "lost_records", "lost_in_all", "throttled", "file_bytes", "wall_s", "user_s", "sys_s", "peak_bytes"):
        found[name] = spread(column(of, name))
    found["own_words"] = column(of, "own_words")
    return found


def column(of, name):
    return [r[name] for r in of]


def bytes_per_sample(r):
    return r["file_bytes"] / max(r["samples"], 1)


def differences(runs):
    """Where kymo's own account is not what perf finds in its file."""
    return [f"{who}, round {turn + 1}: its last line says {r['own_samples']} samples and {r['own_lost']} lost, its file "
            f"{r['samples']} and {r['lost_in_all']}"
            for who, of in runs.items() for turn, r in enumerate(of)
            if "own_lost" in r and (r["own_samples"], r["own_lost"]) != (r["samples"], r["lost_in_all"])]


def miscounts(runs):
    """Where a file does not have all that happened, as samples and as lost ones."""
    return [f"{who}, round {turn + 1}: {r['samples']} samples and {r['lost_samples']} lost, {r['counted']} counted"
            for who, of in runs.items() for turn, r in enumerate(of)
            if "counted" in r and r["samples"] + r["lost_samples"] != r["counted"]]


def show(result, refused, rounds):
    head = ["medians", "samples", "lost", "loss", "most lost", "rounds without", "file", "bytes/sample", "recorder", "events/op",
            "us/op", "slowdown", "95 % interval"]
    rows = []
    for who, found in result.items():
        operation = f"{found['operation_us']['median']:.2f}"
        if who == "bare":
            rows.append([who, *[""] * 9, operation, "", ""])
            continue
        slowdown = found["slowdown"]
        rows.append([
            who, f"{found['samples']['median']:.0f}", f"{found['lost']['median']:.0f}", f"{found['loss_percent']['median']:.2f} %",
            f"{found['loss_percent']['max']:.2f} %", f"{found['rounds_without_loss']} of {rounds}",
            megabytes(found["file_bytes"]["median"]), f"{found['bytes_per_sample']['median']:.0f}", seconds(found["wall_s"]["median"]),
            f"{found['events_per_operation']['median']:.2f}", operation, f"{slowdown[0]:.2f}", f"{slowdown[1]:.2f} .. {slowdown[2]:.2f}"])
    rows += [[who, "cannot", *[""] * 11] for who in refused]
    table(head, rows)


def show_counts(result):
    """Whether all that happened is in the file, as a sample or as lost."""
    rows = []
    for who, found in result.items():
        if who != "bare":
            right, rounds = found["rounds_counted_right"], len(found["counted"]["values"])
            both = [a + b for a, b in zip(found["samples"]["values"], found["lost_samples"]["values"])]
            off = max(abs(a - b) for a, b in zip(both, found["counted"]["values"]))
            rows.append([who, f"{statistics.median(both):.0f}", f"{found['counted']['median']:.0f}", f"{right} of {rounds}", off])
    table(["medians", "samples + lost", "perf stat counted", "rounds equal", "most off"], rows)


def compare(runs):
    """The two ratios that come last: the target's time under kymo to that under perf's threads, and perf's bytes to kymo's."""
    compared = {}
    if "kymo" in runs and "perf --threads" in runs:
        time = ratio_interval(column(runs["kymo"], "operation_us"), column(runs["perf --threads"], "operation_us"))
        compared["time_kymo_to_perf_threads"] = time
        print(f"time per operation, kymo to perf --threads: {time[0]:.2f} ({time[1]:.2f} .. {time[2]:.2f})")
    if "kymo" in runs and "perf" in runs:
        bytes_each = {who: statistics.median(map(bytes_per_sample, runs[who])) for who in ("perf", "kymo")}
        compared["bytes_per_sample_perf_to_kymo"] = bytes_each["perf"] / bytes_each["kymo"]
        print(f"bytes per sample, perf to kymo: {compared['bytes_per_sample_perf_to_kymo']:.1f}")
    return compared
