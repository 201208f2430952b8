-- A dataset of kymo as tables of DuckDB. /srv/profiles is the dataset: put your folder or
-- s3://bucket/path there (for S3 after INSTALL httpfs; LOAD httpfs; CREATE SECRET ...):
--
--     sed 's|/srv/profiles|s3://bucket/profiles|' deploy/duckdb/tables.sql deploy/views.sql |
--         cat - deploy/queries/top-functions.sql | duckdb
--
-- The partitions day and service are text, whatever they look like.
CREATE VIEW samples AS
SELECT * FROM read_parquet('/srv/profiles/samples/*/*/*.parquet',
    hive_partitioning = true, hive_types = {'day': VARCHAR, 'service': VARCHAR}, union_by_name = true);
CREATE VIEW stacks AS
SELECT * FROM read_parquet('/srv/profiles/stacks/*/*.parquet',
    hive_partitioning = true, hive_types = {'day': VARCHAR}, union_by_name = true);
CREATE VIEW frames AS SELECT * FROM read_parquet('/srv/profiles/frames/*.parquet', union_by_name = true);
CREATE VIEW builds AS SELECT * FROM read_parquet('/srv/profiles/builds/*.parquet', union_by_name = true);
CREATE VIEW hosts AS SELECT * FROM read_parquet('/srv/profiles/hosts/*.parquet', union_by_name = true);
