#!/usr/bin/env bash
# Installs the libraries below a new prefix and builds programs outside the source tree against them: with pkg-config and
# with CMake, linked dynamically and statically; then uninstalls all of it.
#   tests/packaging.sh DIRECTORY-WITH-LIBRARIES [COMMAND]
set -euo pipefail
BUILT=$(realpath "$1")
COMMAND=$(realpath "${2:-$BUILT/sluice}")
export BUILT COMMAND
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
make --no-print-directory -s install-only PREFIX="$prefix"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
cp examples/cpp/{interleaved.cpp,CMakeLists.txt} crates/agios/tests/c/program.c "$work"
cd "$work"
head -c 1000000 /dev/zero > file

g++ -std=c++17 interleaved.cpp $(pkg-config --cflags --libs sluice) -pthread -o dynamic
LD_LIBRARY_PATH=$prefix/lib ./dynamic file
g++ -std=c++17 interleaved.cpp -I "$prefix/include" "$prefix/lib/libsluice.a" -pthread -ldl -lm -o static
./static file
gcc -std=gnu11 program.c $(pkg-config --cflags --libs agios) -pthread -o agios
LD_LIBRARY_PATH=$prefix/lib ./agios "" 2 100 3 2> agios.log || { cat agios.log; exit 1; }

cmake -S . -B cmake -DCMAKE_PREFIX_PATH="$prefix" > cmake.log || { cat cmake.log; exit 1; }
cmake --build cmake > cmake.log || { cat cmake.log; exit 1; }
cmake/interleaved file

cd - > /dev/null
for file in bin/sluice share/man/man8/mount.sluice.8 lib/systemd/system/sluice-mount@.service share/man/man1/sluice.1 share/man/man1/sluice-trace-info.1 share/bash-completion/completions/sluice \
    share/zsh/site-functions/_sluice share/fish/vendor_completions.d/sluice.fish; do
    [ -s "$prefix/$file" ] || { echo "make install has not installed $file" >&2; exit 1; }
done
make --no-print-directory -s uninstall PREFIX="$prefix"
left=$(find "$prefix" -not -type d)
[ -z "$left" ] || { echo "make uninstall has left $left" >&2; exit 1; }

# As for a package: below a directory that is empty before and after.
mkdir "$work/dest"
make --no-print-directory -s install-only DESTDIR="$work/dest" PREFIX=/usr LIBDIR=/usr/lib/x
[ -s "$work/dest/usr/lib/x/pkgconfig/sluice.pc" ] || { echo "make install has ignored DESTDIR or LIBDIR" >&2; exit 1; }
make --no-print-directory -s uninstall DESTDIR="$work/dest" PREFIX=/usr LIBDIR=/usr/lib/x
left=$(find "$work/dest" -mindepth 1)
[ -z "$left" ] || { echo "make uninstall DESTDIR has left" $left >&2; exit 1; }
echo "packaging: all well"
