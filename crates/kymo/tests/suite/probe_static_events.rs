//! Events that programs which cannot load the agent write themselves, and what stays in them of
//! a recorder that was killed.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::copied::ROOMY;
use crate::probe_lifetimes::{Probing, soon};
use crate::probe_static::{KINDS, Thousand, code_of, compile, go};
use crate::tools::{Need, Running, kymo, require, run, signal, text};

/// Calls `chosen` of a thousand numbers on each of four threads, whenever it reads a line.
const WAITING_C: &str = r#"#include <pthread.h>
#include <stdio.h>
__attribute__((noinline, used)) int before(int x) { return x; }
__attribute__((noinline, noclone)) long chosen(long x, int y) { __asm__ volatile("" ::: "memory"); return x * 3 + y; }
__attribute__((noinline, used)) int after(int x) { return x; }
static void *work(void *sum) {
    for (long x = 0; x < 1000; x++) *(volatile long *)sum += chosen(x, (int)(x % 7) - 3);
    return 0;
}
int main(void) {
    char line[8];
    while (puts("ready") >= 0 && fflush(stdout) == 0 && fgets(line, sizeof line, stdin)) {
        pthread_t threads[4];
        long sums[4] = {0};
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, work, &sums[i]);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
        printf("%ld\n", sums[0] + sums[1] + sums[2] + sums[3]);
    }
    return 0;
}
"#;
const WAITING_GO: &str = r#"package main

import (
	"bufio"
	"fmt"
	"os"
	"sync"
)

//go:noinline
func chosen(x int, y int32) int {
	if x < 0 {
		fmt.Println(x)
	}
	return x*3 + int(y)
}

func main() {
	lines := bufio.NewReader(os.Stdin)
	for {
		fmt.Println("ready")
		if _, err := lines.ReadString('\n'); err != nil {
			return
		}
		var all sync.WaitGroup
		var sums [4]int
		for i := 0; i < 4; i++ {
			all.Add(1)
			go func() {
				defer all.Done()
				for x := 0; x < 1000; x++ {
					sums[i] += chosen(x, int32(x%7)-3)
				}
			}()
		}
		all.Wait()
		fmt.Println(sums[0] + sums[1] + sums[2] + sums[3])
	}
}
"#;

