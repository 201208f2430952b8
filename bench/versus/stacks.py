"""How many call chains reach the function that their thread begins in, and what a sample takes.

Programs of Debian that nobody here wrote, each recorded by `kymo record` without an option, by `perf record -g` and by
`perf record --call-graph dwarf`, all at 999 samples per second. `perf script` reads these recordings, so that each is judged in
the same way: by the name of the outermost user frame of every sample that has user frames. A stripped program's `_start` has no
name: there the frame inside of it is `__libc_start_main`. A program that is not installed is left out, and named.

`--tools` takes `kymo -z` and `samply`, too. samply wants /proc/sys/kernel/perf_event_paranoid at 1 or less, of root also. Its
profile has the names beside it, and is compressed.
"""

import collections
import gzip
import json
import os
import pathlib
import re
import shutil
import subprocess

from versus.runner import ROOT, Refusal, environment, measure, output, table

HELP = "the share of whole call chains on real programs"

WORK = ROOT / "bench" / "workloads" / "stacks"

EVENT = ("-F", "999", "-e", "cpu-clock")
PARANOID = pathlib.Path("/proc/sys/kernel/perf_event_paranoid")

# Functions that threads begin in. samply leaves out an underscore.
STARTS = re.compile(r"(_?start|clone3?|__clone3?|start_thread|_dl_start_user|_dl_start"
                    r"|runtime\.(goexit|rt0_go|clone|mstart|morestack|mcall|systemstack|sigtramp)(\.abi0)?)(@@.*)?$")


def programs(bench):
    """Name -> (what must be installed, command, name of the threads that count or None)."""
    rust = bench.scratch / "large.rs"
    rust.write_text(rust_source())
    large = bench.scratch / "large.c"
    large.write_text(c_source())
    go = bench.scratch / "go-program"
    if shutil.which("go"):
        shutil.copy(WORK / "work.go", bench.scratch / "work.go")
        subprocess.run(["go", "build", "-o", go, bench.scratch / "work.go"], check=True, env=environment(),
                       cwd=bench.scratch)
    own = bench.scratch / "rust-program"
    if shutil.which("rustc"):
        output(["rustc", "-O", "--edition", "2021", "-o", own, ROOT / "fixtures" / "programs" / "hot.rs"])
    folder = bench.scratch / "server"
    folder.mkdir(exist_ok=True)
    for above in (bench.scratch, folder):
        above.chmod(0o755)
    return {
        "python": ("/usr/bin/python3", ["/usr/bin/python3", WORK / "work.py"], None),
        "node": ("/usr/bin/node", ["/usr/bin/node", WORK / "work.js"], None),
        "ruby": ("ruby", ["ruby", WORK / "work.rb"], None),
        "perl": ("perl", ["perl", WORK / "work.pl"], None),
        "go": ("go", [go], None),
        "rust": ("rustc", [own, "2000"], None),
        "gcc": ("gcc", ["gcc", "-O2", "-c", large, "-o", bench.scratch / "large.o"], None),
        "rustc": ("/usr/bin/rustc", ["/usr/bin/rustc", "-O", "--crate-type", "lib", "--emit", "obj", "-o",
                                     bench.scratch / "large-rust.o", rust], None),
        "convert": ("/usr/bin/convert", ["/usr/bin/convert", "-size", "900x900", "plasma:fractal", "-blur", "0x6",
                                         "-resize", "70%", bench.scratch / "picture.png"], None),
        "ffmpeg": ("ffmpeg", ["ffmpeg", "-y", "-loglevel", "error", "-f", "lavfi", "-i", "testsrc2=size=640x360:rate=30",
                              "-t", "12", "-c:v", "libx264", "-f", "null", "-"], None),
        "git": ("git", ["git", "-C", ROOT, "log", "-p", "--stat", "-n", "200"], None),
        "xz": ("xz", ["xz", "-k", "-c", "-T1", "-6", "/usr/bin/perl"], None),
        "postgres": ("/usr/lib/postgresql", ["sh", WORK / "postgres.sh", folder], "postgres"),
        "nginx": ("nginx", ["sh", WORK / "nginx.sh", folder], "nginx"),
    }


def add_arguments(parser):
    parser.add_argument("--only", help="which programs, with commas (default: all)")
    parser.add_argument("--tools", default="kymo,perf -g,perf dwarf", help="which recorders (default: all)")


