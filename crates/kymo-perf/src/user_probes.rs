//! Tracepoints in user programs, registered in tracefs while they are needed.
//!
//! They are global: every process that executes such a place makes a hit if an event is open for
//! it. So they are named after the process that made them (`kymo_PID:NAME`), and what a process
//! that is gone has left is removed by the next one.

use crate::patched::patched;
use crate::tracefs::{Tracefs, TracefsError};
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What the names of groups begin with.
const PREFIX: &str = "kymo_";
/// The longest name, in bytes; the kernel permits 63.
const NAME_BYTES: usize = 50;

/// Whether events of this group are made here.
pub fn is_group(system: &str) -> bool {
    system.starts_with(PREFIX)
}

/// A place to be made an event.
#[derive(Clone, Debug, Default)]
pub struct UserProbeSpec {
    /// For people: the event's name is made of it.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// Where in it a marker's counter of listeners lies.
    pub semaphore: Option<u64>,
    /// The return of the function there, not its entry.
    pub returns: bool,
    /// Where in the file the function's `ret` instructions are, if these are to be the event:
    /// nothing of the program is touched then. None: the kernel replaces its return address.
    pub exits: Vec<u64>,
    /// What a hit carries, in the kernel's words: `size=%si:u64 path=+0(%di):string`; `None`: the
    /// first arguments' registers, or what is returned.
    pub fields: Option<String>,
}

impl UserProbeSpec {
    /// Where the event is to be.
    fn offsets(&self) -> Vec<u64> {
        if self.returns && !self.exits.is_empty() { self.exits.clone() } else { vec![self.offset] }
    }

    /// What the kernel's list is told.
    fn line(&self, group: &str, name: &str, offset: u64) -> Vec<u8> {
        let replaces = self.returns && self.exits.is_empty();
        let mut line = format!("{}:{group}/{name} ", if replaces { 'r' } else { 'p' }).into_bytes();
        line.extend(self.path.as_os_str().as_bytes());
        line.extend(format!(":{offset:#x}").bytes());
        if let Some(semaphore) = self.semaphore.filter(|_| !self.returns) {
            line.extend(format!("({semaphore:#x})").bytes());
        }
        let words = match &self.fields {
            Some(fields) => format!(" {fields}"),
            None => fields(self.returns).to_owned(),
        };
        // At a `ret` the result is in its register; the kernel's own word for it is for its return
        // probes only.
        line.extend(if replaces { words } else { words.replace("$retval", "%ax") }.bytes());
        line
    }
}

/// Why places could not be made events.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UserProbesError {
    /// tracefs cannot be used.
    #[error("{}{}", .0, .0.hint().map(|hint| format!("; {hint}")).unwrap_or_default())]
    Tracefs(TracefsError),
    /// The list could not be opened or changed.
    #[error("failed to write {}: {cause}{}", path.display(), permit(cause))]
    List {
        /// The kernel's list.
        path: PathBuf,
        /// The system's words.
        cause: io::Error,
    },
    /// One place was refused.
    #[error("no event is made of {name}: {cause}")]
    Refused {
        /// As it was asked for.
        name: String,
        /// The system's words.
        cause: io::Error,
    },
    /// The list divides by spaces.
    #[error("the kernel's list of probes takes no spaces in paths, and there are some in {path}", path = .0.display())]
    Path(PathBuf),
}

/// Refuses places where a process would crash. Events are opened on every CPU, so for all
/// processes.
fn check_code(wanted: &[UserProbeSpec]) -> Result<(), UserProbesError> {
    let spots = wanted.iter().flat_map(|place| place.offsets().into_iter().map(move |at| (place, at)));
    let spots: Vec<(&UserProbeSpec, u64)> = spots.collect();
    let places: Vec<(&Path, u64)> = spots.iter().map(|(place, at)| (place.path.as_path(), *at)).collect();
    let mut found = patched(&places, None).into_iter().zip(spots);
    found.try_for_each(|(found, (place, _))| match found {
        Some(process) => {
            let (name, cause) = (place.name.clone(), io::Error::other(process.to_string()));
            Err(UserProbesError::Refused { name, cause })
        }
        None => Ok(()),
    })
}

