#!/usr/bin/env python3
"""All engines give the same answers: `make test-fleet`.

    python3 -m ci.fleet                         # a small dataset that holds what is awkward
    python3 -m ci.fleet --dataset DIR           # this one
    python3 -m ci.fleet duckdb clickhouse       # these engines only, beside kymo sql

Every query of deploy/queries is asked of `kymo sql`, of a standalone cluster of Spark (a master and two workers, each a
process), of ClickHouse's engine (chdb), of DuckDB, of DataFusion's Python package and of Polars. Columns, rows, their order
and every digit must be the same; of Polars' fractions, which it divides in another order, nine digits. pyarrow reads the
files, too, and finds the same sums; and `ci.fleet.independent` computes each answer from them row by row, without SQL. The engines are installed into target/fleet-engines at the first run.
"""

import argparse
import contextlib
import json
import math
import operator
import os
import pathlib
import sys
import tempfile
import time

from . import engines
from .engines import ROOT, Failed

ENGINES = ["duckdb", "clickhouse", "datafusion", "polars", "spark"]


def is_close(value, other):
    """Whether two values are the same, fractions to nine digits."""
    if isinstance(value, float) or isinstance(other, float):
        return math.isclose(value, other, rel_tol=1e-9, abs_tol=1e-9)
    return value == other


def difference(expected, found, is_same):
    """What is not the same in two answers, or None."""
    (columns, rows), (other_columns, other_rows) = expected, found
    if columns != other_columns:
        return f"columns {other_columns} instead of {columns}"
    if len(rows) != len(other_rows):
        return f"{len(other_rows)} rows instead of {len(rows)}"
    for number, (row, other) in enumerate(zip(rows, other_rows)):
        if len(row) != len(other) or not all(map(is_same, row, other)):
            return f"row {number} is {other} instead of {row}"
    return None


def computed(python, dataset, expected):
    """What is not the same in the answers that are computed without SQL: fractions to nine digits."""
    wrong = []
    for line in engines.run([python, "-m", "ci.fleet.independent", dataset], cwd=ROOT).splitlines():
        answer = json.loads(line)
        query, rows = answer["query"], answer["rows"]
        if query not in expected:
            continue
        found = expected[query][1]
        is_whole = len(rows) == len(found) and all(all(map(is_close, *pair)) for pair in zip(rows, found))
        if not is_whole:
            wrong.append(f"kymo sql: {query}: {found[:3]}... instead of {rows[:3]}...")
    return wrong


def sums_of_pyarrow(python, dataset):
    """Rows, samples and value, as pyarrow reads them."""
    script = (
        "import json, sys, pyarrow.dataset as d, pyarrow.compute as c\n"
        "t = d.dataset(sys.argv[1] + '/samples', partitioning='hive').to_table(columns=['value', 'samples'])\n"
        "print(json.dumps([t.num_rows, c.sum(t['samples']).as_py(), c.sum(t['value']).as_py()]))\n"
    )
    return json.loads(engines.run([python, "-c", script, dataset]))


def sums_of_kymo(program, dataset):
    query = "SELECT COUNT(*) AS a, SUM(samples) AS b, SUM(value) AS c FROM samples"
    [row] = json.loads(engines.run([program, "--json", query, dataset]))["rows"]
    return [row["a"], row["b"], row["c"]]


def main():
    parser = argparse.ArgumentParser(description="Ask every engine the queries of deploy/queries.")
    parser.add_argument("only", nargs="*", choices=[[], *ENGINES], help="these engines only, beside kymo sql")
    target = ROOT / "target"
    parser.add_argument("--kymo-sql", type=pathlib.Path, default=target / "fleet/release/kymo-sql")
    parser.add_argument("--dataset", help="this dataset instead of a small one that is made")
    parser.add_argument("--query", action="append", help="this query only; may be given several times")
    args = parser.parse_args()
    python = engines.install(target / "fleet-engines")
    queries = sorted((ROOT / "deploy/queries").glob("*.sql"))
    queries = [query for query in queries if not args.query or query.stem in args.query]
    wrong = []
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kymo-fleet.")))
        dataset = args.dataset and os.path.abspath(args.dataset)
        if dataset is None:
            dataset = str(folder / "dataset")
            engines.run([python, "-m", "ci.fleet.synthetic", dataset], cwd=ROOT)
        start = time.monotonic()
        expected = engines.KymoSql(args.kymo_sql).ask(dataset, queries)
        print(f"kymo sql: {len(expected)} answers, {time.monotonic() - start:.1f} s", flush=True)
        for name, (_, rows) in expected.items():
            if not rows:
                wrong.append(f"{name} has no rows in this dataset, so that it compares nothing")
        known, read = sums_of_kymo(args.kymo_sql, dataset), sums_of_pyarrow(python, dataset)
        print(f"pyarrow: {read[0]} rows, {read[1]} samples, value {read[2]}", flush=True)
        if known != read:
            wrong.append(f"pyarrow reads rows, samples and value {read}, and kymo sql {known}")
        wrong += computed(python, dataset, expected)
        for name in args.only or ENGINES:
            start = time.monotonic()
            try:
                if name == "spark":
                    work = folder / "spark"
                    work.mkdir()
                    engine = stack.enter_context(engines.Spark(python, work))
                else:
                    engine = engines.scripts(python)[name]
                found = engine.ask(dataset, queries)
            except Failed as error:
                wrong.append(f"{name}: {error}")
                continue
            same, is_same = 0, operator.eq if engine.is_exact else is_close
            for query in expected:
                problem = difference(expected[query], found.get(query, ([], [])), is_same)
                if problem is None:
                    same += 1
                else:
                    wrong.append(f"{name}: {query}: {problem}")
            print(f"{name}: {same} of {len(expected)} answers are the same, {time.monotonic() - start:.1f} s", flush=True)
    for line in wrong:
        print(f"FAILED {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
