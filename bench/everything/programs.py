"""The programs whose functions are probed, and what they do meanwhile."""

import dataclasses
import hashlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

from everything.modes import DO, HOW
from versus.runner import ROOT

NAMES = ["throws", "panics", "cpython", "processes", "threads", "sqlite", "zstd", "redis", "libc", "libc-threads"]
LIMIT_S = 900
SOURCES = ROOT / "bench" / "workloads" / "everything"


@dataclasses.dataclass
class Outcome:
    """How a program ended, what it answered, and what it said besides."""

    status: int
    text: str
    said: str = ""

    def compared(self, wanted, seconds):
        """`same`, or how it differs from the run without probes; it took `seconds`."""
        if "not at its end" in self.said:
            return f"not at its end after {seconds:.0f} s"
        if self.status != wanted.status:
            return f"ended with {self.status} instead of {wanted.status}"
        return "same" if self.text == wanted.text else "other output"


class Program:
    """A program with a workload that answers the same each time."""

    name = ""
    # Parts of the paths of modules that are probed.
    modules = ()
    hows = HOW
    dos = DO
    # Whether programs that it starts are probed, too, where all functions are at once.
    children = True
    # Whether its tests fail by themselves at times.
    retries = False
    # What runs beside it.
    beside = None

    def __init__(self, scratch, quick):
        self.scratch = scratch
        self.quick = quick

    def prepare(self):
        """Why it cannot be run here, if so."""
        return None

    def run(self, env):
        raise NotImplementedError


