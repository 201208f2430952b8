//! A pager behind stdout, as git has it: only on a terminal, by `KYMO_PAGER` or `PAGER`, else `less`.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::signals::Signals;
use crate::terminal;

/// The pager that is there without being named; with git's options if `LESS` has none.
const USUAL: &str = "less";
const USUAL_OPTIONS: &str = "FRX";

/// A pager that shows what this process prints.
#[derive(Debug)]
pub struct Pager(Child);

/// The command of the pager; `None`: none is wanted.
fn command(var: impl Fn(&str) -> Option<OsString>) -> Option<OsString> {
    let named = ["KYMO_PAGER", "PAGER"].into_iter().find_map(var);
    let command = named.unwrap_or_else(|| USUAL.into());
    (!command.is_empty() && command != OsStr::new("cat")).then_some(command)
}

/// Whether the program that a command begins with is there.
fn is_installed(command: &OsStr) -> bool {
    let text = command.to_string_lossy();
    let Some(program) = text.split_whitespace().next() else { return false };
    if program.contains('/') {
        return Path::new(program).is_file();
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(program).is_file())
}

impl Pager {
    /// Starts it, and lets stdout go to it; `None` where there is no terminal, or no pager.
    pub fn start() -> Option<Pager> {
        let stdout = std::io::stdout();
        if !stdout.is_terminal() || std::env::var_os("TERM").is_none_or(|term| term == "dumb") {
            return None;
        }
        let command = command(|name| std::env::var_os(name)).filter(|command| is_installed(command))?;
        // What tables look like is that of the terminal.
        terminal::look();
        // Words between blanks; no shell reads them.
        let mut words = command.to_str()?.split_whitespace();
        let mut pager = Command::new(words.next()?);
        pager.args(words).stdin(Stdio::piped());
        if std::env::var_os("LESS").is_none() {
            pager.env("LESS", USUAL_OPTIONS);
        }
        let mut child = pager.spawn().ok()?;
        let input = child.stdin.take()?;
        rustix::stdio::dup2_stdout(input.as_fd()).ok()?;
        Some(Pager(child))
    }

    /// Ends its input, and waits until its reader has seen enough.
    pub fn finish(mut self) {
        // It alone gets the keys from here on; a second Ctrl-C ends nothing that is not done.
        let _caught = Signals::catch();
        let _ = std::io::stdout().flush();
        if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
            let _ = rustix::stdio::dup2_stdout(&null);
        }
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks which variable counts, and that `cat` and nothing mean no pager.
    #[test]
    fn commands() {
        let with = |own: Option<&str>, others: Option<&str>| {
            command(|name| if name == "KYMO_PAGER" { own } else { others }.map(Into::into))
        };
        assert_eq!(with(None, None), Some("less".into()));
        assert_eq!(with(None, Some("more")), Some("more".into()));
        assert_eq!(with(Some("most -s"), Some("more")), Some("most -s".into()));
        assert_eq!([with(Some(""), Some("more")), with(None, Some("cat"))], [None, None]);
        assert!(is_installed(OsStr::new("sh -c x")) && !is_installed(OsStr::new("kymo-no-such-pager")));
    }
}
