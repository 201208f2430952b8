//! Commands that come up with the agent in them, and all that they start.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::copied::Program;
use crate::tools::{Need, kymo, require, text};

/// A file with a script in it, beside a program.
fn script(program: &Program, text: &str) -> PathBuf {
    let path = PathBuf::from(program.beside("script.sh"));
    std::fs::write(&path, text.replace("PROBED", program.text())).expect("a script");
    path
}

fn program(test: &str, flags: &[&str]) -> Option<Program> {
    require(test, &[Need::X86, Need::Program("cc")]).map(|()| Program::of("probed.c", flags))
}

/// Hits and engine of a probe.
fn hits(document: &Value, name: &str) -> (u64, String) {
    let probes = document["probes"].as_array().expect("a list");
    let probe =
        probes.iter().find(|probe| probe["name"] == name).unwrap_or_else(|| panic!("{name} in {document}"));
    (probe["hits"].as_u64().expect("a number"), probe["engine"].as_str().expect("a word").to_owned())
}

fn inproc(number: u64) -> (u64, String) {
    (number, "inproc".to_owned())
}

/// Checks that a command is counted from its first call on without being asked for, with threads and forked processes, as many as it counts itself;
/// that its calls are timed; and that -i counts it alone.
#[test]
fn from_the_first_call() {
    let Some(program) = program("launched::from_the_first_call", &[]) else { return };
    let probes = ["probe", "--json", "--ret", "probed_inner", "probed_outer", "probed_deep", "--"];
    let said = kymo().succeed(probes.iter().copied().chain([program.text(), "500", "3", "2"]));
    said.prints("outer 4500 inner 4500");
    let found = said.json();
    assert_eq!(hits(&found, "probed_inner"), inproc(4500));
    assert_eq!(hits(&found, "probed_outer"), inproc(4500));
    assert_eq!(hits(&found, "probed_deep"), inproc(11));
    for probe in found["probes"].as_array().expect("a list") {
        assert_eq!(probe["latencies"]["count"], probe["hits"], "{probe}");
    }
    let said =
        kymo().succeed(["probe", "-i", "--json", "probed_outer", "--", program.text(), "500", "3", "2"]);
    assert_eq!(hits(&said.json(), "probed_outer"), inproc(1500));
}

/// Checks that a marker is counted inside of a command, with its semaphore raised from the program's first instruction on, also in what it forks; and a
/// line.
#[test]
fn markers_and_lines() {
    let Some(program) = program("launched::markers_and_lines", &[]) else { return };
    let text = std::fs::read_to_string(crate::programs::sources().join("probed.c")).expect("the source");
    let line = text.lines().position(|line| line.contains("return probed_inner(x)")).expect("the line") + 1;
    let line = format!("probed.c:{line}");
    let said = kymo().succeed(
        format!("probe --json --engine inproc usdt:shop:sold {line} -- {} 40 2 1", program.text()).split(' '),
    );
    said.prints("outer 160 inner 160 marked 160");
    let found = said.json();
    assert_eq!(hits(&found, "shop:sold"), inproc(160), "{}", said.stderr);
    // A compiler may have put the line where it cannot be served.
    if !said.stderr.contains(&line) {
        assert_eq!(hits(&found, &line), inproc(160));
    }
}

/// Checks that both engines count the same in a script that executes and forks, and that its exit status and its output are its own.
#[test]
fn both_engines_agree_on_a_script() {
    const TEST: &str = "launched::both_engines_agree_on_a_script";
    let Some(()) = require(TEST, &[Need::Root, Need::Uprobes]) else { return };
    let Some(program) = program(TEST, &[]) else { return };
    let script = script(
        &program,
        "#!/bin/sh\nfor i in 1 2 3 4 5 6 7 8 9 10; do PROBED $i 2 1 >/dev/null; (PROBED 3 >/dev/null) & done\nwait\n\
         cat\nexec PROBED 100\n",
    );
    let outer = format!("{}:probed_outer", program.text());
    let mut found = Vec::new();
    for engine in ["kernel", "inproc"] {
        let said =
            kymo().run(["probe", "--engine", engine, "--json", &outer, "--", "/bin/sh", text(&script)]);
        assert_eq!(said.code, Some(0), "{}", said.stderr);
        said.prints("outer 100 inner 100");
        found.push(hits(&said.json(), "probed_outer").0);
    }
    // Twice 1 + 2 + ... + 10 in two processes each, ten times 3, and 100.
    assert_eq!(found, [2 * 2 * 55 + 30 + 100; 2]);
}

