# `make demo` shows kymo, `make test` checks it, `make docs` builds the book. `make setup` installs what the tests need.
CARGO ?= cargo

.PHONY: build daemon demo dist docs fmt lint matrix mcp newcomer perf-tests setup sql store test test-capstone test-consumers test-fleet test-mcp
build:
	$(CARGO) build --release

setup:
	ci/setup.sh

test:
	ci/test.sh

# A kymo with `kymo mcp`, and the tests of it: the crates of that protocol are left out of other builds.
mcp:
	$(CARGO) build --release -p kymo --features mcp

test-mcp:
	$(CARGO) test --locked -p kymo --features mcp --test suite -- mcp::

# The code of RISC-V, 32-bit ARM and 64-bit PowerPC, which needs a library in C: beside objdump, where Debian's packages
# binutils-riscv64-linux-gnu, libc6-riscv64-cross and their like are installed.
test-capstone:
	$(CARGO) test --locked -p kymo-symbols --features capstone --lib -- disassembly:: --nocapture

# `kymo sql`, `kymo daemon` and `kymo-store`: programs of their own in a second workspace, so that kymo is built without a
# query engine and without the clients of object stores. The first build takes many minutes. None of the four selects packages or
# features: cargo would choose other features of crates that both need, and compile the query engine once more for each.
FLEET = CARGO_TARGET_DIR=$(CURDIR)/target/fleet $(CARGO)

sql:
	cd fleet && $(FLEET) build --release --locked --bin kymo-sql

daemon:
	cd fleet && $(FLEET) build --release --locked --bin kymo-daemon

store:
	cd fleet && $(FLEET) build --release --locked --bin kymo-store

# Tests of all three, and the queries of deploy/queries by kymo sql, Spark (a master and two workers), ClickHouse's engine,
# DuckDB, DataFusion's Python package and Polars: all must give the same answers. The first run installs the engines into target/fleet-engines.
test-fleet:
	cd fleet && $(FLEET) test --release --locked
	python3 -m ci.fleet.store
	python3 -m ci.fleet

# Every feature on the kernels of four Debian releases, in virtual machines: a quarter of an hour. The first time it
# downloads some 400 MB.
matrix: build
	python3 -m ci.matrix

# perf's own shell tests, with perf and with kymo in its place: an hour or two, for nights.
perf-tests:
	$(CARGO) build
	python3 -m ci.perf_tests

# The README's commands on programs that nobody here wrote: a few minutes, for nights.
newcomer:
	$(CARGO) build
	python3 -m ci.newcomer

# The tools that `kymo export` is for read its files: pprof, speedscope, the Firefox Profiler, Perfetto and others, which
# the first run installs into target/consumers.
test-consumers:
	$(CARGO) build
	python3 -m ci.consumers

docs:
	ci/docs.sh

# A tarball, .deb, .rpm and wheel in target/dist/packages. With --verify they are made twice and compared.
dist:
	python3 -m ci.dist

fmt:
	$(CARGO) fmt --all

lint:
	$(CARGO) clippy --workspace --all-targets -- -D warnings

demo: build
	ci/demo.sh
