# kill -9 of the mount while PostgreSQL and SQLite commit: both recover, and nothing committed is missing
# quick:
# full: dir/auto dir/none striped/auto striped/none striped/none/mlf dir/writeback striped/writeback
. "$SUITE_HERE/lib.sh"
. "$SUITE_HERE/postgresql.sh"
. "$SUITE_HERE/bed.sh"
need sqlite3
need_postgresql
kills=${SUITE_KILLS:-$(amount 2 10)}
place=$BED_PLACE sluice=$BED_SLUICE bed_dir=$BED_DIR bed_config=$BED_CONFIG
here=$PWD

# Kills what serves the mount; in the plain directory only the databases are killed.
kill_mount() {
    [ "$BED_CONFIG" = plain ] || kill -9 "$(bed_pid)"
}

mount_again() {
    cd "$SUITE_SCRATCH"
    [ "$BED_CONFIG" = plain ] || bed_mount "$BED_CONFIG" > /dev/null || return 1
    cd "$here"
}

# Kills a server that cannot stop properly any more, and all of its processes.
kill_server() {
    local children
    children=$(cat /proc/"$1"/task/"$1"/children)
    kill -9 "$1" $children 2> /dev/null
    while kill -0 "$1" 2> /dev/null; do :; done
    rm -f "$SUITE_SCRATCH"/.s.PGSQL.*
}

postgres() {
    cd "$here"
    as_owner "$pg/initdb" -D "$PWD/pg" -k -A trust -U owner --no-instructions > /dev/null
    start
    as_owner "$pg/createdb" "${connect[@]}" bench
    as_owner "$pg/pgbench" "${connect[@]}" -i -q -s 1 bench 2> /dev/null
    sql 'CREATE TABLE acked(n INT)'
    for kill in $(seq $kills); do
        server=$(head -n 1 pg/postmaster.pid)
        as_owner "$pg/pgbench" "${connect[@]}" -n -c 4 -T 100 bench > /dev/null 2>&1 & load=$!
        committed_before=$(wc -l < "$SUITE_SCRATCH/acked")
        (
            n=$((kill * 1000000))
            while sql "INSERT INTO acked VALUES($((n += 1)))" 2> /dev/null; do echo $n >> "$SUITE_SCRATCH/acked"; done
        ) & writer=$!
        while [ "$(wc -l < "$SUITE_SCRATCH/acked")" -lt $((committed_before + 5 * kill)) ]; do :; done
        kill_mount
        kill_server "$server"
        wait $load $writer || true
        mount_again
        rm -f pg/postmaster.pid
        start
        # One more for each kill may have been committed without anybody having been told.
        sql 'SELECT n FROM acked' | sort > "$SUITE_SCRATCH/found"
        sort "$SUITE_SCRATCH/acked" | comm -23 - "$SUITE_SCRATCH/found" | { ! grep .; }
        consistent
        amcheck
        echo "kill $kill: all $(wc -l < "$SUITE_SCRATCH/acked") acknowledged are there"
    done
    stop
    as_owner "$pg/pg_checksums" --check -D "$PWD/pg"
}

sqlite() {
    local journal=$1
    cd "$here"
    db=$journal.db
    : > "$SUITE_SCRATCH/acked"
    sqlite3 "$db" "PRAGMA journal_mode=$journal; CREATE TABLE t(n INT, x BLOB); CREATE INDEX i ON t(x);" > /dev/null
    for kill in $(seq $kills); do
        before=$(wc -l < "$SUITE_SCRATCH/acked")
        (
            n=$((kill * 1000000))
            while sqlite3 -bail "$db" "PRAGMA synchronous=FULL; INSERT INTO t VALUES($((n += 1)), randomblob(3000))" 2> /dev/null; do
                echo $n >> "$SUITE_SCRATCH/acked"
            done
        ) & writer=$!
        while [ "$(wc -l < "$SUITE_SCRATCH/acked")" -lt $((before + 4 * kill)) ]; do :; done
        if [ "$BED_CONFIG" = plain ]; then
            # Either may have nothing to kill just then.
            pkill -9 -P $writer || true
            kill -9 $writer || true
        else
            kill_mount
        fi
        wait $writer || true
        mount_again
        # An insertion that its shell did not live to see may hold the lock for a moment.
        [ "$(sqlite3 -cmd '.timeout 10000' "$db" 'PRAGMA integrity_check')" = ok ]
        sqlite3 -cmd '.timeout 10000' "$db" 'SELECT n FROM t' | sort > "$SUITE_SCRATCH/found"
        sort "$SUITE_SCRATCH/acked" | comm -23 - "$SUITE_SCRATCH/found" | { ! grep .; }
    done
}

: > "$SUITE_SCRATCH/acked"
check postgresql postgres
[ ! -e "$here/pg/postmaster.pid" ] || stop_at_once
check sqlite-wal sqlite wal
check sqlite-delete sqlite delete
