"""Each check, shown a tree with just the fault that it guards against, and the same tree without it."""

import functools
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from . import book, decisions, documents, modules, names, packages, unsafety
from .source import Tree

MANIFEST = '[package]\nname = "{}"\n[dependencies]\n{}\n'


class Checks(unittest.TestCase):
    def found(self, check, files, packages=()):
        """The messages of one check about a tree of these files and packages."""
        with tempfile.TemporaryDirectory() as root:
            for name, content in files.items():
                path = pathlib.Path(root, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(content)
            tree = Tree(root)
            tree.packages = packages
            return [message for _, message in check(tree)]

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

    def test_dead_paths(self):
        def tree(path):
            return {"crates/kymo-perf/src/one.rs": f"// See {path}, docs/*.md.\n", "docs/a.md": ""}

        self.held(documents.dead_paths, tree("docs/b.md"), tree("docs/a.md"))

    def test_dead_names(self):
        def tree(name):
            return {
                "ARCHITECTURE.md": f"`{name}` does it, and `cmd/` and `other/*.rs` do not.\n",
                "crates/kymo-perf/src/evlist/serial.rs": "",
                "crates/kymo-perf/build.rs": "",
            }

        self.held(documents.dead_names, tree("evlist/parallel.rs"), tree("evlist/serial.rs"))
        self.held(documents.dead_names, tree("rial.rs"), tree("build.rs"))

    def test_long_sentences(self):
        def tree(words):
            return {"README.md": f"Before. {'Word, ' * words}[two words](README.md).\n\n- A new one.\n\n| {'cell ' * 50} |\n"}

        self.held(documents.long_sentences, tree(39), tree(38))

    def test_long_sentences_of_the_book(self):
        tree = {"docs/tasks/a.md": f"# A\n\n{'word ' * 41}.\n"}
        self.assertEqual(len(self.found(documents.long_sentences, tree)), 1)

    def test_wide_documents(self):
        def tree(columns):
            return {"docs/a.md": f"{'x' * columns}\n\n| {'cell ' * 50} |\n\n```\n{'x' * 120}\n```\n"}

        self.held(documents.wide_documents, tree(101), tree(100))

    def test_wide_comments(self):
        def tree(count):
            comment = f"    /// {'x' * 100}\n"
            return {"crates/kymo-perf/src/one.rs": f"{comment * count}// Short.\nfn f() {{ \"{'x' * 100}\" }}\n"}

        self.held(functools.partial(documents.wide_comments, known=2), tree(3), tree(2))

    def test_pages_outside_the_book(self):
        def tree(listed):
            return {"docs/SUMMARY.md": f"- [One]({listed})\n", "docs/tasks/one.md": "# One\n", "README.md": ""}

        self.held(documents.pages_outside_the_book, tree("other.md"), tree("tasks/one.md"))

    def test_schemas_without_a_page(self):
        def tree(schema):
            return {
                "crates/kymo/src/one.rs": f'json!({{ "schema": "{schema}" }}); top.value("schema", "kymo-loss")?;',
                "docs/reference/formats/a.md": "`kymo-list`, `kymo-loss`",
            }

        self.held(documents.schemas_without_a_page, tree("kymo-new"), tree("kymo-list"))

    def test_rust_version(self):
        def tree(version):
            return {
                "Cargo.toml": '[workspace.package]\nrust-version = "1.88"\n',
                "README.md": f"Building needs Rust {version} or newer.\n",
            }

        self.held(packages.rust_version, tree("1.85"), tree("1.88"))
        crate = {"crates/new/Cargo.toml": '[package]\nname = "new"\nrust-version = "1.90"\n'}
        self.assertEqual(len(self.found(packages.rust_version, tree("1.88") | crate)), 1)

    def test_files_outside(self):
        def tree(name):
            return {"crates/one/src/page/mod.rs": f'const PAGE: &str = include_str!("{name}");'}

        self.held(packages.files_outside, tree("../../../../ui/page.html"), tree("../../ui/page.html"))

    def test_licences(self):
        def package(licence):
            return [{"name": "one", "version": "1.0.0", "license": licence}]

        for licence in ("GPL-3.0-only", "MIT AND GPL-2.0", "MIT AND", None, ""):
            self.assertEqual(len(self.found(packages.licences, {}, package(licence))), 1, licence)
        for licence in ("MIT/Apache-2.0", "GPL-2.0 OR MIT", "(MIT OR GPL-2.0) AND Unicode-3.0"):
            self.assertEqual(self.found(packages.licences, {}, package(licence)), [], licence)

    def test_duplicates(self):
        one, other = ({"name": "one", "version": version, "license": "MIT"} for version in ("1.0.0", "2.0.0"))
        self.assertEqual(len(self.found(packages.duplicates, {}, [one, other])), 1)
        self.assertEqual(self.found(packages.duplicates, {}, [one]), [])

    def test_the_packages_of_this_tree(self):
        root = pathlib.Path(__file__).resolve().parents[2]
        try:
            self.assertIn("kymo", {package["name"] for package in packages.metadata(root)})
        except packages.Unavailable as reason:
            self.skipTest(reason)

    def test_packages_that_cargo_does_not_describe(self):
        """Checks that the known findings of a check that cannot run are neither reported nor lost."""
        with tempfile.TemporaryDirectory() as folder:
            root, known = pathlib.Path(folder, "tree"), pathlib.Path(folder, "known.txt")
            (root / "crates").mkdir(parents=True)
            known.write_text("duplicates: one\n")
            main = [sys.executable, "-m", "ci.tree", f"--root={root}", f"--known={known}"]
            here = pathlib.Path(__file__).resolve().parents[2]
            # The skips of this made-up tree are none of `make test`.
            environment = {name: value for name, value in os.environ.items() if name != "KYMO_SKIP_LOG"}
            for arguments in ([], ["--rewrite"]):
                done = subprocess.run([*main, *arguments], cwd=here, capture_output=True, text=True, env=environment)
                self.assertEqual(done.returncode, 0, done.stdout)
                self.assertIn("SKIPPED ci::duplicates", done.stdout)
                self.assertEqual(known.read_text(), "duplicates: one\n")

    def test_each_decision(self):
        faults = {
            "objection": ("crates/kymo/src/cmd/one.rs", "fn objection_to(x: u8) {}"),
            "Operand": ("crates/kymo-core/src/one.rs", "pub struct Operand;"),
            "NOT_STARTED": ("crates/kymo-cli/src/exit.rs", "const NOT_STARTED: u8 = 255;"),
            "signals": ("crates/kymo/src/one.rs", "use signal_hook::consts;"),
            "events as text": ("crates/kymo/src/cmd/probe/one.rs", "Args::try_parse_from(words)"),
            "unwinding": ("crates/kymo-agent/src/one.rs", "std::panic::resume_unwind(payload)"),
            "engines": ("crates/kymo/src/cmd/one.rs", "use kymo_agent::patch::Patcher;"),
        }
        self.assertEqual(set(faults), {decision.name for decision in decisions.DECISIONS})
        for decision in decisions.DECISIONS:
            path, code = faults[decision.name]
            allowed = {path.replace(".rs", f"{n}.rs"): code for n in range(decision.files)}
            self.assertEqual(self.found(decisions.broken_decisions, allowed | {"crates/a/src/b.rs": f"// {code}"}), [])
            found = self.found(decisions.broken_decisions, allowed | {path: code})
            self.assertEqual(len(found), decision.files + 1, decision.name)

    def test_the_book(self):
        """Checks that a page's links, anchors and pictures lead somewhere, and that files of the tree come with it."""

        def problems(link):
            with tempfile.TemporaryDirectory() as folder:
                root, out = pathlib.Path(folder, "tree"), pathlib.Path(folder, "out")
                page = f'<h2 id="here">Here</h2><a href="{link}">it</a>'
                files = {
                    root / "docs/tasks/a.md": f"[it]({link})",
                    root / "bench/runs/one.json": "{}",
                    root / "bench/README.md": "",
                    root / "docs/README.md": "",
                    out / "docs/index.html": "",
                    root / "ARCHITECTURE.md": "[run](bench/runs/one.json) [book](docs/README.md)",
                    root / "docs/internals/architecture.md": "{{#include ../../ARCHITECTURE.md}}",
                    out / "docs/tasks/a.html": page + '<a href="../../ARCHITECTURE.html">architecture</a>',
                    out / "docs/internals/architecture.html": '<a href="bench/runs/one.json">run</a><a href="docs/README.html">book</a>',
                }
                for path, text in files.items():
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text)
                found = book.finish(root, out)
                self.assertTrue((out / "bench/runs/one.json").exists())
                architecture = (out / "docs/internals/architecture.html").read_text()
                self.assertIn("../../bench/runs/one.json", architecture)
                self.assertIn('"../index.html"', architecture)
                self.assertIn('"../internals/architecture.html"', (out / "docs/tasks/a.html").read_text())
                return found

        for dead in ("b.html", "#there", "../../bench/runs/two.json", "../internals/architecture.html#there"):
            self.assertEqual(len(problems(dead)), 1, dead)
        sound = ("#here", "a.html#here", "../index.html", "../../bench/README.html", "../../bench/runs/one.json", "https://example.org/x")
        for link in sound:
            self.assertEqual(problems(link), [], link)

    def test_rustdoc_warnings(self):
        """Checks that a broken link in a comment of the code fails `ci/rustdoc.sh`."""
        script = pathlib.Path(__file__).resolve().parents[1] / "rustdoc.sh"

        def status(comment):
            with tempfile.TemporaryDirectory() as root:
                pathlib.Path(root, "Cargo.toml").write_text('[package]\nname = "one"\nedition = "2024"\n')
                pathlib.Path(root, "Cargo.lock").write_text('version = 4\n\n[[package]]\nname = "one"\nversion = "0.0.0"\n')
                pathlib.Path(root, "src").mkdir()
                pathlib.Path(root, "src/lib.rs").write_text(f"//! {comment}\n")
                environment = os.environ | {"CARGO_TARGET_DIR": f"{root}/target"}
                return subprocess.run([script, root], capture_output=True, env=environment).returncode

        self.assertNotEqual(status("See [`Missing`]."), 0)
        self.assertEqual(status("See [`u8`]."), 0)
