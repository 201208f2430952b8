//! Resolves the targets: from options to tasks and CPUs, before anything is opened.
use crate::error::PlanError;
use crate::options::TargetSpec;
use kymo_data::{ControlGroup, is_in_cgroup};
use kymo_perf::{cgroup, proc, sys};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// What kind of thing is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetKind {
    /// A command that will be started.
    Command,
    /// Tasks that exist.
    Tasks,
    /// CPUs, whatever runs on them.
    Cpus,
}

/// Whom to observe, looked up.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    /// Which kind.
    pub(crate) kind: TargetKind,
    /// The tasks that exist; 0 stands for a command that has none yet; empty for CPUs.
    pub(crate) tasks: Vec<i32>,
    /// Processes all of whose threads are among the tasks.
    pub(crate) processes: Vec<i32>,
    /// Tasks whose end ends the recording.
    pub(crate) until: Vec<i32>,
    /// The CPUs to open events on.
    pub(crate) cpus: Vec<u32>,
    /// The cgroup whose tasks are observed on these CPUs, if not all are.
    pub(crate) cgroup: Option<Arc<OwnedFd>>,
}

/// Looks up the targets. Earlier forms win over later ones, with a remark.
pub(crate) fn resolve(spec: &TargetSpec, notes: &mut Vec<String>) -> Result<Observed, PlanError> {
    let online = sys::OnlineCpus::here(&[&spec.pids[..], &spec.tids].concat());
    notes.extend(online.warning());
    let online = online.cpus;
    for &cpu in &spec.cpus {
        if !online.contains(&cpu) {
            return Err(PlanError::NoCpu { cpu, online });
        }
    }
    let mut ignored =
        |what: &str, by: &str| notes.push(format!("{what} is ignored: {by} selects the targets"));
    let named = !spec.pids.is_empty() || !spec.tids.is_empty();
    let cgroup = spec.cgroup.as_deref().map(named_cgroup).transpose()?;
    if cgroup.is_some() && (named || spec.uid.is_some()) {
        return Err(PlanError::CgroupOfTasks);
    }
    if named || spec.uid.is_some() {
        let by = if named { "-p or -t" } else { "-u" };
        if named && spec.uid.is_some() {
            ignored("-u", by);
        }
        if spec.all {
            ignored("-a", by);
        }
        if !spec.cpus.is_empty() {
            ignored("-C", by);
        }
        let (tasks, processes, until) = match spec.uid {
            Some(uid) if !named => of_user(uid)?,
            _ => named_tasks(spec, notes)?,
        };
        return Ok(Observed { kind: TargetKind::Tasks, tasks, processes, until, cpus: online, cgroup });
    }
    let (processes, until) = (Vec::new(), Vec::new());
    if spec.all || cgroup.is_some() || !spec.cpus.is_empty() || spec.command.is_empty() {
        if spec.per_thread {
            ignored("--per-thread", "-a or -C");
        }
        let cpus = if spec.cpus.is_empty() { online } else { spec.cpus.clone() };
        return Ok(Observed { kind: TargetKind::Cpus, tasks: Vec::new(), processes, until, cpus, cgroup });
    }
    Ok(Observed { kind: TargetKind::Command, tasks: vec![0], processes, until, cpus: online, cgroup })
}

/// A cgroup by its path, or by the name of its unit, its container or its pod.
fn named_cgroup(name: &str) -> Result<Arc<OwnedFd>, PlanError> {
    let error = match cgroup::existing(name) {
        Ok((path, directory)) => return with_events(&path, directory),
        Err(error) => error,
    };
    let paths = cgroup::all().into_iter().filter_map(|cgroup| String::from_utf8(cgroup.path).ok());
    let mut called: Vec<String> = Vec::new();
    // Parents come first: what is in one that was found is found with it.
    for path in paths.filter(|path| ControlGroup::of(path).is_called(name)) {
        if !called.iter().any(|top| is_in_cgroup(&path, top)) {
            called.push(path);
        }
    }
    match &called[..] {
        [] => Err(error.into()),
        [path] => {
            let (path, directory) = cgroup::existing(path)?;
            with_events(&path, directory)
        }
        _ => Err(PlanError::CgroupsOfName { name: name.to_owned(), paths: called }),
    }
}

/// The directory, if the kernel opens events of this cgroup.
fn with_events(path: &Path, directory: Arc<OwnedFd>) -> Result<Arc<OwnedFd>, PlanError> {
    cgroup::takes_events(&sys::Real, path, directory.as_fd())?;
    Ok(directory)
}

/// Tasks, processes, and whose end to wait for.
type Tasks = (Vec<i32>, Vec<i32>, Vec<i32>);

fn of_user(uid: u32) -> Result<Tasks, PlanError> {
    let mut processes = proc::processes_of_user(uid)?;
    // Observing the observer would feed itself.
    let own = std::process::id() as i32;
    processes.retain(|&pid| pid != own);
    let tasks: Vec<i32> = processes.iter().flat_map(|&pid| proc::tasks(pid).unwrap_or_default()).collect();
    if tasks.is_empty() { Err(PlanError::NoProcess(uid)) } else { Ok((tasks, processes.clone(), processes)) }
}

/// The tasks of the same targets as they are now, and their processes.
pub(crate) fn tasks_again(observed: &Observed, spec: &TargetSpec) -> (Vec<i32>, Vec<i32>) {
    let mut processes = observed.processes.clone();
    if spec.children {
        processes.extend(proc::descendants(&processes));
        processes.sort_unstable();
        processes.dedup();
    }
    let threads = processes.iter().flat_map(|&pid| proc::tasks(pid).unwrap_or_default());
    let mut tasks: Vec<i32> = threads.chain(spec.tids.iter().copied()).collect();
    tasks.sort_unstable();
    tasks.dedup();
    (tasks, processes)
}

fn named_tasks(spec: &TargetSpec, notes: &mut Vec<String>) -> Result<Tasks, PlanError> {
    let mut tasks = Vec::new();
    let children = if spec.children { proc::descendants(&spec.pids) } else { Vec::new() };
    notes.extend(children_note(spec.pids.len(), children.len(), "recorded"));
    for &pid in &spec.pids {
        tasks.extend(proc::tasks(pid).map_err(|_| PlanError::NoTask { what: "process", id: pid })?);
    }
    // They may end at any moment.
    tasks.extend(children.iter().flat_map(|&pid| proc::tasks(pid).unwrap_or_default()));
    for &tid in &spec.tids {
        proc::process_of(tid).ok_or(PlanError::NoTask { what: "thread", id: tid })?;
        tasks.push(tid);
    }
    tasks.sort_unstable();
    tasks.dedup();
    Ok((tasks, [&spec.pids[..], &children].concat(), spec.pids.iter().chain(&spec.tids).copied().collect()))
}

/// What to say of processes that are observed because those that were named have started them.
pub fn children_note(named: usize, children: usize, what: &str) -> Option<String> {
    let (has, alone) =
        if named == 1 { ("the process has", "it is") } else { ("the processes have", "they are") };
    let processes = if children == 1 { "process, which is" } else { "processes, which are" };
    (children > 0).then(|| {
        format!("{has} started {children} {processes} {what}, too; with --no-children {alone} {what} alone, as by perf")
    })
}
