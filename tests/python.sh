#!/usr/bin/env bash
# Checks the Python package: format, lint, types, tests. `python.sh DIR SLUICE`: DIR is where its tools are installed, SLUICE
# the command whose traces it reads; without it the tools are installed and that is all.
set -euo pipefail
venv=$1/python-tools
[ $# -lt 2 ] || SLUICE=$(realpath "$2")
export SLUICE
mkdir -p "$1"
cd "$(dirname "$0")/../python"
# Who installs them in the background is waited for.
exec 9> "$venv.lock"
flock 9
if ! cmp -s pyproject.toml "$venv/pyproject.toml"; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check -e '.[test]'
    cp pyproject.toml "$venv/"
fi
exec 9>&-
[ -n "${SLUICE:-}" ] || exit 0
"$venv/bin/ruff" format --check .
"$venv/bin/ruff" check .
"$venv/bin/mypy"
"$venv/bin/pytest" -q
# What others install has the texts of its licences.
wheel=$(mktemp -d)
trap 'rm -rf "$wheel"' EXIT
"$venv/bin/pip" wheel -q --disable-pip-version-check --no-deps --wheel-dir "$wheel" .
files=$("$venv/bin/python" -m zipfile --list "$wheel"/sluicegate-*-py3-none-any.whl)
for text in LICENSE-MIT LICENSE-APACHE; do
    grep -q "licenses/$text" <<<"$files" || {
        echo "the wheel lacks $text" >&2
        exit 1
    }
done
