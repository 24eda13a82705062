# `make run` sets up, builds and runs the demo; `make test` sets up and runs all tests. Both work on a fresh Debian or
# Ubuntu machine.

SHELL := /bin/bash
CARGO ?= cargo
export PATH := $(HOME)/.cargo/bin:$(PATH)
# Where Cargo puts what it builds.
TARGET := $(or $(CARGO_TARGET_DIR),target)
# Clippy and rustdoc look at the dependencies as the tests build them, so that each is analysed once.
AS_TESTS := --locked --workspace --profile test

.PHONY: gluster-memory proto help setup setup-tests run build test tsan e2e suites suites-quick fmt lint audit doc check bench install clean
.DEFAULT_GOAL := help

help: ## Show this
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## Install what building and mounting need (as root), or say what to install
	@scripts/setup.sh

setup-tests: ## The same, and the programs that the tests run
	@scripts/setup.sh tests

setup-packages: ## The same, and the programs that build Debian packages
	@scripts/setup.sh packages

setup-gluster: ## The same, and GlusterFS with its headers
	@scripts/setup.sh gluster

build: setup ## Build the sluice command and the libraries for C, optimised
	$(CARGO) build --release --locked -p sluice-cli -p sluice-capi -p sluice-agios

run: setup ## Set up, build, run the demo: algorithms against each other on a mounted volume of emulated disks
	$(CARGO) build --release --locked -p sluice-cli
	$(TARGET)/release/sluice demo --plot $(TARGET)/demo.svg

test: setup-tests ## Set up, run all tests: unit, property, conformance, mounted, end to end (STRICT=1: none a second time)
	@tests/python.sh $(abspath $(TARGET)) > /dev/null 2>&1 & # meanwhile: what goes wrong is tried again below
	scripts/test.sh cargo --locked --workspace
	$(CARGO) test --locked -p sluice-runtime --features model --test model
	scripts/test.sh run tests/packaging.sh $(TARGET)/debug/deps $(TARGET)/debug/sluice
	scripts/test.sh run tests/python.sh $(abspath $(TARGET)) $(TARGET)/debug/sluice
	scripts/test.sh run tests/gluster.sh $(TARGET)/debug/deps $(TARGET)/debug/sluice
	$(CARGO) build --locked --profile test -p sluice-mpiio -p sluice-nbdkit
	scripts/test.sh run tests/mpi.sh $(TARGET)/debug $(TARGET)/debug/sluice
	scripts/test.sh run tests/dualpar.sh $(TARGET)/debug $(TARGET)/debug/sluice
	scripts/test.sh run tests/tier.sh $(TARGET)/debug $(TARGET)/debug/sluice
	scripts/test.sh report

tsan: setup-tests ## Run the test of many threads under ThreadSanitizer (builds the libraries anew for it)
	RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" \
	  TSAN_OPTIONS="suppressions=$(abspath crates/capi/tests/tsan.supp)" $(CARGO) test --locked -p sluice-capi \
	  --test threads --target $(shell uname -m)-unknown-linux-gnu --target-dir $(TARGET)/tsan

gluster-memory: setup-tests setup-gluster ## Look for memory that the translator for GlusterFS loses or uses too long, with valgrind (ten minutes)
	$(CARGO) build --locked --profile test -p sluice-capi -p sluice-cli
	tests/gluster-memory.sh $(TARGET)/debug $(TARGET)/debug/sluice

e2e: setup-tests ## Run only the end-to-end tests: programs on mounts of the real command
	$(CARGO) test --locked -p sluice-cli --test e2e

suites-quick: setup-tests ## Run a small part of other people's suites on a directory and on mounts (3 minutes)
	tests/suites/setup || echo "NOTE: suites whose programs are missing are skipped"
	$(CARGO) build --locked -p sluice-cli
	tests/suites/run --quick --sluice $(TARGET)/debug/sluice

suites: build ## Run all of them, on every configuration and under every algorithm (a night)
	tests/suites/setup
	tests/suites/run --full --sluice $(TARGET)/release/sluice

proto: ## Make crates/control/src/wire/generated.rs of the .proto
	$(CARGO) run --locked --manifest-path crates/control/proto/generate/Cargo.toml --target-dir $(TARGET)/proto

