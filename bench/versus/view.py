"""How soon a big recording can be looked at, and how soon a selection is counted.

`kymo view` prints its address and reads the recording; Chromium opens the page. By the page's clock: when it had drawn the first
timeline and the first flame graph since `kymo view` began (of a large recording those of a part of it), and the flame graph of all;
then how soon it shows the sums of a range, what its objects take, and how many pictures a second it draws while all lanes scroll by.
The same sums are asked by requests, too. The ranges are the same in each run. perf has no page: beside it stands how long its text
report takes, which has no ranges. The recording is that of `report`, or one that exists.
"""

import json
import random
import re
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

from versus.browser import Tab
from versus.repeat import repeat
from versus.report import files_of, make_recording
from versus.runner import alternate, measure, megabytes, output, seconds, spread, table

HELP = "how soon a big recording can be looked at in the browser, and how soon a selection is counted"


def add_arguments(parser):
    parser.add_argument("--file", metavar="PATH", help="a recording that exists, instead of making the reference one")
    parser.add_argument("--samples", type=int, default=4_000_000, help="size of the recording to make (default: 4000000)")
    parser.add_argument("--keep", metavar="PATH", help="keep the recording that was made under this name")
    parser.add_argument("--repeat", type=int, default=1, metavar="K", help="make the recording K times as long, of the same rounds")
    parser.add_argument("--no-perf", action="store_true", help="leave perf out: its report of a large recording takes minutes")
    parser.add_argument("--selections", type=int, default=40, help="ranges to ask for in each round (default: 40)")


