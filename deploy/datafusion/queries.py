#!/usr/bin/env python3
"""Runs queries over a dataset of kymo by DataFusion's Python package.

    pip install datafusion
    deploy/datafusion/queries.py DATASET QUERY.sql...

DATASET is a folder. Each answer is a line of JSON on stdout: {"query": NAME, "columns": [...], "rows": [[...], ...]}.
"""

import argparse
import json
import pathlib

import pyarrow
from datafusion import SessionContext

VIEWS = pathlib.Path(__file__).parent.parent / "views.sql"
PARTITIONS = {"samples": ["day", "service"], "stacks": ["day"], "frames": [], "builds": [], "hosts": []}


def tables(dataset):
    """A session with the five tables and the three views. Days and services are text, whatever they look like."""
    context = SessionContext()
    for table, partitions in PARTITIONS.items():
        columns = [(name, pyarrow.string()) for name in partitions]
        context.register_parquet(table, f"{dataset / table}/", table_partition_cols=columns)
    for statement in VIEWS.read_text().split(";"):
        if "CREATE VIEW" in statement:
            context.sql(statement)
    return context


def main():
    parser = argparse.ArgumentParser(description="Run queries over a dataset of kymo by DataFusion.")
    parser.add_argument("dataset", type=pathlib.Path)
    parser.add_argument("queries", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    context = tables(args.dataset)
    for query in args.queries:
        found = context.sql(query.read_text()).to_arrow_table()
        rows = [list(row.values()) for row in found.to_pylist()]
        print(json.dumps({"query": query.stem, "columns": found.column_names, "rows": rows}, default=str), flush=True)


if __name__ == "__main__":
    main()
