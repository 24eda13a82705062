#!/usr/bin/env bash
# Installs the packages given as arguments and a Rust toolchain where they are missing. Without root it says what to
# install instead.
set -euo pipefail

# The oldest compiler that the workspace builds with.
need=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")

has_rust() {
    command -v cargo >/dev/null || return 1
    have=$(cargo --version | sed -E 's/^cargo ([0-9]+\.[0-9]+).*/\1/')
    [ "$(printf '%s\n%s\n' "$need" "$have" | sort -V | head -1)" = "$need" ]
}

missing=()
for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done

if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
        echo "installing: ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
    else
        echo "these packages are missing (names as in Debian): ${missing[*]}" >&2
        echo "install them, for example: sudo apt-get install ${missing[*]}" >&2
        exit 1
    fi
fi

if ! has_rust; then
    if [ "$(id -u)" -eq 0 ]; then
        echo "installing Rust (rustup, into ~/.cargo)"
        curl -sSf https://sh.rustup.rs | sh -s -- -y -q --profile minimal -c clippy -c rustfmt || {
            echo "rustup could not be downloaded; install Rust $need or later (cargo, clippy, rustfmt) and try again" >&2
            exit 1
        }
    else
        echo "Rust $need or later is missing; install it from https://rustup.rs and try again" >&2
        exit 1
    fi
fi