def run(bench, args):
    known = programs(bench)
    names = args.only.split(",") if args.only else list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise Refusal(f"no such program: {', '.join(unknown)}; there are {', '.join(known)}")
    record = {
        "kymo": [bench.kymo, "record", *EVENT],
        "kymo -z": [bench.kymo, "record", "-z", *EVENT],
        "perf -g": [bench.perf, "record", "-g", *EVENT],
        "perf dwarf": [bench.perf, "record", "--call-graph", "dwarf", *EVENT],
        "samply": ["samply", "record", "--save-only", "--unstable-presymbolicate", "-r", "999"],
    }
    tools = args.tools.split(",")
    unknown = [tool for tool in tools if tool not in record]
    if unknown:
        raise Refusal(f"no such recorder: {', '.join(unknown)}; there are {', '.join(record)}")
    if "samply" in tools and int(PARANOID.read_text()) > 1:
        raise Refusal(f"samply records only where {PARANOID} says 1 or less")
    found, rows, all_of = {}, [], {tool: collections.Counter() for tool in tools}
    for name in names:
        needed, command, threads = known[name]
        if not shutil.which(needed) and not os.path.exists(needed):
            bench.say(f"{name} is left out: {needed} is not installed")
            continue
        found[name] = {}
        for tool in tools:
            bench.say(f"{name}: {tool}")
            path = bench.scratch / ("recording.json.gz" if tool == "samply" else "recording")
            path.unlink(missing_ok=True)
            measure([*record[tool], "-o", path, "--", *command], cwd=bench.scratch)
            samples = samples_of_samply(path) if tool == "samply" else samples_of_perf(bench, path)
            found[name][tool] = {**judged(samples, threads), "bytes": path.stat().st_size}
            all_of[tool].update(found[name][tool])
        rows.append([name, *(cell for tool in tools for cell in cells(found[name][tool]))])
    rows.append(["together", *(cell for tool in tools for cell in cells(all_of[tool]))])
    table(["program", *(head for tool in tools for head in (tool, "bytes"))], rows)
    return {"programs": found, "together": all_of}


def cells(counts):
    if not counts["samples"]:
        return ["-", "-"]
    return [f"{100 * counts['whole'] / counts['samples']:.2f} %", f"{counts['bytes'] / counts['all']:.0f}"]


def judged(samples, threads):
    """Counts of all samples, of those with user frames, and of whole chains among these."""
    counts = {"all": 0, "samples": 0, "whole": 0}
    for comm, frames in samples:
        counts["all"] += 1
        if not frames or threads and comm != threads:
            continue
        counts["samples"] += 1
        inside = frames[-2] if len(frames) > 1 else ""
        counts["whole"] += bool(STARTS.match(frames[-1]) or inside.startswith(("__libc_start_main", "_libc_start_main")))
    return counts


def samples_of_perf(bench, path):
    """The thread's name and the names of the user frames, innermost first, of each sample."""
    said = output([bench.perf, "script", "-i", path, "--no-inline", "-F", "comm,ip,sym,dso"])
    for sample in said.split("\n\n"):
        lines = sample.strip("\n").splitlines()
        if lines:
            frames = [line.strip() for line in lines[1:] if "([kernel" not in line and "(" in line]
            yield lines[0].strip(), [frame.split(" ", 1)[-1].rsplit(" (", 1)[0] for frame in frames]


def samples_of_samply(path):
    """The same of samply's profile, with the names of the file beside it."""
    with gzip.open(path) as file:
        profile = json.load(file)
    names = json.loads(path.with_name(path.name.replace(".json.gz", ".json.syms.json")).read_text())
    known = {}
    for library in names["data"]:
        symbols = [names["string_table"][symbol["symbol"]] for symbol in library["symbol_table"]]
        known[library["code_id"]] = {address: symbols[at] for address, at in library["known_addresses"]}
    for thread in profile["threads"]:
        strings, frames, functions = thread["stringArray"], thread["frameTable"], thread["funcTable"]
        stacks, resources = thread["stackTable"], thread["resourceTable"]

        def user_name(frame):
            """None for a frame of the kernel."""
            function = frames["func"][frame]
            name, resource = strings[functions["name"][function]], functions["resource"][function]
            library = resources["lib"][resource] if resource not in (None, -1) else None
            if library is None:
                return None if name.startswith("0xffffffff") else name
            library = profile["libs"][library]
            if library["name"].startswith("[kernel"):
                return None
            return known.get(library["codeId"], {}).get(frames["address"][frame], name)

        for stack in thread["samples"]["stack"]:
            chain = []
            while stack is not None:
                chain.append(user_name(stacks["frame"][stack]))
                stack = stacks["prefix"][stack]
            yield thread["name"], [name for name in chain if name]


def c_source():
    """A translation unit of 1,500 functions that call each other."""
    functions = ["int f0(int *a, int n) { return a[0] + n; }"]
    for i in range(1, 1500):
        functions.append(
            f"int f{i}(int *a, int n) {{ int s = {i}; for (int i = 0; i < n; i++) {{ if (a[i] % {i % 7 + 2}) s += a[i] * {i}; "
            f"else s ^= a[n - i - 1] << {i % 13}; switch (s % {i % 5 + 4}) {{ case 0: s += f{i - 1}(a, n / 2); break; "
            f"case 1: s *= 3; break; case 2: s -= a[0]; }} }} return s; }}")
    return "\n".join(functions) + "\n"


def rust_source():
    """A library of 250 types with derived traits and generic functions over them."""
    items = ["use std::collections::*;"]
    for i in range(250):
        inner = "u8" if i % 40 == 0 else f"S{i - 1}"
        items.append(
            "#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)] "
            f"pub struct S{i} {{ a: Vec<Option<String>>, b: BTreeMap<u{(8, 16, 32, 64)[i % 4]}, Vec<String>>, c: Option<Box<{inner}>> }}\n"
            f"pub fn f{i}(x: &[S{i}]) -> HashMap<String, Vec<S{i}>> {{ let mut m = HashMap::new(); "
            f"for s in x.iter().filter(|s| s.a.len() > {i}).map(|s| s.clone()) {{ "
            "m.entry(format!(\"{s:?}\")).or_insert_with(Vec::new).push(s); } m }")
    return "\n".join(items) + "\n"
