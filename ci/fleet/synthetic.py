"""A small dataset by the layout, made without kymo: hosts, days, services and waits that hold what is awkward.

It has names that are missing in one file and there in another, the same stacks and hosts in several files, inlined
functions, recursion, two builds of a program, quotes and letters beyond ASCII, services that look like numbers, two
clocks that count the same time, and files of an older kymo, without the newest columns and compressed by snappy.
"""

import datetime
import hashlib
import pathlib
import random
import sys

import pyarrow as pa
import pyarrow.parquet as pq

UTC = pa.timestamp("us", tz="UTC")
NOT_NULL = {"nullable": False}
SCHEMAS = {
    "samples": pa.schema([
        pa.field("time", UTC, **NOT_NULL), pa.field("host_id", pa.int64(), **NOT_NULL),
        pa.field("pid", pa.int32(), **NOT_NULL), pa.field("tid", pa.int32()),
        pa.field("command", pa.string(), **NOT_NULL), pa.field("container", pa.string()),
        pa.field("pod", pa.string()), pa.field("systemd_unit", pa.string()),
        pa.field("event", pa.string(), **NOT_NULL), pa.field("value_unit", pa.string(), **NOT_NULL),
        pa.field("state", pa.string(), **NOT_NULL), pa.field("stack_id", pa.int64(), **NOT_NULL),
        pa.field("value", pa.int64(), **NOT_NULL), pa.field("samples", pa.int64(), **NOT_NULL),
        pa.field("leaf_location_id", pa.int64()), pa.field("waker", pa.string()),
    ]),
    "stacks": pa.schema([
        pa.field("stack_id", pa.int64(), **NOT_NULL), pa.field("depth", pa.int32(), **NOT_NULL),
        pa.field("location_id", pa.int64(), **NOT_NULL),
    ]),
    "frames": pa.schema([
        pa.field("location_id", pa.int64(), **NOT_NULL), pa.field("inline_depth", pa.int32(), **NOT_NULL),
        pa.field("function", pa.string()), pa.field("file", pa.string()), pa.field("line", pa.int32()),
        pa.field("module", pa.string(), **NOT_NULL), pa.field("build_id", pa.string()),
        pa.field("address", pa.int64(), **NOT_NULL), pa.field("kind", pa.string(), **NOT_NULL),
    ]),
    "builds": pa.schema([
        pa.field("build_id", pa.string(), **NOT_NULL), pa.field("path", pa.string(), **NOT_NULL),
        pa.field("module", pa.string(), **NOT_NULL), pa.field("arch", pa.string(), **NOT_NULL),
        pa.field("first_seen", UTC, **NOT_NULL), pa.field("code_bias", pa.int64()),
    ]),
    "hosts": pa.schema([
        pa.field("host_id", pa.int64(), **NOT_NULL), pa.field("host", pa.string(), **NOT_NULL),
        pa.field("kernel", pa.string(), **NOT_NULL), pa.field("arch", pa.string(), **NOT_NULL),
        pa.field("cpus", pa.int32(), **NOT_NULL), pa.field("rate_hz", pa.float64(), **NOT_NULL),
        pa.field("kymo_version", pa.string(), **NOT_NULL), pa.field("first_seen", UTC, **NOT_NULL),
    ]),
}
NEWEST = ["leaf_location_id", "waker"]
SERVICES = ["web", "database", "007", "queue@1"]
STATES = ["lock", "disk", "timer", "idle: condition"]
WAKERS = {"lock": ["web", "queue@1-worker", "it's", None], "disk": ["a disk"], "timer": ["a timer"]}
FUNCTIONS = ["main", "serve", "parse", "Straße::prüfe", 'say("hi")', "it's", "sort", "hash", "a; b", "read"]