def call(argv, env, cwd=None, stdin=None, beside=None):
    """Runs a command with a limit; nobody is asked to end nicely. `beside` gets the child, in a thread of its own."""
    child = subprocess.Popen([str(word) for word in argv], env=env, cwd=cwd, stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    other = threading.Thread(target=beside, args=(child,)) if beside else None
    if other:
        other.start()
    try:
        out, words = child.communicate(stdin, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, words = child.communicate()
        words += f"\nnot at its end after {LIMIT_S} s".encode()
    if other:
        other.join()
    return Outcome(child.returncode, out.decode(errors="replace"), words.decode(errors="replace"))


class Throws(Program):
    """C++: exceptions, coroutines, threads (workloads/everything/throws.cc). The C++ library's functions are probed, too."""

    name = "throws"

    def prepare(self):
        self.program = self.scratch / "throws"
        self.modules = (str(self.program), "libstdc++")
        if not shutil.which("g++"):
            return "g++ is not installed"
        made = call(["g++", "-std=c++20", "-O2", "-pthread", "-o", self.program, SOURCES / "throws.cc"], None)
        return None if made.status == 0 else f"throws.cc does not compile: {made.said[-200:]}"

    def run(self, env):
        return call([self.program, 20 if self.quick else 60], env)


class Panics(Program):
    """Rust: panics, threads, an executor of futures (workloads/everything/panics.rs)."""

    name = "panics"

    def prepare(self):
        self.program = self.scratch / "panics"
        self.modules = (str(self.program),)
        if not shutil.which("rustc"):
            return "rustc is not installed"
        made = call(["rustc", "--edition", "2024", "-O", "-o", self.program, SOURCES / "panics.rs"], None)
        return None if made.status == 0 else f"panics.rs does not compile: {made.said[-200:]}"

    def run(self, env):
        return call([self.program, 10 if self.quick else 40], env)


def python_with_tests():
    """A Python 3 with symbols and with its own test suite, and the module that has its functions."""
    candidates = [Path("/usr/bin/python3.11"), Path("/usr/bin/python3")]
    candidates += sorted(Path.home().glob(".pyenv/versions/3.1*/bin/python3"), reverse=True)
    for path in sorted(candidates, key=lambda path: "3.11" not in str(path)):
        if path.exists() and subprocess.run([path, "-c", "import test.test_dict"], capture_output=True).returncode == 0:
            return path
    return None


class CPython(Program):
    """CPython's own tests of its core, its modules in C among them, and of SQLite in it."""

    name = "cpython"
    # Tests by their names.
    left_out = []
    children = False
    retries = True
    modules = ("libpython3", "lib-dynload", "libsqlite3")
    tests = ["test_dict", "test_generators", "test_coroutines", "test_thread", "test_contextlib", "test_exceptions", "test_sqlite3", "test_zlib"]

    def prepare(self):
        self.python = python_with_tests()
        return None if self.python else "no Python 3 with its test package is installed"

    def argv(self):
        ignored = [word for name in self.left_out for word in ("-i", name)]
        return [self.python, "-m", "test", "--timeout", str(LIMIT_S), *ignored, *self.tests]

    def run(self, env):
        done = call(self.argv(), env, cwd=self.scratch, beside=self.beside)
        # What is left out is times, seeds and loads.
        kept = [line for line in done.text.splitlines() if line.startswith(("Total test", "Result", "All ")) or " failed" in line and "load avg" not in line]
        return Outcome(done.status, "\n".join(kept), done.text[-2000:] + done.said)


class Processes(CPython):
    """CPython's tests of signals, forks, threads and child processes."""

    name = "processes"
    children = True
    hows = ["all", "random"]
    dos = ["returns", "mixed"]
    tests = ["test_fork1", "test_threadsignals", "test_signal", "test_wait3"]


class Threads(CPython):
    """CPython's tests of threads, of asyncio, and of programs that are started."""

    name = "threads"
    hows = ["all", "random"]
    dos = ["returns", "mixed"]
    tests = ["test_threading", "test_asyncio", "test_subprocess"]
    # It fails where something of the installation imports `threading` at each start.
    left_out = ["test_import_from_another_thread"]


SQL = """
PRAGMA journal_mode = {journal};
CREATE TABLE word(id INTEGER PRIMARY KEY, text TEXT UNIQUE, length INT, weight REAL, bytes BLOB);
CREATE INDEX word_length ON word(length, weight DESC);
CREATE TABLE log(at INTEGER, what TEXT);
CREATE TRIGGER longer AFTER UPDATE OF text ON word WHEN new.length > old.length BEGIN INSERT INTO log VALUES (new.id, old.text || '>' || new.text); END;
WITH RECURSIVE n(i) AS (VALUES(1) UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
INSERT INTO word SELECT i, printf('%x-%d', (i * 2654435761) % 1000003, i), i % 13, i / 7.0, zeroblob(i % 50) FROM n;
SELECT count(*), sum(length), round(total(weight), 3), max(text) FROM word;
BEGIN; UPDATE word SET text = text || 'x', length = length + 1 WHERE id % 3 = 0; DELETE FROM word WHERE id % 7 = 0; ROLLBACK;
BEGIN; UPDATE word SET text = text || 'y', length = length + 1 WHERE id % 5 = 0; SAVEPOINT s; DELETE FROM word WHERE id % 2 = 0; ROLLBACK TO s; COMMIT;
SELECT count(*), group_concat(what) FROM (SELECT what FROM log ORDER BY at LIMIT 20);
SELECT length, count(*), round(avg(weight) OVER (ORDER BY length), 2) FROM word GROUP BY length ORDER BY length;
SELECT a.id, b.text FROM word a JOIN word b ON b.id = a.id * 3 AND b.length = a.length % 13 ORDER BY a.id LIMIT 30;
WITH RECURSIVE fib(a, b) AS (VALUES(0, 1) UNION ALL SELECT b, a + b FROM fib LIMIT 60) SELECT max(b) FROM fib;
SELECT json_group_array(json_object('id', id, 'text', text)) FROM (SELECT * FROM word WHERE text LIKE '%a%b%' ORDER BY id LIMIT 10);
SELECT substr(hex(bytes), 1, 8), replace(upper(text), 'A', '_'), strftime('%Y-%m-%d', id * 86400, 'unixepoch'), abs(-id) FROM word LIMIT 25;
SELECT text FROM word WHERE text GLOB '*[0-4]' AND id IN (SELECT id FROM word WHERE weight BETWEEN 100 AND 200) ORDER BY text COLLATE NOCASE DESC LIMIT 12;
INSERT OR IGNORE INTO word(text) SELECT text FROM word LIMIT 100; SELECT changes();
EXPLAIN QUERY PLAN SELECT * FROM word WHERE length = 3 AND weight > 5;
ALTER TABLE log ADD COLUMN extra DEFAULT 7; CREATE VIEW seen AS SELECT *, extra * at AS product FROM log; SELECT sum(product) FROM seen;
SELECT no_such_function(1);
REINDEX; ANALYZE; VACUUM;
PRAGMA integrity_check; PRAGMA foreign_key_check; DROP TRIGGER longer; DROP TABLE log; DROP VIEW seen;
"""


class SQLite(Program):
    """The shell of SQLite with a script of everything that it has; the database is checked at the end."""

    name = "sqlite"
    modules = ("/sqlite3", "libsqlite3")
    repeats = 6

    def prepare(self):
        return None if shutil.which("sqlite3") else "sqlite3 is not installed"

    def run(self, env):
        script = ""
        for number in range(1 if self.quick else self.repeats):
            file = self.scratch / f"{number}.db"
            for old in self.scratch.glob(f"{number}.db*"):
                old.unlink()
            script += f".open {file}\n" + SQL.format(journal=["delete", "wal", "memory"][number % 3], rows=3000)
        return call([shutil.which("sqlite3"), "-batch"], env, stdin=script.encode())


def payload(bytes_wanted):
    """Text with repetitions and some noise: each level of a compressor finds something else to do."""
    random_bytes = random.Random(7)
    words = [bytes(random_bytes.randrange(97, 123) for _ in range(random_bytes.randrange(2, 12))) for _ in range(3000)]
    parts, size = [], 0
    while size < bytes_wanted:
        part = b" ".join(random_bytes.choices(words, k=200)) + random_bytes.randbytes(random_bytes.randrange(0, 64))
        parts.append(part)
        size += len(part)
    return b"".join(parts)[:bytes_wanted]


class Zstd(Program):
    """zstd: round trips at many levels, with threads, long distances, a trained dictionary, other formats, and files that are damaged."""

    name = "zstd"
    modules = ("/zstd", "liblzma", "liblz4", "libz.so")

    def prepare(self):
        if not shutil.which("zstd"):
            return "zstd is not installed"
        self.folder = self.scratch / "zstd-files"
        self.folder.mkdir(exist_ok=True)
        (self.folder / "text").write_bytes(payload(1 << 20))
        samples = self.folder / "samples"
        samples.mkdir(exist_ok=True)
        for number in range(200):
            (samples / str(number)).write_bytes(payload(3000 + number)[-2000:])
        return None

    def run(self, env):
        told, status = [], 0

        def zstd(*words):
            nonlocal status
            done = call(["zstd", "-q", "-f", *words], env, cwd=self.folder)
            told.append(f"{' '.join(map(str, words))}: {done.status}")
            status = min(status, done.status)
            return done

        def digest(name):
            told.append(f"{name} {hashlib.sha256((self.folder / name).read_bytes()).hexdigest()}")

        for words in (["-1"], ["-3"], ["-5", "--long=24"], ["-9"], ["-13"], ["-16"], ["-19"], ["--fast=4"], ["-3", "-T2"], ["-6", "-T2", "--check"],
                      ["-3", "--format=gzip"], ["-3", "--format=xz"], ["--format=lz4"], ["-4", "--adapt"]):
            zstd(*words, "text", "-o", "packed")
            if "--adapt" not in words and "-T2" not in words:
                digest("packed")
            zstd("-t", "packed")
            zstd("-d", "--long=24", "packed", "-o", "again")
            digest("again")
        zstd("--train", "-r", "samples", "-o", "dictionary", "--maxdict=4096", "--train-fastcover=k=200,d=8")
        zstd("-D", "dictionary", "samples/7", "-o", "packed")
        zstd("-d", "-D", "dictionary", "packed", "-o", "again")
        digest("again")
        zstd("-3", "text", "-o", "packed")
        broken = bytearray((self.folder / "packed").read_bytes())
        broken[len(broken) // 2] ^= 0xFF
        (self.folder / "packed").write_bytes(broken)
        zstd("-t", "packed")
        zstd("-b3", "-e4", "-i0", "text")
        return Outcome(status, "\n".join(told))


class Redis(Program):
    """redis-server: what a client asks, in order, with scripts, snapshots by a forked child, and a look at the files by its own checkers."""

    name = "redis"
    modules = ("/redis-", "libjemalloc", "liblzf")

    def prepare(self):
        if not shutil.which("redis-server"):
            return "redis-server is not installed"
        return None

    def run(self, env):
        folder = self.scratch / "redis-files"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        path = folder / "socket"
        server = subprocess.Popen(["redis-server", "--port", "0", "--unixsocket", path, "--dir", folder, "--appendonly", "yes", "--save", "",
                                   "--io-threads", "2", "--enable-debug-command", "yes"], env=env, stdin=subprocess.DEVNULL,
                                  stdout=open(folder / "out", "wb"), stderr=subprocess.STDOUT, start_new_session=True)
        told = []
        try:
            talk(path, server, told, 3000)
            bench = call(["redis-benchmark", "-s", path, "-n", "4000", "-c", "8", "-P", "4", "-q", "-t", "set,get,incr,lpush,zadd,mset"], None)
            told.append(f"benchmark {bench.status}")
            with connected(path) as client:
                told.append(client("FLUSHALL"))
                client.send("SHUTDOWN", "SAVE")
            server.wait(30)
        except (OSError, TimeoutError, ValueError, subprocess.TimeoutExpired) as error:
            told.append(f"{type(error).__name__}: {error}")
        finally:
            if server.poll() is None:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()
        for checker, file in (("redis-check-rdb", folder / "dump.rdb"), ("redis-check-aof", folder / "appendonlydir" / "appendonly.aof.manifest")):
            told.append(f"{checker} {call([checker, file], None).status}")
        return Outcome(server.returncode, "\n".join(told), (folder / "out").read_text(errors="replace")[-2000:])


class connected:
    """A client of the server at a socket, by the protocol's own words."""

    def __init__(self, path):
        self.path = str(path)

    def __enter__(self):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(self.path)
        self.file = self.socket.makefile("rb")
        return self

    def __exit__(self, *_):
        self.file.close()
        self.socket.close()

    def send(self, *words):
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))

    def __call__(self, *words):
        self.send(*words)
        return repr(self.reply())

    def reply(self):
        line = self.file.readline()
        if not line:
            raise ValueError("the server has hung up")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self.reply() for _ in range(int(rest))] if rest != b"-1" else None
        return (kind + rest).decode(errors="replace")


