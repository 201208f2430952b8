//! A scripted kernel for tests: it fails chosen opens, and its rings are files that a test can
//! write.
//!
//! It keeps account of what is open, who opened it, and of every use of something that is not open
//! ([`Fake::mistakes`]).
//!
//! # Safety
//! Files behind descriptors are lent out while the account of them lies behind a lock; see
//! [`Fake::poll_fd`].
#![allow(unsafe_code, reason = "lends the files behind descriptors")]
use super::{Binding, Descriptor, EventTarget, Kernel, Perf, perf_event_attr};
use crate::ring::{Keeps, Ring};
use rustix::fs::MemfdFlags;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

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
    /// Whether it observes a cgroup.
    pub cgroup: bool,
    /// How many descriptors are open.
    pub live: usize,
}

type Rule = Box<dyn Fn(Call<'_>) -> Option<i32> + Send + Sync>;
type Counts = Box<dyn Fn(&Opened) -> [u64; 3] + Send + Sync>;
type Homes = Box<dyn Fn(i32) -> Option<u32> + Send + Sync>;

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
    /// The number of the cgroup's descriptor.
    pub cgroup: Option<i32>,
    /// The descriptor number that was given out.
    pub fd: i32,
    /// Who opened it.
    pub opener: ThreadId,
}

#[derive(Default)]
struct FakeState {
    calls: usize,
    raises: u32,
    opened: Vec<Opened>,
    /// What is open, by number: its index in `opened`.
    live: BTreeMap<i32, usize>,
    /// Virtual numbers: those that were given back, and the first that was never used.
    free: BinaryHeap<Reverse<i32>>,
    next: i32,
    /// Files of virtual descriptors, made when they are mapped.
    files: HashMap<i32, OwnedFd>,
    redirected: Vec<(i32, i32)>,
    enabled: Vec<i32>,
    disabled: Vec<i32>,
    on: BTreeMap<i32, bool>,
    programs: Vec<(i32, i32)>,
    bindings: HashMap<ThreadId, Vec<Option<u32>>>,
    mistakes: Vec<String>,
}

impl FakeState {
    /// Notes the use of something that is not open.
    fn check(&mut self, what: &str, event: &Descriptor) -> io::Result<()> {
        if self.live.contains_key(&event.number()) {
            return Ok(());
        }
        self.mistakes.push(format!("{what} of {}, which is not open", event.number()));
        Err(io::Error::from_raw_os_error(libc::EBADF))
    }

    fn switch(&mut self, number: i32, on: bool) {
        if on { &mut self.enabled } else { &mut self.disabled }.push(number);
        self.on.insert(number, on);
    }

    fn own(&self) -> Vec<i32> {
        let me = std::thread::current().id();
        let own = self.live.iter().filter(|&(_, &index)| self.opened[index].opener == me);
        own.map(|(&number, _)| number).collect()
    }
}

/// A scripted kernel. Without rules every call succeeds, hardware events included.
#[derive(Default)]
pub struct Fake {
    rules: Vec<Rule>,
    homes: Option<Homes>,
    counts: Option<Counts>,
    raises_allowed: u32,
    limit: Option<usize>,
    numbers_only: bool,
    map_limit_pages: Option<usize>,
    state: Mutex<FakeState>,
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

    /// Descriptors are numbers with no file behind them, always the lowest free one, as the
    /// kernel's are. They cannot be polled; mapping one makes a file for it.
    pub fn virtual_descriptors(mut self) -> Fake {
        self.numbers_only = true;
        self.state().next = 3;
        self
    }

