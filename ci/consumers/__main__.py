#!/usr/bin/env python3
"""The tools that exports are for, read what kymo wrote: `make test-consumers`.

    python3 -m ci.consumers                   # all of them, with every recording of fixtures/recordings
    python3 -m ci.consumers pprof perfetto    # these only
    python3 -m ci.consumers --file perf.data  # with this recording

The tools are installed into target/consumers at the first run, from the registries of Go, npm and Python that are
configured on this machine. What each of them says of a function, by itself and with what it called, must be what
`kymo report --json` says, to the unit. A tool that cannot be installed is skipped, and named at the end.
"""

import argparse
import os
import pathlib
import sys
import tempfile

from . import tools
from .install import ROOT, Installed, Missing
from .report import Kymo, Mismatch


def recordings():
    """Recordings that perf made, with and without call chains."""
    folder = ROOT / "fixtures/recordings"
    return sorted(path for path in folder.iterdir() if path.suffix in (".data", ".dir"))


def main():
    parser = argparse.ArgumentParser(description="Let other tools read what kymo exports.")
    parser.add_argument("only", nargs="*", choices=[[], *tools.TOOLS], help="these tools only")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--kymo", type=pathlib.Path, default=target / "debug/kymo")
    parser.add_argument("--file", type=pathlib.Path, action="append", help="this recording instead of the fixtures")
    args = parser.parse_args()
    installed = Installed(target / "consumers")
    kymo = Kymo(args.kymo.resolve())
    wrong, missing, compared = [], [], 0
    for name in args.only or tools.TOOLS:
        try:
            tool = tools.TOOLS[name](installed)
        except Missing as error:
            missing.append(f"{name}: {error}")
            continue
        for recording in args.file or recordings():
            with tempfile.TemporaryDirectory(prefix="kymo-consumers.") as folder:
                try:
                    count = tool.compare(kymo, recording, pathlib.Path(folder))
                    compared += count
                    print(f"{name}: {recording.name}: {count} functions", flush=True)
                except Mismatch as error:
                    wrong.append(f"{name}: {recording.name}: {error}")
                    print(f"FAILED {wrong[-1]}", flush=True)
    print(f"\n{compared} functions have the same sums")
    for line in missing:
        print(f"SKIPPED ci::consumers::{line}")
    for line in wrong:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
