//! Programs that cannot load the agent (static ones, those of musl, Go's) are probed in-process
//! all the same, by stubs that kymo writes from outside.
//!
//! The programs have a thousand functions of different shapes, which four threads call at once:
//! function `i` is called `4 * (i % 3 + 1)` times in each round, and what comes of it is printed.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::copied::ROOMY;
use crate::faults::Dice;
use crate::probe_lifetimes::{Probing, soon};
use crate::programs::sources;
use crate::tools::{Need, Running, Said, kymo, require, run, skip, text};

const FUNCTIONS: u64 = 1000;
const ROUNDS: u64 = 25;
/// How often a program is entered and left, or kymo killed.
const VISITS: u32 = 12;

/// A program of a kind, in a folder of its own.
pub(crate) struct Thousand {
    pub(crate) program: PathBuf,
    /// How its functions are named.
    prefix: &'static str,
    _folder: tempfile::TempDir,
}

/// The kinds of C programs: a name, a compiler, its options.
pub(crate) const KINDS: [(&str, &str, &[&str]); 4] = [
    ("static", "gcc", &["-static"]),
    ("static_pie", "gcc", &["-static-pie"]),
    ("musl", "musl-gcc", &["-static"]),
    ("musl_dynamic", "musl-gcc", &[]),
];

/// The bodies of C functions, by their numbers.
fn c_function(number: u64) -> String {
    let body = match number % 5 {
        0 => format!("return x * {} + 1;", number + 3),
        1 => format!(
            "unsigned s = x; for (unsigned j = 0; j < (x & 7); j++) s = s * 31 + j + {number}; return s;"
        ),
        2 => format!(
            "if (x & 1) return x ^ {number}; char b[64]; snprintf(b, sizeof b, \"%u\", x); return b[0] + {number};"
        ),
        3 => format!("return x < 2 ? {number}u : (x >> 1) + {number};"),
        _ => format!(
            "volatile unsigned a[20]; for (int j = 0; j < 20; j++) a[j] = x + j; return a[x % 20] ^ {number};"
        ),
    };
    format!("__attribute__((noinline, noclone)) unsigned many_{number}(unsigned x) {{ {body} }}\n")
}

fn c_source() -> String {
    let mut text = "#include <pthread.h>\n#include <stdio.h>\n#include <stdlib.h>\n".to_owned();
    (0..FUNCTIONS).for_each(|number| text += &c_function(number));
    text += "static unsigned (*all[])(unsigned) = {";
    (0..FUNCTIONS).for_each(|number| write!(text, "many_{number}, ").expect("text"));
    text += r#"};
static long rounds;
static void *work(void *of) {
    unsigned s = (unsigned)(long)of;
    for (long r = 0; r < rounds; r++)
        for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
            for (unsigned k = 0; k <= i % 3; k++) s = all[i](s + r) + k * 2654435761u;
    return (void *)(long)s;
}
int main(int argc, char **argv) {
    char line[32];
    while (argc > 1 ? (snprintf(line, sizeof line, "%s", argv[1]), 1) : fgets(line, sizeof line, stdin) != 0) {
        rounds = atol(line);
        pthread_t threads[4];
        unsigned s = 0;
        for (long t = 0; t < 4; t++) pthread_create(&threads[t], 0, work, (void *)(t + 1));
        for (int t = 0; t < 4; t++) { void *one; pthread_join(threads[t], &one); s = s * 31 + (unsigned)(long)one; }
        printf("%u\n", s);
        fflush(stdout);
        if (argc > 1) break;
    }
    return 0;
}
"#;
    text
}

