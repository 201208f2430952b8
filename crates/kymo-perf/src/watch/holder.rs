//! Which processes hold breakpoint registers, as far as the kernel shows it.
//!
//! It does not tell much: a descriptor of an event shows that it is one, not of which kind, and a
//! debugger's breakpoints show nowhere. So these are the ones that *may* hold registers: processes
//! with events open, and debuggers of somebody.
use crate::proc;
use std::fmt;
use std::fs;

/// So many descriptors of one process are looked at, at most.
const DESCRIPTORS: usize = 4096;

/// Who may hold registers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holders {
    /// Processes with events open: id, name, and how many events.
    pub events: Vec<(i32, String, usize)>,
    /// Debuggers: id, name, and whom they trace.
    pub tracers: Vec<(i32, String, i32)>,
    /// Processes whose descriptors could not be looked at.
    pub unseen: usize,
}

/// Looks at all processes but this one.
pub fn holders() -> Holders {
    let mut found = Holders::default();
    let own = std::process::id() as i32;
    for pid in proc::processes().unwrap_or_default().into_iter().filter(|&pid| pid != own) {
        match events_of(pid) {
            Some(0) => {}
            Some(count) => found.events.push((pid, name(pid), count)),
            None => found.unseen += 1,
        }
        if let Some(tracer) = tracer_of(pid).filter(|&tracer| tracer != own) {
            found.tracers.push((tracer, name(tracer), pid));
        }
    }
    found
}

fn name(pid: i32) -> String {
    let name = proc::comm(pid, pid).unwrap_or_else(|| b"?".to_vec());
    String::from_utf8_lossy(&name).into_owned()
}

/// How many events a process has open; `None` if that may not be seen.
fn events_of(pid: i32) -> Option<usize> {
    let list = match fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(list) => list,
        // Gone meanwhile.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(0),
        Err(_) => return None,
    };
    let is_event = |path: &std::path::Path| path.as_os_str() == "anon_inode:[perf_event]";
    let links = list.take(DESCRIPTORS).flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    Some(links.filter(|target| is_event(target)).count())
}

fn tracer_of(pid: i32) -> Option<i32> {
    let status = proc::text(format!("/proc/{pid}/status")).ok()?;
    proc::field(&status, "TracerPid")?.parse().ok().filter(|&tracer| tracer > 0)
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 5;
        let events = self.events.iter().map(|(pid, name, count)| {
            let plural = if *count == 1 { "" } else { "s" };
            format!("{name} ({pid}) with {count} open event{plural}")
        });
        let tracers = self.tracers.iter().map(|(pid, name, of)| format!("{name} ({pid}), which debugs {of}"));
        let all: Vec<String> = tracers.chain(events).collect();
        match all.len() {
            0 if self.unseen > 0 => {
                write!(f, "their holders are unknown: {} processes may not be inspected", self.unseen)
            }
            0 => f.write_str("their holders are unknown: no process has events open or debugs another"),
            count => {
                write!(f, "they may be held by {}", all[..count.min(SHOWN)].join(", "))?;
                if count > SHOWN {
                    write!(f, " and {} more", count - SHOWN)?;
                }
                f.write_str(" (the kernel does not tell which events are breakpoints)")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Holders;

    /// Checks the sentences for nobody, for those that may not be seen, and for several.
    #[test]
    fn sentences() {
        let mut holders = Holders::default();
        assert!(holders.to_string().starts_with("their holders are unknown: no process"));
        holders.unseen = 3;
        assert!(holders.to_string().contains("3 processes may not be inspected"));
        holders.events.push((7, "perf".into(), 1));
        holders.tracers.push((8, "gdb".into(), 9));
        let words = holders.to_string();
        assert!(words.starts_with("they may be held by gdb (8), which debugs 9, perf (7) with 1 open event"));
        holders.events = (0..9).map(|pid| (pid, "x".into(), 2)).collect();
        assert!(holders.to_string().contains(" and 5 more"), "{holders}");
    }
}
