#!/usr/bin/env python3
"""Prints which libraries in Rust are linked into packages of this workspace, and each text of their licences once.

packaging/licences.py PACKAGE...
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXTS = re.compile(r"(licen[cs]e|copying|copyright|notice|unlicense)", re.IGNORECASE)
CODE = {".rs", ".c", ".h", ".py", ".toml", ".json"}


def cargo(*arguments: str) -> str:
    return subprocess.run(["cargo", *arguments, "--locked"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    chosen = [word for package in sys.argv[1:] for word in ("-p", package)]
    tree = cargo("tree", *chosen, "-e", "normal,no-proc-macro", "--prefix", "none", "--no-dedupe", "--format", "{p}")
    linked = {tuple(line.split()[:2]) for line in tree.splitlines() if line}
    packages = json.loads(cargo("metadata", "--format-version", "1"))["packages"]
    packages = [package for package in packages if (package["name"], "v" + package["version"]) in linked]
    packages = sorted((package for package in packages if package["source"]), key=lambda package: package["name"])
    print("Linked into these programs and libraries are the standard library of Rust (MIT OR Apache-2.0,")
    print("https://github.com/rust-lang/rust) and:\n")
    owners: dict[str, list[str]] = {}
    for package in packages:
        name = f"{package['name']} {package['version']}"
        print(f"{name}: {package['license'] or 'see its text'}, {package['repository'] or 'https://crates.io'}")
        folder = Path(package["manifest_path"]).parent
        # Sources in C that a library brings along have their own.
        found = (file for file in folder.rglob("*") if TEXTS.match(file.name) and file.suffix not in CODE)
        texts = sorted(file for file in found if file.is_file())
        for text in texts:
            owners.setdefault(text.read_text(encoding="utf-8", errors="replace").strip(), []).append(name)
        if not texts:
            authors = ", ".join(package["authors"]) or f"the authors of {package['name']}"
            owners.setdefault(f"{package['license']}, without a text of its own; by {authors}", []).append(name)
    for text, names in owners.items():
        print(f"\n{'=' * 100}\n{', '.join(dict.fromkeys(names))}\n{'=' * 100}\n\n{text}")


main()