fn go_source() -> String {
    let mut text = "package main\nimport (\"bufio\"; \"fmt\"; \"os\"; \"strconv\"; \"sync\")\n".to_owned();
    for number in 0..FUNCTIONS {
        let body = match number % 5 {
            0 => format!("return x*{} + 1", number + 3),
            1 => {
                format!("s := x; for j := uint32(0); j < (x&7); j++ {{ s = s*31 + j + {number} }}; return s")
            }
            2 => format!(
                "if x&1 == 1 {{ return x ^ {number} }}; b := strconv.Itoa(int(x)); return uint32(b[0]) + {number}"
            ),
            3 => format!(
                "var a [40]uint32; for j := range a {{ a[j] = x + uint32(j) }}; return deep(&a, x%5) ^ {number}"
            ),
            _ => format!(
                "if x < 2 {{ return {number} }}; m := make([]uint32, 8); m[x%8] = x; return sum(m) + {number}"
            ),
        };
        writeln!(text, "//go:noinline\nfunc many_{number}(x uint32) uint32 {{ {body} }}").expect("text");
    }
    text += r#"
//go:noinline
func deep(a *[40]uint32, n uint32) uint32 { if n == 0 { return a[3] }; var b [200]byte; b[n] = byte(n); return deep(a, n-1) + uint32(b[n]) }
//go:noinline
func sum(m []uint32) uint32 { var s uint32; for _, v := range m { s += v }; return s }
func work(s uint32, rounds int) uint32 {
	for r := 0; r < rounds; r++ {
		for i := range all {
			for k := 0; k <= i%3; k++ { s = all[i](s+uint32(r)) + uint32(k)*2654435761 }
		}
	}
	return s
}
func main() {
	lines := bufio.NewScanner(os.Stdin)
	for len(os.Args) > 1 || lines.Scan() {
		line := lines.Text()
		if len(os.Args) > 1 { line = os.Args[1] }
		rounds, _ := strconv.Atoi(line)
		var all sync.WaitGroup
		var results [4]uint32
		for t := range results {
			all.Add(1)
			go func() { defer all.Done(); results[t] = work(uint32(t+1), rounds) }()
		}
		all.Wait()
		var s uint32
		for _, one := range results { s = s*31 + one }
		fmt.Println(s)
		if len(os.Args) > 1 { break }
	}
}
"#;
    text += "var all = []func(uint32) uint32{";
    (0..FUNCTIONS).for_each(|number| write!(text, "many_{number}, ").expect("text"));
    text + "}\n"
}

