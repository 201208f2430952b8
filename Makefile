# Two commands do everything: `make demo` and `make test`.
CARGO ?= cargo

.PHONY: build demo test fmt lint
build:
	$(CARGO) build --release

test:
	ci/test.sh

fmt:
	$(CARGO) fmt --all

lint:
	$(CARGO) clippy --workspace --all-targets -- -D warnings

demo: build
	ci/demo.sh
