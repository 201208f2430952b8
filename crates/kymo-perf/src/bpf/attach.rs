//! Attaches the programs to the tracepoints of fork, exit and exec.
//!
//! Two ways. A *raw tracepoint* costs least: per event no record is made for the program, and
//! detaching does not wait. It needs the kernel's type information (see [`super::types`]). A
//! *tracepoint* event needs tracefs instead; its descriptor's close waits for all CPUs to pass.
use super::error::BpfError;
use super::program::{self, ArgumentSource, FollowKey, Maps, Program};
use super::sys::{self, ProgramKind};
use super::types::TaskTypes;
use crate::tracefs::Tracefs;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// How the programs that follow are attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// Raw tracepoints (Linux 5.17 with type information).
    Raw,
    /// Tracepoint events (tracefs).
    Tracepoint,
}

/// What shall be followed, as far as the programs differ by it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FollowRules {
    /// What the followed make is followed, too.
    pub(super) children: bool,
    /// There is an entry that waits for its exec.
    pub(super) from_exec: bool,
    /// What has ended stays in the map.
    pub(super) keep_ended: bool,
}

/// Most bytes of the verifier's words that an error carries: the end, where the reason is.
const LOG_BYTES: usize = 2048;
const LOG_BUFFER_BYTES: usize = 64 << 10;

/// Some helpers are for programs that are (also) under the GPL; this is a declaration about our
/// programs, not about kymo.
const LICENSE: &CStr = c"Dual MIT/GPL";

/// Loads a program; if that fails, again with the verifier's words.
pub(super) fn load(
    kind: ProgramKind,
    name: &'static str,
    program: &Program,
    types: Option<&TaskTypes>,
) -> Result<OwnedFd, BpfError> {
    let types = types
        .filter(|_| !program.wanted.is_empty() || !program.functions.is_empty())
        .map(|types| types.wanted(&program.wanted, &program.functions));
    let load = |log: &mut [u8]| {
        let kind = (kind, program.kernel_type);
        sys::load_program(kind, &program.code, sys::name(name), LICENSE, types.as_ref(), log)
    };
    load(&mut []).or_else(|_| {
        let mut log = vec![0; LOG_BUFFER_BYTES];
        load(&mut log).map_err(|cause| {
            let log = last_words(&log);
            tracing::debug!(program = name, %cause, "the verifier: {log}");
            BpfError::Load { program: name, log, cause }
        })
    })
}

/// The end of a log that a zero ends.
fn last_words(log: &[u8]) -> String {
    let length = log.iter().position(|&b| b == 0).unwrap_or(log.len());
    let log = log[..length].trim_ascii();
    String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_BYTES)..]).into_owned()
}

/// What is attached. Dropping it detaches.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) links: Vec<OwnedFd>,
    /// The program that sees new tasks, kept to ask the kernel how often it could not run.
    pub(super) newtask: OwnedFd,
}

/// Attaches all that `wanted` needs.
pub(super) fn attach(how: Attachment, maps: Maps, wanted: FollowRules) -> Result<Attached, BpfError> {
    match how {
        Attachment::Raw => attach_raw(maps, wanted),
        Attachment::Tracepoint => attach_events(maps, wanted),
    }
}

/// Attaches a program to a raw tracepoint: the link, which keeps the program, and the program,
/// whose own descriptor may go.
pub(super) fn attach_raw_program(
    name: &'static str,
    point: &CStr,
    program: &Program,
    types: Option<&TaskTypes>,
) -> Result<(OwnedFd, OwnedFd), BpfError> {
    let loaded = load(ProgramKind::RawTracepoint, name, program, types)?;
    let link = sys::open_raw_tracepoint(Some(point), loaded.as_fd()).map_err(|cause| BpfError::Attach {
        program: name,
        point: point.to_string_lossy().into_owned(),
        cause,
    })?;
    Ok((link, loaded))
}

/// Attaches a program to what it is for by its `kernel_type`, which is called `point`; as
/// [`attach_raw_program`].
pub(super) fn attach_typed_program(
    kind: ProgramKind,
    name: &'static str,
    point: &CStr,
    program: &Program,
    types: Option<&TaskTypes>,
) -> Result<(OwnedFd, OwnedFd), BpfError> {
    let loaded = load(kind, name, program, types)?;
    let link = sys::open_raw_tracepoint(None, loaded.as_fd()).map_err(|cause| BpfError::Attach {
        program: name,
        point: point.to_string_lossy().into_owned(),
        cause,
    })?;
    Ok((link, loaded))
}

/// A program that can be moved behind those that were attached to its tracepoint since: they run in
/// the order in which they were attached. Dropping it detaches.
#[derive(Debug)]
pub(super) struct MovableProgram {
    program: OwnedFd,
    /// `None`: it knows by its type.
    point: Option<CString>,
    /// `None`: it was detached.
    link: Mutex<Option<OwnedFd>>,
}

impl MovableProgram {
    /// What [`attach_raw_program`] returned, with its point, or what [`attach_typed_program`] did.
    pub(super) fn new((link, program): (OwnedFd, OwnedFd), point: Option<&CStr>) -> MovableProgram {
        MovableProgram { program, point: point.map(CStr::to_owned), link: Mutex::new(Some(link)) }
    }

    /// It runs behind all others from now on, and for a moment also where it was. Nothing if it was
    /// detached.
    ///
    /// # Errors
    /// What the kernel refused; then it stays where it was.
    pub(super) fn move_behind(&self) -> io::Result<()> {
        let mut link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        if link.is_some() {
            *link = Some(sys::open_raw_tracepoint(self.point.as_deref(), self.program.as_fd())?);
        }
        Ok(())
    }

