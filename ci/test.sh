#!/usr/bin/env bash
# The whole check, as continuous integration runs it: formatting, lints, every test.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo fmt --all -- --check
cargo clippy --workspace --all-targets --locked -- -D warnings
cargo test --workspace --locked
