//! The command line: exit codes, what goes to stdout and what to stderr, bytes that do not change.

use std::io::Read;
use std::process::Stdio;

use crate::scenario::{Recording, record};
use crate::tools::{kymo, run};

/// A short recording by kymo itself, so that these tests need no perf.
fn recording(test: &str) -> Recording {
    record(
        &kymo(),
        &format!("cli-{test}"),
        &["-F", "499"],
        &["sh", "-c", "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done"],
    )
}

fn file(recording: &Recording) -> &str {
    recording.path.to_str().expect("a plain name")
}

/// Checks that help and version are data: exit 0, on stdout.
#[test]
fn help_is_data() {
    for arguments in
        [&["--help"][..], &["--version"], &["record", "--help"], &["report", "-h"], &["script", "-h"]]
    {
        let said = kymo().run(arguments);
        assert_eq!((said.code, said.stderr.as_str()), (Some(0), ""), "{}", said.command);
        assert!(said.stdout.contains("kymo") || said.stdout.contains("Usage"), "{}", said.command);
    }
}

/// Checks that a command line which is not understood ends with 129, as perf's does, and says so on stderr.
#[test]
fn usage_errors_are_129() {
    for arguments in [
        &[][..],
        &["no-such-verb"],
        &["report", "--no-such-option"],
        &["record"],
        &["record", "-F", "fast", "--", "true"],
        &["record", "-e", "no-such-event-here", "--", "true"],
        &["bench", "no-such-collection"],
        &["bench", "internals", "no-such-benchmark"],
        &["bench", "internals", "evlist-open-close", "-e", "no-such-event-here"],
        &["bench", "internals", "evlist-open-close", "-j", "--model"],
        &["bench", "internals", "evlist-open-close", "--scope", "inherit"],
        &["bench", "internals", "evlist-open-close", "--scope", "cgroup", "-p", "1"],
    ] {
        let said = kymo().run(arguments);
        assert_eq!((said.code, said.stdout.as_str()), (Some(129), ""), "{}: {}", said.command, said.stderr);
        assert!(!said.stderr.is_empty(), "{}", said.command);
    }
}

/// Checks that an error in `-e` points at the character: a caret stands below the place that is wrong.
#[test]
fn a_wrong_event_is_pointed_at() {
    let said = kymo().run(["record", "-e", "cpu-clock,page-fualts", "--", "true"]).ends(129);
    let lines: Vec<&str> = said.stderr.lines().collect();
    let caret =
        lines.iter().position(|line| line.trim_start().starts_with('^')).expect("a line with a caret");
    let (typed, column) = (lines[caret - 1], lines[caret].find('^').expect("the caret"));
    assert!(typed[column..].starts_with("page-fualts"), "{}", said.stderr);
    assert!(said.stderr.contains("page-faults"), "the near name is offered: {}", said.stderr);
}

/// Checks that a piped report has stable bytes: the same each time, without colour, whatever the width of the terminal.
#[test]
fn a_piped_report_has_stable_bytes() {
    let recording = recording("stable");
    let report = |name: &str, value: &str| {
        let mut command = kymo().command(["report", "-i", file(&recording)]);
        run(command.env(name, value)).stdout
    };
    let first = report("COLUMNS", "80");
    assert!(!first.contains('\x1b'), "no colour into a pipe");
    assert!(
        first.lines().all(|line| line.trim_end().len() == line.len()) || first.contains("# Samples"),
        "{first}"
    );
    for (name, value) in
        [("COLUMNS", "200"), ("TERM", "xterm-256color"), ("NO_COLOR", "1"), ("RAYON_NUM_THREADS", "1")]
    {
        assert_eq!(report(name, value), first, "with {name}={value}");
    }
}

/// Checks that `--json` is one JSON document with a schema version, and that stderr has no data.
#[test]
fn json_has_a_schema_version() {
    let recording = recording("json");
    let said = kymo().succeed(["report", "-i", file(&recording), "--json"]);
    let document: serde_json::Value =
        serde_json::from_str(&said.stdout).expect("stdout is JSON and nothing else");
    let has_version =
        document.as_object().is_some_and(|object| object.keys().any(|key| key.contains("schema")));
    assert!(has_version, "{}", &said.stdout[..said.stdout.len().min(300)]);
}

