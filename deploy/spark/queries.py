#!/usr/bin/env python3
"""Runs queries over a dataset of kymo on a Spark cluster.

    spark-submit --master spark://HOST:7077 deploy/spark/queries.py DATASET QUERY.sql...

DATASET is a folder that all workers see, or s3a://BUCKET/PATH (with hadoop-aws and its settings).
Each answer is a line of JSON on stdout: {"query": NAME, "columns": [...], "rows": [[...], ...]}.

A standalone cluster for it (each command on its own machine, or all on one):

    spark-class org.apache.spark.deploy.master.Master --host HOST --port 7077
    spark-class org.apache.spark.deploy.worker.Worker spark://HOST:7077 --cores 8 --memory 16g
"""

import argparse
import json
import pathlib
import sys

from pyspark.sql import SparkSession

VIEWS = pathlib.Path(__file__).parent.parent / "views.sql"
TABLES = ["samples", "stacks", "frames", "builds", "hosts"]


def session(master, settings):
    """A session in which text stays text: days and services are not guessed to be dates or numbers."""
    builder = SparkSession.builder.appName("kymo queries")
    if master:
        builder = builder.master(master)
    for setting in settings:
        builder = builder.config(*setting.split("=", 1))
    return (
        builder.config("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )


def register(spark, dataset):
    """The five tables and the three views, for this session only."""
    for table in TABLES:
        spark.read.option("mergeSchema", "true").parquet(f"{dataset}/{table}").createOrReplaceTempView(table)
    for statement in VIEWS.read_text().split(";"):
        if "CREATE VIEW" in statement:
            spark.sql(statement.replace("CREATE VIEW", "CREATE TEMPORARY VIEW"))


def main():
    parser = argparse.ArgumentParser(description="Run queries over a dataset of kymo on Spark.")
    parser.add_argument("dataset")
    parser.add_argument("queries", nargs="+", type=pathlib.Path)
    parser.add_argument("--master", help="spark://HOST:PORT, where spark-submit does not say it")
    parser.add_argument("--conf", action="append", default=[], help="KEY=VALUE, a setting of Spark")
    args = parser.parse_args()
    spark = session(args.master, args.conf)
    register(spark, args.dataset.rstrip("/"))
    for query in args.queries:
        found = spark.sql(query.read_text())
        rows = [list(row) for row in found.collect()]
        print(json.dumps({"query": query.stem, "columns": found.columns, "rows": rows}, default=str), flush=True)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
