//! The browser that `kymo report` opens at a terminal, through a pseudo-terminal of `script`.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::programs::build;
use crate::scenario::fresh_folder;
use crate::tools::{Need, kymo, require, text};

/// A terminal that says nothing for so long will not say what is waited for.
const HANGS_AFTER: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

fn recording() -> String {
    format!("{}/../../fixtures/recordings/callgraph.data", env!("CARGO_MANIFEST_DIR"))
}

/// What a terminal shows, by the few sequences that the browser writes.
#[derive(Default)]
struct Emulator {
    /// The screen that a program has for itself.
    lines: Vec<Vec<char>>,
    place: (usize, usize),
    /// Whether a program has a screen for itself.
    is_other: bool,
    /// What was written to the usual screen.
    usual: String,
    /// The beginning of a sequence or a character.
    part: Vec<u8>,
}

impl Emulator {
    fn take(&mut self, bytes: &[u8]) {
        self.part.extend_from_slice(bytes);
        loop {
            let part = std::mem::take(&mut self.part);
            let Some(&first) = part.first() else { return };
            if first == 0x1b {
                let end = part.iter().position(|byte| byte.is_ascii_alphabetic());
                let Some(end) = end else {
                    self.part = part;
                    return;
                };
                self.obey(&part[..=end]);
                self.part = part[end + 1..].to_vec();
                continue;
            }
            let length = (1..=part.len().min(4)).find(|length| std::str::from_utf8(&part[..*length]).is_ok());
            let Some(length) = length else {
                self.part = part;
                return;
            };
            let char = std::str::from_utf8(&part[..length]).expect("a character").chars().next();
            self.put(char.expect("a character"));
            self.part = part[length..].to_vec();
        }
    }

    fn obey(&mut self, sequence: &[u8]) {
        let words = String::from_utf8_lossy(sequence);
        let body = words.trim_start_matches("\x1b[");
        match body.chars().last() {
            Some('H') => {
                let mut numbers = body.trim_end_matches('H').split(';').map(|word| word.parse().unwrap_or(1));
                let (y, x): (usize, usize) = (numbers.next().unwrap_or(1), numbers.next().unwrap_or(1));
                self.place = (x - 1, y - 1);
            }
            Some('J') => self.lines.clear(),
            Some('h' | 'l') if body.starts_with("?1049") => {
                self.is_other = body.ends_with('h');
                self.lines.clear();
            }
            _ => {}
        }
    }

    fn put(&mut self, char: char) {
        if !self.is_other {
            self.usual.push(char);
            return;
        }
        if char == '\r' || char == '\n' {
            self.place = (0, self.place.1 + usize::from(char == '\n'));
            return;
        }
        assert!(!char.is_control(), "{char:?} on the screen");
        let (x, y) = self.place;
        self.lines.resize(self.lines.len().max(y + 1), Vec::new());
        let line = &mut self.lines[y];
        line.resize(line.len().max(x + 1), ' ');
        line[x] = char;
        self.place.0 += 1;
    }

