"""The tools, installed into a folder once."""

import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent
GO = {"pprof": "github.com/google/pprof@latest"}
COLLECTOR = "go.opentelemetry.io/collector/pdata/pprofile@v0.165.0"
NPM = ["@firefox-devtools/profiler-cli@0.10.0", "speedscope@1.25.0"]
PYTHON = ["jsonschema==4.26.0", "opentelemetry-proto==1.45.2", "perfetto==0.59.1", "viztracer==1.1.1"]
# Large ones, for the tables only.
PYTHON_TABLES = ["duckdb==2.0.1", "pyarrow==26.0.1"]


class Missing(Exception):
    """A tool is not here, and cannot be installed."""


class Installed:
    """A folder with the tools."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def _install(self, mark: str, command, **more):
        """Runs a command once; a mark says that it succeeded."""
        done = self.folder / f".{mark}"
        if done.exists():
            return
        if shutil.which(command[0]) is None:
            raise Missing(f"there is no {command[0]}")
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
        if ran.returncode != 0:
            raise Missing(f"`{' '.join(map(str, command))}` failed: {ran.stdout.strip()[-300:]}")
        done.touch()

    def go(self, name: str) -> pathlib.Path:
        """A program in Go."""
        environment = os.environ | {"GOBIN": str(self.folder / "bin")}
        self._install(f"go-{name}", ["go", "install", GO[name]], env=environment)
        return self.folder / "bin" / name

    def go_program(self, source: pathlib.Path, module: str) -> pathlib.Path:
        """A program of one file in Go, which needs a module."""
        folder = self.folder / f"go-{source.parent.name}"
        folder.mkdir(exist_ok=True)
        shutil.copy(source, folder)
        steps = "rm -f go.mod go.sum && go mod init consumer && go get $0 && go mod tidy && go build -o program ."
        self._install(folder.name, ["sh", "-c", steps, module], cwd=folder)
        return folder / "program"

    def npm(self, package: str) -> pathlib.Path:
        """The folder of a package of npm."""
        if shutil.which("node") is None:
            raise Missing("there is no node")
        command = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(self.folder), *NPM]
        self._install("npm", command)
        return self.folder / "node_modules" / package

    def python(self, name="python", wanted=PYTHON) -> pathlib.Path:
        """The folder of Python packages, which can be imported from now on."""
        packages = self.folder / name
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(packages), *wanted]
        self._install(name, command)
        if str(packages) not in sys.path:
            sys.path.insert(0, str(packages))
        return packages

    @staticmethod
    def command(name: str) -> str:
        """A program of the system."""
        found = shutil.which(name)
        if found is None:
            raise Missing(f"there is no {name}")
        return found
