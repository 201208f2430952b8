//! Tracepoints of the kernel: names and ids.
//!
//! They live in tracefs, usually `/sys/kernel/tracing`, which may be not mounted, or readable by
//! root only. Those two and a name that does not exist are three different failures, and each is
//! told with what to do about it.

use crate::pmu::text;
use crate::suggest::nearest;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The tracepoints' file system at one of its usual places.
#[derive(Debug, Clone)]
pub struct Tracefs {
    candidates: Vec<PathBuf>,
}

/// One tracepoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tracepoint {
    /// The part before the colon.
    pub system: String,
    /// The part behind it.
    pub name: String,
    /// The attr's `config`.
    pub id: u64,
}

/// Which samples of a tracepoint are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracepointFilter {
    /// The expression, in the kernel's words.
    pub text: String,
    /// The tracepoint, whose fields it names.
    pub tracepoint: Tracepoint,
}

/// Why tracepoints cannot be looked up. `Display` is one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TracefsError {
    /// None of the usual places holds a mounted tracefs; where it belongs.
    #[error("tracepoints cannot be looked up: tracefs is not mounted at {}", .0.display())]
    NotMounted(PathBuf),
    /// It is mounted, but this user may not read it; the file or folder that was refused.
    #[error("tracepoints cannot be looked up: this user may not read {}", .0.display())]
    Unreadable(PathBuf),
    /// No tracepoint of that name, or none that the glob matches.
    #[error("this kernel has no tracepoint `{wanted}`")]
    Unknown {
        /// As asked for, `system:event`.
        wanted: String,
        /// The most similar tracepoint, if one is similar.
        near: Option<String>,
    },
    /// Another failure of reading.
    #[error("failed to read {}: {cause}", path.display())]
    Io {
        /// The file or folder that failed.
        path: PathBuf,
        /// The system's words.
        cause: String,
    },
}

impl TracefsError {
    /// What to do about it, one sentence.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::NotMounted(path) => Some(format!("run `sudo mount -t tracefs none {}`", path.display())),
            // Opening the folders with mode=755 alone does not help: the files in them stay 0440.
            Self::Unreadable(path) => Some(format!(
                "run kymo as root, or open it to your group with `sudo mount -o remount,mode=750,gid=$(id -g) {}`",
                mount_point(path).display()
            )),
            Self::Unknown { near: Some(near), .. } => Some(format!("did you mean `{near}`?")),
            Self::Unknown { near: None, wanted } => {
                let system = wanted.split(':').next().unwrap_or(wanted);
                Some(format!("`kymo list '*{system}*'` shows similar names; its module may not be loaded"))
            }
            Self::Io { .. } => None,
        }
    }
}

fn mount_point(path: &Path) -> &Path {
    path.ancestors().find(|path| path.ends_with("tracing")).unwrap_or(path)
}

impl Tracefs {
    /// This machine's, at `/sys/kernel/tracing` or, on old systems, inside debugfs.
    pub(crate) fn here() -> Self {
        Self { candidates: vec!["/sys/kernel/tracing".into(), "/sys/kernel/debug/tracing".into()] }
    }

    /// One at a given folder.
    pub fn at(root: PathBuf) -> Self {
        Self { candidates: vec![root] }
    }