/// Records an event of a program that waits, and what it calls then; the lines of the events. A
/// recorder before that one is killed.
fn recorded(program: &Thousand, event: &str, environment: Option<(&str, &str)>) -> Vec<String> {
    let file = program.program.with_extension("data");
    _ = std::fs::remove_file(&file);
    let mut running = Running::start(Command::new(&program.program).envs(environment));
    assert_eq!(running.line(), "ready\n");
    let id = running.child.id();
    let code = || code_of(id, &program.program);
    let plain = code();
    let words = ["record", "--engine", "inproc", "-e", event, "-p", &running.pid(), "-o", text(&file)];
    let start = || {
        let mut command = kymo().command(words);
        let mut recording = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("kymo");
        // The file is made when it is known what can be patched; before that, code is borrowed.
        while !file.exists() || code() == plain {
            if let Some(ended) = recording.try_wait().expect("kymo") {
                let said = recording.stderr.take().map(|said| std::io::read_to_string(said).expect("text"));
                panic!("{event} in {}: {ended}: {said:?}", program.program.display());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        recording
    };
    let mut killed = start();
    killed.kill().and_then(|()| killed.wait()).expect("ours");
    std::fs::remove_file(&file).expect("its file");
    let mut recording = start();
    running.tell("go\n");
    // Of each thread: 3 times the sum of 0 to 999, and -3 to 3 in turns.
    let sum = 4 * (3 * 499_500 + (0..1000).map(|x| x % 7 - 3).sum::<i64>());
    assert_eq!(running.line(), format!("{sum}\n"));
    assert_eq!(running.line(), "ready\n");
    signal(&recording, Signal::INT);
    let said = std::io::read_to_string(recording.stderr.take().expect("its words")).expect("text");
    recording.wait().expect("its end");
    assert!(said.contains("written by the program itself") && said.contains("lost 0 samples"), "{said}");
    let now = code();
    let changed: Vec<usize> = (0..plain.len()).filter(|&at| now.get(at) != Some(&plain[at])).collect();
    assert!(changed.is_empty(), "code is not the file's at {changed:?} in {}", program.program.display());
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", running.pid())).expect("maps");
    // Where code lies low, a number in memory may be an address in what was left: it stays.
    let is_exact = ["static_pie", "musl_dynamic"].iter().any(|name| program.program.ends_with(name));
    assert!(!is_exact || !maps.contains("/memfd:kymo-"), "{}: {maps}", program.program.display());
    assert_eq!(running.end().1, Some(0));
    let script = kymo().succeed(["script", "-i", text(&file), "-F", "tid,event,trace"]).stdout;
    assert!(!script.is_empty(), "{}: {said}", program.program.display());
    script.lines().map(str::to_owned).collect()
}

/// Checks that events of programs that cannot load the agent are whole: each hit and each return
/// once, of its own thread, with its values, and those of Go by their names; and that nothing stays
/// in them, also of a recorder that was killed.
#[test]
fn events_of_registers() {
    const TEST: &str = "probe_static_events::events_of_registers";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("gcc")]) else { return };
    let check = |program: &Thousand, event: &str, is_by_thread: bool, environment| {
        let lines = recorded(program, event, environment);
        let of = |name: &str| lines.iter().filter(|line| line.contains(name)).collect::<Vec<_>>();
        let (hits, returns) = (of("chosen:"), of("chosen%return:"));
        assert_eq!((hits.len(), returns.len()), (4000, 4000), "{}: {}", program.program.display(), lines[0]);
        for x in [0, 42, 999] {
            let value = format!(" x={x} ");
            let found = hits.iter().filter(|line| format!("{line} ").contains(&value)).count();
            assert_eq!(found, 4, "{value}in {}", hits[0]);
            let value = format!(" ret={:#x} ", x * 3 + x % 7 - 3).replace("0x-", "-");
            let found = returns.iter().filter(|line| format!("{line} ").contains(&value)).count();
            assert!(x == 0 || found == 4, "{value}in {}", returns[0]);
        }
        let tid = |line: &&&String| line.split_whitespace().next().expect("a number").to_owned();
        let threads: BTreeSet<String> = hits.iter().map(|line| tid(&line)).collect();
        assert!(!is_by_thread || threads.len() == 4, "{threads:?}");
        for thread in threads.iter().filter(|_| is_by_thread) {
            assert_eq!(hits.iter().filter(|line| tid(line) == *thread).count(), 1000, "{thread}");
        }
    };
    for (name, compiler, options) in KINDS {
        let mut command = Command::new(compiler);
        let command = command.args(["-O2", "-g", "-pthread", ROOMY]).args(options);
        let Some(program) = compile(TEST, name, WAITING_C, command) else { continue };
        const EVENTS: &str = "probe:'chosen(x, y)',probe:chosen%return";
        check(&program, EVENTS, true, None);
        // As with a C library before 2.35, all threads write a ring at once then.
        check(&program, EVENTS, true, Some(("GLIBC_TUNABLES", "glibc.pthread.rseq=0")));
    }
    let Some(program) = compile(TEST, "waiting_go", WAITING_GO, &mut go()) else { return };
    check(&program, "probe:'main.chosen(x, y)',probe:main.chosen%return", false, None);
}

/// Executes itself when it is told, and maps memory where it is told; says whether that is still
/// what it wrote there.
const EXECUTING_C: &str = r#"#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
__attribute__((noinline, used)) int before(int x) { return x; }
__attribute__((noinline, noclone)) long chosen(long x) { __asm__ volatile("" ::: "memory"); return x * 3; }
__attribute__((noinline, used)) int after(int x) { return x; }
int main(int argc, char **argv) {
    char line[64], begin[24], bytes[24];
    unsigned char *memory = 0;
    size_t length = 0;
    if (argc == 3) {
        length = strtoul(argv[2], 0, 16);
        memory = mmap((void *)strtoul(argv[1], 0, 16), length, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (memory == MAP_FAILED) return 3;
        memset(memory, 7, length);
    }
    while (printf("ready %ld\n", chosen(5)) > 0 && fflush(stdout) == 0 && fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "exec %20s %20s", begin, bytes) == 2) execl("/proc/self/exe", argv[0], begin, bytes, (char *)0);
        for (size_t at = 0; at < length; at++) if (memory[at] != 7) return 4;
    }
    return 0;
}
"#;