def run(bench, args):
    recording = Path(args.file).resolve() if args.file else make_recording(bench, args)
    rounds = args.rounds or 5
    if args.repeat > 1:
        longer = bench.scratch / "repeated.data"
        repeat(recording, args.repeat, longer)
        recording = longer
    facts = {"bytes": sum(f.stat().st_size for f in files_of(recording)), "samples": samples_of(bench, recording)}
    print(f"recording: {facts['bytes'] / 1e6:.0f} MB, {facts['samples']} samples\n")

    def report():
        with open(bench.scratch / "report.txt", "wb") as text:
            return measure([bench.perf, "report", "-i", recording, "--stdio"], stdout=text).wall_s

    competitors = {"kymo view": lambda: look(bench, args, recording)}
    runs = alternate(competitors if args.no_perf else {"perf report": report, **competitors}, rounds, say=bench.say)
    seen = runs["kymo view"]
    result = {
        **({} if args.no_perf else {"perf_report_s": spread(runs["perf report"])}),
        **{key: spread([one[key] for one in seen]) for key in
           ("address_s", "page_s", "page_bytes", "peak_bytes", "timeline_s", "flame_s", "first_is_part", "whole_s", "heap_bytes", "lanes", "pictures_per_s")},
        "shown_selection_s": [sorted(one["shown_selection_s"]) for one in seen],
        "selection_s": [sorted(one["selection_s"]) for one in seen],
    }
    selections = sorted(took for one in seen for took in one["selection_s"])
    at = {"median": len(selections) // 2, "p95": len(selections) * 95 // 100, "max": len(selections) - 1}
    rows = [] if args.no_perf else [["perf report", *(seconds(result["perf_report_s"][k]) for k in ("median", "min", "max"))]]
    rows += [[name, *(seconds(result[key][k]) for k in ("median", "min", "max"))]
             for name, key in (("kymo view: until the address", "address_s"), ("the profile, asked again", "page_s"),
                               ("kymo view: until the first timeline", "timeline_s"),
                               ("kymo view: until the first flame graph", "flame_s"),
                               ("kymo view: until the flame graph of all", "whole_s"))]
    table(["view", "median", "min", "max"], rows)
    print()
    shown = sorted(took for one in seen for took in one["shown_selection_s"])
    at_shown = {"median": len(shown) // 2, "p95": len(shown) * 95 // 100, "max": len(shown) - 1}
    table(["selection", *at], [[f"{len(selections)} ranges, answered", *(seconds(selections[place]) for place in at.values())],
                               [f"{len(shown)} ranges, drawn", *(seconds(shown[place]) for place in at_shown.values())]])
    print(f"\nthe page: {megabytes(result['page_bytes']['median'])}; memory at most: {megabytes(result['peak_bytes']['max'])};"
          f" the page's objects: {megabytes(result['heap_bytes']['max'])}")
    print(f"{result['lanes']['median']:.0f} lanes scroll by at {result['pictures_per_s']['median']:.0f} pictures a second")
    return {"recording": facts, "rounds": rounds, **result}


# While all lanes scroll by, so many pictures are drawn; how many that is a second.
SCROLL = """new Promise((done) => {
  const box = document.getElementById("timeline");
  const [begin, pictures] = [performance.now(), 90];
  let count = 0;
  const step = () => {
    box.scrollTop = (box.scrollHeight * ++count) / pictures;
    if (count < pictures) requestAnimationFrame(step);
    else done((1000 * pictures) / (performance.now() - begin));
  };
  requestAnimationFrame(step);
})"""
SETTLE_S = 3
CHECK = "JSON.parse(document.getElementById('selfcheck').textContent)"


def samples_of(bench, recording):
    """How many samples kymo reads of it: perf takes minutes for a large one."""
    answer = json.loads(output([bench.kymo, "query", recording, "events", "--json", "-q"]))
    return sum(event["samples"] or 0 for event in answer["events"])


def look(bench, args, recording):
    """One look: in the browser, and by requests."""
    with Tab() as tab:
        # A user's browser runs already: what it does at its start is not measured.
        tab.show("data:text/html,<output id=selfcheck>ready</output>")
        time.sleep(SETTLE_S)
        return look_with(bench, args, recording, tab)


def in_browser(tab, dice, ranges):
    """What the page does, once it is drawn: selections, and scrolling."""
    length = tab.evaluate(f"{CHECK}.durationNs")
    took = []
    for _ in range(ranges):
        first, last = sorted(dice.randrange(length) for _ in range(2))
        asked = time.perf_counter()
        tab.evaluate(f"location.hash = 'range={first}-{last + 1000}'")
        tab.wait(f"{CHECK}.exact && {CHECK}.range?.[0] === {first}")
        took.append(time.perf_counter() - asked)
    tab.evaluate("location.hash = ''")
    return {"shown_selection_s": took, "lanes": tab.evaluate(f"{CHECK}.lanes"), "pictures_per_s": tab.evaluate(SCROLL),
            "heap_bytes": tab.heap_bytes()}


def look_with(bench, args, recording, tab):
    begin, clock = time.perf_counter(), time.time()
    command = [str(bench.kymo), "view", "--no-open", "-q", str(recording)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        address = server.stdout.readline().strip()
        address_s = time.perf_counter() - begin
        tab.show(address)
        first_is_part = tab.evaluate(f"{CHECK}.isPart")
        tab.wait(f"!{CHECK}.isPart")
        # By the page's own clock: when it had drawn something, and all of it.
        drawn = tab.evaluate(f"{CHECK}.drawn")
        seen = {"first_is_part": int(first_is_part), **{f"{what}_s": at / 1000 - clock for what, at in drawn.items()},
                **in_browser(tab, random.Random(2), args.selections)}
        base, token = address.split("/?token=")

        def get(path):
            asked = time.perf_counter()
            request = urllib.request.Request(base + path, headers={"X-Kymo-Token": token})
            with urllib.request.urlopen(request) as answer:
                body = answer.read()
            return time.perf_counter() - asked, body

        page_s, page = get("/profile?after=0")
        length = json.loads(page)["durationNs"]
        dice, took = random.Random(1), []
        for _ in range(args.selections):
            first, last = sorted(dice.randrange(length) for _ in range(2))
            one, sums = get(f"/select?event=0&from={first}&until={last}")
            assert "samples" in json.loads(sums)
            took.append(one)
        status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
        server.send_signal(signal.SIGINT)
    return {**seen, "address_s": address_s, "page_s": page_s, "page_bytes": len(page), "selection_s": took,
            "peak_bytes": int(re.search(r"VmHWM:\s*(\d+)", status).group(1)) * 1024}
