//! Whether a process may be sent SIGQUIT to open its attach socket.
//!
//! The signal ends a process that does not catch it, and makes a virtual machine which does not
//! find the trigger file print all its stacks. So each of these must hold:
//!
//! - libjvm.so is mapped, and the signal is caught (`SigCgt`): not `-Xrs`, not an earlier program
//!   of this process id;
//! - the thread that serves the signal is there, and none that serves a socket: one without a
//!   socket means that the socket was deleted;
//! - neither its arguments nor its environment disable the mechanism, nor hide other arguments in
//!   files, unless its performance data says that it can be attached to;
//! - it is not stopped, and has no trigger file of anyone else in its working folder, which it
//!   would look at first.

use super::{Hotspot, HotspotError};
use crate::proc::{self, InnerIdentity, Mappings, TmpFolder, field, read_from};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use std::os::fd::OwnedFd;
use std::path::Path;

/// Names of HotSpot's threads, as far as the kernel keeps them.
const SIGNAL_THREAD: &[u8] = b"Signal Dispatch";
const SOCKET_THREAD: &[u8] = b"Attach Listener";
/// Bytes of the performance data that are searched.
const PERFORMANCE_DATA_BYTES: u64 = 256 << 10;

/// A process that may be sent the signal.
pub(super) struct SignalTarget {
    /// It is this process, not one that got its number later.
    pub(super) pidfd: OwnedFd,
}

fn refused(why: impl Into<String>) -> HotspotError {
    HotspotError::Refused(why.into())
}

/// Whether a process has ended.
pub(super) fn is_gone(pid: i32) -> bool {
    matches!(proc::state(pid, pid), None | Some('Z' | 'X'))
}

impl SignalTarget {
    pub(super) fn examine(
        pid: i32,
        inner: InnerIdentity,
        tmp: &TmpFolder,
    ) -> Result<SignalTarget, HotspotError> {
        let number = Pid::from_raw(pid).ok_or(HotspotError::Gone)?;
        // First: what is read afterwards is of the process that the descriptor means.
        let pidfd = pidfd_open(number, PidfdFlags::empty()).map_err(|_| HotspotError::Gone)?;
        let status = proc::text(format!("/proc/{pid}/status")).map_err(|_| HotspotError::Gone)?;
        if InnerIdentity::in_status(&status) != Some(inner) {
            return Err(refused("it has changed its user or its PID namespace"));
        }
        if !Mappings::new(&proc::maps(pid)).any(|entry| Hotspot::is_library(entry.path)) {
            return Err(refused("it has no libjvm.so mapped"));
        }
        catches_the_signal(&status)?;
        serves_the_signal(pid)?;
        is_permitted(pid, inner, tmp)?;
        if Path::new(&format!("/proc/{pid}/cwd/.attach_pid{}", inner.pid)).symlink_metadata().is_ok() {
            return Err(refused("another program is attaching to it"));
        }
        Ok(SignalTarget { pidfd })
    }
}

fn catches_the_signal(status: &str) -> Result<(), HotspotError> {
    let caught = field(status, "SigCgt").and_then(|mask| u64::from_str_radix(mask, 16).ok());
    if caught.is_none_or(|mask| mask >> (Signal::QUIT.as_raw() - 1) & 1 == 0) {
        return Err(refused("it does not catch SIGQUIT (-Xrs, or it is not a HotSpot virtual machine)"));
    }
    match field(status, "State").and_then(|state| state.chars().next()) {
        Some('T' | 't') => Err(refused("it is stopped")),
        Some('Z' | 'X') | None => Err(HotspotError::Gone),
        Some(_) => Ok(()),
    }
}

fn serves_the_signal(pid: i32) -> Result<(), HotspotError> {
    let tasks = proc::tasks(pid).map_err(|_| HotspotError::Gone)?;
    let has = |name: &[u8]| tasks.iter().any(|&tid| proc::comm(pid, tid).as_deref() == Some(name));
    if !has(SIGNAL_THREAD) {
        return Err(HotspotError::Starting);
    }
    if has(SOCKET_THREAD) {
        return Err(refused("its attach socket was deleted"));
    }
    Ok(())
}

