"""Asks ClickHouse's engine: `ask_chdb.py DEPLOY DATASET QUERY.sql...`. Runs in the environment of the engines."""

import json
import pathlib
import sys

from chdb import session

deploy, dataset, queries = pathlib.Path(sys.argv[1]), sys.argv[2], map(pathlib.Path, sys.argv[3:])


def statements(text):
    """The statements of a file, without its comments."""
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    return [statement for statement in "\n".join(lines).split(";\n") if statement.strip()]


engine = session.Session()
for statement in statements((deploy / "clickhouse/tables.sql").read_text().replace("/srv/profiles", dataset)):
    engine.query(statement)
for statement in statements((deploy / "views.sql").read_text()):
    engine.query(statement)
for query in queries:
    found = json.loads(str(engine.query(query.read_text(), "JSONCompact")))
    columns = [column["name"] for column in found["meta"]]
    print(json.dumps({"query": query.stem, "columns": columns, "rows": found["data"]}))
