"""The engines: each answers the queries of deploy/queries over one dataset."""

import json
import os
import pathlib
import platform
import shutil
import socket
import subprocess
import sys
import time
import zipfile

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parent.parent
DEPLOY = ROOT / "deploy"
PYTHON = ["pyspark==4.3.*", "chdb==4.*", "duckdb==2.*", "pyarrow==26.*", "polars==2.*", "datafusion==55.*"]
PATIENCE_S = 120


class Failed(Exception):
    """An engine did not answer."""


def run(command, **more):
    """A program's stdout."""
    ran = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if ran.returncode != 0:
        raise Failed(f"{pathlib.Path(command[0]).name} ended with {ran.returncode}: {ran.stderr.strip()[-2000:]}")
    return ran.stdout


def install(folder: pathlib.Path) -> pathlib.Path:
    """A virtual environment with the engines, and a Java for Spark; its Python."""
    python = folder / "bin/python"
    mark = folder / ".installed"
    if not mark.exists():
        run([sys.executable, "-m", "venv", folder])
        run([python, "-m", "pip", "install", "--quiet", *PYTHON])
        mark.touch()
    if shutil.which("java") is None:
        run(["apt-get", "update"])
        run(["apt-get", "install", "--yes", "--no-install-recommends", "openjdk-17-jre-headless"])
    return python


def answers_of_lines(text):
    """Answers by query, of lines of JSON."""
    found = {}
    for line in text.splitlines():
        answer = json.loads(line)
        found[answer["query"]] = (answer["columns"], answer["rows"])
    return found


class KymoSql:
    """`kymo sql`, by its program."""

    def __init__(self, program):
        self.program = program

    def ask(self, dataset, queries):
        found = {}
        for query in queries:
            answer = json.loads(run([self.program, "--json", "--file", query, dataset]))
            columns = [column["name"] for column in answer["columns"]]
            found[query.stem] = (columns, [[row[name] for name in columns] for row in answer["rows"]])
        return found


class Script:
    """An engine in a process of Python, which a script asks. `is_exact`: its fractions are those of the others to the last
    digit."""

    def __init__(self, *command, is_exact=True):
        self.command = command
        self.is_exact = is_exact

    def ask(self, dataset, queries):
        return answers_of_lines(run([*self.command, dataset, *queries]))


def scripts(python):
    """The engines that are asked in one process, by name."""
    return {
        "duckdb": Script(python, HERE / "ask_duckdb.py", DEPLOY),
        "clickhouse": Script(python, HERE / "ask_chdb.py", DEPLOY),
        "datafusion": Script(python, DEPLOY / "datafusion/queries.py"),
        "polars": Script(python, DEPLOY / "polars/queries.py", is_exact=False),
    }


def free_port():
    """A port of loopback that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def snappy_options(home, folder: pathlib.Path):
    """Options of Java by which it loads Snappy's library for glibc. Where musl is installed, too, that of musl is taken
    unless another one is named, and does not load."""
    name = f"org/xerial/snappy/native/Linux/{platform.machine()}/libsnappyjava.so"
    [jar] = pathlib.Path(home).glob("jars/snappy-java-*.jar")
    with zipfile.ZipFile(jar) as archive:
        path = pathlib.Path(archive.extract(name, folder))
    return f"-Dorg.xerial.snappy.lib.path={path.parent} -Dorg.xerial.snappy.lib.name={path.name}"


class Spark:
    """A standalone cluster of Spark: a master and two workers, each a process of its own on loopback."""

    is_exact = True

    def __init__(self, python, folder: pathlib.Path):
        self.python = python
        self.folder = folder
        home = run([python, "-c", "import pyspark; print(pyspark.__path__[0])"]).strip()
        self.environment = os.environ | {
            "SPARK_HOME": home, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": str(python), "SPARK_WORKER_DIR": str(folder),
        }
        self.java = [f"{home}/bin/spark-class"]
        self.options = snappy_options(home, folder)
        self.master = f"spark://127.0.0.1:{free_port()}"
        self.processes = []

    def __enter__(self):
        package = "org.apache.spark.deploy"
        port = self.master.rsplit(":", 1)[1]
        self.start("master", f"{package}.master.Master", "--host", "127.0.0.1", "--port", port, "--webui-port", free_port())
        for number in (1, 2):
            work = self.folder / f"worker-{number}"
            self.start(
                f"worker-{number}", f"{package}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "2g",
                "--webui-port", free_port(), "--work-dir", work, self.master,
            )
        self.wait_for_workers()
        return self

    def start(self, name, *words):
        log = open(self.folder / f"{name}.log", "wb")
        command = [*self.java, *map(str, words)]
        self.processes.append(subprocess.Popen(command, env=self.environment, stdout=log, stderr=log))

    def wait_for_workers(self):
        """Until both have found the master."""
        logs = [self.folder / f"worker-{number}.log" for number in (1, 2)]
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            if all("Successfully registered with master" in log.read_text() for log in logs):
                return
            if any(process.poll() is not None for process in self.processes):
                break
            time.sleep(0.2)
        raise Failed(f"the cluster of Spark did not start; its logs are in {self.folder}")

    def ask(self, dataset, queries):
        command = [
            self.python, DEPLOY / "spark/queries.py", "--master", self.master, "--conf", "spark.sql.shuffle.partitions=4",
            "--conf", "spark.executor.memory=1500m", "--conf", f"spark.executor.extraJavaOptions={self.options}", dataset, *queries,
        ]
        found = answers_of_lines(run(command, env=self.environment))
        for number in (1, 2):
            if not any((self.folder / f"worker-{number}").glob("app-*")):
                raise Failed(f"worker {number} of Spark had nothing to do")
        return found

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait()
