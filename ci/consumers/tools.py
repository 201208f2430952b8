"""The tools: each reads a file that kymo wrote, and says what it found."""

import json
import os
import pathlib
import re
import subprocess
import time

from .dataset import DuckDb, PyArrow
from .install import COLLECTOR
from .perfetto import Chrome, Perfetto
from .report import Mismatch, Sums, compare


class Pprof:
    """`pprof -top`, function by function, of every kind of value."""

    LINE = re.compile(r"^ *(\S+) +\S+% +\S+% +(\S+) +\S+%  (.*)$")

    def __init__(self, installed):
        self.program = installed.go("pprof")

    def compare(self, kymo, recording, folder):
        file = kymo.export(recording, "pprof", folder / "profile.pb.gz")
        events = kymo.events(recording)
        count = 0
        for number, event in enumerate(events):
            of_samples = "samples" if len(events) == 1 else f"{event}_samples"
            for kind, what in ((of_samples, "samples"), (event, "period")):
                found = self.top(file, kind, folder)
                count += compare(kymo.sums(recording, number, what), found, f"{event}, {what}")
        self.peek(file, folder)
        return count

    def run(self, options, file, folder):
        """Without files of the recorded machine, and without those of an earlier run."""
        environment = os.environ | {"PPROF_TMPDIR": str(folder), "PPROF_BINARY_PATH": str(folder)}
        command = [self.program, *options, "-symbolize=none", file]
        ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if ran.returncode != 0:
            raise Mismatch(f"pprof {options}: {ran.stderr}")
        return ran.stdout

    def top(self, file, kind, folder):
        options = ["-top", f"-sample_index={kind}", "-nodecount=100000", "-nodefraction=0", "-edgefraction=0"]
        found = {}
        for line in self.run([*options, "-unit=ns"], file, folder).splitlines():
            match = self.LINE.match(line)
            if match and match.group(3) != "cum%":
                own, total = (int(float(re.sub(r"[a-z]+$", "", match.group(at)))) for at in (1, 2))
                name = match.group(3).removesuffix(" (inline)").removesuffix(" (partial-inline)")
                if total:
                    found[name] = (own, total)
        return found

    def peek(self, file, folder):
        """Callers and callees of every function."""
        if "flat%" not in self.run(["-peek=."], file, folder):
            raise Mismatch("pprof -peek prints no table")


class Speedscope:
    """The schema that comes with speedscope, and the weights of the stacks."""

    def __init__(self, installed):
        installed.python()
        import jsonschema

        folder = installed.npm("speedscope") / "dist/release"
        [schema] = folder.glob("file-format-schema*.json")
        self.validator = jsonschema.Draft7Validator(json.loads(schema.read_text()))

    def compare(self, kymo, recording, folder):
        file = json.loads(kymo.export(recording, "speedscope", folder / "profile.json").read_text())
        for error in self.validator.iter_errors(file):
            raise Mismatch(f"the schema of speedscope: {error.message[:300]}")
        names = [frame["name"] for frame in file["shared"]["frames"]]
        events = kymo.events(recording)
        sums = [Sums() for _ in events]
        for profile in file["profiles"]:
            number = 0
            if len(events) > 1:
                [number] = [at for at, event in enumerate(events) if profile["name"].endswith(f"({event})")]
            for stack, weight in zip(profile["samples"], profile["weights"]):
                sums[number].add([names[frame] for frame in stack], weight)
        pairs = enumerate(zip(events, sums))
        return sum(
            compare(kymo.sums(recording, number, "period"), found.without_zeros(), event)
            for number, (event, found) in pairs
        )


class Firefox:
    """profiler-cli: the code of the Firefox Profiler that brings profiles to its newest form, and counts."""

    def __init__(self, installed):
        installed.command("node")
        self.program = installed.npm("@firefox-devtools/profiler-cli") / "dist/profiler-cli.js"
        self.home = None

    def compare(self, kymo, recording, folder):
        file = kymo.export(recording, "firefox", folder / "profile.json.gz")
        # The server of a session keeps its files there.
        self.home = folder
        self.load(file)
        try:
            return self.count(kymo, recording)
        finally:
            self.run("stop")

    def load(self, file):
        """Starts a server with a profile, which has half a second for that, and waits for it on a busy machine."""
        try:
            self.run("load", str(file))
        except Mismatch as error:
            if "did not become ready" not in str(error):
                raise
            for _ in range(60):
                time.sleep(1)
                if "Selected thread" in self.run("status", must=False):
                    return
            raise

    def run(self, *words, must=True):
        environment = os.environ | {"HOME": str(self.home)}
        command = ["node", self.program, *words, "--session", "kymo"]
        ran = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if must and ran.returncode != 0:
            raise Mismatch(f"profiler-cli {words}: {ran.stderr or ran.stdout}")
        return ran.stdout

    def count(self, kymo, recording):
        events = kymo.events(recording)
        found = [{} for _ in events]
        threads = json.loads(self.run("thread", "list", "--json"))["threads"]
        for thread in threads:
            number = 0
            if len(events) > 1:
                [number] = [at for at, event in enumerate(events) if thread["name"].endswith(f"({event})")]
            handle = thread["threadHandle"]
            options = ["--thread", handle, "--json", "--limit", "0", "--include-idle"]
            for function in json.loads(self.run("thread", "functions", *options))["functions"]:
                own, total = found[number].get(function["name"], (0, 0))
                found[number][function["name"]] = (own + function["selfSamples"], total + function["totalSamples"])
        pairs = enumerate(zip(events, found))
        return sum(compare(kymo.sums(recording, number, "samples"), sums, event) for number, (event, sums) in pairs)


