"""Makes packages of what ci/dist/build.py has built. Each has the same bytes when it is made again."""

import base64
import gzip
import hashlib
import io
import shutil
import tarfile
import zipfile
from datetime import datetime, timezone

from .build import GLIBC, TARGET, Failed, run

MACHINE = "x86_64-linux-gnu"
DOCUMENTS = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"]


def installed(stage, root):
    """The files of an installation, by their paths below a prefix such as /usr/local."""
    files = {"bin/kymo": stage / "kymo"}
    files |= {f"share/man/man1/{page.name}": page for page in (stage / "man").iterdir()}
    files |= {
        "share/bash-completion/completions/kymo": stage / "completions/kymo",
        "share/zsh/site-functions/_kymo": stage / "completions/_kymo",
        "share/fish/vendor_completions.d/kymo.fish": stage / "completions/kymo.fish",
    }
    files |= {f"share/doc/kymo/{name}": root / name for name in DOCUMENTS}
    return files


def mode_of(path):
    """The permissions of a file in packages, whatever they are here."""
    return 0o755 if path.stat().st_mode & 0o100 else 0o644


def tarball(out, folder, files, date):
    """A tar.gz of files by their paths below one folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, path in sorted(files.items()):
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.mode, entry.mtime, entry.size = mode_of(path), date, path.stat().st_size
            entry.uname = entry.gname = "root"
            with path.open("rb") as file:
                tar.addfile(entry, file)
    (out / f"{folder}.tar.gz").write_bytes(gzip.compress(buffer.getvalue(), mtime=0))


def debug_file(stage):
    """Where debuggers look for the debug information of a program, by its build ID."""
    notes = run("readelf", "--notes", "--wide", stage / "kymo")
    words = notes.partition("Build ID:")[2].split()
    if not words:
        raise Failed(f"{stage}/kymo has no build ID, by which debuggers find its debug information")
    return {f"lib/debug/.build-id/{words[0][:2]}/{words[0][2:]}.debug": stage / "kymo.debug"}


def deb(out, source, stage, env, version):
    """A package for Debian and its descendants."""
    documents(source, stage)
    run(
        "cargo-deb", "--no-build", "--no-strip", "--package=kymo", "--profile=dist", f"--target={TARGET}", "--locked",
        f"--output={out}/kymo_{version}_amd64.deb", cwd=source, env=env,
    )


def rpm(out, source, stage, env, version):
    """A package for Fedora, RHEL, openSUSE and others."""
    documents(source, stage)
    run(
        "cargo-generate-rpm", "--package=crates/kymo", "--profile=dist", f"--target={TARGET}",
        f"--target-dir={env['CARGO_TARGET_DIR']}", "--auto-req=disabled", "--payload-compress=gzip",
        f"--output={out}/kymo-{version}-1.x86_64.rpm", cwd=source, env=env,
    )


def documents(source, stage):
    """Puts the documents beside what was built, where the lists in crates/kymo/Cargo.toml name them."""
    (stage / "doc").mkdir(exist_ok=True)
    for name in DOCUMENTS:
        shutil.copy2(source / name, stage / "doc" / name)


def wheel(out, stage, root, version, date):
    """A package for pip: the program, its manual pages and completions. Python does not run when kymo does."""
    tag = f"py3-none-manylinux_{GLIBC.replace('.', '_')}_x86_64"
    info, data = f"kymo-{version}.dist-info", f"kymo-{version}.data"
    entries = {
        f"{info}/METADATA": (
            f"Metadata-Version: 2.4\nName: kymo\nVersion: {version}\n"
            "Summary: A profiler and tracer for Linux programs with thousands of threads\n"
            "License-Expression: MIT OR Apache-2.0\n"
            "License-File: LICENSE-MIT\nLicense-File: LICENSE-APACHE\n"
            "Description-Content-Type: text/markdown\n\n"
        ).encode() + (root / "README.md").read_bytes(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: kymo\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(),
    }
    for name, path in installed(stage, root).items():
        kind = "scripts/kymo" if name == "bin/kymo" else f"data/{name}"
        entries[f"{data}/{kind}"] = path.read_bytes()
    for name in ["LICENSE-MIT", "LICENSE-APACHE"]:
        entries[f"{info}/licenses/{name}"] = (root / name).read_bytes()
    record = ""
    for name, content in sorted(entries.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        record += f"{name},sha256={digest},{len(content)}\n"
    # By the format, the list comes last and does not describe itself.
    entries[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    # zip knows no time zones and no time before 1980.
    time = datetime.fromtimestamp(date, timezone.utc).timetuple()[:6]
    with zipfile.ZipFile(out / f"kymo-{version}-{tag}.whl", "w") as archive:
        for name in sorted(entries, key=lambda name: (name.endswith("/RECORD"), name)):
            entry = zipfile.ZipInfo(name, time)
            entry.compress_type, entry.create_system = zipfile.ZIP_DEFLATED, 3
            entry.external_attr = (0o100755 if name.endswith("scripts/kymo") else 0o100644) << 16
            archive.writestr(entry, entries[name])


def checksums(out):
    """SHA256SUMS of all files, as `sha256sum --check` reads it."""
    lines = []
    for path in sorted(out.iterdir()):
        if path.name != "SHA256SUMS":
            lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
    (out / "SHA256SUMS").write_text("".join(lines))