    /// Adds a rule: an open for which it returns an errno fails with it. The first rule that
    /// matches counts.
    pub fn rule(mut self, rule: impl Fn(Call<'_>) -> Option<i32> + Send + Sync + 'static) -> Fake {
        self.rules.push(Box::new(rule));
        self
    }

    /// Says on which CPU a task ran last.
    pub fn homes(mut self, homes: impl Fn(i32) -> Option<u32> + Send + Sync + 'static) -> Fake {
        self.homes = Some(Box::new(homes));
        self
    }

    /// Says what an open event has counted: value, time enabled, time running.
    pub fn counts(mut self, counts: impl Fn(&Opened) -> [u64; 3] + Send + Sync + 'static) -> Fake {
        self.counts = Some(Box::new(counts));
        self
    }

    /// No PMU: hardware and cache events and raw ones fail with ENOENT.
    pub fn without_pmu(self) -> Fake {
        self.rule(|call| matches!(call.attr.type_, 0 | 3 | 4).then_some(libc::ENOENT))
    }

    /// An ordinary user at `perf_event_paranoid` 2: own tasks, user space only. As Linux 7.2 has
    /// it: the kernel's part of call chains must be excluded, too.
    pub fn unprivileged(self) -> Fake {
        self.rule(|call| {
            let chains = call.attr.sample_type & Perf::SAMPLE_CALLCHAIN != 0;
            let kernel =
                call.attr.exclude_kernel() == 0 || chains && call.attr.exclude_callchain_kernel() == 0;
            (call.cgroup || call.task == super::ANY || kernel).then_some(libc::EACCES)
        })
    }

    /// At most this many descriptors can be open until the limit is raised, and as many more after
    /// each raise.
    pub fn descriptors(mut self, limit: usize) -> Fake {
        self.limit = Some(limit);
        self
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

    /// The numbers that are open, ascending.
    pub fn live(&self) -> Vec<i32> {
        self.state().live.keys().copied().collect()
    }

    /// Takes the groups of a CPU apart, as the kernel does with a CPU that goes offline.
    pub fn dissolve_groups(&self, cpu: i32) {
        let mut state = self.state();
        state.opened.iter_mut().filter(|event| event.cpu == cpu).for_each(|event| event.group = None);
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

    /// The open descriptors that are enabled by themselves (a leader's state rules its members),
    /// ascending.
    pub fn on(&self) -> Vec<i32> {
        let state = self.state();
        state.live.keys().copied().filter(|number| state.on[number]).collect()
    }

    /// The programs that were attached: (event, program).
    pub fn programs(&self) -> Vec<(i32, i32)> {
        self.state().programs.clone()
    }

    /// Where each thread was bound to, in order; `None` is where it was at first.
    pub fn bindings(&self) -> Vec<(ThreadId, Vec<Option<u32>>)> {
        self.state().bindings.iter().map(|(&thread, list)| (thread, list.clone())).collect()
    }

    /// Uses of descriptors that were not open: closed twice, switched after closing, joined as a
    /// group.
    pub fn mistakes(&self) -> Vec<String> {
        self.state().mistakes.clone()
    }

    fn effective_limit(&self, raises: u32) -> Option<usize> {
        self.limit.map(|limit| limit * (raises as usize + 1))
    }

    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The words of a read, as `read_format` has them.
fn answer(own: &Opened, members: &[&Opened], counts: &Counts) -> Vec<u64> {
    let format = own.attr.read_format;
    let [value, enabled, running] = counts(own);
    let group = format & Perf::FORMAT_GROUP != 0;
    if own.attr.pinned() == 1 && running == 0 {
        // It found no place on the hardware, and is in error.
        return Vec::new();
    }
    let mut words = vec![if group { 1 + members.len() as u64 } else { value }];
    words.extend((format & Perf::FORMAT_TOTAL_TIME_ENABLED != 0).then_some(enabled));
    words.extend((format & Perf::FORMAT_TOTAL_TIME_RUNNING != 0).then_some(running));
    let mut rest = |event: &Opened, value: Option<u64>| {
        words.extend(value);
        words.extend((format & Perf::FORMAT_ID != 0).then_some(1000 + event.fd as u64));
        words.extend((format & Perf::FORMAT_LOST != 0).then_some(0));
    };
    rest(own, group.then_some(value));
    if group {
        members.iter().for_each(|member| rest(member, Some(counts(member)[0])));
    }
    words
}

impl Kernel for Fake {
    fn open(&self, attr: &perf_event_attr, place: &EventTarget<'_>) -> io::Result<Descriptor> {
        let refuse = |errno| Err(io::Error::from_raw_os_error(errno));
        let mut state = self.state();
        let call = Call {
            index: state.calls,
            attr,
            task: place.task,
            cpu: place.cpu,
            grouped: place.group.is_some(),
            cgroup: place.cgroup.is_some(),
            live: state.live.len(),
        };
        state.calls += 1;
        if (place.task == super::ANY || place.cgroup.is_some()) && place.cpu == super::ANY {
            return refuse(libc::EINVAL);
        }
        // The kernel finds a free number before it looks at anything else.
        if self.effective_limit(state.raises).is_some_and(|limit| state.live.len() >= limit) {
            return refuse(libc::EMFILE);
        }
        if let Some(errno) = self.rules.iter().find_map(|rule| rule(call)) {
            return refuse(errno);
        }
        if let Some(group) = place.group {
            state.check("joining the group", group)?;
        }
        let fd = if !self.numbers_only {
            rustix::fs::memfd_create("kymo-fake-event", MemfdFlags::CLOEXEC)?.into_raw_fd()
        } else if let Some(Reverse(free)) = state.free.pop() {
            free
        } else {
            state.next += 1;
            state.next - 1
        };
        let index = state.opened.len();
        state.opened.push(Opened {
            attr: *attr,
            task: place.task,
            cpu: place.cpu,
            group: place.group.map(Descriptor::number),
            cgroup: place.cgroup.map(|fd| fd.as_raw_fd()),
            fd,
            opener: std::thread::current().id(),
        });
        state.live.insert(fd, index);
        state.on.insert(fd, attr.disabled() == 0);
        Ok(Descriptor::new(fd))
    }

    fn close(&self, mut events: Vec<Descriptor>) {
        events.sort_unstable();
        let mut state = self.state();
        for event in events {
            if state.check("closing", &event).is_err() {
                continue;
            }
            let number = event.number();
            state.live.remove(&number);
            state.files.remove(&number);
            if self.numbers_only {
                state.free.push(Reverse(number));
            } else {
                // SAFETY: made by into_raw_fd in open, and out of the account now, so this is done
                // once.
                drop(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
    }

    fn replace(&self, old: &Descriptor, new: Descriptor) -> io::Result<()> {
        let mut state = self.state();
        state.check("replacing", old)?;
        state.check("replacing by", &new)?;
        let (old, number) = (old.number(), new.number());
        let index = state.live[&number];
        state.opened[index].fd = old;
        // Members joined the leader by the number that it had then.
        state.opened.iter_mut().skip(index).filter(|event| event.group == Some(number)).for_each(|event| {
            event.group = Some(old);
        });
        let on = state.on[&number];
        state.live.insert(old, index);
        state.on.insert(old, on);
        drop(state);
        self.close(vec![new]);
        Ok(())
    }

    fn switch(&self, event: &Descriptor, on: bool) -> io::Result<()> {
        let mut state = self.state();
        state.check(if on { "enabling" } else { "disabling" }, event)?;
        state.switch(event.number(), on);
        Ok(())
    }

    fn switch_own(&self, on: bool) -> io::Result<()> {
        let mut state = self.state();
        state.own().into_iter().for_each(|number| state.switch(number, on));
        Ok(())
    }

    fn set_output(&self, event: &Descriptor, output: &Descriptor) -> io::Result<()> {
        let mut state = self.state();
        state.check("redirecting", event)?;
        state.check("redirecting to the ring", output)?;
        state.redirected.push((event.number(), output.number()));
        Ok(())
    }

    fn set_filter(&self, event: &Descriptor, _filter: &str) -> io::Result<()> {
        self.state().check("filtering", event)
    }

    fn set_bpf(&self, event: &Descriptor, program: BorrowedFd<'_>) -> io::Result<()> {
        let mut state = self.state();
        state.check("attaching a program", event)?;
        state.programs.push((event.number(), program.as_raw_fd()));
        Ok(())
    }

    fn id(&self, event: &Descriptor) -> io::Result<u64> {
        self.state().check("asking for the id", event)?;
        Ok(1000 + event.number() as u64)
    }

    fn read(&self, event: &Descriptor, words: &mut [u64]) -> io::Result<usize> {
        let mut state = self.state();
        state.check("reading", event)?;
        let (Some(counts), Some(&index)) = (&self.counts, state.live.get(&event.number())) else {
            words.fill(0);
            return Ok(words.len());
        };
        let own = &state.opened[index];
        // In the order in which they joined, not in that of their numbers.
        let mut live: Vec<usize> = state.live.values().copied().collect();
        live.sort_unstable();
        let members = live.into_iter().map(|index| &state.opened[index]);
        let members: Vec<&Opened> = members.filter(|other| other.group == Some(own.fd)).collect();
        let answer = answer(own, &members, counts);
        let space =
            words.get_mut(..answer.len()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOSPC))?;
        space.copy_from_slice(&answer);
        Ok(answer.len())
    }

    fn pause_output(&self, event: &Descriptor, _paused: bool) -> io::Result<()> {
        self.state().check("pausing the ring of", event)
    }

    fn map(&self, event: &Descriptor, data_pages: usize, keeps: Keeps) -> io::Result<Ring> {
        self.state().check("mapping", event)?;
        if self.map_limit_pages.is_some_and(|limit| data_pages > limit) {
            return Err(io::Error::from_raw_os_error(libc::EPERM));
        }
        let map = |file: BorrowedFd<'_>| {
            rustix::fs::ftruncate(file, ((1 + data_pages) * super::page_size()) as u64)?;
            Ring::map_as(file, data_pages, keeps)
        };
        if let Some(file) = self.poll_fd(event) {
            return map(file);
        }
        let file = rustix::fs::memfd_create("kymo-fake-ring", MemfdFlags::CLOEXEC)?;
        let ring = map(file.as_fd())?;
        self.state().files.insert(event.number(), file);
        Ok(ring)
    }

    fn poll_fd<'a>(&self, event: &'a Descriptor) -> Option<BorrowedFd<'a>> {
        if self.numbers_only {
            return None;
        }
        // SAFETY: the file is closed by `close` alone, which takes the Descriptor by value; no Drop
        // of this kernel closes it.
        Some(unsafe { BorrowedFd::borrow_raw(event.number()) })
    }

    fn descriptor_limit(&self) -> Option<u64> {
        self.effective_limit(self.state().raises).map(|limit| limit as u64)
    }

    fn raise_descriptors(&self, _wanted: u64) -> Option<u64> {
        let mut state = self.state();
        if state.raises >= self.raises_allowed {
            return None;
        }
        state.raises += 1;
        Some(self.effective_limit(state.raises).map_or(u64::MAX, |limit| limit as u64))
    }

    fn last_cpus(&self, tasks: &[i32]) -> Vec<Option<u32>> {
        tasks.iter().map(|&task| self.homes.as_ref().and_then(|homes| homes(task))).collect()
    }

    fn bind(&self, cpu: u32) -> io::Result<Binding> {
        self.state().bindings.entry(std::thread::current().id()).or_default().push(Some(cpu));
        Ok(Binding::of(&[]))
    }

    fn unbind(&self, _before: &Binding) {
        self.state().bindings.entry(std::thread::current().id()).or_default().push(None);
    }
}
