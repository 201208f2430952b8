"""Builds the program for an old glibc, with bytes that depend on the sources and the tools only."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
TARGET = "x86_64-unknown-linux-gnu"
# The oldest glibc for which Rust's own standard library is built.
GLIBC = "2.17"
LIMIT = 15_000_000
# Release of Zig: its C compiler, its linker, and its lists of what each glibc has.
ZIG = "ziglang==0.17.1"
CARGO_TOOLS = {"cargo-deb": "3.8.0", "cargo-generate-rpm": "0.21.1"}


class Failed(Exception):
    """A package cannot be made, or is not as it should be."""


def run(*command, **options):
    """What a command prints. A failure has the command in its message."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, **options)
    if done.returncode:
        raise Failed(f"`{' '.join(map(str, command))}` ended with {done.returncode}")
    return done.stdout


class Tools:
    """The programs that make packages, in a folder of their own. What is missing is installed."""

    def __init__(self, folder):
        self.folder = folder
        python = folder / "zig/bin/python"
        if not python.exists():
            print(f"installing {ZIG} into {folder}", flush=True)
            run("python3", "-m", "venv", folder / "zig")
            run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", ZIG)
        self.zig = next(folder.glob("zig/lib/python*/site-packages/ziglang/zig"))
        for name, version in CARGO_TOOLS.items():
            if not (folder / "bin" / name).exists():
                print(f"installing {name} {version} into {folder}", flush=True)
                build = os.environ | {"CARGO_TARGET_DIR": str(folder / "build")}
                run("cargo", "install", "--quiet", "--locked", "--root", folder, f"{name}@{version}", env=build)

    def path(self, name):
        """The path of one that cargo has installed."""
        return self.folder / "bin" / name


def tracked(root):
    """The names of the files that git tracks."""
    return [name for name in run("git", "ls-files", "-z", cwd=root).split("\0")[:-1] if (root / name).is_file()]


def copy_sources(root, names, folder):
    """Copies files as they are now. They keep their times, so that cargo builds what has changed."""
    wanted = {folder / name for name in names}
    for path in [path for path in folder.rglob("*") if path.is_file() and path not in wanted]:
        path.unlink()
    for path in wanted:
        original = root / path.relative_to(folder)
        if path.exists() and path.stat().st_mtime == original.stat().st_mtime:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(original, path)


def source_date(root):
    """Seconds of the commit: the time that packages and all files in them have."""
    return run("git", "log", "-1", "--format=%ct", cwd=root).strip()


def environment(folder, tools, date):
    """What cargo and its tools are told. No path of this machine remains in what they write."""
    cargo_home = pathlib.Path(os.environ.get("CARGO_HOME", pathlib.Path.home() / ".cargo"))
    registries = sorted((cargo_home / "registry/src").glob("*"))
    sysroot = run("rustc", "--print", "sysroot").strip()
    # The last that fits is used.
    names = {tools.folder: "/tools", folder: "/kymo", **{path: "/cargo" for path in registries}}
    rust = [f"--remap-path-prefix={path}={name}" for path, name in names.items()]
    rust += [f"--remap-path-prefix={sysroot}/lib/rustlib/src/rust=/rust"]
    # The name by which debuggers find the debug information.
    compiler = str(HERE / "zig-cc")
    # As a flag, so that build scripts are linked as usual. The build ID leads debuggers to the debug information.
    rust += [f"-Clinker={compiler}", "-Clink-arg=-Wl,--build-id=sha1"]
    lower = TARGET.replace("-", "_")
    return os.environ | {
        "SOURCE_DATE_EPOCH": date,
        "CARGO_TARGET_DIR": str(folder / "build"),
        "CARGO_ENCODED_RUSTFLAGS": "\x1f".join(rust),
        f"CC_{lower}": compiler,
        f"AR_{lower}": "ar",
        f"CFLAGS_{lower}": " ".join(f"-ffile-prefix-map={path}={name}" for path, name in names.items()),
        "KYMO_DIST_ZIG": str(tools.zig),
        "KYMO_DIST_GLIBC": GLIBC,
        "KYMO_DIST_LIBGCC_S": run("gcc", "-print-file-name=libgcc_s.so.1").strip(),
        "ZIG_GLOBAL_CACHE_DIR": str(tools.folder / "zig-cache"),
        "ZIG_LOCAL_CACHE_DIR": str(tools.folder / "zig-cache"),
        "LC_ALL": "C",
        "TZ": "UTC",
    }


