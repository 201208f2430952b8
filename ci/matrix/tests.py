"""What the matrix does without a machine: reading its data, judging what rows did, and writing the table."""

import io
import pathlib
import subprocess
import tarfile
import tempfile
import unittest

from . import __main__ as command
from . import machine, rows, table, variants

HERE = pathlib.Path(__file__).parent
ROW = rows.Row("Recording", "record", "a command", "kymo record", says=("lost 0 samples", r"[1-9]\d* samples\)"), never=("panicked",))
YES = rows.Expectation(True)
NO = rows.Expectation(False, 'the kernel has none of it ("no such event")')


def written(read, text):
    """What a reader makes of a file with this text."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "data")
        path.write_text(text)
        return read(path)


class Data(unittest.TestCase):
    def test_the_rows_can_be_read(self):
        """Checks that the rows are sound, that their regular expressions are, and that they name known variants."""
        all_rows = command.read_all_rows()
        self.assertGreater(len(all_rows), 40)
        for row in all_rows:
            self.assertIsNotNone(rows.deviation(row, YES, rows.Outcome(-1, "")))
            self.assertLessEqual(set(row.variants), {variant.name for variant in variants.NIGHTLY}, row.name)

    def test_each_row_is_expected_something_of_on_each_kernel(self):
        """Checks that every kernel has a line for every row and none for others."""
        all_rows = command.read_all_rows()
        names = {row.name for row in variants.PLAIN.rows(all_rows)}
        for kernel in machine.SUITES:
            self.assertEqual(set(rows.read_expectations(HERE / "expected" / kernel)), names, kernel)
        for path in (HERE / "expected").glob("*-*"):
            kernel, variant = path.name.split("-", 1)
            self.assertIn(kernel, machine.SUITES)
            self.assertIn(variant, {one.name for one in variants.NIGHTLY})
            self.assertLessEqual(set(rows.read_expectations(path)), {row.name for row in all_rows}, path.name)

    def test_a_word_that_no_row_knows(self):
        """Checks that a misspelt key and a name used twice are refused."""
        for text in ('[[A]]\nname = "a"\ntitle = "a"\nrun = "a"\nsay = []\n', '[[A]]\nname = "a"\ntitle = "a"\nrun = "a"\n' * 2):
            with self.assertRaises(ValueError):
                written(rows.read_rows, text)

    def test_expectations(self):
        """Checks the three forms of a line, and that a no needs words of kymo's message."""
        read = written(rows.read_expectations, '# a comment\n\na: yes\nb: yes: slowly ("by steps")\nc: no: too old ("Linux 6.6")\n')
        self.assertEqual(read["a"], YES)
        self.assertEqual(read["b"].words(), ["by steps"])
        self.assertEqual((read["c"].works, read["c"].words()), (False, ["Linux 6.6"]))
        for text in ("a: no: it is too old\n", "a: perhaps\n", "a: yes\na: yes\n"):
            with self.assertRaises(ValueError):
                written(rows.read_expectations, text)


class Judgement(unittest.TestCase):
    def held(self, expectation, status, output):
        return rows.deviation(ROW, expectation, rows.Outcome(status, output)) is None

    def test_what_works(self):
        """Checks that status, wanted words and unwanted words decide."""
        good = "wrote 1 MB (12 samples) ]\nlost 0 samples"
        self.assertTrue(self.held(YES, 0, good))
        self.assertFalse(self.held(YES, 1, good))
        self.assertFalse(self.held(YES, 0, good.replace("12", "0")))
        self.assertFalse(self.held(YES, 0, good + "\npanicked"))
        self.assertFalse(self.held(rows.Expectation(True, 'said, too: "slowly"'), 0, good))

    def test_what_is_refused(self):
        """Checks that a refusal has the documented status and the words, wherever lines break."""
        self.assertTrue(self.held(NO, 1, "kymo: no such\n  event here"))
        self.assertFalse(self.held(NO, 0, "kymo: no such event"))
        self.assertFalse(self.held(NO, 139, "kymo: no such event"))
        self.assertFalse(self.held(NO, 1, "kymo: failed"))
        # It works now: the table is to be corrected.
        self.assertFalse(self.held(NO, 0, "wrote (12 samples) ]\nlost 0 samples"))

    def test_what_did_not_end(self):
        """Checks that rows without an end, without a result or without an expectation are deviations."""
        self.assertIn("did not end", rows.deviation(ROW, YES, rows.Outcome(124, "")))
        self.assertIn("did not run", rows.deviation(ROW, YES, None))
        self.assertIn("no expectation", rows.deviation(ROW, None, rows.Outcome(0, "")))


