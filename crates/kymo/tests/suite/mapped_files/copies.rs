//! Copies of files that are gone when a recording ends: by each verb and each way that writes one.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Place, ROUNDS, id_of, right, unidentified};
use crate::programs::build;
use crate::scenario::{run_alone, run_beside_others};
use crate::tools::{Need, Running, ready, run, text};
use crate::watch::alone;

const EVENT: [&str; 4] = ["-e", "cpu-clock:u", "-F", "499"];
/// The program removes its own file before it computes.
const PROGRAM: [&str; 4] = ["--", "./prog", "6000", "unlink"];

impl Place {
    /// The files of a recording in several, by name.
    fn files(&self) -> Vec<String> {
        let all = fs::read_dir(&self.folder).expect("a folder").flatten();
        let names = all.filter_map(|file| file.file_name().into_string().ok());
        let mut names: Vec<_> = names.filter(|name| name.starts_with("perf.data.")).collect();
        names.sort();
        names
    }

    /// Checks that names of these functions stand in the recording, and a copy was made.
    #[track_caller]
    fn has_names(&self, said: &str, names: &[&str]) {
        assert!(said.contains("copied 1 file"), "{said}");
        let script = run(&mut self.kymo(&["script", "-i", "perf.data"])).ends(0).stdout;
        names.iter().for_each(|name| assert!(script.contains(name), "no {name}: {script}"));
    }
}

/// Checks each file of a recording in several, where the program is gone in all of them, and that
/// of a program without a build id it is said which files have no names.
#[test]
fn several_files() {
    if !ready("mapped_files::copies::several_files", &[Need::Program("cc")]) {
        return;
    }
    for (name, program) in [("series", right()), ("series-unidentified", unidentified())] {
        let place = Place::new(name);
        place.copy(&program, "prog");
        let words = [&["record", "--switch-output=16K", "-o", "perf.data"][..], &EVENT, &PROGRAM].concat();
        let said = run_beside_others(&mut place.kymo(&words)).ends(0).stderr;
        let files = place.files();
        assert!(files.len() > 1, "{files:?}: {said}");
        let is_identified = program == right();
        assert_eq!(said.contains("copied 1 file"), is_identified, "{said}");
        let is_told = said.contains("/prog have no names in the files before the last one");
        assert_eq!(is_told, !is_identified, "{said}");
        let sampled = files.iter().filter(|file| !place.shares_of(file, "prog").is_empty());
        let sampled: Vec<_> = sampled.collect();
        assert!(!sampled.is_empty(), "{said}");
        if is_identified {
            // A file of a few samples may have none of the shorter function.
            let full = sampled.iter().find(|file| place.shares_of(file, "prog").contains_key("even"));
            place.is_named_in(full.expect("hundreds of samples"), "prog");
            for file in sampled {
                assert!(place.shares_of(file, "prog").contains_key("work"), "{file}");
            }
        }
    }
}

/// Checks snapshots of a flight recorder: their names, and that it is said where there are none.
#[test]
fn snapshots() {
    if !ready("mapped_files::copies::snapshots", &[Need::Root, Need::Program("cc")]) {
        return;
    }
    for (name, program) in [("flight", right()), ("flight-unidentified", unidentified())] {
        let place = Place::new(name);
        place.copy(&program, "prog");
        let words = [&["record", "--snapshot=e", "-o", "perf.data"][..], &EVENT, &PROGRAM].concat();
        let said = run_beside_others(&mut place.kymo(&words)).ends(0).stderr;
        let files = place.files();
        assert_eq!(files.len(), 1, "{said}");
        let is_identified = program == right();
        assert_eq!(said.contains("copied 1 file"), is_identified, "{said}");
        assert_eq!(said.contains("/prog have no names in snapshots"), !is_identified, "{said}");
        if is_identified {
            place.is_named_in(&files[0], "prog");
        }
    }
}

/// Checks a recording that goes through a pipe.
#[test]
fn pipe() {
    if !ready("mapped_files::copies::pipe", &[Need::Program("cc")]) {
        return;
    }
    let place = Place::new("pipe");
    place.copy(&right(), "prog");
    let words = [&["record", "-o", "-"][..], &EVENT, &PROGRAM].concat();
    let mut command = place.kymo(&words);
    let piped = fs::File::create(place.file("perf.data")).expect("made");
    command.stdout(piped);
    let output = {
        let child = command.stderr(std::process::Stdio::piped()).spawn().expect("kymo starts");
        child.wait_with_output().expect("it ends")
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("copied 1 file"), "{said}");
    place.is_named("prog");
}