fn permit(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => {
            "; only root may make events of programs' functions: run kymo as root"
        }
        io::ErrorKind::NotFound => "; this kernel was built without CONFIG_UPROBE_EVENTS",
        _ => "",
    }
}

/// Events of places in programs. Dropping it removes them, which works once nothing has them open.
#[derive(Debug)]
pub struct UserProbes {
    list: PathBuf,
    group: String,
    /// In the order of what was wanted.
    names: Vec<String>,
}

impl UserProbes {
    /// Makes events of all places.
    ///
    /// # Errors
    /// [`UserProbesError`]; then none is left.
    pub fn make(tracefs: &Tracefs, wanted: &[UserProbeSpec]) -> Result<UserProbes, UserProbesError> {
        let events = tracefs.events().map_err(UserProbesError::Tracefs)?;
        let list = events.parent().unwrap_or(&events).join("uprobe_events");
        remove_left(&list);
        check_code(wanted)?;
        let group = format!("{PREFIX}{}", std::process::id());
        let mut probes = UserProbes { list, group, names: Vec::new() };
        for place in wanted {
            let path = place.path.as_os_str().as_bytes();
            if path.iter().any(u8::is_ascii_whitespace) {
                return Err(UserProbesError::Path(place.path.clone()));
            }
            let name = probes.free_name(&place.name);
            for (number, offset) in place.offsets().into_iter().enumerate() {
                let written = write_line(&probes.list, &place.line(&probes.group, &name, offset));
                written.map_err(|cause| match cause.raw_os_error() {
                    Some(libc::EACCES | libc::EPERM | libc::ENOENT) => {
                        UserProbesError::List { path: probes.list.clone(), cause }
                    }
                    _ => UserProbesError::Refused { name: place.name.clone(), cause },
                })?;
                // The first line makes the event, the others add to it.
                probes.names.extend((number == 0).then(|| name.clone()));
            }
        }
        Ok(probes)
    }

    /// The events as a selector knows them, `(system, name)`, in the order of what was wanted.
    pub fn events(&self) -> impl Iterator<Item = (&str, &str)> {
        self.names.iter().map(|name| (self.group.as_str(), name.as_str()))
    }

    fn free_name(&self, wanted: &str) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' };
        let mut name: String = wanted.chars().map(plain).take(NAME_BYTES).collect();
        if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            name.insert(0, '_');
        }
        let taken = |name: &String| self.names.contains(name);
        if !taken(&name) {
            return name;
        }
        (1..).map(|number| format!("{name}_{number}")).find(|name| !taken(name)).unwrap_or(name)
    }
}

impl Drop for UserProbes {
    fn drop(&mut self) {
        for name in &self.names {
            if let Err(error) = write_line(&self.list, format!("-:{}/{name}", self.group).as_bytes()) {
                tracing::debug!(%error, "{}:{name} is left", self.group);
            }
        }
    }
}

/// What a hit carries, by the convention for calls; other readers show it.
fn fields(returns: bool) -> &'static str {
    match (returns, std::env::consts::ARCH) {
        (true, _) => " ret=$retval",
        (false, "x86_64") => " arg1=%di arg2=%si arg3=%dx",
        (false, "aarch64") => " arg1=%x0 arg2=%x1 arg3=%x2",
        (false, _) => "",
    }
}

fn write_line(list: &Path, line: &[u8]) -> io::Result<()> {
    // Behind what is there: the list is emptied by whoever opens it to write it anew.
    OpenOptions::new().append(true).open(list)?.write_all(line)
}

/// How long the kernel may take to end the probes of a process that was killed: it closes its
/// events one by one.
const ENDING: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// Waits until what killed kymos left in the kernel's list is not in use any more, and removes it;
/// five seconds at most. Returns at once where the list cannot be read.
///
/// While one is in use its trap may be in a program's memory, and the agent refuses a function that
/// is not as in its file.
pub(crate) fn wait_for_left(tracefs: &Tracefs) {
    let Ok(events) = tracefs.events() else { return };
    let list = events.parent().unwrap_or(&events).join("uprobe_events");
    let until = Instant::now() + ENDING;
    while remove_left(&list) > 0 && Instant::now() < until {
        std::thread::sleep(PAUSE);
    }
}

