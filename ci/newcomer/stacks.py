"""Programs that copy or switch their stacks, while all their calls are timed: they print and end as without kymo.

`KYMO_ROUNDS=20` is for long runs.
"""

import json
import os
import pathlib
import subprocess
import sys

from .visit import LIMIT, Missing, check, need, probing

# How often each runs with kymo.
ROUNDS = int(os.environ.get("KYMO_ROUNDS", "2"))
# Functions have room for a patch at each end.
FLAGS = ["-O1", "-g", "-fno-inline", "-falign-functions=32", "-fno-optimize-sibling-calls"]

EVENTLET = """
import os, eventlet
from eventlet import GreenPool, Timeout, sleep, queue
eventlet.monkey_patch()
def work(n):
    total = 0
    for i in range(n):
        total += len(sorted(range(i), key=lambda x: -x)); sleep(0)
    if n % 7 == 0: raise ValueError(n)
    return total
def caught(n):
    try: return work(n)
    except ValueError as error: return -error.args[0]
pool, lines = GreenPool(10), queue.Queue()
for total in pool.imap(caught, range(40)): lines.put(total)
try:
    with Timeout(0.01): sleep(30)
except Timeout: lines.put(1)
child = os.fork()
if child == 0:
    os._exit(sum(GreenPool(3).imap(caught, range(5))) % 100)
print(sum(lines.get() for _ in range(41)), os.waitpid(child, 0)[1])
raise SystemExit(3)
"""

SQLALCHEMY = """
import asyncio
from sqlalchemy import Column, Integer, MetaData, Table, insert, select, func, exc
from sqlalchemy.ext.asyncio import create_async_engine
meta = MetaData()
rows = Table("rows", meta, Column("id", Integer, primary_key=True), Column("n", Integer))
async def work(engine, n):
    async with engine.begin() as connection:
        await connection.execute(insert(rows), [{"n": n * i} for i in range(20)])
    try:
        async with engine.begin() as connection:
            await connection.execute(insert(rows), [{"id": 1, "n": 0}])
    except exc.IntegrityError: return 1
    return 0
async def main():
    engine = create_async_engine("sqlite+aiosqlite:///rows.db")
    async with engine.begin() as connection:
        await connection.run_sync(meta.drop_all); await connection.run_sync(meta.create_all)
    failed = 0
    for n in range(15): failed += await work(engine, n)
    async with engine.connect() as connection:
        total = (await connection.execute(select(func.sum(rows.c.n)))).scalar()
    await engine.dispose()
    print("done", failed, total)
asyncio.run(main())
"""

CORO = """
use Coro; use Coro::Semaphore; $| = 1;
sub deep { my $n = shift; return $n ? 1 + deep($n - 1) : do { cede; 0 } }
my ($total, @all) = (0);
for my $k (1 .. 20) {
    push @all, async { for (1 .. 20) { $total += deep($_); cede if $_ % 3; my @s = sort { $a <=> $b } (3, 1, 2); eval { die "x\\n" if $_ == $k; }; $total += 100 if $@; } };
}
$_->join for @all;
my $child = fork; if (!$child) { my $c = async { deep(5) }; exit($c->join) }
waitpid $child, 0; print "done $total ", $? >> 8, "\\n";
"""

BOOST = """
#include <boost/context/fiber.hpp>
#include <cstdio>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>
namespace ctx = boost::context;
static long total;
static long deep(int n, ctx::fiber &back) {
    if (n == 0) { back = std::move(back).resume(); return 1; }
    long sum = deep(n - 1, back) + n;
    if (sum % 11 == 0) throw std::runtime_error("eleven");
    return sum;
}
static ctx::fiber body(ctx::fiber &&back) {
    for (int i = 0; i < 20; i++) {
        try { total += deep(i, back); } catch (const std::runtime_error &) { total += 1000; }
    }
    return std::move(back);
}
static void rounds() {
    std::vector<ctx::fiber> all;
    for (int i = 0; i < 40; i++) all.emplace_back(body);
    for (bool some = true; some;) {
        some = false;
        for (auto &fiber : all) if (fiber) { fiber = std::move(fiber).resume(); some = true; }
    }
}
int main() {
    rounds();
    pid_t child = fork();
    if (child == 0) { total = 0; rounds(); _exit(total % 100); }
    int status = 0;
    waitpid(child, &status, 0);
    std::printf("%ld %d\\n", total, WEXITSTATUS(status));
    return 5;
}
"""

