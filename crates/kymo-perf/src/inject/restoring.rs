//! How restorers at work ([`Restorer`](super::Restorer)) are known, by those that have to wait for
//! them.
use crate::proc;
use std::ffi::CStr;
use std::time::{Duration, Instant};

/// The argument with which kymo is the restorer; the number of the process follows.
pub const RESTORER: &str = "restore-probes";
/// The name of a restorer whose kymo is gone.
pub(super) const AT_WORK: &CStr = c"kymo-restoring";
/// So long it may take, and how often it is looked at.
pub(super) const MOST_RESTORING: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(2);

/// Whether the kymo that has started this restorer is gone: it may not have noticed yet.
fn is_orphan(restorer: i32) -> bool {
    let program = |pid: i32| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
    let own = program(restorer);
    // Who kills restorers has ended this one, too.
    own.is_some() && proc::parent(restorer).is_none_or(|parent| program(parent) != own)
}

/// Waits until no restorer but this one is at work in a process, but not for ever: two that hold
/// its threads at once would wait for each other.
pub(super) fn wait_for_others(pid: i32) {
    let begun = Instant::now();
    let own = std::process::id() as i32;
    let is_named = |pid: i32| proc::comm(pid, pid).is_some_and(|name| name == AT_WORK.to_bytes());
    // Of several restorers one is the first.
    let is_restorer = is_named(own);
    let is_at_work = |&other: &i32| {
        let words = || std::fs::read(format!("/proc/{other}/cmdline")).unwrap_or_default();
        let is_its = |words: Vec<u8>| {
            let mut words = words.split(|byte| *byte == 0).skip(1);
            words.next() == Some(RESTORER.as_bytes()) && words.next() == Some(pid.to_string().as_bytes())
        };
        let is_before = other < own || (other != own && !is_restorer);
        is_before && is_its(words()) && (is_named(other) || is_orphan(other))
    };
    while begun.elapsed() < MOST_RESTORING && proc::processes().unwrap_or_default().iter().any(is_at_work) {
        std::thread::sleep(PAUSE);
    }
}
