//! Which processes belong together: those that one has started, and those of one name.
use super::{comm, parent, processes, tasks, text};
use std::collections::{HashMap, HashSet};
use std::fs;

/// A command line is shown up to here.
const SHOWN_BYTES: usize = 60;

/// The processes that these have started and that still run, and theirs, and so on; without these.
pub fn descendants(pids: &[i32]) -> Vec<i32> {
    let mut seen: HashSet<i32> = pids.iter().copied().collect();
    let mut found = Vec::new();
    let mut waiting: Vec<i32> = pids.to_vec();
    // Kernels without the lists of children have none for this process either.
    let own = std::process::id();
    let by_scan = if fs::exists(format!("/proc/{own}/task/{own}/children")).unwrap_or(false) {
        None
    } else {
        Some(children_of_all())
    };
    while let Some(pid) = waiting.pop() {
        let children = match &by_scan {
            Some(all) => all.get(&pid).cloned().unwrap_or_default(),
            None => children(pid),
        };
        let new = children.into_iter().filter(|child| seen.insert(*child)).collect::<Vec<_>>();
        found.extend(&new);
        waiting.extend(new);
    }
    found.sort_unstable();
    found
}

/// The children of all threads of a process.
fn children(pid: i32) -> Vec<i32> {
    let lists = tasks(pid).unwrap_or_default().into_iter().filter_map(|tid| {
        let list = text(format!("/proc/{pid}/task/{tid}/children")).ok()?;
        Some(list.split_ascii_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<i32>>())
    });
    lists.flatten().collect()
}

fn children_of_all() -> HashMap<i32, Vec<i32>> {
    let mut all: HashMap<i32, Vec<i32>> = HashMap::new();
    for pid in processes().unwrap_or_default() {
        if let Some(parent) = parent(pid) {
            all.entry(parent).or_default().push(pid);
        }
    }
    all
}

/// A process of the name that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namesake {
    /// Its id.
    pub pid: i32,
    /// Whether another of them has started it, or has started one that has.
    pub inner: bool,
    /// The beginning of its command line.
    pub command: String,
}

/// The processes of this name, ascending: the name of the first thread, or of the file that is
/// executed where it is longer than a thread's name can be. Without this process.
pub fn named(name: &str) -> Vec<Namesake> {
    let own = std::process::id() as i32;
    let is_named = |pid: &i32| *pid != own && has_name(*pid, name);
    let pids: Vec<i32> = processes().unwrap_or_default().into_iter().filter(is_named).collect();
    let all: HashSet<i32> = pids.iter().copied().collect();
    let started = |pid: i32| {
        // A chain of parents is shorter than there are processes; ids may be given anew meanwhile.
        let mut above = parent(pid);
        for _ in 0..1024 {
            match above {
                Some(one) if all.contains(&one) => return true,
                Some(one) if one > 1 => above = parent(one),
                _ => return false,
            }
        }
        false
    };
    pids.iter().map(|&pid| Namesake { pid, inner: started(pid), command: command_line(pid) }).collect()
}

fn has_name(pid: i32, name: &str) -> bool {
    let wanted = name.as_bytes();
    let Some(comm) = comm(pid, pid) else { return false };
    if wanted.len() <= super::COMM_BYTES {
        return comm == wanted;
    }
    let file = fs::read_link(format!("/proc/{pid}/exe"));
    wanted.starts_with(&comm) && file.is_ok_and(|file| file.file_name().is_some_and(|own| own == name))
}

/// The beginning of a process's command line for sentences; its name where it has none.
pub fn command_line(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let line = if line.is_empty() { comm(pid, pid).unwrap_or_default() } else { line };
    let words = line.split(|&byte| byte == 0).map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ");
    let clean: String = words.trim_end().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    match clean.char_indices().nth(SHOWN_BYTES) {
        Some((at, _)) => format!("{}..", &clean[..at]),
        None => clean,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    /// Checks children of children, and that a process is found by its name, long ones by their file.
    #[test]
    fn children_and_names() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kymo-test-of-a-long-name");
        fs::copy("/bin/sleep", &file).unwrap();
        let script = format!("{} 100 & echo $!; read line; kill $!", file.display());
        let mut shell = Command::new("sh")
            .args(["-c", &format!("sh -c '{script}'; :")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut output = std::io::BufReader::new(shell.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut output, &mut line).unwrap();
        let sleeper: i32 = line.trim().parse().unwrap();
        // Until it has executed.
        while !has_name(sleeper, "kymo-test-of-a-long-name") {
            std::thread::yield_now();
        }
        let found = descendants(&[shell.id() as i32]);
        assert!(found.contains(&sleeper) && found.len() == 2, "{found:?}");
        assert_eq!(children_of_all().get(&(shell.id() as i32)).map(Vec::len), Some(1));
        let names = named("kymo-test-of-a-long-name");
        assert_eq!(names.iter().map(|one| (one.pid, one.inner)).collect::<Vec<_>>(), [(sleeper, false)]);
        assert!(names[0].command.ends_with("kymo-test-of-a-long-name 100"), "{names:?}");
        assert!(named("kymo-test-of-a-long-nam").is_empty());
        drop(shell.stdin.take());
        shell.wait().unwrap();
    }
}
