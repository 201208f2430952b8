#!/usr/bin/env bash
# The documentation of all crates of a workspace (this one, or that in FOLDER), with warnings denied.
#
#   ci/rustdoc.sh [FOLDER]
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"
RUSTDOCFLAGS="${RUSTDOCFLAGS:-} -D warnings" cargo doc --no-deps --workspace --locked --quiet </dev/null
