#!/usr/bin/env bash
# Builds target/sluicegate_VERSION_ARCH.deb from what `make build` made.
#   packaging/deb.sh [DIRECTORY]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-target}
version=$(sed -n '0,/^version = /s/^version = "\(.*\)"/\1/p' Cargo.toml)
arch=$(dpkg --print-architecture)
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
make --no-print-directory install-only DESTDIR="$tree" PREFIX=/usr LIBDIR="/usr/lib/$(gcc -print-multiarch)"
install -d "$tree/DEBIAN" "$out"
sed -e "s/@VERSION@/$version/; s/@ARCH@/$arch/" packaging/control.in > "$tree/DEBIAN/control"
printf 'activate-noawait ldconfig\n' > "$tree/DEBIAN/triggers"
chmod -R u=rwX,go=rX "$tree"
dpkg-deb --root-owner-group --build "$tree" "$out/sluicegate_${version}_$arch.deb"
