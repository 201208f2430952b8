-- A dataset of kymo as tables of ClickHouse. The files stay where they are and are read in place:
-- no copy, and new files are seen by the next query.
--
-- /srv/profiles is the dataset, as `file()` names it: below user_files of the server, or any folder
-- for `clickhouse local`. For object stores, sed makes s3() of it (s3Cluster('{cluster}', ...) lets
-- all nodes of a cluster read):
--
--     sed "s|file('/srv/profiles|s3('https://BUCKET.s3.REGION.amazonaws.com/profiles|" \
--         deploy/clickhouse/tables.sql deploy/views.sql | clickhouse-client --multiquery
--
-- Queries need these settings (put them into the profile of the user): joins, casts and functions
-- of NULL as in standard SQL.
SET join_use_nulls = 1;
SET cast_keep_nullable = 1;
SET union_default_mode = 'ALL';
SET use_hive_partitioning = 1;

CREATE VIEW samples AS
SELECT * FROM file('/srv/profiles/samples/*/*/*.parquet', Parquet,
    'time DateTime64(6, ''UTC''), host_id Int64, pid Int32, tid Nullable(Int32), command String,
     container Nullable(String), pod Nullable(String), systemd_unit Nullable(String),
     event String, value_unit String, state String, stack_id Int64, value Int64, samples Int64,
     leaf_location_id Nullable(Int64), waker Nullable(String), day String, service String');
CREATE VIEW stacks AS
SELECT * FROM file('/srv/profiles/stacks/*/*.parquet', Parquet,
    'stack_id Int64, depth Int32, location_id Int64, day String');
CREATE VIEW frames AS
SELECT * FROM file('/srv/profiles/frames/*.parquet', Parquet,
    'location_id Int64, inline_depth Int32, function Nullable(String), file Nullable(String),
     line Nullable(Int32), module String, build_id Nullable(String), address Int64, kind String');
CREATE VIEW builds AS
SELECT * FROM file('/srv/profiles/builds/*.parquet', Parquet,
    'build_id String, path String, module String, arch String, first_seen DateTime64(6, ''UTC''),
     code_bias Nullable(Int64)');
CREATE VIEW hosts AS
SELECT * FROM file('/srv/profiles/hosts/*.parquet', Parquet,
    'host_id Int64, host String, kernel String, arch String, cpus Int32, rate_hz Float64,
     kymo_version String, first_seen DateTime64(6, ''UTC'')');
