"""The programs: how each runs, so that its path means another file, or none."""

import os
import pathlib
import subprocess

SOURCE = pathlib.Path(__file__).parent.parent.parent / "fixtures/programs/two.c"
WRONG = ["-DFIRST=travail", "-DSECOND=oeuf"]
LIBRARY = """
static volatile long sum;
__attribute__((noinline)) void FIRST(long n) { for (long i = 0; i < n; i++) sum += i; }
__attribute__((noinline)) void SECOND(long n) { for (long i = 0; i < n; i++) sum ^= i; }
void compute(long rounds) { for (long i = 0; i < rounds; i++) { FIRST(300000); SECOND(100000); } }
"""
CALLER = """
#include <stdio.h>
#include <stdlib.h>
void compute(long);
int main(int argc, char **argv) { puts("ready"); fflush(stdout); compute(argc > 1 ? atol(argv[1]) : 1L << 40); }
"""
MEMFD = (
    "import os, sys; fd = os.memfd_create('prog', 0); os.write(fd, open(sys.argv[1], 'rb').read());"
    "os.execv(f'/proc/self/fd/{fd}', ['prog'] + sys.argv[2:])"
)
# Rounds of a program that is recorded from its start to its end: about a second.
ROUNDS = "800"


class Programs:
    """Builds of the two programs: the one that runs, and the one that lies in its place for others."""

    def __init__(self, folder):
        self.folder = folder
        for kind, flags in {
            "static": ["-static"],
            "dynamic": [],
            "unidentified": ["-static", "-Wl,--build-id=none"],
        }.items():
            self.build(f"right-{kind}", [*flags, str(SOURCE)])
            self.build(f"wrong-{kind}", [*flags, *WRONG, str(SOURCE)])
        for name, text in {"library.c": LIBRARY, "caller.c": CALLER}.items():
            (folder / name).write_text(text)
        right = ["-DFIRST=work", "-DSECOND=even"]
        for side, names in {"right": right, "wrong": WRONG}.items():
            self.build(f"{side}-library", ["-shared", "-fPIC", *names, str(folder / "library.c")])
        os.makedirs(folder / "lib", exist_ok=True)
        self.copy("right-library", folder / "lib/libtwo.so")
        self.build("caller", [str(folder / "caller.c"), f"-L{folder}/lib", "-ltwo"])

    def build(self, name, flags):
        command = ["cc", "-O1", "-g", *flags, "-o", str(self.folder / name)]
        if "-L" in " ".join(flags):
            command = ["cc", "-O1", "-g", flags[0], "-o", str(self.folder / name), *flags[1:]]
        subprocess.run(command, check=True)

    def copy(self, name, to):
        to.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", str(self.folder / name), str(to)], check=True)


class Case:
    """A program. `command` runs it; `while_recorded` and `before` change its files, once it runs."""

    def __init__(self, command, comm="prog", while_recorded=None, before=None):
        self.command, self.comm = command, comm
        self.while_recorded, self.before = while_recorded, before
        # The build of which its time is spent.
        self.build = None


def in_namespace(script):
    return ["unshare", "-m", "sh", "-c", script + ' "$1"', "sh"]


def in_other_roots(folder, right):
    """Programs whose path is in another root or mount namespace, by name."""
    outside = folder / "m/prog"
    bind = f"mkdir -p {folder}/b; cp {right} {folder}/b/prog; mount --bind {folder}/b {folder}/m"
    tmpfs = f"mount -t tmpfs none {folder}/m; cp {right} {outside}"
    layers = f"{folder}/t/lower,upperdir={folder}/t/upper,workdir={folder}/t/work"
    overlay = (
        f"mkdir {folder}/t; mount -t tmpfs none {folder}/t; cd {folder}/t; mkdir lower upper work;"
        f" cp {right} lower/prog; mount -t overlay none -o lowerdir={layers} {folder}/m"
    )
    return {
        "tmpfs": Case(in_namespace(f"{tmpfs}; exec {outside}")),
        "bind": Case(in_namespace(f"{bind}; exec {outside}")),
        "overlay": Case(in_namespace(f"{overlay}; exec {outside}")),
        "unmounted": Case(
            in_namespace(f"{bind}; {outside} $1 & until grep -q m/prog /proc/$!/maps; do :; done;"
                         f" umount -l {folder}/m; wait; exit")
        ),
    }