fmt: ## Format the sources
	$(CARGO) fmt --all

lint: ## What CI demands of the sources beside the tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy $(AS_TESTS) --all-targets -- -D warnings
	$(CARGO) clippy --locked --profile test -p sluice-runtime --features model --all-targets -- -D warnings
	scripts/check-sources.sh

# Their compilation takes minutes, so CI does without; the advisories come from a repository that must be reached.
AUDIT := $(abspath $(TARGET))/audit
audit: ## Look at the dependencies: advisories, licences, sources, what is unused (the first time it builds tools for that)
	test -x $(AUDIT)/bin/cargo-machete || $(CARGO) install --locked --root $(AUDIT) cargo-machete
	test -x $(AUDIT)/bin/cargo-deny || $(CARGO) install --locked --root $(AUDIT) cargo-deny
	$(AUDIT)/bin/cargo-machete
	$(AUDIT)/bin/cargo-deny check licenses bans sources
	$(AUDIT)/bin/cargo-deny check advisories

doc: ## Build the documentation; warnings are errors
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc $(AS_TESTS) --no-deps

check: lint doc test ## Everything that CI runs

bench: setup ## Print the figures of docs/benchmarks.md (takes an hour; the machine should be quiet)
	$(CARGO) build --release --locked -p sluice-bench -p sluice-cli
	$(TARGET)/release/sluice-bench engine
	$(TARGET)/release/sluice-bench runtime
	$(TARGET)/release/sluice-bench emulation
	$(TARGET)/release/sluice-bench device
	$(TARGET)/release/sluice-bench fuse
	$(TARGET)/release/sluice-bench sim
	$(TARGET)/release/sluice-bench features
	$(TARGET)/release/sluice-bench detector
	if [ "$$(id -u)" = 0 ]; then $(TARGET)/release/sluice-bench fidelity --quick; else echo 'fidelity: left out, as it needs root'; fi
	if [ "$$(id -u)" = 0 ]; then $(TARGET)/release/sluice-bench rivals --quick; else echo 'rivals: left out, as it needs root'; fi

bench-capi: build ## Print the figures of docs/benchmarks.md for the libraries for C; AGAINST=... compares with another libagios
	$(CC) $(BENCH_FLAGS) -I crates/capi/include bench/capi/bench.c -o $(TARGET)/release/bench-capi -L $(TARGET)/release -lsluice
	$(CC) $(BENCH_FLAGS) -I crates/agios/include bench/capi/agios.c -o $(TARGET)/release/bench-agios -L $(TARGET)/release -lagios -ldl
	ln -sf libsluice.so $(TARGET)/release/libsluice.so.$(SOVERSION)
	ln -sf libagios.so $(TARGET)/release/libagios.so.$(SOVERSION)
	$(TARGET)/release/bench-capi
	$(TARGET)/release/bench-agios $(if $(AGAINST),--against $(AGAINST))

BENCH_FLAGS := -O2 -std=gnu11 -Wall -Wextra -Wpedantic -Werror -pthread -Wl,-rpath,'$$ORIGIN'
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
# Where the built command and libraries are.
BUILT ?= $(TARGET)/release
COMMAND ?= $(BUILT)/sluice
# Of the interface of the libraries. A change that breaks programs raises it, here and in the build.rs of both.
SOVERSION := 0
VERSION := $(shell sed -n '0,/^version = /s/^version = "\(.*\)"/\1/p' Cargo.toml)
FILL := sed -e 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@INCLUDEDIR@|$(PREFIX)/include|; s|@VERSION@|$(VERSION)|; s|@SOVERSION@|$(SOVERSION)|'

# Where manual pages, completions and units go; packages of systems that have others set these.
MANDIR ?= $(PREFIX)/share/man
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
DOCDIR ?= $(PREFIX)/share/doc/sluicegate
UNITDIR ?= $(PREFIX)/lib/systemd/system
# Static libraries also carry what the compiler's own link-time optimisation would need: three quarters of them.
STRIP := strip --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd
# The loader's cache is of this machine, not of what is packed, and knows only the system's directories.
IS_LIVE := $(if $(DESTDIR),,$(filter /lib% /usr/lib% /usr/local/lib%,$(LIBDIR)))
LDCONFIG = $(if $(IS_LIVE),if [ "$$(id -u)" = 0 ]; then PATH=$$PATH:/sbin:/usr/sbin ldconfig; fi)

