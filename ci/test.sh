#!/usr/bin/env bash
# The whole check, as continuous integration runs it and as `make test` runs it on a desk: formatting, lints, documentation,
# every test, the benchmark script once, and small programs with all their functions probed. It calls `make setup` if
# something is missing. What a machine cannot offer is skipped, counted and named at the end.
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
skip() { echo "SKIPPED $*" | tee -a "$KYMO_SKIP_LOG"; }

# Runs a check; a failure is remembered, and the checks after it still run.
failed=()
took=()
check() {
    local begin=$SECONDS
    step "$*"
    "$@" || failed+=("$*")
    took+=("$((SECONDS - begin)) s: $*")
}

# What hangs in the kernel cannot be killed: seventy minutes are the end, with a list of what ran then.
tests() {
    local limit=(timeout --kill-after=30 4200)
    # Nor at a terminal, whose interrupt would not reach what `timeout` runs.
    [[ -z ${KYMO_SOAK:-} && ! -t 0 ]] || limit=()
    "${limit[@]}" cargo test --workspace --locked --no-fail-fast </dev/null 2>&1 | tee "$scratch/tests" || {
        # shellcheck disable=SC2009 # pgrep lists no threads and no wait channels.
        ps -eLo pid,ppid,tid,stat,etimes,wchan:40,args --sort=-etimes | grep -v ' \[.*\]$' | head -n 80
        return 1
    }
}

# Every interleaving of the two ends of a ring, up to loom's bound. Its own target folder: the flag changes every crate.
loom() {
    RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/loom" \
        cargo test --package kymo-core --lib --release --locked loom </dev/null
}

# The crates without an operating system, in an interpreter that sees undefined behaviour. It takes many minutes, and would
# take hours with long random sequences, which have no unsafe code below them.
miri() {
    MIRIFLAGS="-Zmiri-disable-isolation" PROPTEST_CASES=4 CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/miri" \
        cargo +nightly miri test --package kymo-core --package kymo-data --lib --locked -- \
        --skip property --skip formats_of_this_kernel </dev/null
}

# The benchmark script on small inputs: it must run, and both tools must give the same answer.
race_once() {
    race report --samples 4000 | tee "$scratch/race" &&
        ! grep -q 'THE ANSWERS DIFFER' "$scratch/race" &&
        race view --samples 4000 --selections 3 &&
        race evlist --only 'dummy, 1 thread' &&
        race attach --threads 20 &&
        race spawn --threads 200 &&
        race storm --loops 2000 --only 'perf,kymo,kymo --raw-stacks' &&
        race storm --variant packed --loops 500 --only kymo &&
        race storm --variant forks --loops 50 --only kymo &&
        race storm --variant threads --threads 50 --loops 20 --only kymo &&
        race storm --variant busy --loops 2000 --only perf,kymo | tee "$scratch/race" &&
        ! grep -q 'ACCOUNTS DIFFER\|COUNTS DIFFER: kymo' "$scratch/race" &&
        race stat --loops 500 --threads 100 --programs pinned
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
    [[ -z $reason ]] || skip "bench::versus: $reason"
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
    [[ -z $reason ]] || skip "bench::everything: $reason"
    [[ -z $reason ]]
}

# What each failed test said, without the calls that led there: at the end, as a long output is rarely kept whole.
reasons() {
    [[ -s $scratch/tests ]] || return 0
    awk '/^---- .* stdout ----$/ { left = 15; print ""; print; next }
         /^(stack backtrace:|failures:)/ { left = 0 }
         left > 0 && NF { print substr($0, 1, 600); left-- }' "$scratch/tests"
}

# Sums one word of cargo's result lines, such as `passed` in `test result: ok. 49 passed; 0 failed; ...`.
sum() {
    grep -o "[0-9]* $1;" "$scratch/tests" 2>/dev/null | awk '{ n += $1 } END { print n + 0 }'
}

# GB that are free where everything is built. A first run takes up to 10 of them; on a full disk the tests fail that come
# last, whatever they test.
free_gb() { df --output=avail --block-size=1GB "${CARGO_TARGET_DIR:-target}" | tail -n 1 | tr -dc 0-9; }
mkdir -p "${CARGO_TARGET_DIR:-target}"
free_at_first=$(free_gb)
((free_at_first >= 10)) || echo "only $free_at_first GB are free here: a first build and the tests take up to 10" >&2

command -v cargo >/dev/null || {
    echo "cargo is not installed; kymo needs a Rust toolchain (rust-version in Cargo.toml)" >&2
    exit 1
}
missing=$(ci/setup.sh --missing | paste -sd ' ')
if [[ -n $missing ]]; then
    step "make setup, for these are missing: $missing"
    ci/setup.sh
fi
export KYMO_PERFS=${KYMO_PERFS:-$PWD/target/perfs}
check cargo fmt --all -- --check
check cargo clippy --workspace --all-targets --locked -- -D warnings
if command -v shellcheck >/dev/null; then
    check shellcheck ci/*.sh ci/dist/*.sh ci/dist/zig-cc ci/matrix/*.sh ci/matrix/guest/* .ci/run
fi
check ci/rustdoc.sh
if command -v python3 >/dev/null; then
    check python3 -m unittest --quiet ci.tree.tests ci.matrix.tests
    check python3 -m ci.tree
    if [[ -n $(ci/docs.sh --mdbook) ]]; then
        check ci/docs.sh
    else
        skip "ci::docs: no mdbook here; \`make docs\` installs it into target/"
    fi
fi
check tests
check loom
if [[ -n ${KYMO_SOAK:-} ]]; then
    if RUSTUP_AUTO_INSTALL=0 cargo +nightly miri --version >/dev/null 2>&1; then
        check miri
    else
        skip "ci::miri: no nightly toolchain with miri here (rustup +nightly component add miri)"
    fi
fi
# Each crate can be packaged; ci.tree checks each time that it needs no file outside.
if [[ -n ${KYMO_SOAK:-} ]]; then
    check cargo package --workspace --exclude kymo-testing --no-verify --allow-dirty --quiet </dev/null
fi
# A newcomer's commands on programs that nobody here wrote.
if [[ -n ${KYMO_SOAK:-} ]]; then
    check python3 -m ci.newcomer --kymo "${CARGO_TARGET_DIR:-target}/debug/kymo"
    # Names of programs whose files move, vanish, or lie in other roots.
    check python3 -m ci.moved --kymo "${CARGO_TARGET_DIR:-target}/debug/kymo"
fi
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

step "seconds of each check"
printf '  %s\n' "${took[@]}"
echo "  disk: $free_at_first GB were free at first, $(free_gb) GB are now"
step "result"
skipped=$(wc -l <"$KYMO_SKIP_LOG")
if ((skipped)); then
    echo "skipped, because this machine cannot run them:"
    sort "$KYMO_SKIP_LOG" | sed 's/^SKIPPED /  /'
fi
reasons
for one in "${failed[@]}"; do
    echo "FAILED: $one"
done
# A test that skips returns early, so cargo counts it as passed.
returned_early=$(grep -vc -E '^SKIPPED (bench|everything|ci)::' "$KYMO_SKIP_LOG" || true)
echo "$(($(sum passed) - returned_early)) passed, $(sum failed) failed, $skipped skipped"
((${#failed[@]} == 0))
