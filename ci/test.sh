#!/usr/bin/env bash
# The whole check, as continuous integration runs it and as `make test` runs it on a desk: what the tests need, formatting,
# lints, every test, the benchmark script once, and small programs with all their functions probed. What a machine cannot offer is skipped, counted and named at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d "${TMPDIR:-/tmp}/kymo-test.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
# The benchmark runs as an ordinary user, too, in a folder below.
chmod 711 "$scratch"
export KYMO_SKIP_LOG=$scratch/skipped
: >"$KYMO_SKIP_LOG"

# The long mode, for nights: many more random cases.
if [[ -n ${KYMO_SOAK:-} ]]; then
    export PROPTEST_CASES=20000 LOOM_MAX_PREEMPTIONS=4
fi

step() { printf '\n== %s\n' "$*"; }
note() { printf 'note: %s\n' "$*" >&2; }

# What the tests run, and the Debian package that has it.
tools=(
    perf:linux-perf readelf:binutils gcc:gcc g++:g++ python3:python3 xz:xz-utils setpriv:util-linux mkfs.ext4:e2fsprogs
    javac:openjdk-17-jdk-headless node:nodejs go:golang-go ruby:ruby lua5.4:lua5.4
    luajit:luajit erl:erlang-base ocamlopt:ocaml-nox
    chromium:chromium nginx:nginx-light pg_ctlcluster:postgresql chrt:util-linux
)

missing_packages() {
    local entry
    for entry in "${tools[@]}"; do
        command -v "${entry%%:*}" >/dev/null || echo "${entry#*:}"
    done
    [[ -e /usr/include/stdio.h ]] || echo libc6-dev
    [[ -e /usr/include/boost/context/fiber.hpp ]] || echo libboost-context-dev
}

# Packages of servers would start them; here they are programs.
start_no_servers() {
    [[ ! -e /usr/sbin/policy-rc.d ]] || return 0
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
    trap 'rm -rf "$scratch" /usr/sbin/policy-rc.d' EXIT
}

