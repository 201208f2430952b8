"""Documents and comments: dead links, sentences and lines that are too long, pages that the book does not list."""

import re

MOST_WORDS = 40
MOST_COLUMNS = 100
# Comment lines past the limit when the check was made. Lower this number when you have wrapped some.
WIDE_COMMENTS = 1530


def without_code(text):
    """A document with its blocks of code blanked, line by line."""
    return re.sub(r"^( *)(```|~~~).*?^\1\2", lambda fence: "\n" * fence.group(0).count("\n"), text, flags=re.S | re.M)


def prose(text):
    """A document's paragraphs and list items, with the line that each begins in; no code, tables, headings."""
    text = without_code(text)
    paragraph, begin = [], 1
    for number, line in enumerate([*text.split("\n"), ""], 1):
        begins_item = re.match(r" *(?:[-*+]|\d+\.) ", line)
        if not line.strip() or line.lstrip().startswith(("|", "#", "<")) or begins_item:
            if paragraph:
                yield begin, " ".join(paragraph)
            paragraph = []
        if line.strip() and not line.lstrip().startswith(("|", "#", "<")):
            if not paragraph:
                begin = number
            paragraph.append(re.sub(r"^ *(?:[-*+]|\d+\.) ", "", line).strip())


def sentences(paragraph):
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", paragraph)
    plain = re.sub(r"`[^`]*`", "Code", plain)
    # Names of programs begin a sentence as they are.
    return re.split(r"(?<=[.!?])[)\"']? +(?=[A-Z0-9`*\"(]|(?:kymo|perf|gdb)\b)", plain)


def long_sentences(tree):
    """A sentence of a document has more than 40 words."""
    for path in tree.documents:
        for line, paragraph in prose(path.read_text()):
            for sentence in sentences(paragraph):
                words = len(re.findall(r"[\w'’/.-]*\w[\w'’/.-]*", sentence))
                if words > MOST_WORDS:
                    begin = " ".join(sentence.split()[:8])
                    yield f"{tree.name(path)}: {begin}", f"{tree.name(path)}:{line}: {words} words: {begin} ..."


def anchors(text):
    """The names under which a document's headings can be linked."""
    for heading in re.findall(r"^#+ +(.*)$", text, flags=re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        yield re.sub(r"[^\w\- ]", "", plain.strip().lower()).replace(" ", "-")


def dead_links(tree):
    """A link within the tree leads nowhere."""
    for path in tree.documents:
        text = without_code(path.read_text())
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            there = (path.parent / file).resolve() if file else path
            if not there.exists():
                yield f"{tree.name(path)}: {target}", f"{tree.name(path)}: {target} is not there"
            elif anchor and there.suffix == ".md" and anchor not in anchors(there.read_text()):
                yield f"{tree.name(path)}: {target}", f"{tree.name(path)}: {target}: no such heading"


def wide_documents(tree):
    """A line of prose goes past column 100. Code, tables, links and headings may."""
    for path in tree.documents:
        for number, line in enumerate(without_code(path.read_text()).split("\n"), 1):
            if len(line) > MOST_COLUMNS and not re.match(r" *[|#<]", line) and "](" not in line:
                yield f"{tree.name(path)}: {line[:40]}", f"{tree.name(path)}:{number}: {len(line)} columns"


def wide_comments(tree, known=None):
    """More comment lines of Rust code go past column 100 than when the check was made."""
    known = WIDE_COMMENTS if known is None else known
    lines = (line for file in tree.rust for line in file.text.split("\n"))
    count = sum(len(line) > MOST_COLUMNS and line.lstrip().startswith("//") for line in lines)
    if count > known:
        added = r"git diff main | grep -E '^\+ *//' | grep -E '.{102}'"
        yield "too many", f"{count} comment lines go past column {MOST_COLUMNS}, {known} did; yours: {added}"


def pages_outside_the_book(tree):
    """A page below `docs/` is not in the book's table of contents."""
    summary = tree.root / "docs/SUMMARY.md"
    listed = set(re.findall(r"\]\(([^)]+)\)", summary.read_text())) if summary.exists() else set()
    for path in tree.documents:
        if summary.parent in path.parents and path != summary:
            if path.relative_to(summary.parent).as_posix() not in listed:
                yield tree.name(path), f"{tree.name(path)}: docs/SUMMARY.md does not list it"


def schemas_without_a_page(tree):
    """A JSON document has a schema that no page of the book describes."""
    pages = "\n".join(path.read_text() for path in tree.documents if "formats" in path.parts)
    for file in tree.rust:
        if not file.is_test():
            for schema in re.findall(r'"schema"(?:: *|, *&?)"(kymo-[\w-]+)"', file.text):
                if f"`{schema}`" not in pages:
                    yield schema, f"{file.path}: no page in docs/reference/formats describes the schema {schema}"


def dead_paths(tree):
    """A comment or a message names a document, a script or a result that is not there."""
    named = re.compile(r"\b((?:docs|bench|fixtures|ci|fuzz)/[\w./-]*\w\.(?:md|json|txt|py|sh|rs|c))\b")
    for file in tree.rust:
        for path in sorted(set(named.findall(file.text))):
            if not (tree.root / path).exists():
                yield f"{file.path}: {path}", f"{file.path}: {path} is not there"


def dead_names(tree):
    """ARCHITECTURE.md names a Rust file that no crate has."""
    path = tree.root / "ARCHITECTURE.md"
    names = re.findall(r"`([\w/.-]+\.rs)`", path.read_text()) if path.exists() else []
    for name in sorted(set(names)):
        if not any(f"/{file.path}".endswith(f"/{name}") or file.path == name for file in tree.rust):
            folders = ("crates/*", "fleet/*", "fleet/*/src")
            if not (tree.root / name).exists() and not any(list(tree.root.glob(f"{folder}/{name}")) for folder in folders):
                yield name, f"ARCHITECTURE.md: no crate has a file {name}"
