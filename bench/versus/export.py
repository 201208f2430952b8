"""A big recording written in each format of other tools, and as tables.

`kymo export` reads the recording with warm symbols and writes a file. Beside it stands `perf script`, whose text most
converters start from: it alone is not a profile of another tool yet. The recording is that of `report`, or one that exists.
"""

import shutil
from pathlib import Path

from versus.report import files_of, make_recording
from versus.runner import alternate, measure, megabytes, seconds, spread, table
from versus.view import samples_of

HELP = "a big recording written in each format of other tools"
FORMATS = ["pprof", "firefox", "speedscope", "perfetto", "otlp", "chrome", "callgrind", "folded", "parquet"]


def add_arguments(parser):
    parser.add_argument("--file", metavar="PATH", help="a recording that exists, instead of making the reference one")
    parser.add_argument("--samples", type=int, default=1_200_000, help="size of the recording to make (default: 1200000)")
    parser.add_argument("--keep", metavar="PATH", help="keep the recording that was made under this name")
    parser.add_argument("--formats", default=",".join(FORMATS), help="which formats (default: all)")
    parser.add_argument("--no-perf", action="store_true", help="leave perf out")


def run(bench, args):
    recording = Path(args.file).resolve() if args.file else make_recording(bench, args)
    rounds = args.rounds or 5
    facts = {"bytes": sum(f.stat().st_size for f in files_of(recording)), "samples": samples_of(bench, recording)}
    print(f"recording: {facts['bytes'] / 1e6:.0f} MB, {facts['samples']} samples\n")
    formats = args.formats.split(",")
    competitors = {form: writer(bench, recording, form) for form in formats}
    if not args.no_perf:
        competitors = {"perf script": lambda: script(bench, recording), **competitors}
    runs = alternate(competitors, rounds, say=bench.say)
    result, rows = {}, []
    for name, of in runs.items():
        file = bench.scratch / ("script.txt" if name == "perf script" else f"out.{name}")
        result[name] = {"wall_s": spread([r.wall_s for r in of]), "cpu_s": spread([r.user_s + r.sys_s for r in of]),
                        "peak_bytes": spread([r.peak_bytes for r in of]), "file_bytes": size(file)}
        took = result[name]
        rows.append([name, *(seconds(took["wall_s"][k]) for k in ("median", "min", "max")),
                     seconds(took["cpu_s"]["median"]), megabytes(took["peak_bytes"]["max"]), megabytes(took["file_bytes"])])
    table(["format", "median", "min", "max", "cpu", "peak memory", "file"], rows)
    return {"recording": facts, "rounds": rounds, "formats": result}


def size(path):
    """Of a file, or of all files of a dataset."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file()) if path.is_dir() else path.stat().st_size


def writer(bench, recording, form):
    """A function that writes the recording once. Names of functions are kept from the first time on."""
    variables = {"XDG_CACHE_HOME": str(bench.scratch / "symbols"), "KYMO_SYMBOL_CACHE": ""}
    out = bench.scratch / f"out.{form}"
    command = [bench.kymo, "export", "-q", "--to", form, "-o", out, recording]

    def write_once():
        (bench.scratch / "symbols").mkdir(exist_ok=True)
        # Files are replaced; a dataset grows.
        shutil.rmtree(out, ignore_errors=True)
        return measure(command, variables=variables)

    return write_once


def script(bench, recording):
    with open(bench.scratch / "script.txt", "wb") as text:
        return measure([bench.perf, "script", "-i", recording], stdout=text)
