#!/bin/sh
# postgres.sh FOLDER: makes a database and runs queries in it, without a server, as the user postgres.
set -eu
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
cd "$1"
rm -rf data
mkdir data
chown postgres data
run() { setpriv --reuid postgres --regid postgres --clear-groups "$@"; }
run "$bin/initdb" -D "$PWD/data" -A trust --no-sync >/dev/null
run "$bin/postgres" --single -D "$PWD/data" postgres >/dev/null <<'SQL'
create table t as select i, md5(i::text) as name from generate_series(1, 200000) i;
select count(*), max(a.name) from t a join t b on a.i = b.i * 2 where a.name like '%a%';
select substr(name, 1, 2), sum(i), string_agg(name, ',' order by name) from t group by 1;
SQL
