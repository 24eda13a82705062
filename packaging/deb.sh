#!/usr/bin/env bash
# Builds the Debian packages from what `make build-packages` has made.
#   packaging/deb.sh [DIRECTORY]
# BUILT and COMMAND say where the libraries and the command are.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-target/deb}")
command -v dh > /dev/null || { echo "debhelper is missing: scripts/setup.sh packages installs it" >&2; exit 1; }
version=$(sed -n '0,/^version = /s/^version = "\(.*\)"/\1/p' Cargo.toml)
packaged=$(dpkg-parsechangelog -S Version)
[ "$version" = "$packaged" ] || { echo "debian/changelog ends with $packaged, but this is $version: add an entry" >&2; exit 1; }
mkdir -p "$out"
trap 'debian/rules clean > /dev/null' EXIT
# So dpkg-deb says that files are root's: nobody needs to be root, or to pretend to be.
DEB_RULES_REQUIRES_ROOT=no OUT=$out debian/rules binary
ls -l "$out"/*.deb
