//! Java's frames and monitors, by the machine's own list of threads (`Thread.print`).
//!
//! ```text
//!  "left" #17 prio=5 os_prio=0 cpu=1.14ms tid=0x.. nid=0x3faf waiting for monitor entry  [0x..]
//!     java.lang.Thread.State: BLOCKED (on object monitor)
//!          at J.take(J.java:4)
//!          - waiting to lock <0x00000000e0c4b0f8> (a java.lang.Object)
//!          - locked <0x00000000e0c4b0e8> (a java.lang.Object)
//! ```
use kymo_perf::hotspot::{Hotspot, HotspotError};
use kymo_perf::proc::{self, Mappings};
use std::collections::HashMap;
use std::time::Duration;

/// How long a machine may take to answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Between a function, its file and its line, and between frames.
const FIELD: char = '\t';
const FRAME: char = '\n';

/// A thread as the machine has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct JavaThread {
    /// Frames, innermost first: function, file and line between tabs, frames between newlines.
    pub(super) frames: String,
    /// The monitor that it waits for: `0x.. (a java.lang.Object)`.
    pub(super) monitor: String,
    /// The thread that has it, by its own number.
    pub(super) holder: Option<i32>,
}

/// The Java threads of a process, by their own numbers; none if it runs no Java.
///
/// # Errors
/// Why the machine did not say, for the user.
pub(super) fn threads(pid: i32) -> Result<HashMap<i32, JavaThread>, String> {
    let maps = proc::maps(pid);
    if !Mappings::new(&maps).any(|mapping| Hotspot::is_library(mapping.path)) {
        return Ok(HashMap::new());
    }
    let ask = || -> Result<String, HotspotError> { Hotspot::find(pid)?.thread_dump(TIMEOUT) };
    match ask() {
        Ok(text) => Ok(parse(&text)),
        Err(error) => Err(format!("Java's functions in process {pid} are addresses: {error}")),
    }
}

fn parse(text: &str) -> HashMap<i32, JavaThread> {
    let mut threads: HashMap<i32, JavaThread> = HashMap::new();
    let mut holders: HashMap<&str, i32> = HashMap::new();
    let mut current = None;
    for line in text.lines() {
        if line.starts_with('"') {
            current = number(line);
            if let Some(tid) = current {
                threads.insert(tid, JavaThread::default());
            }
            continue;
        }
        let Some((tid, thread)) = current.and_then(|tid| Some((tid, threads.get_mut(&tid)?))) else {
            continue;
        };
        let line = line.trim_start();
        if let Some(frame) = line.strip_prefix("at ") {
            thread.push(frame);
        } else if let Some(monitor) = line.strip_prefix("- waiting to lock <") {
            thread.monitor = monitor.replacen('>', "", 1);
        } else if let Some((monitor, _)) =
            line.strip_prefix("- locked <").and_then(|rest| rest.split_once('>'))
        {
            holders.insert(monitor, tid);
        }
    }
    for thread in threads.values_mut() {
        let monitor = thread.monitor.split(' ').next().unwrap_or_default();
        thread.holder = holders.get(monitor).copied();
    }
    threads
}

/// `nid=0x3faf`, or from JDK 19 on `nid=16303`.
fn number(line: &str) -> Option<i32> {
    // Behind the name, in which anything may be.
    let rest = &line[line.rfind('"')?..];
    let number = rest.split_once("nid=")?.1.split(' ').next()?;
    match number.strip_prefix("0x") {
        Some(digits) => i32::from_str_radix(digits, 16).ok(),
        None => number.parse().ok(),
    }
}

impl JavaThread {
    /// A frame: `J.take(J.java:4)`, `java.lang.Thread.run(java.base@17.0.1/Thread.java:840)`,
    /// `jdk.internal.misc.Unsafe.park(java.base@17.0.1/Native Method)`.
    fn push(&mut self, frame: &str) {
        let (function, place) = frame.split_once('(').unwrap_or((frame, ""));
        let place = place.trim_end_matches(')');
        let place = place.rsplit('/').next().unwrap_or(place);
        let (file, line) = place.split_once(':').unwrap_or((place, ""));
        if !self.frames.is_empty() {
            self.frames.push(FRAME);
        }
        let words = [function, file, line];
        for (at, word) in words.into_iter().enumerate() {
            if at > 0 {
                self.frames.push(FIELD);
            }
            self.frames.extend(word.chars().filter(|letter| !letter.is_control()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUMP: &str = "2026-11-28 21:00:00\nFull thread dump OpenJDK 64-Bit Server VM (17.0.1):\n\n\
        \"left \\\" nid=7 \" #17 prio=5 os_prio=0 cpu=1.14ms tid=0x00007f nid=0x3faf waiting for monitor entry  [0x1]\n   \
        java.lang.Thread.State: BLOCKED (on object monitor)\n\tat J.take(J.java:4)\n\t\
        - waiting to lock <0x00000000e0c4b0f8> (a java.lang.Object)\n\t- locked <0x00000000e0c4b0e8> (a java.lang.Object)\n\t\
        at java.lang.Thread.run(java.base@17.0.1/Thread.java:840)\n\n\
        \"right\" #18 prio=5 os_prio=0 nid=16304 waiting for monitor entry  [0x2]\n\tat J.take(J.java:4)\n\t\
        - waiting to lock <0x00000000e0c4b0e8> (a java.lang.Object)\n\t- locked <0x00000000e0c4b0f8> (a java.lang.Object)\n\n\
        \"GC Thread#0\" os_prio=0 cpu=4.60ms tid=0x7 nid=0x3f99 runnable\n\nFound one Java-level deadlock:\n";

    /// Checks frames, monitors and who has them, with numbers as both kinds of machines write them,
    /// and a name that looks like what follows it.
    #[test]
    fn threads_of_a_dump() {
        let threads = parse(DUMP);
        assert_eq!(threads.len(), 3);
        let left = &threads[&0x3faf];
        assert_eq!(left.frames, "J.take\tJ.java\t4\njava.lang.Thread.run\tThread.java\t840");
        assert_eq!(
            (left.monitor.as_str(), left.holder),
            ("0x00000000e0c4b0f8 (a java.lang.Object)", Some(16304))
        );
        assert_eq!(threads[&16304].holder, Some(0x3faf));
        assert_eq!(threads[&0x3f99], JavaThread::default());
        assert!(parse("nonsense\n\"\n\" nid=\nat x\n").is_empty());
    }
}
