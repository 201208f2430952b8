//! What a person sees: the pager, tables on a terminal, `kymo demo`.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::at_terminal::AtTerminal;
use crate::programs::build;
use crate::scenario::fresh_folder;
use crate::tools::{Need, Running, kymo, require, text};

/// What kymo prints on a terminal of 80 columns, with this pager. `script` makes the terminal.
fn on_a_terminal(folder: &Path, pager: &str, words: &str) -> String {
    let program = kymo().path().display().to_string();
    let line = format!("stty cols 80; exec {program} {words}");
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).current_dir(folder).stdin(Stdio::null());
    script.env("KYMO_PAGER", pager).env("TERM", "xterm").env_remove("NO_COLOR");
    let said = script.output().expect("script runs");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
    String::from_utf8_lossy(&said.stdout).into_owned()
}

/// Checks that a report goes to the pager on a terminal, with what a terminal gets, and not with `--no-pager`, without one,
/// or where it does not exist.
#[test]
fn the_pager() {
    const TEST: &str = "terminal::the_pager";
    let Some(()) = require(TEST, &[Need::Program("script"), Need::Program("stty")]) else { return };
    let folder = fresh_folder("pager");
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings/callgraph.data");
    let report = format!("report -g none -i {}", text(&recording));
    let paged = || std::fs::read_to_string(folder.join("paged")).ok();
    let seen = on_a_terminal(&folder, "dd of=paged status=none", &report);
    let first = paged().expect("the pager has run");
    assert!(!seen.contains("Overhead") && first.contains("Self"), "{seen}\n{first}");
    assert!(first.contains("\x1b["), "colours: {first}");
    std::fs::remove_file(folder.join("paged")).expect("a file");
    for (pager, options) in
        [("dd of=paged status=none", "--no-pager "), ("", ""), ("cat", ""), ("kymo-no-such-pager", "")]
    {
        let seen = on_a_terminal(&folder, pager, &format!("{options}{report}"));
        assert!(seen.contains("Self") && paged().is_none(), "{pager} {options}: {seen}");
    }
    // Into a pipe nothing is paged.
    let plain = kymo()
        .command(report.split(' '))
        .env("KYMO_PAGER", "dd of=paged status=none")
        .output()
        .expect("it runs");
    assert!(plain.status.success() && !plain.stdout.contains(&0x1b) && !folder.join("paged").exists());
}

/// Checks that small rows are left out on a terminal only, and that a limit of 0 shows them there, too.
#[test]
fn small_rows() {
    const TEST: &str = "terminal::small_rows";
    let Some(()) = require(TEST, &[Need::Program("script"), Need::Program("stty")]) else { return };
    let folder = fresh_folder("small-rows");
    let file = folder.join("perf.data");
    let command =
        "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; ls / >/dev/null; ls / > /dev/null'";
    let record =
        ["record", "-q", "-e", "cpu-clock", "-F", "20000", "-o", text(&file), "--", "sh", "-c", command];
    kymo().succeed(record);
    let report = format!("--no-pager report --no-children -g none -i {}", text(&file));
    // A remark has a space between number and sign; a row may begin with a colour.
    let is_row = |line: &&str| {
        line.split_once('%').is_some_and(|(before, _)| before.ends_with(|c: char| c.is_ascii_digit()))
    };
    let rows = |printed: &str| printed.lines().filter(is_row).count();
    let all = rows(&kymo().succeed(report.split(' ')).stdout);
    let some = rows(&on_a_terminal(&folder, "", &report));
    let again = rows(&on_a_terminal(&folder, "", &format!("{report} --percent-limit 0")));
    assert!(some < all && again == all, "{some} {again} {all}");
}

/// Checks that `kymo locks -p` draws its table anew over the one before while it observes, and
/// leaves the last one.
#[test]
fn live_table_of_locks() {
    const TEST: &str = "terminal::live_table_of_locks";
    let needs = [Need::Root, Need::Program("cc"), Need::Program("script"), Need::Program("stty")];
    let Some(()) = require(TEST, &needs) else { return };
    let program = build("waits.c", &["-g"]);
    let again = "i=0; while [ $i -lt 100 ]; do $0 convoy >/dev/null; i=$((i+1)); done";
    let observed = Running::start(Command::new("sh").args(["-c", again, text(&program)]));
    let words = format!("locks -d 8 --interval 200ms -p {}", observed.pid());
    let seen = on_a_terminal(&fresh_folder("live-locks"), "", &words);
    let (before, last) = seen.rsplit_once("A\x1b[J").unwrap_or_else(|| panic!("nothing was drawn: {seen}"));
    for part in [before, last] {
        assert!(part.contains(" waits for ") && part.contains("  lock  (waits, "), "{seen}");
    }
    assert!(!last.contains("(from samples)"), "{last}");
}

/// Checks that a recording without an end says on a terminal that it has begun and how it ends, and
/// that one with a duration does not.
#[test]
fn recordings_say_how_they_end() {
    const TEST: &str = "terminal::recordings_say_how_they_end";
    let Some(()) = require(TEST, &[Need::Program("script"), Need::Program("stty")]) else { return };
    let file = fresh_folder("says-how-it-ends").join("any.data");
    let sleep = Running::start(Command::new("sleep").arg("60"));
    let words = format!("record -e task-clock:u -o {} -p {}", text(&file), sleep.pid());
    let mut terminal = AtTerminal::start(&words, ["", ""]);
    terminal.says("kymo record: Ctrl-C ends the recording");
    terminal.press("\x03");
    terminal.says("Captured and wrote");
    let mut terminal = AtTerminal::start(&format!("{words} --duration 0.1"), ["", ""]);
    terminal.says("status=0");
    assert!(!terminal.emulator.usual.contains("Ctrl-C"), "{}", terminal.emulator.usual);
}

/// Checks that `kymo demo` records its program, shows its functions, and leaves a page.
#[test]
fn demo() {
    let folder = fresh_folder("demo");
    let said = kymo().command(["demo", "1"]).current_dir(&folder).output().expect("it runs");
    let printed = String::from_utf8_lossy(&said.stdout);
    let words = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{printed}{words}");
    assert!(printed.contains("way_to_one") && printed.contains("$ kymo report"), "{printed}{words}");
    let page = std::fs::read_to_string(folder.join("kymo-demo.html")).expect("a page");
    assert!(page.contains("way_to_one") && folder.join("kymo-demo.data").exists());
}

/// Checks that nothing is exported to a terminal, and what is said instead.
#[test]
fn exports_need_a_file() {
    const TEST: &str = "terminal::exports_need_a_file";
    let Some(()) = require(TEST, &[Need::Program("script")]) else { return };
    let recording = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/recordings/callgraph.data");
    let line = format!("{} export --to folded {}", kymo().path().display(), text(&recording));
    let mut script = Command::new("script");
    let said = script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).output().expect("script runs");
    let seen = String::from_utf8_lossy(&said.stdout);
    assert!(!said.status.success() && seen.contains("name a file with -o FILE"), "{seen}");
    assert!(!seen.contains(';'), "no stack was printed: {seen}");
}
