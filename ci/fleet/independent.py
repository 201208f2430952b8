"""The answers of deploy/queries, computed from the files of a dataset row by row: no SQL, and no engine.

    python3 -m ci.fleet.independent DATASET     # each answer as a line of JSON
"""

import collections
import json
import pathlib
import sys

import pyarrow.parquet as pq

MINUTE_US = 60_000_000


def rows_of(dataset, table):
    """Rows of all files; columns that a file does not have are None, partitions are texts."""
    found = []
    for path in sorted(pathlib.Path(dataset, table).rglob("*.parquet")):
        parts = dict(part.split("=", 1) for part in path.relative_to(dataset).parts if "=" in part)
        found += [collections.defaultdict(lambda: None, row | parts) for row in pq.ParquetFile(path).read().to_pylist()]
    return found


def sums(rows, key, value="value"):
    """The sum of a column by key."""
    found = collections.Counter()
    for row in rows:
        found[key(row)] += row[value]
    return found


def share(part, whole):
    """In percent."""
    return 100 * part / whole


def first(rows, order, limit=50):
    """The first rows of an order, as lists."""
    return [list(row) for row in sorted(rows, key=order)[:limit]]


class Dataset:
    """The tables, and what the views make of them."""

    def __init__(self, folder):
        self.samples, self.hosts, self.builds = (rows_of(folder, table) for table in ("samples", "hosts", "builds"))
        names, modules, self.build_of = {}, {}, {}
        for row in rows_of(folder, "frames"):
            at = row["location_id"], row["inline_depth"]
            names[at] = max(filter(None, [names.get(at), row["function"]]), default=None)
            modules[at] = max(modules.get(at, ""), row["module"])
            self.build_of[at[0]] = max(filter(None, [self.build_of.get(at[0]), row["build_id"]]), default=None)
        self.inlined = collections.defaultdict(list)
        for at in sorted(names):
            bracketed = modules[at] if modules[at].startswith("[") else f"[{modules[at]}]"
            self.inlined[at[0]].append((names[at] or bracketed, modules[at]))
        chains = collections.defaultdict(dict)
        for row in rows_of(folder, "stacks"):
            chains[row["stack_id"]][row["depth"]] = row["location_id"]
        # Innermost first: depth by depth, and the inlined functions of each location.
        self.stacks = {
            stack: [frame for depth in sorted(chain) for frame in self.inlined[chain[depth]]]
            for stack, chain in chains.items()
        }

    def counted(self, is_state=lambda state: state == "on-cpu"):
        """The rows of one event: that with most samples."""
        rows = [row for row in self.samples if is_state(row["state"])]
        by_event = sums(rows, lambda row: row["event"], "samples")
        event = min(by_event, key=lambda name: (-by_event[name], name))
        return [row for row in rows if row["event"] == event]

    def counted_of_hosts(self, rows):
        """The rows of one event of each host: a clock, and that with most samples."""
        by_event = sums(rows, lambda row: (row["host_id"], row["value_unit"] != "ns", row["event"]), "samples")
        best = {}
        for (host, is_count, event), samples in by_event.items():
            best[host] = min(best.get(host, (True, 0, "~")), (is_count, -samples, event))
        return [row for row in rows if row["event"] == best[row["host_id"]][2]]

    def innermost(self, row):
        """Function and module of a row's innermost function, if its location is known."""
        frames = self.inlined.get(row["leaf_location_id"])
        return frames and frames[0]

    def own(self, rows, value="value", *more):
        """Own values by function and module, and by further columns before them."""
        known = [row for row in rows if self.innermost(row)]
        return sums(known, lambda row: (*(row[name] for name in more), *self.innermost(row)), value)


def top_functions(data):
    rows = data.counted()
    own, samples = data.own(rows), data.own(rows, "samples")
    whole = sum(own.values())
    answer = [(*key, value, samples[key], share(value, whole)) for key, value in own.items()]
    return first(answer, lambda row: (-row[2], row[0], row[1]))


