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
export SLUICE_DISK_DIR=$work/disks
end() {
    touch "$work/stop"
    umount "$work/bare" 2> /dev/null || true
    "$SLUICE" -q cluster down --force "$config" 2> /dev/null || true
    "$SLUICE" -q disk remove --all --force 2> /dev/null || true
    rm -rf "$work"
}
trap end EXIT
fail() {
    echo "FAILED: $*" >&2
    grep -h "\] [EC] \[" "$work"/run/*.log | cut -c 1-300 | head -n 10 >&2 || true
    exit 1
}

echo "== the order of a file's operations"
gcc -std=gnu11 -Wall -Wextra -Werror -O1 -g -fsanitize=address,undefined hosts/gluster/tests/order.c \
    hosts/gluster/src/order.c -o "$work/order" -pthread
"$work/order" 1 500

echo "== what processes say of themselves"
gcc -std=gnu11 -Wall -Wextra -Werror -O1 -g -fsanitize=address,undefined hosts/gluster/tests/announced.c \
    hosts/gluster/src/announced.c -o "$work/announced" -pthread
"$work/announced" "$work"

echo "== the translator"
build() { # DIRECTORY FLAGS
    make --no-print-directory -s "$1/sluice.so" BUILT="$1" GLUSTER_LIBRARY="$BUILT/libsluice.a" GLUSTER_EXTRA="$2"
}
mkdir "$work/checked"
build "$work" ""
build "$work/checked" "-fsanitize=address -fno-omit-frame-pointer"

# A port range of its own for each run, below those that the system gives away: by the number of this process, and where nobody
# listens yet.
NODE_OPTIONS='in-flight = "8"'
COORDINATOR=
for ((range = $$; range < $$ + 1000; range++)); do
    port=$((21000 + range % 1000 * 10))
    [ -n "$(ss -Htan "sport >= :$port and sport <= :$((port + 9))")" ] || break
done
cluster() { # SERVER-POLICY NODE-POLICY NODE-PARAMETERS DISTRIBUTION
    cat > "$config" << END
name = "test"
directory = "$work/run"
translator = "$work/sluice.so"
port = $port
$COORDINATOR
[servers]
count = 2
policy = "$1"
[nodes]
count = 2
policy = "$2"
parameters = "$3"
distribution = "$4"
options = { $NODE_OPTIONS }
[clients]
count = 2
attribute_timeout = 0
END
}

# GlusterFS tries every 3 s to reach again what it has lost; until then requests fail. The limit is for what never comes.
eventually() {
    local until=$((SECONDS + 120))
    until "$@" 2> /dev/null; do
        [ $SECONDS -lt $until ] || return 1
        read -r -t 0.2 <> <(:) || true
    done
}

# Whether all threads of a process have ended; then nothing is open in it any more, though its parent may still have to ask for it.
is_gone() { # PROCESS
    ! cat /proc/"$1"/task/*/stat | sed 's/.*) //' | grep -qv '^[ZX]'
}
killed() { # MACHINE: when this returns it is gone
    local pid
    pid=$(cat "$work/run/$1.pid")
    kill -9 "$pid"
    eventually is_gone "$pid" || fail "$1 survives kill -9"
}

# Writes through one I/O node what is read and compared through the other, with requests that overlap nowhere, then somewhere.
load() {
    local one=$work/run/client-0 two=$work/run/client-1
    # Contiguous and many at a time: what the scheduler puts together goes down as one.
    fio --name=sequential --directory="$one" --rw=write --bs=64k --size=16M --direct=1 --ioengine=libaio --iodepth=16 \
        --verify=crc32c --do_verify=1 --verify_fatal=1 --output="$work/fio" > /dev/null ||
        fail "fio --verify, contiguous: $(tail -n 5 "$work/fio")"
    fio --name=verified --directory="$one" --rw=randwrite --bsrange=4k-128k --size=12M --ioengine=psync --numjobs=4 \
        --thread --verify=crc32c --do_verify=1 --verify_fatal=1 --randseed="$port" --output="$work/fio" > /dev/null ||
        fail "fio --verify: $(tail -n 5 "$work/fio")"
    head -c 20000000 /dev/urandom > "$work/data"
    cp "$work/data" "$one/copied"
    cmp "$work/data" "$two/copied" || fail "what one client wrote the other one reads otherwise"
    truncate -s 7000001 "$one/copied"
    [ "$(stat -c %s "$two/copied")" = 7000001 ] || fail "truncated through one, $(stat -c %s "$two/copied") bytes at the other"
    cmp -n 7000001 "$work/data" "$two/copied" || fail "what is left after a truncation differs"
    rm "$one"/copied "$one"/verified* "$one"/sequential*
}

