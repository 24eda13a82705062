#!/usr/bin/env bash
# Runs tests, and programs of tests a second time that fail: with threads, processes and mounts, on a machine that stalls for
# seconds, one of a thousand does. What passes only then is named at the end, and is a fault, of the test or of what it tests.
# With STRICT=1 nothing is run again.
#
#   scripts/test.sh cargo ARGUMENT...   Cargo's tests
#   scripts/test.sh run COMMAND...      any other command
#   scripts/test.sh report              what passed only the second time since the last report
set -uo pipefail
unsteady=${CARGO_TARGET_DIR:-target}/unsteady.txt
mkdir -p "$(dirname "$unsteady")"

passes_again() {
    [ "${STRICT:-0}" = 1 ] && return 1
    printf '\nFAILED, and is run a second time: %s\n\n' "$*"
    "$@" || return 1
    echo "$*" >> "$unsteady"
}

cargo_tests() {
    local log failed target
    log=$(mktemp)
    cargo test --no-fail-fast "$@" 2>&1 | tee "$log" && { rm "$log"; return 0; }
    # Cargo's last words: "error: 2 targets failed:", and each of them, as `-p PACKAGE --test NAME` or `--test NAME`.
    mapfile -t failed < <(sed -n 's/^    `\(-.*\)`$/\1/p' "$log")
    rm "$log"
    [ ${#failed[@]} -gt 0 ] || return 1
    for target in "${failed[@]}"; do
        # shellcheck disable=SC2086  # words of a command line
        passes_again cargo test --locked $target || return 1
    done
}

report() {
    [ -s "$unsteady" ] || return 0
    printf '\nUNSTEADY: these failed once and passed when run again:\n'
    sed 's/^/  /' "$unsteady"
    rm "$unsteady"
}

case ${1:-} in
cargo) shift && cargo_tests "$@" ;;
run) shift && { "$@" || passes_again "$@"; } ;;
report) report ;;
*) sed -n 's/^# \{0,1\}//p' "$0" | sed -n '2,20p' >&2; exit 2 ;;
esac
