"""Checks of the tree's shape that take seconds: crates, modules, names, lengths, unsafe code, packages, documents.

    python3 -m ci.tree            # fails on what `known.txt` does not list, and on what it lists without need
    python3 -m ci.tree --rewrite  # writes known.txt anew: it may only become shorter

`known.txt` has what was there when a check was made. A line that has gone is taken out in the same commit.
"""

import argparse
import os
import pathlib
import sys

from . import decisions, documents, modules, names, packages, unsafety
from .source import Tree

CHECKS = [
    modules.upward_arrows,
    modules.circles,
    names.forbidden_names,
    names.shared_names,
    names.long_functions,
    unsafety.unlisted_unsafe,
    unsafety.listed_without_need,
    documents.dead_links,
    documents.dead_paths,
    documents.dead_names,
    documents.long_sentences,
    documents.wide_documents,
    documents.wide_comments,
    documents.pages_outside_the_book,
    documents.schemas_without_a_page,
    packages.rust_version,
    packages.files_outside,
    packages.licences,
    packages.duplicates,
    decisions.broken_decisions,
]


def findings(tree):
    """What each check has found, from `check: key` to a message; and the checks that cannot run here."""
    found, skipped = {}, set()
    for check in CHECKS:
        try:
            found |= {f"{check.__name__}: {key}": message for key, message in check(tree)}
        except packages.Unavailable as reason:
            skipped.add(check.__name__)
            skip(f"SKIPPED ci::{check.__name__}: {reason}")
    return found, skipped


def skip(line):
    """Says that a check is skipped, and puts it into the list that `make test` prints at its end."""
    print(line)
    if log := os.environ.get("KYMO_SKIP_LOG"):
        with open(log, "a") as file:
            file.write(f"{line}\n")


def main():
    here = pathlib.Path(__file__).resolve().parent
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--root", type=pathlib.Path, default=here.parent.parent)
    arguments.add_argument("--known", type=pathlib.Path, default=here / "known.txt")
    arguments.add_argument("--rewrite", action="store_true")
    options = arguments.parse_args()

    found, skipped = findings(Tree(options.root))
    known = set(options.known.read_text().splitlines()) if options.known.exists() else set()
    if options.rewrite:
        kept = {key for key in known if key.split(":")[0] in skipped}
        options.known.write_text("".join(f"{key}\n" for key in sorted(kept | set(found))))
        return 0
    known = {key for key in known if key.split(":")[0] not in skipped}
    new = sorted(set(found) - known)
    gone = sorted(known - set(found))
    for key in new:
        print(f"{key.split(':')[0]}: {found[key]}")
    for key in gone:
        print(f"{options.known.name}: no longer true, take the line out: {key}")
    print(f"{len(CHECKS)} checks: {len(new)} new findings, {len(found) - len(new)} known")
    return 1 if new or gone else 0


if __name__ == "__main__":
    sys.exit(main())
