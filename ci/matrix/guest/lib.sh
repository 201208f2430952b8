# shellcheck shell=bash
# What the rows' commands share; bash reads it before each of them.
cpus=/sys/devices/system/cpu

# perf of the release that this kernel is from.
perf() {
    case $(uname -r) in
        5.10.*) /perfs/bullseye/perf "$@" ;;
        6.1.*) /perfs/bookworm/perf "$@" ;;
        6.12.*) /perfs/trixie/perf "$@" ;;
        *) /perfs/sid/perf "$@" ;;
    esac
}

# A command of an ordinary user.
user() {
    setpriv --reuid=1000 --regid=1000 --clear-groups --inh-caps=-all env HOME=/home/user "$@"
}

# The kernel samples as often as it is asked to, however slow its interrupts are.
steady() {
    sysctl -qw kernel.perf_cpu_time_max_percent=25
    sysctl -qw kernel.perf_event_max_sample_rate=100000
    sysctl -qw kernel.perf_cpu_time_max_percent=0
}

paranoid() {
    sysctl -qw "kernel.perf_event_paranoid=$1"
}

# Starts a program that sleeps before it works, and waits until it does.
begin() {
    "$@" &
    until grep -q "^$! ($1) S" /proc/$!/stat; do
        sleep 0.1
    done
}

# Once a program of this name has run for a second, the last CPU goes away; half a second later it is back. The time of
# that is in the file `back`, in the seconds of recordings.
cpu_goes_and_comes() {
    local name=$1 last
    # shellcheck disable=SC2012 # the names are the kernel's
    last=$(ls -d $cpus/cpu[0-9]*/online | sort -V | tail -n 1)
    (
        until pgrep -x "$name" >/dev/null; do
            sleep 0.1
        done
        sleep 1
        echo 0 >"$last"
        sleep 0.5
        echo 1 >"$last"
        cut -d' ' -f1 /proc/uptime >back
    ) &
}

# Waits until that CPU is back. An emulator takes seconds for it.
until_back() {
    until [[ -s back ]]; do
        sleep 0.2
    done
}

# Writes a program in bash with a name of its own.
program() {
    printf '#!/bin/bash\n%s\n' "$2" >"$1"
    chmod 755 "$1"
}
