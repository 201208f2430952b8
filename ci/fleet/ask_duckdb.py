"""Asks DuckDB: `ask_duckdb.py DEPLOY DATASET QUERY.sql...`. Runs in the environment of the engines."""

import json
import pathlib
import sys

import duckdb

deploy, dataset, queries = pathlib.Path(sys.argv[1]), sys.argv[2], map(pathlib.Path, sys.argv[3:])
connection = duckdb.connect()
connection.execute((deploy / "duckdb/tables.sql").read_text().replace("/srv/profiles", dataset))
connection.execute((deploy / "views.sql").read_text())
for query in queries:
    found = connection.execute(query.read_text())
    columns = [column[0] for column in found.description]
    print(json.dumps({"query": query.stem, "columns": columns, "rows": found.fetchall()}))
