# Where a suite runs: a plain directory, or a mount of one or of three as a striped volume. Sourced by `run`, and by suites
# that kill the mount. All is below $place; $bed_dir is what the suite sees.
bed_dir=

bed_sluice() {
    SLUICE_RUNTIME_DIR="$place/run" SLUICE_STATE_DIR="$place/state" "$sluice" "$@"
}

# Mounts configuration $1, with at most $2 descriptors if given.
bed_mount() {
    local bed cache policy options limited=()
    IFS=/ read -r bed cache policy <<< "$1"
    options=(--cache "$cache" --log "$place/log")
    [ -z "$policy" ] || options+=(--policy "$policy")
    case $bed in
        dir) options+=("$place/source") ;;
        striped) options+=(--target "$place/t0" --target "$place/t1" --target "$place/t2" --stripe 16K) ;;
        *) echo "no such bed: $bed"; return 1 ;;
    esac
    # The mount must not raise the limit again.
    [ -z "${2:-}" ] || limited=(setpriv --bounding-set=-sys_resource --inh-caps=-sys_resource prlimit "--nofile=$2:$2")
    [ -z "${2:-}" ] || [ "$(id -u)" -eq 0 ] || limited=(prlimit "--nofile=$2:$2")
    SLUICE_RUNTIME_DIR="$place/run" SLUICE_STATE_DIR="$place/state" "${limited[@]}" "$sluice" mount --daemon "${options[@]}" "$place/mnt"
}

bed_make() {
    mkdir -p "$place"/{source,mnt,run,t0,t1,t2}
    if [ "$1" = plain ]; then
        bed_dir=$place/source
    else
        bed_dir=$place/mnt
        bed_config=$1
        bed_mount "$1" "${2:-}"
    fi
}

# The process that serves the mount.
bed_pid() {
    bed_sluice status --json "$place/mnt" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1
}

# What every suite demands of the mount in the end.
bed_end() {
    [ "$bed_dir" = "$place/mnt" ] || return 0
    local tries=0 unmounted=fail
    cp "$place/log" "$1.mount" 2> /dev/null
    # A process that just ended may still hold a file.
    while [ $unmounted = fail ] && [ $((tries += 1)) -le 5 ]; do
        if SLUICE_RUNTIME_DIR=$place/run timeout 60 "$sluice" unmount "$place/mnt" >> "$1" 2>&1; then unmounted=pass; else sleep 0.2; fi
    done
    echo "unmounts $unmounted"
    if grep -q panicked "$place/log"; then echo "nothing-panics fail"; else echo "nothing-panics pass"; fi
    if [ "${bed_config%%/*}" = striped ]; then
        if bed_sluice check --target "$place/t0" --target "$place/t1" --target "$place/t2" >> "$1" 2>&1; then
            echo "volume-is-whole pass"
        else
            echo "volume-is-whole fail"
        fi
    fi
}

# Whatever happened: nothing is mounted, and no process serves it, when this returns.
bed_clear() {
    local pid
    if [ "$bed_dir" = "$place/mnt" ]; then
        pid=$(timeout 5 env SLUICE_RUNTIME_DIR="$place/run" "$sluice" status --json "$place/mnt" 2> /dev/null |
            sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1)
        if grep -q " $place/mnt " /proc/self/mountinfo; then
            umount -l "$place/mnt" 2> /dev/null || fusermount3 -uz "$place/mnt"
        fi
        [ -z "$pid" ] || kill -9 "$pid" 2> /dev/null
    fi
    bed_dir=
}