.PHONY: setup-packages nbdkit install-nbdkit install-nbdkit-only uninstall-nbdkit install-mpi-only uninstall-mpi build-packages setup-gluster gluster install-gluster install-gluster-only uninstall-gluster bench-capi install-only install-libraries install-manual uninstall deb deb-test wheel mpi mpi-libraries install-mpi
install: build install-only ## Install the command, the libraries, the headers and the manual below PREFIX (/usr/local)

install-only: install-libraries install-manual
	install -D -m 755 $(COMMAND) $(DESTDIR)$(PREFIX)/bin/sluice
	$(STRIP) $(DESTDIR)$(PREFIX)/bin/sluice
	install -d $(DESTDIR)$(PREFIX)/sbin
	ln -sf ../bin/sluice $(DESTDIR)$(PREFIX)/sbin/mount.sluice
	ln -sf ../bin/sluice $(DESTDIR)$(PREFIX)/sbin/mount.fuse.sluice
	install -D -m 644 packaging/mount.sluice.8 $(DESTDIR)$(MANDIR)/man8/mount.sluice.8
	ln -sf mount.sluice.8 $(DESTDIR)$(MANDIR)/man8/mount.fuse.sluice.8
	install -D -m 644 sluice.example.toml $(DESTDIR)$(DOCDIR)/sluice.example.toml
	install -d $(DESTDIR)$(UNITDIR)
	$(FILL) packaging/sluice-mount@.service.in > $(DESTDIR)$(UNITDIR)/sluice-mount@.service

install-libraries:
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(LIBDIR)/cmake/sluice $(DESTDIR)$(PREFIX)/include
	install -m 644 crates/capi/include/sluice.h crates/agios/include/agios.h examples/cpp/sluice.hpp $(DESTDIR)$(PREFIX)/include
	for name in sluice agios; do \
	  install -m 644 $(BUILT)/lib$$name.so $(DESTDIR)$(LIBDIR)/lib$$name.so.$(VERSION) && \
	  install -m 644 $(BUILT)/lib$$name.a $(DESTDIR)$(LIBDIR) && \
	  $(STRIP) $(DESTDIR)$(LIBDIR)/lib$$name.so.$(VERSION) $(DESTDIR)$(LIBDIR)/lib$$name.a && \
	  ln -sf lib$$name.so.$(VERSION) $(DESTDIR)$(LIBDIR)/lib$$name.so.$(SOVERSION) && \
	  ln -sf lib$$name.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/lib$$name.so && \
	  $(FILL) packaging/$$name.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/$$name.pc || exit 1; \
	done
	for file in sluiceConfig.cmake sluiceConfigVersion.cmake; do \
	  $(FILL) packaging/$$file.in > $(DESTDIR)$(LIBDIR)/cmake/sluice/$$file || exit 1; \
	done
	$(LDCONFIG)

install-manual: # The manual pages and what shells complete, as the command itself tells them
	$(COMMAND) man $(DESTDIR)$(MANDIR)/man1
	install -d $(DESTDIR)$(BASHDIR) $(DESTDIR)$(ZSHDIR) $(DESTDIR)$(FISHDIR)
	$(COMMAND) completions bash > $(DESTDIR)$(BASHDIR)/sluice
	$(COMMAND) completions zsh > $(DESTDIR)$(ZSHDIR)/_sluice
	$(COMMAND) completions fish > $(DESTDIR)$(FISHDIR)/sluice.fish

# Directories that others use, too: an installed system keeps them, what was made to be packed ends as empty as it began.
SHARED := $(addprefix $(PREFIX)/,bin sbin include) $(addprefix $(LIBDIR)/,pkgconfig cmake) $(addprefix $(MANDIR)/,man1 man8) \
  $(UNITDIR) $(BASHDIR) $(ZSHDIR) $(FISHDIR) $(dir $(DOCDIR))