/// Checks that a reader which goes away early (`kymo script | head -1`) is no failure and not worth a word.
#[test]
fn a_closed_pipe_is_no_failure() {
    let recording = recording("closed-pipe");
    for verb in ["report", "script"] {
        let mut command = kymo().command([verb, "-i", file(&recording)]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("kymo starts");
        drop(child.stdout.take());
        let mut words = String::new();
        child.stderr.take().expect("a pipe").read_to_string(&mut words).expect("text");
        let status = child.wait().expect("kymo ends");
        assert_eq!((status.code(), words.trim()), (Some(0), ""), "{verb}");
    }
}

/// Checks that `perf.data` in the current folder is the default for both verbs, and that `-` reads stdin.
#[test]
fn the_default_file_and_stdin() {
    let recording = recording("default");
    let folder = recording.path.parent().expect("a folder");
    for verb in ["report", "script"] {
        let named = kymo().succeed([verb, "-i", file(&recording)]).stdout;
        let default = run(kymo().command([verb]).current_dir(folder));
        assert_eq!(default.stdout, named, "{verb}");
        let stdin = std::fs::File::open(&recording.path).expect("the recording is there");
        let piped = run(kymo().command([verb, "-i", "-"]).stdin(stdin));
        assert_eq!(piped.stdout, named, "{verb} of stdin: {}", piped.stderr);
    }
}

/// Checks that every picture is written whole and needs nothing from the network.
#[test]
fn pictures_stand_alone() {
    let recording = recording("pictures");
    let folder = recording.path.parent().expect("a folder");
    let (svg, html) = (folder.join("flame.svg"), folder.join("page.html"));
    kymo().succeed(["report", "-i", file(&recording), "--flamegraph", svg.to_str().expect("a plain name")]);
    kymo().succeed(["report", "-i", file(&recording), "--html", html.to_str().expect("a plain name")]);
    let svg = std::fs::read_to_string(svg).expect("the picture was written");
    assert!(svg.contains("<svg") && svg.trim_end().ends_with("</svg>"));
    let html = std::fs::read_to_string(html).expect("the page was written");
    assert!(html.to_lowercase().contains("<!doctype html") && html.trim_end().ends_with("</html>"));
    for outside in ["src=\"http", "href=\"http", "src='http", "@import", "//cdn"] {
        assert!(!html.contains(outside), "the page fetches something: {outside}");
    }
}

/// Checks that completions and manual pages come out of the binary.
#[test]
fn completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish"] {
        let said = kymo().succeed(["completions", shell]);
        assert!(said.stdout.contains("kymo") && said.stdout.contains("record"), "{shell}");
    }
}

/// Checks that words which mean nothing to a verb that reads are usage errors too: 129, nothing on stdout, and a
/// sentence that quotes the word.
#[test]
fn wrong_words_of_readers_are_usage_errors() {
    let recording = recording("words");
    for (verb, option, word) in [
        ("report", "-s", "dso_from"),
        ("report", "-F", "nonsense"),
        ("report", "-g", "flat"),
        ("report", "-C", "1-x"),
        ("report", "-C", "5-2"),
        ("report", "--time", "9,3"),
        ("report", "--time", "nan,"),
        ("report", "--percent-limit", "nan"),
        ("script", "-F", "nonsense"),
        ("script", "-C", "5-2"),
    ] {
        let said = kymo().run([verb, "-i", file(&recording), option, word]);
        assert_eq!((said.code, said.stdout.as_str()), (Some(129), ""), "{}: {}", said.command, said.stderr);
        let quoted = said.stderr.contains(word.trim_start_matches("1-"));
        assert!(quoted, "{}: {}", said.command, said.stderr);
    }
}

/// Checks that what cannot be had together is refused: two texts on one stdout, or filters that would be ignored.
#[test]
fn outputs_that_would_mix_are_refused() {
    let recording = recording("mix");
    for options in [
        &["--json", "--folded"][..],
        &["--json", "--stats"],
        &["--json", "--header"],
        &["--folded", "--header"],
        &["--folded", "-c", "sh"],
        &["--json", "-S", "main"],
    ] {
        let said = kymo().run([&["report", "-i", file(&recording)], options].concat());
        assert_eq!((said.code, said.stdout.as_str()), (Some(129), ""), "{}: {}", said.command, said.stderr);
    }
}

