#!/usr/bin/env bash
# A disk with an SSD before it as a network block device: what other people's programs write through it is there, also after
# the server was killed.
#   tests/tier.sh DIRECTORY-WITH-PLUGIN COMMAND
set -euo pipefail
PLUGIN=$(realpath "$1")/libsluice_nbdkit.so
SLUICE=$(realpath "$2")
for program in nbdkit nbdcopy nbdinfo qemu-io fio mkfs.ext4 fsck.ext4; do
    if ! PATH=$PATH:/sbin:/usr/sbin command -v "$program" > /dev/null; then
        echo "NOTE: the block device with an SSD is not tested: $program is missing"
        exit 0
    fi
done
export PATH=$PATH:/sbin:/usr/sbin
work=$(mktemp -d)
server=
loop=
end() {
    [ -z "$server" ] || kill -9 "$server" 2> /dev/null || true
    unplug
    rm -rf "$work"
}
# Takes what is plugged in away, whatever state it is in.
unplug() {
    ! mountpoint -q "$work/mnt" || timeout 20 umount "$work/mnt" 2> /dev/null || umount -l "$work/mnt" || true
    [ -z "$loop" ] || losetup -d "$loop" || true
    loop=
    ! grep -q " $work/nbd " /proc/mounts || umount -l "$work/nbd" || true
}
trap end EXIT
fail() {
    echo "FAILED: $*" >&2
    tail -n 20 "$work/log" >&2 || true
    exit 1
}
uri="nbd+unix:///?socket=$work/socket"

# Waits until it is so; the limit is for what never comes.
eventually() { # COMMAND...
    local until=$((SECONDS + 120))
    until "$@"; do
        [ $SECONDS -lt $until ] || return 1
        read -r -t 0.05 <> <(:) || true
    done
}
# Starts the server; returns when it takes connections.
has_started() {
    kill -0 "$server" || fail "the server does not start"
    [ -s "$work/pid" ]
}
serve() { # SETTING...
    rm -f "$work/socket" "$work/pid" "$work/status"
    nbdkit --foreground --pidfile "$work/pid" --unix "$work/socket" "$PLUGIN" disk="$work/disk" ssd="$work/ssd" \
        idle=1ms quiet=10ms status="$work/status" "$@" 2>> "$work/log" &
    server=$!
    eventually has_started || fail "the server does not start"
}
stop() { # SIGNAL
    kill "-$1" "$server"
    wait "$server" 2> /dev/null || true
    server=
}
create() { # DISK-SIZE OPTION...
    rm -f "$work/disk" "$work/ssd"
    truncate -s "$1" "$work/disk"
    "$SLUICE" -q tier create "$work/ssd" --disk "$work/disk" "${@:2}"
}
load() { # NAME OPTION...
    fio --name="$1" --ioengine=nbd --uri="$uri" --output="$work/fio" --verify=crc32c --verify_fatal=1 "${@:2}" > /dev/null ||
        fail "fio $1: $(tail -n 5 "$work/fio")"
}

echo "== random and sequential requests, verified, through a log that is far too small"
create 64M --queue 4M --area 1M --slot 64K --segment 256K
serve rule=always bypass=none
load random --rw=randwrite --bsrange=512-32k --blockalign=512 --size=24M --iodepth=8 --numjobs=1
stop TERM
cmp -s "$work/disk" <(head -c 64M /dev/zero) && fail "nothing was written back"
"$SLUICE" tier check --json "$work/ssd" | grep -q '"dirty_bytes": 0' || fail "ending did not write all back"
serve rule=paper start=1.1 stop=0.5 ghost-requests=16
load mixed --rw=randrw --bs=4k --size=16M --iodepth=8 --do_verify=1
load stream --rw=write --bs=256k --size=16M --iodepth=2
eventually grep -qs '"health": "well"' "$work/status" || fail "status: $(cat "$work/status")"

echo "== only one at a time"
nbdkit --foreground --unix "$work/other" "$PLUGIN" disk="$work/disk" ssd="$work/ssd" 2> "$work/refused" &&
    fail "a second server uses the same disk"
grep -q "in use" "$work/refused" || fail "$(cat "$work/refused")"
"$SLUICE" tier check "$work/ssd" 2> /dev/null && fail "an SSD in use was checked"
stop TERM

echo "== copies, zeros, trims, extents"
create 32M --queue 8M --area 1M --slot 64K --segment 512K
serve rule=always bypass=none unload=off
head -c 5M /dev/urandom > "$work/data"
truncate -s 32M "$work/data"
head -c 1M /dev/urandom | dd of="$work/data" bs=1M seek=20 conv=notrunc status=none
nbdcopy --flush "$work/data" "$uri"
nbdcopy "$uri" "$work/copy"
cmp "$work/data" "$work/copy" || fail "nbdcopy: what was read is not what was written"
qemu-io -f raw -c "write -P 7 1001K 70K" -c "write -z 1020K 8K" -c "discard 6M 1M" -c "write -P 9 -f 3M 1536" -c flush "$uri" > "$work/log2" ||
    fail "qemu-io: $(cat "$work/log2")"
