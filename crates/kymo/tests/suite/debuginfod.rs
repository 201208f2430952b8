//! Symbols from debuginfod's client: only where it is configured, and only of the right file.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::build;
use crate::tools::{Need, Said, kymo, ready, run, text};

/// A client that notes what it was asked, and has a file for each of these questions.
fn client(folder: &Path, answers: &[(String, &Path)]) -> PathBuf {
    let bin = folder.join("bin");
    std::fs::create_dir_all(&bin).expect("a folder");
    let mut script = format!("#!/bin/sh\necho \"$@\" >>{}\n", text(&folder.join("asked")));
    for (question, answer) in answers {
        script += &format!("[ \"$*\" = '{question}' ] && echo {} && exit 0\n", text(answer));
    }
    script += "exit 1\n";
    let program = bin.join("debuginfod-find");
    std::fs::write(&program, script).expect("a file");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("our file");
    bin
}

/// The build id that binutils read.
fn build_id(program: &Path) -> String {
    let said = run(Command::new("readelf").arg("-n").arg(program)).ends(0).stdout;
    let line = said.lines().find_map(|line| line.trim().strip_prefix("Build ID: "));
    line.expect("a build id").to_owned()
}

/// Checks that functions of a stripped program get their names from the file that the client gives,
/// with a sentence; that nothing is asked without DEBUGINFOD_URLS or with --no-debuginfod; and that
/// a file of another build is refused.
#[test]
fn symbols_that_are_fetched() {
    const TEST: &str = "debuginfod::symbols_that_are_fetched";
    if !ready(TEST, &[Need::Program("cc"), Need::Program("objcopy"), Need::Program("readelf")]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let whole = build("spin.c", &["-g", "-Wl,--build-id"]);
    let (program, file) = (folder.path().join("spinning"), folder.path().join("perf.data"));
    run(Command::new("objcopy").arg("-S").arg(&whole).arg(&program)).ends(0);
    kymo().succeed(["record", "-F", "499", "-e", "cpu-clock:u", "-o", text(&file), "--", text(&program)]);
    let asked = folder.path().join("asked");
    let report = |bin: &Path, servers: &str, more: &[&str]| -> Said {
        _ = std::fs::remove_file(&asked);
        let path = std::env::var("PATH").expect("a path");
        let mut words = vec!["report", "-i", text(&file), "--stdio", "-g", "none", "--no-inline"];
        words.extend(more);
        let mut command = kymo().command(words);
        command.env("PATH", format!("{}:{path}", text(bin))).env("DEBUGINFOD_URLS", servers);
        command.env("DEBUGINFOD_CACHE_PATH", folder.path().join("cache"));
        run(&mut command).ends(0)
    };
    let is_named = |said: &Said| said.stdout.lines().any(|line| line.trim_end().ends_with("] spin"));
    let id = build_id(&program);
    let bin = client(folder.path(), &[(format!("debuginfo {id}"), &whole)]);
    let server = "http://127.0.0.1:9";
    for (servers, more) in [("", &[][..]), (" ", &[]), (server, &["--no-debuginfod"])] {
        let said = report(&bin, servers, more);
        assert!(!is_named(&said) && !asked.exists(), "{servers:?} {more:?}: {}", said.stdout);
    }
    let said = report(&bin, server, &[]);
    assert!(is_named(&said), "{}\n{}", said.stdout, said.stderr);
    said.says("fetching symbols from the servers in DEBUGINFOD_URLS");
    let questions = std::fs::read_to_string(&asked).expect("it was asked");
    assert_eq!(questions.matches(&format!("debuginfo {id}\n")).count(), 1, "{questions}");
    let other = build("spin.c", &["-g", "-O1", "-Wl,--build-id"]);
    let bin = client(folder.path(), &[(format!("debuginfo {id}"), &other)]);
    let said = report(&bin, server, &[]);
    assert!(!is_named(&said), "{}", said.stdout);
    said.says("its build id differs");
}

/// Checks that the code of a program that is gone, and the source that it names, come from the
/// client, and that a program of another build is refused.
#[test]
fn code_and_sources_that_are_fetched() {
    const TEST: &str = "debuginfod::code_and_sources_that_are_fetched";
    if !ready(TEST, &[Need::Program("cc"), Need::Program("readelf"), Need::X86]) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (program, file) = (folder.path().join("spinning"), folder.path().join("perf.data"));
    let source = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/programs/spin.c"));
    let kept = folder.path().join("fetched.c");
    std::fs::write(&kept, source.expect("a fixture")).expect("a file");
    // As the client keeps them: for their owner only.
    std::fs::set_permissions(&kept, std::fs::Permissions::from_mode(0o400)).expect("our file");
    let map = format!("-ffile-prefix-map={}=/gone", text(folder.path()));
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-g", "-pthread", "-Wl,--build-id", &map, "-x", "c"]).arg(&kept).arg("-o");
    run(compiler.arg(&program)).ends(0);
    kymo().succeed(["record", "-F", "499", "-e", "cpu-clock:u", "-o", text(&file), "--", text(&program)]);
    let id = build_id(&program);
    let away = folder.path().join("away");
    std::fs::rename(&program, &away).expect("our file");
    let annotate = |answers: &[(String, &Path)]| {
        let bin = client(folder.path(), answers);
        let mut command = kymo().command(["annotate", "-i", text(&file), "spin"]);
        let path = std::env::var("PATH").expect("a path");
        command.env("PATH", format!("{}:{path}", text(&bin))).env("DEBUGINFOD_URLS", "http://127.0.0.1:9");
        command.env("DEBUGINFOD_CACHE_PATH", folder.path().join("cache"));
        run(&mut command)
    };
    let debuginfo = (format!("debuginfo {id}"), away.as_path());
    let executable = (format!("executable {id}"), away.as_path());
    let source = (format!("source {id} /gone/fetched.c"), kept.as_path());
    let said = annotate(&[debuginfo.clone(), executable.clone(), source]).ends(0);
    said.prints("<spin>:").prints("for (unsigned long i = 0; i < steps; i++)");
    let other = build("spin.c", &["-g", "-O1", "-Wl,--build-id"]);
    let said = annotate(&[debuginfo, (executable.0, other.as_path())]);
    assert!(!said.stdout.contains("add "), "{}", said.stdout);
}