def in_other_files(programs, folder, kind):
    """Programs whose file is moved, deleted or replaced, by name."""
    for name in ["deleted", "replaced", "before", "recreated", "a/moved"]:
        programs.copy(f"right-{kind}", folder / name)
    programs.copy(f"wrong-{kind}", folder / "new")

    def recreate():
        os.unlink(folder / "recreated")
        programs.copy(f"wrong-{kind}", folder / "recreated")

    def replace(name):
        return lambda: os.replace(folder / "new", folder / name)

    def move():
        os.replace(folder / "a", folder / "c")
        programs.copy(f"wrong-{kind}", folder / "a/moved")

    right = str(programs.folder / f"right-{kind}")
    return {
        "deleted": Case([f"{folder}/deleted"], "deleted", lambda: os.unlink(folder / "deleted")),
        "replaced": Case([f"{folder}/replaced"], "replaced", replace("replaced")),
        "replaced-before": Case([f"{folder}/before"], "before", before=replace("before")),
        "recreated": Case([f"{folder}/recreated"], "recreated", recreate),
        "moved": Case([f"{folder}/a/moved"], "moved", move),
        "memfd": Case(["python3", "-c", MEMFD, right], "3"),
    }


def of_static(programs, folder):
    """Programs that need nothing of their root."""
    outside = folder / "m/prog"
    root = folder / "root"
    programs.copy("right-static", root / str(outside).lstrip("/"))
    pivot = (
        f"mount --make-rprivate /; mount --bind {root} {root}; cd {root}; mkdir -p old;"
        f" pivot_root . old; exec {outside}"
    )
    return {"chroot": Case(["chroot", str(root), str(outside)]), "pivot_root": Case(in_namespace(pivot))}


def of_library(programs, folder):
    """A program whose library moves."""
    library = folder / "lib/libtwo.so"
    programs.copy("right-library", library)
    programs.copy("wrong-library", folder / "new.so")
    command = ["env", f"LD_LIBRARY_PATH={folder}/lib", str(programs.folder / "caller")]
    replace = lambda: os.replace(folder / "new.so", library)  # noqa: E731
    return {
        "library-deleted": Case(command, "caller", lambda: os.unlink(library)),
        "library-replaced": Case(command, "caller", replace),
        "library-replaced-before": Case(command, "caller", before=replace),
    }


KINDS = ["static", "dynamic", "unidentified"]


def names():
    """What the cases are called: each is made in a folder of its own."""
    everywhere = ["tmpfs", "bind", "overlay", "unmounted"]
    files = ["deleted", "replaced", "replaced-before", "recreated", "moved", "memfd"]
    all_kinds = [f"{kind}/{name}" for kind in KINDS for name in everywhere + files]
    libraries = ["library-deleted", "library-replaced", "library-replaced-before"]
    return [*all_kinds, "static/chroot", "static/pivot_root", *(f"dynamic/{name}" for name in libraries)]


def make(programs, folder, name):
    """A case, with its files in this folder."""
    kind, name = name.split("/")
    programs.copy(f"wrong-{kind}", folder / "m/prog")
    cases = in_other_roots(folder, programs.folder / f"right-{kind}") | in_other_files(programs, folder, kind)
    if kind == "static":
        cases |= of_static(programs, folder)
    if kind == "dynamic":
        cases |= of_library(programs, folder)
    case = cases[name]
    case.build = "right-library" if name.startswith("library") else f"right-{kind}"
    return case