class Machines(unittest.TestCase):
    def test_commands(self):
        """Checks that each row's commands reach the guest as they are."""
        self.assertIn("row record 120 <<'END_OF_ROW'\nkymo record\nEND_OF_ROW\n", rows.commands([ROW], 2))

    def test_results(self):
        """Checks that outcomes are read from what the guest hands back, and that nothing is none."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "results.tar")
            with tarfile.open(path, "w") as archive:
                for name, content in (("./record.said", b"hello\xff"), ("./record.end", b"3 250\n"), ("./late.said", b"")):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
            self.assertEqual(machine.read_results(path), {"record": rows.Outcome(3, "hello\ufffd", 250)})
            path.write_bytes(bytes(1 << 20))
            self.assertEqual(machine.read_results(path), {})

    def test_variants(self):
        """Checks which rows run where."""
        nocg = next(one for one in variants.NIGHTLY if one.name == "nocg")
        self.assertEqual(variants.PLAIN.rows([ROW]), [ROW])
        self.assertEqual(nocg.rows([ROW]), [])
        self.assertEqual(variants.online(range(2, 5)), "matrix.online=2,3,4")


# What perf prints of a function of the kernel.
ANNOTATED = """\
 Samples |\tSource code & Disassembly of kcore for cpu-clock (7 samples, percent: local period)
-----------------------------------------------------------------------------------------
         : 3                Disassembly of section load0:
         : 5                ffffffff81cbc560 <load0>:
       0 :   ffffffff81cbc560:       nopl   0x0(%rax,%rax,1)
       7 :   ffffffff81cbc565:       ret
"""


class KernelCode(unittest.TestCase):
    def compared(self, kymo, perf=ANNOTATED, status=0):
        """What the guest says of what perf, which ends with a status, and kymo print."""
        with tempfile.TemporaryDirectory() as folder:
            for tool, text in (("perf", perf), ("kymo", kymo)):
                pathlib.Path(folder, f"{tool}.text").write_text(text)
            perf = f"perf() {{ cat perf.text; return {status}; }}"
            script = f'{perf}; kymo() {{ cat kymo.text; }}; same_kernel_code "recording"'
            command = ["bash", "-c", f". {HERE.resolve() / 'guest/lib.sh'}; {script}"]
            return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout

    def test_same(self):
        """Checks that words for operands and names, and padding, are no differences, and that programs are left out."""
        kymo = ANNOTATED.replace("0x0(%rax,%rax,1)", "(%rax,%rax)").replace("load0", "default_idle")
        kymo += "       0 :   ffffffff81cbc566:       nopw   (%rax,%rax)\n"
        kymo += " Samples |\tSource code & Disassembly of work for cpu-clock (1 samples)\n       1 :   1330:   ret\n"
        said = self.compared(kymo)
        self.assertIn("functions: 1 instructions: 2 with samples: 1 samples: 7\n", said)
        self.assertIn("differences: 0\n", said)

    def test_crash(self):
        """Checks that of a perf that crashes the functions before are compared, and that this is said."""
        second = ANNOTATED.replace("ffffffff81cbc56", "ffffffff82cbc56")
        cut = second[: second.index("       7 :")]
        said = self.compared(ANNOTATED + second, ANNOTATED + cut, 139)
        self.assertIn("ended by signal 11\n", said)
        self.assertIn("functions: 1 instructions: 2 ", said)
        self.assertIn("differences: 0\n", said)
        said = self.compared(ANNOTATED.replace(" 7 :", " 8 :") + second, ANNOTATED + cut, 139)
        self.assertRegex(said, "(?m)^differences: [1-9]")
        self.assertRegex(self.compared(ANNOTATED + second, ANNOTATED + cut), "(?m)^differences: [1-9]")

    def test_different(self):
        """Checks that counts, addresses, ends and starts of functions are compared."""
        padding = "       2 :   ffffffff81cbc566:       nop\n"
        for kymo in (
            ANNOTATED.replace(" 7 :", " 8 :"),
            ANNOTATED.replace("ffffffff81cbc565:", "ffffffff81cbc564:"),
            ANNOTATED + padding,
            ANNOTATED.replace("       7 :", " Samples | Disassembly of kcore for cpu-clock\n       7 :"),
            "",
        ):
            self.assertRegex(self.compared(kymo), "(?m)^differences: [1-9]", kymo)


class Page(unittest.TestCase):
    def test_each_no_has_its_reason(self):
        """Checks the cells of the table, that equal reasons are one note, and that a deviation is no answer."""
        refused = rows.Outcome(1, "no such event")
        results = [
            table.Result("5.10", "plain", ROW, NO, refused),
            table.Result("6.1", "plain", ROW, NO, refused),
            table.Result("6.12", "plain", ROW, YES, rows.Outcome(0, "(1 samples) lost 0 samples")),
            table.Result("7.2", "plain", ROW, YES, refused),
        ]
        page = table.page(results, {name: f"{name}.1" for name in machine.SUITES}, [])
        self.assertIn("| a command | no (1) | no (1) | yes | **not as expected** |", page)
        self.assertIn('1. the kernel has none of it ("no such event").', page)
        self.assertNotIn("\n2. ", page)
        untried = table.page([table.Result("5.10", "plain", ROW, YES, None)], {"5.10": "5.10.1"}, [])
        self.assertIn("| a command | not tried |", untried)


if __name__ == "__main__":
    unittest.main()