    fn screen(&self) -> String {
        let line = |line: &Vec<char>| line.iter().collect::<String>().trim_end().to_owned();
        self.lines.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// A shell at a terminal of 80 columns and 24 lines, that runs kymo and says what came of it.
struct AtTerminal {
    child: Child,
    emulator: Emulator,
    /// Bytes that came since the last key.
    bytes: usize,
}

impl AtTerminal {
    /// Runs `before; kymo WORDS; after`. The shell prints `pid=`, `status=` and `restored`.
    fn start(words: &str, [before, after]: [&str; 2]) -> AtTerminal {
        let program = kymo().path().display().to_string();
        let line = format!(
            "stty cols 80 rows 24; was=$(stty -g); ended() {{ echo status=$1; [ \"$was\" = \"$(stty -g)\" ] && echo restored; }}; \
             {before} sh -c 'echo pid=$$; exec {program} {words}'; ended $?; {after}"
        );
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        script.env("TERM", "xterm").env("SHELL", "/bin/sh").env_remove("NO_COLOR").env_remove("KYMO_PAGER");
        let child = script.spawn().expect("script runs");
        AtTerminal { child, emulator: Emulator::default(), bytes: 0 }
    }

    /// Waits until this is so.
    fn until(&mut self, what: &str, holds: impl Fn(&Emulator) -> bool) {
        let mut buffer = [0; 4096];
        while !holds(&self.emulator) {
            let output = self.child.stdout.as_mut().expect("a pipe");
            let ready = poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&HANGS_AFTER)).expect("a pipe");
            let count = if ready == 0 { 0 } else { output.read(&mut buffer).expect("a pipe") };
            let Emulator { usual, .. } = &self.emulator;
            assert!(count > 0, "{what} does not come:\n{}\n---\n{usual}", self.emulator.screen());
            self.emulator.take(&buffer[..count]);
            self.bytes += count;
        }
    }

    fn shows(&mut self, words: &str) {
        self.until(words, |emulator| emulator.is_other && emulator.screen().contains(words));
    }

    /// Waits until the shell says this.
    fn says(&mut self, words: &str) {
        self.until(words, |emulator| !emulator.is_other && emulator.usual.contains(words));
    }

    fn press(&mut self, keys: &str) {
        self.bytes = 0;
        let input = self.child.stdin.as_mut().expect("a pipe");
        input.write_all(keys.as_bytes()).and_then(|()| input.flush()).expect("it reads");
    }

    fn pid(&self) -> Pid {
        let usual = &self.emulator.usual;
        let number = usual.rsplit("pid=").next().and_then(|rest| rest.lines().next());
        let number = number.and_then(|word| word.trim().parse().ok());
        number.and_then(Pid::from_raw).unwrap_or_else(|| panic!("no number: {usual}"))
    }

    /// Gives the terminal another size.
    fn resize(&self, columns: u16, lines: u16) {
        let terminal = format!("/proc/{}/fd/0", self.pid().as_raw_nonzero());
        let size = ["cols", &columns.to_string(), "rows", &lines.to_string()].map(str::to_owned);
        let done = Command::new("stty").args(["-F", &terminal]).args(size).status().expect("stty runs");
        assert!(done.success());
    }
}

