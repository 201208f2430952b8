"""The machines that rows run on: the plain one, and those of the nights."""

import dataclasses


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
    # All rows, not only those that name the variant.
    all_rows: bool = False

    def rows(self, rows):
        """Those of the rows that run here."""
        return [row for row in rows if self.all_rows or self.name in row.variants]

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
]
