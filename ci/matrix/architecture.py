"""The architectures of machines: what QEMU is called there, and what the guest's programs are made with."""

import dataclasses
import pathlib
import shutil
import subprocess

TARGET = "aarch64-unknown-linux-gnu"


@dataclasses.dataclass(frozen=True)
class Architecture:
    """How a machine of this architecture is made."""

    # As Debian names it.
    name: str
    emulator: str
    # Options of QEMU.
    options: tuple
    # Words of the kernel's command line.
    words: tuple
    # What the names of compiler and binutils begin with.
    prefix: str = ""

    def missing(self, kymo):
        """What a machine of this architecture needs, and this machine lacks, in words; None where all is there."""
        if self is AMD64:
            return None
        if not shutil.which(f"{self.prefix}gcc"):
            return f"no {self.prefix}gcc: apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
        return None if kymo.exists() else f"no {kymo}: ci/cross-arm64.sh target/arm64 makes it"

    def prepare(self, work):
        """Downloads what is not there yet."""
        script = pathlib.Path(__file__).parent / "prepare.sh"
        subprocess.run([script, self.folder(work), *(() if self is AMD64 else (self.name,))], check=True)

    def folder(self, work):
        """Where ci/matrix/prepare.sh has put its kernels, its emulator and the guest's programs."""
        return work if self is AMD64 else work / self.name


# `tsc=unstable`: calibrated on a busy machine, the guest's clock runs at many times the speed. Without `no_timer_check` and
# `i8042=off` a slow start looks like a broken one.
AMD64 = Architecture(
    "amd64",
    "qemu-system-x86_64",
    ("-M", "q35,i8042=off", "-cpu", "max"),
    ("console=ttyS0", "no_timer_check", "tsc=unstable", "clocksource=acpi_pm"),
)

# `pmu=on` is the default: a cycle counter and four more, of which only with -icount one counts instructions.
# `pauth-impdef=on`: the architecture's own way to authenticate pointers takes most of an emulator's time.
ARM64 = Architecture(
    "arm64",
    "qemu-system-aarch64",
    ("-M", "virt,gic-version=3", "-cpu", "max,pauth-impdef=on"),
    ("console=ttyAMA0",),
    prefix="aarch64-linux-gnu-",
)