    /// The folder `events` of the mounted tracefs.
    ///
    /// # Errors
    /// [`TracefsError::NotMounted`], or [`TracefsError::Unreadable`] where it exists and is
    /// refused.
    pub fn events(&self) -> Result<PathBuf, TracefsError> {
        for (index, candidate) in self.candidates.iter().enumerate() {
            let events = candidate.join("events");
            match fs::read_dir(&events) {
                Ok(_) => return Ok(events),
                // A refusal further down says nothing: ordinary users may not look into debugfs,
                // mounted tracefs or not.
                Err(error) if index == 0 && error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(TracefsError::Unreadable(events));
                }
                Err(_) => {}
            }
        }
        Err(TracefsError::NotMounted(self.candidates.first().cloned().unwrap_or_default()))
    }

    /// The tracepoint of that name.
    ///
    /// # Errors
    /// Every [`TracefsError`]; the unknown one carries the nearest name.
    pub fn find(&self, system: &str, name: &str) -> Result<Tracepoint, TracefsError> {
        let events = self.events()?;
        let unknown = |near| TracefsError::Unknown { wanted: format!("{system}:{name}"), near };
        if !plain(system) || !plain(name) {
            return Err(unknown(None));
        }
        match read_id(&events, system, name)? {
            Some(id) => Ok(Tracepoint { system: system.to_owned(), name: name.to_owned(), id }),
            None => Err(unknown(near(&events, system, name))),
        }
    }

    /// All tracepoints whose system and name match the globs, sorted by name.
    ///
    /// # Errors
    /// Every [`TracefsError`]; [`TracefsError::Unknown`] if nothing matches.
    pub fn matching(&self, system: &str, name: &str) -> Result<Vec<Tracepoint>, TracefsError> {
        let found = self.select(system, name)?;
        if found.is_empty() {
            return Err(TracefsError::Unknown { wanted: format!("{system}:{name}"), near: None });
        }
        Ok(found)
    }

    /// All tracepoints, sorted by name.
    ///
    /// # Errors
    /// [`TracefsError::NotMounted`], [`TracefsError::Unreadable`], [`TracefsError::Io`].
    pub(crate) fn all(&self) -> Result<Vec<Tracepoint>, TracefsError> {
        self.select("*", "*")
    }

    fn select(&self, system: &str, name: &str) -> Result<Vec<Tracepoint>, TracefsError> {
        let events = self.events()?;
        let mut found = Vec::new();
        for sys in folders(&events)?.iter().filter(|candidate| glob(system, candidate)) {
            for event in folders(&events.join(sys))?.iter().filter(|candidate| glob(name, candidate)) {
                if let Some(id) = read_id(&events, sys, event)? {
                    found.push(Tracepoint { system: sys.clone(), name: event.clone(), id });
                }
            }
        }
        Ok(found)
    }

    /// The kernel's description of a tracepoint's fields: the text of its `format` file.
    ///
    /// # Errors
    /// Every [`TracefsError`].
    pub fn format(&self, tracepoint: &Tracepoint) -> Result<String, TracefsError> {
        let path = self.events()?.join(&tracepoint.system).join(&tracepoint.name).join("format");
        fs::read_to_string(&path).map_err(|error| failure(&path, &error))
    }
}

/// A name that is one folder and not a way out of tracefs.
fn plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}

fn failure(path: &Path, error: &io::Error) -> TracefsError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::PermissionDenied => TracefsError::Unreadable(path),
        _ => TracefsError::Io { path, cause: error.to_string() },
    }
}

fn read_id(events: &Path, system: &str, name: &str) -> Result<Option<u64>, TracefsError> {
    let path = events.join(system).join(name).join("id");
    match fs::metadata(&path) {
        Ok(_) => match text(&path) {
            Some(text) => Ok(text.trim().parse().ok()),
            // The file is there but will not open: permission is the only ordinary reason.
            None => Err(TracefsError::Unreadable(path)),
        },
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(TracefsError::Unreadable(path)),
        Err(_) => Ok(None),
    }
}

/// Names of sub-folders, sorted.
fn folders(dir: &Path) -> Result<Vec<String>, TracefsError> {
    let entries = fs::read_dir(dir).map_err(|error| failure(dir, &error))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    Ok(names)
}

/// The most similar existing tracepoint: the same event in another system, else near names.
fn near(events: &Path, system: &str, name: &str) -> Option<String> {
    let systems = folders(events).ok()?;
    let has_it = |other: &&String| events.join(other).join(name).join("id").exists();
    let system = if systems.iter().any(|candidate| candidate == system) {
        system
    } else if let Some(other) = systems.iter().find(has_it) {
        return Some(format!("{other}:{name}"));
    } else {
        nearest(system, systems.iter().map(String::as_str))?
    };
    let names = folders(&events.join(system)).ok()?;
    let near = nearest(name, names.iter().map(String::as_str))?;
    Some(format!("{system}:{near}"))
}

