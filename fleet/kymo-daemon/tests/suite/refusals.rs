//! What is not accepted, and in which words.
use crate::daemon::{command, is_permitted};
use std::process::Output;

fn run(arguments: &[&str]) -> Output {
    let state = tempfile::tempdir().unwrap();
    let output = command(state.path()).args(arguments).env_remove("AWS_ACCESS_KEY_ID").output();
    output.expect("the daemon starts")
}

/// Checks that what cannot be is refused with one sentence that names it, before anything is
/// recorded.
#[test]
fn refusals_are_one_sentence() {
    let no_folder = "/proc/version/dataset";
    for (arguments, words, status) in [
        (&["--dataset", "s3://bucket/fleet"][..], &["s3://bucket/fleet", "credentials|object stores"][..], 1),
        (&["--dataset", no_folder], &[no_folder, "no folder"], 1),
        (&["--otlp", "localhost:4318"], &["http://"], 1),
        (&["--otlp", "http://localhost:4318", "--health", "0.0.0.0:80"], &["loopback"], 129),
        (&[], &["nowhere to write"], 129),
        (&["--config", "/does/not/exist"], &["/does/not/exist", "No such file"], 129),
        (&["--dataset", "x", "-F", "0"], &["frequency"], 129),
    ] {
        let output = run(arguments);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {text}");
        assert_eq!(text.lines().count(), 1, "{text}");
        for word in words {
            assert!(word.split('|').any(|word| text.contains(word)), "{arguments:?}: {text}");
        }
    }
}

/// Checks that a dry run says what would happen and what is wrong, and writes nothing.
#[test]
fn a_dry_run_writes_nothing() {
    if !is_permitted("refusals::a_dry_run_writes_nothing") {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let dataset = state.path().join("dataset");
    let mut command = command(&state.path().join("state"));
    let command = command.args(["--dry-run", "--otlp", "http://127.0.0.1:1", "--dataset"]).arg(&dataset);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
    assert!(line("record").contains("19 Hz on every CPU") && line("record").ends_with(": ok"), "{text}");
    assert!(
        line("dataset").contains(dataset.to_str().unwrap()) && line("dataset").ends_with(": ok"),
        "{text}"
    );
    assert!(line("collector").contains("refused"), "{text}");
    assert_eq!(std::fs::read_dir(state.path()).unwrap().count(), 0);
}
