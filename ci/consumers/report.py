"""What `kymo report --json` says of functions, and how it is compared with what others say."""

import json
import pathlib
import subprocess
from collections import defaultdict


class Mismatch(Exception):
    """A tool says something else than the report."""


class Sums:
    """Self and total of each function, by its name, of one event."""

    def __init__(self):
        self.own = defaultdict(int)
        self.total = defaultdict(int)

    def add(self, names, weight):
        """A stack, from the outermost function to the innermost."""
        if weight == 0:
            return
        if names:
            self.own[names[-1]] += weight
        for name in set(names):
            self.total[name] += weight

    def without_zeros(self):
        return {name: (self.own[name], total) for name, total in self.total.items() if total}


class Kymo:
    """The program, and its reports."""

    def __init__(self, program: pathlib.Path):
        self.program = program
        self.reports = {}

    def export(self, recording, form, output):
        command = [self.program, "export", "-q", "--to", form, "-o", output, recording]
        subprocess.run(command, check=True)
        return output

    def report(self, recording):
        if recording not in self.reports:
            command = [self.program, "report", "-q", "--json", "-i", recording]
            self.reports[recording] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        return self.reports[recording]

    def events(self, recording):
        return [event["name"] for event in self.report(recording)["events"]]

    def sums(self, recording, event, what):
        """Of an event, by its place; `what` is samples or period."""
        report = self.report(recording)
        nodes = report["events"][event]["stacks"]
        sums, paths = Sums(), []
        for node in nodes:
            function = report["functions"][node["function"]]
            path = [] if node["parent"] is None else paths[node["parent"]]
            path = path if function["kind"] == "comm" else [*path, function["name"]]
            paths.append(path)
            sums.add(path, node[f"self_{what}"])
        return sums


def compare(expected: Sums, found: dict, what: str) -> int:
    """Raises a Mismatch where both differ; the number of functions."""
    expected = expected.without_zeros()
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise Mismatch(f"{what}: {name!r} is {found.get(name)}, not {expected.get(name)} (self, total)")
    return len(expected)
