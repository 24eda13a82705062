#!/usr/bin/env bash
# The part of deb.sh that runs in a name space of its own: packages are in $1/deb.
set -euo pipefail
work=$1
mount --make-rprivate /
mount -t tmpfs tmpfs "$work/over"
mkdir "$work/over/upper" "$work/over/work"
mount -t overlay overlay -o lowerdir=/,upperdir="$work/over/upper",workdir="$work/over/work" "$work/root"
for dir in dev proc sys; do
    mount --rbind /$dir "$work/root/$dir"
done
mount -t tmpfs tmpfs "$work/root/run"
mount -t tmpfs tmpfs "$work/root/tmp"
mkdir "$work/root/tmp/deb"
cp "$work"/deb/*.deb "$work/root/tmp/deb"
sources=$(dirname "$0")/..
cp "$sources/tests/deb-steps.sh" "$sources"/examples/cpp/{interleaved.cpp,CMakeLists.txt} "$sources/examples/c/fileserver.c" \
    "$sources/crates/agios/tests/c/program.c" "$work/root/tmp"
chroot "$work/root" /bin/bash /tmp/deb-steps.sh

# What dpkg and ldconfig keep for themselves may differ; a character device stands for what the system had and has no more.
left=$(cd "$work/over/upper" && find . ! -type d ! -type c ! -path './var/lib/dpkg/*' ! -path './var/log/dpkg.log' \
    ! -path './etc/ld.so.cache' ! -path './var/cache/*' ! -path './var/lib/systemd/*')
dirs=$(cd "$work/over/upper" && find . -type d -iname '*sluice*')
[ -z "$left$dirs" ] || { echo "removing the packages leaves:" $left $dirs >&2; exit 1; }
