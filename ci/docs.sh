#!/usr/bin/env bash
# `make docs`: builds the book in docs/ into target/book and checks every link in it. mdBook is installed into target/ if there is none.
#
#   ci/docs.sh           installs mdBook if needed, builds, checks
#   ci/docs.sh --mdbook  prints the mdBook that is there, if one is
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.5.4
target=${CARGO_TARGET_DIR:-$PWD/target}

mdbook_here() {
    PATH=$PATH:$target/mdbook/bin command -v mdbook || true
}

if [[ ${1:-} == --mdbook ]]; then
    mdbook_here
    exit 0
fi
if [[ -z $(mdbook_here) ]]; then
    echo "installing mdBook $version into $target/mdbook"
    cargo install mdbook --version "$version" --locked --root "$target/mdbook" \
        --no-default-features --features search </dev/null
fi
rm -rf "$target/book"
mkdir -p "$target/book"
"$(mdbook_here)" build docs --dest-dir "$target/book/docs"
python3 -m ci.tree.book "$target/book"
echo "the book: $target/book/docs/index.html"
