"""Names of types and lengths of functions."""

import re
from collections import defaultdict

# Pronouns and bare participles cannot be searched for, and they collide.
FORBIDDEN = set(
    """How Hows What Only Back Kept Told Known Found Own Left Asked Wish House Talk Look Poke Walk Ground Recipe
    Wanted Books Seat Pedal Shot Mail Bell Sweep Ticks NoCondition Manager Utils Helper""".split()
)
MOST_OF_A_NAME = 3
MOST_LINES = 100
TYPE = re.compile(r"^ *(?:pub(?:\([^)]*\))? )?(?:struct|enum|union|trait|type) (\w+)", re.MULTILINE)


def types(tree):
    """All types outside of tests: name and place."""
    for file in tree.rust:
        if file.is_test():
            continue
        for match in TYPE.finditer(file.code):
            if match.group(0).startswith(" ") and match.group(0).split()[-2] == "type":
                continue  # An associated type has the name that its trait gives it.
            yield match.group(1), f"{file.path}:{file.code.count(chr(10), 0, match.start()) + 1}"


def forbidden_names(tree):
    """A type's name says nothing that could be searched for."""
    for name, place in types(tree):
        if name in FORBIDDEN:
            yield f"{place.split(':')[0]}: {name}", f"{place}: a type is called {name}; name the thing that it is"


def shared_names(tree):
    """More than three types have the same name."""
    places = defaultdict(list)
    for name, place in types(tree):
        places[name].append(place)
    for name, found in sorted(places.items()):
        if len(found) > MOST_OF_A_NAME:
            yield name, f"{len(found)} types are called {name}: {', '.join(found)}"


def long_functions(tree):
    """A function does not fit on a screen or two."""
    for file in tree.rust:
        lines = file.code.split("\n")
        for at, line in enumerate(lines):
            match = re.match(r"( *)(?:pub(?:\([^)]*\))? )?(?:const |async |unsafe |extern *)*fn (\w+)", line)
            if not match:
                continue
            end = next((n for n in range(at, len(lines)) if ends(lines[n], match.group(1))), at)
            if end - at + 1 > MOST_LINES:
                yield (
                    f"{file.path}: {match.group(2)}",
                    f"{file.path}:{at + 1}: {match.group(2)} has {end - at + 1} lines, {MOST_LINES} at most",
                )


def ends(line, indent):
    """Whether a formatted function with this indent ends here: its brace, a body on one line, or none."""
    return line.startswith(indent + "}") or line.rstrip().endswith(";") and line.startswith(indent) and (
        not line[len(indent) : len(indent) + 1].isspace()
    )