impl Drop for AtTerminal {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// The tests have what they need.
fn ready(test: &str) -> Option<()> {
    require(test, &[Need::Program("script"), Need::Program("stty")])
}

fn report() -> String {
    format!("report -q -i {}", recording())
}

/// Checks that the browser opens, moves, opens rows, narrows, follows the terminal's size, and ends
/// with the terminal as it was; and that a key which moves one row writes little.
#[test]
fn opens_and_ends() {
    let Some(()) = ready("browser::opens_and_ends") else { return };
    let mut terminal = AtTerminal::start(&report(), ["", ""]);
    terminal.shows("?: help");
    terminal.shows("Functions, by total");
    terminal.press("\x1b[B");
    terminal.shows("2/");
    assert!(terminal.bytes < 700, "{} bytes for a key", terminal.bytes);
    terminal.press("2E");
    terminal.shows("Call tree");
    terminal.shows("    - ");
    terminal.press("\x1b[F");
    terminal.until("the last row", |emulator| {
        let screen = emulator.screen();
        let numbers = screen.lines().last().and_then(|line| line.split_once("  ?: help"));
        numbers.and_then(|(numbers, _)| numbers.split_once('/')).is_some_and(|(at, count)| at == count)
    });
    let before = terminal.emulator.screen();
    terminal.press("\x0c");
    terminal.until("the same screen", |emulator| emulator.screen() == before);
    terminal.press("?");
    terminal.shows("callers of the selected function");
    // Escape, byte by byte: the first is no key of its own while more follows.
    terminal.press("\x1b");
    terminal.shows("Call tree");
    terminal.press("1/no such name");
    terminal.shows("names with: no such name_");
    terminal.shows("nothing is left by these conditions");
    terminal.press("\x7f\x1b");
    terminal.shows("?: help");
    terminal.resize(60, 12);
    terminal.until("a small screen", |emulator| {
        emulator.lines.len() == 12 && emulator.lines.iter().all(|line| line.len() <= 60)
    });
    terminal.resize(100, 30);
    terminal.until("a large screen", |emulator| emulator.lines.len() == 30);
    terminal.press("q");
    terminal.says("status=0");
    terminal.says("restored");
}

/// Checks the code of a function: at its hottest instruction, and back to the list.
#[test]
fn code_of_a_function() {
    let Some(()) = ready("browser::code_of_a_function") else { return };
    if require("browser::code_of_a_function", &[Need::Program("cc")]).is_none() {
        return;
    }
    let program = build("spin.c", &[]);
    let file = fresh_folder("browser-code").join("perf.data");
    kymo().succeed(["record", "-q", "-e", "cpu-clock:u", "-o", text(&file), "--", text(&program)]);
    let mut terminal = AtTerminal::start(&format!("report -i {}", text(&file)), ["", ""]);
    terminal.shows("Functions, by total");
    terminal.press("s");
    terminal.shows("Functions, by self");
    terminal.press("a");
    terminal.until("the code", |emulator| emulator.screen().contains("shl "));
    terminal.press("\x1b[H");
    terminal.shows("Disassembly of spin for cpu-clock:u");
    terminal.press("q");
    terminal.shows("Functions, by self");
    terminal.press("q");
    terminal.says("status=0");
    terminal.says("restored");
}

/// Checks that signals end it with the terminal as it was and the status of that signal, and that
/// Ctrl-C as a key is an end like any other.
#[test]
fn ends_by_signals() {
    let Some(()) = ready("browser::ends_by_signals") else { return };
    for (signal, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::HUP, 129)] {
        let mut terminal = AtTerminal::start(&report(), ["", ""]);
        terminal.shows("?: help");
        kill_process(terminal.pid(), signal).expect("it is there");
        terminal.says(&format!("status={status}"));
        terminal.says("restored");
    }
    let mut terminal = AtTerminal::start(&report(), ["", ""]);
    terminal.shows("?: help");
    terminal.press("\x03");
    terminal.says("status=0");
    terminal.says("restored");
}

