"""How much generated code has names, and how many call chains from it are whole.

Java (a program with streams, lambdas, exceptions and garbage in three threads, with two collectors, and javac on a
large file) and node (JSON, regular expressions, closures, promises), each recorded by `kymo record` at 999 samples per
second. `kymo script` reads the recordings. A sample is in generated code if its innermost user frame is; it is named
unless that frame is `[unknown]`. A chain is whole if it ends in the C library, the dynamic linker or the program's
`_start`: a chain that broke off ends in generated code, in the machine's library or in node's own functions.
"""

import collections
import pathlib
import re
import shutil

from versus.runner import ROOT, Refusal, measure, output, table

HELP = "the share of generated code that has names"

WORK = ROOT / "bench" / "workloads" / "runtimes"
FRAME = re.compile(r"\s*[0-9a-f]+ (.*) \((.*)\)$")
GENERATED = re.compile(r"/perf-\d+\.map$|^\[JIT\]|^//anon$|^\[anon|/jitted-\d+-\d+\.so$")
OUTERMOST = re.compile(r"/(libc|ld-linux[^/]*)\.so\.\d+$")


def add_arguments(parser):
    parser.add_argument("--seconds", type=int, default=10, help="how long the programs run (default: 10)")
    parser.add_argument("--only", help="which programs, with commas (default: all)")
    parser.add_argument("--java-root", action="append", default=[], metavar="DIR", help="a folder with an unpacked "
                        "release of Debian and its JDK, run by chroot; /proc must be mounted in it (may be repeated)")
    parser.add_argument("--node", action="append", default=[], metavar="FILE", help="another node (may be repeated)")


def run(bench, args):
    commands = programs(bench, args)
    names = args.only.split(",") if args.only else list(commands)
    unknown = [name for name in names if name not in commands]
    if unknown:
        raise Refusal(f"no such program: {', '.join(unknown)}; there are {', '.join(commands)}")
    found, together = {}, collections.Counter()
    for name in names:
        bench.say(name)
        path = bench.scratch / "recording"
        path.unlink(missing_ok=True)
        measure([bench.kymo, "record", "-F", "999", "-e", "cpu-clock", "-o", path, "--", *commands[name]],
                cwd=bench.scratch)
        counts = judged(bench, path)
        found[name] = {"command": [str(word) for word in commands[name]], **counts}
        together.update(counts)
    rows = [[name, *cells(counts)] for name, counts in [*found.items(), ("together", together)]]
    table(["program", "samples", "generated", "named", "whole of generated", "whole of all"], rows)
    return {"programs": found, "together": together}


def programs(bench, args):
    """Name -> command."""
    milliseconds = str(args.seconds * 1000)
    commands = {}
    if shutil.which("javac"):
        classes = bench.scratch / "classes"
        output(["javac", "-d", classes, "--release", "17", WORK / "Mixed.java"])
        (bench.scratch / "Large.java").write_text(java_source())
        for prefix, home, folder, source in machines(bench, args, classes):
            java = [*prefix, f"{home}/bin/java"]
            version = output([*java, "--version"]).split()[1]
            commands[f"java {version}"] = [*java, "-cp", folder, "Mixed", milliseconds]
            commands[f"java {version} serial"] = [*java, "-XX:+UseSerialGC", "-cp", folder, "Mixed", milliseconds]
            commands[f"javac {version}"] = [*prefix, f"{home}/bin/javac", "-d", f"{folder}/large", source]
    else:
        bench.say("Java is left out: javac is not installed; on Debian: apt-get install default-jdk-headless")
    for node in [*filter(None, [shutil.which("node")]), *args.node]:
        version = output([node, "--version"]).strip()
        script = [WORK / "mixed.js", milliseconds]
        commands[f"node {version} basic"] = [node, "--perf-basic-prof", *script]
        commands[f"node {version} jitdump"] = [node, "--perf-prof", *script]
        commands[f"node {version} basic, interpreted"] = [
            node, "--perf-basic-prof", "--interpreted-frames-native-stack", *script]
    return commands


def machines(bench, args, classes):
    """Of each JDK: how its commands begin, its folder, the classes and the large source, as it sees them."""
    home = pathlib.Path(shutil.which("javac")).resolve().parents[1]
    yield [], home, classes, bench.scratch / "Large.java"
    for root in map(pathlib.Path, args.java_root):
        homes = [found.parents[1] for found in root.glob("usr/lib/jvm/*/bin/javac") if not found.parents[1].is_symlink()]
        if not homes or not (root / "proc" / "self").exists():
            raise Refusal(f"{root} has no JDK, or no /proc: mount -t proc proc {root}/proc")
        inside = root / "tmp" / "kymo-runtimes"
        shutil.rmtree(inside, ignore_errors=True)
        shutil.copytree(classes, inside)
        shutil.copy(bench.scratch / "Large.java", inside)
        seen = pathlib.Path("/tmp/kymo-runtimes")
        yield ["chroot", root], f"/{homes[0].relative_to(root)}", seen, seen / "Large.java"


def judged(bench, path):
    """Counts of samples with user frames, of those in generated code, and of named and whole ones among these."""
    counts = dict.fromkeys(("samples", "whole", "generated", "named", "generated_whole"), 0)
    said = output([bench.kymo, "script", "-i", path, "-F", "comm,ip,sym,dso"])
    for sample in said.split("\n\n"):
        frames = [match.groups() for match in map(FRAME.match, sample.splitlines()) if match]
        frames = [(name, module) for name, module in frames if not module.startswith("[kernel")]
        if not frames:
            continue
        name, module = frames[0]
        is_generated = bool(GENERATED.search(module))
        is_whole = bool(OUTERMOST.search(frames[-1][1])) or frames[-1][0] == "_start"
        counts["samples"] += 1
        counts["whole"] += is_whole
        counts["generated"] += is_generated
        counts["named"] += is_generated and name != "[unknown]"
        counts["generated_whole"] += is_generated and is_whole
    return counts


def cells(counts):
    share = lambda part, all_of: f"{100 * counts[part] / counts[all_of]:.2f} %" if counts[all_of] else "-"
    return [counts["samples"], counts["generated"], share("named", "generated"), share("generated_whole", "generated"),
            share("whole", "samples")]


def java_source():
    """A file of 400 classes with generics, lambdas and switches, which javac takes some seconds for."""
    classes = ["import java.util.*; import java.util.function.*; import java.util.stream.*;"]
    for i in range(400):
        methods = "".join(
            f"List<Map<String, T>> m{k}(Collection<? extends T> all, Function<T, String> f) {{ return all.stream()"
            f".filter(t -> f.apply(t).length() > {k}).map(t -> Map.of(f.apply(t), (T) t)).collect(Collectors.toList()); }} "
            f"int n{k}(Object o) {{ return switch (String.valueOf(o)) {{ case \"a{k}\" -> {k}; case \"b\" -> o.hashCode(); "
            "default -> { int s = 0; for (char c : o.toString().toCharArray()) s += c; yield s; } }; } "
            for k in range(8))
        classes.append(f"class C{i}<T extends Comparable<T>> {{ {methods} }}")
    return "\n".join(classes) + "\n"