/// Checks perf's rules for `-F`: fields without the totals are a flat table, and keys of `-s` stand behind them.
#[test]
fn fields_choose_the_columns() {
    let recording = recording("fields");
    let titles = |options: &[&str]| {
        let said = kymo().succeed([&["report", "-g", "none", "-i", file(&recording)], options].concat());
        let line =
            said.stdout.lines().find(|l| l.contains("verhead") || l.contains("Self")).map(str::to_string);
        line.expect("a line of titles").split_whitespace().skip(1).map(str::to_string).collect::<Vec<_>>()
    };
    assert_eq!(titles(&["-F", "overhead,comm"]), ["Overhead", "Command"]);
    assert_eq!(titles(&["-F", "overhead,comm", "-s", "sym,comm"]), ["Overhead", "Command", "Symbol"]);
    assert_eq!(titles(&["-F", "overhead_children,overhead,sym"]), ["Children", "Self", "Symbol"]);
}

/// Checks that a filter which leaves nothing says so, and that `script` takes its file as a plain argument as `report`.
#[test]
fn nothing_left_is_said_and_files_are_plain_arguments() {
    let recording = recording("plain");
    kymo().succeed(["report", file(&recording), "-c", "no-such-thread"]).prints("# no row passes -c");
    let by_option = kymo().run(["script", "-i", file(&recording)]);
    let plain = kymo().run(["script", file(&recording)]);
    assert_eq!((plain.code, plain.stdout), (Some(0), by_option.stdout));
}

/// Checks that names which a recorded program chose cannot act on the terminal: a thread, a file and a line of the
/// command with escape sequences and newlines are written out in every text.
#[test]
fn names_cannot_act_on_the_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    let shell = crate::tools::find("sh").expect("a shell");
    let evil = folder.path().join("e\x1b[5m\nvil");
    std::os::unix::fs::symlink(shell, &evil).expect("a link");
    let path = folder.path().join("x.data");
    let path = path.to_str().expect("text");
    let loop_ = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done # \x1b[31m";
    kymo().succeed(["record", "-o", path, "--", evil.to_str().expect("text"), "-c", loop_]);
    for arguments in [
        &["report", path, "--header"][..],
        &["report", path, "-s", "comm,pid,tgid,dso,sym"],
        &["report", path, "-t", ";", "--stats"],
        &["script", path],
        &["report", path, "--folded"],
    ] {
        let said = kymo().succeed(arguments);
        let acts = |c: char| c.is_control() && c != '\n' && c != '\t';
        assert!(!said.stdout.contains(acts) && !said.stderr.contains(acts), "{arguments:?}");
        assert!(!said.stdout.contains("\nvil"), "a newline in a name breaks no line: {arguments:?}");
    }
    let said = kymo().run(["script", path]);
    assert!(said.stdout.contains("e\\x1b[5m\\nvil"), "the name is shown: {:.300}", said.stdout);
    let missing = kymo().run(["report", "no\x1b[31m.data"]);
    assert!(missing.stderr.contains("no\\x1b[31m.data"), "{:?}", missing.stderr);
}

/// Checks that a program which kymo becomes knows the path of kymo: one that lies elsewhere on PATH
/// reads recordings by it.
#[test]
fn other_programs_know_which_kymo_it_was() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("kymo-daemon");
    std::fs::write(&program, "#!/bin/sh\necho \"$KYMO_PROGRAM $*\"\n").expect("a file");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("ours");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    let own = kymo().path.canonicalize().expect("it is there");
    let beside = own.parent().expect("a folder").join("kymo-daemon");
    if beside.exists() {
        return kymo_testing::skip(
            "cli::other_programs_know_which_kymo_it_was",
            "kymo-daemon is beside kymo",
        );
    }
    let mut command = std::process::Command::new(&own);
    let said = crate::tools::run(command.args(["daemon", "--dry-run"]).env("PATH", path)).ends(0);
    assert_eq!(said.stdout, format!("{} --dry-run\n", own.display()));
}
