//! What `kymo list` and `kymo doctor` say about the machine, to root and to a real ordinary user.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde_json::Value;

use crate::tools::{Need, Said, kymo, perf, require, run, skip};

/// Runs kymo as uid 65534, from a copy that it may read; `None`, said aloud, where that is not possible.
fn as_nobody(test: &str, arguments: &[&str]) -> Option<Said> {
    require(test, &[Need::Root, Need::Program("setpriv")])?;
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("our own folder");
    let copy = folder.path().join("kymo");
    kymo_testing::copy_program(kymo().path(), &copy);
    let said = run(Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
        .arg(&copy)
        .args(arguments)
        .current_dir("/"));
    if said.stderr.contains("setpriv: ") {
        skip(test, said.stderr.trim());
        return None;
    }
    Some(said)
}

/// Checks that doctor is data: exit 0, on stdout, without colour in a pipe, one line or more for each check of its JSON.
#[test]
fn doctor_lists_each_check() {
    // A test that takes all of them between the two calls would change the answer.
    let _registers = crate::watch::registers();
    let text = kymo().succeed(["doctor"]);
    assert_eq!(text.stderr, "");
    assert!(!text.stdout.contains('\x1b'));
    let document = kymo().succeed(["doctor", "--json"]).json();
    assert_eq!((&document["schema"], &document["schema_version"]), (&"kymo-doctor".into(), &1.into()));
    let checks = document["checks"].as_array().expect("a list");
    assert!(checks.len() >= 10);
    for check in checks {
        let word = if check["ok"] == true { "yes" } else { "no " };
        let line = format!("  {word}  {}", check["name"].as_str().expect("a name"));
        assert!(text.stdout.contains(&line), "no {line:?} in\n{}", text.stdout);
        assert!(check["ok"] == true || check["detail"] != "", "{check}");
    }
}

/// Checks doctor as an ordinary user: exit 0 still, and each thing refused has a command or says why there is none.
#[test]
fn doctor_for_an_ordinary_user() {
    const TEST: &str = "machine::doctor_for_an_ordinary_user";
    let Some(said) = as_nobody(TEST, &["doctor", "--json"]) else { return };
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let document = said.json();
    assert_eq!((&document["euid"], &document["capabilities"]), (&65534.into(), &Value::Array(Vec::new())));
    let level = document["settings"]["perf_event_paranoid"].as_i64().unwrap_or(2);
    let check = |id: &str| {
        let checks = document["checks"].as_array().expect("a list");
        checks.iter().find(|check| check["id"] == id).cloned().unwrap_or_else(|| panic!("no {id}"))
    };
    for (id, from) in [("kernel", 2), ("all-cpus", 1)] {
        assert_eq!(check(id)["ok"], level < from, "{id} at level {level}");
        if level >= from {
            assert_eq!(check(id)["command"], format!("sudo sysctl kernel.perf_event_paranoid={}", from - 1));
        }
    }
    assert_eq!(check("bpf-filter")["ok"], false);
    let refused = document["checks"].as_array().expect("a list").iter().filter(|check| check["ok"] == false);
    for check in refused {
        assert!(check["command"].is_string() || check["hint"].is_string(), "{check}");
    }
}

/// Checks the list's sections, its JSON, and that text and JSON name the same events.
#[test]
fn list_in_text_and_json() {
    let document = kymo().succeed(["list", "--json"]).json();
    assert_eq!((&document["schema"], &document["schema_version"]), (&"kymo-list".into(), &1.into()));
    let text = kymo().succeed(["list"]).stdout;
    // Probes come and go while others trace: only what is there before and after is in the text for certain.
    let after = kymo().succeed(["list", "--json"]).json();
    let events = document["events"].as_array().expect("a list");
    let stays = |event: &&Value| after["events"].as_array().expect("a list").contains(event);
    for section in ["hardware", "software", "cache", "breakpoint", "raw"] {
        assert!(events.iter().any(|event| event["section"] == section), "{section}");
        assert!(text.lines().any(|line| line.split(' ').next() == Some(section)), "{section}");
    }
    for event in events.iter().filter(stays) {
        let name = event["name"].as_str().expect("a name");
        assert!(text.contains(&format!("\n  {name}")), "{name}");
    }
}

/// Checks filters, and that a filter that matches nothing fails with a near name.
#[test]
fn list_filters() {
    let said = kymo().succeed(["list", "page-f*"]);
    assert!(said.stdout.starts_with("software\n  page-faults OR faults"), "{}", said.stdout);
    assert_eq!(said.stdout.lines().count(), 2);
    let said = kymo().run(["list", "page-fualts"]);
    assert_eq!((said.code, said.stdout.as_str()), (Some(1), ""));
    assert_eq!(said.stderr, "kymo: no event matches `page-fualts`; did you mean `page-faults`?\n");
}

/// Checks that an ordinary user is told which events count user space only, and why no tracepoint is listed.
#[test]
fn list_for_an_ordinary_user() {
    const TEST: &str = "machine::list_for_an_ordinary_user";
    let Some(said) = as_nobody(TEST, &["list", "--json"]) else { return };
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let document = said.json();
    let events = document["events"].as_array().expect("a list");
    let clock = events.iter().find(|event| event["name"] == "cpu-clock").expect("cpu-clock");
    let level = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    match level.trim().parse::<i32>() {
        Ok(..2) => assert_eq!(clock["available"], "yes"),
        Ok(2) => assert_eq!(clock["available"], "user-only"),
        _ => skip(
            TEST,
            format!("perf_event_paranoid is {level:?}: what it means differs between distributions"),
        ),
    }
    let listed = events.iter().any(|event| event["section"] == "tracepoint");
    let notes = document["notes"].as_array().expect("a list");
    assert!(
        listed || notes.iter().any(|note| note.as_str().is_some_and(|note| note.contains("sudo mount"))),
        "{notes:?}"
    );
}

/// Checks that perf accepts each software event that kymo lists as available here, by the same name.
#[test]
fn perf_accepts_what_is_listed() {
    const TEST: &str = "machine::perf_accepts_what_is_listed";
    let Some(()) = require(TEST, &[Need::Perf]) else { return };
    let document = kymo().succeed(["list", "--json", "software"]).json();
    let events = document["events"].as_array().expect("a list");
    let usable = events.iter().filter(|event| event["available"] == "yes");
    let names: Vec<&str> = usable.filter_map(|event| event["name"].as_str()).collect();
    if names.is_empty() {
        return skip(TEST, "no software event can be opened here");
    }
    let said = perf().succeed(["stat", "-x,", "-e", names.join(",").as_str(), "true"]);
    for name in names {
        let line = said
            .stderr
            .lines()
            .find(|line| line.split(',').nth(2).is_some_and(|event| event.starts_with(name)));
        let line = line.unwrap_or_else(|| panic!("perf does not count {name}:\n{}", said.stderr));
        assert!(!line.starts_with("<not supported>"), "{line}");
    }
}
