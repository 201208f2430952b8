//! Attaching programs to all instructions that probes need: entries, and exits of functions whose
//! calls are timed.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::programs::{self, Maps, cookie};
use super::values::Value;
use super::{
    Attachment, CallKey, ENOTSUPP, ExitWhen, Refused, ReturnAction, UprobeError, UprobeOptions, UprobeScope,
    UprobeSite, is_mistaken,
};
use crate::bpf::attach::load;
use crate::bpf::error::BpfError;
use crate::bpf::program::Program;
use crate::bpf::sys::ProgramKind;
use crate::bpf::sys::uprobe::{EventPlace, Links, UprobeTargets, link_event, link_uprobes};
use crate::machine::Machine;
use crate::patched::{Patched, look, patched};
use kymo_core::probe::value::Condition;

/// An instruction that a program is attached to.
#[derive(Clone, Copy, Debug)]
struct Spot {
    /// Number of the place that it is for.
    place: usize,
    offset: u64,
    semaphore: u64,
    cookie: u64,
}

/// What a program does: one for all spots of the same file that want the same.
#[derive(Clone, Copy, Debug, PartialEq)]
struct AttachJob<'a> {
    exit: Option<&'a ExitWhen>,
    frame: CallKey,
    timed: bool,
    callers: bool,
    condition: &'a Condition,
    values: Option<&'a [Value]>,
}

impl<'a> AttachJob<'a> {
    /// At the entry of a place.
    fn entry(place: &'a UprobeSite) -> AttachJob<'a> {
        AttachJob {
            exit: None,
            frame: frame(&place.returns),
            timed: place.returns.is_timed(),
            callers: place.callers,
            condition: &place.condition,
            values: place.values.as_deref(),
        }
    }

    /// Where its calls end.
    fn exit(place: &'a UprobeSite, when: &'a ExitWhen) -> AttachJob<'a> {
        AttachJob {
            exit: Some(when),
            callers: false,
            condition: &place.return_condition,
            values: place.return_values.as_deref(),
            ..AttachJob::entry(place)
        }
    }

    /// Whether it is attached as the kernel's return probe.
    fn is_return_probe(&self) -> bool {
        matches!(self.exit, Some(ExitWhen::Returned))
    }

    /// Whether it reads memory that may have to be brought in.
    fn reads(&self) -> bool {
        let target = match self.exit {
            Some(ExitWhen::Leaves(target)) => !target.steps.is_empty(),
            _ => false,
        };
        target || reads(self.condition, self.values.unwrap_or_default())
    }

    fn load(&self, kind: ProgramKind, maps: Maps, every: u32) -> Result<OwnedFd, BpfError> {
        let own = Maps {
            started: maps.started.filter(|_| self.timed),
            callers: maps.callers.filter(|_| self.callers),
            ring: maps.ring.filter(|_| self.values.is_some()),
            frame: self.frame,
            ..maps
        };
        let values = self.values.unwrap_or_default();
        let program = |waits| {
            let own = Maps { waits, ..own };
            match self.exit {
                None => programs::entry(own, self.condition, every, values),
                Some(when) => programs::exit(own, when, self.condition, values),
            }
        };
        let name = if self.exit.is_some() { "kymo_uretprobe" } else { "kymo_uprobe" };
        load_waiting(kind, name, self.reads(), program)
    }
}

fn frame(returns: &ReturnAction) -> CallKey {
    match returns {
        ReturnAction::TimeAtExits(frame, _) => *frame,
        _ => CallKey::StackPointer,
    }
}

/// Spots of one file that one program serves.
struct Job<'a> {
    path: &'a PathBuf,
    work: AttachJob<'a>,
    spots: Vec<Spot>,
}

