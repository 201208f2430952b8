"""Servers that run already: nginx, redis, and a Flask app. `kymo record -p PID`."""

import os
import shutil
import subprocess
import sys

from .visit import Missing, check, fetch, free_port, load, need, server

NGINX = """
daemon off; worker_processes 1; user {user}; pid {at}/pid; error_log {at}/log notice;
events {{ worker_connections 64; }}
http {{ access_log off; gzip on; gzip_types text/plain; default_type text/plain; keepalive_requests 100000000;
client_body_temp_path {at}/a; proxy_temp_path {at}/b; fastcgi_temp_path {at}/c; uwsgi_temp_path {at}/d; scgi_temp_path {at}/e;
server {{ listen 127.0.0.1:{port}; root {at}; }} }}
"""

FLASK = """
import sys
from flask import Flask
app = Flask(__name__)

def price_of(n):
    total = 0
    for i in range(20000):
        total += i * n % 7
    return total

@app.route("/")
def index():
    return str(price_of(3))

app.run(port=int(sys.argv[1]), threaded=False)
"""


def nginx(kymo):
    """A stripped web server that compresses: the library and the server's handlers are named."""
    need("nginx")
    port, zipped = free_port(), {"Accept-Encoding": "gzip"}
    (kymo.folder / "page").write_bytes(b"".join(b"%d squared is %d\n" % (n, n * n) for n in range(9000)))
    user = os.environ.get("USER", "root")
    (kymo.folder / "conf").write_text(NGINX.format(at=kymo.folder, port=port, user=user))
    log = kymo.folder / "log"
    with server("nginx", "-c", str(kymo.folder / "conf"), "-e", str(log), port=port) as child:
        before = fetch(port, "/page", zipped)
        with load(port, "/page", before, zipped):
            said = kymo.record("-p", str(child.pid), "--", "sleep", "2")
    check("called by these functions of the program" in said.err, "no function of the program is named")
    kymo.report("deflate", said)
    kymo.named(30)
    check("exited" not in log.read_text().split("signal 15")[0], "a worker of nginx ended")


def redis(kymo):
    """A database that works mostly in the kernel: its own functions are on the first screen."""
    need("redis-server", "redis-benchmark", "redis-cli")
    port = str(free_port())
    argv = ["redis-server", "--port", port, "--save", "", "--dir", str(kymo.folder)]
    with server(*argv, port=int(port)) as child:
        bench = ["redis-benchmark", "-p", port, "-q", "-l", "-t", "set,get"]
        null = subprocess.DEVNULL
        load_maker = subprocess.Popen(bench, stdin=null, stdout=null, stderr=null)
        try:
            said = kymo.record("-p", str(child.pid), "--", "sleep", "2")
        finally:
            load_maker.kill()
            load_maker.wait()
        check("PONG" in kymo.plain("redis-cli", "-p", port, "ping").out, "redis does not answer")
    check("called by these functions of the program" in said.err, "no function of the program is named")
    kymo.report("writeToClient|readQueryFromClient|processCommand", said)
    kymo.named(60)


def flask(kymo):
    """A Python service: the app's function by name, not the interpreter's."""
    if subprocess.run([sys.executable, "-c", "import flask"], capture_output=True, check=False).returncode:
        raise Missing("not installed: python3-flask")
    port = free_port()
    (kymo.folder / "app.py").write_text(FLASK)
    # A shim that starts Python later would not be the process of the service.
    python = shutil.which(os.path.realpath(sys.executable))
    with server(python, "app.py", str(port), port=port, cwd=kymo.folder) as child:
        with load(port, "/", fetch(port, "/", {}), {}):
            said = kymo.record("-p", str(child.pid), "--", "sleep", "2")
    kymo.report(r"price_of +\(app.py\)", said)
    kymo.named(95)


PROGRAMS = {"nginx": nginx, "redis": redis, "flask": flask}
