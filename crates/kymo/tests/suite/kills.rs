//! kymo is killed at random moments, again and again, whatever it does to a program: by SIGKILL as it is, after it was stopped for
//! a while, and when it starves. No program notices, and nothing stays in the kernel.
//!
//! | after each kill | after all of them |
//! |---|---|
//! | the program gives the right answers | the next kymo counts exactly, and the program has its file's code |
//! | none of its threads is stopped or traced | no probe of a dead kymo in `uprobe_events`, no cgroup, no BPF program, no watchpoint |
//!
//! `KYMO_KILLS` says how many; 120, or 10,000 with `KYMO_SOAK`. `KYMO_SEED` repeats the moments.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::faults::{Dice, Limited};
use crate::probe_lifetimes::{Many, Probing, hits_of_all, soon};
use crate::probe_static;
use crate::programs::build;
use crate::tools::{Need, Running, kymo, ready, run, skip};
use crate::watch;

/// What kymo does when it is killed; PID and FILE stand for the program and a recording.
const LIVES: [&[&str]; 14] = [
    &["probe", "-p", "PID", "-d", "0.01", "--engine", "inproc", "many_*"],
    &["probe", "-p", "PID", "-d", "0.01", "--engine", "inproc", "--ret", "many_*", "libc.so.6:f*"],
    &["probe", "-p", "PID", "-d", "0.01", "--engine", "inproc", "libc.so.6:s*", "libc.so.6:_IO_*"],
    &["probe", "-p", "PID", "-d", "0.01", "--engine", "kernel", "many_0*"],
    &["probe", "-p", "PID", "-d", "0.01", "-o", "FILE", "many_1*"],
    &["record", "-p", "PID", "-o", "FILE", "-F", "1999", "-e", "probe:many_00,task-clock"],
    &["record", "-p", "PID", "-o", "FILE", "-F", "1999", "-g"],
    &["record", "-a", "-o", "FILE", "-F", "499"],
    &["record", "--wall", "-p", "PID", "-o", "FILE", "-F", "499"],
    &["locks", "-p", "PID"],
    &["locks", "--holds", "-p", "PID"],
    &["stat", "-p", "PID", "-e", "task-clock,context-switches,probe:many_2*"],
    &["stat", "-e", "task-clock", "--", "sleep", "0.2"],
    &["watch", "-p", "WATCHED", "counter"],
];

/// How long most of these take, attaching, some time of work, and the end; on a busy machine more kills come early.
const LIFE: Duration = Duration::from_millis(400);

/// How kymo is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Treatment {
    /// It is killed.
    Killed,
    /// It is stopped, and killed after a while.
    Held,
    /// It is stopped for a while, goes on, and is killed later.
    HeldBefore,
    /// It gets the processors that nobody else wants, which two threads of the program do.
    Starved,
}

/// A program with a variable to be watched: it counts when it is told to, and says what it counted.
fn watched() -> Running {
    watch::waiting(&["2", "1000"])
}

/// It has not noticed anything, and does what it was made for.
fn counts(mut watched: Running) {
    watched.tell("go\n");
    // Its own way to end.
    let (said, status) = watched.end();
    assert_eq!(status, Some(3), "{said}");
}

