"""Programs that sandbox themselves while their functions are probed: they live on, and answer as without kymo."""

import contextlib
import os
import shutil
import signal
import subprocess
import time

from . import visit
from .visit import LIMIT, Missing, check, fetch, free_port, need, server


def probing(kymo, *words):
    """`kymo probe WORDS` that runs; it has attached."""
    child, said = visit.probing(kymo.path, *words)
    print(f"$ kymo probe {' '.join(words)}\n{said}", end="", flush=True)
    return child


def ends(child, code):
    """A command that has ended by itself, so."""
    check(child.wait(LIMIT) == code, f"it ended with {child.returncode}, not {code}")


def openssh(kymo):
    """sshd: its child restricts itself before it trusts anybody. It counts the connections, and goes on."""
    need("ssh-keygen", "ssh")
    sshd = shutil.which("sshd") or "/usr/sbin/sshd"
    if not os.path.exists(sshd):
        raise Missing("not installed: openssh-server")
    os.makedirs("/run/sshd", exist_ok=True)
    key, port = kymo.folder / "key", free_port()
    kymo.make("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    known = ["-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={kymo.folder}/known", "-o", "BatchMode=yes"]
    to = ["-i", str(key), "-p", str(port), "root@127.0.0.1", "echo", "here"]
    options = ["-D", "-f", "/dev/null", "-h", str(key), "-p", str(port), "-o", f"AuthorizedKeysFile={key}.pub"]
    options += ["-o", "StrictModes=no", "-o", "UsePAM=no", "-o", "PermitRootLogin=yes", "-o", "PidFile=none"]
    with server(sshd, *options, port=port) as child:
        for words in ([], ["--ret"]):
            probe = probing(kymo, *words, "-p", str(child.pid), "libc:fork", "libc:memcpy", "libc:malloc")
            for _ in range(3):
                said = kymo.plain("ssh", *known, *to)
                check(said.out == "here\n", f"ssh {words}: {said.err}")
            probe.send_signal(signal.SIGINT)
            ends(probe, 0)
        check(kymo.plain("ssh", *known, *to).out == "here\n", "sshd does not answer any more")


def qemu(kymo):
    """QEMU with -sandbox on: its filter holds for all threads, so kymo leaves it before."""
    need("qemu-system-x86_64")
    machine = ["qemu-system-x86_64", "-sandbox", "on,spawn=deny", "-display", "none", "-serial", "none"]
    machine += ["-monitor", "stdio", "-machine", "none", "-nodefaults", "-S"]
    for words in (["libc:malloc"], ["--ret", "libc:malloc"]):
        command = [kymo.path, "probe", *words, "--", *machine]
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        time.sleep(2)
        said = child.communicate("info status\nquit\n", LIMIT)
        check(child.returncode == 0, f"it ended with {child.returncode}: {said[1]}")
        check("VM status" in said[0], f"its monitor does not answer: {said[0]}")


def as_user(kymo, *argv):
    """A command of an ordinary user, whose home is the folder. Chromium has no sandbox as root."""
    if os.geteuid() != 0:
        return [*argv]
    need("setpriv")
    os.chmod(kymo.folder, 0o777)
    user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    return [*user, "env", f"HOME={kymo.folder}", f"XDG_RUNTIME_DIR={kymo.folder}", *argv]


def renderers(pid):
    """The statuses of the processes below this one that show pages."""
    found, left = [], [str(pid)]
    while left:
        one = left.pop()
        left += subprocess.run(["pgrep", "-P", one], capture_output=True, text=True, check=False).stdout.split()
        with contextlib.suppress(OSError), open(f"/proc/{one}/cmdline", "rb") as words:
            if b"--type=renderer" in words.read():
                with open(f"/proc/{one}/status", encoding="utf-8") as status:
                    found.append(status.read())
    return found


def chromium(kymo):
    """Chromium without a window: its renderers restrict themselves, in a sandbox as every user has it."""
    need("chromium")
    page = kymo.folder / "page.html"
    page.write_text("<p id=a></p><script>document.getElementById('a').textContent = 6 * 7</script>")
    flags = ["--headless", "--disable-gpu", f"--user-data-dir={kymo.folder}/profile"]
    once = as_user(kymo, "chromium", *flags, "--dump-dom", f"file://{page}")
    for words in (["libc:getaddrinfo"], ["--ret", "libc:getaddrinfo"]):
        said = kymo.run("probe", *words, "--", *once)
        check(said.code == 0 and ">42</p>" in said.out, f"chromium ended with {said.code}: {said.err[-300:]}")
    port = free_port()
    served = as_user(kymo, "chromium", *flags, f"--remote-debugging-port={port}", f"file://{page}")
    with server(*served, port=port) as child:
        for words in (["libc:sendmsg"], ["--ret", "libc:sendmsg"]):
            sandboxed = [status for status in renderers(child.pid) if "\nSeccomp:\t2\n" in status]
            check(sandboxed, "no renderer of chromium has a filter")
            probe = probing(kymo, *words, "-p", str(child.pid))
            for _ in range(5):
                check(b"Chrome" in fetch(port, "/json/version", {}), "chromium does not answer")
            probe.send_signal(signal.SIGINT)
            ends(probe, 0)
            check(len(renderers(child.pid)) >= len(sandboxed), "a renderer of chromium ended")


PROGRAMS = {"openssh": openssh, "qemu": qemu, "chromium": chromium}
