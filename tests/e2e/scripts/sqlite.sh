# A database with a write-ahead log: two processes write, a third reads at the same time.
set -euo pipefail

test "$(sqlite3 t.db 'PRAGMA journal_mode=WAL; CREATE TABLE t(writer INT, n INT, x BLOB);')" = wal

writer() {
    for n in $(seq 12); do
        echo "PRAGMA busy_timeout=30000; BEGIN IMMEDIATE;"
        echo "INSERT INTO t SELECT $1, $n, randomblob(500) FROM generate_series(1, 20); COMMIT;"
    done | sqlite3 -bail t.db > /dev/null
}
writer 1 & first=$!
writer 2 & second=$!
seen=0
for _ in 1 2 3 4 5; do
    now=$(sqlite3 -bail t.db 'PRAGMA busy_timeout=30000; SELECT count(*) FROM t' | tail -n 1)
    test "$now" -ge "$seen"
    test $((now % 20)) = 0 # whole transactions only
    seen=$now
done
wait $first
wait $second

test "$(sqlite3 t.db 'PRAGMA wal_checkpoint(TRUNCATE)')" = '0|0|0'
test "$(sqlite3 t.db 'PRAGMA integrity_check')" = ok
test "$(sqlite3 t.db 'SELECT count(*), count(DISTINCT x) FROM t')" = '480|480'