/// Makes a program of a source, or copies what was made of it before; nothing, loudly, where that
/// cannot be.
pub(crate) fn compile(test: &str, name: &str, source: &str, command: &mut Command) -> Option<Thousand> {
    let is_go = source.contains("\npackage main\n") || source.starts_with("package main\n");
    let mut hasher = DefaultHasher::new();
    (source, format!("{command:?}")).hash(&mut hasher);
    let kept =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("programs").join(format!("{:016x}", hasher.finish()));
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().canonicalize().expect("a path").join(name);
    if !kept.exists() {
        let file = folder.path().join(if is_go { "source.go" } else { "source.c" });
        std::fs::write(&file, source).expect("a source");
        let said = match command.arg("-o").arg(&program).arg(&file).output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(String::from_utf8_lossy(&output.stderr).into_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(said) = said {
            skip(test, format!("{name}: {}", said.lines().next().unwrap_or("it does not compile")));
            return None;
        }
        // Other tests may do the same now: the last one stays.
        std::fs::create_dir_all(kept.parent().expect("a folder")).expect("the folder for programs");
        let fresh = kept.with_extension(format!("{}-{test}", std::process::id()).replace(':', "-"));
        kymo_testing::copy_program(&program, &fresh);
        std::fs::rename(&fresh, &kept).expect("it takes its name");
        std::fs::remove_file(&program).expect("ours");
    }
    kymo_testing::copy_program(&kept, &program);
    let prefix = if is_go { "main.many_" } else { "many_" };
    Some(Thousand { program, prefix, _folder: folder })
}

pub(crate) fn c_program(test: &str, (name, compiler, options): (&str, &str, &[&str])) -> Option<Thousand> {
    compile(test, name, &c_source(), Command::new(compiler).args(["-O2", "-g", "-pthread"]).args(options))
}

pub(crate) fn go() -> Command {
    let mut go = Command::new("go");
    go.arg("build").env("CGO_ENABLED", "0").env("GOFLAGS", "-mod=mod");
    go.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"));
    go
}

pub(crate) fn go_program(test: &str) -> Option<Thousand> {
    compile(test, "many_go", &go_source(), &mut go())
}

impl Thousand {
    pub(crate) fn selector(&self) -> String {
        format!("{}*", self.prefix)
    }

    /// What it prints without kymo.
    fn plain(&self) -> String {
        run(Command::new(&self.program).arg(ROUNDS.to_string())).ends(0).stdout
    }

    /// Runs it as a command, probed so; what it printed, and what kymo counted.
    fn probed(&self, options: &[&str]) -> (String, Value, Said) {
        let rounds = ROUNDS.to_string();
        let selector = self.selector();
        let program = [&selector, "--", text(&self.program), &rounds];
        let said = kymo().run([&["probe", "--json"], options, &program].concat()).ends(0);
        let begin = said.stdout.find('{').expect("a document");
        (said.stdout[..begin].to_owned(), said.json(), said)
    }

    /// Checks each function's hits after so many rounds; how many functions the engine inside has
    /// served. `timed`: that it has timed each call, too.
    fn check(&self, found: &Value, rounds: u64, timed: bool) -> u64 {
        let mut inside = 0;
        let probes = found["probes"].as_array().expect("a list");
        assert_eq!(probes.len() as u64, FUNCTIONS, "{}", self.program.display());
        for probe in probes {
            let name = probe["name"].as_str().expect("a name");
            let number: u64 = name.strip_prefix(self.prefix).expect("ours").parse().expect("a number");
            let wanted = rounds * 4 * (number % 3 + 1);
            assert_eq!(probe["hits"].as_u64(), Some(wanted), "{}: {probe}", self.program.display());
            if probe["engine"] == "inproc" {
                inside += 1;
                let calls = probe["latencies"]["count"].as_u64().unwrap_or(0);
                assert!(
                    !timed || calls == wanted,
                    "{}: {calls} calls timed: {probe}",
                    self.program.display()
                );
                if let Some(callers) = probe["callers"].as_array().filter(|callers| !callers.is_empty()) {
                    let is_work =
                        |caller: &Value| caller["name"].as_str().is_some_and(|name| name.contains("work+"));
                    assert!(callers.iter().all(is_work), "{}: {probe}", self.program.display());
                    let calls: u64 = callers.iter().filter_map(|caller| caller["hits"].as_u64()).sum();
                    assert_eq!(calls, wanted, "{}: {probe}", self.program.display());
                }
            }
        }
        inside
    }
}

/// Calls `chosen` with 0 to 9,999, and with -3 to 3 in turns. It is neither the first nor the last
/// function, beside which is no padding.
const CHOSEN_C: &str = r#"#include <stdio.h>
__attribute__((noinline, used)) int before(int x) { return x; }
__attribute__((noinline, noclone)) long chosen(long x, int y) { __asm__ volatile("" ::: "memory"); return x * 3 + y; }
__attribute__((noinline, used)) int after(int x) { return x; }
int main(void) {
    long s = 0;
    for (long x = 0; x < 10000; x++) s += chosen(x, (int)(x % 7) - 3);
    printf("%ld\n", s);
    return 0;
}
"#;
const CHOSEN_GO: &str = r#"package main

import "fmt"

//go:noinline
func chosen(x int, y int32) int {
	return len(fmt.Sprint(x)) + int(y)
}

func main() {
	s := 0
	for x := 0; x < 10000; x++ {
		s += chosen(x, int32(x%7)-3)
	}
	fmt.Println(s)
}
"#;

/// Checks that conditions of registers choose calls inside of programs that cannot load the agent,
/// as many as there are; and that arguments of Go's functions are known by their names, but not by
/// their numbers: the processor's ABI has others in those registers.
#[test]
fn conditions_of_registers() {
    const TEST: &str = "probe_static::conditions_of_registers";
    let Some(()) = require(TEST, &[Need::X86, Need::Program("gcc")]) else { return };
    let found = |program: &Thousand, options: &[&str], name: &str| {
        let start = [&["probe", "--engine", "inproc", "--json"], options, &[name, "--"]].concat();
        let said = kymo().succeed(start.into_iter().chain([text(&program.program)]));
        let probe = said.json()["probes"][0].clone();
        assert_eq!(probe["engine"], "inproc", "{}", said.stderr);
        (probe["hits"].as_u64(), probe["latencies"]["count"].as_u64())
    };
    let check = |program: &Thousand, name: &str, condition: &str, hits: u64| {
        let file = program.program.display();
        assert_eq!(found(program, &["--if", condition], name).0, Some(hits), "{condition} in {file}");
        let timed = found(program, &["--ret", "--if", condition], name);
        assert_eq!(timed, (Some(hits), Some(hits)), "{condition} in {file}");
    };
    for (name, compiler, options) in KINDS {
        let mut command = Command::new(compiler);
        let Some(program) = compile(TEST, name, CHOSEN_C, command.args(["-O2", ROOMY]).args(options)) else {
            continue;
        };
        check(&program, "chosen", "arg1 < 1000", 1000);
        check(&program, "chosen", "arg1 == 7 || arg1 >= 9990", 11);
        check(&program, "chosen", "arg2:s32 < 0 && arg1 < 70", 30);
        // What a call returns is known where it ends: it is a hit all the same.
        let returned = found(&program, &["--if", "ret:s64 < 30"], "chosen");
        assert_eq!(returned, (Some(10_000), Some(10)), "{}", program.program.display());
        let both = found(&program, &["--if", "ret:s64 < 30 && arg1 >= 5"], "chosen");
        assert_eq!(both, (Some(9_995), Some(5)), "{}", program.program.display());
        let every = found(&program, &["--ret", "--every", "100"], "chosen");
        assert_eq!(every, (Some(10_000), Some(100)), "{}", program.program.display());
    }
    let Some(program) = compile(TEST, "chosen_go", CHOSEN_GO, &mut go()) else { return };
    check(&program, "main.chosen", "x < 100 && x != 7", 99);
    check(&program, "main.chosen", "y == 3", 10_000 / 7);
    let numbered = ["probe", "--if", "arg1 < 100", "main.chosen", "--", text(&program.program)];
    let said = kymo().run(numbered);
    assert!(said.code.is_some_and(|code| code != 0), "{}", said.stderr);
    said.says("Go passes arguments in registers of its own");
}

/// Checks that all functions of static and musl programs are counted exactly from inside, from a
/// command's first call on, that all calls are timed, and that the programs print what they print
/// without kymo.
#[test]
fn a_thousand_functions_of_c() {
    const TEST: &str = "probe_static::a_thousand_functions_of_c";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("gcc")]) else { return };
    for kind in KINDS {
        let Some(thousand) = c_program(TEST, kind) else { continue };
        let plain = thousand.plain();
        for options in [&["--engine", "inproc"][..], &["--engine", "inproc", "--ret"]] {
            let timed = options.contains(&"--ret");
            let (printed, found, said) = thousand.probed(options);
            assert_eq!(printed, plain, "{}", said.stderr);
            assert_eq!(thousand.check(&found, ROUNDS, timed), FUNCTIONS, "{}", said.stderr);
            said.says("without a library in the program");
        }
    }
}