/// All jobs: exits first, so that a call which is seen to begin is seen to end.
fn jobs<'a>(places: &'a [UprobeSite], refused: &mut Vec<Refused>) -> Vec<Job<'a>> {
    static RETURNED: ExitWhen = ExitWhen::Returned;
    let (mut exits, mut entries): (Vec<Job<'a>>, Vec<Job<'a>>) = (Vec::new(), Vec::new());
    fn add<'a>(jobs: &mut Vec<Job<'a>>, path: &'a PathBuf, work: AttachJob<'a>, spot: Spot) {
        // Places of one file follow one another.
        match jobs.iter_mut().rev().find(|job| job.path == path && job.work == work) {
            Some(job) => job.spots.push(spot),
            None => jobs.push(Job { path, work, spots: vec![spot] }),
        }
    }
    for (number, place) in places.iter().enumerate() {
        if is_mistaken(&place.path, place.offset) {
            refused.push(Refused { place: number, cause: None });
            continue;
        }
        let entry = Spot {
            place: number,
            offset: place.offset,
            semaphore: place.semaphore.unwrap_or(0),
            cookie: cookie(number, (0, 0)),
        };
        match &place.returns {
            ReturnAction::Ignore => {}
            ReturnAction::Count | ReturnAction::Time => {
                add(
                    &mut exits,
                    &place.path,
                    AttachJob::exit(place, &RETURNED),
                    Spot { semaphore: 0, ..entry },
                );
            }
            ReturnAction::TimeAtExits(_, sites) => {
                for exit in sites {
                    let spot = Spot {
                        offset: exit.offset,
                        semaphore: 0,
                        cookie: cookie(number, exit.bounds),
                        ..entry
                    };
                    add(&mut exits, &place.path, AttachJob::exit(place, &exit.when), spot);
                }
            }
        }
        add(&mut entries, &place.path, AttachJob::entry(place), entry);
    }
    exits.extend(entries);
    exits
}

/// Where all jobs attach.
fn spots<'a>(jobs: &[Job<'a>]) -> Vec<(&'a Path, u64)> {
    jobs.iter().flat_map(|job| job.spots.iter().map(|spot| (job.path.as_path(), spot.offset))).collect()
}

/// Takes out the places that a process has other code at than the file; `patched` is in the order
/// of [`spots`].
fn leave_out(jobs: &mut Vec<Job<'_>>, patched: Vec<Option<Patched>>, refused: &mut Vec<Refused>) {
    let all = jobs.iter().flat_map(|job| &job.spots);
    let found: BTreeMap<usize, Patched> =
        all.zip(patched).filter_map(|(spot, found)| Some((spot.place, found?))).collect();
    for job in jobs.iter_mut() {
        job.spots.retain(|spot| !found.contains_key(&spot.place));
    }
    jobs.retain(|job| !job.spots.is_empty());
    let refusals = found
        .into_iter()
        .map(|(place, process)| Refused { place, cause: Some(io::Error::other(process.to_string())) });
    refused.extend(refusals);
}

/// The first place that a process has other code at now.
fn first_patched(spots: &[(&Path, u64)], pids: Option<&[i32]>) -> Option<(usize, Patched)> {
    let found = look(spots, pids);
    found.into_iter().enumerate().find_map(|(at, process)| Some((at, process?)))
}

