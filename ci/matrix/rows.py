"""What is tried in each kernel, what must come of it, and whether it did."""

import dataclasses
import re
import tomllib

# What a row may say about its commands.
KEYS = {"name", "title", "run", "says", "never", "status", "refused", "limit", "variants", "nightly"}


@dataclasses.dataclass(frozen=True)
class Row:
    """Commands, and what they print and end with where they work."""

    group: str
    name: str
    # In the words of the table of the book.
    title: str
    run: str
    # Regular expressions that are found in the output, and such that are not.
    says: tuple = ()
    never: tuple = ()
    status: int = 0
    # The status of a refusal, as documented.
    refused: int = 1
    # Seconds until the commands are ended, on a machine with nothing else to do.
    limit: int = 60
    # In which variants of the machine, besides the plain one.
    variants: tuple = ()
    # Only there.
    nightly: bool = False


@dataclasses.dataclass(frozen=True)
class Expectation:
    """Whether it works, and why not; or what is said although it works. Quoted words are in the output."""

    works: bool
    reason: str = ""

    def words(self):
        """What kymo must say."""
        return re.findall(r'"([^"]+)"', self.reason)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How the commands of a row ended, what they printed, and how long they took."""

    status: int
    output: str
    milliseconds: int = 0


def read_rows(path):
    """The rows of a file, in its order: a table of TOML for each group."""
    rows = []
    for group, tables in tomllib.loads(path.read_text()).items():
        for table in tables:
            unknown = set(table) - KEYS
            if unknown:
                raise ValueError(f"{path.name}: {group}: unknown {', '.join(sorted(unknown))}")
            lists = {key: tuple(table.get(key, ())) for key in ("says", "never", "variants")}
            rows.append(Row(group=group, **{**table, **lists}))
    names = [row.name for row in rows]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"{path.name}: more than one row {', '.join(sorted(twice))}")
    return rows


def read_expectations(path):
    """From a row's name to what is expected: lines of `row: yes`, `row: yes: REMARK` or `row: no: REASON`."""
    expected = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        name, answer, *reason = line.split(": ", 2)
        if answer not in ("yes", "no"):
            raise ValueError(f"{path.name}:{number}: neither yes nor no: {line}")
        expectation = Expectation(answer == "yes", *reason)
        if not expectation.works and not expectation.words():
            raise ValueError(f"{path.name}:{number}: a no needs a reason with quoted words of kymo's message: {line}")
        if name in expected:
            raise ValueError(f"{path.name}:{number}: {name} is there already")
        expected[name] = expectation
    return expected


def deviation(row, expectation, outcome):
    """How an outcome differs from what is expected, in a sentence; None where it does not."""
    if expectation is None:
        return "no expectation is written down"
    if outcome is None:
        return "it did not run"
    # Messages break where a terminal would end.
    output = " ".join(outcome.output.split())
    missing = [word for word in expectation.words() if word not in output]
    status = row.status if expectation.works else row.refused
    if outcome.status in (124, 137) and status != outcome.status:
        return f"it did not end within {row.limit} s"
    if outcome.status != status:
        return f"it ended with {outcome.status}, not {status}"
    if missing:
        return f"it does not say {missing[0]!r}"
    if not expectation.works:
        return None
    for pattern in row.says:
        if not re.search(pattern, outcome.output, re.M):
            return f"nothing in its output is {pattern!r}"
    for pattern in row.never:
        if found := re.search(pattern, outcome.output, re.M):
            return f"its output has {found.group()!r}"
    return None


def commands(rows, slowness):
    """The shell commands of the guest for these rows, where all takes so many times as long."""
    head = f"export SLOW={slowness}\n"
    return head + "".join(f"row {row.name} {row.limit * slowness} <<'END_OF_ROW'\n{row.run.strip()}\nEND_OF_ROW\n" for row in rows)
