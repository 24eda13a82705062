#!/usr/bin/env bash
# Data-driven execution: programs run with it and without, and everything that they read and write is compared.
#   tests/dualpar.sh DIRECTORY-WITH-LIBRARIES COMMAND
set -euo pipefail
BUILT=$(realpath "$1")
SLUICE=$(realpath "$2")
cd "$(dirname "$0")/.."
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
fail() {
    echo "FAILED: $*" >&2
    exit 1
}
command -v python3 memcached > /dev/null || { echo "NOTE: not tested: python3 or memcached is missing" && exit 0; }
make --no-print-directory -s mpi-libraries BUILT="$work" MPI_LIBRARY="$BUILT/libsluice_mpiio.a"
python3 -c 'import random, sys
random.seed(7)
sys.stdout.buffer.write(bytes(random.choices(range(1, 256), k=1 << 20)) * 4)' > "$work/original"

plain() { # KIND CALLS
    cp "$work/original" "$work/plain"
    timeout 300 "mpiexec.$mpi" -n "$processes" "$work/program-$mpi" "$1" "$work/plain" "$work/plain-out" "$2" 2> "$work/plain-err" ||
        fail "$mpi $1: $(cat "$work/plain-err")"
}

# Runs it data-driven, compares with plain(), and asks for numbers of the first process: NAME=LEAST, or NAME:MOST for each
# prediction that its time has room for if all are wrong. A ghost has at most 200 ms, and on a busy machine it may be late: then
# nothing is foreseen, and it runs again.
driven() { # KIND CALLS [--OPTION VALUE]... [NAME=LEAST|NAME:MOST]...
    local tries
    for ((tries = 1; tries <= 20; tries++)); do
        if driven_once "$@"; then return 0; fi
        echo "  a ghost was late; once more"
    done
    fail "$mpi $1: ghosts are late, always"
}

# As driven(); fails if the numbers are not as wanted, and a ghost was late.
driven_once() {
    local kind=$1 calls=$2 options=() status=0
    shift 2
    while [[ "${1:-}" = --* ]]; do
        options+=("$1" "$2")
        shift 2
    done
    rm -f "$work/report.json"
    cp "$work/original" "$work/driven"
    # Files that have just changed are left alone.
    touch -d '1 minute ago' "$work/driven"
    timeout -k 1 0.1 tail -f /dev/null || true
    SECONDS=0
    timeout 300 "$SLUICE" mpirun --mpi "$mpi" --library "$work/libsluice-$mpi.so" --dualpar always --report "$work/report.json" \
        "${options[@]}" "mpiexec.$mpi" -n "$processes" "$work/program-$mpi" "$kind" "$work/driven" "$work/driven-out" "$calls" \
        > "$work/out" 2> "$work/err" || fail "$mpi $kind: $(cat "$work/err")"
    for ((i = 0; i < processes; i++)); do
        cmp "$work/plain-out.$i" "$work/driven-out.$i" || fail "$mpi $kind: process $i has read something else"
    done
    cmp "$work/plain" "$work/driven" || fail "$mpi $kind: the files differ"
    [ ! -e ghost-was-here ] && ! grep -q harm "$work/out" "$work/err" || fail "$mpi $kind: a ghost did something"
    python3 - "$work/report.json" $((SECONDS + 1)) "$@" << 'END' || status=$?
import json, math, sys
did = json.load(open(sys.argv[1]))["files"][0]["data_driven"]
print("  " + ", ".join(f"{name} {value}" for name, value in did.items() if value))
# Those that a run may have that takes so many seconds: after each that is wrong there is none for 1 s, 2 s, 4 s...
tries = int(1 + math.log2(1 + int(sys.argv[2])))
for want in sys.argv[3:]:
    name, bound = want.replace("=", ":").split(":")
    if did[name] < int(bound) if "=" in want else did[name] > int(bound) * tries:
        print(f"{name} is {did[name]}, wanted {want}", file=sys.stderr)
        sys.exit(75 if did["ghosts_late"] else 1)
END
    [ "$status" = 0 ] || [ "$status" = 75 ] || fail "$mpi $kind: $(cat "$work/err")"
    return "$status"
}

