"""Queries over a dataset of many hosts, by `kymo sql`.

The program is started anew for each query, so that its start, the list of files and their footers count. The files are in
the page cache after the unmeasured round. The sizes of the tables are divided by the samples that the rows stand for.
`--dataset` is required: deploy/README.md says how one of 100 simulated hosts is made.
"""

import json
import subprocess
from pathlib import Path

from versus.runner import Refusal, alternate, measure, megabytes, seconds, spread, table

HELP = "queries over a dataset of many hosts"
TABLES = ["samples", "stacks", "frames", "builds", "hosts"]
QUERIES = Path(__file__).parent.parent.parent / "deploy/queries"
DEFAULT = Path(__file__).parent.parent.parent / "target/fleet/release/kymo-sql"


def add_arguments(parser):
    parser.add_argument("--dataset", metavar="DIR", required=True, help="the dataset")
    parser.add_argument("--kymo-sql", metavar="PATH", default=DEFAULT, help="the program (default: that of `make sql`)")
    parser.add_argument("--queries", default="top-functions", help="which queries of deploy/queries, or all")
    parser.add_argument("--jobs", type=int, default=2, help="threads of a query (default: 2)")


def run(bench, args):
    program, dataset = Path(args.kymo_sql).resolve(), Path(args.dataset).resolve()
    if not program.exists():
        raise Refusal(f"there is no {program}: `make sql` builds it")
    names = sorted(file.stem for file in QUERIES.glob("*.sql"))
    names = names if args.queries == "all" else args.queries.split(",")
    facts = facts_of(program, dataset)
    samples = facts["samples"]
    print(f"{samples} samples in {facts['rows']} rows, {facts['files']} files, {facts['bytes'] / samples:.2f} bytes a sample\n")
    competitors = {name: asker([program, "--csv", "--jobs", args.jobs, "--query", name, dataset]) for name in names}
    runs = alternate(competitors, args.rounds or 7, say=bench.say)
    result, rows = {}, []
    for name, of in runs.items():
        took = {"wall_s": spread([r.wall_s for r in of]), "cpu_s": spread([r.user_s + r.sys_s for r in of]),
                "peak_bytes": spread([r.peak_bytes for r in of])}
        result[name] = took
        rows.append([name, *(seconds(took["wall_s"][k]) for k in ("median", "min", "max")),
                     seconds(took["cpu_s"]["median"]), megabytes(took["peak_bytes"]["max"])])
    table(["query", "median", "min", "max", "cpu", "peak memory"], rows)
    return {"dataset": facts, "jobs": args.jobs, "queries": result}


def asker(command):
    return lambda: measure(command)


def facts_of(program, dataset):
    """How large the dataset is, and each table of it."""
    query = "SELECT COUNT(*) AS r, SUM(samples) AS s, COUNT(DISTINCT host_id) AS h FROM samples"
    answer = subprocess.run([program, "--json", query, dataset], check=True, stdout=subprocess.PIPE)
    [row] = json.loads(answer.stdout)["rows"]
    files = {name: list((dataset / name).rglob("*.parquet")) for name in TABLES}
    sizes = {name: sum(file.stat().st_size for file in of) for name, of in files.items()}
    return {"rows": row["r"], "samples": row["s"], "hosts": row["h"], "files": sum(map(len, files.values())),
            "bytes": sum(sizes.values()), "table_bytes": sizes, "bytes_a_sample": sum(sizes.values()) / row["s"]}