# Only root installs, and only what is missing. A package that cannot be had costs skipped tests, not the run.
install_tools() {
    local packages
    mapfile -t packages < <(missing_packages)
    ((${#packages[@]})) || return 0
    if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
        note "not installed: ${packages[*]}; tests that need them will skip"
        return 0
    fi
    step "installing ${packages[*]}"
    local apt=(timeout 600 apt-get -qq -o Dpkg::Use-Pty=0 -o Acquire::Retries=2)
    export DEBIAN_FRONTEND=noninteractive
    start_no_servers
    "${apt[@]}" update </dev/null || note "apt-get update failed; trying with what is known"
    "${apt[@]}" install -y --no-install-recommends "${packages[@]}" </dev/null >"$scratch/apt" 2>&1 && return 0
    # One that cannot be installed must not take the others with it.
    local package
    for package in "${packages[@]}"; do
        "${apt[@]}" install -y --no-install-recommends "$package" </dev/null >"$scratch/apt" 2>&1 ||
            note "$package cannot be installed ($(tail -n 1 "$scratch/apt")); tests that need it will skip"
    done
}

# Three releases of perf beside each other, to read what kymo writes and to write what kymo reads. What cannot be had skips.
unpack_perfs() {
    command -v apt-get >/dev/null || return 0
    step "perf of three Debian releases"
    export KYMO_PERFS=${KYMO_PERFS:-$PWD/target/perfs}
    ci/perfs.sh "$KYMO_PERFS" || note "ci/perfs.sh failed; tests of other releases of perf will skip"
}

mount_tracefs() {
    [[ -d /sys/kernel/tracing/events ]] && return 0
    mount -t tracefs none /sys/kernel/tracing 2>/dev/null ||
        note "tracefs is not mounted and cannot be; tests of tracepoints will skip"
}

# Runs a check; a failure is remembered, and the checks after it still run.
failed=()
check() {
    step "$*"
    "$@" || failed+=("$*")
}

# What hangs in the kernel cannot be killed: an hour is the end, with a list of what ran then.
tests() {
    local limit=(timeout --kill-after=30 3600)
    # Nor at a terminal, whose interrupt would not reach what `timeout` runs.
    [[ -z ${KYMO_SOAK:-} && ! -t 0 ]] || limit=()
    "${limit[@]}" cargo test --workspace --locked --no-fail-fast </dev/null 2>&1 | tee "$scratch/tests" || {
        ps -eLo pid,ppid,tid,stat,etimes,wchan:40,args --sort=-etimes | grep -v ' \[.*\]$' | head -n 80
        return 1
    }
}

# Every interleaving of the two ends of a ring, up to loom's bound. Its own target folder: the flag changes every crate.
loom() {
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" \
        cargo test --package kymo-core --lib --release --locked loom </dev/null
}

# The benchmark script on small inputs: it must run, and both tools must give the same answer.
race_once() {
    race report --samples 4000 | tee "$scratch/race" &&
        ! grep -q 'THE ANSWERS DIFFER' "$scratch/race" &&
        race evlist --only 'dummy, 1 thread' &&
        race attach --threads 20 &&
        race spawn --threads 200 &&
        race storm --loops 2000 --only 'perf,kymo,kymo --raw-stacks' &&
        race storm --variant packed --loops 500 --only kymo &&
        race storm --variant forks --loops 50 --only kymo &&
        race storm --variant threads --threads 50 --loops 20 --only kymo &&
        race storm --variant busy --loops 2000 --only perf,kymo | tee "$scratch/race" &&
        ! grep -q 'DIFFER' "$scratch/race" &&
        race stat --loops 500 --threads 100
}

race() {
    bench/versus.py "$@" --rounds 1 --no-save --work "$scratch/versus" --kymo "${CARGO_TARGET_DIR:-target}/debug/kymo"
}

can_race() {
    local reason=
    if ! perf --version >/dev/null 2>&1; then
        reason="no working perf here"
    elif [[ $(id -u) != 0 || ! -e /sys/kernel/tracing/events/sched/sched_switch/id ]]; then
        reason="needs root and tracepoints"
    elif ! command -v python3 >/dev/null; then
        reason="no python3 here"
    fi
    [[ -z $reason ]] || echo "SKIPPED bench::versus: $reason" | tee -a "$KYMO_SKIP_LOG"
    [[ -z $reason ]]
}

# Every function of real programs, probed: small ones each time, all of them at night.
everything() {
    local options=(--no-save --work "$scratch/everything" --library "${CARGO_TARGET_DIR:-target}/debug/examples/libeverything.so")
    [[ -n ${KYMO_SOAK:-} ]] || options+=(--quick)
    bench/everything.py "${options[@]}"
}

can_probe_everything() {
    local reason=
    if ! command -v python3 >/dev/null; then
        reason="no python3 here"
    elif [[ $(uname -m) != x86_64 ]]; then
        reason="probes in the program are for x86-64"
    elif [[ ! -e ${CARGO_TARGET_DIR:-target}/debug/examples/libeverything.so ]]; then
        reason="the library was not built"
    fi
    [[ -z $reason ]] || echo "SKIPPED bench::everything: $reason" | tee -a "$KYMO_SKIP_LOG"
    [[ -z $reason ]]
}

# Sums one word of cargo's result lines, such as `passed` in `test result: ok. 49 passed; 0 failed; ...`.
sum() {
    grep -o "[0-9]* $1;" "$scratch/tests" 2>/dev/null | awk '{ n += $1 } END { print n + 0 }'
}

command -v cargo >/dev/null || {
    echo "cargo is not installed; kymo needs a Rust toolchain (rust-version in Cargo.toml)" >&2
    exit 1
}
install_tools
unpack_perfs
mount_tracefs
check cargo fmt --all -- --check
check cargo clippy --workspace --all-targets --locked -- -D warnings
if command -v shellcheck >/dev/null; then
    check shellcheck ci/*.sh .ci/run
fi
if command -v python3 >/dev/null; then
    check python3 -m unittest --quiet ci.tree.tests
    check python3 -m ci.tree
fi
check tests
check loom
# It takes a CPU away for a moment: alone, and at night only.
if [[ -n ${KYMO_SOAK:-} ]]; then
    check cargo test --package kymo --test suite --locked -- --ignored a_cpu_that_goes_away </dev/null
fi
if can_race; then
    check race_once
fi
if can_probe_everything; then
    check everything
fi

step "result"
skipped=$(wc -l <"$KYMO_SKIP_LOG")
if ((skipped)); then
    echo "skipped, because this machine cannot run them:"
    sort "$KYMO_SKIP_LOG" | sed 's/^SKIPPED /  /'
fi
for one in "${failed[@]}"; do
    echo "FAILED: $one"
done
# A test that skips returns early, so cargo counts it as passed.
returned_early=$(grep -vc -E '^SKIPPED (bench|everything)::' "$KYMO_SKIP_LOG" || true)
echo "$(($(sum passed) - returned_early)) passed, $(sum failed) failed, $skipped skipped"
((${#failed[@]} == 0))