/// Checks that a restorer takes nothing from a program that has been executed since in the place of
/// the probed one: its memory may lie where stubs were.
#[test]
fn a_program_executed_since_keeps_its_memory() {
    const TEST: &str = "probe_static_events::a_program_executed_since_keeps_its_memory";
    let needs = [Need::X86, Need::Root, Need::Program("gcc"), Need::Program("pkill")];
    let Some(()) = require(TEST, &needs) else { return };
    let mut gcc = Command::new("gcc");
    let command = gcc.args(["-O2", "-D_GNU_SOURCE", "-static", ROOMY]);
    let Some(program) = compile(TEST, "executing", EXECUTING_C, command) else { return };
    let mut running = Running::start(&mut Command::new(&program.program));
    assert_eq!(running.line(), "ready 15\n");
    let pid = running.pid();
    let words = ["probe", "--engine", "inproc", "--json", "-p", &pid, "chosen"];
    let probing = Probing::by(&mut kymo().command(words));
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let stubs = maps.lines().find(|line| line.contains("/memfd:kymo-stubs")).expect("stubs");
    let (begin, end) = stubs.split(' ').next().and_then(|range| range.split_once('-')).expect("a range");
    let hex = |text: &str| u64::from_str_radix(text, 16).expect("hex");
    // From a page before it: its address would be taken for one in stubs, which stay then.
    let (begin, end) = (hex(begin) - 4096, hex(end));
    let restorer = format!("restore-probes {pid}$");
    let send = |signal: &str| run(Command::new("pkill").args([signal, "-f", &restorer])).ends(0);
    send("-STOP");
    probing.kill();
    running.tell(&format!("exec {begin:x} {:x}\n", end - begin));
    assert_eq!(running.line(), "ready 15\n", "it executed itself");
    send("-CONT");
    soon("the restorer's end", || {
        run(Command::new("pgrep").args(["-f", &restorer])).code.is_some_and(|code| code != 0)
    });
    running.tell("check\n");
    assert_eq!(running.line(), "ready 15\n", "its memory is gone");
    assert_eq!(running.end().1, Some(0));
}

/// Checks that a kymo waits for the restorer of one that was killed, also where that has not
/// noticed yet: on a busy machine it has not run since.
#[test]
fn a_restorer_that_is_late() {
    const TEST: &str = "probe_static_events::a_restorer_that_is_late";
    let needs = [Need::X86, Need::Root, Need::Program("gcc"), Need::Program("pkill")];
    let Some(()) = require(TEST, &needs) else { return };
    let mut gcc = Command::new("gcc");
    let command = gcc.args(["-O2", "-D_GNU_SOURCE", "-static", ROOMY]);
    let Some(program) = compile(TEST, "late", EXECUTING_C, command) else { return };
    let mut running = Running::start(&mut Command::new(&program.program));
    assert_eq!(running.line(), "ready 15\n");
    let pid = running.pid();
    let words = ["probe", "--engine", "inproc", "--json", "-p", &pid, "chosen"];
    let probing = Probing::by(&mut kymo().command(words));
    let restorer = format!("restore-probes {pid}$");
    let send = |signal: &str| run(Command::new("pkill").args([signal, "-f", &restorer])).ends(0);
    send("-STOP");
    probing.kill();
    let later = std::thread::scope(|scope| {
        let later = scope.spawn(|| Probing::by(&mut kymo().command(words)));
        // Longer than kymo waits for one that lives.
        std::thread::sleep(Duration::from_secs(3));
        send("-CONT");
        later.join().expect("it probes")
    });
    running.tell("again\n");
    assert_eq!(running.line(), "ready 15\n");
    let (found, said) = later.end();
    assert_eq!(found["probes"][0]["hits"], 1, "{said}");
    assert_eq!(running.end().1, Some(0));
}
