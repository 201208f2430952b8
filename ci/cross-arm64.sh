#!/usr/bin/env bash
# Builds kymo for aarch64 on x86-64, with the compiler of Debian sid, which has a standard library of each architecture; it
# is unpacked into a folder, and nothing is installed.
#
#   ci/cross-arm64.sh FOLDER                      release; prints where it is
#   ci/cross-arm64.sh FOLDER check|build|...      this subcommand of cargo, with all that follows
#
# FOLDER keeps the compiler (1 GB) and cargo's target folder. The linker is that of this machine, which needs the packages
# gcc-aarch64-linux-gnu and libc6-dev-arm64-cross.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: ci/cross-arm64.sh FOLDER [subcommand of cargo and its arguments]}"
folder=$(cd "$1" && pwd)
shift
target=aarch64-unknown-linux-gnu gcc=aarch64-linux-gnu-gcc
# shellcheck source=ci/debian.sh
. "$here/debian.sh"

fail() {
    printf 'ci/cross-arm64.sh: %s\n' "$*" >&2
    exit 1
}

# The compiler, and the standard libraries of both architectures.
unpack() {
    local scratch
    [[ -n $(debian_mirror) ]] || fail "this machine has no apt with a mirror of Debian"
    scratch=$(mktemp -d "$folder/.unpacking.XXXXXX")
    echo "unpacking the compiler" >&2
    # A folder gets its name when it is complete.
    if ! debian_architectures="amd64 arm64" debian_unpack sid "$scratch/apt" "$scratch/sid" rustc libstd-rust-dev:arm64 >&2; then
        rm -rf "$scratch"
        fail "the compiler of Debian sid cannot be downloaded"
    fi
    rm -rf "$scratch"/sid/usr/share/{doc,man,locale}
    mv "$scratch/sid" "$folder/sid"
    rm -rf "$scratch"
}

[[ $(uname -m) == x86_64 ]] || fail "this machine is not x86-64"
command -v "$gcc" >/dev/null || fail "no $gcc: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
[[ -d $folder/sid ]] || unpack
# The compiler runs with the libraries of its own release.
cat >"$folder/rustc" <<SCRIPT
#!/bin/sh
exec '$folder/sid/usr/lib64/ld-linux-x86-64.so.2' --library-path '$folder/sid/usr/lib/x86_64-linux-gnu' \\
    '$folder/sid/usr/bin/rustc' --sysroot '$folder/sid/usr' "\$@"
SCRIPT
chmod 755 "$folder/rustc"

export RUSTC=$folder/rustc CARGO_TARGET_DIR=$folder/target
export CC_aarch64_unknown_linux_gnu=$gcc CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=$gcc
cd "$here/.."
if (($#)); then
    exec cargo "$1" --target "$target" "${@:2}"
fi
cargo build --locked --release --target "$target" -p kymo
echo "$folder/target/$target/release/kymo"