def total_functions(data):
    total, own = collections.Counter(), collections.Counter()
    for stack, value in sums(data.counted(), lambda row: row["stack_id"]).items():
        frames = data.stacks.get(stack, [])
        for frame in set(frames):
            total[frame] += value
            own[frame] += value if frame == frames[0] else 0
    whole = sum(own.values())
    answer = [(*frame, value, own[frame], share(value, whole)) for frame, value in total.items()]
    return first(answer, lambda row: (-row[2], row[0], row[1]))


def modules(data):
    rows = [row for row in data.counted() if data.innermost(row)]
    value, unnamed, places = collections.Counter(), collections.Counter(), collections.defaultdict(set)
    for row in rows:
        function, module = data.innermost(row)
        value[module] += row["value"]
        is_unnamed = function == f"[{module}]" or (function == module and module.startswith("["))
        unnamed[module] += row["value"] if is_unnamed else 0
        places[module].add(row["leaf_location_id"])
    whole = sum(value.values())
    answer = [
        (name, len(places[name]), sum_of, share(sum_of, whole), share(unnamed[name], sum_of))
        for name, sum_of in value.items()
    ]
    return first(answer, lambda row: (-row[2], row[0]))


def units(data):
    rows = [row for row in data.samples if row["state"] == "on-cpu" and row["value_unit"] == "ns"]
    rows = data.counted_of_hosts(rows)
    key = lambda row: (row["pod"] or "", row["container"] or "", row["systemd_unit"] or "", row["service"])
    hosts = collections.defaultdict(set)
    for row in rows:
        hosts[key(row)].add(row["host_id"])
    found = sums(rows, key)
    whole = sum(found.values())
    answer = [(*unit, len(hosts[unit]), ns / 1e9, share(ns, whole)) for unit, ns in found.items()]
    return first(answer, lambda row: (-row[5], *row[:4]))


