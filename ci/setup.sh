#!/usr/bin/env bash
# `make setup`: installs what the tests need, unpacks perf of three Debian releases and Python 3.14, and mounts tracefs. It
# installs only what is missing, and only as root. What cannot be installed costs skipped tests, not the run.
#
#   ci/setup.sh            installs
#   ci/setup.sh --missing  prints what is missing, one name per line
set -euo pipefail
cd "$(dirname "$0")/.."

note() { printf 'note: %s\n' "$*" >&2; }

# What the tests run, and the Debian package that has it.
tools=(
    perf:linux-perf readelf:binutils gcc:gcc g++:g++ python3:python3 xz:xz-utils patchelf:patchelf bc:bc setpriv:util-linux mkfs.ext4:e2fsprogs
    javac:openjdk-17-jdk-headless node:nodejs go:golang-go musl-gcc:musl-tools ruby:ruby lua5.4:lua5.4
    luajit:luajit erl:erlang-base ocamlopt:ocaml-nox aarch64-linux-gnu-objdump:binutils-aarch64-linux-gnu
    chromium:chromium nginx:nginx-light redis-server:redis-server pg_ctlcluster:postgresql chrt:util-linux
)
perfs=${KYMO_PERFS:-$PWD/target/perfs}
tracefs=/sys/kernel/tracing

missing_packages() {
    local entry
    for entry in "${tools[@]}"; do
        command -v "${entry%%:*}" >/dev/null || echo "${entry#*:}"
    done
    [[ -e /usr/include/stdio.h ]] || echo libc6-dev
    [[ -e /usr/include/boost/context/fiber.hpp ]] || echo libboost-context-dev
    [[ -e /usr/lib/python3/dist-packages/gevent ]] || echo python3-gevent
    [[ -e /usr/aarch64-linux-gnu/lib/libc.so.6 ]] || echo libc6-arm64-cross
    # Many perf users have it, and it changes what perf prints: tests must not depend on that.
    [[ -d /usr/lib/$(uname -m)-linux-gnu/traceevent/plugins ]] || echo libtraceevent1-plugin
}

missing_perfs() {
    local suite
    command -v apt-get >/dev/null || return 0
    for suite in bookworm trixie sid; do
        [[ -e $perfs/$suite ]] || echo "perf-of-$suite"
    done
    [[ -e $perfs/python3.14 || $(uname -m) != x86_64 ]] || echo python3.14
}

missing_mounts() {
    [[ -d $tracefs/events ]] || echo tracefs
}

# Packages of servers would start them; here they are programs.
start_no_servers() {
    [[ ! -e /usr/sbin/policy-rc.d ]] || return 0
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
    trap 'rm -rf "$scratch" /usr/sbin/policy-rc.d' EXIT
}

install_packages() {
    local packages package
    mapfile -t packages < <(missing_packages)
    ((${#packages[@]})) || return 0
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        note "not installed: ${packages[*]}; tests that need them will skip (as root: make setup)"
        return 0
    fi
    echo "installing ${packages[*]}"
    local apt=(timeout 600 apt-get -qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=2)
    export DEBIAN_FRONTEND=noninteractive
    start_no_servers
    "${apt[@]}" update </dev/null || note "apt-get update failed; trying with what is known"
    "${apt[@]}" install -y --no-install-recommends "${packages[@]}" </dev/null >"$scratch/apt" 2>&1 && return 0
    # One that cannot be installed must not take the others with it.
    for package in "${packages[@]}"; do
        "${apt[@]}" install -y --no-install-recommends "$package" </dev/null >"$scratch/apt" 2>&1 ||
            note "$package cannot be installed ($(tail -n 1 "$scratch/apt")); tests that need it will skip"
    done
}

# To read what kymo writes, and to write what kymo reads.
unpack_perfs() {
    [[ -n $(missing_perfs) ]] || return 0
    echo "unpacking perf of three Debian releases and Python 3.14 into $perfs"
    ci/perfs.sh "$perfs" || note "ci/perfs.sh failed; tests of other releases of perf will skip"
}

mount_tracefs() {
    [[ -n $(missing_mounts) ]] || return 0
    mount -t tracefs none "$tracefs" 2>/dev/null ||
        note "tracefs is not mounted and cannot be; tests of tracepoints will skip (as root: mount -t tracefs none $tracefs)"
}

if [[ ${1:-} == --missing ]]; then
    missing_packages
    missing_perfs
    missing_mounts
    exit 0
fi
scratch=$(mktemp -d "${TMPDIR:-/tmp}/kymo-setup.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
install_packages
unpack_perfs
mount_tracefs
