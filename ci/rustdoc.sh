#!/usr/bin/env bash
# The documentation of all crates of a workspace (this one, or that in FOLDER), with warnings denied. It is written for
# maintainers, so it has private items, and links to them are no fault.
#
#   ci/rustdoc.sh [FOLDER]
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"
RUSTDOCFLAGS="${RUSTDOCFLAGS:-} -D warnings -A rustdoc::private-intra-doc-links" \
    cargo doc --no-deps --workspace --document-private-items --locked --quiet --keep-going </dev/null
