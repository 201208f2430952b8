//! What the engine inside the program cannot do, decided before any program is touched.
//!
//! Every answer is a reason in words that go after "not inside the program:"; no reason means that it may be tried.
use crate::engine::{Choice, ProbeRequest, Target};
use crate::exits::ReturnAddresses;
use crate::memory_events::RecordingTarget;
use kymo_core::probe::returns_oddly;
use kymo_core::probe::value::{Condition, reads_memory};
use kymo_symbols::sites::{Site, SiteKind};

/// Why a request cannot be served inside a program.
pub type Unsupported = &'static str;

const OTHER_MACHINE: Unsupported = "it patches x86-64 programs only";

/// Looks whether a request can be served inside this target; without one: inside of any.
///
/// # Errors
/// Why not.
pub fn check(request: &ProbeRequest, target: Option<&Target>) -> Result<(), Unsupported> {
    let runs_already = target.is_some_and(|target| !target.command);
    match () {
        () if runs_already && target.is_some_and(|target| target.children) => {
            Err("what a running program starts has no agent")
        }
        () if !cfg!(target_arch = "x86_64") => Err(OTHER_MACHINE),
        () if !request.values.is_empty() => Err("it does not tell arguments"),
        () if request.callers && !runs_already => {
            Err("it tells callers apart in programs that run already (-p) only")
        }
        () => Ok(()),
    }
}

/// Looks whether events of a recording, as typed, can be written by the one program that is recorded. `options`: why other options of the
/// recording forbid it.
///
/// # Errors
/// Why not.
pub(crate) fn check_events(
    texts: &[String],
    whom: &RecordingTarget<'_>,
    options: Result<(), Unsupported>,
) -> Result<(), Unsupported> {
    let nested = |pid: &i32| {
        let status = kymo_perf::proc::text(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        line.is_some_and(|line| line.split_ascii_whitespace().count() > 1)
    };
    match () {
        () if !cfg!(target_arch = "x86_64") => Err(OTHER_MACHINE),
        () if whom.pids.len() != 1 || !whom.tids.is_empty() => {
            Err("it enters one program that runs already (-p)")
        }
        () if texts.iter().any(|text| text.contains('{')) => Err("groups are counted by the kernel"),
        () if options.is_err() => options,
        () if whom.pids.iter().any(nested) => Err("the program has other numbers of processes than kymo"),
        () => Ok(()),
    }
}

/// Looks whether a site can be patched, as far as that shows from outside. `timed`: its returns are looked at. `inside`: places inside of functions
/// are wanted, too.
///
/// # Errors
/// Why not.
pub(crate) fn check_site(site: &Site, timed: bool, inside: bool) -> Result<(), Unsupported> {
    let function = site.kind == SiteKind::Function;
    if !function && !inside {
        return Err("it is not a function's entry");
    }
    if !function && surrounding(site).is_none() {
        return Err("it is in no function that is known");
    }
    if let Some(reason) = site.untouchable().or_else(|| site.immovable()) {
        return Err(reason);
    }
    let odd = timed && function && site.symbol.as_deref().is_some_and(returns_oddly);
    // In the words of those who look for its exits.
    if odd && site.symbol.as_deref() == Some("_start") {
        return Err("it is not entered by calls");
    }
    if odd { Err("its return address is used for more than one return") } else { Ok(()) }
}

/// Looks whether the program bears how calls are timed. Return addresses are replaced only if that
/// was asked for by name: the engine answers unwinders that look up unwind tables, and knows stacks
/// that are switched, but not a runtime that walks them itself, nor stacks that are copied.
///
/// # Errors
/// Why it does not, in words.
pub(crate) fn check_returns(choice: Choice, request: &ProbeRequest) -> Result<(), String> {
    let ReturnAddresses { walker, switches, force, .. } = &request.return_addresses;
    match walker.as_ref().or(switches.as_ref()) {
        _ if !request.timed => Ok(()),
        _ if choice != Choice::Shadow => check_at_exits(request).map_err(str::to_owned),
        Some(why) if !force => {
            Err(format!("{why}, and replaced return addresses may end it; --force does it even so"))
        }
        _ => Ok(()),
    }
}

/// Looks whether calls can be timed so by code where they end.
///
/// # Errors
/// Why not.
fn check_at_exits(request: &ProbeRequest) -> Result<(), Unsupported> {
    let reads = |(entry, back): &(Condition, Condition)| reads_memory(entry) || reads_memory(back);
    match request.conditions.iter().any(reads) {
        true => Err(
            "timed calls are seen where they end, and code there looks at no memory; --engine shadow does",
        ),
        false => Ok(()),
    }
}

/// The function that a site is in: where it begins in the file, its bytes, and how many there are to the next one.
pub(crate) fn surrounding(site: &Site) -> Option<(u64, u64, u64)> {
    let functions = site.module.functions();
    let next = functions.partition_point(|function| function.offset <= site.offset);
    let room = |begin: u64| functions.get(next).map_or(0, |next| next.offset - begin);
    if site.kind == SiteKind::Function {
        return Some((site.offset, site.length_bytes, room(site.offset)));
    }
    let function = site.module.function_at(site.offset)?;
    (function.size_bytes > 0).then(|| (function.offset, function.size_bytes, room(function.offset)))
}
