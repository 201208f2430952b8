#!/usr/bin/env python3
"""The network is away for minutes, with a real OpenTelemetry Collector and an object store behind it.

    bench/away.py --collector otelcol --minutes 10 [--daemon .../kymo-daemon] [--kymo-sql .../kymo-sql]

Needs root. The collector (with the `otlp` receiver and the `file` exporter) and a store that speaks S3 run in a network
namespace. The link to it goes down for so many minutes. Two daemons profile meanwhile: one whose spool holds all of that,
which pushes to the collector and writes to the store, and one with a small spool, which pushes to the collector. At the
end, each sample of a daemon has arrived once, or is counted as dropped. The text goes into bench/runs.
"""
import argparse
import collections
import datetime
import http.server
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAMESPACE, NEAR, FAR = "kymo-away", "10.77.31.1", "10.77.31.2"
INTERVAL_S = 10
DAEMONS = {
    "all": {"port": 4318, "health": "127.0.0.1:9481", "spool": "256M"},
    "small": {"port": 4320, "health": "127.0.0.1:9482", "spool": "64K"},
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collector", required=True, help="an OpenTelemetry Collector")
    parser.add_argument("--minutes", type=float, default=10, help="how long the network is away")
    parser.add_argument("--daemon", default=str(ROOT / "target/fleet/release/kymo-daemon"))
    parser.add_argument("--kymo-sql", default=str(ROOT / "target/fleet/release/kymo-sql"))
    parser.add_argument("--note", default="", help="a sentence about the machine, for the text")
    parser.add_argument("--store", metavar="DIR", help=argparse.SUPPRESS)
    return parser.parse_args()


class Store(http.server.BaseHTTPRequestHandler):
    """Takes PUTs of S3, as files below the current folder."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self):
        path = pathlib.Path(urllib.parse.unquote(self.path.partition("?")[0]).lstrip("/"))
        body = self.rfile.read(int(self.headers["Content-Length"]))
        path.parent.mkdir(parents=True, exist_ok=True)
        again = path.exists()
        if again and path.read_bytes() != body:
            print(f"{path} was written with other bytes", flush=True)
        path.write_bytes(body)
        self.send_response(200)
        self.send_header("ETag", '"1"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def ip(*words, check=True):
    subprocess.run(["ip", *words], check=check, stderr=None if check else subprocess.DEVNULL)


class Network:
    """A link to a namespace."""

    def __enter__(self):
        self.__exit__()
        ip("netns", "add", NAMESPACE)
        ip("link", "add", "kymo-near", "type", "veth", "peer", "name", "kymo-far")
        ip("link", "set", "kymo-far", "netns", NAMESPACE)
        ip("addr", "add", f"{NEAR}/30", "dev", "kymo-near")
        ip("-n", NAMESPACE, "addr", "add", f"{FAR}/30", "dev", "kymo-far")
        ip("-n", NAMESPACE, "link", "set", "lo", "up")
        ip("link", "set", "kymo-near", "up")
        self.far("up")
        return self

    def far(self, state):
        ip("-n", NAMESPACE, "link", "set", "kymo-far", state)

    def __exit__(self, *_):
        ip("link", "del", "kymo-near", check=False)
        ip("netns", "del", NAMESPACE, check=False)


def start_far(options, scratch, log):
    """The collector and the store, behind the link."""
    config = {"receivers": {}, "exporters": {}, "service": {"pipelines": {}, "telemetry": {"metrics": {"level": "none"}}}}
    for name, daemon in DAEMONS.items():
        protocol = {"http": {"endpoint": f"{FAR}:{daemon['port']}"}}
        config["receivers"][f"otlp/{name}"] = {"protocols": protocol}
        config["exporters"][f"file/{name}"] = {"path": str(scratch / f"{name}.json")}
        pipeline = {"receivers": [f"otlp/{name}"], "exporters": [f"file/{name}"]}
        config["service"]["pipelines"][f"profiles/{name}"] = pipeline
    (scratch / "collector.yaml").write_text(json.dumps(config))
    inside = ["ip", "netns", "exec", NAMESPACE]
    collector = [options.collector, "--config", f"file:{scratch}/collector.yaml", "--feature-gates=service.profilesSupport"]
    store = [sys.executable, __file__, "--collector", "-", "--store", str(scratch / "bucket")]
    return [subprocess.Popen(inside + command, stdout=log, stderr=log) for command in (collector, store)]


def start_daemon(options, scratch, name, log):
    daemon = DAEMONS[name]
    text = f"""interval_s = {INTERVAL_S}
max_spool = "{daemon['spool']}"
state = "{scratch}/state-{name}"
health = "{daemon['health']}"
[otlp]
endpoint = "http://{FAR}:{daemon['port']}"
"""
    if name == "all":
        text += f"""[dataset]
url = "s3://bucket/profiles"
timeout_s = 20
[dataset.options]
aws_endpoint = "http://{FAR}:9000"
aws_allow_http = "true"
aws_region = "x"
aws_access_key_id = "a"
aws_secret_access_key = "b"
"""
    path = scratch / f"{name}.toml"
    path.write_text(text)
    return subprocess.Popen([options.daemon, "--config", path], stdout=log, stderr=log)


def health(name):
    with urllib.request.urlopen(f"http://{DAEMONS[name]['health']}/", timeout=5) as answer:
        return json.load(answer)


def arrived_at_collector(path):
    """Samples, the first moments of the batches in the order of their arrival, and how many came twice."""
    samples, moments = 0, []
    for line in path.read_text().splitlines() if path.exists() else []:
        first = None
        for resource in json.loads(line).get("resourceProfiles", []):
            for profile in (profile for scope in resource["scopeProfiles"] for profile in scope["profiles"]):
                for sample in profile.get("samples", profile.get("sample", [])):
                    samples += len(sample["values"])
                    stamps = [int(stamp) for stamp in sample["timestampsUnixNano"]]
                    first = min([first, *stamps]) if first else min(stamps)
        if first:
            moments.append(first)
    twice = sum(count - 1 for count in collections.Counter(moments).values())
    return samples, moments, twice


def arrived_at_store(options, scratch):
    query = "SELECT SUM(samples) AS samples FROM samples"
    command = [options.kymo_sql, "--json", query, str(scratch / "bucket/bucket/profiles")]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(ran.stdout)["rows"][0]["samples"]


def at_rest(name, until):
    """The counters when nothing waits, and nothing has changed while the collector wrote its file."""
    while time.monotonic() < until:
        before = health(name)
        if before["spool_batches"] == 0 and before["samples"] > 0:
            time.sleep(3)
            if health(name) == before:
                return before
        time.sleep(0.5)
    sys.exit(f"the spool of {name} is not empty after 15 minutes: {health(name)}")


def run(options, scratch, say):
    log = open(scratch / "log", "wb")
    with Network() as network:
        running = start_far(options, scratch, log)
        try:
            time.sleep(5)
            running += [start_daemon(options, scratch, name, log) for name in DAEMONS]
            time.sleep(60)
            for name in DAEMONS:
                before = health(name)
                say(f"{name:<6} after 1 min: {before['samples']} samples in {before['intervals']} intervals, "
                    f"{before['sent_batches']} batches sent, {before['spool_batches']} wait")
            network.far("down")
            say(f"the link is down for {options.minutes:g} min")
            time.sleep(options.minutes * 60)
            for name in DAEMONS:
                away = health(name)
                say(f"{name:<6} then: {away['samples']} samples in {away['intervals']} intervals, "
                    f"{away['spool_batches']} batches wait with {away['spool_bytes']} bytes, "
                    f"{away['dropped']['batches']} dropped; {(away['last_error'] or {}).get('text')}")
            network.far("up")
            back = time.monotonic()
            say("the link is up")
            right = True
            for name in DAEMONS:
                rest = at_rest(name, back + 900)
                say(f"{name:<6} nothing waits any more after {time.monotonic() - back:.0f} s")
                samples, moments, twice = arrived_at_collector(scratch / f"{name}.json")
                counts = {"collector": (samples, rest["dropped"]["samples"])}
                if name == "all":
                    counts["store"] = (arrived_at_store(options, scratch), 0)
                for place, (samples, dropped) in counts.items():
                    fits = samples + dropped == rest["samples"]
                    right &= fits
                    say(f"{name:<6} {place}: {samples} samples arrived, {dropped} are counted as dropped, "
                        f"{rest['samples']} were sampled: {'all are accounted for' if fits else 'NOT THE SAME'}")
                right &= moments == sorted(moments) and twice == 0
                say(f"{name:<6} collector: {len(moments)} batches, {'in order' if moments == sorted(moments) else 'NOT IN ORDER'}, "
                    f"{twice} came twice")
            return right
        finally:
            for process in reversed(running):
                process.send_signal(signal.SIGTERM)
            for process in running:
                process.wait(timeout=30)


def main():
    options = arguments()
    if options.store:
        os.makedirs(options.store, exist_ok=True)
        os.chdir(options.store)
        http.server.ThreadingHTTPServer((FAR, 9000), Store).serve_forever()
    # What it starts must not outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    lines = []

    def say(line):
        lines.append(f"{datetime.datetime.now():%H:%M:%S} {line}")
        print(lines[-1], flush=True)

    say(f"bench/away.py --minutes {options.minutes:g}; Linux {os.uname().release}; {options.note}")
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="kymo-away-"))
    right = run(options, scratch, say)
    if not right:
        sys.exit(f"not all is accounted for; see {scratch}")
    shutil.rmtree(scratch)
    day, number = datetime.date.today().isoformat(), 1
    while (path := ROOT / f"bench/runs/{day}-away{'' if number == 1 else f'-{number}'}.txt").exists():
        number += 1
    path.write_text("\n".join(lines) + "\n")
    print(f"written to {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
