#!/usr/bin/env bash
# Builds what MPI programs load and runs programs with it, for each MPI library that is here.
#   tests/mpi.sh DIRECTORY-WITH-LIBRARIES COMMAND
# SLUICE_MPI_CASES says how many random cases run instead of 500, SLUICE_MPI_SEED which is the first.
set -euo pipefail
BUILT=$(realpath "$1")
SLUICE=$(realpath "$2")
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
cases=${SLUICE_MPI_CASES:-500}
seed=${SLUICE_MPI_SEED:-1}
fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# With a directory of its own, so that nothing that was built for users is replaced.
make --no-print-directory -s mpi-libraries BUILT="$work" MPI_LIBRARY="$BUILT/libsluice_mpiio.a"

run() { # MPI PROCESSES PROGRAM...
    local mpi=$1 processes=$2
    shift 2
    timeout $((900 + cases)) "$SLUICE" mpirun --mpi "$mpi" --library "$work/libsluice-$mpi.so" --report "$work/report.json" \
        "mpiexec.$mpi" -n "$processes" "$@"
}

# Which strategies the report has, and how many calls of each there must be.
served() { # LEAST STRATEGY...
    python3 - "$work/report.json" "$@" << 'END' || fail "too few calls were served here"
import json, sys
counts = {}
for file in json.load(open(sys.argv[1]))["files"]:
    for row in file["collective"]:
        counts[row["strategy"]] = counts.get(row["strategy"], 0) + row["calls"]
print("  calls served:", ", ".join(f"{name} {counts[name]}" for name in sorted(counts)))
sys.exit(any(counts.get(name, 0) < int(sys.argv[2]) for name in sys.argv[3:]))
END
    rm -f "$work/report.json"
}

found=
for mpi in mpich openmpi; do
    if ! command -v "mpicc.$mpi" > /dev/null || ! command -v "mpiexec.$mpi" > /dev/null; then
        echo "NOTE: nothing is tested with $mpi: mpicc.$mpi or mpiexec.$mpi is missing (scripts/setup.sh mpi installs them)"
        continue
    fi
    found=yes
    # More processes than processors are slow with MPICH, which waits without sleeping.
    processes=2 share=$((cases * 9 / 10))
    [ "$mpi" = mpich ] || processes=4 share=$((cases / 10))
    echo "== $mpi: random views, types and calls, compared with the library's own ($share cases from seed $seed)"
    "mpicc.$mpi" -std=gnu11 -O1 -g -Wall -Wextra -Werror tests/mpi/generate.c -o "$work/generate-$mpi"
    run "$mpi" "$processes" "$work/generate-$mpi" "$work" "$seed" "$share" || fail "seeds from $seed on, of $share cases"
    # More processes are seldom in order.
    served $((share / 25)) agents early $([ "$processes" -gt 2 ] || echo timed)

    # With several threads communicators are made in another way.
    echo "== $mpi: errors, threads, communicators, files left open"
    "mpicc.$mpi" -std=gnu11 -O1 -g -Wall -Wextra -Werror -pthread tests/mpi/edges.c -o "$work/edges-$mpi"
    for how in single threads; do
        mkdir "$work/edges"
        SLUICE_MPI=agents run "$mpi" $((processes > 2 ? 3 : 2)) "$work/edges-$mpi" "$work/edges" "$how" > "$work/out" 2> "$work/err" ||
            fail "$how: $(cat "$work/out" "$work/err")"
        grep -q "results are the same" "$work/out" || fail "$how: $(cat "$work/out")"
        grep -q "edges/open.0.with" "$work/report.json" || fail "$how: the file that was left open is not in the report"
        served 10 agents
        rm -rf "$work/edges"
    done

    echo "== $mpi: another tool on the profiling interface, loaded beside"
    cat > "$work/tool.c" << 'END'
#include <mpi.h>
#include <stdio.h>
static int calls;
int MPI_File_write_at_all(MPI_File f, MPI_Offset o, const void *b, int n, MPI_Datatype t, MPI_Status *s)
{
    calls++;
    return PMPI_File_write_at_all(f, o, b, n, t, s);
}
int MPI_Finalize(void)
{
    fprintf(stderr, "tool: %d calls\n", calls);
    return PMPI_Finalize();
}
END
    "mpicc.$mpi" -shared -fPIC -o "$work/tool-$mpi.so" "$work/tool.c"
    mkdir "$work/edges"
    LD_PRELOAD=$work/tool-$mpi.so run "$mpi" 2 "$work/edges-$mpi" "$work/edges" > "$work/out" 2> "$work/err" || fail "$(cat "$work/err")"
    grep -q "results are the same" "$work/out" && grep -q "tool: [1-9]" "$work/err" || fail "$(cat "$work/out" "$work/err")"
    rm -rf "$work/edges" "$work/report.json"

    echo "== $mpi: a program of another MPI library runs without"
    other=$([ "$mpi" = mpich ] && echo openmpi || echo mpich)
    if [ -e "$work/generate-$other" ]; then
        for pair in "$mpi $other" "$other $mpi"; do
            set -- $pair
            LD_PRELOAD=$work/libsluice-$1.so "mpiexec.$2" -n 1 "$work/generate-$2" "$work" 1 1 > "$work/out" 2> "$work/err"
            grep -q "cases 1 mismatches 0" "$work/out" && grep -q "another MPI library" "$work/err" || fail "$pair"
        done
    fi
