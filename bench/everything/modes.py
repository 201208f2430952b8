"""One program, unprobed and in each mode: is everything the same?"""

import dataclasses
import os
import shutil
import time
from pathlib import Path

# How probes come: all before main, for good; group after group, so that each function is probed among few; at random.
HOW = ["all", "each", "random"]
# What they do: `mixed` changes it from one attach to the next.
DO = ["count", "returns", "latency", "record", "mixed"]


# One after another takes as many runs of the program as it takes until each function has had its turn, but not more than these.
MOST_RUNS = 60


@dataclasses.dataclass
class Report:
    """What the preloaded libraries of all processes of one run wrote (examples/everything/report.rs), summed."""

    modules: dict
    totals: dict
    hits: dict

    @property
    def functions(self):
        return sum(module["functions"] for module in self.modules.values())

    @property
    def served(self):
        return sum(module["served"] for module in self.modules.values())


TOTALS = ["placed", "attaches", "detaches", "failed", "cycles", "hits", "returns", "missed", "lost"]


def read_report(folder):
    modules, totals, hits = {}, dict.fromkeys(TOTALS, 0), {}
    for file in sorted(Path(folder).iterdir()):
        if file.suffix == ".new":
            continue
        paths = {}
        for line in file.read_text().splitlines():
            words = line.split(" ", 5)
            if words[0] == "module":
                number, functions, served, parts, path = words[1], *map(int, words[2:5]), words[5]
                paths[number] = path
                modules[path] = {"path": path, "functions": functions, "served": served, "parts": parts, "refused": {}}
            elif words[0] == "refused":
                modules[paths[words[1]]]["refused"][words[2]] = int(words[3])
            elif words[0] == "done":
                values = map(int, line.split()[1:])
                for key, value in zip(TOTALS, values):
                    # Functions and rounds are of one process: the one that had most.
                    totals[key] = max(totals[key], value) if key in ("placed", "cycles") else totals[key] + value
            elif words[0] == "hit":
                module, offset, count, returns = line.split()[1:]
                key = (paths[module], int(offset, 16))
                old = hits.get(key, (0, None))
                # None: nobody looked at its returns.
                hits[key] = (old[0] + int(count), old[1] if returns == "-" else (old[1] or 0) + int(returns))
    return Report(modules, totals, hits)


def environment(library, modules, do, how, report, **more):
    env = dict(os.environ)
    env.update(LD_PRELOAD=str(library), KYMO_EVERYTHING=",".join(modules), KYMO_EVERYTHING_DO=do, KYMO_EVERYTHING_HOW=how,
               KYMO_EVERYTHING_REPORT=str(report))
    env.update({f"KYMO_EVERYTHING_{key.upper()}": str(value) for key, value in more.items()})
    return env


def run(program, hows, dos, scratch, library, say, seed=0, group=1):
    """Runs it in all modes that are asked for; a list of results."""
    for _ in range(3):
        begin = time.monotonic()
        wanted = program.run(dict(os.environ))
        bare = time.monotonic() - begin
        # Suites of tests fail by themselves on a machine that is too busy.
        if not program.retries or wanted.status == 0:
            break
    say(f"{program.name}: {bare:.1f} s unprobed, status {wanted.status}")
    results = []
    for how in hows:
        for do in dos:
            if do not in program.dos or how not in program.hows:
                continue
            # It is for what comes and goes: what stays is covered by the others.
            if do == "mixed" and how != "random" and len(dos) > 1:
                continue
            report = scratch / "report"
            shutil.rmtree(report, ignore_errors=True)
            report.mkdir()
            report.chmod(0o777)
            more = {"seed": seed}
            if how == "each":
                more["group"] = group
            if how != "all" or not program.children:
                more["only"] = 1
            env = environment(library, program.modules, do, how, report, **more)
            begin = time.monotonic()
            repeated, runs = None, 0
            while True:
                got = program.run(env)
                runs += 1
                if program.retries and (got.status, got.text) != (wanted.status, wanted.text) and got.status > 0 and repeated is None:
                    # Told in the result: a second run with the same probes decides.
                    repeated, got = got.said[-2000:], program.run(env)
                told = read_report(report)
                same = (got.status, got.text) == (wanted.status, wanted.text)
                if how != "each" or not same or len(told.hits) >= told.served or runs == MOST_RUNS:
                    break
                # The next run's processes may have the same numbers.
                for file in [file for file in report.iterdir() if "-" not in file.name and not file.suffix]:
                    file.rename(report / f"{runs}-{file.name}")
            seconds = time.monotonic() - begin
            if how == "each":
                told.totals["placed"] = len(told.hits)
            outcome = got.compared(wanted, seconds)
            if outcome == "same" and told.totals["attaches"] == 0:
                outcome = "nothing was probed"
            elif outcome == "same" and how == "each" and told.totals["placed"] < told.served:
                outcome = f"{told.served - told.totals['placed']} of them were never probed"
            result = {"program": program.name, "how": how, "do": do, "functions": told.functions, "served": told.served, **told.totals,
                      **more, "runs": runs, "seconds": round(seconds, 2), "bare_seconds": round(bare, 2), "outcome": outcome,
                      "modules": list(told.modules.values())}
            if repeated is not None:
                result["repeated_after"] = repeated
                result["outcome"] = outcome = f"{outcome}, repeated"
            if not outcome.startswith("same"):
                result["difference"] = difference(wanted.text, got.text)
                result["said"] = got.said[-2000:]
            say(f"{program.name}: {how}, {do}: {outcome}, {seconds:.1f} s, {told.totals['placed']:,} of {told.functions:,} functions, "
                f"{told.totals['attaches']:,} attaches, {told.totals['hits']:,} hits")
            results.append(result)
    return results


def difference(wanted, got):
    """The first lines that differ."""
    lines = zip(wanted.splitlines() + ["<end>"], got.splitlines() + ["<end>"])
    for number, (one, other) in enumerate(lines):
        if one != other:
            return f"line {number}: {one[:200]!r} became {other[:200]!r}"
    return "length"
