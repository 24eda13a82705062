#!/usr/bin/env bash
# Builds the Debian packages and looks at them as a distribution does, with lintian. Then, as root, installs them into a copy
# of this system that only this script sees, mounts in each way that they offer, removes them, and looks for what is left.
#   tests/deb.sh DIRECTORY-WITH-LIBRARIES [COMMAND]
set -euo pipefail
BUILT=$(realpath "$1")
COMMAND=$(realpath "${2:-$BUILT/sluice}")
export BUILT COMMAND
cd "$(dirname "$0")/.."
tests=$PWD/tests
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

packaging/deb.sh "$work/deb"
cd "$work/deb"
lintian --fail-on error,warning --tag-display-limit 0 ./*.deb
for package in sluicegate libsluice0; do
    dpkg-deb --field $package\_*.deb Depends | tee "$work/depends"
    grep -q 'libc6 (>= [0-9]' "$work/depends" || { echo "$package does not say which libc6 it needs" >&2; exit 1; }
done
for package in ./*.deb; do
    [[ "$package" = *libsluice-dev* ]] || dpkg-deb --contents "$package" | grep third-party-licences > /dev/null ||
        { echo "$package has no licences of what is linked in" >&2; exit 1; }
done
! dpkg-deb --contents sluicegate_*.deb | grep sluice-bench || { echo "what only measures Sluicegate is in the package" >&2; exit 1; }
case $BUILT in */release)
    # Kibibytes, once installed. What they were when this was written is in docs/operation.md.
    while read -r package most; do
        size=$(dpkg-deb --field $package\_*.deb Installed-Size)
        [ "$size" -le "$most" ] || { echo "$package takes $size KiB, more than $most" >&2; exit 1; }
    done <<< "sluicegate 18000
libsluice0 11000
libsluice-dev 60000" ;;
esac

if [ "$(id -u)" != 0 ]; then
    echo "SKIP: only root can install packages: that was NOT tried" >&2
    exit 0
fi
mkdir "$work/over" "$work/root"
unshare --mount --pid --fork --kill-child --mount-proc "$tests/deb-inside.sh" "$work"
echo "deb: all well"