/// Checks the same of a Go program. Calls of small functions, which have no check of their stack,
/// are timed by the kernel.
#[test]
fn a_thousand_functions_of_go() {
    const TEST: &str = "probe_static::a_thousand_functions_of_go";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("go")]) else { return };
    let Some(thousand) = go_program(TEST) else { return };
    let plain = thousand.plain();
    let (printed, found, said) = thousand.probed(&["--engine", "inproc"]);
    assert_eq!(
        (printed, thousand.check(&found, ROUNDS, false)),
        (plain.clone(), FUNCTIONS),
        "{}",
        said.stderr
    );
    let (printed, found, said) = thousand.probed(&["--ret"]);
    assert_eq!(
        (printed, thousand.check(&found, ROUNDS, true)),
        (plain, FUNCTIONS * 3 / 5),
        "{}",
        said.stderr
    );
    said.says("a Go function without a check of its stack");
}

/// Checks programs that run already: each visit counts exactly what is called while it lasts, and
/// leaves the code as it was. One kymo is killed in between, and the next one takes away what that
/// has left.
#[test]
fn visits_while_they_run() {
    const TEST: &str = "probe_static::visits_while_they_run";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("gcc")]) else { return };
    let programs = KINDS.into_iter().filter_map(|kind| c_program(TEST, kind)).chain(go_program(TEST));
    for thousand in programs {
        let mut running = Running::start(&mut Command::new(&thousand.program));
        let mut call = |rounds: u64| {
            running.tell(&format!("{rounds}\n"));
            running.line()
        };
        let plain = call(3);
        let code = code_of(running.child.id(), &thousand.program);
        for options in [&["--count"][..], &["--ret"], &["--kill"], &["--count"], &["--ret", "-g"]] {
            let killed = options == ["--kill"];
            let options = if killed { &["--count"] } else { options };
            let (pid, selector) = (running.pid(), thousand.selector());
            let start = [&["probe", "--json", "-p", &pid], options, &[&selector]].concat();
            let probing = Probing::by(&mut kymo().command(start));
            let mut call = |rounds: u64| {
                running.tell(&format!("{rounds}\n"));
                running.line()
            };
            assert_eq!(call(3), plain, "{}", thousand.program.display());
            if killed {
                probing.kill();
                assert_eq!(call(3), plain, "{}", thousand.program.display());
                continue;
            }
            let (found, said) = probing.end();
            let inside = thousand.check(&found, 3, options.contains(&"--ret"));
            let has_callers = |probe: &Value| probe["callers"].as_array().is_some_and(|all| !all.is_empty());
            let probes = found["probes"].as_array().expect("a list");
            assert_eq!(probes.iter().all(has_callers), options.contains(&"-g"), "{found}");
            let expected = if thousand.prefix == "many_" { FUNCTIONS } else { FUNCTIONS / 2 };
            assert!(inside >= expected, "{inside}: {said}");
            assert_eq!(call(3), plain, "{}", thousand.program.display());
            assert!(code_of(running.child.id(), &thousand.program) == code, "code is not the file's: {said}");
        }
        assert_eq!(running.end(), (String::new(), Some(0)));
    }
}

