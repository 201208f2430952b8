#!/usr/bin/env python3
"""A newcomer's hour on programs that nobody here wrote: `make newcomer`.

    python3 -m ci.newcomer                # all; takes three or four minutes
    python3 -m ci.newcomer nginx crash    # these only
    python3 -m ci.newcomer --list         # their names
    KYMO_ROUNDS=20 python3 -m ci.newcomer eventlet boost     # those with rounds, in many

Each program is recorded with the words of the README. What kymo prints is shown as a newcomer sees
it. The checks are facts: the status, no lost sample, named stacks, the right function on the first
screen, and a program that does the same as without kymo. Programs that are not installed are named
at the end. The command fails if a check does.
"""

import argparse
import os
import pathlib
import sys
import tempfile

from . import commands, daemons, sandboxes, servers, stacks, waiting
from .visit import Failed, Kymo, Missing

ROOT = pathlib.Path(__file__).parent.parent.parent
PROGRAMS = servers.PROGRAMS | commands.PROGRAMS | waiting.PROGRAMS | sandboxes.PROGRAMS | daemons.PROGRAMS | stacks.PROGRAMS


def main():
    parser = argparse.ArgumentParser(description="Run a newcomer's commands on real programs.")
    parser.add_argument("only", nargs="*", choices=[[], *PROGRAMS], help="visit only these")
    parser.add_argument("--list", action="store_true", help="print the programs' names")
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    parser.add_argument("--kymo", type=pathlib.Path, default=target / "debug/kymo")
    args = parser.parse_args()
    if args.list:
        print("\n".join(PROGRAMS))
        return 0
    failed, missing = [], []
    for name in args.only or PROGRAMS:
        print(f"\n== {name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="kymo-newcomer.") as folder:
            # Servers that run as another user look into it.
            os.chmod(folder, 0o755)
            try:
                PROGRAMS[name](Kymo(args.kymo.resolve(), pathlib.Path(folder)))
            except Missing as error:
                missing.append(f"{name}: {error}")
                print(f"SKIPPED ci::newcomer::{name}: {error}")
            except Failed as error:
                failed.append(f"{name}: {error}")
                print(f"FAILED {name}: {error}")
    print(f"\n{len(args.only or PROGRAMS) - len(failed) - len(missing)} programs as they should be")
    for line in missing:
        print(f"NOT VISITED {line}")
    for line in failed:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