uninstall: ## Remove what `make install` with the same PREFIX put there
	rm -f $(DESTDIR)$(PREFIX)/bin/sluice $(addprefix $(DESTDIR)$(PREFIX)/sbin/,mount.sluice mount.fuse.sluice)
	rm -f $(addprefix $(DESTDIR)$(MANDIR)/man8/,mount.sluice.8 mount.fuse.sluice.8) $(DESTDIR)$(UNITDIR)/sluice-mount@.service
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/include/,sluice.h agios.h sluice.hpp)
	rm -f $(foreach name,sluice agios,$(addprefix $(DESTDIR)$(LIBDIR)/,lib$(name).a lib$(name).so lib$(name).so.$(SOVERSION) \
	  lib$(name).so.$(VERSION) pkgconfig/$(name).pc))
	rm -f $(DESTDIR)$(MANDIR)/man1/sluice.1 $(DESTDIR)$(MANDIR)/man1/sluice-*.1
	rm -f $(DESTDIR)$(BASHDIR)/sluice $(DESTDIR)$(ZSHDIR)/_sluice $(DESTDIR)$(FISHDIR)/sluice.fish
	rm -f $(DESTDIR)$(LIBDIR)/cmake/sluice/sluiceConfig.cmake $(DESTDIR)$(LIBDIR)/cmake/sluice/sluiceConfigVersion.cmake
	rm -f $(DESTDIR)$(DOCDIR)/sluice.example.toml
	-rmdir --ignore-fail-on-non-empty $(DESTDIR)$(LIBDIR)/cmake/sluice $(DESTDIR)$(DOCDIR)
	$(if $(DESTDIR),-cd $(DESTDIR) && rmdir -p --ignore-fail-on-non-empty $(patsubst /%,%,$(SHARED)) 2> /dev/null || true)
	$(LDCONFIG)

# GlusterFS's own flags: its headers need them, and do not say so.
GLUSTER_FLAGS := -std=gnu11 -O2 -g -fPIC -Wall -Wextra -Werror -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -D_LARGEFILE64_SOURCE \
  -DGF_LINUX_HOST_OS -DSIZEOF_LONG=8 -DHAVE_ATOMIC_BUILTINS=1 -DHAVE_SYNC_BUILTINS=1 -DHAVE_SYS_XATTR_H -DHAVE_LLISTXATTR \
  -DHAVE_STRNLEN -DHAVE_STRUCT_STAT_ST_ATIM_TV_NSEC -DHAVE_ENDIAN_H -DHAVE_SYS_ACL_H -DHAVE_STATIC_ASSERT -DUSE_POSIX_ACLS=1 \
  -isystem /usr/include/glusterfs -isystem /usr/include/uuid