/// Checks that what killed kymos have left is taken away at once by their restorers, or by the next
/// kymo where these were killed, too: their probes, and their memory, of which there would be no
/// place near the code left after some hundred.
#[test]
fn what_killed_ones_have_left() {
    const TEST: &str = "probe_static::what_killed_ones_have_left";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("gcc"), Need::Program("pkill")])
    else {
        return;
    };
    for kind in KINDS {
        let Some(thousand) = c_program(TEST, kind) else { continue };
        let mut running = Running::start(&mut Command::new(&thousand.program));
        running.tell("3\n");
        running.line();
        let code = code_of(running.child.id(), &thousand.program);
        let regions = |pid: &str| {
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
            maps.lines().filter(|line| line.contains("/memfd:kymo-")).count()
        };
        let (pid, selector) = (running.pid(), thousand.selector());
        // Where code lies low, a number in memory may be an address in what was left: it stays.
        let is_exact = matches!(kind.0, "static_pie" | "musl_dynamic");
        for round in 0..6 {
            let timed = if round % 2 == 0 { "--ret" } else { "--count" };
            let probing = Probing::by(&mut kymo().command(["probe", "--json", timed, "-p", &pid, &selector]));
            let has_restorer = round % 3 == 0;
            if !has_restorer {
                // Which would do it.
                let restorer = format!("restore-probes {pid}$");
                run(Command::new("pkill").args(["-KILL", "-f", &restorer])).ends(0);
            }
            probing.kill();
            if has_restorer {
                soon("the code's end", || code_of(running.child.id(), &thousand.program) == code);
                soon("the stubs' end", || !is_exact || regions(&pid) == 0);
            }
            // Stubs, and the words that they count in: of this one, and of the one before.
            assert!(!is_exact || regions(&pid) <= 4, "{round}: {}", thousand.program.display());
        }
        let probing = Probing::by(&mut kymo().command(["probe", "--json", "-p", &pid, &selector]));
        running.tell("3\n");
        running.line();
        let (found, said) = probing.end();
        assert_eq!(thousand.check(&found, 3, false), FUNCTIONS, "{said}");
        // The last restorer may have waited for this kymo.
        soon("the stubs' end", || !is_exact || regions(&pid) == 0);
        assert!(code_of(running.child.id(), &thousand.program) == code, "code is not the file's: {said}");
        assert_eq!(running.end(), (String::new(), Some(0)));
    }
}

