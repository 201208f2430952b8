#!/usr/bin/env bash
# `make demo`: records the bundled program with the kymo that was just built, prints the report, writes one page to look at.
set -euo pipefail
cd "$(dirname "$0")/.."

page=kymo-demo.html
target=${CARGO_TARGET_DIR:-target}
cargo build --release --locked --quiet
cargo build --release --locked --quiet --package kymo --example demo

scratch=$(mktemp -d "${TMPDIR:-/tmp}/kymo-demo.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

echo "\$ kymo record -- demo"
"$target/release/kymo" record --output "$scratch/perf.data" -- "$target/release/examples/demo"
echo
echo "\$ kymo report"
# The hottest part is what a first look wants; the page has the rest.
"$target/release/kymo" report --input "$scratch/perf.data" --no-children -g none --percent-limit 0.5
"$target/release/kymo" report --input "$scratch/perf.data" --html "$page"
echo
echo "The flame graph, the table and the timeline of this recording: $PWD/$page"