# A counter of all translators of a machine, from GlusterFS's own dump of its state.
is_dumped() { # PROCESS
    grep -qs '^DUMP-END-TIME' /var/run/gluster/glusterdump."$1".*
}
counter() { # MACHINE NAME
    local pid
    pid=$(cat "$work/run/$1.pid")
    rm -f /var/run/gluster/glusterdump."$pid".*
    kill -USR1 "$pid"
    eventually is_dumped "$pid" || fail "$1 dumps no state"
    awk -F= -v key="$2" '$1 == key { sum += $2 } END { print sum + 0 }' /var/run/gluster/glusterdump."$pid".*
    rm -f /var/run/gluster/glusterdump."$pid".*
}

for case in "hbrr|twins|window=1ms|shard" "sjf|hbrr||distribute" "aioli|to-agg||replicate" "noop|wfq|aggregate=true|shard"; do
    IFS='|' read -r server node parameters distribution <<< "$case"
    echo "== servers $server, nodes $node $parameters, $distribution"
    cluster "$server" "$node" "$parameters" "$distribution"
    "$SLUICE" -q cluster up "$config" || fail "it does not start"
    load
    for machine in server-0 node-0; do
        counted=$(counter $machine write.submitted)
        [ "$counted" -gt 100 ] || fail "$machine: $counted writes went through the scheduler"
        [ "$(counter $machine stale)" = 0 ] || fail "$machine: a request was completed twice"
    done
    "$SLUICE" -q cluster status "$config" > "$work/status" || fail "something does not run: $(cat "$work/status")"
    "$SLUICE" -q cluster down "$config" || fail "it does not end"
    rm -rf "$work/run"
done