/// A program's code in a process's memory.
pub(crate) fn code_of(pid: u32, program: &Path) -> Vec<u8> {
    use std::os::unix::fs::FileExt as _;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("maps");
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("memory");
    let mut code = Vec::new();
    for line in maps.lines().filter(|line| line.contains(" r-xp ") && line.ends_with(text(program))) {
        let (begin, end) =
            line.split_once(' ').and_then(|(range, _)| range.split_once('-')).expect("a range");
        let hex = |text: &str| u64::from_str_radix(text, 16).expect("hex");
        let mut bytes = vec![0; (hex(end) - hex(begin)) as usize];
        memory.read_exact_at(&mut bytes, hex(begin)).expect("code");
        code.extend(bytes);
    }
    assert!(!code.is_empty(), "{maps}");
    code
}

/// Checks that forked children of a running program do not count, those of a command do, and
/// without them (`-i`) they do not.
#[test]
fn forked_children() {
    const TEST: &str = "probe_static::forked_children";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("gcc")]) else { return };
    let source = r#"#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
__attribute__((noinline)) int work(int x) { volatile int a[30]; for (int i = 0; i < 30; i++) a[i] = x; return a[x % 30] + 1; }
int main(int argc, char **argv) {
    char line[8];
    while (argc > 1 || fgets(line, sizeof line, stdin)) {
        int sum = 0, status;
        for (int i = 0; i < 10; i++) sum += work(i);
        if (fork() == 0) { for (int i = 0; i < 100; i++) sum += work(i); _exit(sum & 63); }
        wait(&status);
        printf("%d %d\n", sum, WEXITSTATUS(status));
        fflush(stdout);
        if (argc > 1) break;
    }
}
"#;
    for kind in KINDS {
        let (name, compiler, options) = kind;
        let Some(Thousand { program, _folder, .. }) =
            compile(TEST, name, source, Command::new(compiler).args(["-O1", "-g"]).args(options))
        else {
            continue;
        };
        let plain = run(Command::new(&program).arg("1")).stdout;
        for (option, wanted) in [("--json", 110), ("-i", 10)] {
            for ret in ["--count", "--ret"] {
                let arguments =
                    ["probe", "--json", option, ret, "--engine", "inproc", "work", "--", text(&program), "1"];
                let mut arguments = arguments.to_vec();
                arguments.dedup();
                let said = kymo().run(arguments).ends(0);
                let probe = &said.json()["probes"][0];
                assert_eq!(probe["hits"].as_u64(), Some(wanted), "{name} {option}: {}", said.stderr);
                assert!(said.stdout.starts_with(&plain), "{}", said.stdout);
                if ret == "--ret" {
                    assert_eq!(
                        probe["latencies"]["count"].as_u64(),
                        Some(wanted),
                        "{name} {option}: {probe}"
                    );
                }
            }
        }
        let mut running = Running::start(&mut Command::new(&program));
        let start = ["probe", "--json", "--engine", "inproc", "-p", &running.pid(), "work"];
        let probing = Probing::by(&mut kymo().command(start));
        running.tell("1\n");
        assert_eq!(running.line(), plain);
        let (found, said) = probing.end();
        assert_eq!(found["probes"][0]["hits"].as_u64(), Some(10), "{name}: {said}");
        assert_eq!(running.end(), (String::new(), Some(0)));
    }
}

