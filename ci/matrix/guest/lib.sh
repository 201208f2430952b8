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

# Is busy in the kernel and in its modules: system calls, copies, disks, files, pipes, processes.
work_in_the_kernel() {
    local number
    dd if=/dev/zero of=/dev/null bs=1 count=10000
    dd if=/dev/zero of=/dev/null bs=1M count=200
    dd if=/dev/vda of=/dev/null bs=512 count=500 iflag=direct
    mkdir /files
    for number in {1..200}; do
        echo line >"/files/$number"
    done
    tar cf - /files | cat >/files/all
    rm -r /files
    children 10
} >/dev/null 2>&1

# The kernel's instructions in a recording, as a tool annotates them, of functions with more than
# 0.1 % of all samples: `FUNCTION ADDRESS SAMPLES`. perf 5.10 knows no limit: there it is all
# functions. Tools call one address by different names, so that FUNCTION is its first address.
# The symbol list of the kernel has no sizes: a function ends where the next one begins. perf leaves
# out the `nop` instructions that pad it. Here, those without samples are left out of both.
# The status is that of the tool, whose words are in TOOL.annotated.
kernel_code() {
    local limit=(--percent-limit 0.1) status=0
    [[ $(uname -r) != 5.10.* ]] || limit=()
    "$1" annotate --stdio -n "${limit[@]}" --no-source -i "$2" >"$1.annotated" 2>/dev/null || status=$?
    awk '
        /Disassembly of .* for / { first = padding = "" }
        /^ *[0-9]+ +: +ffff[0-9a-f]+:/ {
            address = $3
            sub(":.*", "", address)
            if (first == "")
                first = address
            line = first " " address " " $1 "\n"
            if ($1 == 0 && / nop[lw]?( |$)/) {
                padding = padding line
            } else {
                printf "%s%s", padding, line
                padding = ""
            }
        }' "$1.annotated" | sort
    return "$status"
}

# The function at which a listing of the kernel's code was cut off.
last_function() {
    awk '
        /Disassembly of .* for / { first = "" }
        /^ *[0-9]+ +: +ffff[0-9a-f]+:/ && first == "" { first = $3; sub(":.*", "", first) }
        END { print first }' "$1"
}

# Compares the kernel's code in a recording as perf and kymo annotate it.
same_kernel_code() {
    local status=0
    kernel_code perf "$1" >perf.code || status=$?
    kernel_code kymo "$1" >kymo.code
    # perf 6.12 may crash over a function. What it has listed before is compared.
    if ((status > 128)); then
        echo "perf annotate was ended by signal $((status - 128))"
        awk -v last="$(last_function perf.annotated)" '$1 != last' perf.code >whole.code
        mv whole.code perf.code
        awk 'NR == FNR { listed[$1]; next } $1 in listed' perf.code kymo.code >listed.code
        mv listed.code kymo.code
    fi
    awk '{ functions += !($1 in seen); seen[$1] = 1; sampled += $3 > 0; samples += $3 }
        END { print "functions:", functions, "instructions:", NR, "with samples:", sampled, "samples:", samples }' perf.code
    echo "instructions of modules: $(grep -c ' ffffffffc' perf.code)"
    comm -3 --output-delimiter=' only kymo: ' perf.code kymo.code >differences
    echo "differences: $(wc -l <differences)"
    head -n 20 differences
}
