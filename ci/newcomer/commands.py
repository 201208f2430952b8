"""Programs that kymo starts: builds, runtimes, containers, jobs, and programs that wait or crash."""

import os
import re
import signal

from .visit import Missing, check, need

# One function that works, and a loop around it; each language has its own.
BUSY_C = """
#include <stdio.h>
#include <time.h>
volatile unsigned long ticks, sum;
__attribute__((noinline)) unsigned long price_of(unsigned long n) {
    for (unsigned long i = 0; i < n; i++)
        sum += i * i % 7;
    return sum;
}
int main(void) {
    struct timespec frame = {0, FRAME_NS};
    for (int i = 0; i < ROUNDS; i++) {
        ticks++;
        price_of(WORK);
        if (FRAME_NS)
            nanosleep(&frame, 0);
    }
    printf("%lu\\n", sum);
    fflush(stdout);
    if (CRASH)
        *(volatile int *)0 = 1;
    return 7;
}
"""

JAVA = """
public class Shop {
    static long priceOf(long n) {
        long total = 0;
        for (long i = 0; i < n; i++) total += i * i % 7;
        return total;
    }
    public static void main(String[] a) {
        long sum = 0;
        for (int i = 0; i < 3000; i++) sum += priceOf(100000);
        System.out.println(sum);
    }
}
"""

GO = """
package main

import "fmt"

//go:noinline
func priceOf(n int) (total int) {
\tfor i := 0; i < n; i++ {
\t\ttotal += i * i % 7
\t}
\treturn
}

func main() {
\tsum := 0
\tfor i := 0; i < 3000; i++ {
\t\tsum += priceOf(100000)
\t}
\tfmt.Println(sum)
}
"""


def compiled(kymo, rounds=300, work=1000000, frame_ns=0, crash=0):
    """The C program, with these numbers."""
    need("gcc")
    (kymo.folder / "shop.c").write_text(BUSY_C)
    numbers = [f"-DROUNDS={rounds}", f"-DWORK={work}", f"-DFRAME_NS={frame_ns}", f"-DCRASH={crash}"]
    kymo.make("gcc", "-g", "-O1", *numbers, "-o", "shop", "shop.c")


def same(kymo, command, expected, percent, code=0):
    """A command that does the same under `record`; the function is named on the first screen."""
    before = kymo.plain(*command)
    check(before.code == code, f"{command[0]} ended with {before.code} without kymo: {before.err}")
    said = kymo.record("--", *command, code=code)
    check(said.out == before.out, "the program printed something else under kymo")
    kymo.report(expected, said)
    kymo.named(percent)
    return said


def gcc(kymo):
    """A build: the object is the same, and the compiler is where the time goes."""
    need("gcc")
    functions = "\n".join(f"int f{n}(int a) {{ return a * {n} % (a + {n + 1}); }}" for n in range(4000))
    (kymo.folder / "big.c").write_text(functions)
    kymo.make("gcc", "-O2", "-c", "big.c", "-o", "without.o")
    said = kymo.record("--", "gcc", "-O2", "-c", "big.c", "-o", "with.o")
    check((kymo.folder / "with.o").read_bytes() == (kymo.folder / "without.o").read_bytes(), "another object")
    kymo.report("cc1", said)
    counted = kymo.run("stat", "--", "gcc", "-O2", "-c", "big.c", "-o", "counted.o")
    check(counted.code == 0 and "task-clock" in counted.err, "kymo stat does not count")


def java(kymo):
    """A program of the JVM, without options: its compiled method by name."""
    need("java", "javac")
    (kymo.folder / "Shop.java").write_text(JAVA)
    kymo.make("javac", "Shop.java")
    same(kymo, ["java", "-cp", ".", "Shop"], r"Shop[.:]+priceOf", 90)


def go(kymo):
    """A Go program."""
    need("go")
    (kymo.folder / "shop.go").write_text(GO)
    kymo.make("env", f"GOCACHE={kymo.folder}/cache", "HOME=" + str(kymo.folder), "go", "build", "-o", "shop", "shop.go")
    same(kymo, ["./shop"], r"main\.priceOf", 95)


def game(kymo):
    """A loop that waits for its next frame: kymo says that it waits; calls and writes are counted."""
    compiled(kymo, rounds=60, work=1000, frame_ns=16000000)
    said = same(kymo, ["./shop"], "main|price_of|nanosleep", 50, code=7)
    check("most of the time it waited" in said.err, "nothing says that the program waits")
    probed = kymo.run("probe", "price_of", "--", "./shop")
    check(probed.code == 7, f"kymo probe ended with {probed.code}")
    check(re.search(r"^ *60\b.*price_of", probed.out, re.M), "kymo probe counts other than 60 calls")
    watched = kymo.run("watch", "ticks", "--", "./shop", lines=6)
    if watched.code == 1 and "register" in watched.err:
        raise Missing(f"nothing can be watched here: {watched.err}")
    check(watched.code == 7, f"kymo watch ended with {watched.code}")
    check("60 hits by 1 thread, none lost" in watched.err, "kymo watch sees other than 60 writes")


def container(kymo):
    """A program in namespaces of its own."""
    need("unshare")
    compiled(kymo)
    command = ["unshare", "--mount", "--pid", "--fork", "--uts", "./shop"]
    if kymo.plain(*command).code != 7:
        raise Missing("this user may not make namespaces")
    same(kymo, command, "price_of", 90, code=7)


def cron(kymo):
    """A job without a terminal, a home or an environment: quiet, and its status is passed on."""
    compiled(kymo)
    (kymo.folder / "job").write_text("#!/bin/sh\n./shop >/dev/null\nexit 3\n")
    environment = {"PATH": "/usr/bin:/bin"}
    said = kymo.run("record", "-q", "--", "sh", "job", env=environment)
    check(said.code == 3, f"the job's status is 3, kymo's is {said.code}")
    check(said.out + said.err == "", "a mail of cron about nothing")
    kymo.report("price_of")
    kymo.named(90)


def crash(kymo):
    """A program that is killed by SIGSEGV: so is kymo, and the recording is complete."""
    compiled(kymo, crash=1)
    same(kymo, ["./shop"], "price_of", 90, code=-signal.SIGSEGV)
    check(os.path.getsize(kymo.folder / "perf.data") > 0, "no recording")


PROGRAMS = {
    "gcc": gcc,
    "java": java,
    "go": go,
    "game": game,
    "container": container,
    "cron": cron,
    "crash": crash,
}