done
[ -n "$found" ] || exit 0
if [ -e "$work/generate-openmpi" ]; then
    echo "== openmpi: processes that begin by Fortran's calls, which go past what is loaded, beside one that begins by C's"
    cat > "$work/both.c" << 'END'
#include <mpi.h>
void mpi_init_(MPI_Fint *error);
int main(int argc, char **argv)
{
    MPI_Fint error = 0;
    MPI_File file;
    if (argc > 2)
        mpi_init_(&error);
    else
        MPI_Init(&argc, &argv);
    /* As Fortran's interface does. */
    if (argc > 2)
        PMPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    else
        MPI_File_open(MPI_COMM_WORLD, argv[1], MPI_MODE_CREATE | MPI_MODE_RDWR, MPI_INFO_NULL, &file);
    PMPI_File_close(&file);
    return error || MPI_Finalize();
}
END
    mpicc.openmpi -Wall -Werror "$work/both.c" -o "$work/both" -lmpi_mpifh
    for second in ": -n 1 $work/both $work/shared fortran" ""; do
        timeout 300 "$SLUICE" mpirun --mpi openmpi --library "$work/libsluice-openmpi.so" mpiexec.openmpi \
            -n 1 "$work/both" "$work/shared" $([ -n "$second" ] || echo fortran) $second > "$work/out" 2>&1 || fail "$(cat "$work/out")"
    done
fi
if [ -w /dev/fuse ] && [ -e "$work/generate-mpich" ]; then
    echo "== on a striped volume, whose layout the file system tells"
    mkdir "$work"/{a,b,volume}
    "$SLUICE" -q mount --daemon --target "$work/a" --target "$work/b" --stripe 64K "$work/volume"
    trap '"$SLUICE" -q unmount "$work/volume" || "$SLUICE" -q unmount --lazy "$work/volume"; rm -rf "$work"' EXIT
    run mpich 2 "$work/generate-mpich" "$work/volume" "$seed" 20 || fail "on a mount, seeds from $seed on"
    grep -q '"layout": "65536 bytes round robin over 2 from 1"' "$work/report.json" || fail "its layout was not found"
    served 5 agents
    echo "== the volume knows the program by its job, and what its processes say that they do"
    mpicc.mpich -std=gnu11 -O1 -g -Wall -Wextra -Werror tests/mpi/dualpar.c -o "$work/driven"
    head -c 4M /dev/urandom > "$work/volume/read"
    program_on_volume() {
        local status=0
        rm -f "$work/report.json"
        # What the kernel has is not asked for; and files that have just changed are left alone.
        dd if="$work/volume/read" iflag=nocache count=0 status=none
        timeout -k 1 0.1 tail -f /dev/null || true
        timeout 300 "$SLUICE" mpirun --mpi mpich --library "$work/libsluice-mpich.so" --job run-17 --dualpar always --memcached auto \
            --report "$work/report.json" mpiexec.mpich -n 2 "$work/driven" column "$work/volume/read" "$work/driven-out" 400 \
            > "$work/out" 2>&1 || fail "$(cat "$work/out")"
        "$SLUICE" status --json "$work/volume" > "$work/status"
        python3 - "$work/status" "$work/report.json" << 'END' || status=$?
import json, os, sys
app = next(app for app in json.load(open(sys.argv[1]))["apps"] if app["name"] == f"job=run-17 uid={os.getuid()}")
print(f"  {app['name']}: program {app['number']:08x}, {app['requests']} requests, {app['phases']}")
late = [file["data_driven"]["ghosts_late"] for file in json.load(open(sys.argv[2]))["files"] if "data_driven" in file]
if app["phases"]["batches"] == 0 and any(late):
    sys.exit(75)
sys.exit(app["requests"] == 0 or app["phases"]["batches"] == 0 or app["phases"]["in_batch"] > 0)
END
        [ "$status" = 0 ] || [ "$status" = 75 ] || fail "$(cat "$work/status")"
        return "$status"
    }
    # On a busy machine a ghost may be late.
    for ((tries = 1; tries <= 20; tries++)); do
        if program_on_volume; then break; fi
    done
    [ "$tries" -le 20 ] || fail "ghosts are late, always"
fi
echo "== what sluice mpirun would do"
"$SLUICE" mpirun --dry-run --mpi mpich --library "$work/libsluice-mpich.so" --mode agents srun -n 4 ./program > "$work/out"
grep -q "^environment: LD_PRELOAD=$work/libsluice-mpich.so" "$work/out" && grep -q "^environment: SLUICE_MPI=agents" "$work/out" &&
    grep -qx "command: srun -n 4 ./program" "$work/out" || fail "$(cat "$work/out")"
