#!/usr/bin/env python3
"""Packages of kymo, all from one build, for every distribution with glibc 2.17 or newer: `make dist`.

    python3 -m ci.dist            # a tarball, .deb, .rpm and wheel, debug information, SBOM, SHA256SUMS
    python3 -m ci.dist --verify   # builds a second time in another folder, and compares all bytes

They lie in target/dist/packages. The tools are installed into target/tools (Zig by pip, others by
cargo). Nothing is installed into the system. `ci/dist/try.sh` tries the packages in bare roots.
"""

import argparse
import filecmp
import os
import pathlib
import shutil
import sys
import tomllib

from . import pack, sbom
from .build import GLIBC, Failed, Tools, build, run, source_date, tracked

ROOT = pathlib.Path(__file__).parent.parent.parent
# Of different depth and length, so that a path that remains in a package makes it differ.
FIRST, SECOND = "first", "again/in/another-folder"


def make(target, name, tools, tree, names, date):
    """Builds files of a tree in a folder below target/dist, and returns the folder of the packages."""
    folder = target / "dist" / name
    stage, env = build(tree, names, folder, tools, date)
    source = folder / "source"
    version = tomllib.loads((source / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    date = int(env["SOURCE_DATE_EPOCH"])
    out = folder / "packages"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    pack.tarball(out, f"kymo-{version}-{pack.MACHINE}", pack.installed(stage, source), date)
    pack.tarball(out, f"kymo-debuginfo-{version}-{pack.MACHINE}", pack.debug_file(stage), date)
    pack.wheel(out, stage, source, version, date)
    sbom.write(out / f"kymo-{version}.cdx.json", source, date)
    env["PATH"] = f"{tools.folder}/bin:{env['PATH']}"
    pack.deb(out, source, stage, env, version)
    pack.rpm(out, source, stage, env, version)
    pack.checksums(out)
    return out


def main():
    parser = argparse.ArgumentParser(description="Make packages of kymo.")
    parser.add_argument("--verify", action="store_true", help="build again in another folder, and compare")
    args = parser.parse_args()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    try:
        tools = Tools(target / "tools")
        names, date = tracked(ROOT), source_date(ROOT)
        out = make(target, FIRST, tools, ROOT, names, date)
        packages = target / "dist/packages"
        shutil.rmtree(packages, ignore_errors=True)
        shutil.copytree(out, packages)
        for path in sorted(packages.iterdir()):
            print(f"{path.stat().st_size:>12,} {path.name}")
        print(f"for glibc {GLIBC} and newer: {packages}")
        if args.verify:
            # Of the same files, whatever has been written since.
            verify(packages, make(target, SECOND, tools, target / "dist" / FIRST / "source", names, date))
    except (Failed, OSError) as error:
        print(f"make dist: {error}", file=sys.stderr)
        return 1
    if run("git", "status", "--porcelain", "--untracked-files=no", cwd=ROOT):
        print("make dist: the tree has changes that are not committed, and so have the packages", file=sys.stderr)
    return 0


def verify(first, second):
    """Fails unless both folders have the same files with the same bytes."""
    names = sorted({path.name for folder in (first, second) for path in folder.iterdir()})
    _, different, missing = filecmp.cmpfiles(first, second, names, shallow=False)
    if different or missing:
        raise Failed(f"a second build differs: {', '.join(different + missing)}; compare {first} with {second}")
    print(f"a second build in {second.parent} has the same bytes: {len(names)} files")


if __name__ == "__main__":
    sys.exit(main())
