#!/bin/sh
# What ci/dist/try.sh runs inside of a bare root: installs a package, and runs four verbs on /try/tried. It prints one line.
set -eu

fail() {
    echo "FAILED: $*"
    for log in record report probe watch; do
        [ ! -e "/tmp/$log" ] || sed "s/^/    $log: /" "/tmp/$log"
    done
    exit 1
}

# Runs one verb; what it prints must have a line with the text.
verb() {
    wanted=$1
    shift
    "$kymo" "$@" >"/tmp/$1" 2>&1 || fail "kymo $* ended with $?"
    grep -qE "$wanted" "/tmp/$1" || fail "kymo $*: no line has '$wanted'"
}

started=$(date +%s%N)
case $1 in
    *.deb)
        dpkg --install "$1" >/tmp/dpkg 2>&1 || fail "dpkg: $(cat /tmp/dpkg)"
        kymo=kymo
        ;;
    # It is installed already, from outside.
    *.rpm) kymo=kymo ;;
    *)
        tar -C /opt -xzf "$1"
        kymo=$(echo /opt/kymo-*/bin/kymo)
        ;;
esac
cd /tmp
verb 'lost 0 samples' record -o /tmp/perf.data -- /try/tried
verb ' compute$' report -i /tmp/perf.data --no-children
# By the kernel where the C library does not register restartable sequences.
verb ' 200 .* (inproc|kernel) +(tried:)?compute' probe compute -- /try/tried
engine=$(sed -nE 's/^ *200 .* (inproc|kernel) .*/\1/p' /tmp/probe)
verb '200 hits by 1 thread, none lost' watch rounds -- /try/tried
ended=$(date +%s%N)
echo "works, $(((ended - started) / 100000000)) tenths of a second; probed by $engine; glibc $(ldd --version 2>&1 | sed -n 's/.*) //p;1q')"
