//! A kernel that follows a script: it fails the opens that a test tells it to, and its rings are files that the test can write into.
use super::{Kernel, Perf, perf_event_attr};
use crate::ring::Ring;
use rustix::fs::MemfdFlags;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One call of `perf_event_open`, as a script sees it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// How many opens came before this one.
    pub index: usize,
    /// What is to be opened.
    pub attr: &'a perf_event_attr,
    /// For which task, or [`super::ANY`].
    pub task: i32,
    /// On which CPU, or [`super::ANY`].
    pub cpu: i32,
    /// Whether it joins a group.
    pub grouped: bool,
    /// How often the descriptor limit was raised before.
    pub raises: u32,
}

type Rule = Box<dyn Fn(Call<'_>) -> Option<i32> + Send + Sync>;

/// What the fake kernel was asked to open, kept for the test to look at.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The attr of the call.
    pub attr: perf_event_attr,
    /// Its task.
    pub task: i32,
    /// Its CPU.
    pub cpu: i32,
    /// The group leader's descriptor number.
    pub group: Option<i32>,
    /// The descriptor number that was given out.
    pub fd: i32,
}

#[derive(Default)]
struct State {
    calls: usize,
    raises: u32,
    opened: Vec<Opened>,
    redirected: Vec<(i32, i32)>,
    enabled: Vec<i32>,
    disabled: Vec<i32>,
}

/// A scripted kernel. Without rules every call succeeds, hardware events included.
#[derive(Default)]
pub struct Fake {
    rules: Vec<Rule>,
    raises_allowed: u32,
    map_limit_pages: Option<usize>,
    state: Mutex<State>,
}

impl fmt::Debug for Fake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fake").field("rules", &self.rules.len()).finish_non_exhaustive()
    }
}

impl Fake {
    /// A kernel that says yes.
    pub fn new() -> Fake {
        Fake { raises_allowed: 2, ..Fake::default() }
    }

    /// Adds a rule: an open for which it returns an errno fails with it. The first rule that matches counts.
    pub fn rule(mut self, rule: impl Fn(Call<'_>) -> Option<i32> + Send + Sync + 'static) -> Fake {
        self.rules.push(Box::new(rule));
        self
    }

    /// No PMU: hardware and cache events and raw ones fail with ENOENT.
    pub fn without_pmu(self) -> Fake {
        self.rule(|call| matches!(call.attr.type_, 0 | 3 | 4).then_some(libc::ENOENT))
    }

    /// An ordinary user at `perf_event_paranoid` 2: own tasks, user space only.
    pub fn unprivileged(self) -> Fake {
        self.rule(|call| (call.task == super::ANY || call.attr.exclude_kernel() == 0).then_some(libc::EACCES))
    }

    /// A task that is gone: ESRCH.
    pub fn without_task(self, task: i32) -> Fake {
        self.rule(move |call| (call.task == task).then_some(libc::ESRCH))
    }

    /// An old kernel that does not know the LOST read format (before 6.0).
    pub fn without_read_lost(self) -> Fake {
        self.rule(|call| (call.attr.read_format & Perf::FORMAT_LOST != 0).then_some(libc::EINVAL))
    }

    /// At most this many opens succeed until the descriptor limit is raised, and as many again after each raise.
    pub fn descriptors(self, limit: usize) -> Fake {
        self.rule(move |call| (call.index >= limit * (call.raises as usize + 1)).then_some(libc::EMFILE))
    }

    /// How often the descriptor limit may be raised (2 if never said).
    pub fn raises_allowed(mut self, times: u32) -> Fake {
        self.raises_allowed = times;
        self
    }

    /// Rings larger than this are refused with EPERM.
    pub fn map_limit_pages(mut self, pages: usize) -> Fake {
        self.map_limit_pages = Some(pages);
        self
    }

    /// The opens that succeeded, in order.
    pub fn opened(&self) -> Vec<Opened> {
        self.state().opened.clone()
    }

    /// The redirections: (event, output).
    pub fn redirected(&self) -> Vec<(i32, i32)> {
        self.state().redirected.clone()
    }

    /// The descriptors that were enabled, in order.
    pub fn enabled(&self) -> Vec<i32> {
        self.state().enabled.clone()
    }

    /// The descriptors that were disabled, in order.
    pub fn disabled(&self) -> Vec<i32> {
        self.state().disabled.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kernel for Fake {
    fn open(
        &self,
        attr: &perf_event_attr,
        task: i32,
        cpu: i32,
        group: Option<BorrowedFd<'_>>,
        _cloexec: bool,
    ) -> io::Result<OwnedFd> {
        let mut state = self.state();
        let call =
            Call { index: state.calls, attr, task, cpu, grouped: group.is_some(), raises: state.raises };
        state.calls += 1;
        if task == super::ANY && cpu == super::ANY {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        if let Some(errno) = self.rules.iter().find_map(|rule| rule(call)) {
            // A failed call does not use up a place of `descriptors`.
            state.calls -= usize::from(errno == libc::EMFILE);
            return Err(io::Error::from_raw_os_error(errno));
        }
        let fd = rustix::fs::memfd_create("kymo-fake-event", MemfdFlags::CLOEXEC)?;
        let group = group.map(|fd| fd.as_raw_fd());
        state.opened.push(Opened { attr: *attr, task, cpu, group, fd: fd.as_raw_fd() });
        Ok(fd)
    }

    fn enable(&self, event: BorrowedFd<'_>) -> io::Result<()> {
        self.state().enabled.push(event.as_raw_fd());
        Ok(())
    }

    fn disable(&self, event: BorrowedFd<'_>) -> io::Result<()> {
        self.state().disabled.push(event.as_raw_fd());
        Ok(())
    }

    fn set_output(&self, event: BorrowedFd<'_>, output: BorrowedFd<'_>) -> io::Result<()> {
        self.state().redirected.push((event.as_raw_fd(), output.as_raw_fd()));
        Ok(())
    }

    fn set_filter(&self, _event: BorrowedFd<'_>, _filter: &str) -> io::Result<()> {
        Ok(())
    }

    fn id(&self, event: BorrowedFd<'_>) -> io::Result<u64> {
        Ok(1000 + event.as_raw_fd() as u64)
    }

    fn read(&self, _event: BorrowedFd<'_>, words: &mut [u64]) -> io::Result<usize> {
        words.fill(0);
        Ok(words.len())
    }

    fn map(&self, event: BorrowedFd<'_>, data_pages: usize) -> io::Result<Ring> {
        if self.map_limit_pages.is_some_and(|limit| data_pages > limit) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        rustix::fs::ftruncate(event, ((1 + data_pages) * super::page_size()) as u64)?;
        Ring::map(event, data_pages)
    }

    fn raise_descriptors(&self) -> Option<u64> {
        let mut state = self.state();
        if state.raises >= self.raises_allowed {
            return None;
        }
        state.raises += 1;
        Some(1024 * u64::from(state.raises + 1))
    }
}
