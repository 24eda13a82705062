#!/usr/bin/env bash
# Builds the translator for GlusterFS and runs a real cluster with it: data servers, I/O nodes and clients as processes on this
# machine.
#   tests/gluster.sh DIRECTORY-WITH-LIBRARIES COMMAND
set -euo pipefail
BUILT=$(realpath "$1")
SLUICE=$(realpath "$2")
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ] || ! command -v glusterfsd > /dev/null || [ ! -w /dev/fuse ]; then
    echo "NOTE: the cluster is not tested: it needs root, glusterfs-server and /dev/fuse"
    exit 0
fi
work=$(mktemp -d)
config=$work/cluster.toml
end() {
    "$SLUICE" -q cluster down "$config" 2> /dev/null || true
    rm -rf "$work"
}
trap end EXIT
fail() {
    echo "FAILED: $*" >&2
    tail -n 20 "$work"/run/*.log >&2 || true
    exit 1
}

echo "== the order of a file's operations"
gcc -std=gnu11 -Wall -Wextra -Werror -O1 -g -fsanitize=address,undefined hosts/gluster/tests/order.c \
    hosts/gluster/src/order.c -o "$work/order" -pthread
"$work/order" 1 500

echo "== the translator"
make --no-print-directory -s "$work/sluice.so" BUILT="$work" GLUSTER_LIBRARY="$BUILT/libsluice.a"

# A port range of its own for each run: 21,000 and up, by the number of this process.
port=$((21000 + $$ % 3000 * 10))
cluster() { # SERVER-POLICY NODE-POLICY NODE-PARAMETERS DISTRIBUTION
    cat > "$config" << END
name = "test"
directory = "$work/run"
translator = "$work/sluice.so"
port = $port
[servers]
count = 2
policy = "$1"
[nodes]
count = 2
policy = "$2"
parameters = "$3"
distribution = "$4"
options = { in-flight = "8" }
[clients]
count = 2
END
}

# Writes through one I/O node what is read and compared through the other, with requests that overlap nowhere, then somewhere.
load() {
    local one=$work/run/client-0 two=$work/run/client-1
    fio --name=verified --directory="$one" --rw=randwrite --bsrange=4k-128k --size=12M --ioengine=psync --numjobs=4 \
        --thread --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed="$port" --output="$work/fio" > /dev/null ||
        fail "fio --verify: $(tail -n 5 "$work/fio")"
    head -c 20000000 /dev/urandom > "$work/data"
    cp "$work/data" "$one/copied"
    cmp "$work/data" "$two/copied" || fail "what one client wrote the other one reads otherwise"
    truncate -s 7000001 "$one/copied"
    [ "$(stat -c %s "$two/copied")" = 7000001 ] || fail "truncated through one, $(stat -c %s "$two/copied") bytes at the other"
    cmp -n 7000001 "$work/data" "$two/copied" || fail "what is left after a truncation differs"
    rm "$one"/copied "$one"/verified*
}

for case in "hbrr|twins|window=1ms|shard" "sjf|hbrr||distribute" "aioli|to-agg||replicate" "noop|wfq|aggregate=true|shard"; do
    IFS='|' read -r server node parameters distribution <<< "$case"
    echo "== servers $server, nodes $node $parameters, $distribution"
    cluster "$server" "$node" "$parameters" "$distribution"
    "$SLUICE" -q cluster up "$config" || fail "it does not start"
    load
    "$SLUICE" -q cluster status "$config" > "$work/status" || fail "something does not run: $(cat "$work/status")"
    "$SLUICE" -q cluster down "$config" || fail "it does not end"
    rm -rf "$work/run"
done

echo "== kill -9"
cluster hbrr twins window=1ms shard
"$SLUICE" -q cluster up "$config" || fail "it does not start"
cp "$work/data" "$work/run/client-0/kept"
sync "$work/run/client-0/kept"
for machine in server-1 node-0 client-1; do
    kill -9 "$(cat "$work/run/$machine.pid")"
    # The number may be read a moment after the process has gone.
    if "$SLUICE" -q cluster status "$config" > "$work/status"; then fail "$machine was killed, and status says all is well"; fi
    "$SLUICE" -q cluster up "$config" || fail "it does not start again after $machine was killed"
    timeout 60 cmp "$work/data" "$work/run/client-1/kept" || fail "after $machine was killed data are lost"
done
"$SLUICE" -q cluster down "$config" || fail "it does not end"
[ -z "$(pgrep -f "volfile=$work" || true)" ] || fail "processes are left"

echo "== mistakes"
cluster hbrr hbrr "" shard
sed -i 's/in-flight = "8"/in-flight = "many"/' "$config"
if "$SLUICE" -q cluster up "$config" 2> "$work/said"; then fail "in-flight = many was taken"; fi
grep -q in-flight "$work/said" || fail "the reason is not told: $(cat "$work/said")"
"$SLUICE" -q cluster down "$config"
echo "the cluster works"
