//! The recorded command: found, forked, and waited for or terminated at the end.
use crate::error::RecordError;
use crate::run_loop::{Ended, SIGTERM};
use kymo_perf::workload::{Exit, Workload};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, FileType};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Forks the command, after a look whether it can be found at all: a typing error should not touch
/// any file. `aside`: its standard output goes to standard error, because the recording goes to
/// ours. `silent`: it has no standard streams. `environment`: what it has besides our own.
pub(crate) fn prepare(
    command: &[OsString],
    environment: &[(&str, OsString)],
    (aside, silent): (bool, bool),
) -> Result<Option<Workload>, RecordError> {
    let Some(name) = command.first() else { return Ok(None) };
    let fail = |source| RecordError::Command { command: name.to_string_lossy().into_owned(), source };
    find(name).map_err(|errno| fail(errno.into()))?;
    let mut workload = Workload::prepare_in(command, environment).map_err(fail)?;
    if aside {
        workload.send_stdout_to_stderr();
    }
    if silent {
        workload.silence();
    }
    Ok(Some(workload))
}

/// What execvp would say about the name, as far as a look at the file tells.
fn find(name: &OsStr) -> Result<(), Errno> {
    let look = |path: &Path| {
        // execve calls a directory EACCES.
        let file = rustix::fs::stat(path).map(|stat| FileType::from_raw_mode(stat.st_mode).is_file())?;
        if file { rustix::fs::access(path, Access::EXEC_OK) } else { Err(Errno::ACCESS) }
    };
    if name.as_bytes().contains(&b'/') {
        return look(Path::new(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut found = Err(Errno::NOENT);
    for directory in std::env::split_paths(&path) {
        match look(&directory.join(name)) {
            Ok(()) => return Ok(()),
            Err(Errno::ACCESS) => found = Err(Errno::ACCESS),
            Err(_) => {}
        }
    }
    found
}

/// How the command ended. One that we outlive is told to end, and given some time for it.
pub(crate) fn end(workload: &mut Workload, ended: Ended) -> Option<Exit> {
    if ended == Ended::ByItself {
        // With -p beside a command the command may still run; its status is ours, so it is waited
        // for.
        return workload.wait().ok();
    }
    workload.signal(SIGTERM);
    let fd = workload.ended_fd().try_clone_to_owned().ok()?;
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let patience = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok()?;
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&patience)) {
            Ok(1..) => return workload.wait().ok(),
            // Another signal, of the same request or to write a snapshot.
            Err(Errno::INTR) => {}
            _ => return None,
        }
    }
}
