"""Servers that have given up root: their workers are not dumpable, and are probed in-process all the same."""

import contextlib
import json
import os
import pwd
import socket
import subprocess
import time

from .visit import LIMIT, check, fetch, free_port, need, probing, server

# How often each is entered; `KYMO_ROUNDS` is for long runs.
ROUNDS = int(os.environ.get("KYMO_ROUNDS", "5"))

FPM = """
[global]
error_log = {at}/fpm.log
daemonize = no
[www]
user = www-data
group = www-data
listen = 127.0.0.1:{port}
pm = static
pm.max_children = 1
"""

APACHE = """
ServerRoot /usr/lib/apache2
ServerName localhost
PidFile {at}/pid
ErrorLog {at}/log
Listen 127.0.0.1:{port}
User www-data
Group www-data
LoadModule mpm_{mpm}_module modules/mod_mpm_{mpm}.so
LoadModule authz_core_module modules/mod_authz_core.so
DocumentRoot {at}
ServerLimit 1
StartServers 1
MaxRequestWorkers {most}
"""

HAPROXY = """
global
  user haproxy
  group haproxy
{chroot}
defaults
  mode http
  timeout connect 5s
  timeout client 5s
  timeout server 5s
frontend one
  bind 127.0.0.1:{port}
  http-request return status 200 content-type text/plain string here
"""


def worker(pid, user):
    """The first process of a server that runs as this user."""
    uid = str(pwd.getpwnam(user).pw_uid)
    for _ in range(LIMIT * 10):
        children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout
        for one in [str(pid), *children.split()]:
            with contextlib.suppress(OSError), open(f"/proc/{one}/status", encoding="utf-8") as status:
                uids = next(line for line in status if line.startswith("Uid:")).split()
                if uids[1] == uid:
                    return one
        time.sleep(0.1)
    check(False, f"no process of {user}")


def enters(kymo, pid, function, ask):
    """Each visit counts in the process, and the server answers as before."""
    check(os.stat(f"/proc/{pid}/environ").st_uid == 0, "it is dumpable")
    for turn in range(ROUNDS):
        words = ["--json", "--engine", "inproc", *(["--ret"] if turn % 2 else []), "-p", str(pid), function]
        child, _ = probing(kymo.path, *words)
        for _ in range(5):
            ask()
        child.terminate()
        out, err = child.communicate(timeout=LIMIT)
        probe = json.loads(out)["probes"][0]
        check(probe["engine"] == "inproc" and probe["hits"] > 0, f"{probe}: {err}")
        ask()
    print(f"   {ROUNDS} of {ROUNDS} visits: {function} is counted in the process")


def says(port, words, answer):
    """A question over a connection of its own, and the answer's beginning."""
    with socket.create_connection(("127.0.0.1", port), LIMIT) as one:
        one.sendall(words)
        got = one.recv(4096)
    check(got.startswith(answer), f"it answers {got!r}")


def memcached(kymo):
    """Threads that were started by root."""
    need("memcached")
    port = free_port()
    with server("memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", str(port), port=port) as child:
        enters(kymo, worker(child.pid, "nobody"), "libc:sendmsg", lambda: says(port, b"version\r\n", b"VERSION"))


def php_fpm(kymo):
    """Workers of a master that stays root."""
    need("php-fpm8.2")
    port = free_port()
    (kymo.folder / "conf").write_text(FPM.format(at=kymo.folder, port=port))
    (kymo.folder / "a.php").write_text("<?php echo 'here';")

    def record(kind, body):
        return bytes([1, kind, 0, 1, *len(body).to_bytes(2, "big"), 0, 0]) + body

    names = {"SCRIPT_FILENAME": f"{kymo.folder}/a.php", "REQUEST_METHOD": "GET"}
    pairs = b"".join(bytes([len(k), len(v)]) + k.encode() + v.encode() for k, v in names.items())
    words = record(1, bytes([0, 1, 0, 0, 0, 0, 0, 0])) + record(4, pairs) + record(4, b"") + record(5, b"")
    with server("php-fpm8.2", "-F", "-y", str(kymo.folder / "conf"), port=port) as child:
        pid = worker(child.pid, "www-data")
        enters(kymo, pid, "libc:accept", lambda: says(port, words, b"\x01\x06"))


def apache(kymo):
    """Processes of one thread, and processes of many."""
    need("apache2")
    (kymo.folder / "page").write_text("here")
    for mpm, most, function in (("prefork", 1, "libc:accept4"), ("event", 25, "libc:writev")):
        port = free_port()
        conf = kymo.folder / f"{mpm}.conf"
        conf.write_text(APACHE.format(at=kymo.folder, port=port, mpm=mpm, most=most))

        def ask(port=port):
            for _ in range(10):
                check(fetch(port, "/page", {}) == b"here", "apache answers otherwise")

        # It ends its whole group.
        own = {"start_new_session": True}
        with server("apache2", "-DFOREGROUND", "-f", str(conf), port=port, **own) as child:
            enters(kymo, worker(child.pid, "www-data"), function, ask)


def haproxy(kymo):
    """It forbids itself threads, and may have a root directory without /proc: the kernel counts, and kymo says why."""
    need("haproxy")
    for chroot, reason in (("", "RLIMIT_NPROC is 0"), ("  chroot /var/lib/haproxy", "no /proc in its root directory")):
        port = free_port()
        conf = kymo.folder / "conf"
        conf.write_text(HAPROXY.format(port=port, chroot=chroot))
        with server("haproxy", "-W", "-db", "-f", str(conf), port=port) as child:
            pid = worker(child.pid, "haproxy")
            for _ in range(ROUNDS):
                said = kymo.run("probe", "-d", "0.2", "-p", pid, "libc:sendto")
                check(said.code == 0 and reason in said.err, f"{reason} is not named")
                check(fetch(port, "/", {}) == b"here", "haproxy answers otherwise")


def mariadb(kymo):
    """A database that drops root by itself."""
    need("mariadbd", "mariadb", "mariadb-install-db")
    port, at = free_port(), kymo.folder / "data"
    at.mkdir()
    os.chmod(kymo.folder, 0o755)
    kymo.make("mariadb-install-db", "--user=mysql", f"--datadir={at}", "--skip-test-db")
    path = kymo.folder / "data" / "s"
    words = [f"--datadir={at}", f"--socket={path}", "--user=mysql", f"--port={port}", "--bind-address=127.0.0.1"]
    with server("mariadbd", "--no-defaults", *words, port=port) as child:

        def ask():
            said = kymo.plain("mariadb", "--no-defaults", f"--socket={path}", "-N", "-e", "select 6 * 7")
            check(said.out == "42\n", f"mariadb answers otherwise: {said.err}")

        enters(kymo, worker(child.pid, "mysql"), "libc:accept4", ask)


PROGRAMS = {"memcached": memcached, "php-fpm": php_fpm, "apache": apache, "haproxy": haproxy, "mariadb": mariadb}