check_pattern() {
    qemu-io -f raw -c "read -P 7 1001K 19K" -c "read -P 0 1020K 8K" -c "read -P 7 1028K 43K" -c "read -P 9 3M 1536" \
        -c "read -P 0 6M 1M" "$uri" > "$work/log2" && ! grep -q "verification failed" "$work/log2" ||
        fail "qemu-io $1: $(cat "$work/log2")"
}
check_pattern "at once"
nbdinfo --map "$uri" | grep -q hole || fail "no holes: $(nbdinfo --map "$uri")"
stop KILL
serve rule=always unload=off
check_pattern "after kill -9"
stop KILL
"$SLUICE" -q tier flush "$work/ssd"
"$SLUICE" tier check --json "$work/ssd" | grep -q '"dirty_bytes": 0' || fail "sluice tier flush left something"

echo "== a file system"
create 64M --queue 8M --area 4M --slot 256K --segment 512K
serve rule=always unload=off
truncate -s 64M "$work/fs"
mkfs.ext4 -q -E lazy_itable_init=0 "$work/fs"
nbdcopy "$work/fs" "$uri"
# Changes of it as a program makes them that knows ext4, block by block, in small requests.
mkdir "$work/tree"
head -c 3M /dev/urandom > "$work/tree/large"
seq 20000 > "$work/tree/numbers"
for file in large numbers; do
    debugfs -w -R "write $work/tree/$file $file" "$work/fs" > /dev/null 2>&1
done
nbdcopy --request-size=4096 --flush "$work/fs" "$uri"
stop KILL
serve rule=always
nbdcopy "$uri" "$work/back"
fsck.ext4 -f -n "$work/back" > "$work/log2" 2>&1 || fail "fsck: $(cat "$work/log2")"
stop TERM
"$SLUICE" -q tier detach "$work/ssd"
fsck.ext4 -f -n "$work/disk" > "$work/log2" 2>&1 || fail "fsck of the disk alone: $(cat "$work/log2")"
debugfs -R "dump large $work/large" "$work/disk" 2> /dev/null
cmp "$work/large" "$work/tree/large" || fail "a file is not what was written"
"$SLUICE" tier check "$work/ssd" 2> "$work/refused" && fail "a tier that was detached is still there"
grep -q "no tier on it" "$work/refused" || fail "$(cat "$work/refused")"

if [ "$(id -u)" = 0 ] && [ -e /dev/loop-control ] && [ -e /dev/fuse ] && command -v nbdfuse > /dev/null; then
    echo "== ext4, mounted by the kernel over a loop device, and a server that is killed below it"
    # The block device as a file, and as a device of the kernel, as docs/tier.md says.
    plug() {
        : > "$work/nbd"
        nbdfuse "$work/nbd" --unix "$work/socket" 2>> "$work/log" &
        # The empty file is covered when it is mounted.
        eventually test -s "$work/nbd" || fail "nbdfuse does not start"
        loop=$(losetup --find --show "$work/nbd") || fail "no loop device"
    }
    # fio on the files of the mount.
    on_files() { # NAME OPTION...
        fio --name="$1" --directory="$work/mnt" --ioengine=psync --output="$work/fio" --verify=crc32c --verify_fatal=1 "${@:2}" \
            > /dev/null
    }
    create 96M --queue 8M --area 4M --slot 256K --segment 512K
    mkdir -p "$work/mnt"
    serve rule=always unload=off
    plug
    mkfs.ext4 -q -E lazy_itable_init=0 "$loop"
    mount "$loop" "$work/mnt"
    on_files files --rw=randwrite --bsrange=1k-16k --size=12M --fsync=64 || fail "fio on ext4: $(tail -n 5 "$work/fio")"
    cp "$work/tree/large" "$work/mnt/large"
    sync -f "$work/mnt/large"
    (cd "$work/mnt" && sha256sum large files.0.0 > "$work/sums")
    on_files killed --rw=randwrite --bs=4k --size=8M --fsync=8 --time_based --runtime=300 2> /dev/null &
    load=$!
    eventually test -s "$work/mnt/killed.0.0" || fail "fio does not start"
    read -r -t 0.3 <> <(:) || true
    stop KILL
    wait "$load" && fail "fio did not notice that the disk is gone"
    unplug
    serve rule=always
    plug
    fsck.ext4 -p "$loop" > "$work/log2" 2>&1 || [ $? = 1 ] || fail "fsck after kill -9: $(cat "$work/log2")"
    mount "$loop" "$work/mnt"
    (cd "$work/mnt" && sha256sum -c --quiet "$work/sums") || fail "what was synced has changed after kill -9"
    unplug
    stop TERM
    fsck.ext4 -f -n "$work/disk" > "$work/log2" 2>&1 || fail "fsck of the disk alone: $(cat "$work/log2")"
else
    echo "NOTE: ext4 over a loop device is not tested: it needs root, FUSE, loop devices and nbdfuse"
fi

echo "== an emulated disk, and settings that are wrong"
create 16M --queue 4M --area 0 --segment 512K
serve emulate=hdd-7200 rule=always
load emulated --rw=randwrite --bs=4k --size=2M --iodepth=4
eventually grep -qs '"disk": "emulated hdd-7200' "$work/status" || fail "not called emulated: $(cat "$work/status")"
stop KILL
nbdkit --foreground --unix "$work/other" "$PLUGIN" disk="$work/disk" ssd="$work/ssd" idel=1s 2> "$work/refused" && fail "took idel=1s"
grep -q "idle" "$work/refused" || fail "$(cat "$work/refused")"
echo "== all is well"
