"""The tree that the checks read: Rust files without their comments and strings, and which module each one is."""

import functools
import pathlib
import re

from . import packages

COMMENT_OR_STRING = re.compile(
    r"""//[^\n]*|/\*.*?\*/|b?r(?P<hashes>\#*)".*?"(?P=hashes)|b?"(?:\\.|[^"\\])*"|b?'(?:\\(?:u\{[^}]*\}|.[^']*)|[^\\'\n])'""",
    re.DOTALL | re.VERBOSE,
)


class RustFile:
    """One source file. `code` has the same lines as `text`, but neither comments nor the insides of strings."""

    def __init__(self, root, path):
        self.path = path.relative_to(root).as_posix()
        self.text = path.read_text()
        self.code = COMMENT_OR_STRING.sub(blank, self.text)
        parts = pathlib.PurePosixPath(self.path).parts
        self.crate = parts[1]
        self.room = parts[2]

    def module(self):
        """The module's path within its crate, as a tuple of names; the crate's root is empty."""
        names = list(pathlib.PurePosixPath(self.path).with_suffix("").parts[3:])
        if names[-1] in ("mod", "lib", "main"):
            names.pop()
        return tuple(names)

    def is_test(self):
        """Whether it is only built for tests, as far as its name says."""
        names = pathlib.PurePosixPath(self.path).with_suffix("").parts
        return self.room != "src" or any(name in ("tests", "loom", "testing") for name in names)


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def without_test_modules(code):
    """The code of a file up to its inline `#[cfg(test)] mod`, which stands last."""
    return re.split(r"#\[cfg\((?:all\()?test\b[^\]]*\]\s*mod \w+ \{", code, maxsplit=1)[0]


class Tree:
    """All that the checks look at below `root`."""

    def __init__(self, root):
        self.root = pathlib.Path(root)
        rust = sorted((self.root / "crates").glob("*/*/**/*.rs"))
        self.rust = [RustFile(self.root, path) for path in rust]
        self.manifests = sorted((self.root / "crates").glob("*/Cargo.toml"))
        tops = [*self.root.glob("*.md"), *self.root.glob("*/README.md"), *self.root.glob("fixtures/*/README.md")]
        pages = (self.root / "docs").rglob("*.md")
        self.documents = sorted({*tops, *pages})

    @functools.cached_property
    def packages(self):
        """All packages of the build, as `cargo metadata` describes them."""
        return packages.metadata(self.root)

    def name(self, path):
        return path.relative_to(self.root).as_posix()
