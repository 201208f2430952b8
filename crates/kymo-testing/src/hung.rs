//! Children of a test that never end: they are told of and killed, so that their test fails and the others go on.
use rustix::process::{Pid, Signal, kill_process};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

/// No child of a test lives so long where nobody asked for long tests.
const MOST_LIFE: Duration = Duration::from_secs(600);
/// Between two looks.
const PAUSE: Duration = Duration::from_secs(10);
/// The kernel's unit of times in `/proc/PID/stat`, which it tells every program alike (`USER_HZ`).
const TICKS_PER_SECOND: u64 = 100;

/// From now on kills each child of this process that is ten minutes old, and says on stderr what all its threads were
/// doing, in the kernel too. Not with `KYMO_SOAK`, where tests last as long as they are told to. Any number of calls
/// watch once.
pub fn kill_hung_children() {
    static ONCE: Once = Once::new();
    if std::env::var_os("KYMO_SOAK").is_some() {
        return;
    }
    ONCE.call_once(|| {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(PAUSE);
                kill_older_than(MOST_LIFE);
            }
        });
    });
}

/// Kills the children of this process that are as old as that.
fn kill_older_than(most: Duration) {
    let processes = processes();
    let own = std::process::id();
    for process in processes.iter().filter(|process| process.parent == own) {
        let (Some(age), Some(pid)) = (process.age(), Pid::from_raw(process.id as i32)) else { continue };
        if age >= most {
            let mut words = format!("a child of this test is {} s old, and killed:\n", age.as_secs());
            describe(process.id, &processes, 0, &mut words);
            eprint!("{words}");
            // One that has ended meanwhile needs none.
            _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// What `/proc/PID/stat` says of a process.
struct Process {
    id: u32,
    parent: u32,
    state: char,
    /// Since the machine was started.
    started: Duration,
}

impl Process {
    fn read(id: u32) -> Option<Process> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name in brackets may have any characters.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let ticks: u64 = fields.get(19)?.parse().ok()?;
        Some(Process {
            id,
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            started: Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND),
        })
    }

    /// `None` for one that has ended and only waits to be asked for its status.
    fn age(&self) -> Option<Duration> {
        let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
        let seconds: f64 = uptime.split(' ').next()?.parse().ok()?;
        (self.state != 'Z').then(|| Duration::from_secs_f64(seconds).saturating_sub(self.started))
    }
}

fn processes() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(Process::read).collect()
}

/// A process with its threads, and its children below it.
fn describe(id: u32, all: &[Process], depth: usize, words: &mut String) {
    /// More would tell nothing new.
    const MOST_THREADS: usize = 20;
    let folder = Path::new("/proc").join(id.to_string());
    let command = std::fs::read(folder.join("cmdline")).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    // Writing to a String cannot fail.
    _ = writeln!(words, "{:1$}{id} {command}", "", depth * 2);
    let threads = std::fs::read_dir(folder.join("task")).into_iter().flatten().flatten();
    for thread in threads.take(MOST_THREADS) {
        let text = |name| std::fs::read_to_string(thread.path().join(name)).unwrap_or_default();
        let stat = text("stat");
        let state = stat.rsplit_once(") ").map_or("?", |(_, rest)| &rest[..1]);
        let (call, stack) = (text("syscall"), text("stack"));
        let functions: Vec<&str> = stack.lines().filter_map(|line| line.split(' ').nth(1)).collect();
        let name = thread.file_name();
        _ = writeln!(
            words,
            "{:4$}  thread {} {state}, system call {}, in the kernel: {}",
            "",
            name.to_string_lossy(),
            call.trim_end(),
            functions.join(" < "),
            depth * 2
        );
    }
    for child in all.iter().filter(|process| process.parent == id && depth < 4) {
        describe(child.id, all, depth + 1, words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Checks that a child is killed when it is old enough and not before, and that its children are described.
    #[test]
    fn an_old_child_is_killed() {
        let mut child = Command::new("sh").args(["-c", "sleep 1000 & wait"]).spawn().expect("a shell");
        kill_older_than(MOST_LIFE);
        assert!(child.try_wait().expect("a status").is_none(), "it is young");
        let mut words = String::new();
        while !words.contains("sleep 1000 \n") {
            words.clear();
            describe(child.id(), &processes(), 0, &mut words);
        }
        assert!(words.starts_with(&format!("{} sh -c", child.id())), "{words}");
        let sleeper = words.lines().find_map(|line| line.strip_suffix(" sleep 1000 ")?.trim().parse().ok());
        kill_older_than(Duration::ZERO);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().expect("a status")), Some(9));
        _ = kill_process(sleeper.and_then(Pid::from_raw).expect("a sleeper"), Signal::KILL);
    }
}