echo "== room for four requests, one at a time"
NODE_OPTIONS='in-flight = "1", capacity = "4", max-wait = "50", trace = "'$work/{machine}.slt'"'
cluster sjf sjf "" shard
"$SLUICE" -q cluster up "$config" || fail "it does not start"
load
merged=$(($(counter node-0 merged-batches) + $(counter node-1 merged-batches)))
[ "$merged" -gt 0 ] || fail "nothing was merged, though requests had to wait for each other"
# Each of a node's two translators tells the counters of the scheduler that they share.
submitted=$((($(counter node-0 write.submitted) + $(counter node-0 read.submitted)) / 2))
"$SLUICE" -q cluster down "$config" || fail "it does not end"
"$SLUICE" trace info "$work/node-0.slt" > "$work/info" || fail "a trace is incomplete: $(cat "$work/info")"
recorded=$(awk '$1 == "requests" { print $2; exit }' "$work/info" | tr -d ,)
[ "$recorded" = "$submitted" ] || fail "$recorded of $submitted requests are in the trace"
rm -rf "$work/run" "$work"/*.slt
NODE_OPTIONS='in-flight = "8"'

echo "== jobs of clients, and files in pieces"
NODE_OPTIONS='trace = "'$work/{machine}.slt'"'
cluster wfq hbrr "" shard
# Both clients behind one I/O node, which is all that the data server sees of them but for their jobs.
sed -i '/^\[servers\]/,/^distribution/s/^count = 2/count = 1/; s|^policy = "wfq"|&\noptions = { trace = "'"$work"'/{machine}.slt" }|' "$config"
echo 'job = "{machine}"' >> "$config"
"$SLUICE" -q cluster up "$config" || fail "it does not start"
head -c 12M /dev/urandom > "$work/data"
for client in 0 1; do cp "$work/data" "$work/run/client-$client/pieces-$client"; done
cmp "$work/data" "$work/run/client-1/pieces-0" || fail "what one job wrote the other one reads otherwise"
"$SLUICE" -q cluster down "$config" || fail "it does not end"
for machine in node-0 server-0; do
    "$SLUICE" trace info "$work/$machine.slt" > "$work/info" || fail "a trace is incomplete: $(cat "$work/info")"
    grep -q "of 2 files by 2 applications" "$work/info" ||
        fail "$machine takes pieces for files, or does not tell jobs apart: $(head -n 1 "$work/info")"
done
if grep -h "sluice\.\(job\|uid\)" "$work"/run/*.log; then fail "a job's name is taken for an attribute"; fi
rm -rf "$work/run" "$work"/*.slt
NODE_OPTIONS='in-flight = "8"'

echo "== jobs that programs name"
# Attributes that nobody stores (docs/mpi.md). One I/O node, which is all that the data server sees of both clients.
cat > "$work/program.py" << 'END'
import errno, os, sys, threading
path, job, uid = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3])
if uid:
    os.setuid(uid)
file = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
def served():
    return os.getxattr(file, "system.sluice.app")
def refused(number, name, value):
    try:
        os.setxattr(file, f"system.sluice.{name}", value)
    except OSError as error:
        assert error.errno == number, (name, value, error)
    else:
        raise AssertionError(f"{name} = {value} was taken")
assert served() == b"uid=%d" % uid, served()
refused(errno.EINVAL, "phase", b"io")
os.setxattr(file, "system.sluice.job", job)
assert served() == b"job=%s uid=%d" % (job, uid), served()
for name, value in [("job", b"a b"), ("job", b""), ("phase", b"sleep")]:
    refused(errno.EINVAL, name, value)
for name in ["app", "more"]:
    refused(errno.EOPNOTSUPP, name, b"uid=0")
os.setxattr(file, "system.sluice.phase", b"io")
# A thread has another number, and may be the only one that writes.
def work():
    global of_thread
    of_thread = served()
    for block in range(64):
        os.pwrite(file, bytes(4096), 4096 * block)
    os.fsync(file)
worker = threading.Thread(target=work)
worker.start()
worker.join()
assert of_thread == b"job=%s uid=%d" % (job, uid), of_thread
assert not [name for name in os.listxattr(file) if "sluice" in name]
os.setxattr(file, "system.sluice.phase", b"batch 4096")
print("ready", flush=True)
sys.stdin.read()
END
NODE_OPTIONS='trace = "'$work/{machine}.slt'"'
cluster wfq hbrr "" shard
sed -i '/^\[servers\]/,/^distribution/s/^count = 2/count = 1/; s|^policy = "wfq"|&\noptions = { trace = "'"$work"'/{machine}.slt" }|' "$config"
"$SLUICE" -q cluster up "$config" || fail "it does not start"
chmod 1777 "$work/run/client-0"
# Of one user's job on two clients; of another user's of that name; of no job.
coproc one { python3 "$work/program.py" "$work/run/client-0/one" run-17 0; }
read -r line <&"${one[0]}" && [ "$line" = ready ] || fail "a program that names its job does not go on"
python3 "$work/program.py" "$work/run/client-1/two" run-17 0 < /dev/null > /dev/null || fail "the job is not heard at the other client"
chmod 711 "$work" "$work/run"
python3 "$work/program.py" "$work/run/client-0/three" run-17 65534 < /dev/null > /dev/null || fail "another user's job is not heard"
dd if=/dev/zero of="$work/run/client-0/four" bs=4096 count=64 status=none
said() { # CLIENT: what its programs say, as it dumps it
    local pid
    pid=$(cat "$work/run/$1.pid")
    rm -f /var/run/gluster/glusterdump."$pid".*
    kill -USR1 "$pid"
    eventually is_dumped "$pid" || fail "$1 dumps no state"
    sed -n 's/^program=//p' /var/run/gluster/glusterdump."$pid".*
    rm -f /var/run/gluster/glusterdump."$pid".*
}
expected="job=run-17 uid=0 computing=0 in-io=0 in-batch=1 batches=1 batch-bytes=4096"
[ "$(said client-0)" = "$expected" ] || fail "programs say $(said client-0), and not $expected"
pid=$one_PID
exec {one[1]}>&-
wait "$pid" || fail "a program that has named its job fails"
[ -z "$(said client-0)" ] || fail "a program is remembered that has ended: $(said client-0)"
# A client whose graph has not the translator: whoever comes behind it answers, and nothing is stored.
sed '/^volume job$/,$d' "$work/run/client-0.vol" > "$work/bare.vol"
mkdir "$work/bare"
glusterfs --volfile="$work/bare.vol" --log-file="$work/bare.log" "$work/bare" || fail "a client without the translator does not start"
python3 - "$work/bare/four" << 'END' || fail "a client without the translator stores what programs say"
import errno, os, sys
calls = [lambda name: os.getxattr(sys.argv[1], name), lambda name: os.setxattr(sys.argv[1], name, b"run-17")]
for name in ["app", "job", "phase"]:
    for call in calls:
        try:
            call(f"system.sluice.{name}")
        except OSError as error:
            assert error.errno == errno.EOPNOTSUPP, (name, error)
        else:
            raise AssertionError(name)
END
umount "$work/bare"
python3 - "$work"/run/brick-*/data << 'END' || fail "what programs say is stored"
import os, sys
files = [os.path.join(at, name) for root in sys.argv[1:] for at, _, names in os.walk(root) for name in names]
assert sum(os.path.basename(file) in ["one", "two", "three", "four"] for file in files) == 4, files
assert not [(file, name) for file in files for name in os.listxattr(file, follow_symlinks=False) if "sluice" in name]
END
"$SLUICE" -q cluster down "$config" || fail "it does not end"
for machine in node-0 server-0; do
    "$SLUICE" trace info "$work/$machine.slt" > "$work/info" || fail "a trace is incomplete: $(cat "$work/info")"
    grep -q "of 4 files by 3 applications" "$work/info" ||
        fail "$machine does not know the jobs that programs name: $(head -n 1 "$work/info")"