/// Whether its options permit attaching.
fn is_permitted(pid: i32, inner: InnerIdentity, tmp: &TmpFolder) -> Result<(), HotspotError> {
    let disabled = || refused("it runs with -XX:+DisableAttachMechanism");
    let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}"));
    let words = match (read("cmdline"), read("environ")) {
        (Ok(arguments), Ok(environment)) => [arguments, environment].concat(),
        _ => return Err(refused("/proc does not show its arguments to this user")),
    };
    if memchr_in(&words, b"+DisableAttachMechanism") {
        return Err(disabled());
    }
    match attach_capability(inner, tmp) {
        Some(true) => Ok(()),
        Some(false) => Err(disabled()),
        None if hides_arguments(&words) => {
            Err(refused("some of its options are in files, and -XX:-UsePerfData hides what they say"))
        }
        None => Ok(()),
    }
}

fn memchr_in(text: &[u8], needle: &[u8]) -> bool {
    text.windows(needle.len()).any(|window| window == needle)
}

fn hides_arguments(words: &[u8]) -> bool {
    let is_file = |word: &[u8]| {
        let value = word.iter().position(|&b| b == b'=').map_or(word, |at| &word[at + 1..]);
        word.starts_with(b"@")
            || word.starts_with(b"-XX:Flags=")
            || memchr_in(word, b"-XX:VMOptionsFile")
            || word.starts_with(b"JDK_JAVA_OPTIONS=") && value.contains(&b'@')
    };
    words.split(|&b| b == 0).any(is_file)
}

/// What the machine's performance data says: the first letter of `sun.rt.jvmCapabilities`. `None`
/// if there is none.
fn attach_capability(inner: InnerIdentity, tmp: &TmpFolder) -> Option<bool> {
    const FOLDERS: usize = 64;
    let folders = tmp.names(b"hsperfdata_", FOLDERS);
    let pid = inner.pid.to_string();
    // Of this user: another one's folder may hold anything.
    let mut file = folders.iter().find_map(|folder| tmp.open_below(folder, &pid, inner.uid).ok())?;
    capability_in(&read_from(&mut file, 0, PERFORMANCE_DATA_BYTES).ok()?)
}

fn capability_in(data: &[u8]) -> Option<bool> {
    const NAME: &[u8] = b"sun.rt.jvmCapabilities\0";
    let at = data.windows(NAME.len()).position(|window| window == NAME)?;
    let first = data[at + NAME.len()..].iter().find(|&&byte| byte != 0)?;
    matches!(first, b'0' | b'1').then_some(*first == b'1')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks who may be sent the signal, by what /proc says of it.
    #[test]
    fn signals_that_are_caught() {
        let verdict = |status: &str| catches_the_signal(status).map_err(|error| error.to_string());
        // SIGQUIT is the third bit; the mask of a JVM of JDK 17.
        assert_eq!(verdict("State:\tS (sleeping)\nSigCgt:\t2000000181005ccf\n"), Ok(()));
        for (status, reason) in [
            ("State:\tS (sleeping)\nSigCgt:\t2000000181005ccb\n", "does not catch SIGQUIT"),
            ("State:\tS (sleeping)\nSigCgt:\t0\n", "does not catch SIGQUIT"),
            ("State:\tS (sleeping)\n", "does not catch SIGQUIT"),
            ("State:\tT (stopped)\nSigCgt:\t2000000181005ccf\n", "stopped"),
            ("State:\tZ (zombie)\nSigCgt:\t2000000181005ccf\n", "ended"),
        ] {
            assert!(verdict(status).unwrap_err().contains(reason), "{status}");
        }
    }

    /// Checks which words may hide an option, and what performance data says.
    #[test]
    fn options_in_files() {
        for words in ["java\0@options\0", "java\0-XX:Flags=f\0", "A=b\0JDK_JAVA_OPTIONS=-Xmx1m @f\0"] {
            assert!(hides_arguments(words.as_bytes()), "{words}");
        }
        assert!(!hides_arguments(b"java\0-jar\0a@b.jar\0MAIL=me@there\0"));
        let data = |value: &str| {
            let data = ["\u{1}\0\0\0sun.rt.jvmCapabilities\0\0\0\0", value].concat();
            capability_in(data.as_bytes())
        };
        assert_eq!([data("1100\0"), data("0100\0"), data("x")], [Some(true), Some(false), None]);
        assert_eq!(capability_in(b"nothing"), None);
    }

    /// Checks that no program which is no virtual machine is ever a candidate.
    #[test]
    fn this_process_is_none() {
        let pid = std::process::id().cast_signed();
        let (inner, tmp) = (InnerIdentity::of(pid).unwrap(), TmpFolder::of(pid).unwrap());
        let error = SignalTarget::examine(pid, inner, &tmp).err().expect("refused");
        assert!(error.to_string().contains("no libjvm.so"), "{error}");
        assert!(!is_gone(pid));
    }
}
