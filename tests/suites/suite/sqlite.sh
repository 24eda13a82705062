# SQLite: processes that write and read one database, with each kind of journal
# quick: dir/auto striped/none
# full: dir/auto dir/none dir/writeback striped/auto striped/none striped/writeback dir/none/* striped/none/*
. "$SUITE_HERE/lib.sh"
need sqlite3
transactions=$(amount 10 300) writers=$(if quick; then echo 3; else echo 6; fi)

writer() {
    for n in $(seq $transactions); do
        echo ".timeout 600000"
        echo "BEGIN IMMEDIATE;"
        echo "INSERT INTO t SELECT $1, $n, randomblob(500) FROM generate_series(1, 20);"
        echo "UPDATE sum SET total = total + 20; COMMIT;"
    done | sqlite3 -bail "$2" > /dev/null
}

ask() { sqlite3 -bail -cmd '.timeout 600000' "$@"; }

journal() {
    local db=$1.db n seen=0 now pids=()
    ask "$db" "PRAGMA journal_mode=$1; PRAGMA page_size=$2; CREATE TABLE t(writer INT, n INT, x BLOB); CREATE INDEX i ON t(x);
        CREATE TABLE sum(total INT); INSERT INTO sum VALUES(0);"
    for n in $(seq $writers); do writer "$n" "$db" & pids+=($!); done
    for n in 1 2 3 4 5; do
        # Whole transactions only.
        now=$(ask "$db" 'BEGIN; SELECT count(*) = (SELECT total FROM sum), count(*) FROM t; COMMIT;')
        [ "${now%|*}" = 1 ]
        [ "${now#*|}" -ge "$seen" ]
        seen=${now#*|}
    done
    for n in "${pids[@]}"; do wait "$n"; done
    [ "$(ask "$db" 'PRAGMA integrity_check')" = ok ]
    [ "$(ask "$db" 'SELECT count(*) - count(DISTINCT x), count(*) FROM t')" = "0|$((transactions * writers * 20))" ]
    ask "$db" 'DELETE FROM t WHERE n % 2; VACUUM;'
    [ "$(ask "$db" 'PRAGMA integrity_check')" = ok ]
}

# Rolled back by another process than that which wrote.
hot_journal() {
    ask hot.db 'PRAGMA journal_mode=DELETE; CREATE TABLE t(x); INSERT INTO t SELECT randomblob(900) FROM generate_series(1, 2000);'
    local before
    before=$(ask hot.db '.sha3sum')
    # The small cache makes it write pages before it commits; then it kills itself.
    sqlite3 hot.db "PRAGMA cache_size=5; BEGIN; UPDATE t SET x = randomblob(900);" '.shell kill -9 $PPID' || true
    [ -e hot.db-journal ]
    [ "$(ask hot.db 'PRAGMA integrity_check')" = ok ]
    [ "$(ask hot.db '.sha3sum')" = "$before" ]
}

check wal journal wal 4096
check delete journal delete 4096
check truncate journal truncate 1024
check persist journal persist 65536
check hot-journal hot_journal