/// Checks a recording of CPU time and waits.
#[test]
fn wall() {
    if !ready("mapped_files::copies::wall", &[Need::Root, Need::Program("cc")]) {
        return;
    }
    let place = Place::new("wall");
    place.copy(&right(), "prog");
    let words = [&["record", "--wall", "-o", "perf.data"][..], &PROGRAM].concat();
    let said = run_alone(&mut place.kymo(&words)).ends(0);
    place.has_names(&said.stderr, &[" work", " even"]);
}

/// Checks `kymo locks -o`.
#[test]
fn locks() {
    if !ready("mapped_files::copies::locks", &[Need::Root, Need::Program("cc")]) {
        return;
    }
    let place = Place::new("locks");
    place.copy(&build("waits.c", &["-g"]), "prog");
    let script = "./prog convoy & until grep -q /prog /proc/$!/maps; do :; done; sleep 0.05; rm prog; wait";
    let said = run_alone(&mut place.kymo(&["locks", "-o", "perf.data", "--", "sh", "-c", script]));
    place.has_names(&said.ends(0).stderr, &["holds_lock"]);
}

/// Checks `kymo watch -o`, with a build id by a copy, and without one by names in the recording.
#[test]
fn watch() {
    let test = "mapped_files::copies::watch";
    if !ready(test, &[Need::Root, Need::Program("cc")]) {
        return;
    }
    let Some(_alone) = alone(test) else { return };
    for (name, flags) in [("watch", &[][..]), ("watch-unidentified", &["-Wl,--build-id=none"])] {
        let place = Place::new(name);
        let program = place.copy(&build("watched.c", flags), "prog");
        let mut waiting = Running::start(Command::new(&program).args(["1", "100", "wait"]));
        assert_eq!(waiting.line(), "ready\n");
        let pid = waiting.pid();
        let mut command = place.kymo(&["watch", "counter", "-q", "-o", "perf.data", "--json", "-p", &pid]);
        let mut watching = Running::start(command.stderr(std::process::Stdio::piped()));
        assert!(watching.line().contains("header"), "it does not watch");
        fs::remove_file(&program).expect("removed");
        waiting.tell("go\n");
        waiting.end();
        watching.end();
        let mut said = String::new();
        let stderr = watching.child.stderr.as_mut().expect("a pipe");
        std::io::Read::read_to_string(stderr, &mut said).expect("text");
        assert_eq!(said.contains("copied 1 file"), flags.is_empty(), "{said}");
        let script = run(&mut place.kymo(&["script", "-i", "perf.data"])).ends(0).stdout;
        assert!(script.contains("bump"), "{said}: {script}");
    }
}

/// Checks that a copy is of the file that was mapped, though another one lies at its path, by a
/// recording in several files.
#[test]
fn replaced_in_a_series() {
    if !ready("mapped_files::copies::replaced_in_a_series", &[Need::Program("cc"), Need::Program("mkfifo")]) {
        return;
    }
    let place = Place::new("series-replaced");
    place.copy(&right(), "prog");
    place.copy(&super::wrong(), "new");
    let script = format!("mkfifo said; ./prog {ROUNDS} > said & read line < said; mv new prog; wait");
    let words = ["record", "--switch-output=16K", "-o", "perf.data"];
    let words = [&words[..], &EVENT, &["--", "sh", "-c", &script]].concat();
    let said = run_beside_others(&mut place.kymo(&words)).ends(0).stderr;
    assert!(said.contains("copied 1 file"), "{said}");
    let id = id_of(&right());
    let copy = format!("cache/.build-id/{}/{}/elf", &id[..2], &id[2..]);
    assert_eq!(id_of(Path::new(text(&place.file(&copy)))), id);
    for file in place.files() {
        let shares = place.shares_of(&file, "prog");
        assert!(!shares.contains_key("travail") && !shares.contains_key("oeuf"), "{file}: {shares:?}");
    }
}
