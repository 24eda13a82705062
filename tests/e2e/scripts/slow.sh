# What a disk of milliseconds can do in a second or two.
set -euo pipefail

fio --name=job --directory=. --rw=randwrite --bs=4k --size=512K --ioengine=libaio --iodepth=32 --direct=1 \
    --verify=crc32c --do_verify=1 --verify_fatal=1 --verify_state_save=0 --randseed=7 --minimal > fio.out 2>&1 || { cat fio.out; exit 1; }
sqlite3 t.db 'CREATE TABLE t(x); INSERT INTO t SELECT value FROM generate_series(1, 100);'
test "$(sqlite3 t.db 'PRAGMA integrity_check; SELECT sum(x) FROM t' | tr '\n' ' ')" = 'ok 5050 '