/// Checks a Go program with a busy collector, a profiler's signals, stacks that grow, panics and
/// goroutines that are stopped anywhere, while all of its functions are probed again and again,
/// and kymo is killed at any moment of it: its answers stay the same.
#[test]
fn go_under_stress() {
    const TEST: &str = "probe_static::go_under_stress";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("go")]) else { return };
    let source = std::fs::read_to_string(sources().join("busy.go")).expect("a source");
    let Some(Thousand { program, _folder, .. }) = compile(TEST, "busy", &source, &mut go()) else { return };
    let plain = run(Command::new(&program).args(["8", "10", "1"])).ends(0).stdout;
    let mut running = Running::start(Command::new(&program).args(["8", "10", "1000000"]));
    let mut dice = Dice::of(TEST);
    let pid = running.pid();
    let mut answer = || assert_eq!(running.line(), plain);
    answer();
    for visit in 0..VISITS {
        let timed = if visit % 2 == 0 { "--ret" } else { "--count" };
        let start = [
            "probe",
            "--json",
            "--engine",
            "inproc",
            "-d",
            "0.2",
            timed,
            "-p",
            &pid,
            "main.*",
            "strconv.*",
            "sort.*",
        ];
        let mut child = kymo().start(start);
        if visit % 3 != 0 {
            // At any moment of its life.
            std::thread::sleep(Duration::from_millis(dice.below(1000)));
            _ = child.kill();
        }
        let output = child.wait_with_output().expect("its end");
        let words = String::from_utf8_lossy(&output.stderr);
        if visit % 3 == 0 {
            assert_eq!(output.status.code(), Some(0), "{words}");
            assert!(words.contains("by the inproc engine"), "{words}");
        }
        answer();
        answer();
    }
    soon("threads that nobody traces", || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("tasks");
        let status = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.expect("a task").path().join("status")).unwrap_or_default()
        };
        tasks.map(status).all(|status| !status.contains("TracerPid:") || status.contains("TracerPid:\t0"))
    });
}

/// 70,000 functions, of which the first and the last are called.
const MORE_C: &str = r#"#include <stdio.h>
__asm__(".text\n.altmacro\n"
        ".macro one n\n.p2align 4\n.globl many_\\n\n.type many_\\n,@function\n"
        "many_\\n: .cfi_startproc\nlea 1(%rdi),%rax\nret\n.cfi_endproc\n.size many_\\n,.-many_\\n\n.endm\n"
        ".set i,0\n.rept 70000\none %i\n.set i,i+1\n.endr\n.noaltmacro\n");
extern long many_0(long), many_69999(long);
int main(void) {
    long s = 0;
    for (int i = 0; i < 1000; i++) s = many_0(s) + (i % 4 == 0 ? many_69999(i) : 0);
    printf("%ld\n", s);
    return 0;
}
"#;

/// Checks that more functions are counted and timed inside of a static program than one part of
/// shared memory has numbers for.
#[test]
fn more_functions_than_numbers() {
    const TEST: &str = "probe_static::more_functions_than_numbers";
    let Some(()) = require(TEST, &[Need::X86, Need::Root, Need::Program("gcc")]) else { return };
    let mut command = Command::new("gcc");
    let Some(program) = compile(TEST, "more", MORE_C, command.args(["-O1", "-static"])) else { return };
    let plain = program.plain();
    let (printed, found, said) = program.probed(&["--ret", "--engine", "inproc"]);
    assert_eq!(printed, plain, "{}", said.stderr);
    let probes = found["probes"].as_array().expect("a list");
    let inside = probes.iter().filter(|probe| probe["engine"] == "inproc").count();
    assert_eq!((probes.len(), inside), (70_000, 70_000), "{}", said.stderr);
    let counts: Vec<(&str, u64, u64)> = probes
        .iter()
        .filter(|probe| probe["hits"] != 0)
        .map(|probe| {
            let number = |value: &Value| value.as_u64().expect("a number");
            let name = probe["name"].as_str().expect("a name");
            (name, number(&probe["hits"]), number(&probe["latencies"]["count"]))
        })
        .collect();
    assert_eq!(counts, [("many_0", 1000, 1000), ("many_69999", 250, 250)]);
}