/// Checks that exit statuses and signals of the command pass through, and that one which executes another program is counted there.
#[test]
fn ends_as_the_command_does() {
    let Some(program) = program("launched::ends_as_the_command_does", &[]) else { return };
    let outer = format!("{}:probed_outer", program.text());
    let run = |script: &str| {
        let script = script.replace("PROBED", program.text());
        kymo().run(["probe", "--engine", "inproc", "-i", "--json", &outer, "--", "/bin/sh", "-c", &script])
    };
    assert_eq!(run("exit 9").code, Some(9));
    // What ended it ends kymo.
    assert_eq!(run("kill -TERM $$").code, None);
    let said = run("exec PROBED 20");
    assert_eq!((said.code, hits(&said.json(), "probed_outer")), (Some(0), inproc(20)));
    let missing = kymo().run(["probe", "--engine", "inproc", "f", "--", "/no/such/program"]);
    assert!(missing.code.is_some_and(|code| code != 0), "{}", missing.stderr);
}

/// Checks that commands which cannot have the agent in them are the kernel's with the reason said, and refused where only the agent was asked for,
/// before they do anything.
#[test]
fn what_cannot_be_preloaded() {
    const TEST: &str = "launched::what_cannot_be_preloaded";
    let Some(program) = program(TEST, &["-static"]) else { return };
    // Stubs serve it.
    let start = ["probe", "--engine", "inproc", "--json"];
    let said = kymo().run([&start[..], &["probed_outer", "--", program.text(), "10"]].concat());
    assert_eq!(hits(&said.json(), "probed_outer"), (10, "inproc".to_owned()), "{}", said.stderr);
    let callers = ["-g", "probed_outer", "--", program.text(), "10"];
    let said = kymo().run([&start[..], &callers].concat()).ends(1);
    assert!(said.stdout.is_empty(), "{}{}", said.stderr, said.stdout);
    said.says("it tells callers apart in programs that run already (-p) only");
    let Some(program) = self::program(TEST, &[]) else { return };
    let setuid = Command::new("chmod").arg("u+s").arg(&program.path).status().expect("chmod");
    assert!(setuid.success());
    let said = kymo().run(["probe", "--engine", "inproc", "probed_outer", "--", program.text(), "10"]);
    assert!(said.stderr.contains("setuid") && said.stdout.is_empty(), "{}{}", said.stderr, said.stdout);
    let Some(()) = require(TEST, &[Need::Root, Need::Uprobes]) else { return };
    let said = kymo().run(["probe", "--json", "probed_outer", "--", program.text(), "10"]);
    said.says("by the kernel: its dynamic linker did not load the agent: the program is setuid");
    assert_eq!(hits(&said.json(), "probed_outer"), (10, "kernel".to_owned()));
}

/// Checks that programs which come up without the agent are told, where the kernel tells of them, and not where all have it.
#[test]
fn programs_without_the_agent() {
    const TEST: &str = "launched::programs_without_the_agent";
    let Some(()) = require(TEST, &[Need::Root, Need::Tracepoints]) else { return };
    let Some(program) = program(TEST, &[]) else { return };
    let outer = format!("{}:probed_outer", program.text());
    let run = |script: &str| {
        let script = script.replace("PROBED", program.text());
        kymo().succeed(["probe", "--engine", "inproc", "--json", &outer, "--", "/bin/sh", "-c", &script])
    };
    let said = run("/usr/bin/env -i PROBED 10; PROBED 5");
    said.says("1 of 4 programs came up without the agent");
    assert_eq!(hits(&said.json(), "probed_outer"), inproc(5));
    let said = run("/usr/bin/env A=B PROBED 10; PROBED 5");
    assert!(!said.stderr.contains("without the agent"), "{}", said.stderr);
    assert_eq!(hits(&said.json(), "probed_outer"), inproc(15));
}

