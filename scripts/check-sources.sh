#!/usr/bin/env bash
# Rules for the sources that no compiler knows.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0

fail() {
    echo "$1" >&2
    status=1
}

sources=$(git ls-files '*.rs' '*.c' '*.h' '*.hpp' '*.py' '*.sh')
# What prost writes is as long as the .proto makes it.
while read -r lines file; do
    [ "$file" = total ] || [ "$lines" -le 800 ] || fail "$file has $lines lines; one file should not have more than 800"
done < <(echo "$sources" | grep -v '^crates/control/src/wire/generated.rs$' | xargs wc -l)

unfinished='todo!\(|unimplemented!\(|FIXME|XXX|#\[ignore'
found=$(echo "$sources" | grep -v '^scripts/check-sources.sh$' | xargs grep -nE "$unfinished" || true)
[ -z "$found" ] || fail "unfinished:"$'\n'"$found"

# What a merge left behind, in documents too.
conflicts=$(git grep -nE '^(<<<<<<<|>>>>>>>)( |$)' || true)
[ -z "$conflicts" ] || fail "conflicts of a merge:"$'\n'"$conflicts"

sleeping=$(git ls-files 'tests/*.rs' '*/tests/*.rs' '*/tests.rs' | xargs -r grep -n 'thread::sleep' || true)
[ -z "$sleeping" ] || fail "tests do not sleep:"$'\n'"$sleeping"

# Names in a manifest's dependencies, of sections that match.
names_in() {
    awk -v section="$2" '/^\[/ { on = $0 ~ section } on && /^[a-z]/ { sub(/[ .=].*/, ""); print }' "$1"
}

# Every dependency is named in the sources of whoever depends on it, and of the workspace's none is left over. By text, which
# a comment can deceive; `make audit` looks closer.
manifests=$(git ls-files '*/Cargo.toml')
for manifest in $manifests; do
    dir=$(dirname "$manifest")
    # Tests may lie elsewhere.
    elsewhere=$(sed -n 's|^path = "\(\.\./.*\)/main.rs"$|\1|p' "$manifest" | sed "s|^|$dir/|")
    while read -r name; do
        # shellcheck disable=SC2086 # Several paths, none with a space.
        git grep -qwF "${name//-/_}" -- "$dir/*.rs" $elsewhere || fail "$manifest: $name is used nowhere"
    done < <(names_in "$manifest" '^\\[(dev-|build-)?dependencies\\]$')
done
while read -r name; do
    # shellcheck disable=SC2086 # As above.
    grep -qE "^$name(\.| =)" $manifests || fail "Cargo.toml: no crate of the workspace uses $name"
done < <(names_in Cargo.toml '^\\[workspace\\.dependencies\\]$')

exit $status
