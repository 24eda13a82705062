# What suites are written with. They work in the current directory, which is empty, and keep what they only need themselves in
# $SUITE_SCRATCH, which is not in the mount.

quick() { [ "$SUITE_SIZE" = quick ]; }

# How much of something: the first number in a quick run; in a full one the second, or the part of it that was asked for.
amount() {
    if quick; then echo "$1"; else echo $((($2 * SUITE_PART + 99) / 100)); fi
}

# Runs a command as a case of the suite.
check() {
    local name=$1 result=pass
    shift
    echo "== $name"
    # Not on the left of `||`, where `set -e` would be without effect.
    (
        set -euo pipefail
        "$@"
    )
    [ $? -eq 0 ] || result=fail
    echo "== $name: $result"
    echo "$name $result" >> "$SUITE_CASES"
}

# Runs a command whose output must be the same on the mount.
output() {
    local name=$1
    shift
    echo "== $name"
    "$@" > "$SUITE_OUTPUTS/$name" 2>&1
    echo "status $?" >> "$SUITE_OUTPUTS/$name"
    cat "$SUITE_OUTPUTS/$name"
    echo "$name is:$(sha256sum < "$SUITE_OUTPUTS/$name" | cut -c 1-12)" >> "$SUITE_CASES"
}

# The suite cannot run, or a part of it.
skip() {
    echo "SKIP: $2"
    echo "$1 skip" >> "$SUITE_CASES"
}

# Ends the suite if a program is missing.
need() {
    local program
    for program; do
        command -v "$program" > /dev/null || { skip all "$program is missing; tests/suites/setup installs it"; exit 0; }
    done
}

need_root() {
    [ "$(id -u)" -eq 0 ] || { skip all "must be root to become other users"; exit 0; }
}

# Runs a command as an ordinary user.
as_nobody() {
    setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
}