found=
for mpi in mpich openmpi; do
    if ! command -v "mpicc.$mpi" > /dev/null || ! command -v "mpiexec.$mpi" > /dev/null; then
        echo "NOTE: nothing is tested with $mpi: mpicc.$mpi or mpiexec.$mpi is missing (scripts/setup.sh mpi installs them)"
        continue
    fi
    found=yes
    processes=2
    [ "$mpi" = mpich ] || processes=4
    "mpicc.$mpi" -std=gnu11 -O1 -g -Wall -Wextra -Werror tests/mpi/dualpar.c -o "$work/program-$mpi"

    echo "== $mpi: what programs may do"
    for program in strange order; do
        "mpicc.$mpi" -std=gnu11 -O1 -g -Wall -Wextra -Werror "tests/mpi/$program.c" -o "$work/$program-$mpi"
        for how in always off; do
            timeout 300 "$SLUICE" mpirun --mpi "$mpi" --library "$work/libsluice-$mpi.so" --dualpar "$how" --report "$work/report.json" \
                "mpiexec.$mpi" -n 2 "$work/$program-$mpi" "$work/$program" > "$work/out" 2>&1 ||
                fail "$mpi, $program, $how: $(cat "$work/out")"
            [ "$program-$how" != order-always ] || grep -q '"collected_writes": [1-9][0-9]' "$work/report.json" ||
                fail "$mpi: nothing was collected"
            rm -f "$work/report.json"
        done
    done
    echo "== $mpi: programs whose requests are foreseen"
    for kind in tiny segments column; do
        calls=$([ "$kind" = segments ] && echo 60 || echo 400)
        plain $kind "$calls"
        driven $kind "$calls" --memcached auto cycles=1 used_bytes=2000
    done
    echo "== $mpi: without a cache, with one that is lost, and with one that is not there"
    driven column 400 cycles=1
    memcached -s "$work/socket" $([ "$(id -u)" != 0 ] || echo -u root) & server=$!
    (timeout 0.3 tail -f /dev/null || kill "$server") & # somewhere in the run
    killer=$!
    driven column 400 --memcached "$work/socket,/nonexistent/socket" cycles=1
    wait "$killer" "$server" || true
    server=
    echo "== $mpi: what is foreseen is wrong, or changes"
    plain dependent 50
    driven dependent 50 --memcached auto
    # Every prediction is wrong: the guard ends it soon, and what one has read in vain is 1 % of what the program reads, 8 MB a
    # process. Counted, as times are of a machine that does other things.
    plain dependent 2000
    driven dependent 2000 --memcached auto cycles:1 prefetched_bytes:81920 used_bytes:8192 requests:16
    plain changing 40
    driven changing 40
    echo "== $mpi: writes"
    for kind in writing only-writing; do
        plain $kind 400
        driven $kind 400 collected_writes=400
    done
    echo "== $mpi: a process is killed"
    TMPDIR=$work timeout 300 "$SLUICE" mpirun --mpi "$mpi" --library "$work/libsluice-$mpi.so" --dualpar always --memcached auto \
        "mpiexec.$mpi" -n "$processes" "$work/program-$mpi" killed "$work/driven" "$work/out" 5000 > "$work/err" 2>&1 &&
        fail "$mpi: nobody notices" || [ $? != 124 ] || fail "$mpi: others wait for it"
    compgen -G "$work/sluice-*" > "$work/out" && fail "left behind: $(cat "$work/out")"
    echo "== $mpi: ghosts that run wild"
    # Ghosts know nothing of MPI libraries, but for what these share with each other.
    wild=(ghost-loop ghost-write ghost-send)
    [ "$mpi" = openmpi ] || wild+=(ghost-abort ghost-exit ghost-mpi-abort ghost-memory ghost-segv ghost-program ghost-file)
    plain tiny 20
    for kind in "${wild[@]}"; do
        driven "$kind" 20
    done
done
[ -n "$found" ] || exit 0

echo "== a server that sluice mpirun has started ends with the program"
"$SLUICE" mpirun --mpi "$mpi" --library "$work/libsluice-$mpi.so" --dualpar auto --memcached auto \
    sh -c 'echo "$SLUICE_MEMCACHED"; test -S "$SLUICE_MEMCACHED"; exit 7' > "$work/out" && fail "the status is lost" || [ $? = 7 ]
[ -s "$work/out" ] && [ ! -e "$(cat "$work/out")" ] || fail "$(cat "$work/out")"
echo "== also where the directory of temporary files is missing, or its path is too long for a socket"
long=$work/$(printf 'a%.0s' {1..100})
mkdir "$long"
for dir in "$work/nonexistent" "$long"; do
    TMPDIR=$dir "$SLUICE" mpirun --mpi "$mpi" --library "$work/libsluice-$mpi.so" --dualpar auto --memcached auto \
        sh -c 'test -S "$SLUICE_MEMCACHED"' > "$work/out" 2>&1 || fail "$(cat "$work/out")"
done