/// Attaches to all places; those that cannot be probed are returned with the links.
pub(super) fn attach(
    places: &[UprobeSite],
    whom: &UprobeScope<'_>,
    options: &UprobeOptions,
    maps: Maps,
    how: Attachment,
) -> Result<(Links, Vec<Refused>), UprobeError> {
    let kind = match how {
        Attachment::Multi => ProgramKind::UprobeMulti,
        Attachment::Events => ProgramKind::Uprobe,
    };
    let pids: Vec<i32> = match whom {
        UprobeScope::Processes(pids) => pids.to_vec(),
        UprobeScope::FollowedIn(_, pid) => vec![*pid],
        UprobeScope::Followed(_) | UprobeScope::All => vec![-1],
    };
    let of = match whom {
        UprobeScope::Processes(_) | UprobeScope::FollowedIn(..) => Some(pids.as_slice()),
        UprobeScope::Followed(_) | UprobeScope::All => None,
    };
    let mut refused = Vec::<Refused>::new();
    let mut jobs = jobs(places, &mut refused);
    let patched = patched(&spots(&jobs), of);
    leave_out(&mut jobs, patched, &mut refused);
    let mut programs: Vec<(AttachJob<'_>, OwnedFd)> = Vec::new();
    let mut links = Links::default();
    for job in &jobs {
        let known = programs.iter().position(|(work, _)| *work == job.work);
        let at = match known {
            Some(at) => at,
            None => {
                programs.push((job.work, job.work.load(kind, maps, options.every)?));
                programs.len() - 1
            }
        };
        let program = programs[at].1.as_fd();
        for &pid in &pids {
            let (some, others) = job.link(program, pid, how)?;
            links.append(some);
            for new in others {
                if !refused.iter().any(|known| known.place == new.place) {
                    refused.push(new);
                }
            }
        }
    }
    // A process that was patched in between: the links are dropped before it is told.
    let attached = spots(&jobs);
    if let Some((at, process)) = first_patched(&attached, of) {
        return Err(UprobeError::Patched { path: attached[at].0.to_owned(), process });
    }
    refused.sort_by_key(|refused| refused.place);
    match refused.first() {
        Some(first) if refused.len() == places.len() => {
            Err(UprobeError::None { path: places[first.place].path.clone(), reason: first.reason() })
        }
        _ => Ok((links, refused)),
    }
}

impl Job<'_> {
    fn link(
        &self,
        program: BorrowedFd<'_>,
        pid: i32,
        how: Attachment,
    ) -> Result<(Links, Vec<Refused>), UprobeError> {
        let path = CString::new(self.path.as_os_str().as_bytes()).unwrap_or_default();
        let returns = self.work.is_return_probe();
        let failed = |cause| UprobeError::Attach {
            places: self.spots.len(),
            path: self.path.clone(),
            whom: if pid < 0 { String::new() } else { format!(" in process {pid}") },
            cause,
        };
        match how {
            Attachment::Multi => {
                let made = link_in_steps(program, &path, &self.spots, pid.max(0) as u32, returns);
                let (links, mut refused) = made.map_err(failed)?;
                if links.is_empty() && !refused.is_empty() && self.work.exit.is_none() {
                    let cause = refused.swap_remove(0).cause;
                    return Err(failed(cause.unwrap_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))));
                }
                Ok((links, refused))
            }
            Attachment::Events => {
                let machine = Machine::here();
                let pmu = machine.pmu("uprobe").ok_or(UprobeError::NoUprobes)?;
                let (mut links, mut refused) = (Links::default(), Vec::new());
                for spot in &self.spots {
                    go_on().map_err(failed)?;
                    let counter = if returns { 0 } else { spot.semaphore << 32 };
                    let place = EventPlace {
                        kind: pmu.kind,
                        config: u64::from(returns) | counter,
                        path: &path,
                        offset: spot.offset,
                        pid,
                    };
                    match link_event(program, &place, spot.cookie) {
                        Ok(pair) => links.add(pair),
                        Err(cause) if is_about_place(&cause) && self.spots.len() > 1 => {
                            refused.push(Refused { place: spot.place, cause: Some(cause) });
                        }
                        Err(cause) => return Err(failed(cause)),
                    }
                }
                Ok((links, refused))
            }
        }
    }
}

/// Whether memory is read for this.
fn reads(condition: &Condition, values: &[Value]) -> bool {
    let tests = condition.iter().flatten();
    let mut memory = tests.map(|test| !test.operand.steps.is_empty() || test.characters.is_some());
    let value = |value: &Value| match value {
        Value::Number(operand) => !operand.steps.is_empty(),
        Value::Text { .. } => true,
    };
    memory.any(|is| is) || values.iter().any(value)
}