def content_id(*parts):
    """63 bits of a hash, as the writer has it: the same on every host."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def write(dataset: pathlib.Path, table: str, folder: str, host_id: int, number: int, rows, is_old=False):
    """One file of a table. `is_old`: as a kymo wrote it that did not know the newest columns."""
    place = dataset / table / folder
    place.mkdir(parents=True, exist_ok=True)
    schema = SCHEMAS[table]
    if is_old:
        schema = pa.schema([field for field in schema if field.name not in NEWEST])
    columns = [[row[name] for row in rows] for name in schema.names]
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema)]
    path = place / f"{host_id:016x}-{number:019}-0.parquet"
    with pq.ParquetWriter(path, schema, compression="snappy" if is_old else "zstd", store_schema=False) as file:
        file.write_table(pa.Table.from_arrays(arrays, schema=schema))
        file.add_key_value_metadata({"kymo.schema": "1", "kymo.table": table, "kymo.host": f"host of {host_id:x}"})


class Program:
    """Locations, frames and stacks of one build of a service."""

    def __init__(self, service, build):
        self.module = service if service != "queue@1" else "libqueue.so.1"
        self.build_id = f"{content_id(service, build):016x}"
        self.random = random.Random(f"{service} {build}")
        self.frames, self.stacks = [], {}
        locations = [self.location(number) for number in range(24)]
        kernel = self.kernel_location()
        for number in range(40):
            depth = self.random.randrange(1, 60 if number % 13 == 0 else 9)
            chain = [self.random.choice(locations) for _ in range(depth)]
            if number % 5 == 0:
                chain.insert(0, kernel)
            self.stacks[content_id(*chain)] = chain

    def location(self, number):
        location = content_id(self.build_id, number)
        names = self.random.sample(FUNCTIONS, self.random.choice([1, 1, 2, 3]))
        for inline_depth, name in enumerate(names):
            self.frames.append({
                "location_id": location, "inline_depth": inline_depth, "function": name, "file": f"{self.module}.c",
                "line": number, "module": self.module, "build_id": self.build_id, "address": number * 16,
                "kind": "user",
            })
        return location

    def kernel_location(self):
        location = content_id("kernel", self.module)
        self.frames.append({
            "location_id": location, "inline_depth": 0, "function": "schedule", "file": None, "line": None,
            "module": "[kernel.kallsyms]", "build_id": None, "address": 64, "kind": "kernel",
        })
        return location

    def nameless(self):
        """The frames as a host writes them that has no symbols: one for each location."""
        first = [frame for frame in self.frames if frame["inline_depth"] == 0]
        return [frame | {"function": None, "file": None, "line": None} for frame in first]


def sample(chance, when, host_id, service, stacks, state):
    """One row of samples. `stacks`: locations by stack, innermost first."""
    stack = chance.choice(list(stacks))
    count = chance.randrange(1, 20)
    is_timed = state != "on-cpu"
    return {
        "time": when, "host_id": host_id, "pid": chance.randrange(1, 400), "tid": None,
        "command": chance.choice([service, f"{service}-worker"]),
        "container": chance.choice([None, f"{service}-1"]), "pod": chance.choice([None, f"pod-{service}"]),
        "systemd_unit": chance.choice([None, f"{service}.service"]),
        "event": "wall-time" if is_timed else "cpu-clock", "value_unit": "ns", "state": state,
        "stack_id": stack,
        "value": chance.randrange(1, 10**9) if is_timed else count * 52_631_579, "samples": count,
        "leaf_location_id": stacks[stack][0], "waker": chance.choice(WAKERS.get(state, [None])),
    }


def with_second_clock(chance, rows):
    """The rows, and most of those of the clock once more as another clock has them."""
    of_clock = [row for row in rows if row["event"] == "cpu-clock" and chance.random() < 0.9]
    return rows + [row | {"event": "task-clock", "value": row["value"] - 7} for row in of_clock]


def make(dataset: pathlib.Path, hosts=4, days=4, minutes=20, seed=1):
    """Writes the dataset; the number of samples."""
    chance = random.Random(seed)
    programs = {(service, build): Program(service, build) for service in SERVICES for build in (1, 2)}
    total = 0
    for host in range(hosts):
        host_id = content_id("host", host)
        for day in range(days):
            start = datetime.datetime(2026, 11, 20 + day, 8, tzinfo=datetime.timezone.utc)
            number = int(start.timestamp()) * 10**9
            name = f"day={start.date()}"
            write(dataset, "hosts", "", host_id, number, [{
                "host_id": host_id, "host": f"host-{host:03}", "kernel": "6.1.0", "arch": "x86_64",
                "cpus": 2 + host, "rate_hz": 19.0, "kymo_version": "0.1.0", "first_seen": start,
            }])
            build = 1 if day < days // 2 else 2
            frames, stacks, builds = [], [], []
            for service in SERVICES:
                program = programs[service, build]
                has_names = (host + day) % 3 != 0 or service == "007"
                frames += program.frames if has_names and service != "queue@1" else program.nameless()
                for stack_id, chain in program.stacks.items():
                    stacks += [
                        {"stack_id": stack_id, "depth": depth, "location_id": location}
                        for depth, location in enumerate(chain)
                    ]
                builds.append({
                    "build_id": program.build_id, "path": f"/usr/bin/{service}", "module": program.module,
                    "arch": "x86_64", "first_seen": start, "code_bias": None,
                })
                chosen = {stack: program.stacks[stack] for stack in sorted(program.stacks)[host % 2:]}
                rows = [
                    sample(chance, start + datetime.timedelta(minutes=minute), host_id, service, chosen, state)
                    for minute in range(minutes)
                    for state in ["on-cpu"] * 6 + [chance.choice(STATES)]
                ]
                rows = with_second_clock(chance, rows)
                total += sum(row["samples"] for row in rows)
                # Those of the first host are read before others, those of the last one after them.
                is_old = host in (0, hosts - 1) and day == 0
                write(dataset, "samples", f"{name}/service={service}", host_id, number, rows, is_old)
            write(dataset, "stacks", name, host_id, number, stacks)
            write(dataset, "frames", "", host_id, number, frames)
            write(dataset, "builds", "", host_id, number, builds)
    return total


if __name__ == "__main__":
    print(f"{make(pathlib.Path(sys.argv[1]))} samples")
