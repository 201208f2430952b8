"""Whether `kymo diff` sees what releases of other programs are known to have changed.

zstd 1.5.0 has another match finder for its middle levels, which its release notes call faster by a quarter and more; Debian's
bullseye has zstd 1.4.8, and this machine a later one. Python 3.12 runs comprehensions in the frame of their function (PEP 709): the
script has little else. Each pair is compared both ways: the new release costs less, and the old one more.
"""

import json
import shutil
import subprocess
from pathlib import Path

from versus.runner import ROOT, Refusal, environment, output, table

HELP = "releases of zstd and Python with known changes, compared by kymo diff"
SCRIPT = "for _ in range(400_000): [[x for x in (1, 2)] for y in (1, 2)]"
PYTHONS = Path.home() / ".pyenv/versions"


def add_arguments(parser):
    parser.add_argument("--runs", type=int, default=10, help="runs a side (default: 10)")
    parser.add_argument("--old-python", metavar="PATH", default=PYTHONS / "3.11.7/bin/python3.11", help="a Python 3.11")
    parser.add_argument("--new-python", metavar="PATH", default=PYTHONS / "3.13.0/bin/python3.13", help="a Python 3.13")


def run(bench, args):
    pairs = {"zstd -12": zstd(bench)}
    pythons = [Path(args.old_python), Path(args.new_python)]
    if all(python.exists() for python in pythons):
        pairs["comprehensions"] = [f"{python} -c '{SCRIPT}'" for python in pythons]
    else:
        print(f"left out: there is no {' or no '.join(str(python) for python in pythons if not python.exists())}")
    result, rows = {}, []
    for name, commands in pairs.items():
        for way, (old, new) in {"new release": commands, "old release": commands[::-1]}.items():
            answer = compare(bench, args, old, new)
            total = answer["total"]["of_itself"]
            result.setdefault(name, {})[way] = {"commands": [old, new], "status": answer["status"], "total": answer["total"],
                                                "verdict": answer["verdict"],
                                                "functions": [[e["name"], e["verdict"], e["of_total"]] for e in answer["effects"][:5]]}
            rows.append([name, way, f"{total['estimate']:+.1%}", f"{total['low']:+.1%} to {total['high']:+.1%}",
                         answer["total"]["verdict"], answer["status"]])
    table(["program", "compared is the", "whole cost", "interval", "verdict", "exit status"], rows)
    return {"runs": args.runs, "pairs": result}


def compare(bench, args, old, new):
    argv = [str(bench.kymo), "diff", "-q", "--json", "-n", str(args.runs), "--run", old, "--run", new]
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True, cwd=bench.scratch)
    if done.returncode not in (0, 1, 3):
        raise Refusal(f"kymo diff ended with {done.returncode}: {done.stderr.strip()}")
    return {**json.loads(done.stdout), "status": done.returncode}


def zstd(bench):
    """The commands of the old and the new zstd, packing the same text."""
    new = shutil.which("zstd")
    if not new:
        raise Refusal("there is no zstd; on Debian: apt-get install zstd")
    folder = bench.scratch / "bullseye"
    output(["bash", "-c", '. "$0/ci/debian.sh" && debian_unpack_only bullseye "$1/apt" "$1/root" "^zstd$" zstd', ROOT, folder])
    old, text = folder / "root/usr/bin/zstd", bench.scratch / "text"
    # Sources compress as text does; a recording of this kymo would change with it.
    text.write_bytes(b"".join(path.read_bytes() for path in sorted(ROOT.glob("crates/*/src/**/*.rs"))))
    for program in (old, new):
        print(output([program, "--version"]).strip())
    return [f"{program} -12 -T1 -q -f -c {text} >/dev/null" for program in (old, new)]
