# `make run` sets up, builds and runs the demo; `make test` sets up and runs all tests. Both work on a fresh Debian or
# Ubuntu machine.

SHELL := /bin/bash
CARGO ?= cargo
export PATH := $(HOME)/.cargo/bin:$(PATH)

# What the programs under test and the mount need. libfuse is not linked; fuse3 brings fusermount3.
APT_PACKAGES := gcc pkg-config make git tar ca-certificates curl fuse3 fio sqlite3 attr python3 util-linux

.PHONY: help setup run test build fmt lint doc check bench install clean
.DEFAULT_GOAL := help

help: ## Show this
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: ## Install what is missing (as root), or say what to install
	@scripts/setup.sh $(APT_PACKAGES)

build: setup ## Build the sluice command, optimised
	$(CARGO) build --release --locked -p sluice-cli

run: build ## Set up, build, run the demo: algorithms against each other on a mounted volume of emulated disks
	target/release/sluice demo

test: setup ## Set up, run all tests: unit, property, conformance, mounted, end to end
	$(CARGO) test --locked --workspace

fmt: ## Format the sources
	$(CARGO) fmt --all

lint: ## What CI demands of the sources beside the tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy --locked --workspace --all-targets --profile test -- -D warnings
	scripts/check-sources.sh

doc: ## Build the documentation; warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps

check: lint doc test ## Everything that CI runs

bench: build ## Print the figures of docs/benchmarks.md (takes some minutes; the machine should be quiet)
	target/release/sluice bench engine
	target/release/sluice bench runtime
	target/release/sluice bench fuse

PREFIX ?= /usr/local
install: build ## Install the sluice command below PREFIX
	install -D -m 755 target/release/sluice $(DESTDIR)$(PREFIX)/bin/sluice
	install -D -m 644 sluice.example.toml $(DESTDIR)$(PREFIX)/share/doc/sluice/sluice.example.toml

clean: ## Remove what was built
	$(CARGO) clean
