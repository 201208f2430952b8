"""Files with unsafe code, held against the lists in ARCHITECTURE.md."""

import itertools
import re

UNSAFE = re.compile(r"\bunsafe (?:\{|fn\b|impl\b|extern\b)|#\[unsafe\(|\bunsafe extern")
SENTENCE = re.compile(r"nsafe\s+code\s+is\s+in\s+(.*?)\s+only\b", re.DOTALL)


def listed(tree):
    """What ARCHITECTURE.md names, by crate: files and folders below its `src`."""
    path = tree.root / "ARCHITECTURE.md"
    text = path.read_text() if path.exists() else ""
    lists = {}
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        crate = re.match(r"`([\w-]+)`", section)
        names = [name for sentence in SENTENCE.findall(section) for name in re.findall(r"`([^`]+)`", sentence)]
        if crate and names:
            lists[crate.group(1)] = {one for name in names for one in expanded(name)}
    return lists


def expanded(name):
    """`a/{b,c}.rs` is two names."""
    parts = re.split(r"\{([^}]*)\}", name)
    choices = [part.split(",") if odd % 2 else [part] for odd, part in enumerate(parts)]
    return ["".join(choice) for choice in itertools.product(*choices)]


def unlisted_unsafe(tree):
    """A file has unsafe code, and ARCHITECTURE.md does not list it."""
    lists = listed(tree)
    for file in tree.rust:
        if file.room != "src" or file.is_test() or not UNSAFE.search(file.code):
            continue
        inside = file.path.split("/src/", 1)[1]
        names = lists.get(file.crate, set())
        if not any(inside == name or name.endswith("/") and inside.startswith(name) for name in names):
            yield file.path, f"{file.path}: unsafe code, in a file that ARCHITECTURE.md does not list"


def listed_without_need(tree):
    """ARCHITECTURE.md lists a file that is gone or has no unsafe code any more."""
    for crate, names in sorted(listed(tree).items()):
        files = [file for file in tree.rust if file.crate == crate and UNSAFE.search(file.code)]
        inside = [file.path.split("/src/", 1)[-1] for file in files]
        for name in sorted(names):
            if not any(one == name or name.endswith("/") and one.startswith(name) for one in inside):
                yield f"{crate}: {name}", f"ARCHITECTURE.md: {crate} has no unsafe code in {name}"
