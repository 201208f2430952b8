"""The packages that kymo is built from: their licences, their versions, and the Rust that they need."""

import json
import posixpath
import re
import subprocess
import tomllib
from collections import defaultdict

# Licences that may be in a binary under kymo's own, MIT or Apache-2.0. CDDL (inferno) binds its own files only.
LICENCES = {"MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "Zlib", "Unlicense", "0BSD", "Unicode-3.0", "CDDL-1.0"}
# Public domain: tiny-keccak, which cargo names and builds for WebAssembly only.
LICENCES |= {"CC0-1.0"}
# The target whose packages count: others are never downloaded.
TARGET = "x86_64-unknown-linux-gnu"


class Unavailable(Exception):
    """Why cargo does not describe the packages."""


def metadata(root):
    """All packages as cargo describes them, without the network."""
    command = ["cargo", "metadata", "--locked", "--offline", "--format-version=1", f"--filter-platform={TARGET}"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        raise Unavailable(f"cargo metadata does not run here: {reason}") from error
    whole = json.loads(done.stdout)
    used = {node["id"] for node in whole["resolve"]["nodes"]}
    return [package for package in whole["packages"] if package["id"] in used]


def rust_version(tree):
    """README.md and the workspace name different versions of Rust, or a crate has its own."""
    manifest = tree.root / "Cargo.toml"
    if not manifest.exists():
        return
    version = tomllib.loads(manifest.read_text())["workspace"]["package"]["rust-version"]
    readme = re.findall(r"Rust (\d+\.\d+)", (tree.root / "README.md").read_text())
    if readme != [version]:
        yield "README.md", f"README.md needs Rust {', '.join(readme) or '(none)'}, Cargo.toml needs {version}"
    for path in tree.manifests:
        if tomllib.loads(path.read_text())["package"].get("rust-version") != {"workspace": True}:
            yield tree.name(path), f"{tree.name(path)}: `rust-version.workspace = true` is missing"


def permitted(expression):
    """Whether an SPDX expression leaves a choice of which each licence is permitted."""
    expression = expression.replace("/", " OR ")
    words = re.findall(r"\(|\)|\bAND\b|\bOR\b|[\w.+-]+(?: WITH [\w.+-]+)?", expression)
    python = {"(": "(", ")": ")", "AND": "and", "OR": "or"}
    try:
        # Nothing but parentheses, `and`, `or`, `True` and `False`.
        return bool(eval(" ".join(python.get(word, str(word in LICENCES)) for word in words)))
    except SyntaxError:
        return False


def files_outside(tree):
    """A crate's source includes a file outside of the crate's folder: its package does not have that."""
    for file in tree.rust:
        if file.is_test():
            continue
        folder = f"crates/{file.crate}/"
        for name in re.findall(r'\binclude(?:_str|_bytes)?!\(\s*"([^"]+)"', file.text):
            path = posixpath.normpath(posixpath.join(posixpath.dirname(file.path), name))
            if not path.startswith(folder):
                yield f"{file.path}: {name}", f"{file.path} includes {path}, which no package of {file.crate} has"


def licences(tree):
    """A package has a licence that kymo's own does not permit."""
    for package in tree.packages:
        expression = package["license"] or "none"
        if not permitted(expression):
            yield package["name"], f"{package['name']} {package['version']}: its licence is {expression}"


def duplicates(tree):
    """A package is built in two versions."""
    versions = defaultdict(set)
    for package in tree.packages:
        versions[package["name"]].add(package["version"])
    for name, found in sorted(versions.items()):
        if len(found) > 1:
            yield name, f"{name} is built in {len(found)} versions: {', '.join(sorted(found))}"