# With libsluice in it, so that GlusterFS has nothing else to find. It stays loaded when the last graph with it is gone: what it has once for
# a process would be lost, and threads may be on their way out of it.
SOURCES_GLUSTER := $(wildcard hosts/gluster/src/*.c)
GLUSTER_LIBRARY ?= $(BUILT)/libsluice.a
$(BUILT)/sluice.so: $(SOURCES_GLUSTER) $(wildcard hosts/gluster/src/*.h) $(GLUSTER_LIBRARY)
	$(CC) $(GLUSTER_FLAGS) $(GLUSTER_EXTRA) -I crates/capi/include -shared $(SOURCES_GLUSTER) $(GLUSTER_LIBRARY) -o $@ \
	  -Wl,--version-script=hosts/gluster/exports -Wl,-z,nodelete -lglusterfs -lpthread -ldl -lm

gluster: setup-gluster build ## Build the translator for GlusterFS, target/release/sluice.so
	$(MAKE) --no-print-directory $(BUILT)/sluice.so

# One shared object for each MPI library; programs load it before the library itself.
MPI_FLAGS := -std=gnu11 -O2 -g -fPIC -Wall -Wextra -Werror -fvisibility=hidden
SOURCES_MPI := $(wildcard hosts/mpiio/src/*.c)
MPI_LIBRARY ?= $(BUILT)/libsluice_mpiio.a
MPIS := $(foreach mpi,mpich openmpi,$(if $(shell command -v mpicc.$(mpi)),$(mpi)))
$(BUILT)/mpi-messages-%.c: hosts/mpiio/messages.awk
	echo '#include <mpi.h>' | mpicc.$* -E -P -x c - | awk -f $< > $@
	@grep -q 'MESSAGE(Send,' $@ || { rm $@; echo "no calls were found in mpi.h of mpicc.$*" >&2; exit 1; }
.SECONDARY: $(MPIS:%=$(BUILT)/mpi-messages-%.c)
$(BUILT)/libsluice-%.so: $(BUILT)/mpi-messages-%.c $(SOURCES_MPI) $(wildcard hosts/mpiio/src/*.h) crates/mpiio/include/sluice_mpiio.h $(MPI_LIBRARY)
	mpicc.$* $(MPI_FLAGS) -I crates/mpiio/include -I hosts/mpiio/src -shared $< $(SOURCES_MPI) $(MPI_LIBRARY) -o $@ \
	  -Wl,--version-script=hosts/mpiio/exports -lpthread -ldl -lm

mpi: ## Build what MPI programs load, target/release/libsluice-{mpich,openmpi}.so, for the MPI libraries that are installed
	@scripts/setup.sh mpi
	$(CARGO) build --release --locked -p sluice-cli -p sluice-mpiio
	$(MAKE) --no-print-directory mpi-libraries

mpi-libraries: $(MPIS:%=$(BUILT)/libsluice-%.so)

install-mpi: mpi install-mpi-only ## Install them where sluice mpirun finds them
install-mpi-only: mpi-libraries
	install -d $(DESTDIR)$(LIBDIR)/sluice
	install -m 644 $(MPIS:%=$(BUILT)/libsluice-%.so) $(DESTDIR)$(LIBDIR)/sluice

uninstall-mpi: ## Remove them
	rm -f $(DESTDIR)$(LIBDIR)/sluice/libsluice-*.so

nbdkit: setup ## Build the plugin for nbdkit, target/release/libsluice_nbdkit.so: a disk with an SSD before it
	$(CARGO) build --release --locked -p sluice-cli -p sluice-nbdkit

NBDKIT ?= $(shell nbdkit --dump-config 2> /dev/null | sed -n 's/^plugindir=//p')
install-nbdkit: nbdkit install-nbdkit-only ## Install it where nbdkit finds it: nbdkit sluice disk=...
install-nbdkit-only:
	@[ -n "$(NBDKIT)" ] || { echo "nbdkit is missing, so where it has its plugins is not known: install it, or say NBDKIT=DIRECTORY" >&2; exit 1; }
	install -D -m 644 $(BUILT)/libsluice_nbdkit.so $(DESTDIR)$(NBDKIT)/nbdkit-sluice-plugin.so

uninstall-nbdkit: ## Remove it
	rm -f $(DESTDIR)$(NBDKIT)/nbdkit-sluice-plugin.so

XLATORS ?= $(shell ls -d /usr/lib/*/glusterfs/*/xlator 2> /dev/null | head -n 1)
install-gluster: gluster install-gluster-only ## Install it where GlusterFS finds it
install-gluster-only: $(BUILT)/sluice.so
	install -D -m 644 $(BUILT)/sluice.so $(DESTDIR)$(XLATORS)/user/sluice.so

uninstall-gluster: ## Remove it
	rm -f $(DESTDIR)$(XLATORS)/user/sluice.so

build-packages: build
	$(CARGO) build --release --locked -p sluice-mpiio -p sluice-nbdkit

deb: setup-packages build-packages ## Build the Debian packages, into target/deb
	BUILT=$(abspath $(BUILT)) COMMAND=$(abspath $(COMMAND)) packaging/deb.sh $(TARGET)/deb

deb-test: setup-packages build-packages ## Build them, check them with lintian, install them in a copy of this system, use and remove them
	tests/deb.sh $(BUILT) $(COMMAND)

wheel: ## Build the Python package, target/wheel/sluicegate-VERSION-py3-none-any.whl
	python3 -m pip wheel --quiet --no-deps --wheel-dir $(TARGET)/wheel ./python

clean: ## Remove what was built
	$(CARGO) clean
