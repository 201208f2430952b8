//! kymo at a pseudo-terminal of `script`, and what a person would see there.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

use crate::tools::kymo;

/// A terminal that says nothing for so long will not say what is waited for.
const HANGS_AFTER: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

/// What a terminal shows, by the few sequences that the browser writes.
#[derive(Default)]
pub(crate) struct Emulator {
    /// The screen that a program has for itself.
    pub(crate) lines: Vec<Vec<char>>,
    place: (usize, usize),
    /// Whether a program has a screen for itself.
    pub(crate) is_other: bool,
    /// What was written to the usual screen.
    pub(crate) usual: String,
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

    pub(crate) fn screen(&self) -> String {
        let line = |line: &Vec<char>| line.iter().collect::<String>().trim_end().to_owned();
        self.lines.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

/// A shell at a terminal of 80 columns and 24 lines, that runs kymo and says what came of it.
pub(crate) struct AtTerminal {
    pub(crate) child: Child,
    pub(crate) emulator: Emulator,
    /// Bytes that came since the last key.
    pub(crate) bytes: usize,
}

impl AtTerminal {
    /// Runs `before; kymo WORDS; after`. The shell prints `pid=`, `status=` and `restored`.
    pub(crate) fn start(words: &str, [before, after]: [&str; 2]) -> AtTerminal {
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
    pub(crate) fn until(&mut self, what: &str, holds: impl Fn(&Emulator) -> bool) {
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

    pub(crate) fn shows(&mut self, words: &str) {
        self.until(words, |emulator| emulator.is_other && emulator.screen().contains(words));
    }

    /// Waits until the shell says this.
    pub(crate) fn says(&mut self, words: &str) {
        self.until(words, |emulator| !emulator.is_other && emulator.usual.contains(words));
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.bytes = 0;
        let input = self.child.stdin.as_mut().expect("a pipe");
        input.write_all(keys.as_bytes()).and_then(|()| input.flush()).expect("it reads");
    }

    pub(crate) fn pid(&self) -> Pid {
        let usual = &self.emulator.usual;
        let number = usual.rsplit("pid=").next().and_then(|rest| rest.lines().next());
        let number = number.and_then(|word| word.trim().parse().ok());
        number.and_then(Pid::from_raw).unwrap_or_else(|| panic!("no number: {usual}"))
    }

    /// Gives the terminal another size.
    pub(crate) fn resize(&self, columns: u16, lines: u16) {
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