SCRIPT = "local sum = 0 for i = 1, tonumber(ARGV[1]) do sum = sum + i redis.call('HINCRBY', KEYS[1], i % 7, i) end return {sum, redis.call('HLEN', KEYS[1])}"


def settle(client):
    """Waits until no child of the server writes files; what it says of these."""
    for _ in range(300):
        client.send("INFO", "persistence")
        info = client.reply().decode()
        if not re.search(r"(rdb_bgsave_in_progress|aof_rewrite_in_progress|aof_rewrite_scheduled):1", info):
            break
        time.sleep(0.1)
    return info


def talk(path, server, told, rounds):
    deadline = time.monotonic() + 60
    while not path.exists():
        if time.monotonic() > deadline or server.poll() is not None:
            raise TimeoutError("the server does not listen")
        time.sleep(0.05)
    with connected(path) as client:
        answers = hashlib.sha256()
        numbers = random.Random(3)
        for number in range(rounds):
            key = f"key{numbers.randrange(200)}"
            kind = number % 12
            replies = [
                lambda: client("SET", "s" + key, "x" * numbers.randrange(300)) + client("STRLEN", "s" + key),
                lambda: client("RPUSH", "l" + key, number, number + 1) + client("LRANGE", "l" + key, 0, -1),
                lambda: client("ZADD", "z" + key, numbers.random(), f"m{number % 50}") + client("ZRANGE", "z" + key, 0, -1, "WITHSCORES"),
                lambda: client("HSET", "h" + key, f"f{number % 30}", number) + client("HLEN", "h" + key),
                lambda: client("SADD", "e" + key, number % 40) + client("SCARD", "e" + key),
                lambda: client("EVAL", SCRIPT, 1, "v" + key, numbers.randrange(100)),
                lambda: client("SETBIT", "b" + key, numbers.randrange(5000), 1) + client("BITCOUNT", "b" + key),
                lambda: client("PFADD", "p" + key, number) + client("PFCOUNT", "p" + key),
                lambda: client("XADD", "x" + key, f"{number + 1}-0", "n", number) + client("XLEN", "x" + key),
                lambda: client("GEOADD", "g" + key, 13.0 + number % 5, 38.0, f"p{number}") + client("GEOHASH", "g" + key, f"p{number}"),
                lambda: client("INCRBY", "e" + key, 1) + client("NO", "SUCH", "COMMAND"),
                lambda: client("MULTI") + client("INCR", "i" + key) + client("GET", "i" + key) + client("EXEC") + client("SORT", "l" + key, "DESC"),
            ][kind]()
            answers.update(replies.encode())
            if number in (rounds // 3, 2 * rounds // 3):
                # The answer tells whether the snapshot's child has ended.
                settle(client)
                told.append(client("BGSAVE" if number == rounds // 3 else "BGREWRITEAOF"))
        told += [answers.hexdigest(), client("DBSIZE"), client("DEBUG", "DIGEST")]
        told.append(client("DEBUG", "RELOAD"))
        told.append(client("DEBUG", "DIGEST"))
        info = settle(client)
        told += re.findall(r"(?:rdb_last_bgsave_status|aof_last_bgrewrite_status):\w+", info)


def every(scratch, quick):
    kinds = [Throws, Panics] if quick else [Throws, Panics, CPython, Processes, Threads, SQLite, Zstd, Redis]
    return [kind(scratch, quick) for kind in kinds]
