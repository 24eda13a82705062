#!/usr/bin/env bash
# Checks the Python package: format, lint, types, tests. `python.sh DIR SLUICE`: DIR is where its tools are installed, SLUICE
# the command whose traces it reads.
set -euo pipefail
venv=$1/python-tools
SLUICE=$(realpath "$2")
export SLUICE
cd "$(dirname "$0")/../python"
if ! cmp -s pyproject.toml "$venv/pyproject.toml"; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install -q --disable-pip-version-check -e '.[test]'
    cp pyproject.toml "$venv/"
fi
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
