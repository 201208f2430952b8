//! Uprobes of another tool at functions that kymo has patched: the kernel executes the instruction
//! that the file has there, and goes on behind it. The program goes on as without, and both count.

use std::collections::BTreeMap;
use std::fs::{OpenOptions, read_to_string, write};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use crate::probe_lifetimes::Probing;
use crate::probe_static::{KINDS, c_program, go_program};
use crate::tools::{Need, Running, kymo, require, text};

const TRACING: &str = "/sys/kernel/tracing";

/// Uprobes by the kernel's own interface, which looks at no process before it writes.
struct Uprobes(String);

impl Uprobes {
    /// At these offsets in a file, each with its name.
    fn put(file: &Path, places: &BTreeMap<String, u64>) -> Uprobes {
        let uprobes = Uprobes(format!("others_{}", std::process::id()));
        let lines = places.iter().map(|(name, at)| format!("p:{}/{name} {}:{at:#x}", uprobes.0, text(file)));
        lines.for_each(|line| change(&line));
        write(format!("{TRACING}/events/{}/enable", uprobes.0), "1").expect("they are enabled");
        uprobes
    }

    /// The hits of each.
    fn hits(&self, file: &Path) -> BTreeMap<String, u64> {
        let list = read_to_string(format!("{TRACING}/uprobe_profile")).expect("a list");
        let words = list.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let its = words.filter(|words| words[0] == text(file));
        its.map(|words| (words[1].to_owned(), words[2].parse().expect("a number"))).collect()
    }
}

impl Drop for Uprobes {
    fn drop(&mut self) {
        _ = write(format!("{TRACING}/events/{}/enable", self.0), "0");
        let list = read_to_string(format!("{TRACING}/uprobe_events")).unwrap_or_default();
        for line in list.lines().filter(|line| line.contains(&format!(":{}/", self.0))) {
            let name = line.split_whitespace().next().and_then(|name| name.strip_prefix("p:"));
            name.into_iter().for_each(|name| change(&format!("-:{name}")));
        }
    }
}

/// Adds a line to the kernel's list of uprobes.
fn change(line: &str) {
    let list = OpenOptions::new().append(true).open(format!("{TRACING}/uprobe_events"));
    list.and_then(|mut list| list.write_all(line.as_bytes()))
        .unwrap_or_else(|error| panic!("{line}: {error}"));
}

/// The functions of a process that a selector means, and where they begin in their file.
fn begins(pid: &str, selector: &str) -> BTreeMap<String, u64> {
    let list = kymo().run(["probe", "--dry-run", "-p", pid, selector]).ends(0);
    let words = list.stdout.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let begin = |words: Vec<&str>| {
        let name = words[2].rsplit(['.', ':']).next().expect("a name").to_owned();
        let offset = words[0].strip_prefix("0x").and_then(|number| u64::from_str_radix(number, 16).ok());
        (name, offset.unwrap_or_else(|| panic!("{words:?}")))
    };
    words.map(begin).collect()
}

/// Checks that uprobes at patched functions of dynamic, static, musl and Go programs harm nobody:
/// what the program prints, and what kymo and the kernel count.
#[test]
fn both_count() {
    const TEST: &str = "uprobes_of_others::both_count";
    let needs = [Need::X86, Need::Root, Need::Tracepoints, Need::Program("gcc")];
    let Some(()) = require(TEST, &needs) else { return };
    let programs = KINDS.into_iter().chain([("dynamic", "gcc", &[][..])]);
    let programs = programs.filter_map(|kind| Some((kind.0, c_program(TEST, kind)?)));
    for (kind, thousand) in programs.chain(go_program(TEST).map(|thousand| ("Go", thousand))) {
        let mut running = Running::start(&mut Command::new(&thousand.program));
        let (pid, selector) = (running.child.id().to_string(), thousand.selector());
        let mut call = |rounds: u64| {
            running.tell(&format!("{rounds}\n"));
            running.line()
        };
        let plain = call(3);
        for timed in [&[][..], &["--ret"]] {
            let probe = ["probe", "--json", "-p", &pid, "--engine"];
            let inside = [&probe[..], &["inproc", &selector], timed].concat();
            let probing = Probing::by(&mut kymo().command(inside));
            let some = format!("{selector}7");
            let places: BTreeMap<String, u64> = begins(&pid, &some);
            // kymo's own are behind a check of the stack in Go, in the bytes of a patch.
            if kind != "Go" {
                let own = kymo().run([&probe[..], &["kernel", "-d", "0.1", &some]].concat()).ends(0).json();
                let own = own["probes"].as_array().expect("a list").clone();
                assert!(own.iter().all(|probe| probe["engine"] == "kernel"), "{kind}: {own:?}");
            }
            assert!(places.len() >= 100, "{}", places.len());
            let others = Uprobes::put(&thousand.program, &places);
            assert_eq!(call(3), plain, "{kind}");
            let wanted = |name: &str| {
                let number = name.rsplit('_').next().and_then(|number| number.parse::<u64>().ok());
                3 * 4 * (number.expect("a number") % 3 + 1)
            };
            let counted = others.hits(&thousand.program);
            assert_eq!(counted.len(), places.len(), "{kind}");
            for (name, hits) in counted {
                // A function of Go begins anew when its stack has grown.
                let is_right = hits == wanted(&name) || kind == "Go" && hits > wanted(&name);
                assert!(is_right, "the kernel's count of {name}: {hits}, {kind}");
            }
            drop(others);
            let (found, said) = probing.end();
            for probe in found["probes"].as_array().expect("a list") {
                let name = probe["name"].as_str().expect("a name");
                // What was refused is nobody's with this engine.
                let is_right = probe["engine"].is_null() || probe["hits"].as_u64() == Some(wanted(name));
                assert!(is_right, "{kind}: {probe} {said}");
            }
            assert_eq!(call(3), plain, "{kind}");
        }
    }
}
