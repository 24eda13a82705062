# Four processes append lines to one file; none is lost, torn or overwritten, and each process's are in order.
set -euo pipefail

lines() { for n in $(seq 100); do echo "process $1 says $n, and no other does"; done; }
appender() {
    exec 3>> log
    for n in $(seq 100); do echo "process $1 says $n, and no other does" >&3; done
}
appenders=
for p in 1 2 3 4; do
    appender $p &
    appenders="$appenders $!"
done
for appender in $appenders; do wait "$appender"; done

test "$(wc -l < log)" = 400
for p in 1 2 3 4; do
    grep "^process $p" log | cmp - <(lines $p)
done
