#!/usr/bin/env python3
"""Runs queries over a dataset of kymo by Polars.

    pip install polars
    deploy/polars/queries.py DATASET QUERY.sql...

DATASET is a folder. Each answer is a line of JSON on stdout: {"query": NAME, "columns": [...], "rows": [[...], ...]}.
"""

import argparse
import json
import pathlib

import polars

VIEWS = pathlib.Path(__file__).parent.parent / "views.sql"
PARTITIONS = {"samples": ["day", "service"], "stacks": ["day"], "frames": [], "builds": [], "hosts": []}


def table(folder, partitions):
    """A table. Days and services are text, whatever they look like."""
    files = sorted(folder.rglob("*.parquet"))
    # Of all files: older ones lack columns.
    columns = {name: kind for file in files for name, kind in polars.read_parquet_schema(file).items()}
    return polars.scan_parquet(
        files, schema=columns, missing_columns="insert", hive_partitioning=bool(partitions),
        hive_schema={name: polars.String for name in partitions} or None,
    )


def tables(dataset):
    """The five tables and the three views."""
    context = polars.SQLContext({name: table(dataset / name, partitions) for name, partitions in PARTITIONS.items()})
    for statement in VIEWS.read_text().split(";"):
        _, view, text = statement.partition("CREATE VIEW ")
        if view:
            name, _, query = text.partition(" AS\n")
            context.register(name, context.execute(query))
    return context


def main():
    parser = argparse.ArgumentParser(description="Run queries over a dataset of kymo by Polars.")
    parser.add_argument("dataset", type=pathlib.Path)
    parser.add_argument("queries", nargs="+", type=pathlib.Path)
    args = parser.parse_args()
    context = tables(args.dataset)
    for query in args.queries:
        found = context.execute(query.read_text()).collect()
        answer = {"query": query.stem, "columns": found.columns, "rows": found.rows()}
        print(json.dumps(answer, default=str), flush=True)


if __name__ == "__main__":
    main()
