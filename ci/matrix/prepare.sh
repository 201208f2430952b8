#!/usr/bin/env bash
# Downloads and unpacks what `make matrix` boots, into a folder; installs nothing, and needs no root. Some 400 MB come from
# the machine's own mirror of Debian. What is there from an earlier run stays as it is.
#
#   ci/matrix/prepare.sh FOLDER           the machines of x86-64
#   ci/matrix/prepare.sh FOLDER arm64     that of aarch64, with the kernel and perf of trixie
#
#   FOLDER/qemu/root            QEMU of trixie, with its libraries: bookworm's makes Linux 6.12 oops
#   FOLDER/kernels/SUITE/       vmlinuz, initrd.gz, config and release of that release's cloud kernel
#   FOLDER/perfs/SUITE/         perf of that release
#   FOLDER/root.ext4            bookworm, with all perfs below /perfs
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: ci/matrix/prepare.sh FOLDER [arm64]}"
folder=$(cd "$1" && pwd)
architecture=${2:-amd64}
# shellcheck source=ci/debian.sh
. "$here/../debian.sh"

suites=(bullseye bookworm trixie sid) emulator=(qemu-system-x86) cpio=$folder/root/bin/busybox
if [[ $architecture == arm64 ]]; then
    # The guest's busybox does not run here.
    suites=(trixie) emulator=(qemu-system-arm busybox-static) cpio=$folder/qemu/root/usr/bin/busybox
fi
# What the first program and the rows need; the rest of the release comes with it.
guest=(bash dash libc-bin coreutils util-linux mount procps grep sed mawk tar findutils binutils busybox-static iproute2 numactl)
# In the order in which they can be loaded; some are built into newer kernels.
modules=(virtio virtio_ring virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk crc16 mbcache jbd2 ext4)

scratch=$(mktemp -d "$folder/.unpacking.XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# A folder gets its name when it is complete.
qemu() {
    [[ ! -e $folder/qemu ]] || return 0
    echo "unpacking QEMU"
    debian_unpack trixie "$scratch/apt-qemu" "$scratch/qemu/root" "${emulator[@]}"
    rm -rf "$scratch"/qemu/root/usr/share/{doc,man,locale}
    mv "$scratch/qemu" "$folder/qemu"
}

guest_root() {
    [[ ! -e $folder/root ]] || return 0
    echo "unpacking the guest's programs"
    local root=$scratch/guest
    debian_unpack bookworm "$scratch/apt-bookworm" "$root" "${guest[@]}"
    # What the packages' own scripts would have done.
    ln -sf mawk "$root/usr/bin/awk"
    ln -sf dash "$root/bin/sh"
    printf 'root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user:/home/user:/bin/bash\n' >"$root/etc/passwd"
    printf 'root:x:0:\nuser:x:1000:\n' >"$root/etc/group"
    rm -rf "$root"/usr/share/{doc,man,locale,zoneinfo,perl,i18n} "$root"/var/lib/dpkg
    mkdir -p "$root"/{proc,sys,dev,tmp,run,root,row,perfs}
    mv "$root" "$folder/root"
}

# The modules that reach a virtio disk, and a program that mounts the root from it.
initrd() {
    local kernel=$1 root=$2 name module number=10
    mkdir -p "$root"/{bin,modules,proc,sys,dev,new}
    cp "$folder/root/bin/busybox" "$root/bin/busybox"
    ln -s busybox "$root/bin/sh"
    for name in "${modules[@]}"; do
        module=$(find "$kernel" -name "$name.ko*" -print -quit)
        case $module in
            *.xz) xz -dc "$module" >"$root/modules/$number-$name.ko" ;;
            *.zst) zstd -qdc "$module" >"$root/modules/$number-$name.ko" ;;
            ?*) cp "$module" "$root/modules/$number-$name.ko" ;;
        esac
        number=$((number + 1))
    done
    cp "$here/guest/initramfs" "$root/init"
    (cd "$root" && find . | "$cpio" cpio -o -H newc 2>/dev/null) | gzip -1
}

kernel() {
    local suite=$1 root=$scratch/$1-kernel made=$scratch/$1-made image
    [[ ! -e $folder/kernels/$suite ]] || return 0
    echo "unpacking the kernel of $suite"
    mkdir -p "$made" "$folder/kernels"
    debian_unpack_only "$suite" "$scratch/apt-$suite" "$root" '^linux-(image|base|binary|modules)-[0-9]' "linux-image-cloud-$architecture"
    image=$(find "$root" -name 'vmlinuz*' -type f -print -quit)
    cp "$image" "$made/vmlinuz"
    find "$root" \( -name 'config-*' -o -name config \) -type f -size +20k -exec cp {} "$made/config" \; -quit
    basename "$(find "$root" -path '*/modules/*' -prune -print -quit)" >"$made/release"
    initrd "$root" "$scratch/$suite-initrd" >"$made/initrd.gz"
    mv "$made" "$folder/kernels/$suite"
}

# One file system with the guest's programs and all perfs, each at the place that its command names.
image() {
    local files=$scratch/files suite size
    [[ ! -e $folder/root.ext4 ]] || return 0
    echo "making the guest's file system"
    cp -al "$folder/root" "$files"
    for suite in "${suites[@]}"; do
        [[ -e $folder/perfs/$suite ]] || continue
        cp -al "$folder/perfs/$suite" "$files/perfs/$suite"
        rm "$files/perfs/$suite/perf"
        sed "s|^root=.*|root=/perfs/$suite/root|" "$folder/perfs/$suite/perf" >"$files/perfs/$suite/perf"
        chmod 755 "$files/perfs/$suite/perf"
    done
    size=$(($(du -sm "$files" | cut -f1) * 12 / 10 + 100))
    mke2fs -q -t ext4 -O ^has_journal -E root_owner=0:0 -d "$files" -m 0 "$scratch/root.ext4" "${size}M" >/dev/null
    mv "$scratch/root.ext4" "$folder/root.ext4"
}

if [[ -z $(debian_mirror) ]]; then
    echo "ci/matrix: this machine has no apt with a mirror of Debian" >&2
    exit 1
fi
for tool in dpkg-deb mke2fs xz zstd; do
    command -v "$tool" >/dev/null || {
        echo "ci/matrix: $tool is not installed" >&2
        exit 1
    }
done
qemu
# All others are the guest's.
if [[ $architecture != amd64 ]]; then
    export debian_architectures=$architecture
fi
guest_root
for suite in "${suites[@]}"; do
    kernel "$suite"
done
"$here/../perfs.sh" "$folder/perfs" "${suites[@]}"
image