fn kills() -> u64 {
    let usual = if std::env::var_os("KYMO_SOAK").is_some() { 10_000 } else { 120 };
    std::env::var("KYMO_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(usual)
}

/// The command of a life, in a treatment.
fn command(life: &[&str], treatment: Treatment, many: &Many, watched: &Running, file: &Path) -> Command {
    let (pid, watched) = (many.pid(), watched.pid());
    let words = life.iter().map(|word| match *word {
        "PID" => pid.clone(),
        "WATCHED" => watched.clone(),
        "FILE" => file.to_str().expect("a plain name").to_owned(),
        word => word.to_owned(),
    });
    let plain = kymo().command(words);
    if treatment != Treatment::Starved {
        return plain;
    }
    let mut idle = Command::new("chrt");
    idle.args(["--idle", "0"]).arg(plain.get_program()).args(plain.get_args());
    idle
}

/// Kills it at a random moment of its life, which takes so long; how it was treated, in words.
fn kill(mut child: Child, treatment: Treatment, life: Duration, dice: &mut Dice) -> String {
    let pid = Pid::from_child(&child);
    let mut wait = |of: Duration| {
        let moment = of.mul_f64(dice.below(1000) as f64 / 1000.0);
        std::thread::sleep(moment);
        moment
    };
    let mut said = format!("{treatment:?} after {:?}", wait(life.mul_f64(1.2)));
    // One that has ended is a zombie until it is waited for, and takes signals all the same.
    if matches!(treatment, Treatment::Held | Treatment::HeldBefore) {
        kill_process(pid, Signal::STOP).expect("a child");
        said += &format!(", stopped for {:?}", wait(Duration::from_millis(60)));
    }
    if treatment == Treatment::HeldBefore {
        kill_process(pid, Signal::CONT).expect("a child");
        said += &format!(", then for {:?} not", wait(life.mul_f64(0.5)));
    }
    child.kill().expect("a child");
    child.wait().expect("its end");
    said
}

/// Checks that no thread of a process is stopped or traced; a moment may pass until the kernel has let go.
fn runs(pid: u32, what: &str) {
    let held = || {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
        tasks.flatten().any(|task| {
            let status = std::fs::read_to_string(task.path().join("status")).unwrap_or_default();
            let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let stopped = field("State:").is_some_and(|state| state.starts_with(['T', 't']));
            stopped || field("TracerPid:").is_some_and(|by| by != "0")
        })
    };
    soon(&format!("that nobody holds {pid} any more ({what})"), || !held());
}

/// Checks that programs go on, with the right answers and no thread stopped, when kymos are killed at any moment of any life; that the
/// next ones count exactly and find the file's code; and that nothing of the killed ones stays in the kernel.
#[test]
fn killed_at_any_moment_of_any_life() {
    const TEST: &str = "kills::killed_at_any_moment_of_any_life";
    let Some((program, folder)) = Many::copy(TEST) else { return };
    if !ready(TEST, &[Need::Tracepoints, Need::Program("chrt"), Need::Program("python3")]) {
        return;
    }
    // Others' watchpoints would take the registers away.
    let Some(_alone) = watch::alone(TEST) else { return };
    let path = folder.path().canonicalize().expect("a path");
    let mut many = Many::run(Command::new(&program).args(["threads", "2"]), &program, folder);
    let mut watched = self::watched();
    let plain = many.call(100);
    let mut dice = Dice::of(TEST);
    let mut dead: Vec<u32> = Vec::new();
    for number in 0..kills() {
        let life = LIVES[number as usize % LIVES.len()];
        let treatment = dice.of_all(&[
            Treatment::Killed,
            Treatment::Killed,
            Treatment::Killed,
            Treatment::Held,
            Treatment::HeldBefore,
            Treatment::Starved,
        ]);
        let file = path.join(format!("{number}.data"));
        let mut command = command(life, treatment, &many, &watched, &file);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        dead.push(child.id());
        let said = kill(child, treatment, LIFE, &mut dice);
        let what = format!("kill {number}, {life:?}: {said}");
        // Kept by the test harness until it fails.
        eprintln!("{what}");
        assert_eq!(many.call(100), plain, "{what}");
        runs(many.pid().parse().expect("a number"), &what);
        runs(watched.child.id(), &what);
        _ = std::fs::remove_dir_all(&file);
        _ = std::fs::remove_file(&file);
        if number % 100 == 99 {
            counts(std::mem::replace(&mut watched, self::watched()));
        }
    }
    counts(watched);
    soon("the end of the agent's thread", || !many.threads().contains(&"kymo-agent".to_owned()));
    let probing = Probing::start(&many, &["--engine", "inproc", "many_*"]);
    assert_eq!(many.call(100), plain);
    let (found, said) = probing.end();
    eprintln!("{TEST}: {} kills", dead.len());
    assert!(found["probes"].as_array().expect("a list").iter().all(|probe| probe["hits"] != 0), "{said}");
    assert!(many.is_untouched("/many") && many.is_untouched("/libc.so.6"), "code is not the file's");
    soon("the end of the agent's thread", || !many.threads().contains(&"kymo-agent".to_owned()));
    assert_eq!(many.call(100), plain);
    drop(many);
    exact_afterwards(TEST);
    nothing_is_left(&program, &dead);
}

/// Checks that programs which cannot load the agent go on, with the right answers, when kymos are
/// killed at any moment while they write stubs into them, count, record, and take them away, some
/// together with the restorers that would put the code right; and that the next ones count exactly.
#[test]
fn killed_while_stubs_are_written() {
    const TEST: &str = "kills::killed_while_stubs_are_written";
    const LIVES: [&[&str]; 5] = [
        &["probe", "-q", "-p", "PID", "-d", "0.01", "--engine", "inproc", "FUNCTIONS"],
        &["probe", "-q", "-p", "PID", "-d", "0.01", "--engine", "inproc", "--ret", "FUNCTIONS"],
        &["probe", "-q", "-p", "PID", "-d", "0.01", "--engine", "inproc", "-g", "FUNCTIONS"],
        &["probe", "-q", "-p", "PID", "-d", "0.01", "--engine", "inproc", "-o", "FILE", "FUNCTIONS"],
        &["probe", "-q", "-p", "PID", "-d", "0.01", "FUNCTIONS7"],
    ];
    if !ready(TEST, &[Need::Root, Need::X86, Need::Program("gcc"), Need::Program("pkill")]) {
        return;
    }
    let programs = probe_static::KINDS.into_iter().map(|kind| probe_static::c_program(TEST, kind));
    let programs: Vec<_> = programs.chain([probe_static::go_program(TEST)]).flatten().collect();
    let mut all: Vec<_> = programs
        .iter()
        .map(|program| {
            let mut running = Running::start(&mut Command::new(&program.program));
            running.tell("3\n");
            let plain = running.line();
            (program, running, plain)
        })
        .collect();
    let folder = tempfile::tempdir().expect("a folder");
    let mut dice = Dice::of(TEST);
    for number in 0..kills() {
        let at = number as usize % all.len();
        let (program, running, plain) = &mut all[at];
        let (pid, functions) = (running.pid(), program.selector());
        let file = folder.path().join("killed.data");
        let life = dice.of_all(&LIVES);
        let words = life.iter().map(|word| match *word {
            "PID" => pid.clone(),
            "FILE" => file.to_str().expect("a plain name").to_owned(),
            word => word.replace("FUNCTIONS", &functions),
        });
        let mut command = kymo().command(words);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        let treatment = dice.of_all(&[Treatment::Killed, Treatment::Killed, Treatment::Held]);
        let said = kill(child, treatment, LIFE, &mut dice);
        let with_restorer = dice.below(3) == 0;
        if with_restorer {
            run(Command::new("pkill").args(["-KILL", "-f", &format!("restore-probes {pid}$")]));
        }
        let what =
            format!("kill {number} of {}, {life:?}: {said}, {with_restorer}", program.program.display());
        eprintln!("{what}");
        running.tell("3\n");
        assert_eq!(&running.line(), plain, "{what}");
        runs(running.child.id(), &what);
        _ = std::fs::remove_file(&file);
    }
    for (program, mut running, plain) in all {
        let pid = running.pid();
        let words = ["probe", "--json", "-p", &pid, "--engine", "inproc", &program.selector()];
        let probing = Probing::by(&mut kymo().command(words));
        running.tell("3\n");
        assert_eq!(running.line(), plain);
        let (found, said) = probing.end();
        let probes = found["probes"].as_array().expect("a list");
        assert!(probes.iter().all(|probe| probe["hits"] != 0), "{said}");
        assert_eq!(running.end(), (String::new(), Some(0)));
    }
}

/// Checks that programs go on, with the right answers and their file's code, when the kernel kills kymo for want of
/// memory (a cgroup's limit), wherever it is then: limits from too little to begin with up to enough.
#[test]
fn killed_for_want_of_memory() {
    const TEST: &str = "kills::killed_for_want_of_memory";
    const LIVES: [&[&str]; 4] = [
        &["probe", "-p", "PID", "-d", "0.01", "--engine", "inproc", "many_*"],
        &["probe", "-p", "PID", "-d", "0.01", "--engine", "kernel", "many_*"],
        &["probe", "-p", "PID", "-d", "0.01", "-o", "FILE", "many_1*"],
        &["record", "-p", "PID", "-o", "FILE", "-F", "1999", "-g", "--", "sleep", "0.1"],
    ];
    let Some(mut many) = Many::start(TEST) else { return };
    let limited = Limited::of("memory", &format!("kymo-test-memory-{}", std::process::id()));
    let limited = match limited.and_then(|limited| limited.permit_memory(64 << 20).map(|()| limited)) {
        Ok(limited) => limited,
        Err(reason) => return skip(TEST, reason),
    };
    let plain = many.call(3);
    let (folder, pid) = (tempfile::tempdir().expect("a folder"), many.pid());
    let file = folder.path().join("perf.data");
    let (mut killed, mut done) = (0, 0);
    for megabytes in [1, 2, 3, 4, 6, 8, 10, 12, 14, 17, 20, 24, 32, 256] {
        limited.permit_memory(megabytes << 20).expect("a limit of our own cgroup");
        for life in LIVES {
            let mut command = Command::new("sh");
            command.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(limited.door()).arg(kymo().path());
            command.args(life.iter().map(|word| match *word {
                "PID" => pid.as_str(),
                "FILE" => file.to_str().expect("UTF-8"),
                word => word,
            }));
            let said = run(&mut command);
            killed += u32::from(said.code.is_none());
            done += u32::from(said.code == Some(0));
            let what = format!("{megabytes} MiB, {life:?}: {:?} {}", said.code, said.stderr);
            assert!(megabytes < 256 || said.code == Some(0), "{what}");
            assert_eq!(many.call(3), plain, "{what}");
            runs(pid.parse().expect("a number"), &what);
            soon(&format!("that the program has its file's code ({what})"), || {
                many.is_untouched(many.program())
            });
        }
    }
    assert!(killed > 0 && done > 0, "{killed} killed, {done} done");
}

/// Checks that a program whose threads come and go without pause goes on when kymos are killed that
/// enter it, and ends well: a thread that is borrowed to load the agent must hold no lock that this
/// needs, such as that of the C library's stacks.
#[test]
fn killed_while_threads_come_and_go() {
    const TEST: &str = "kills::killed_while_threads_come_and_go";
    const LIVES: [&[&str]; 3] = [
        &["locks", "--holds", "-q", "-p", "PID"],
        &["probe", "-q", "-p", "PID", "--engine", "inproc", "comes", "begins"],
        &["watch", "-q", "-p", "PID", "over"],
    ];
    if !ready(TEST, &[Need::Root, Need::X86, Need::Program("cc")]) {
        return;
    }
    let program = build("held.c", &["-g"]);
    let mut observed = Running::start(Command::new(&program).arg("comers"));
    let pid = observed.pid();
    let mut dice = Dice::of(TEST);
    for number in 0..kills() / 10 {
        let life = LIVES[number as usize % LIVES.len()];
        let words = life.iter().map(|word| if *word == "PID" { pid.as_str() } else { *word });
        let mut command = kymo().command(words);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
        let said = kill(child, Treatment::Killed, LIFE, &mut dice);
        let what = format!("kill {number}, {life:?}: {said}");
        eprintln!("{what}");
        let mut came = || {
            observed.tell("how many\n");
            let line = observed.line_within(Duration::from_secs(20));
            let line = line.unwrap_or_else(|| panic!("its main thread hangs ({what})"));
            line.split(' ').nth(1).and_then(|count| count.parse::<u64>().ok()).expect("a number")
        };
        let before = came();
        // Each of the four that begin threads has gone on.
        soon(&format!("that threads come and go ({what})"), || came() > before + 20);
    }
    runs(observed.child.id(), "after all kills");
    assert_eq!(observed.end().1, Some(7));
}

/// A new program is counted exactly, through the agent and by the kernel.
fn exact_afterwards(test: &str) {
    for engine in ["inproc", "kernel"] {
        let Some(mut many) = Many::start(test) else { return };
        let probing = Probing::start(&many, &["--engine", engine, "many_*"]);
        many.call(500);
        assert_eq!(hits_of_all(&probing.end().0), (500, engine.to_owned()));
    }
}

/// Checks what killed kymos may have left: probes of their program, cgroups, BPF programs, registers for watchpoints.
fn nothing_is_left(program: &Path, dead: &[u32]) {
    let dead: BTreeSet<u32> = dead.iter().copied().collect();
    // The next one that makes such probes removes what the dead have left.
    let other = build("many.c", &[]);
    kymo().succeed(["stat", "-e", "probe:many_00", "--", other.to_str().expect("a plain name")]);
    let program = program.to_str().expect("a plain name");
    let list = std::fs::read_to_string("/sys/kernel/tracing/uprobe_events").unwrap_or_default();
    assert!(!list.contains(program), "{list}");
    let groups = cgroups_named("kymo-");
    let of_dead = |group: &&PathBuf| {
        let name = group.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let pid = name.split('-').nth(1).and_then(|pid| pid.parse().ok());
        pid.is_some_and(|pid: u32| dead.contains(&pid) && !Path::new(&format!("/proc/{pid}")).exists())
    };
    let left: Vec<&PathBuf> = groups.iter().filter(of_dead).collect();
    assert!(left.is_empty(), "{left:?}");
    soon("the end of BPF programs that no process has", || ownerless_bpf().is_empty());
    // All four of a processor's registers can be had for a thread.
    let watched = self::watched();
    let pid = watched.pid();
    let places = ["counter", "flag", "total", "left"];
    let options = [&["--no-rotate"][..], &places].concat();
    let watching = watch::Armed::start(&options, &pid);
    counts(watched);
    let (_, said, status) = watching.end();
    assert_eq!(status, Some(0), "{said}");
}

fn cgroups_named(prefix: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![PathBuf::from("/sys/fs/cgroup")];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with(prefix) {
                    found.push(entry.path());
                }
                open.push(entry.path());
            }
        }
    }
    found
}

/// Programs of kymo in the kernel that no process holds.
fn ownerless_bpf() -> BTreeSet<String> {
    let mut python = Command::new("python3");
    let said = run(python.arg("-c").arg(include_str!("ownerless_bpf.py")));
    if said.code != Some(0) {
        skip("kills::ownerless_bpf", &said.stderr);
        return BTreeSet::new();
    }
    said.stdout.lines().map(str::to_owned).collect()
}
