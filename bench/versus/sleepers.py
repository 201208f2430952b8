"""A process with many threads that only sleep: what events are attached to."""

import contextlib
import resource
import subprocess

from versus.runner import Refusal, environment

# Longer than any race; the process is ended with it.
SECONDS = 100_000


@contextlib.contextmanager
def sleeping(bench, threads, user=None):
    """The process id of a program with so many threads, all there; `user` is the number of the user that it runs as."""
    program = bench.compile("fixtures/programs/sleepers.c", "-pthread")
    # The first thread sleeps, too.
    argv = [*as_user(user), program, str(threads - 1), str(SECONDS)]
    child = subprocess.Popen([str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, env=environment(), cwd="/")
    try:
        if child.stdout.readline() != b"ready\n":
            raise Refusal(f"{threads} threads cannot be started here: {child.stderr.read().decode(errors='replace').strip()}")
        yield child.pid
    finally:
        child.kill()
        child.wait()


def as_user(user):
    """What to put before a command so that it runs as this user, without any privilege."""
    if user is None:
        return []
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all", "--"]


def raise_descriptors():
    """Lets everything that is started from now on have as many open files as the hard limit permits; returns the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
