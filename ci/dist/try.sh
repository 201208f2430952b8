#!/usr/bin/env bash
# Tries the packages of `make dist` in bare roots: each installs one, and runs `record`, `report`, `probe` and `watch`. It
# needs root. Roots stay as they are: all that is written lies in memory, and is gone with the mounts of the test.
#
#   ci/dist/try.sh --make             # makes roots of Debian 11, 12, 13 and sid in target/dist-roots
#   ci/dist/try.sh                    # tries the tarball and the .deb in each of them
#   ci/dist/try.sh tarball /a/root    # tries one package in one root: tarball, deb or rpm
set -euo pipefail
cd "$(dirname "$0")/../.."

target=${CARGO_TARGET_DIR:-$PWD/target}
roots=$target/dist-roots packages=$target/dist/packages
suites=(bullseye bookworm trixie sid)

fail() {
    printf 'ci/dist/try.sh: %s\n' "$*" >&2
    exit 1
}

# The mirror of Debian that this machine's own apt uses.
mirror() {
    # shellcheck disable=SC2016 # apt replaces $(REPO_URI)
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -m 1 -E '/debian/?$'
}

make_roots() {
    local suite
    command -v debootstrap >/dev/null || fail "there is no debootstrap here (apt-get install debootstrap)"
    mkdir -p "$roots"
    for suite in "${suites[@]}"; do
        [[ ! -e $roots/$suite ]] || continue
        echo "making $roots/$suite"
        debootstrap --variant=minbase "$suite" "$roots/$suite.part" "$(mirror)" >"$roots/$suite.log" 2>&1 ||
            fail "debootstrap of $suite failed: see $roots/$suite.log"
        mv "$roots/$suite.part" "$roots/$suite"
    done
}

# Runs in a mount namespace of its own, which takes all mounts with it, however it ends.
in_namespace() {
    local kind=$1 root=$2 scratch=$3 file
    mount -t tmpfs none "$scratch"
    mkdir "$scratch"/{upper,work,root}
    mount -t overlay -o "lowerdir=$root,upperdir=$scratch/upper,workdir=$scratch/work" none "$scratch/root"
    root=$scratch/root
    mkdir -p "$root"/{proc,sys,dev,tmp,try}
    mount -t proc none "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    cp "$target/dist-try/tried" ci/dist/in-root.sh "$root/try/"
    case $kind in
        tarball) file=$(package "kymo-[0-9]*.tar.gz") ;;
        deb) file=$(package "kymo_*.deb") ;;
        rpm)
            file=$(package 'kymo-*.rpm')
            # By this machine's rpm: the root has none.
            rpm --root "$root" --install --nodeps --noscripts "$file"
            ;;
        *) fail "$kind is none of tarball, deb, rpm" ;;
    esac
    cp "$file" "$root/try/"
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb \
        chroot "$root" /bin/sh /try/in-root.sh "/try/${file##*/}"
}

package() {
    # shellcheck disable=SC2086 # a pattern
    (cd "$packages" && ls $1) | sed "s|^|$packages/|;q"
}

try() {
    local kind=$1 root=$2 scratch status=0
    scratch=$(mktemp -d "${TMPDIR:-/tmp}/kymo-dist.XXXXXX")
    printf '%-8s %-9s ' "$kind" "${root##*/}"
    unshare --mount --propagation private "$0" --in-namespace "$kind" "$root" "$scratch" || status=$?
    # Empty here, for the mounts were elsewhere.
    rmdir "$scratch"
    return $status
}

[[ $(id -u) == 0 ]] || fail "needs root, for chroot and mounts"
case ${1:-} in
    --make)
        make_roots
        exit 0
        ;;
    --in-namespace)
        shift
        in_namespace "$@"
        exit 0
        ;;
esac
mkdir -p "$target/dist-try"
zig=$(echo "$target"/tools/zig/lib/python3*/site-packages/ziglang/zig)
[[ -x $zig ]] || fail "there is no Zig in $target/tools, which \`make dist\` installs"
# For an old glibc, too.
KYMO_DIST_ZIG=$zig KYMO_DIST_GLIBC=2.17 ci/dist/zig-cc -g -O1 -fPIE -pie -fno-sanitize=all -o "$target/dist-try/tried" ci/dist/tried.c
failed=0
if (($#)); then
    try "$1" "$(realpath "${2:?usage: ci/dist/try.sh tarball|deb|rpm ROOT}")" || failed=1
else
    for suite in "${suites[@]}"; do
        [[ -e $roots/$suite ]] || fail "there is no $roots/$suite: ci/dist/try.sh --make"
        for kind in tarball deb; do
            try "$kind" "$roots/$suite" || failed=1
        done
    done
fi
exit $failed