def glibc_of(path):
    """The newest version of glibc that a program or library names, such as (2, 17)."""
    versions = re.findall(r"\bGLIBC_(\d+)\.(\d+)", run("objdump", "-T", path))
    return max(((int(major), int(minor)) for major, minor in versions), default=(0, 0))


def check_glibc(path):
    """Fails if a program or library needs a newer glibc than promised."""
    needed = glibc_of(path)
    if needed > tuple(map(int, GLIBC.split("."))):
        raise Failed(f"{path} needs glibc {needed[0]}.{needed[1]}, and must run with {GLIBC}: `objdump -T` shows why")


def build(root, names, folder, tools, date):
    """Builds these files of a tree in a folder, and returns the one with all that packages contain."""
    source = folder / "source"
    source.mkdir(parents=True, exist_ok=True)
    copy_sources(root, names, source)
    run("cargo", "fetch", "--quiet", "--locked", f"--target={TARGET}", cwd=source)
    env = environment(folder, tools, date)
    run("cargo", "build", "--locked", "--package=kymo", "--profile=dist", f"--target={TARGET}", cwd=source, env=env)
    output = folder / "build" / TARGET / "dist"
    check_glibc(output / "kymo")
    check_glibc(output / "deps/libkymo_agent.so")
    stage = output / "package"
    shutil.rmtree(stage, ignore_errors=True)
    (stage / "completions").mkdir(parents=True)
    split(output / "kymo", stage)
    for shell, name in {"bash": "kymo", "zsh": "_kymo", "fish": "kymo.fish"}.items():
        (stage / "completions" / name).write_text(run(stage / "kymo", "completions", shell, env=env))
    run(stage / "kymo", "man", stage / "man", env=env)
    for page in (stage / "man").iterdir():
        run("gzip", "--no-name", "--best", page)
    return stage, env


def split(program, stage):
    """The program without debug information, and the debug information alone."""
    stripped, debug = stage / "kymo", stage / "kymo.debug"
    run("objcopy", "--only-keep-debug", "--compress-debug-sections=zlib", program, debug)
    names = names_of_functions(debug, stage)
    run("objcopy", "--strip-all", f"--add-section=.gnu_debugdata={names}", f"--add-gnu-debuglink={debug}", program, stripped)
    names.unlink()
    stripped.chmod(0o755)
    debug.chmod(0o644)
    if stripped.stat().st_size > LIMIT:
        print(f"note: {stripped} has {stripped.stat().st_size} bytes; at most {LIMIT} are wanted", file=sys.stderr)


def names_of_functions(debug, stage):
    """A compressed ELF file with the symbols of functions only ("MiniDebugInfo" in GDB's manual).

    `kymo demo` records the program itself; debuggers and profilers read the names, too. They take a sixth of the space
    that the table of symbols takes.
    """
    functions, small = stage / "functions", stage / "functions.elf"
    defined = run("nm", "--defined-only", "--format=posix", "--no-demangle", debug).splitlines()
    functions.write_text("".join(f"{line.split()[0]}\n" for line in defined if line.split()[1] in "tT"))
    run("objcopy", "--strip-all", f"--keep-symbols={functions}", debug, small)
    functions.unlink()
    run("xz", "--format=xz", "--check=crc32", "-6e", "--threads=1", small)
    return small.with_name("functions.elf.xz")
