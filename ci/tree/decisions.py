"""Decisions that a search confirms: how many files may have a word, in which part of the tree."""

import re
from fnmatch import fnmatch
from typing import NamedTuple


class Decision(NamedTuple):
    name: str  # As known.txt calls it.
    pattern: str  # What is searched for, in code without comments and strings.
    where: str  # The files that are searched, but for tests.
    reason: str
    files: int = 0  # How many files may have it.


DECISIONS = [
    Decision("objection", r"\bobjection", "crates/*/src/*", "what an engine cannot do is `Unsupported`"),
    Decision("Operand", r"\bstruct Operand\b", "crates/*/src/*", "probes and watches share one value tree", 1),
    Decision("NOT_STARTED", r"\bconst NOT_STARTED\b", "crates/*/src/*", "exit codes are decided in one file", 1),
    Decision("signals", r"\bsignal_hook\b", "crates/*/src/*", "signals are handled in one file", 1),
    Decision("events as text", r"\btry_parse_from\b", "crates/kymo/src/cmd/probe*", "events travel as data"),
    Decision(
        "unwinding", r"\bresume_unwind\b", "crates/kymo-agent/src/*", "a program may be built with `panic = \"abort\"`"
    ),
    Decision(
        "engines",
        r"\bkymo_agent::patch\b|\bkymo_perf::bpf\b",
        "crates/kymo/src/cmd/*",
        "verbs name neither the patcher nor BPF programs",
    ),
]


def broken_decisions(tree):
    """A decision is not followed, or not yet."""
    for one in DECISIONS:
        files = [file for file in tree.rust if fnmatch(file.path, one.where)]
        found = [file.path for file in files if not file.is_test() and re.search(one.pattern, file.code)]
        for path in found if len(found) > one.files else []:
            yield f"{one.name}: {path}", f"{path}: `{one.pattern}`, in {one.files} files at most: {one.reason}"