# A program that loads a library of coroutines when it is told to, which may be long after the probes.
LATE = """
#include <dlfcn.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static void *(*make)(void (*)(void *), void *, void *, int);
static void (*call)(void *);
static void (*leave)(void);
static long total;
long late_deep(int n) {
    if (n == 0) { leave(); return 1; }
    return late_deep(n - 1) + n;
}
void late_body(void *argument) {
    jmp_buf out;
    for (volatile long i = 0; i < (long)argument; i++) {
        if (setjmp(out) == 0) { total += late_deep(i % 40); if (i % 5 == 0) longjmp(out, 1); }
        else total += 1000;
    }
    for (;;) leave();
}
void late_rounds(void) {
    void *all[20];
    for (long i = 0; i < 20; i++) all[i] = make(late_body, (void *)50, NULL, 65536);
    for (int turn = 0; turn < 60; turn++)
        for (int i = 0; i < 20; i++) call(all[i]);
}
int main(int argc, char **argv) {
    char line[8];
    puts("here"); fflush(stdout);
    if (argc < 5 || !fgets(line, sizeof line, stdin)) return 2;
    void *library = dlopen(argv[1], RTLD_NOW);
    if (!library) { puts(dlerror()); return 3; }
    *(void **)&make = dlsym(library, argv[2]);
    *(void **)&call = dlsym(library, argv[3]);
    *(void **)&leave = dlsym(library, argv[4]);
    late_rounds();
    pid_t child = fork();
    if (child == 0) { total = 0; late_rounds(); _exit(total % 100); }
    int status = 0;
    waitpid(child, &status, 0);
    printf("%ld %d\\n", total, WEXITSTATUS(status));
    return 6;
}
"""

# Coroutines as libco has them: a few instructions that exchange stacks. And by the C library's swapcontext.
SWITCHES = """
#define _GNU_SOURCE
#include <stdlib.h>
#include <ucontext.h>
#ifdef UCONTEXT
struct routine { ucontext_t own, back; void (*body)(void *); void *argument; };
static struct routine *now;
static void enter(void) { now->body(now->argument); }
void routine_call(struct routine *r) { struct routine *before = now; now = r; swapcontext(&r->back, &r->own); now = before; }
void routine_leave(void) { swapcontext(&now->own, &now->back); }
void *routine_make(void (*body)(void *), void *argument, void *unused, int bytes) {
    struct routine *r = calloc(1, sizeof *r);
    (void)unused;
    getcontext(&r->own);
    r->own.uc_stack.ss_sp = malloc(bytes); r->own.uc_stack.ss_size = bytes;
    r->body = body; r->argument = argument;
    makecontext(&r->own, enter, 0);
    return r;
}
#else
struct routine { void *own, *back; void (*body)(void *); void *argument; };
static struct routine *now;
void exchange(void **from, void *to);
__asm__(".globl exchange\\n.type exchange,@function\\nexchange:\\n"
        "push %rbp\\npush %rbx\\npush %r12\\npush %r13\\npush %r14\\npush %r15\\nmov %rsp,(%rdi)\\nmov %rsi,%rsp\\n"
        "pop %r15\\npop %r14\\npop %r13\\npop %r12\\npop %rbx\\npop %rbp\\nret\\n.size exchange,.-exchange\\n");
static void enter(void) { now->body(now->argument); abort(); }
void routine_call(struct routine *r) { struct routine *before = now; now = r; exchange(&r->back, r->own); now = before; }
void routine_leave(void) { exchange(&now->own, now->back); }
void *routine_make(void (*body)(void *), void *argument, void *unused, int bytes) {
    struct routine *r = calloc(1, sizeof *r);
    void **top = (void **)((char *)aligned_alloc(64, bytes) + bytes - 64);
    (void)unused;
    top[6] = (void *)enter;
    r->own = top; r->body = body; r->argument = argument;
    return r;
}
#endif
"""


def timed(kymo, functions, command, **options):
    """Each run with kymo prints and ends as the run without."""
    plain = kymo.plain(*command, **options)
    most = 0
    for turn in range(ROUNDS):
        said = kymo.plain(kymo.path, "probe", "--json", "--ret", *functions, "--", *command, **options)
        own, document = said.out[: len(plain.out)], said.out[len(plain.out) :]
        what = f"round {turn}: {said.code} for {plain.code}, {own!r} for {plain.out!r}: {said.err[-400:]}"
        check((said.code, own) == (plain.code, plain.out), what)
        probes = json.loads(document)["probes"]
        most = max(most, sum(1 for probe in probes if probe.get("latencies", {}).get("count")))
    check(most > 0, "no call was timed")
    print(f"   {ROUNDS} runs the same ({plain.out.strip()!r}, {plain.code}); {most} functions were timed", flush=True)


