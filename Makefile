# `make demo` shows kymo, `make test` checks it, `make docs` builds the book. `make setup` installs what the tests need.
CARGO ?= cargo

.PHONY: build demo docs fmt lint setup test
build:
	$(CARGO) build --release

setup:
	ci/setup.sh

test:
	ci/test.sh

docs:
	ci/docs.sh

fmt:
	$(CARGO) fmt --all

lint:
	$(CARGO) clippy --workspace --all-targets -- -D warnings

demo: build
	ci/demo.sh
