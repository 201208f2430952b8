"""A large dataset of simulated hosts, whose samples are drawn from the stacks of a recording.

    kymo export --to folded --no-inline -o stacks.txt perf.data
    target/fleet-engines/bin/python -m ci.fleet.simulated stacks.txt DIR --hosts 100 --minutes 440 --rate 2280

Each host takes RATE samples a minute, as often from each stack as the recording has it, and adds up those of a minute that
are alike. Rows, encodings and their order are as kymo writes them; the program that writes them is pyarrow. At its end it
says how many samples and nanoseconds were written: the sums that a query must find. It needs numpy.
"""

import argparse
import collections
import datetime
import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from .synthetic import SCHEMAS, content_id

START = datetime.datetime(2026, 11, 26, tzinfo=datetime.timezone.utc)
START_US = int(START.timestamp()) * 1_000_000
DAY = "day=2026-11-26"
PERIOD_NS = 52_631_579  # 19 Hz
NAMED_SERVICES = 8
OTHERS = "system"


class Recorded:
    """The stacks of a recording as rows, the same for every host."""

    def __init__(self, lines):
        folded = [line.rstrip("\n").rsplit(" ", 1) for line in lines]
        self.commands = [stack.split(";", 1)[0] for stack, _ in folded]
        weights = np.array([int(count) for _, count in folded], float)
        self.weights = weights / weights.sum()
        self.frames, locations, chains = [], {}, []
        for command, (stack, _) in zip(self.commands, folded):
            names = stack.split(";")[:0:-1]
            chains.append([self.location(locations, command, name) for name in names])
        self.ids = np.array([content_id(*chain) for chain in chains])
        by_id = dict(zip(self.ids.tolist(), chains))
        sorted_ids = sorted(by_id, key=lambda stack: by_id[stack][::-1])
        self.stacks = [(stack, depth, at) for stack in sorted_ids for depth, at in enumerate(by_id[stack])]
        self.frames.sort(key=lambda frame: (frame[5], frame[7]))
        self.modules = sorted(set(self.commands))
        self.pids = np.array([content_id(command) % 30_000 + 1 for command in self.commands], dtype=np.int32)
        self.module_of = np.array([self.modules.index(command) for command in self.commands], dtype=np.int32)
        self.services, self.service_of = self.services_of(folded)

    def location(self, known, command, name):
        if (command, name) not in known:
            known[command, name] = content_id(command, name)
            build_id, address = f"{content_id(command):016x}", content_id(name) >> 20
            self.frames.append((known[command, name], 0, name, None, None, command, build_id, address, "user"))
        return known[command, name]

    def services_of(self, folded):
        """The commands that have most are services of their own."""
        counts = collections.Counter()
        for command, (_, count) in zip(self.commands, folded):
            counts[command] += int(count)
        named = {command for command, _ in counts.most_common(NAMED_SERVICES)}
        safe = lambda name: "".join(c if c.isascii() and (c.isalnum() or c in "._-@") else "_" for c in name)
        names = [safe(command) if command in named else OTHERS for command in self.commands]
        services = sorted(set(names))
        return services, np.array([services.index(name) for name in names])


def write(dataset, table, folder, name, host, columns, **encoding):
    """One file of a table, as `crates/kymo-dataset/src/encode.rs` encodes it."""
    place = dataset / table / folder
    place.mkdir(parents=True, exist_ok=True)
    schema = SCHEMAS[table].with_metadata({"kymo.schema": "1", "kymo.table": table, "kymo.host": host})
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, type=field.type)
        for column, field in zip(columns, schema)
    ]
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema), place / name, compression="zstd", compression_level=3,
        store_schema=False, row_group_size=1 << 20, dictionary_pagesize_limit=16 << 20, **encoding,
    )


def columns_of(recorded: Recorded):
    """The columns of stacks, frames and builds."""
    stacks = [[row[at] for row in recorded.stacks] for at in range(3)]
    frames = [[row[at] for row in recorded.frames] for at in range(9)]
    modules = recorded.modules
    builds = [
        [f"{content_id(module):016x}" for module in modules], [f"/usr/bin/{module}" for module in modules], modules,
        ["x86_64"] * len(modules), [START] * len(modules),
    ]
    return stacks, frames, builds


def write_samples(dataset, recorded, name, host, host_id, minutes, stacks, counts):
    """The rows of a host, a file for each service, in the order of event, process, time and stack."""
    for number, service in enumerate(recorded.services):
        rows = np.nonzero(recorded.service_of[stacks] == number)[0]
        if not len(rows):
            continue
        rows = rows[np.lexsort((stacks[rows], minutes[rows], recorded.module_of[stacks[rows]]))]
        of, count = stacks[rows], len(rows)
        text = lambda codes, words: pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(words)).cast(pa.string())
        same = lambda word: text(np.zeros(count, np.int32), [word])
        no_text = pa.nulls(count, pa.string())
        moments = pa.array(START_US + minutes[rows] * 60_000_000).cast(pa.timestamp("us", tz="UTC"))
        columns = [
            moments, pa.array(np.full(count, host_id)), pa.array(recorded.pids[of]), pa.nulls(count, pa.int32()),
            text(recorded.module_of[of], recorded.modules), no_text, no_text, no_text, same("cpu-clock"), same("ns"),
            same("on-cpu"), pa.array(recorded.ids[of]), pa.array(counts[rows] * PERIOD_NS), pa.array(counts[rows]),
        ]
        write(
            dataset, "samples", f"{DAY}/service={service}", name, host, columns,
            use_dictionary=[column for column in SCHEMAS["samples"].names if column != "time"],
            column_encoding={"time": "DELTA_BINARY_PACKED"},
        )


def main():
    parser = argparse.ArgumentParser(description="Write a dataset of simulated hosts.")
    parser.add_argument("folded", type=pathlib.Path, help="stacks of a recording, by `kymo export --to folded`")
    parser.add_argument("dataset", type=pathlib.Path)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--minutes", type=int, default=440)
    parser.add_argument("--rate", type=int, default=2280, help="samples a minute of each host")
    args = parser.parse_args()
    with open(args.folded) as lines:
        recorded = Recorded(lines)
    stacks, frames, builds = columns_of(recorded)
    chance = np.random.default_rng(1)
    sample_count = row_count = 0
    for number in range(args.hosts):
        host, host_id = f"host-{number:04}", content_id("host", number)
        name = f"{host_id:016x}-{START_US * 1000:019}-0.parquet"
        about = [[host_id], [host], ["6.1.0"], ["x86_64"], [4], [19.0], ["0.1.0"], [START]]
        write(args.dataset, "hosts", "", name, host, about)
        write(args.dataset, "builds", "", name, host, builds)
        words = ["function", "file", "module", "build_id", "kind"]
        write(args.dataset, "frames", "", name, host, frames, use_dictionary=words)
        write(args.dataset, "stacks", DAY, name, host, stacks, use_dictionary=["stack_id"])
        drawn = chance.choice(len(recorded.weights), size=args.minutes * args.rate, p=recorded.weights)
        minute = np.repeat(np.arange(args.minutes), args.rate)
        pairs, counts = np.unique(minute * len(recorded.weights) + drawn, return_counts=True)
        minutes, of = np.divmod(pairs, len(recorded.weights))
        write_samples(args.dataset, recorded, name, host, host_id, minutes, of, counts)
        sample_count += int(counts.sum())
        row_count += len(pairs)
    print(f"{sample_count} samples in {row_count} rows, {sample_count * PERIOD_NS} ns")


if __name__ == "__main__":
    main()
