"""The tables of `kymo export --to parquet`: DuckDB by a query, and PyArrow by its columns."""

from collections import defaultdict

from .install import PYTHON_TABLES
from .report import Mismatch, Sums, compare

# The views of docs/reference/formats/dataset.md, and self and total of each function.
QUERY = """
WITH locations AS (
    SELECT location_id, inline_depth, MAX(function) AS function, MAX(module) AS module
    FROM read_parquet('{0}/frames/*.parquet') GROUP BY location_id, inline_depth
), stack_frames AS (
    SELECT s.stack_id, s.depth, l.inline_depth,
        CASE WHEN l.function IS NOT NULL THEN l.function
             WHEN l.module LIKE '[%' THEN l.module ELSE '[' || l.module || ']' END AS function
    FROM (SELECT DISTINCT stack_id, depth, location_id
          FROM read_parquet('{0}/stacks/*/*.parquet', hive_partitioning=true)) s
    JOIN locations l ON l.location_id = s.location_id
), per_stack AS (
    SELECT stack_id, function, MAX(CASE WHEN depth = 0 AND inline_depth = 0 THEN 1 ELSE 0 END) AS is_self
    FROM stack_frames GROUP BY stack_id, function
)
SELECT x.event, p.function,
    SUM(x.samples * p.is_self), SUM(x.samples), SUM(x.value * p.is_self), SUM(x.value)
FROM read_parquet('{0}/samples/*/*/*.parquet', hive_partitioning=true, hive_types={{'service': VARCHAR}}) x
JOIN per_stack p ON p.stack_id = x.stack_id GROUP BY x.event, p.function
"""


def checked(kymo, recording, found):
    """`found`: by event and function self and total of samples, and the same of periods."""
    count = 0
    for number, event in enumerate(kymo.events(recording)):
        of_event = {name: sums for (of, name), sums in found.items() if of == event}
        for what, at in (("samples", 0), ("period", 2)):
            sums = {name: (int(sums[at]), int(sums[at + 1])) for name, sums in of_event.items() if sums[at + 1]}
            count += compare(kymo.sums(recording, number, what), sums, f"{event}, {what}")
    return count


class DuckDb:
    """DuckDB, with the joins that the page of the format gives."""

    def __init__(self, installed):
        installed.python("python-tables", PYTHON_TABLES)

    def compare(self, kymo, recording, folder):
        import duckdb

        dataset = kymo.export(recording, "parquet", folder / "dataset")
        rows = duckdb.connect().execute(QUERY.format(dataset)).fetchall()
        return checked(kymo, recording, {(event, name): sums for event, name, *sums in rows})


class PyArrow:
    """PyArrow's reader of Parquet, which is Arrow's C++ one; the sums are made here."""

    def __init__(self, installed):
        installed.python("python-tables", PYTHON_TABLES)

    def compare(self, kymo, recording, folder):
        dataset = kymo.export(recording, "parquet", folder / "dataset")
        frames = defaultdict(dict)
        for row in self.rows(dataset / "frames"):
            module = row["module"] if row["module"].startswith("[") else f"[{row['module']}]"
            frames[row["location_id"]][row["inline_depth"]] = row["function"] or module
        stacks = defaultdict(dict)
        for row in self.rows(dataset / "stacks"):
            stacks[row["stack_id"]][row["depth"]] = row["location_id"]
        found = defaultdict(lambda: (Sums(), Sums()))
        for row in self.rows(dataset / "samples"):
            stack = stacks[row["stack_id"]]
            locations = [frames[stack[depth]] for depth in sorted(stack)]
            names = [location[depth] for location in locations for depth in sorted(location)]
            for sums, weight in zip(found[row["event"]], (row["samples"], row["value"])):
                sums.add(names[::-1], weight)
        pairs = {}
        for event, (samples, values) in found.items():
            for name in samples.total.keys() | values.total.keys():
                sums = (samples.own[name], samples.total[name], values.own[name], values.total[name])
                pairs[event, name] = sums
        return checked(kymo, recording, pairs)

    @staticmethod
    def rows(folder):
        import pyarrow.parquet as parquet

        files = sorted(folder.rglob("*.parquet"))
        if not files:
            raise Mismatch(f"{folder} has no files")
        for file in files:
            table = parquet.ParquetFile(file)
            if table.metadata.metadata[b"kymo.schema"] != b"1":
                raise Mismatch(f"{file} does not say its version")
            yield from table.read().to_pylist()
