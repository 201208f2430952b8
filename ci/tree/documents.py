"""Prose: links that lead nowhere, sentences that nobody reads to their end."""

import re

MOST_WORDS = 40


def prose(text):
    """A document's paragraphs and list items, with the line that each begins in; no code, tables, headings."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2", lambda fence: "\n" * fence.group(0).count("\n"), text, flags=re.S | re.M)
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
    plain = re.sub(r"`[^`]*`", "code", plain)
    return re.split(r"(?<=[.!?])[)\"']? +(?=[A-Z`*\"(])", plain)


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
        text = re.sub(r"^( *)(```|~~~).*?^\1\2", "", path.read_text(), flags=re.S | re.M)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            file, _, anchor = target.partition("#")
            there = (path.parent / file).resolve() if file else path
            if not there.exists():
                yield f"{tree.name(path)}: {target}", f"{tree.name(path)}: {target} is not there"
            elif anchor and there.suffix == ".md" and anchor not in anchors(there.read_text()):
                yield f"{tree.name(path)}: {target}", f"{tree.name(path)}: {target}: no such heading"