/// Removes what processes have left that are gone; how many the kernel still uses.
fn remove_left(list: &Path) -> usize {
    // Files of probes are named in it, by any bytes.
    let text = crate::proc::text(list).unwrap_or_default();
    let mut busy = 0;
    for line in text.lines().take(1 << 20) {
        // `p:kymo_123/name /path:0x...`
        let Some(event) = line.get(2..).and_then(|rest| rest.split(' ').next()) else { continue };
        let Some((owner, _)) = event.strip_prefix(PREFIX).and_then(|rest| rest.split_once('/')) else {
            continue;
        };
        let gone =
            owner.parse::<i32>().is_ok_and(|pid| pid > 0 && !Path::new(&format!("/proc/{pid}")).exists());
        if gone {
            let removed = write_line(list, format!("-:{event}").as_bytes());
            busy += usize::from(removed.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)));
        }
    }
    busy
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A made-up tracefs whose list is an ordinary file.
    fn made_up() -> (tempfile::TempDir, Tracefs) {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("events")).unwrap();
        std::fs::write(root.path().join("uprobe_events"), "").unwrap();
        let tracefs = Tracefs::at(root.path().to_owned());
        (root, tracefs)
    }

    fn wanted(name: &str) -> UserProbeSpec {
        UserProbeSpec { name: name.into(), path: "/bin/x".into(), offset: 0x10, ..UserProbeSpec::default() }
    }

    /// Checks what is written: names that the kernel takes, each once, semaphores and returns; and
    /// that dropping takes all back.
    #[test]
    fn lines() {
        let (root, tracefs) = made_up();
        let list = root.path().join("uprobe_events");
        let places = [
            wanted("a::b<int>"),
            wanted("a::b<int>"),
            UserProbeSpec { semaphore: Some(0x20), ..wanted("9") },
            UserProbeSpec { returns: true, ..wanted("f") },
            UserProbeSpec { fields: Some("n=%si:s32".into()), ..wanted("g") },
        ];
        let probes = UserProbes::make(&tracefs, &places).unwrap();
        let group = format!("kymo_{}", std::process::id());
        let names: Vec<&str> =
            probes.events().map(|(system, name)| (system == group).then_some(name).unwrap()).collect();
        assert_eq!(names, ["a__b_int_", "a__b_int__1", "_9", "f", "g"]);
        let text = std::fs::read_to_string(&list).unwrap();
        assert!(text.starts_with(&format!("p:{group}/a__b_int_ /bin/x:0x10")), "{text}");
        assert!(text.contains("/g /bin/x:0x10 n=%si:s32"), "{text}");
        assert!(
            text.contains("_9 /bin/x:0x10(0x20)") && text.contains(&format!("r:{group}/f /bin/x:0x10 ret=")),
            "{text}"
        );
        drop(probes);
        let text = std::fs::read_to_string(&list).unwrap();
        assert_eq!(text.matches("-:").count(), 5, "{text}");
        let spaced = UserProbeSpec { path: "/a b".into(), ..wanted("f") };
        assert!(matches!(UserProbes::make(&tracefs, &[spaced]), Err(UserProbesError::Path(_))));
    }

    /// Checks that only what is left by processes that are gone is removed, without waiting where
    /// the kernel uses none of it.
    #[test]
    fn left_behind() {
        let (root, tracefs) = made_up();
        let list = root.path().join("uprobe_events");
        let own = std::process::id();
        let text = format!(
            "p:kymo_2147483646/f /x:0x1\np:kymo_{own}/g /x:0x1\np:probe_x/f /x:0x1\np:kymo_x/f /x:0x1\n"
        );
        std::fs::write(&list, &text).unwrap();
        wait_for_left(&tracefs);
        assert_eq!(std::fs::read_to_string(&list).unwrap(), format!("{text}-:kymo_2147483646/f"));
    }
}
