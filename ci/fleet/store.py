#!/usr/bin/env python3
"""Datasets in an object store that others wrote: moto speaks S3 to the tests of kymo-store.

    python3 -m ci.fleet.store                   # writers, readers and killed compactors, and the verbs
    python3 -m ci.fleet.store killed            # tests of this name only

The tests run against a store of their own in `make test-fleet`; here against moto (moto[server] of PyPI, which the first
run installs into target/fleet-moto).
"""

import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

from .engines import PATIENCE_S, ROOT, Failed, free_port, run

PYTHON = ["moto[server]==5.*"]
BUCKET = "kymo-test"


def install(folder: pathlib.Path) -> pathlib.Path:
    """A virtual environment with moto; its server."""
    mark = folder / ".installed"
    if not mark.exists():
        run([sys.executable, "-m", "venv", folder])
        run([folder / "bin/python", "-m", "pip", "install", "--quiet", *PYTHON])
        mark.touch()
    return folder / "bin/moto_server"


def make_bucket(endpoint):
    """Makes the bucket, as soon as the server listens."""
    until = time.monotonic() + PATIENCE_S
    request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
    while True:
        try:
            urllib.request.urlopen(request, timeout=10).close()
            return
        except (urllib.error.URLError, ConnectionError) as error:
            if time.monotonic() > until:
                raise Failed(f"moto does not answer at {endpoint}: {error}") from error
            time.sleep(0.2)


def main():
    server = install(ROOT / "target/fleet-moto")
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    moto = subprocess.Popen([server, "-H", "127.0.0.1", "-p", str(port)], **quiet)
    try:
        make_bucket(endpoint)
        environment = os.environ | {"KYMO_TEST_S3": endpoint, "CARGO_TARGET_DIR": str(ROOT / "target/fleet")}
        # All crates and features, as other builds of this workspace: else cargo builds the engine once more.
        command = ["cargo", "test", "--release", "--locked", "--test", "store", "--", "--nocapture", "--test-threads=1"]
        names = sys.argv[1:] or ["killed", "a_dataset"]
        return subprocess.run([*command, *names], cwd=ROOT / "fleet", env=environment, check=False).returncode
    finally:
        moto.terminate()
        moto.wait()


if __name__ == "__main__":
    sys.exit(main())
