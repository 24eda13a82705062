#!/usr/bin/env bash
# Installs what is missing: a C compiler, fuse3 and Rust, with `tests` as argument also the programs that the tests run on a
# mount, with `mpi` the MPI libraries and Memcached, with `gluster` GlusterFS and its headers, with `packages` what builds Debian
# packages and looks at them. Without root, or on a system without apt, it says what to install instead.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

missing=()

# A command, and the package that has it.
need() {
    command -v "$1" > /dev/null || missing+=("$2")
}

# gcc alone cannot link: headers and start-up files come with the C library's development package.
can_compile() {
    echo 'int main(void) { return 0; }' | gcc -x c -o /dev/null - 2> /dev/null
}

# The oldest compiler that the workspace builds with.
rust_wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")

has_rust() {
    command -v cargo > /dev/null || return 1
    rust_found=$(cargo --version 2> /dev/null | sed -nE 's/^cargo ([0-9]+\.[0-9]+).*/\1/p')
    [ -n "$rust_found" ] && [ "$(printf '%s\n%s\n' "$rust_wanted" "$rust_found" | sort -V | head -n 1)" = "$rust_wanted" ]
}

may_install() {
    [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null
}

install_packages() {
    echo "installing: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null
}

install_rust() {
    if command -v rustup > /dev/null; then
        rustup toolchain install stable --profile minimal -c clippy -c rustfmt && rustup default stable && return
    fi
    local dir options=(-y -q --profile minimal -c clippy -c rustfmt)
    dir=$(mktemp -d)
    if curl -sSf --max-time 300 https://sh.rustup.rs -o "$dir/rustup.sh" 2> /dev/null; then
        sh "$dir/rustup.sh" "${options[@]}"
    else
        # What the script would get; the program goes by its name.
        curl -sSf --max-time 300 -o "$dir/rustup-init" \
            "https://static.rust-lang.org/rustup/dist/$(uname -m)-unknown-linux-gnu/rustup-init"
        chmod +x "$dir/rustup-init"
        "$dir/rustup-init" "${options[@]}"
    fi
    rm -rf "$dir"
}

need gcc gcc
command -v gcc > /dev/null && can_compile || missing+=(libc6-dev)
need fusermount3 fuse3
if [ "${1:-}" = tests ]; then
    need git git
    need tar tar
    need fio fio
    need strace strace
    need sqlite3 sqlite3
    need python3 python3
    python3 -c 'import ensurepip' 2> /dev/null || missing+=(python3-venv)
    need setpriv util-linux
    need cmp diffutils
    need g++ g++
    need pkg-config pkg-config
    need cmake cmake
    need strip binutils
    need valgrind valgrind
    need node nodejs
    need nbdkit nbdkit
    need nbdcopy libnbd-bin
    need qemu-io qemu-utils
fi
if [ "${1:-}" = gluster ] || [ "${1:-}" = tests ] || [ "${1:-}" = packages ]; then
    need glusterfsd glusterfs-server
    need ip iproute2
    need tc iproute2
    need pgrep procps
    # Its headers include those of the others.
    for header in glusterfs/xlator.h:libglusterfs-dev urcu/arch.h:liburcu-dev uuid/uuid.h:uuid-dev sys/acl.h:libacl1-dev; do
        [ -e "/usr/include/${header%:*}" ] || missing+=("${header#*:}")
    done
fi
if [ "${1:-}" = mpi ] || [ "${1:-}" = tests ] || [ "${1:-}" = packages ]; then
    need mpicc.mpich libmpich-dev
    need mpiexec.mpich mpich
    need mpicc.openmpi libopenmpi-dev
    need mpiexec.openmpi openmpi-bin
    need memcached memcached
fi
if [ "${1:-}" = packages ]; then
    need nbdkit nbdkit
    need dh debhelper
    need lintian lintian
    need logrotate logrotate
    need g++ g++
    need pkg-config pkg-config
    need cmake cmake
    need python3 python3
    need unshare util-linux
fi
if ! has_rust && may_install; then
    need curl curl
    [ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
fi

if [ ${#missing[@]} -gt 0 ]; then
    if ! may_install; then
        echo "these packages are missing (names as in Debian): ${missing[*]}" >&2
        echo "install them, for example: sudo apt-get install ${missing[*]}" >&2
        exit 1
    fi
    install_packages
fi

if ! has_rust; then
    if ! may_install; then
        echo "Rust $rust_wanted or later is missing; install it from https://rustup.rs and try again" >&2
        exit 1
    fi
    echo "installing Rust (with rustup, into ${CARGO_HOME:-$HOME/.cargo})"
    install_rust && hash -r && has_rust || {
        echo "Rust $rust_wanted or later could not be installed; do it by hand (https://rustup.rs) and try again" >&2
        exit 1
    }
fi

if [ ! -w /dev/fuse ]; then
    echo "NOTE: /dev/fuse is missing or closed to you: nothing can be mounted, and tests of the mount are skipped." >&2
fi
