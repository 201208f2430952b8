"""Runs one shell test with a command called `perf` in front of PATH."""

import dataclasses
import os
import pathlib
import shutil
import signal
import subprocess

SUITES = ["bookworm", "trixie", "sid"]

# What perf's own runner takes for a result.
PASS, SKIP = 0, 2

# `perf test` has the workloads of the tests, and is no subject of them.
KYMO_AS_PERF = """#!/bin/sh
# kymo in perf's place, for ci/perf_tests.
case $1 in
    test) exec '{perf}' "$@" ;;
    *) exec "$(dirname "$0")/../kymo/perf" "$@" ;;
esac
"""


@dataclasses.dataclass
class Result:
    """How a test ended."""

    status: str  # pass, skip, fail, or late
    output: str

    def first_failure(self):
        """The first line of the output that speaks of a failure, or the last line."""
        lines = [line.strip() for line in self.output.splitlines() if line.strip()]
        words = ("fail", "error:", "unexpected argument", "unrecognized", "not found", "no such")
        for line in lines:
            if any(word in line.lower() for word in words):
                return line
        return lines[-1] if lines else "no output"


@dataclasses.dataclass
class Test:
    """A script, and its name."""

    name: str
    path: pathlib.Path


@dataclasses.dataclass
class Release:
    """perf of one Debian release, unpacked."""

    suite: str
    perf: pathlib.Path
    core: pathlib.Path
    version: str

    def tests(self):
        """The scripts that `perf test` would run, in order of their names: executable, and not helpers."""
        shell = self.core / "tests/shell"
        scripts = sorted(path for path in shell.glob("*.sh") if os.access(path, os.X_OK))
        return [Test(path.stem, path) for path in scripts]


class Machine:
    """Where tests run: the releases, kymo, a scratch folder, and the time that one test may take."""

    def __init__(self, perfs, kymo, work, limit):
        self.perfs, self.kymo, self.work, self.limit = perfs, kymo, work, limit
        # The tests write to /tmp, so theirs is a folder of this run; but not where that would hide the commands.
        hidden = any(path.is_relative_to("/tmp") for path in (perfs, kymo, work))
        self.private_tmp = os.geteuid() == 0 and shutil.which("unshare") is not None and not hidden
        self.work.mkdir(parents=True, exist_ok=True)

    def release(self, suite):
        """The unpacked perf of a release; None without one, or without the tool that makes it run alone."""
        root = self.perfs / suite / "root"
        cores = [root / "usr/lib/perf-core", root / "usr/libexec/perf-core"]
        core = next((core for core in cores if (core / "tests/shell").is_dir()), None)
        if core is None or shutil.which("patchelf") is None:
            return None
        perf = self.standalone(suite, root)
        said = subprocess.run([perf, "version"], capture_output=True, text=True, check=True).stdout
        return Release(suite, perf, core, said.split()[-1])

    def kernel(self):
        """The kernel that the tests run on."""
        return f"Linux {os.uname().release}"

    def standalone(self, suite, root):
        """A perf that finds its dynamic linker and libraries by itself, so that its samples are of `perf`."""
        folder = self.work / "bin" / suite
        folder.mkdir(parents=True, exist_ok=True)
        perf = folder / "perf"
        if not perf.exists():
            linkers = [*root.glob("lib64/ld-linux-*"), *root.glob("usr/lib64/ld-linux-*"), *root.glob("lib/ld-linux-*")]
            libraries = [*root.glob("lib/*-linux-gnu"), *root.glob("usr/lib/*-linux-gnu")]
            copy = folder / "perf.new"
            shutil.copy2(root / "usr/bin/perf", copy)
            path = ":".join(str(folder) for folder in libraries)
            # The file may not be written where it has its name: two runs may share the folder.
            subprocess.run(
                ["patchelf", "--set-interpreter", linkers[0], "--force-rpath", "--set-rpath", path, copy], check=True
            )
            copy.rename(perf)
        return perf

    def run(self, release, test, tool):
        """Runs a test with `tool` as perf."""
        scratch = self.work / "scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        for folder in ("bin", "home", "tmp"):
            (scratch / folder).mkdir(parents=True)
        (scratch / "tmp").chmod(0o1777)
        command = scratch / "bin/perf"
        if tool == "perf":
            command.symlink_to(release.perf)
        else:
            command.write_text(KYMO_AS_PERF.format(perf=release.perf))
            command.chmod(0o755)
            # By this name kymo's lines that scripts look for are perf's.
            (scratch / "kymo").mkdir()
            (scratch / "kymo/perf").symlink_to(self.kymo)
        environment = {
            **os.environ,
            "PATH": f"{scratch / 'bin'}:{os.environ['PATH']}",
            "HOME": str(scratch / "home"),
            "PERF_EXEC_PATH": str(release.core),
            "LC_ALL": "C.UTF-8",
        }
        argv = ["bash", str(test.path)]
        if self.private_tmp:
            script = 'mount --bind "$1" /tmp && cd /tmp && shift && exec "$@"'
            argv = ["unshare", "--mount", "sh", "-c", script, "sh", str(scratch / "tmp"), *argv]
        result = self.end_of(argv, environment, scratch)
        (self.work / "logs").mkdir(exist_ok=True)
        (self.work / "logs" / f"{release.suite}.{test.name}.{tool}").write_text(result.output)
        return result

    def end_of(self, argv, environment, scratch):
        """Waits for a test, and ends it with all its children when it takes too long."""
        log = scratch / "output"
        with open(log, "wb") as out:
            child = subprocess.Popen(
                argv,
                env=environment,
                cwd=scratch / "tmp",
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = child.wait(self.limit)
            except subprocess.TimeoutExpired:
                code = None
            # What a test leaves running would disturb the next one.
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
        output = log.read_bytes()[: 1 << 20].decode(errors="replace")
        status = {None: "late", PASS: "pass", SKIP: "skip"}.get(code, "fail")
        return Result(status, output)
