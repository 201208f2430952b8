"""The machines that rows run on: the plain one, and those of the nights."""

import dataclasses

from .architecture import AMD64, ARM64, Architecture


@dataclasses.dataclass(frozen=True)
class Variant:
    """What differs from the plain machine."""

    name: str
    # In the words of the book.
    title: str
    processors: str = "2"
    memory: str = "2G"
    # Words of the kernel's command line.
    words: tuple = ()
    # Further options of QEMU.
    options: tuple = ()
    # The kernels that have it; empty: all.
    kernels: tuple = ()
    # All rows of the plain machine, not only those that name the variant.
    all_rows: bool = False
    # But not these.
    without: tuple = ()
    architecture: Architecture = AMD64

    def rows(self, rows):
        """Those of the rows that run here."""
        here = [row for row in rows if self.name in row.variants or (self.all_rows and not row.nightly)]
        return [row for row in here if row.name not in self.without]

    def has(self, kernel):
        """Whether a kernel can be such a machine."""
        return not self.kernels or kernel in self.kernels


def online(cpus):
    """The word that brings CPUs online one by one; at boot an emulator takes minutes for many."""
    return f"matrix.online={','.join(map(str, cpus))}"


NUMA = ("-object", "memory-backend-ram,id=m0,size=1G", "-object", "memory-backend-ram,id=m1,size=1G")
NUMA += ("-numa", "node,nodeid=0,memdev=m0,cpus=0-3", "-numa", "node,nodeid=1,memdev=m1,cpus=4-7")

PLAIN = Variant("plain", "2 CPUs", all_rows=True)

NIGHTLY = [
    Variant("cpus16", "16 CPUs", "16", "3G", ("maxcpus=2", online(range(2, 16)))),
    # CPUs 5, 9 and 33 stay offline.
    Variant(
        "cpus64",
        "64 CPUs, three of them offline",
        "64",
        "4G",
        ("maxcpus=2", online(cpu for cpu in range(2, 64) if cpu not in (5, 9, 33))),
    ),
    Variant("numa", "two memory nodes", "8,sockets=2,cores=4", "2G", ("maxcpus=2", online(range(2, 8))), NUMA),
    Variant("memlock", "64 KiB of memory that may be locked", words=("matrix.memlock=64",)),
    Variant("nocg", "no systemd", words=("matrix.nocg",)),
    *(
        Variant(
            f"procmem-{mode}",
            f"`proc_mem.force_override={mode}`",
            words=(f"proc_mem.force_override={mode}",),
            kernels=("6.12", "7.2"),
        )
        for mode in ("never", "ptrace", "always")
    ),
    Variant(
        "arm64",
        "aarch64, with hardware counters",
        kernels=("6.12",),
        all_rows=True,
        # `probe-user` and `probe-arguments` are for programs that are probed from inside, and for arguments with names. The
        # others have not been tried there.
        without=(
            *("doctor", "probe-user", "probe-arguments", "record-wall", "record-wall-request", "locks", "locks-holds", "sched"),
            "annotate-kernel",
        ),
        architecture=ARM64,
    ),
    # All instructions take the same time there, and are counted.
    Variant(
        "arm64-icount",
        "aarch64, with counters of instructions",
        processors="1",
        options=("-icount", "shift=1"),
        kernels=("6.12",),
        architecture=ARM64,
    ),
]