/// Whether `text` matches a glob with `*`, `?` and `[a-z]`, `[!a-z]`. A `[` without `]` stands for
/// itself.
pub(crate) fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where to go on if the match fails: just behind the last `*`, having it swallow one character
    // more.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&'*') {
            p += 1;
            retry = Some((p, t));
            continue;
        }
        match one(&pattern[p.min(pattern.len())..], text[t]) {
            Some(used) => {
                p += used;
                t += 1;
            }
            None => match retry {
                Some((behind, from)) => {
                    p = behind;
                    t = from + 1;
                    retry = Some((behind, from + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Whether the pattern's first item (not `*`) matches `c`, and how many characters of the pattern
/// it takes.
fn one(pattern: &[char], c: char) -> Option<usize> {
    match *pattern.first()? {
        '?' => Some(1),
        '[' => match pattern.iter().skip(2).position(|c| *c == ']') {
            Some(end) => {
                let end = end + 2;
                let (negated, set) = match pattern[1] {
                    '!' | '^' if end > 2 => (true, &pattern[2..end]),
                    _ => (false, &pattern[1..end]),
                };
                (in_set(set, c) != negated).then_some(end + 1)
            }
            None => (c == '[').then_some(1),
        },
        literal => (literal == c).then_some(1),
    }
}

fn in_set(set: &[char], c: char) -> bool {
    let mut i = 0;
    while i < set.len() {
        if i + 2 < set.len() && set[i + 1] == '-' {
            if (set[i]..=set[i + 2]).contains(&c) {
                return true;
            }
            i += 3;
        } else if set[i] == c {
            return true;
        } else {
            i += 1;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the glob's items, alone and together, against what a shell would say.
    #[test]
    fn globs() {
        let cases = [
            ("*", "", true),
            ("sched_*", "sched_switch", true),
            ("*_switch", "sched_switch", true),
            ("s*d*h", "sched_switch", true),
            ("s*d*x", "sched_switch", false),
            ("sched_s?itch", "sched_switch", true),
            ("sys_[ew]*", "sys_write", true),
            ("sys_[!ew]*", "sys_write", false),
            ("sys_[a-f]*", "sys_enter", true),
            ("a[", "a[", true),
            ("a[]b", "a]b", false),
            ("", "", true),
            ("", "a", false),
            ("***a", "ba", true),
            ("?", "", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(glob(pattern, text), expected, "{pattern:?} on {text:?}");
        }
    }

    fn tree(points: &[(&str, &str, u64)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (system, name, id) in points {
            let folder = dir.path().join("events").join(system).join(name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("id"), format!("{id}\n")).unwrap();
            fs::write(folder.join("format"), format!("name: {name}\nID: {id}\n")).unwrap();
        }
        dir
    }

    /// Checks lookups by name and by glob, and that files beside the folders (`enable`, `filter`)
    /// are no events.
    #[test]
    fn finds_by_name_and_glob() {
        let dir =
            tree(&[("sched", "sched_switch", 7), ("sched", "sched_wakeup", 3), ("irq", "softirq_entry", 9)]);
        fs::write(dir.path().join("events/sched/enable"), "0").unwrap();
        let tracefs = Tracefs::at(dir.path().to_owned());
        assert_eq!(tracefs.find("sched", "sched_switch").unwrap().id, 7);
        let ids = |system, name| -> Vec<u64> {
            tracefs.matching(system, name).unwrap().iter().map(|point| point.id).collect()
        };
        assert_eq!(ids("sched", "*"), [7, 3]);
        assert_eq!(ids("*", "*_[es]*"), [9, 7]);
        assert!(tracefs.format(&tracefs.find("irq", "softirq_entry").unwrap()).unwrap().contains("ID: 9"));
    }

    /// Checks that a name that does not exist names its nearest neighbour, also when the system is
    /// what is wrong.
    #[test]
    fn unknown_names_suggest() {
        let dir = tree(&[("sched", "sched_switch", 7), ("syscalls", "sys_enter_read", 8)]);
        let tracefs = Tracefs::at(dir.path().to_owned());
        let hint = |system, name| tracefs.find(system, name).unwrap_err().hint().unwrap();
        assert_eq!(hint("sched", "sched_swich"), "did you mean `sched:sched_switch`?");
        assert_eq!(hint("shed", "sched_switch"), "did you mean `sched:sched_switch`?");
        assert_eq!(hint("raw_syscalls", "sys_enter_read"), "did you mean `syscalls:sys_enter_read`?");
        assert!(hint("zzz", "qqqqqqqq").contains("kymo list"));
        assert!(matches!(tracefs.find("..", "events"), Err(TracefsError::Unknown { .. })));
    }

    /// Checks that a folder without `events` counts as not mounted and says how to mount.
    #[test]
    fn not_mounted_says_how_to_mount() {
        let dir = tempfile::tempdir().unwrap();
        let error = Tracefs::at(dir.path().join("tracing")).all().unwrap_err();
        assert!(matches!(error, TracefsError::NotMounted(_)));
        assert!(error.hint().unwrap().starts_with("run `sudo mount -t tracefs none "));
    }
}