class Otlp:
    """The messages of OpenTelemetry's own Python package."""

    def __init__(self, installed):
        installed.python()

    def compare(self, kymo, recording, folder):
        from opentelemetry.proto.collector.profiles.v1development import profiles_service_pb2

        file = kymo.export(recording, "otlp", folder / "profile.pb")
        request = profiles_service_pb2.ExportProfilesServiceRequest.FromString(file.read_bytes())
        dictionary = request.dictionary
        for table in ("mapping", "location", "function", "link", "attribute", "stack"):
            first = getattr(dictionary, f"{table}_table")[0]
            if first.ByteSize():
                raise Mismatch(f"the {table} table does not begin with an empty entry")
        events = kymo.events(recording)
        sums = {(event, what): Sums() for event in events for what in ("samples", "period")}
        for resource in request.resource_profiles:
            for scope in resource.scope_profiles:
                for profile in scope.profiles:
                    self.add(dictionary, profile, sums)
        return sum(
            compare(kymo.sums(recording, number, what), sums[event, what].without_zeros(), f"{event}, {what}")
            for number, event in enumerate(events)
            for what in ("samples", "period")
        )

    @staticmethod
    def add(dictionary, profile, sums):
        event = dictionary.string_table[profile.sample_type.type_strindex]
        for sample in profile.samples:
            if sample.timestamps_unix_nano and len(sample.timestamps_unix_nano) != len(sample.values):
                raise Mismatch("a sample has values without moments")
            names = []
            for at in dictionary.stack_table[sample.stack_index].location_indices:
                for line in dictionary.location_table[at].lines:
                    function = dictionary.function_table[line.function_index]
                    names.append(dictionary.string_table[function.name_strindex])
            names.reverse()
            sums[event, "samples"].add(names, len(sample.values))
            sums[event, "period"].add(names, sum(sample.values))


class Collector:
    """The decoder that OpenTelemetry's collector has for what it receives; it writes what it understood as JSON."""

    def __init__(self, installed):
        installed.command("go")
        self.program = installed.go_program(pathlib.Path(__file__).parent / "collector/main.go", COLLECTOR)

    def compare(self, kymo, recording, folder):
        file = kymo.export(recording, "otlp", folder / "profile.pb")
        ran = subprocess.run([self.program], input=file.read_bytes(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if ran.returncode != 0:
            raise Mismatch(f"the collector: {ran.stderr.decode(errors='replace')[-300:]}")
        request = json.loads(ran.stdout)
        dictionary = request["dictionary"]
        strings = dictionary["stringTable"]
        events = kymo.events(recording)
        sums = {event: Sums() for event in events}
        for resource in request["resourceProfiles"]:
            for scope in resource["scopeProfiles"]:
                for profile in scope["profiles"]:
                    event = strings[profile["sampleType"]["typeStrindex"]]
                    for sample in profile["samples"]:
                        names = list(self.names(dictionary, sample["stackIndex"]))
                        sums[event].add(names[::-1], sum(map(int, sample["values"])))
        return sum(
            compare(kymo.sums(recording, number, "period"), sums[event].without_zeros(), event)
            for number, event in enumerate(events)
        )

    @staticmethod
    def names(dictionary, stack):
        """Innermost first. Numbers that are zero are left out."""
        for at in dictionary["stackTable"][stack]["locationIndices"]:
            for line in dictionary["locationTable"][at]["lines"]:
                function = dictionary["functionTable"][line["functionIndex"]]
                yield dictionary["stringTable"][function.get("nameStrindex", 0)]


class Callgrind:
    """callgrind_annotate of valgrind."""

    LINE = re.compile(r"^ *([\d,]+) \( *[\d.]+%\)  (.*) \[(.*)\]$")

    def __init__(self, installed):
        self.program = installed.command("callgrind_annotate")

    def compare(self, kymo, recording, folder):
        file = kymo.export(recording, "callgrind", folder / "callgrind.out")
        own, total = (self.annotate(file, inclusive) for inclusive in ("no", "yes"))
        report, count = kymo.report(recording), 0
        # The tool adds functions of one file and name in two modules; a call within itself is another function there.
        rows = report["events"][0]["functions"]
        for row in rows:
            key = (row["name"], row["module"])
            if sum(other["name"] == row["name"] for other in rows) > 1:
                continue
            inner = (f"{row['name']}'2", row["module"])
            found = (own.get(key, 0) + own.get(inner, 0), total.get(key, 0))
            expected = (row["self_period"], row["total_period"])
            if found != expected:
                raise Mismatch(f"{key} is {found}, not {expected} (self, total)")
            count += 1
        return count

    def annotate(self, file, inclusive):
        """Costs of the first event's periods by function and module."""
        events = next(line for line in file.read_text().splitlines() if line.startswith("events: "))
        event = events.split()[2]
        options = [f"--inclusive={inclusive}", "--threshold=100", f"--show={event}", f"--sort={event}", "--auto=no"]
        ran = subprocess.run([self.program, *options, file], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if ran.returncode != 0:
            raise Mismatch(f"callgrind_annotate: {ran.stderr}")
        found = {}
        for line in ran.stdout.splitlines():
            match = self.LINE.match(line)
            if not match:
                continue
            cost, place, module = match.groups()
            # The names of modules may have brackets of their own: [[kernel.kallsyms]].
            name = place.split(":", 1)[1]
            found[name, module] = int(cost.replace(",", ""))
        return found


TOOLS = {
    "pprof": Pprof,
    "speedscope": Speedscope,
    "firefox": Firefox,
    "perfetto": Perfetto,
    "chrome": Chrome,
    "otlp": Otlp,
    "collector": Collector,
    "callgrind": Callgrind,
    "duckdb": DuckDb,
    "pyarrow": PyArrow,
}