/// Checks that functions of the C library are counted in a command, and what cannot be patched is left to the kernel, from the first call on.
#[test]
fn the_c_library() {
    let Some(program) = program("launched::the_c_library", &[]) else { return };
    let found = kymo()
        .succeed(
            format!(
                "probe --engine inproc --json libc.so.6:fork libc.so.6:getchar -- {} 1 1 5",
                program.text()
            )
            .split(' '),
        )
        .json();
    let forks = found["probes"].as_array().expect("a list").iter();
    let forks = forks.filter(|probe| probe["name"].as_str().is_some_and(|name| name.contains("fork")));
    assert_eq!(forks.map(|probe| probe["hits"].as_u64().unwrap_or(0)).max(), Some(5), "{found}");
}

/// Checks that what the agent calls in a command is not counted there, however long it waits: as
/// many calls of the C library's functions as the kernel counts.
#[test]
fn calls_of_the_agent_are_not_counted() {
    const TEST: &str = "launched::calls_of_the_agent_are_not_counted";
    let Some(()) = require(TEST, &[Need::Root, Need::Uprobes]) else { return };
    let Some(program) = program(TEST, &[]) else { return };
    let functions = ["malloc", "calloc", "sched_yield", "__close", "open64"];
    let counted = |engine: &str| {
        let probes = functions.map(|name| format!("libc.so.6:{name}"));
        let start = ["probe", "--engine", engine, "--json"].map(str::to_owned);
        let command = ["--", program.text(), "7"].map(str::to_owned);
        let found = kymo().succeed([&start[..], &probes, &command].concat()).json();
        let probes = found["probes"].as_array().expect("a list").clone();
        let hits = |name: &str| -> u64 {
            let named = probes.iter().filter(|probe| {
                probe["name"].as_str().is_some_and(|its| its.ends_with(&format!(":{name}")) || its == name)
            });
            named.map(|probe| probe["hits"].as_u64().expect("a number")).sum()
        };
        functions.map(hits)
    };
    let expected = counted("kernel");
    assert!(expected[0] > 0, "{expected:?}");
    for _ in 0..5 {
        assert_eq!(counted("inproc"), expected, "{functions:?}");
    }
}

/// Checks that a command whose kymo is killed goes on to its end.
#[test]
fn abandoned() {
    let Some(program) = program("launched::abandoned", &[]) else { return };
    let output = program.folder.path().join("output");
    let script =
        script(&program, &format!("#!/bin/sh\nkill -KILL $PPID\nPROBED 50 2 1 >{}\n", output.display()));
    let all = format!("{}:probed_*", program.text());
    let said = kymo().run(["probe", "--engine", "inproc", &all, "--", "/bin/sh", text(&script)]);
    assert_eq!(said.code, None, "{}", said.stderr);
    let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !std::fs::read_to_string(&output).is_ok_and(|text| text.ends_with('\n')) {
        assert!(std::time::Instant::now() < until, "it did not go on");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(std::fs::read_to_string(&output).expect("text").starts_with("outer 200 inner 200"));
}

/// Checks that a program which changes its user, and one for which a namespace is made, run as ever
/// and are counted: there is no thread of ours then, which would have other capabilities, and would
/// forbid the namespace.
#[test]
fn other_users() {
    const TEST: &str = "launched::other_users";
    let Some(()) = require(TEST, &[Need::Root, Need::Program("setpriv"), Need::Program("unshare")]) else {
        return;
    };
    let Some(program) = program(TEST, &[]) else { return };
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(program.folder.path(), open).expect("our folder");
    let outer = format!("{}:probed_outer", program.text());
    let user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    for how in [&user[..], &["setpriv", "--reuid=1000", "--clear-groups"], &["unshare", "-U"]] {
        let words = ["probe", "--json", "--engine", "inproc", &outer, "--"];
        let said = kymo().run(words.iter().chain(how).copied().chain([program.text(), "50", "2", "1"]));
        if how[0] == "unshare" && said.stderr.contains("Operation not permitted") {
            crate::tools::skip(TEST, "user namespaces are not permitted here");
            continue;
        }
        said.prints("outer 200 inner 200");
        // In a namespace without users nobody knows who listens, and the program comes up without
        // the agent.
        if how[0] == "unshare" {
            said.ends(1);
        } else {
            assert_eq!(said.code, Some(0), "{}", said.stderr);
            let json = said.stdout.find("{\n").expect("a document");
            let found: Value = serde_json::from_str(&said.stdout[json..]).expect("JSON");
            assert_eq!(hits(&found, "probed_outer"), inproc(200), "{}", said.stderr);
        }
    }
}

/// Checks that a user without a name, nobody, probes its own programs from inside, started and
/// running.
#[test]
fn by_nobody() {
    const TEST: &str = "launched::by_nobody";
    let Some(()) = require(TEST, &[Need::Root, Need::Program("setpriv")]) else { return };
    let Some(program) = program(TEST, &[]) else { return };
    let open = |path: &std::path::Path| {
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(path, open).expect("our folder");
    };
    open(program.folder.path());
    let copy = program.folder.path().join("kymo");
    kymo_testing::copy_program(kymo().path(), &copy);
    let home = program.folder.path().join("home");
    std::fs::create_dir(&home).expect("our folder");
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).expect("we are root");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(&copy);
    command.args([
        "probe",
        "--json",
        "--engine",
        "inproc",
        "probed_outer",
        "--",
        program.text(),
        "50",
        "2",
        "1",
    ]);
    command.env("HOME", &home).env_remove("XDG_RUNTIME_DIR").env_remove("XDG_CACHE_HOME").current_dir("/");
    let said = crate::tools::run(&mut command).ends(0);
    said.prints("outer 200 inner 200");
    let json = said.stdout.find("{\n").expect("a document");
    let found: Value = serde_json::from_str(&said.stdout[json..]).expect("JSON");
    assert_eq!(hits(&found, "probed_outer"), inproc(200), "{}", said.stderr);
}