/// Loads a program; one that reads memory as one that may wait for it, where the kernel has such.
fn load_waiting(
    kind: ProgramKind,
    name: &'static str,
    reads: bool,
    program: impl Fn(bool) -> Program,
) -> Result<OwnedFd, BpfError> {
    if reads && kind == ProgramKind::UprobeMulti {
        match load(ProgramKind::UprobeMultiWaiting, name, &program(true), None) {
            Ok(loaded) => return Ok(loaded),
            Err(error) => tracing::debug!(%error, "memory that is not there is not read"),
        }
    }
    load(kind, name, &program(false), None)
}

/// Loads a program that counts, by the kind of program that this kernel knows, and forgets it.
pub(super) fn try_one(maps: Maps) -> Result<(), BpfError> {
    let condition = Condition::default();
    let job = AttachJob {
        exit: None,
        frame: CallKey::StackPointer,
        timed: false,
        callers: false,
        condition: &condition,
        values: None,
    };
    let load = |kind| job.load(kind, maps, 1).map(drop);
    load(ProgramKind::UprobeMulti).or_else(|refused| load(ProgramKind::Uprobe).map_err(|_| refused))
}

/// Whether a refusal is about one of the places, not about all.
fn is_about_place(cause: &io::Error) -> bool {
    matches!(cause.raw_os_error(), Some(ENOTSUPP | libc::EINVAL | libc::EOPNOTSUPP | libc::EIO))
}

/// An error when the user has signalled that we are to end.
fn go_on() -> io::Result<()> {
    if crate::inject::is_interrupted() { Err(io::Error::from_raw_os_error(libc::EINTR)) } else { Ok(()) }
}

/// Attaches to all spots of a file that can be probed, by one link or a few. The kernel attaches
/// all of a link before it looks at signals, and takes from 3 us to 60 ms for each: the latter
/// where hundreds of processes have mapped the file, on a busy machine.
fn link_in_steps(
    program: BorrowedFd<'_>,
    path: &CStr,
    spots: &[Spot],
    pid: u32,
    returns: bool,
) -> io::Result<(Links, Vec<Refused>)> {
    const FIRST: usize = 128;
    const FAST: Duration = Duration::from_millis(100);
    const SLOW: Duration = Duration::from_millis(500);
    let (mut links, mut refused) = (Links::default(), Vec::new());
    let (mut rest, mut step) = (spots, FIRST);
    while !rest.is_empty() {
        go_on()?;
        let (some, others) = rest.split_at(step.min(rest.len()));
        let begun = Instant::now();
        let (more, out) = link_all(program, path, some, pid, returns)?;
        step = match begun.elapsed() {
            took if took < FAST => step.saturating_mul(4),
            took if took > SLOW => (step / 2).max(1),
            _ => step,
        };
        links.append(more);
        refused.extend(out);
        rest = others;
    }
    Ok((links, refused))
}

/// Attaches to all spots of a file that can be probed. One that cannot makes the kernel refuse all,
/// so halves are tried then, and their halves.
fn link_all(
    program: BorrowedFd<'_>,
    path: &CStr,
    spots: &[Spot],
    pid: u32,
    returns: bool,
) -> io::Result<(Links, Vec<Refused>)> {
    let several = UprobeTargets {
        offsets: spots.iter().map(|spot| spot.offset).collect(),
        semaphores: spots.iter().map(|spot| spot.semaphore).collect(),
        cookies: spots.iter().map(|spot| spot.cookie).collect(),
    };
    let cause = match link_uprobes(program, path, &several, pid, returns) {
        Ok(link) => {
            let mut links = Links::default();
            links.add([link]);
            return Ok((links, Vec::new()));
        }
        Err(cause) => cause,
    };
    if !is_about_place(&cause) {
        return Err(cause);
    }
    if let [one] = spots {
        return Ok((Links::default(), vec![Refused { place: one.place, cause: Some(cause) }]));
    }
    let (first, second) = spots.split_at(spots.len() / 2);
    let (mut links, mut refused) = link_all(program, path, first, pid, returns)?;
    let (more, others) = link_all(program, path, second, pid, returns)?;
    links.append(more);
    refused.extend(others);
    Ok((links, refused))
}