    pub(super) fn detach(&self) {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Attaches a program to a tracepoint by an event: the event, and the program.
pub(super) fn attach_to_tracepoint(
    name: &'static str,
    (system, event): (&str, &str),
    program: &Program,
) -> Result<(OwnedFd, OwnedFd), BpfError> {
    let cpu = crate::sys::online_cpus()[0] as i32;
    Point::find(&Tracefs::here(), system, event)?.attach(name, program, cpu)
}

fn attach_raw(maps: Maps, wanted: FollowRules) -> Result<Attached, BpfError> {
    let types = TaskTypes::load().map_err(BpfError::Types)?;
    let attach =
        |name, point: &CStr, program: &Program| attach_raw_program(name, point, program, Some(&types));
    let program = program::newtask(maps, ArgumentSource::Task, ArgumentSource::Argument(1), wanted.children);
    let (link, newtask) = attach("kymo_newtask", c"task_newtask", &program)?;
    let mut links = vec![link];
    if !wanted.keep_ended {
        links.push(attach("kymo_exit", c"sched_process_exit", &program::exit(maps, ArgumentSource::Task))?.0);
    }
    if maps.key == FollowKey::Thread {
        let program = program::exec(maps, ArgumentSource::Argument(1));
        links.push(attach("kymo_exec", c"sched_process_exec", &program)?.0);
    }
    if wanted.from_exec {
        links.push(attach("kymo_rename", c"task_rename", &program::rename(maps))?.0);
    }
    Ok(Attached { links, newtask })
}

fn attach_events(maps: Maps, wanted: FollowRules) -> Result<Attached, BpfError> {
    let tracefs = Tracefs::here();
    let cpu = crate::sys::online_cpus()[0] as i32;
    let point = |system, name| Point::find(&tracefs, system, name);
    let at = point("task", "task_newtask")?;
    let program = program::newtask(maps, at.field("pid")?, at.field("clone_flags")?, wanted.children);
    let (link, newtask) = at.attach("kymo_newtask", &program, cpu)?;
    let mut links = vec![link];
    if !wanted.keep_ended {
        let at = point("sched", "sched_process_exit")?;
        // Which exit is a process's last is in the record since Linux 6.16.
        let last =
            if maps.key == FollowKey::Process { at.field("group_dead")? } else { ArgumentSource::Task };
        links.push(at.attach("kymo_exit", &program::exit(maps, last), cpu)?.0);
    }
    if maps.key == FollowKey::Thread {
        let at = point("sched", "sched_process_exec")?;
        links.push(at.attach("kymo_exec", &program::exec(maps, at.field("old_pid")?), cpu)?.0);
    }
    if wanted.from_exec {
        links.push(point("task", "task_rename")?.attach("kymo_rename", &program::rename(maps), cpu)?.0);
    }
    Ok(Attached { links, newtask })
}

/// A tracepoint, and where its record has which field.
struct Point {
    name: String,
    id: u64,
    format: String,
}

impl Point {
    fn find(tracefs: &Tracefs, system: &str, name: &str) -> Result<Point, BpfError> {
        let tracepoint = tracefs.find(system, name).map_err(BpfError::Tracefs)?;
        let format = tracefs.format(&tracepoint).map_err(BpfError::Tracefs)?;
        Ok(Point { name: format!("{system}:{name}"), id: tracepoint.id, format })
    }

    fn field(&self, name: &str) -> Result<ArgumentSource, BpfError> {
        offset(&self.format, name)
            .map(ArgumentSource::Record)
            .ok_or_else(|| BpfError::Field { point: self.name.clone(), field: name.to_owned() })
    }

    /// The event that runs the program, and the program.
    fn attach(
        &self,
        name: &'static str,
        program: &Program,
        cpu: i32,
    ) -> Result<(OwnedFd, OwnedFd), BpfError> {
        let loaded = load(ProgramKind::Tracepoint, name, program, None)?;
        let failed = |cause| BpfError::Attach { program: name, point: self.name.clone(), cause };
        let event = sys::open_tracepoint(self.id, cpu).map_err(failed)?;
        sys::set_program(event.as_fd(), loaded.as_fd()).map_err(failed)?;
        Ok((event, loaded))
    }
}

/// The offset of a field in bytes, from a line like `field:pid_t pid; offset:8; size:4; signed:1;`.
fn offset(format: &str, name: &str) -> Option<i16> {
    format.lines().find_map(|line| {
        let mut parts = line.trim().strip_prefix("field:")?.split(';');
        (parts.next()?.rsplit([' ', '*']).next()? == name).then_some(())?;
        parts.next()?.trim().strip_prefix("offset:")?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a field is found by its whole name, and that damaged lines are none.
    #[test]
    fn offsets_of_fields() {
        let format = "\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\
            \tfield:pid_t pid;\toffset:12;\tsize:4;\tsigned:1;\n\tfield:char *p;\toffset:16;\n\tfield:x bad;\toffset:99999;\n";
        assert_eq!(offset(format, "pid"), Some(12));
        assert_eq!(offset(format, "p"), Some(16));
        assert_eq!(offset(format, "bad"), None);
        assert_eq!(offset(format, "common"), None);
        assert_eq!(offset("field:", "pid"), None);
    }

    /// Checks that the end of a long log is kept.
    #[test]
    fn logs() {
        assert_eq!(last_words(b"0: exit\nR0 !read_ok\n\0\0rest"), "0: exit\nR0 !read_ok");
        assert_eq!(last_words(&[b'x'; 5000]).len(), LOG_BYTES);
    }
}
