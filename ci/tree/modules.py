"""Which part knows which: crates by their manifests, modules by the paths that they name."""

import re
import tomllib

from .source import without_test_modules

# A crate may use those of lower ranks. `kymo-testing` serves tests of all.
RANKS = [
    {"kymo-core", "kymo-data", "kymo-embed", "kymo-files", "kymo-testing"},
    {"kymo-symbols", "kymo-perf", "kymo-agent"},
    {"kymo-profile"},
    {"kymo-dataset", "kymo-record"},
    {"kymo-probe"},
    {"kymo-cli"},
    {"kymo-bench", "kymo-view"},
    {"kymo-mcp"},
    {"kymo"},
]
RANK = {crate: rank for rank, crates in enumerate(RANKS) for crate in crates}


def upward_arrows(tree):
    """A crate depends on one of a higher or the same rank."""
    for manifest in tree.manifests:
        content = tomllib.loads(manifest.read_text())
        crate = content["package"]["name"]
        if crate not in RANK:
            yield f"{crate}: has no rank", f"{tree.name(manifest)}: give {crate} a rank in ci/tree/modules.py"
        for used in content.get("dependencies", {}):
            if used in RANK and RANK[used] >= RANK.get(crate, len(RANKS)):
                yield f"{crate} -> {used}", f"{tree.name(manifest)}: {crate} uses {used}, which is not below it"


def circles(tree):
    """Modules of a crate use each other in a circle. A parent and its child may."""
    crates = {}
    for file in tree.rust:
        if not file.is_test():
            crates.setdefault(file.crate, {})[file.module()] = file
    for crate, files in sorted(crates.items()):
        graph = {module: uses(module, file, files) for module, file in files.items()}
        for circle in components(graph):
            names = " <-> ".join("::".join(module) or "crate" for module in sorted(circle))
            yield f"{crate}: {names}", f"crates/{crate}: a circle of modules: {names}"


def uses(module, file, files):
    """The modules that a file's paths lead to, but for its ancestors and descendants."""
    found = set()
    for path in paths(without_test_modules(file.code)):
        target = resolve(module, path, files)
        if target is not None and target != module and not related(target, module):
            found.add(target)
    return found


def related(one, other):
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def paths(code):
    """All paths that begin at `crate`, `super` or `self`, with the groups of `use` spread."""
    for match in re.finditer(r"\b(?:crate|super|self)(?:::\w+)*(?:::(?=\{))?", code):
        begin = match.group(0).removesuffix("::").split("::")
        if code[match.end() : match.end() + 1] == "{" and match.group(0).endswith("::"):
            yield from ([*begin, *rest] for rest in spread(code, match.end() + 1)[0])
        else:
            yield begin


def spread(code, at):
    """The paths in a group that opens before `at`, and where it ends."""
    found, path = [], []
    while at < len(code):
        token = re.compile(r"\s*(\w+|::|[{},*])").match(code, at)
        if not token:
            return found, at
        at = token.end()
        match token.group(1):
            case "::":
                pass
            case "{":
                inner, at = spread(code, at)
                found += [[*path, *rest] for rest in inner]
                path = []
            case "," | "}" as end:
                if path:
                    found.append(path)
                path = []
                if end == "}":
                    return found, at
            case word:
                path.append(word)
    return found, at


def resolve(module, path, files):
    """The module with a file of its own that a path leads to, or none."""
    base = list(module)
    if path[0] == "crate":
        base = []
    names = path[1:]
    if path[0] == "super":
        base = base[:-1]
        while names and names[0] == "super":
            base, names = base[:-1], names[1:]
    whole = tuple(base + names)
    for length in range(len(whole), len(base) - 1, -1):
        if whole[:length] in files:
            return whole[:length] or None
    return None


def components(graph):
    """The strongly connected components of more than one module (Tarjan)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for following in sorted(graph[node]):
            if following not in index:
                visit(following)
                low[node] = min(low[node], low[following])
            elif following in on_stack:
                low[node] = min(low[node], index[following])
        if low[node] == index[node]:
            component = set()
            while node not in component:
                component.add(stack.pop())
            on_stack.difference_update(component)
            if len(component) > 1:
                found.append(component)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found
