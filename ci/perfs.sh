#!/usr/bin/env bash
# Unpacks Debian's perf of three releases beside each other, and the newest Python that kymo knows, with the libraries that
# each needs; installs nothing.
#
#   ci/perfs.sh FOLDER            bookworm, trixie and sid, and that Python
#   ci/perfs.sh FOLDER SUITE...   perf of these releases only
#
# FOLDER/SUITE/perf is then a command that runs that release's perf with that release's own dynamic linker and libraries.
# FOLDER/python3.14/bin/python3.14 is an interpreter that names its linker and libraries itself.
# What is there from an earlier run stays as it is, and nothing is downloaded for it. A release that cannot be had has no
# folder, and costs a line on stderr that says why.
set -euo pipefail

mkdir -p "${1:?usage: ci/perfs.sh FOLDER [SUITE...]}"
folder=$(cd "$1" && pwd)
suites=("${@:2}") python=
if ((!${#suites[@]})); then
    suites=(bookworm trixie sid) python=yes
fi
# Beside the result, so that what is complete gets its name by one rename.
scratch=$(mktemp -d "$folder/.unpacking.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# shellcheck source=ci/debian.sh
. "$(dirname "$0")/debian.sh"

note() { printf 'note: %s\n' "$*" >&2; }

# Unpacks a package of a release, without what no program reads.
unpack() {
    debian_unpack "$1" "$scratch/$1/apt" "$scratch/$1/root" "$2" || return 1
    rm -rf "$scratch/$1/root"/usr/share/{doc,man,locale,zoneinfo,perl,i18n} "${scratch:?}/$1/root/var"
}

# Writes the command that runs a release's perf: the dynamic linker of that release, with its libraries only. In bullseye
# all other names of the linker are links to a place outside of the folder, it cannot name the
# program, and that is called perf_5.10.
command_of() {
    local root=$folder/$1/root
    # shellcheck disable=SC2016 # for the command, not for this script
    printf '#!/bin/sh\n# Debian perf of %s, unpacked by ci/perfs.sh.\nroot=%s\n' "$1" "'$root'"
    # shellcheck disable=SC2016
    echo 'for linker in "$root"/lib64/ld-linux-* "$root"/lib/ld-linux-* "$root"/usr/lib64/ld-linux-* "$root"/usr/lib/ld-linux-* "$root"/lib/*/ld-[0-9]*.so; do
    [ -e "$linker" ] && break
done
libraries=
for folder in "$root"/lib/*-linux-gnu "$root"/usr/lib/*-linux-gnu; do
    [ -d "$folder" ] && libraries=$libraries${libraries:+:}$folder
done
name="--argv0 perf" perf=$root/usr/bin/perf
"$linker" --help 2>&1 | grep -q argv0 || name=
[ -e "$perf" ] || perf=$(ls "$root"/usr/bin/perf_*)
exec "$linker" $name --library-path "$libraries" "$perf" "$@"'
}

# Makes an interpreter of what was unpacked: its home is the folder that its own path names.
python_home() {
    local root=$folder/python3.14/root home=$scratch/sid
    mkdir -p "$home"/{bin,lib}
    cp -a "$home/root/usr/bin/python3.14" "$home/bin/"
    cp -a "$home/root/usr/lib/python3.14" "$home/lib/"
    patchelf --force-rpath --set-rpath "$root/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu" \
        --set-interpreter "$root/usr/lib64/ld-linux-x86-64.so.2" "$home/bin/python3.14"
}

for suite in "${suites[@]}"; do
    [[ ! -e $folder/$suite ]] || continue
    if [[ -z $(debian_mirror) ]] || ! command -v dpkg-deb >/dev/null; then
        note "no perf of Debian $suite: this machine has no apt with a mirror of Debian"
    elif ! (unpack "$suite" linux-perf) >"$scratch/said" 2>&1; then
        note "no perf of Debian $suite: $(tail -n 1 "$scratch/said")"
    else
        command_of "$suite" >"$scratch/$suite/perf"
        chmod 755 "$scratch/$suite/perf"
        rm -rf "$scratch/$suite/apt"
        mv "$scratch/$suite" "$folder/$suite"
    fi
done

if [[ -n $python && ! -e $folder/python3.14 && $(uname -m) == x86_64 ]] && command -v patchelf dpkg-deb >/dev/null; then
    rm -rf "${scratch:?}/sid"
    if [[ -n $(debian_mirror) ]] && (unpack sid python3.14 && python_home) >"$scratch/said" 2>&1; then
        rm -rf "$scratch/sid/apt"
        mv "$scratch/sid" "$folder/python3.14"
    else
        note "no Python 3.14: $(tail -n 1 "$scratch/said" 2>/dev/null)"
    fi
fi