def hosts(data):
    rows = data.counted_of_hosts([row for row in data.samples if row["state"] == "on-cpu"])
    facts = {}
    for row in data.hosts:
        names = (row["host"], row["kernel"], row["cpus"], row["rate_hz"])
        facts[row["host_id"]] = tuple(map(max, zip(facts.get(row["host_id"], names), names)))
    answer = []
    for host, (name, kernel, cpus, rate) in facts.items():
        of_host = [row for row in rows if row["host_id"] == host]
        minutes = len({int(row["time"].timestamp()) // 60 for row in of_host})
        ns = sum(row["value"] for row in of_host if row["value_unit"] == "ns")
        count = sum(row["samples"] for row in of_host)
        if of_host:
            answer.append((name, kernel, cpus, rate, minutes, count, ns / 1e9, share(ns, 6e10 * minutes * cpus), host))
    return [row[:-1] for row in first(answer, lambda row: (row[0], row[-1]), limit=None)]


def flame_graph(data):
    found = collections.Counter()
    for stack, value in sums(data.counted(), lambda row: row["stack_id"]).items():
        names = [function for function, _ in reversed(data.stacks.get(stack, []))][:48]
        if names:
            found[";".join(names)] += value
    return first(found.items(), lambda row: row[0], limit=None)


def shares_of(own):
    whole = sum(own.values())
    return {key: share(value, whole) for key, value in own.items()}


def differing_hosts(data):
    rows = data.counted()
    fleet = shares_of(data.own(rows))
    names = {row["host_id"]: row["host"] for row in data.hosts}
    answer = []
    for host, name in names.items():
        of_host = shares_of(data.own([row for row in rows if row["host_id"] == host]))
        for key, percent in fleet.items():
            if percent >= 1 and of_host:
                own = of_host.get(key, 0)
                answer.append((name, *key, own, percent, own - percent))
    return first(answer, lambda row: (-abs(row[5]), *row[:3]))


def changed_days(data):
    rows = data.counted()
    old_day, new_day = sorted({row["day"] for row in data.samples})[-2:]
    old, new = (data.own([row for row in rows if row["day"] == day]) for day in (old_day, new_day))
    old_shares, new_shares = shares_of(old), shares_of(new)
    answer = []
    for key in old.keys() | new.keys():
        before, after = old_shares.get(key, 0), new_shares.get(key, 0)
        answer.append((*key, old[key], new[key], before, after, after - before))
    return first(answer, lambda row: (-abs(row[6]), row[0], row[1]))


def changed_builds(data):
    seen = {}
    for row in data.builds:
        key = row["module"], row["build_id"]
        seen[key] = min(seen.get(key, row["first_seen"]), row["first_seen"])
    by_module = collections.defaultdict(list)
    for (module, build), when in seen.items():
        by_module[module].append((-when.timestamp(), build))
    answer = []
    for module, builds in by_module.items():
        if len(builds) < 2:
            continue
        new_build, old_build = (build for _, build in sorted(builds)[:2])
        sides = []
        for build in (old_build, new_build):
            rows = [row for row in data.counted() if data.build_of.get(row["leaf_location_id"]) == build]
            sides.append({key: value for key, value in data.own(rows).items() if key[1] == module})
        if all(sum(side.values()) > 0 for side in sides):
            old, new = map(shares_of, sides)
            for key in old.keys() | new.keys():
                before, after = old.get(key, 0), new.get(key, 0)
                answer.append((module, key[0], old_build, new_build, before, after, after - before))
    return first(answer, lambda row: (-abs(row[6]), row[0], row[1]))


def rising_functions(data):
    by_day = data.own(data.counted(), "value", "day")
    days = sorted({key[0] for key in by_day})
    shares = [shares_of({key[1:]: value for key, value in by_day.items() if key[0] == day}) for day in days]
    answer = []
    for key in {key[1:] for key in by_day}:
        percents = [share_of.get(key, 0) for share_of in shares]
        pairs = list(zip(percents, percents[1:]))
        ups, downs = sum(new > old for old, new in pairs), sum(new < old for old, new in pairs)
        if percents[-1] > percents[0]:
            answer.append((*key, ups, downs, percents[0], percents[-1], percents[-1] - percents[0]))
    return first(answer, lambda row: (-row[6], row[0], row[1]))


def neighbours(data):
    rows = data.counted()
    own = collections.Counter()
    for (function, _), value in data.own(rows).items():
        own[function] += value
    target = min(own, key=lambda name: (-own[name], name))
    found = collections.Counter()
    for stack, value in sums(rows, lambda row: row["stack_id"]).items():
        frames, pairs = data.stacks.get(stack, []), set()
        for at, (function, _) in enumerate(frames):
            if function == target:
                pairs.add(("caller", *(frames[at + 1] if at + 1 < len(frames) else ("(none)", ""))))
                pairs.add(("callee", *(frames[at - 1] if at else ("(self)", ""))))
        for pair in pairs:
            found[pair] += value
    answer = [(target, *pair, value) for pair, value in found.items()]
    return first(answer, lambda row: (row[1] == "callee", -row[4], row[2], row[3]), limit=100)


def waiting(data):
    rows = data.counted(lambda state: state != "on-cpu")
    value, count = collections.Counter(), collections.Counter()
    for row in rows:
        of_program = [function for function, module in data.stacks.get(row["stack_id"], []) if not module.startswith("[")]
        key = row["service"], row["command"], row["state"], (of_program or [""])[0], row["waker"] or ""
        value[key] += row["value"]
        count[key] += row["samples"]
    whole = sum(value.values())
    answer = [(*key, waited, count[key], share(waited, whole)) for key, waited in value.items()]
    return first(answer, lambda row: (-row[5], *row[:5]))


ANSWERS = [
    changed_builds, changed_days, differing_hosts, flame_graph, hosts, modules, neighbours, rising_functions,
    top_functions, total_functions, units, waiting,
]


def main():
    data = Dataset(sys.argv[1])
    for answer in ANSWERS:
        print(json.dumps({"query": answer.__name__.replace("_", "-"), "rows": answer(data)}))


if __name__ == "__main__":
    main()
