"""One virtual machine: a kernel, the guest's root, and a disk with kymo and the rows."""

import pathlib
import shutil
import subprocess
import tarfile
import tempfile

from . import rows

HERE = pathlib.Path(__file__).parent

# From the name of a kernel to the Debian release that has it.
SUITES = {"5.10": "bullseye", "6.1": "bookworm", "6.12": "trixie", "7.2": "sid"}

WORDS = "quiet panic=-1 mitigations=off nokaslr rcupdate.rcu_cpu_stall_suppress=1".split()

# The machines that run, to be ended with this command.
RUNNING = set()

# The outcome of the machine itself.
END = "kernel-log"


class Broken(Exception):
    """The machine cannot be made."""


def kernel_release(folder, kernel):
    """The full version of the kernel that is there; Broken where the release has gone on to another."""
    release = (folder / "kernels" / SUITES[kernel] / "release").read_text().strip()
    if not release.startswith(f"{kernel}."):
        raise Broken(f"Debian {SUITES[kernel]} has Linux {release} now: rename {kernel} in ci/matrix")
    return release


def compile_programs(folder, prefix):
    """The test programs, with frame pointers and without. `prefix`: what the compiler's name begins with."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in sorted((HERE / "programs").glob("*.c")):
        for suffix, option in (("", "-fno-omit-frame-pointer"), ("-nofp", "-fomit-frame-pointer")):
            command = [f"{prefix}gcc", "-g", "-O1", option, "-pthread", "-o", folder / f"{source.stem}{suffix}", source]
            subprocess.run(command, check=True)


def disk(path, folder):
    """A file system with the files of a folder, for reading."""
    size = sum(file.stat().st_size for file in folder.iterdir()) * 12 // 10 // 1048576 + 8
    command = ["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0", "-d", folder, "-m", "0"]
    subprocess.run([*command, path, f"{size}M"], check=True, stdout=subprocess.DEVNULL)


def qemu(folder, emulator):
    """QEMU with the libraries of its own release."""
    root = folder / "qemu/root"
    linker = next(root.glob("usr/lib64/ld-linux-*"))
    libraries = root / "usr/lib/x86_64-linux-gnu"
    return [
        *(linker, "--library-path", libraries, root / "usr/bin" / emulator),
        *("-L", root / "usr/share/qemu", "-L", root / "usr/share/seabios"),
    ]


def command_line(folder, kernel, variant, row_disk, results):
    """QEMU's command for a machine."""
    boot = folder / "kernels" / SUITES[kernel]
    drives = []
    for name, path, more in (("root", folder / "root.ext4", ",snapshot=on"), ("rows", row_disk, ""), ("out", results, "")):
        drives += ["-drive", f"file={path},if=none,id={name},format=raw{more}", "-device", f"virtio-blk-pci,drive={name}"]
    return [
        *qemu(folder, variant.architecture.emulator),
        *(() if "-icount" in variant.options else ("-accel", "tcg,thread=multi")),
        *variant.architecture.options,
        *("-smp", variant.processors, "-m", variant.memory, *variant.options),
        *("-nodefaults", "-no-user-config", "-nographic", "-no-reboot", "-serial", "stdio", "-monitor", "none"),
        *drives,
        *("-kernel", boot / "vmlinuz", "-initrd", boot / "initrd.gz"),
        *("-append", " ".join([*WORDS, *variant.architecture.words, *variant.words])),
    ]


def run(folder, kernel, variant, kymo, chosen, slowness, show):
    """Runs the rows in a machine. `show` gets each line of its console, and the outcomes at that time, by names."""
    with tempfile.TemporaryDirectory(prefix="run.", dir=folder) as scratch:
        scratch = pathlib.Path(scratch)
        files = scratch / "row"
        shutil.copytree(folder / "programs", files)
        for file in ("init", "lib.sh"):
            shutil.copy2(HERE / "guest" / file, files / file)
        (files / "rows").write_text(rows.commands(chosen, slowness))
        # Names of kymo's own functions are not needed there, and would be most of the disk.
        subprocess.run([f"{variant.architecture.prefix}strip", "--strip-debug", "-o", files / "kymo", kymo], check=True)
        disk(scratch / "rows.ext4", files)
        results = scratch / "results.tar"
        with open(results, "wb") as file:
            file.truncate(64 << 20)
        command = command_line(folder, kernel, variant, scratch / "rows.ext4", results)
        limit = (120 + sum(row.limit for row in chosen)) * slowness
        console = []
        for line in lines_of(command, limit):
            console.append(line)
            # What the guest has handed back is complete when it says so.
            show(line, read_results(results) if line.startswith(("ROW ", "DONE")) else {})
        # The kernel's next line may follow without a break.
        if not any(line.startswith("DONE") for line in console):
            last = " / ".join(console[-5:])
            show(last, {END: rows.Outcome(1, f"the machine did not reach the end; its last words: {last}")})


def lines_of(command, limit):
    """The lines of a machine's console, until it ends."""
    limited = ["timeout", "--kill-after=5", str(limit), *map(str, command)]
    with subprocess.Popen(limited, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as machine:
        RUNNING.add(machine)
        for line in machine.stdout:
            yield line.decode(errors="replace").strip()
        RUNNING.discard(machine)


def end_all(*_):
    """Ends the machines, and this command once each has told what it knows."""
    for one in list(RUNNING):
        one.terminate()


def read_results(path):
    """From the names of rows to their outcomes, and the kernel's release as `release`."""
    outcomes = {}
    try:
        with tarfile.open(path) as archive:
            files = {pathlib.Path(member.name).name: archive.extractfile(member).read() for member in archive if member.isfile()}
    except tarfile.ReadError:
        # It ended before the first row did.
        return {}
    for name, content in files.items():
        if name.endswith(".end"):
            status, milliseconds = content.split()
            output = files.get(name.removesuffix(".end") + ".said", b"").decode(errors="replace")
            outcomes[name.removesuffix(".end")] = rows.Outcome(int(status), output, int(milliseconds))
    return outcomes
