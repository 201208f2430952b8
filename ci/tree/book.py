"""The book after mdBook has built it: files of the tree that its pages link to are copied beside it, and each link is checked.

    python3 -m ci.tree.book OUT  # OUT/docs is what mdBook has built from docs/

OUT/docs lies in OUT as docs/ lies in the tree, so a link out of the book to `../../bench/runs/x.json` leads to OUT/bench/runs/x.json.
"""

import os
import pathlib
import re
import shutil
import sys
from html.parser import HTMLParser

INCLUDE = re.compile(r"\{\{#include ([^}:]+\.md)\}\}")
# mdBook makes these pages itself, and they repeat links of others from other folders.
GENERATED = {"404.html", "print.html"}


class Page(HTMLParser):
    """The links of a page, and what in it can be linked to."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def finish(root, out):
    """Mends the links that lead out of the book, and returns those that lead nowhere."""
    root, out = root.resolve(), out.resolve()
    chapters = included(root)
    pages = [path for path in sorted(out.glob("docs/**/*.html")) if path.name not in GENERATED]
    for path in pages:
        mend(root, out, path, chapters)
    problems = []
    parsed = {path: Page(path.read_text()) for path in pages}
    for path, page in parsed.items():
        for link in page.links:
            if re.match(r"[a-z]+:", link):
                continue
            file, _, anchor = link.partition("#")
            there = pathlib.Path(os.path.normpath(path.parent / file)) if file else path
            if not there.exists():
                problems.append(f"{path.relative_to(out)}: {link} is not there")
            elif anchor and there in parsed and anchor not in parsed[there].anchors:
                problems.append(f"{path.relative_to(out)}: {link}: no such heading")
    return problems


def included(root):
    """The files outside of docs/ that are chapters: those that a page includes, and that page."""
    found = {}
    for page in root.glob("docs/**/*.md"):
        for name in INCLUDE.findall(page.read_text()):
            found[(page.parent / name).resolve()] = page
    return found


def mend(root, out, path, chapters):
    """Copies what a page links to outside of docs/, and mends links that mdBook took for chapters."""
    source = source_of(root / path.relative_to(out)) or path
    # Links in an included file start where that file is.
    base = next((file.parent for file, page in chapters.items() if page == source), source.parent)
    text = path.read_text()
    for link in set(Page(text).links):
        file, _, anchor = link.partition("#")
        if not file or re.match(r"[a-z]+:", link) or (path.parent / file).exists():
            continue
        there = source_of(pathlib.Path(os.path.normpath(base / file)))
        if there is None or root not in there.parents:
            continue
        there = chapters.get(there, there)
        if root / "docs" in there.parents and there.suffix == ".md":
            there = there.with_name("index.html") if there.name == "README.md" else there.with_suffix(".html")
        elif not (out / there.relative_to(root)).exists():
            copy = out / there.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(there, copy) if there.is_dir() else shutil.copy(there, copy)
        mended = os.path.relpath(out / there.relative_to(root), path.parent)
        text = text.replace(f'"{link}"', f'"{mended}{"#" * bool(anchor)}{anchor}"')
    path.write_text(text)


def source_of(path):
    """The file that a link means: mdBook makes `.html` of every `.md`, and `index.html` of a README in the book."""
    for one in (path, path.with_suffix(".md"), path.with_name("README.md") if path.name == "index.html" else path):
        if one.exists():
            return one
    return None


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    problems = finish(root, pathlib.Path(sys.argv[1]))
    print("".join(f"{problem}\n" for problem in problems), end="")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
