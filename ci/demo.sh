#!/usr/bin/env bash
# `make demo`: `kymo demo` with the kymo that was just built.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --release --locked --quiet
"${CARGO_TARGET_DIR:-target}/release/kymo" demo
