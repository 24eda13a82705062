# PostgreSQL: pgbench on a cluster with checksums, then every table and index checked
# quick: striped/auto
# full: dir/auto dir/none dir/writeback striped/auto striped/none striped/writeback dir/none/* striped/none/*
. "$SUITE_HERE/lib.sh"
. "$SUITE_HERE/postgresql.sh"
need_postgresql
transactions=$(amount 50 2000) clients=$(if quick; then echo 4; else echo 16; fi)

cluster() {
    as_owner "$pg/initdb" -D "$PWD/pg" -k -A trust -U owner --no-instructions
    start
    as_owner "$pg/createdb" "${connect[@]}" bench
    as_owner "$pg/pgbench" "${connect[@]}" -i -q -s 1 bench
}

load() {
    as_owner "$pg/pgbench" "${connect[@]}" -n -c $clients -j 2 -t $transactions bench
    consistent
}

check cluster cluster
check load load
check vacuum sql 'VACUUM FULL ANALYZE; CHECKPOINT'
check amcheck amcheck
check stops stop
check checksums as_owner "$pg/pg_checksums" --check -D "$PWD/pg"
[ ! -e "$PWD/pg/postmaster.pid" ] || stop_at_once
