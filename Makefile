# Two commands: `make demo` sets everything up and runs the main job; `make test` runs every test.
# Others: build, install, deb, rpm, bench, seeds, lint, tidy.

PREFIX  ?= /usr/local
DESTDIR ?=
DEVICES ?=
KEEP    ?=
CONFIRM ?=
RESULTS ?= bench-results
CARGO   ?= cargo

.PHONY: demo test build install deb rpm bench lab seeds lint tidy setup clean

demo: setup build
	@DEVICES="$(DEVICES)" KEEP="$(KEEP)" CONFIRM="$(CONFIRM)" scripts/demo.sh

test: setup
	@scripts/test.sh

build:
	$(CARGO) build --release --locked -p braid-cli

# Debian packages that a fresh machine lacks (root, or sudo).
setup:
	@scripts/setup.sh

install: build
	install -D -m 755 target/release/braid $(DESTDIR)$(PREFIX)/bin/braid
	install -d $(DESTDIR)/sbin
	for name in mount.braid mount.fuse.braid umount.braid umount.fuse.braid fsck.braid mkfs.braid; do \
	  ln -sf $(PREFIX)/bin/braid $(DESTDIR)/sbin/$$name; done

# A Debian package in target/debian.
deb: setup build
	@mkdir -p target/debian
	@scripts/deb.sh target/release/braid target/debian

# An RPM package in target/rpm.
rpm: setup build
	@mkdir -p target/rpm
	@scripts/rpm.sh target/release/braid target/rpm

bench: setup build
	@scripts/bench.sh $(RESULTS)

# The founding documents' experiments: about twelve minutes, 18 at most (WITHIN=SECONDS).
seeds: setup build
	@scripts/seeds.sh $(RESULTS)

# A real kernel's NFS client against an export (scripts/lab/README.md).
lab: setup build
	@scripts/lab/run.sh

# What `make test` asks of the program, also of its tests and benchmarks.
lint: tidy
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

tidy:
	$(CARGO) run -q --locked -p xtask -- tidy

clean:
	$(CARGO) clean