done
rm -rf "$work/run" "$work"/*.slt
NODE_OPTIONS='in-flight = "8"'

echo "== AddressSanitizer"
cluster hbrr twins window=1ms shard
sed -i "s|^translator = .*|translator = \"$work/checked/sluice.so\"|" "$config"
LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0:log_path="$work/asan" \
    "$SLUICE" -q cluster up "$config" || fail "it does not start: $(cat "$work"/asan*)"
load
python3 "$work/program.py" "$work/run/client-0/said" run-17 0 < /dev/null > /dev/null || fail "a program is not heard"
[ -z "$(said client-0)" ] || fail "a program is remembered that has ended: $(said client-0)"
"$SLUICE" -q cluster down "$config" || fail "it does not end"
if grep -h ERROR "$work"/asan* 2> /dev/null; then fail "AddressSanitizer has found something"; fi
rm -rf "$work/run"

echo "== files that eight processes make at once"
# As programs with MPI do: GlusterFS 10 looks up for ever what it meets half made (docs/forwarding.md, Limits).
cluster hbrr hbrr "" distribute
sed -i '/^\[nodes\]/,$s/^count = 2/count = 4/' "$config"
"$SLUICE" -q cluster up "$config" || fail "it does not start"
cat > "$work/make.py" << 'END'
import multiprocessing, os, sys, time
def make(task):
    path, when = task
    while time.monotonic() < when:
        pass
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    except OSError:
        pass  # now and then one of them gets EINVAL or EEXIST, with the translator and without it
with multiprocessing.Pool(8) as pool:
    for file in range(200):
        when = time.monotonic() + 0.004
        tasks = [(f"{sys.argv[1 + rank % 4]}/made-{file}", when) for rank in range(8)]
        try:
            pool.map_async(make, tasks, 1).get(60)
        except multiprocessing.TimeoutError:
            sys.exit(f"file {file} is being made for ever")
END
timeout 120 python3 "$work/make.py" "$work"/run/client-[0-3] || fail "eight processes that make one file hang"
grep -q "errno=61" "$work"/run/node-?.log || echo "NOTE: no lookup met a file that was half made"
"$SLUICE" -q cluster down "$config" || fail "it does not end"
rm -rf "$work/run"

echo "== kill -9"
cluster hbrr twins window=1ms shard
# The kernel answers for a mount whose process is gone, and knows no mountpoint by another name.
sed -i 's|^attribute_timeout = 0|attribute_timeout = 60\nmounts = ["'"$work"'/linked"]|' "$config"
sed -i '/^\[clients\]/,$s/^count = 2/count = 1/' "$config"
mkdir "$work/elsewhere"
ln -s "$work/elsewhere" "$work/linked"
"$SLUICE" -q cluster up "$config" || fail "it does not start"
stat "$work/linked" "$work/elsewhere" > "$work/stat" || fail "what is behind a link is not mounted"
killed client-0
"$SLUICE" -q cluster up "$config" || fail "it does not mount again after a client was killed"
sed -i 's/^policy = "hbrr"/policy = "sjf"/' "$config"
if "$SLUICE" -q cluster up "$config" 2> "$work/said"; then fail "another configuration is taken for the one that runs"; fi
grep -q "server-0 runs with another configuration: sluice cluster down" "$work/said" || fail "it says $(cat "$work/said")"
stat "$work/linked" > "$work/stat"
killed client-0
"$SLUICE" -q cluster down "$config" || fail "it does not end"
grep -q " $work/elsewhere " /proc/self/mountinfo && fail "what a killed client had mounted is left"
rm -rf "$work/run"
cluster hbrr twins window=1ms shard
"$SLUICE" -q cluster up "$config" || fail "it does not start"
cp "$work/data" "$work/run/client-0/kept"
sync "$work/run/client-0/kept"
for machine in server-1 node-0 client-1; do
    killed "$machine"
    if "$SLUICE" -q cluster status "$config" > "$work/status"; then fail "$machine was killed, and status says all is well"; fi
    "$SLUICE" -q cluster up "$config" || fail "it does not start again after $machine was killed"
    eventually timeout 30 cmp "$work/data" "$work/run/client-1/kept" || fail "after $machine was killed data are lost"
done
"$SLUICE" -q cluster down "$config" || fail "it does not end"
[ -z "$(pgrep -f "volfile=$work" || true)" ] || fail "processes are left"

echo "== an SSD before the disk of each data server, and those killed"
rm -rf "$work/run"
mkdir "$work/ssd"
cluster hbrr hbrr "" distribute
# Everything goes to the SSD, and nothing is written back before it must be.
tier='{ model = "null", size = "256M", tier = "'$work/ssd'", tier_size = "64M", tier_set = ["rule=always", "bypass=none", "quiet=60min"] }'
sed -i 's|^\[servers\]|&\nemulate = '"$tier"'|' "$config"
"$SLUICE" -q cluster check "$config" > "$work/status" || fail "check finds: $(cat "$work/status")"
"$SLUICE" -q cluster up "$config" || fail "it does not start"
for file in 1 2 3 4 5 6; do
    cp "$work/data" "$work/run/client-0/kept-$file"
    sync "$work/run/client-0/kept-$file"
done
"$SLUICE" disk list --json > "$work/status"
python3 - "$work/status" << 'END' || fail "an SSD has nothing: $(cat "$work/status")"
import json, sys
disks = json.load(open(sys.argv[1]))
assert len(disks) == 2 and all(disk["tier"]["status"]["dirty_bytes"] > 0 and disk["emulated"] for disk in disks)
END
for server in 0 1; do
    pid=$("$SLUICE" status --json "$work/disks/test-server-$server/emulation" | python3 -c 'import json, sys; print(json.load(sys.stdin)["pid"])')
    kill -9 "$pid"
done
"$SLUICE" -q cluster down "$config" || fail "it does not end when its disks are gone"
"$SLUICE" -q cluster up "$config" || fail "it does not start again after the processes of its disks were killed"
for file in 1 2 3 4 5 6; do
    eventually timeout 30 cmp "$work/data" "$work/run/client-1/kept-$file" || fail "after the disks were killed data are lost"
done
"$SLUICE" -q cluster down --remove-disks "$config" || fail "it does not end"
[ -z "$(find "$work/ssd" "$work/disks" -mindepth 1)" ] || fail "of the disks is left: $(find "$work/ssd" "$work/disks")"
rm -rf "$work/run"

echo "== a coordinator, killed under load"
# Equal slices for all who have requests: a plan whatever the load is like. To data servers, I/O nodes are the programs.
COORDINATOR="metrics = $((port + 5))
[coordinator]
roles = [\"council\", \"orchestrator\"]
orchestrate = \"even\"
window = \"200ms\""
cluster hbrr twins window=1ms shard
"$SLUICE" -q cluster up "$config" || fail "it does not start"
address=127.0.0.1:$((port + 4))
coordinator() { # EXPRESSION over its status s, and i: an incarnation
    "$SLUICE" coordinate status --json "$address" |
        python3 -c 'import json, sys; s = json.load(sys.stdin); i = int(sys.argv[2]); sys.exit(not eval(sys.argv[1]))' "$1" "${2:-0}"
}
# All nodes are there and know by how much their clocks differ; I/O nodes do what they were told, which was something new.
EVERYBODY='len(s["nodes"]) == 4 and all(n["offset_error_us"] > 0 for n in s["nodes"])'
DECIDED='s["decisions"] > 2 and all(n["window_us"] != 1000 for n in s["nodes"] if n["kind"] == "forwarder")'
head -c 4M /dev/urandom > "$work/block"
churn() { # FILE: written and compared until the end
    while [ ! -e "$work/stop" ]; do
        dd if="$work/block" of="$1" bs=64k oflag=direct conv=notrunc status=none || return 1
        dd if="$1" bs=64k iflag=direct status=none | cmp -s - "$work/block" || return 1
    done
}
loads=()
for file in client-0/a client-0/b client-1/c client-1/d; do
    churn "$work/run/$file" &
    loads+=($!)
done
PLANNED='s["roles"]["orchestrator"]["servers"] == 2 and len(s["roles"]["orchestrator"]["plan"] or []) == 3'
is_gated() { # MACHINE true|false: whether it serves one program at a time, as it dumps it
    local pid
    pid=$(cat "$work/run/$1.pid")
    rm -f /var/run/gluster/glusterdump."$pid".*
    kill -USR1 "$pid"
    eventually is_dumped "$pid" && grep -qs "^coordinator=.*\"is_gated\":$2" /var/run/gluster/glusterdump."$pid".*
}
eventually coordinator "$EVERYBODY and $DECIDED" || fail "nothing is decided: $("$SLUICE" coordinate status "$address")"
eventually coordinator "$PLANNED" || fail "nothing is planned: $("$SLUICE" coordinate status "$address")"
for server in server-0 server-1; do
    eventually is_gated $server true || fail "$server does not follow the plan: $("$SLUICE" coordinate status "$address")"
done
"$SLUICE" coordinate status "$address" | grep -q "^orchestrator: keeps a plan, 2 data servers; in each 200 ms: " ||
    fail "the plan is not told: $("$SLUICE" coordinate status "$address")"
# What a program says of itself to a client's mount, behind an I/O node, reaches the orchestrator by way of the data servers. It is no
# program to that without requests, and forgotten soon after the last.
python3 - "$work/run/client-0/said" "$SLUICE" "$address" << 'END' || fail "what programs do does not reach the coordinator"
import json, os, subprocess, sys, time
path, command, address = sys.argv[1:]
number = 0xcbf29ce484222325
for byte in os.getuid().to_bytes(4, sys.byteorder) + b"run-17":
    number = (number ^ byte) * 0x100000001b3 % 2**64
name = f"{(number ^ number >> 32) % 2**32:08x}"
file = os.open(path, os.O_CREAT | os.O_RDWR)
say = lambda what, text: os.setxattr(file, f"system.sluice.{what}", text)
def computing():
    status = subprocess.run([command, "coordinate", "status", "--json", address], check=True, capture_output=True).stdout
    return name in json.loads(status)["roles"]["orchestrator"]["computing"]
def eventually(begin, is_so, last):
    until = time.monotonic() + 120
    while time.monotonic() < until:
        begin()
        again = time.monotonic() + 3
        while time.monotonic() < again:
            if is_so():
                return
    sys.exit(last)
def compute():
    say("phase", b"io")
    for block in range(16):
        os.pwrite(file, bytes(4096), block << 16)
    os.fsync(file)
    say("phase", b"compute")
say("job", b"run-17")
eventually(compute, computing, "nobody knows that it computes")
say("phase", b"io")
eventually(lambda: None, lambda: not computing(), "nobody knows that it does not any more")
END
before=$("$SLUICE" coordinate status --json "$address" | python3 -c 'import json, sys; print(json.load(sys.stdin)["incarnation"])')
killed coordinator
counted=$(counter node-0 read.completed)
is_served() { [ "$(counter node-0 read.completed)" -gt $((counted + 50)) ]; }
eventually is_served || fail "I/O waits for the coordinator"
# A plan holds for a window of 200 ms.
for server in server-0 server-1; do
    eventually is_gated $server false || fail "$server follows the plan of a coordinator that was killed"
done
"$SLUICE" -q cluster up "$config" || fail "it does not start again after the coordinator was killed"
eventually coordinator "$EVERYBODY and $DECIDED and $PLANNED and s[\"incarnation\"] > i" "$before" ||
    fail "nobody listens to the coordinator that came back: $("$SLUICE" coordinate status "$address")"
told() { # PORT TEXT
    python3 -c 'import sys, urllib.request as u
sys.exit(sys.argv[2] not in u.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics", timeout=10).read().decode())' "$1" "$2"
}
told $((port + 9)) "sluice_coordinator_nodes 4.0" || fail "the coordinator tells no metrics"
told $((port + 7)) "sluice_node_connected{coordinator=\"$address\"} 1.0" || fail "an I/O node tells no metrics"
touch "$work/stop"
for load in "${loads[@]}"; do wait "$load" || fail "a file is damaged, or could not be used, while the coordinator was killed"; done
"$SLUICE" -q cluster down "$config" || fail "it does not end"
if coordinator True 2> /dev/null; then fail "the coordinator does not end"; fi
COORDINATOR=
rm -rf "$work/run"

echo "== links of a stated rate"
# By the number of this process, as the ports are.
network=10.$((112 + $$ / 256 % 64)).$(($$ % 256)).0/26
links() { # RATE
    cluster hbrr hbrr "" shard
    sed -i 's/^count = .*/count = 1/; s/^name = .*/name = "l'$$'"/' "$config"
    printf '[links]\nrate = "%s"\nnetwork = "%s"\n' "$1" "$network" >> "$config"
}
dd if=/dev/zero of="$work/zeros" bs=1M count=10 status=none
write() { dd if="$work/zeros" of="$work/run/client-0/zeros" bs=1M oflag=direct conv=notrunc status=none; }
# Whether writing ten times 2^20 bytes takes so many milliseconds: at 12.5 million a second 839, and a burst less.
takes() { # LEAST MOST
    local since took
    since=$(date +%s%N)
    write || return 1
    took=$((($(date +%s%N) - since) / 1000000))
    [ $took -ge "$1" ] || echo "$took ms, and not $1" >> "$work/faster"
    [ $took -le "$2" ]
}
COORDINATOR="[coordinator]"
links 100Mbit
"$SLUICE" -q cluster check "$config" > "$work/status" || fail "check finds: $(cat "$work/status")"
if PATH=/nowhere "$SLUICE" -q cluster up "$config" 2> "$work/said"; then fail "there is no ip, and that was not noticed"; fi
grep -q "is iproute2 installed" "$work/said" || fail "that there is no ip is not told: $(cat "$work/said")"
"$SLUICE" -q cluster up "$config" || fail "it does not start"
"$SLUICE" cluster status "$config" > "$work/status" || fail "something is missing: $(cat "$work/status")"
grep -q "links of 100 Mbit/s" "$work/status" || fail "links are not told: $(cat "$work/status")"
# Busy machines are slower, now and then.
eventually takes 800 2000 || fail "10 MiB take longer than links of 100 Mbit/s do"
"$SLUICE" coordinate status --token-file "$work/run/token" "${network%.0/26}.4:$((port + 2))" > "$work/status" ||
    fail "the coordinator is not reached"
