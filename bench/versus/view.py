"""How soon a big recording can be looked at, and how soon a selection is counted.

`kymo view` reads the recording and prints its address; then the page is fetched, and sums are asked for ranges of time, as a reader
of the page does who drags over the timeline. The ranges are the same in each run. perf has no page: beside it stands how long its
text report takes, which has no ranges. The recording is that of `report`, or one that exists.
"""

import json
import random
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

from versus.report import files_of, make_recording, sample_count
from versus.runner import alternate, measure, megabytes, seconds, spread, table

HELP = "how soon a big recording can be looked at in the browser, and how soon a selection is counted"


def add_arguments(parser):
    parser.add_argument("--file", metavar="PATH", help="a recording that exists, instead of making the reference one")
    parser.add_argument("--samples", type=int, default=4_000_000, help="size of the recording to make (default: 4000000)")
    parser.add_argument("--keep", metavar="PATH", help="keep the recording that was made under this name")
    parser.add_argument("--selections", type=int, default=40, help="ranges to ask for in each round (default: 40)")


def run(bench, args):
    recording = Path(args.file).resolve() if args.file else make_recording(bench, args)
    rounds = args.rounds or 5
    facts = {"bytes": sum(f.stat().st_size for f in files_of(recording)), "samples": sample_count(bench, recording)}
    print(f"recording: {facts['bytes'] / 1e6:.0f} MB, {facts['samples']} samples\n")

    def report():
        with open(bench.scratch / "report.txt", "wb") as text:
            return measure([bench.perf, "report", "-i", recording, "--stdio"], stdout=text).wall_s

    runs = alternate({"perf report": report, "kymo view": lambda: look(bench, args, recording)}, rounds, say=bench.say)
    seen = runs["kymo view"]
    result = {
        "perf_report_s": spread(runs["perf report"]),
        **{key: spread([one[key] for one in seen]) for key in ("address_s", "page_s", "page_bytes", "peak_bytes")},
        "selection_s": [sorted(one["selection_s"]) for one in seen],
    }
    selections = sorted(took for one in seen for took in one["selection_s"])
    at = {"median": len(selections) // 2, "p95": len(selections) * 95 // 100, "max": len(selections) - 1}
    rows = [["perf report", *(seconds(result["perf_report_s"][k]) for k in ("median", "min", "max"))]]
    rows += [[name, *(seconds(result[key][k]) for k in ("median", "min", "max"))]
             for name, key in (("kymo view: until the address", "address_s"), ("the page", "page_s"))]
    table(["view", "median", "min", "max"], rows)
    print()
    table(["selection", *at], [[f"{len(selections)} ranges", *(seconds(selections[place]) for place in at.values())]])
    print(f"\nthe page: {megabytes(result['page_bytes']['median'])}; memory at most: {megabytes(result['peak_bytes']['max'])}")
    return {"recording": facts, "rounds": rounds, **result}


def look(bench, args, recording):
    """One look: the page, and selections."""
    begin = time.perf_counter()
    command = [str(bench.kymo), "view", "--no-open", "-q", str(recording)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        address = server.stdout.readline().strip()
        address_s = time.perf_counter() - begin
        base, token = address.split("/?token=")

        def get(path):
            asked = time.perf_counter()
            request = urllib.request.Request(base + path, headers={"X-Kymo-Token": token})
            with urllib.request.urlopen(request) as answer:
                body = answer.read()
            return time.perf_counter() - asked, body

        page_s, page = get("/")
        length = int(re.search(rb'"durationNs":(\d+)', page).group(1))
        dice, took = random.Random(1), []
        for _ in range(args.selections):
            first, last = sorted(dice.randrange(length) for _ in range(2))
            one, sums = get(f"/select?event=0&from={first}&until={last}")
            assert "samples" in json.loads(sums)
            took.append(one)
        status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
        server.send_signal(signal.SIGINT)
    return {"address_s": address_s, "page_s": page_s, "page_bytes": len(page), "selection_s": took,
            "peak_bytes": int(re.search(r"VmHWM:\s*(\d+)", status).group(1)) * 1024}