/// Checks that zeros are no result where no program has the function in it: a status says so.
#[test]
fn in_no_program() {
    let Some(program) = program("launched::in_no_program", &[]) else { return };
    let outer = format!("{}:probed_outer", program.text());
    let said = kymo().run(["probe", "--engine", "inproc", &outer, "--", "/bin/true"]).ends(1);
    said.says("not counted: probed_outer: its module was not loaded when a program started");
    said.says("the program cannot be probed from inside");
}

/// Checks that a program which kymo has started and counts is not taken over by another kymo; and
/// that when the first one is killed, the next one takes its probes away, counts, and leaves the
/// program as it was.
#[test]
fn entered_by_another() {
    const TEST: &str = "launched::entered_by_another";
    let Some((program, folder)) = crate::probe_lifetimes::Many::copy(TEST) else { return };
    let path = text(&program).to_owned();
    let all = format!("{path}:many_*");
    let mut first = kymo().command(["probe", "--engine", "inproc", &all, "--", "/bin/sh", "-c"]);
    first.arg(format!("echo $$; exec {path}")).stdin(std::process::Stdio::piped());
    let mut many = crate::probe_lifetimes::Many::run(&mut first, &program, folder);
    let first: i32 = many.pid().parse().expect("a number");
    let pid: u32 = many.line().trim().parse().expect("a number");
    let mut many = many.of(pid);
    let plain = many.call(10);
    let second = kymo().run(["probe", "--engine", "inproc", "-d", "1", "-p", &many.pid(), "many_*"]).ends(1);
    second.says("another kymo is using the agent in it");
    let first = rustix::process::Pid::from_raw(first).expect("a process");
    rustix::process::kill_process(first, rustix::process::Signal::KILL).expect("it runs");
    assert_eq!(many.call(10), plain);
    let next = crate::probe_lifetimes::Probing::start(&many, &["--engine", "inproc", "many_*"]);
    assert_eq!(many.call(10), plain);
    let (found, said) = next.end();
    assert_eq!(crate::probe_lifetimes::hits_of_all(&found), (10, "inproc".to_owned()), "{said}");
    assert!(said.contains("removed 64 probes that a killed kymo had left"), "{said}");
    assert!(many.is_untouched("/many") && many.call(10) == plain);
}