def python(kymo, module, script):
    """The interpreter, and the library that switches its stacks."""
    if subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, check=False).returncode:
        raise Missing(f"not installed: {module} (pip)")
    (kymo.folder / "script.py").write_text(script)
    file = pathlib.Path(sys.executable).resolve()
    shared = "libpython" in kymo.plain("ldd", file).out
    module = "libpython*" if shared else file
    timed(kymo, ["--engine", "inproc", f"{module}:Py*", f"{module}:_Py*"], [sys.executable, "script.py"])


def eventlet(kymo):
    """Green threads that raise exceptions, time out and are forked."""
    python(kymo, "eventlet", EVENTLET)


def sqlalchemy(kymo):
    """The bridge from asyncio to synchronous code, over greenlet."""
    python(kymo, "aiosqlite, sqlalchemy.ext.asyncio, greenlet", SQLALCHEMY)


def coro(kymo):
    """Perl's Coro switches C stacks under the interpreter."""
    if kymo.plain("perl", "-MCoro", "-e", "1").code != 0:
        raise Missing("not installed: libcoro-perl")
    (kymo.folder / "script.pl").write_text(CORO)
    file = pathlib.Path("/usr/bin/perl").resolve()
    shared = "libperl" in kymo.plain("ldd", file).out
    timed(kymo, ["libperl*:*" if shared else f"{file}:*"], ["perl", "script.pl"])


def boost(kymo):
    """Fibers of boost.context that throw exceptions over frames which were left and entered again."""
    need("g++")
    (kymo.folder / "fibers.cc").write_text(BOOST)
    built = kymo.plain("g++", *FLAGS, "fibers.cc", "-o", "fibers", "-lboost_context")
    if built.code != 0:
        raise Missing("not installed: libboost-context-dev")
    timed(kymo, ["*"], ["./fibers"])


def late(kymo):
    """Libraries that are loaded while calls are under way: PCL, swapcontext, and instructions as libco's."""
    need("gcc")
    (kymo.folder / "late.c").write_text(LATE)
    (kymo.folder / "switches.c").write_text(SWITCHES)
    kymo.make("gcc", *FLAGS, "late.c", "-o", "late")
    own = ["routine_make", "routine_call", "routine_leave"]
    libraries = [("/usr/lib/x86_64-linux-gnu/libpcl.so.1", ["co_create", "co_call", "co_resume"])]
    for define in ("-DUCONTEXT", "-DPLAIN"):
        name = f"./lib{define[2:].lower()}.so"
        kymo.make("gcc", *FLAGS, define, "-shared", "-fPIC", "switches.c", "-o", name)
        libraries.append((name, own))
    for library, names in libraries:
        if library.startswith("/") and not os.path.exists(library):
            print(f"   not installed: {library}")
            continue
        command = ["./late", library, *names]
        print(f"   {library}", flush=True)
        plain = talk(kymo, command)
        for turn in range(ROUNDS):
            probe = ["--json", "--ret", "late_*"]
            got = talk(kymo, [kymo.path, "probe", *probe, "--", *command])
            check((got[0], got[1][: len(plain[1])]) == plain, f"round {turn}: {got}, not {plain}")
            check(talk(kymo, command, probe) == plain, f"round {turn}, a running program: it ends otherwise")
        print(f"   {ROUNDS} runs, and {ROUNDS} of a running program, the same: {plain}", flush=True)


def talk(kymo, command, probe=None):
    """The program's status and its words, with kymo in it before it loads the library."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    child = subprocess.Popen(command, cwd=kymo.folder, **pipes)
    check(child.stdout.readline() == "here\n", f"{command} does not start: {child.stderr}")
    watcher = None
    if probe:
        watcher, _ = probing(kymo.path, *probe, "-p", str(child.pid))
    out, _ = child.communicate("now\n", LIMIT)
    if watcher:
        found = json.loads(watcher.communicate(timeout=LIMIT)[0])
        check(any(probe["hits"] for probe in found["probes"]), "nothing was counted")
    return child.returncode, out


PROGRAMS = {"eventlet": eventlet, "sqlalchemy": sqlalchemy, "coro": coro, "boost": boost, "late": late}
