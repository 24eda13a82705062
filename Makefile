# `make run` sets up, builds and runs the demo; `make test` sets up and runs all tests. Both work on a fresh Debian or
# Ubuntu machine.

SHELL := /bin/bash
CARGO ?= cargo
export PATH := $(HOME)/.cargo/bin:$(PATH)
# Where Cargo puts what it builds.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Clippy and rustdoc look at the dependencies as the tests build them, so that each is analysed once.
AS_TESTS := --locked --workspace --profile test

.PHONY: help setup setup-tests run build test e2e fmt lint doc check bench install clean
.DEFAULT_GOAL := help

help: ## Show this
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: ## Install what building and mounting need (as root), or say what to install
	@scripts/setup.sh

setup-tests: ## The same, and the programs that the tests run
	@scripts/setup.sh tests

build: setup ## Build the sluice command, optimised
	$(CARGO) build --release --locked -p sluice-cli

run: build ## Set up, build, run the demo: algorithms against each other on a mounted volume of emulated disks
	$(TARGET)/release/sluice demo

test: setup-tests ## Set up, run all tests: unit, property, conformance, mounted, end to end
	$(CARGO) test --locked --workspace

e2e: setup-tests ## Run only the end-to-end tests: programs on mounts of the real command
	$(CARGO) test --locked -p sluice-cli --test e2e

fmt: ## Format the sources
	$(CARGO) fmt --all

lint: ## What CI demands of the sources beside the tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(AS_TESTS) --all-targets -- -D warnings
	scripts/check-sources.sh

doc: ## Build the documentation; warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(AS_TESTS) --no-deps

check: lint doc test ## Everything that CI runs

bench: build ## Print the figures of docs/benchmarks.md (takes some minutes; the machine should be quiet)
	$(TARGET)/release/sluice bench engine
	$(TARGET)/release/sluice bench runtime
	$(TARGET)/release/sluice bench emulation
	$(TARGET)/release/sluice bench fuse

PREFIX ?= /usr/local
install: build ## Install the sluice command below PREFIX
	install -D -m 755 $(TARGET)/release/sluice $(DESTDIR)$(PREFIX)/bin/sluice
	install -D -m 644 sluice.example.toml $(DESTDIR)$(PREFIX)/share/doc/sluice/sluice.example.toml

clean: ## Remove what was built
	$(CARGO) clean