/// Checks that a signal ends it also while the terminal takes no output: nobody reads what `script`
/// gets, and pictures of many sizes fill what lies between.
#[test]
fn ends_while_the_terminal_is_stuck() {
    let Some(()) = ready("browser::ends_while_the_terminal_is_stuck") else { return };
    let mut terminal = AtTerminal::start(&report(), ["", ""]);
    terminal.shows("?: help");
    terminal.press("2E");
    terminal.shows("    - ");
    let script = Pid::from_child(&terminal.child);
    kill_process(script, Signal::STOP).expect("it is there");
    for columns in 40..140 {
        terminal.resize(columns, 60);
        // Each picture by itself, where the machine is fast enough.
        std::thread::sleep(Duration::from_millis(5));
    }
    let ended = terminal.pid();
    kill_process(ended, Signal::TERM).expect("it is there");
    // The shell waits for it, so its number is taken until then.
    while std::fs::read_link(format!("/proc/{}/exe", ended.as_raw_nonzero())).is_ok() {
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(script, Signal::CONT).expect("it is there");
    terminal.until("the status", |emulator| {
        emulator.screen().contains("status=143") || emulator.usual.contains("status=143")
    });
    terminal.until("the restored line", |emulator| {
        emulator.screen().contains("restored") || emulator.usual.contains("restored")
    });
}

/// Checks that Ctrl-Z gives the terminal back to the shell, and that the screen is there again when
/// the shell goes on with it; and that it does nothing where there is no shell to go back to.
#[test]
fn suspends() {
    let Some(()) = ready("browser::suspends") else { return };
    let mut terminal = AtTerminal::start(&report(), ["set -m;", "echo between; fg >/dev/null; ended $?"]);
    terminal.shows("?: help");
    let before = terminal.emulator.screen();
    terminal.press("\x1a");
    terminal.until("the shell", |emulator| emulator.usual.contains("between"));
    assert!(terminal.emulator.usual.contains("restored"), "{}", terminal.emulator.usual);
    terminal.until("the same screen", |emulator| emulator.is_other && emulator.screen() == before);
    terminal.press("q");
    terminal.says("status=0");
    let mut terminal = AtTerminal::start(&report(), ["", ""]);
    terminal.shows("?: help");
    terminal.press("\x1a\x1b[B");
    terminal.shows("2/");
    terminal.press("q");
    terminal.says("status=0");
    terminal.says("restored");
}

/// Checks that text is printed as before wherever text is wanted: into a pipe from a terminal, with
/// `--stdio` and other options about text, without a capable terminal, with `--no-pager`.
#[test]
fn text_where_text_is_wanted() {
    let Some(()) = ready("browser::text_where_text_is_wanted") else { return };
    let file = recording();
    let piped = kymo().succeed(["report", "-i", &file]).stdout;
    assert_eq!(kymo().succeed(["report", "--stdio", "-i", &file]).stdout, piped);
    let mut terminal = AtTerminal::start(&format!("report -i {file} | cat"), ["", ""]);
    terminal.says("status=0");
    let said = terminal.emulator.usual.replace("\r\n", "\n");
    assert!(said.contains(&piped), "{said}\n{piped}");
    for (words, before) in [
        ("--no-pager report --stdio -i", ""),
        ("--no-pager report -i", ""),
        ("--no-pager report --sort comm -i", ""),
        ("report -g none -i", "PAGER=cat"),
        ("report -i", "TERM=dumb"),
    ] {
        let mut terminal = AtTerminal::start(&format!("{words} {file}"), [before, ""]);
        terminal.says("status=0");
        assert!(terminal.emulator.usual.contains("# To display the recording's facts"), "{words}");
    }
}

/// Checks what is said where `--tui` cannot open the browser.
#[test]
fn refusals_of_tui() {
    let file = recording();
    kymo().run(["report", "--tui", "-i", &file]).ends(129).says("--tui needs a terminal on stdin and stdout");
    let both = kymo().run(["report", "--tui", "--json", "-i", &file]).ends(129);
    both.says("--tui opens the browser, and --json is about text");
}

/// Checks that a thread whose name would act on a terminal is shown as text.
#[test]
fn hostile_names() {
    const TEST: &str = "browser::hostile_names";
    let Some(()) = ready(TEST) else { return };
    let folder = fresh_folder("hostile-names");
    let (program, file) = (folder.join("\x1b[2Jred"), folder.join("perf.data"));
    std::fs::copy("/bin/sh", &program).expect("a copy of the shell");
    let work = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let record = ["record", "-q", "-e", "cpu-clock", "-o", text(&file), "--", text(&program), "-c", work];
    kymo().succeed(record);
    let mut terminal = AtTerminal::start(&format!("report -q -i {}", text(&file)), ["", ""]);
    terminal.shows("?: help");
    terminal.press("5");
    terminal.shows("\\x1b[2Jred");
    terminal.press("4");
    terminal.shows("Modules");
    terminal.shows("\\x1b[2Jred");
    terminal.press("q");
    terminal.says("restored");
}

/// Checks that a recording without samples is told of in a sentence, not on an empty screen.
#[test]
fn nothing_to_show() {
    let Some(()) = ready("browser::nothing_to_show") else { return };
    let file = recording();
    let mut terminal = AtTerminal::start(&format!("report --tid 1 -i {file}"), ["", ""]);
    terminal.says("status=0");
    let said = &terminal.emulator.usual;
    assert!(said.contains("--tid") || said.contains("no sample"), "{said}");
}
