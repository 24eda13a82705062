#!/usr/bin/env bash
# Looks for memory of the translator for GlusterFS that is used after its end, or lost, with valgrind: graphs that come and go inside one
# process, requests that fail below, no room, then data servers and I/O nodes while clients are killed and a data server is restarted.
# Ten minutes on a quiet machine; `make gluster-memory`.
#   tests/gluster-memory.sh DIRECTORY-WITH-LIBRARIES COMMAND
set -euo pipefail
BUILT=$(realpath "$1")
SLUICE=$(realpath "$2")
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ] || ! command -v glusterfsd > /dev/null || ! command -v valgrind > /dev/null || [ ! -w /dev/fuse ]; then
    echo "NOTE: memory is not looked at: it needs root, glusterfs-server, valgrind and /dev/fuse"
    exit 0
fi
work=$(mktemp -d)
config=$work/cluster.toml
port=$((21000 + $$ % 1000 * 10))
end() {
    "$SLUICE" -q cluster down --force "$config" 2> /dev/null || true
    rm -rf "$work"
}
trap end EXIT
fail() {
    echo "FAILED: $*" >&2
    exit 1
}

make --no-print-directory -s "$work/sluice.so" BUILT="$work" GLUSTER_LIBRARY="$BUILT/libsluice.a"
gcc -std=gnu11 -Wall -Wextra -Werror -g -O1 -D_FILE_OFFSET_BITS=64 hosts/gluster/tests/life.c -o "$work/life" -lgfapi

MEMCHECK=(--leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite --num-callers=30 --xml=yes)
# What valgrind has found with the translator on the stack: GlusterFS's own findings are not ours.
look() { # FILES
    python3 - "$@" << 'END'
import sys, xml.etree.ElementTree as tree
found = 0
for path in sys.argv[1:]:
    text = open(path).read()
    # One that was killed has not closed its file.
    if not text.rstrip().endswith("</valgrindoutput>"):
        text += "</valgrindoutput>"
    try:
        errors = tree.fromstring(text).findall("error")
    except tree.ParseError as why:
        print(f"{path}: {why}")
        continue
    for error in errors:
        frames = [frame for stack in error.findall("stack") for frame in stack.findall("frame")]
        if any((frame.findtext("obj") or "").endswith("/sluice.so") for frame in frames):
            found += 1
            print(error.findtext("kind"), error.findtext("what") or error.findtext("xwhat/text"))
            print("".join(f"    {frame.findtext('fn')} ({frame.findtext('file')}:{frame.findtext('line')})\n" for frame in frames))
    print(f"{path.rsplit('/', 1)[-1]}: {len(errors)} findings in all, {found} of the translator")
sys.exit(found > 0)
END
}

echo "== graphs that come and go"
cat > "$config" << END
name = "memory"
directory = "$work/run"
port = $port
[servers]
count = 2
END
"$SLUICE" -q cluster up "$config" || fail "the data servers do not start"
graph() { # OPTION FAILS
    local n below
    for n in 0 1; do
        below=to-server-$n
        printf 'volume %s\n  type protocol/client\n  option transport-type tcp\n  option transport.address-family inet\n' "$below"
        printf '  option remote-host 127.0.0.1\n  option remote-port %s\n' $((port + n))
        printf '  option remote-subvolume brick%s\nend-volume\n' "$n"
        if [ "$2" = 1 ]; then
            printf 'volume error-%s\n  type debug/error-gen\n  option failure 10\n  option random-failure on\n' "$n"
            printf '  option enable readv,writev,fsync,ftruncate,discard,flush\n  subvolumes %s\nend-volume\n' "$below"
            below=error-$n
        fi
        printf 'volume sluice-%s\n  type ../../../../../..%s/sluice\n  option policy twins\n  option scheduler node\n' "$n" "$work"
        printf '  option target %s\n  option policy-parameters "window=1ms servers=2 node=0"\n%b' "$n" "$1"
        printf '  subvolumes %s\nend-volume\n' "$below"
    done
    printf 'volume distribute\n  type cluster/distribute\n  subvolumes sluice-0 sluice-1\nend-volume\n'
}
graph "" 0 > "$work/plain.vol"
graph "" 1 > "$work/failing.vol"
graph "  option in-flight 1\n  option capacity 4\n" 0 > "$work/no-room.vol"
for graph in plain failing no-room; do
    fails=$([ $graph = failing ] && echo 1 || echo 0)
    timeout 900 valgrind "${MEMCHECK[@]}" --xml-file="$work/life-$graph.xml" "$work/life" "$work/$graph.vol" 2 $$ "$fails" ||
        fail "$graph: exit code $?"
done
"$SLUICE" -q cluster down "$config"
look "$work"/life-*.xml || fail "graphs that come and go"

echo "== a cluster: clients and a data server die"
mkdir "$work/bin"
# valgrind keeps what it was started with, also in the background: whoever reads it would wait for its end.
cat > "$work/bin/glusterfsd" << END
#!/bin/sh
exec valgrind ${MEMCHECK[*]} --xml-file=$work/cluster-%p.xml $(command -v glusterfsd) "\$@" > /dev/null 2>&1 < /dev/null
END
chmod +x "$work/bin/glusterfsd"
cat > "$config" << END
name = "memory"
directory = "$work/run"
translator = "$work/sluice.so"
port = $port
[servers]
count = 2
policy = "aioli"
options = { in-flight = "1" }
[nodes]
count = 2
policy = "twins"
parameters = "window=1ms"
options = { in-flight = "2", capacity = "8" }
[clients]
count = 2
attribute_timeout = 0
END
up() { PATH=$work/bin:$PATH "$SLUICE" -q cluster up "$config"; }
up || up || fail "it does not start"
load() { # CLIENT FILE
    timeout 300 fio --name="$2" --directory="$work/run/$1" --rw=randrw --bs=16k --size=4M --direct=1 --ioengine=libaio --iodepth=16 \
        --output=/dev/null > /dev/null 2>&1
}
load client-0 first || fail "requests fail though nothing has died"
for machine in client-1 server-1; do
    load client-1 "$machine" || true &
    loading=$!
    # With requests under way.
    read -r -t 1.5 <> <(:) || true
    kill -TERM "$(cat "$work/run/$machine.pid")"
    [ $machine = server-1 ] || kill -KILL "$(cat "$work/run/$machine.pid")"
    up || up || fail "it does not start again after $machine was ended"
    wait "$loading" || true
done
load client-0 last || fail "requests fail though everything runs again"
"$SLUICE" -q cluster down --force "$config" || fail "it does not end"
look "$work"/cluster-*.xml || fail "a cluster whose clients and data servers die"
echo "no memory of the translator is used after its end, or lost"
