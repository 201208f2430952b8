"""Each check, shown a tree with just the fault that it guards against, and the same tree without it."""

import pathlib
import tempfile
import unittest

from . import documents, modules, names, unsafety
from .source import Tree

MANIFEST = '[package]\nname = "{}"\n[dependencies]\n{}\n'


class Checks(unittest.TestCase):
    def found(self, check, files):
        """The messages of one check about a tree of these files."""
        with tempfile.TemporaryDirectory() as root:
            for name, content in files.items():
                path = pathlib.Path(root, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
            return [message for _, message in check(Tree(root))]

    def held(self, check, faulty, sound):
        """Checks that a check finds one fault in the first tree and none in the second."""
        self.assertEqual(len(self.found(check, faulty)), 1, self.found(check, faulty))
        self.assertEqual(self.found(check, sound), [])

    def test_upward_arrows(self):
        def tree(used):
            return {
                "crates/kymo-perf/Cargo.toml": MANIFEST.format("kymo-perf", f"{used}.workspace = true"),
                f"crates/{used}/Cargo.toml": MANIFEST.format(used, ""),
            }

        self.held(modules.upward_arrows, tree("kymo-profile"), tree("kymo-core"))

    def test_a_crate_without_a_rank(self):
        tree = {"crates/new/Cargo.toml": MANIFEST.format("kymo-new", "")}
        self.assertEqual(len(self.found(modules.upward_arrows, tree)), 1)

    def test_circles(self):
        def tree(second):
            return {
                "crates/kymo-perf/src/lib.rs": "mod one; mod two;",
                "crates/kymo-perf/src/one.rs": "use crate::{two::Two, other::Thing}; use super::two;",
                "crates/kymo-perf/src/two.rs": second,
            }

        sound = "// use crate::one::One;\n#[cfg(test)]\nmod tests { use crate::one::One; }"
        self.held(modules.circles, tree("use crate::one::One;"), tree(sound))

    def test_a_circle_of_three_in_a_folder(self):
        tree = {
            "crates/kymo-perf/src/room/mod.rs": "mod a; mod b; mod c; pub use a::A;",
            "crates/kymo-perf/src/room/a.rs": "fn f() { super::b::g() }",
            "crates/kymo-perf/src/room/b.rs": "use crate::room::{c::{C, D}, Other};",
            "crates/kymo-perf/src/room/c.rs": "use super::a;",
        }
        self.assertEqual(len(self.found(modules.circles, tree)), 1)

    def test_a_parent_and_its_child(self):
        tree = {
            "crates/kymo-perf/src/room/mod.rs": "mod a; use self::a::A;",
            "crates/kymo-perf/src/room/a.rs": "use super::Thing; use crate::room::Other;",
        }
        self.assertEqual(self.found(modules.circles, tree), [])

    def test_forbidden_names(self):
        def tree(name):
            return {"crates/kymo-perf/src/one.rs": f"pub(crate) struct {name};\n// struct Only;\n"}

        self.held(names.forbidden_names, tree("Only"), tree("FilteredProbe"))

    def test_shared_names(self):
        def tree(count):
            return {f"crates/kymo-perf/src/m{n}.rs": "enum Place {}\nimpl X for Y {\n    type Error = Z;\n}" for n in range(count)}

        self.held(names.shared_names, tree(4), tree(3))

    def test_long_functions(self):
        def tree(lines):
            body = "    step();\n" * (lines - 2)
            return {"crates/kymo-perf/src/one.rs": f"pub const fn long() {{\n{body}}}\n\nfn short();\n{body}"}

        self.held(names.long_functions, tree(101), tree(100))

    def test_unlisted_unsafe(self):
        def tree(name):
            return {
                "ARCHITECTURE.md": f"### `kymo-perf`: x\n**Invariant:** unsafe code is in `sys/`, `{name}` only.\n",
                "crates/kymo-perf/src/ring.rs": "fn f() { unsafe { g() } }",
                "crates/kymo-perf/src/sys/real.rs": "fn f() { unsafe { g() } }",
                "crates/kymo-perf/src/safe.rs": '// unsafe { }\nconst TEXT: &str = "unsafe {";',
            }

        self.held(unsafety.unlisted_unsafe, tree("other.rs"), tree("{other,ring}.rs"))

    def test_listed_without_need(self):
        def tree(code):
            return {
                "ARCHITECTURE.md": "### `kymo-perf`: x\nUnsafe code is in `ring.rs` only.\n",
                "crates/kymo-perf/src/ring.rs": code,
            }

        self.held(unsafety.listed_without_need, tree("fn f() {}"), tree("unsafe fn f() {}"))

    def test_dead_links(self):
        def tree(link):
            return {"README.md": f"See [it]({link}), [that](https://example.org/x).\n```\n[no](link)\n```\n", "docs/a.md": "# The end\n"}

        self.held(documents.dead_links, tree("docs/b.md"), tree("docs/a.md"))
        self.held(documents.dead_links, tree("docs/a.md#the-start"), tree("docs/a.md#the-end"))

    def test_long_sentences(self):
        def tree(words):
            return {"README.md": f"Before. {'Word, ' * words}[two words](README.md).\n\n- A new one.\n\n| {'cell ' * 50} |\n"}

        self.held(documents.long_sentences, tree(39), tree(38))