for machine in server-0 node-0 client-0; do killed $machine; done
ip netns delete "sluice-l$$-switch"
if "$SLUICE" -q cluster status "$config" > "$work/status"; then fail "links were removed, and status says all is well"; fi
if "$SLUICE" -q cluster up "$config" 2> "$work/said"; then fail "links were made anew under a coordinator that runs"; fi
grep -q "sluice cluster down" "$work/said" || fail "what to do is not told: $(cat "$work/said")"
killed coordinator
links 400Mbit
"$SLUICE" -q cluster up "$config" || fail "it does not start again after everything was killed"
eventually takes 190 790 || fail "links of 400 Mbit/s are no faster than those of 100 were"
[ ! -e "$work/faster" ] || fail "10 MiB go faster than links let them: $(cat "$work/faster")"
"$SLUICE" -q cluster down "$config" || fail "it does not end"
if ip netns list | grep "sluice-l$$-" || [ -e "/sys/class/net/sl-l$$" ]; then fail "links are left"; fi
COORDINATOR=
rm -rf "$work/run"

echo "== mistakes"
cluster hbrr hbrr "" shard
sed -i 's/in-flight = "8"/in-flight = "many"/' "$config"
if "$SLUICE" -q cluster up "$config" 2> "$work/said"; then fail "in-flight = many was taken"; fi
grep -q in-flight "$work/said" || fail "the reason is not told: $(cat "$work/said")"
"$SLUICE" -q cluster down "$config"
echo "the cluster works"
