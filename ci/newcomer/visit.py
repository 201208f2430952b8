"""What every visit needs: kymo's commands, what they print, and the checks."""

import contextlib
import dataclasses
import http.client
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
import time

# What a person sees of a long output without scrolling.
SCREEN = 50
# The longest that any command may take.
LIMIT = 120


class Failed(Exception):
    """A check that does not hold."""


class Missing(Exception):
    """A program that is not installed, or something that this machine does not permit."""


def check(holds, sentence):
    """Fails with the sentence unless it holds."""
    if not holds:
        raise Failed(sentence)


def need(*programs):
    """All of these are installed."""
    absent = [program for program in programs if shutil.which(program) is None]
    if absent:
        raise Missing(f"not installed: {', '.join(absent)}")


@dataclasses.dataclass
class Said:
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str

    def screen(self):
        """What is on the first screen."""
        return "\n".join((self.err + self.out).splitlines()[:SCREEN])


class Kymo:
    """kymo, and the folder that it is used in."""

    def __init__(self, path, folder):
        self.path, self.folder = path, folder

    def plain(self, *argv, **options):
        """A command without kymo."""
        done = subprocess.run(
            argv, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT, **options
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def make(self, *argv):
        """A command that makes something; it must succeed."""
        said = self.plain(*argv)
        check(said.code == 0, f"{shlex.join(map(str, argv))}: {said.err}")

    def run(self, *words, lines=14, **options):
        """`kymo WORDS`, shown with the first lines of what it prints."""
        said = self.plain(self.path, *words, **options)
        print(f"$ kymo {shlex.join(map(str, words))}")
        shown = (said.err + said.out).splitlines()
        print("\n".join(shown[:lines] + (["..."] if len(shown) > lines else [])), flush=True)
        return said

    def record(self, *words, code=0, **options):
        """`kymo record`, which loses nothing and ends with this status."""
        said = self.run("record", *words, **options)
        check(said.code == code, f"kymo record ended with {said.code}, not {code}")
        check("[ kymo record: lost 0 samples ]" in said.err, "samples were lost")
        return said

    def report(self, expected, record=None):
        """`kymo report`; the function is on its first screen, or already on that of `record`."""
        said = self.run("report")
        check(said.code == 0, f"kymo report ended with {said.code}")
        screens = said.screen() + (record.screen() if record else "")
        check(re.search(expected, screens), f"no {expected} on the first screen")
        return said

    def named(self, percent):
        """So many per cent of the frames have names."""
        said = self.plain(self.path, "script", "-F", "ip,sym")
        lines = [line.split(maxsplit=1)[-1] for line in said.out.splitlines() if line.strip()]
        frames, named = len(lines), sum(line != "[unknown]" for line in lines)
        check(frames > 0, "no frames at all")
        share = 100 * named / frames
        print(f"   {share:.1f} % of the frames have names")
        check(share >= percent, f"{share:.1f} % of the frames have names, {percent} % should")


def probing(path, *words, **options):
    """`kymo probe WORDS` that runs and has attached, and what it said until then."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child, said = subprocess.Popen([path, "probe", *words], **pipes, **options), ""
    for line in child.stderr:
        said += line
        if " attached in " in line:
            return child, said
    check(False, f"kymo does not probe: {said}")


@contextlib.contextmanager
def server(*argv, port, **options):
    """A server on a port of this machine, until the end of the block; it must still run then."""
    with open(os.devnull, "r+b") as null:
        child = subprocess.Popen(argv, stdin=null, stdout=null, stderr=null, **options)
        try:
            for _ in range(LIMIT * 10):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                check(child.poll() is None, f"{argv[0]} does not start")
                time.sleep(0.1)
            yield child
            check(child.poll() is None, f"{argv[0]} ended while it was recorded")
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(LIMIT)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def free_port():
    """A port that nothing uses."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def load(port, path, answer, headers):
    """Requests one after the other until the end of the block; each gets the same answer."""
    stop, wrong, right = threading.Event(), [], [0]

    def ask():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        try:
            while not stop.is_set():
                connection.request("GET", path, headers=headers)
                got = connection.getresponse()
                body = got.read()
                if got.status != 200 or body != answer:
                    wrong.append(f"status {got.status}, {len(body)} bytes")
                    return
                right[0] += 1
        except (OSError, http.client.HTTPException) as error:
            wrong.append(repr(error))
        finally:
            connection.close()

    client = threading.Thread(target=ask)
    client.start()
    try:
        yield
    finally:
        stop.set()
        client.join()
    check(not wrong, f"a request failed while the server was recorded: {wrong}")
    check(right[0] > 0, "no request was answered")


def fetch(port, path, headers):
    """One answer, as it is without kymo."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    connection.request("GET", path, headers=headers)
    body = connection.getresponse().read()
    connection.close()
    return body
