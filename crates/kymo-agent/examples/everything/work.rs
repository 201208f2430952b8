//! Probes that are put in place, come and go.
use super::functions::{self, Module, Planned};
use super::report::{self, Done, Sum, Sums, Turns};
use kymo_agent::patch::{
    Clock, Consumers, OwnMemory, PatchError, Probe, Rings, Site, attach, detach, returns_missed,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of each CPU's ring: nobody reads it, so it fills, and what comes then is counted as lost.
const RING_BYTES: u32 = 1 << 20;
/// An attach that is refused because of what threads do at this moment is tried again so often.
const TRIES: usize = 50;

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    Count,
    Returns,
    Latency,
    Record,
    Mixed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    All,
    Each,
    Random,
    Nothing,
}

#[derive(Debug)]
struct Wanted {
    modules: String,
    what: What,
    how: How,
    group: usize,
    part: Option<(usize, usize)>,
    seed: u64,
    report: Option<PathBuf>,
    stop: bool,
    say: bool,
}

impl Wanted {
    fn read() -> Option<Wanted> {
        let get = |name: &str| std::env::var(format!("KYMO_EVERYTHING{name}")).ok();
        let part = get("_PART").and_then(|part| {
            let (from, to) = part.split_once('-')?;
            Some((from.parse().ok()?, to.parse().ok()?))
        });
        Some(Wanted {
            modules: get("")?,
            what: match get("_DO").as_deref() {
                Some("returns") => What::Returns,
                Some("latency") => What::Latency,
                Some("record") => What::Record,
                Some("mixed") => What::Mixed,
                _ => What::Count,
            },
            how: match get("_HOW").as_deref() {
                Some("all") => How::All,
                Some("each") => How::Each,
                Some("stop") => How::Nothing,
                _ => How::Random,
            },
            group: get("_GROUP").and_then(|group| group.parse().ok()).unwrap_or(1).max(1),
            part,
            seed: get("_SEED").and_then(|seed| seed.parse().ok()).unwrap_or(0),
            report: get("_REPORT").map(PathBuf::from),
            stop: get("_STOP").is_some(),
            say: get("_SAY").is_some(),
        })
    }
}

#[derive(Debug)]
struct Placed {
    probe: Probe,
    planned: Planned,
}

impl Placed {
    fn sum(&self) -> Sum {
        Sum { hits: self.probe.hits(), returns: self.probe.returns(), lost: self.probe.lost().unwrap_or(0) }
    }
}

#[derive(Debug)]
struct Everything {
    wanted: Wanted,
    process: u32,
    memory: OwnMemory,
    rings: Option<&'static Rings>,
    known: Vec<String>,
    modules: Vec<Module>,
    /// Functions without a probe at the moment.
    idle: Vec<Planned>,
    placed: Vec<Placed>,
    sums: Sums,
    done: Done,
    random: u64,
    /// Functions still to be skipped and taken, of `KYMO_EVERYTHING_PART`.
    seen: usize,
    /// Functions that had their turn in other processes of this run.
    turns: Turns,
}

static EVERYTHING: Mutex<Option<Everything>> = Mutex::new(None);

fn everything() -> MutexGuard<'static, Option<Everything>> {
    EVERYTHING.lock().unwrap_or_else(PoisonError::into_inner)
}

unsafe extern "C" {
    safe fn atexit(function: extern "C" fn()) -> i32;
    safe fn raise(signal: i32) -> i32;
}

const SIGSTOP: i32 = 19;

/// Before `main`, with the process's first thread.
pub(crate) fn begin() {
    let Some(wanted) = Wanted::read() else { return };
    let Ok(memory) = OwnMemory::open() else { return };
    let (how, stop) = (wanted.how, wanted.stop);
    if std::env::var_os("KYMO_EVERYTHING_ONLY").is_some() {
        // SAFETY: the process has one thread, which is here.
        unsafe { std::env::remove_var("LD_PRELOAD") };
    }
    let mut new = Everything {
        rings: None,
        process: std::process::id(),
        memory,
        known: Vec::new(),
        modules: Vec::new(),
        idle: Vec::new(),
        placed: Vec::new(),
        sums: Sums::new(),
        done: Done::default(),
        random: u64::from(std::process::id()) | 1,
        seen: 0,
        turns: Turns::new(),
        wanted,
    };
    new.random ^= new.wanted.seed << 32;
    if let Some(folder) = new.wanted.report.as_ref().filter(|_| how == How::Each) {
        new.turns = report::turns(folder);
    }
    if new.wanted.what == What::Record {
        new.rings = Rings::create(RING_BYTES, Clock::measured()).ok();
    }
    new.look();
    if matches!(how, How::All | How::Random) {
        new.place_idle();
    } else if how == How::Each {
        // The first before all threads: one that blocks traps before there is a probe would keep
        // out all of them.
        new.next_group();
    } else if stop {
        // For another's counts: memory is laid out as with the probes, so what programs do by
        // addresses is the same.
        new.place_idle();
        let placed = std::mem::take(&mut new.placed);
        new.remove(placed);
        (new.sums, new.done) = (Sums::new(), Done::default());
    }
    *everything() = Some(new);
    if stop {
        raise(SIGSTOP);
    }
    atexit(end);
    // Counts that are compared with another's are of a program without a thread of ours.
    if how != How::Nothing && !stop {
        // A program whose threads cannot be made is left alone.
        let _ = without_signals(|| std::thread::Builder::new().name("everything".into()).spawn(run));
    }
}

/// Does what starts a thread that gets none of the program's signals: one that all its own threads
/// block must wait, as without us.
fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    // SAFETY: plain numbers, for which 0 is a value.
    let (mut set, mut before): (libc::sigset_t, libc::sigset_t) = unsafe { std::mem::zeroed() };
    // SAFETY: fills a set that is ours.
    unsafe { libc::sigfillset(&mut set) };
    for signal in [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE] {
        // SAFETY: changes a set that is ours.
        unsafe { libc::sigdelset(&mut set, signal) };
    }
    // SAFETY: changes this thread's mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &set, &mut before) };
    let started = start();
    // SAFETY: puts this thread's mask back.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    started
}

extern "C" fn end() {
    for _ in 0..1000 {
        // A forked child has its parent's lock, held or not, and no business here. The worker holds
        // it for moments.
        if let Ok(mut everything) = EVERYTHING.try_lock() {
            let own = |everything: &&mut Everything| everything.process == std::process::id();
            if let Some(everything) = everything.as_mut().filter(own) {
                if everything.wanted.stop {
                    raise(SIGSTOP);
                }
                everything.report();
                // The worker must not go on while everything is torn down.
                everything.wanted.how = How::Nothing;
            }
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn run() {
    let mut told = Instant::now();
    let mut looked = Instant::now();
    let mut pause = Duration::from_millis(500);
    loop {
        {
            let mut everything = everything();
            let Some(everything) = everything.as_mut() else { return };
            if looked.elapsed() > Duration::from_millis(100) {
                everything.look();
                looked = Instant::now();
            }
            match everything.wanted.how {
                How::All => everything.place_idle(),
                How::Each => everything.next_group(),
                How::Nothing => return,
                How::Random => {
                    everything.place_idle();
                    everything.exchange();
                }
            }
            if told.elapsed() > pause {
                let begin = Instant::now();
                everything.report();
                told = Instant::now();
                // Some hundred numbers for each function with times: most of the CPU time is the
                // program's all the same.
                pause = (20 * begin.elapsed()).max(Duration::from_millis(500));
            }
        }
        // Not in the match: the lock would be held while this thread sleeps.
        let how = everything().as_ref().map(|everything| everything.wanted.how);
        std::thread::sleep(Duration::from_micros(if how == Some(How::All) { 50_000 } else { 500 }));
    }
}

impl Everything {
    /// Plans the functions of modules that have come.
    fn look(&mut self) {
        for (path, base) in functions::modules(&self.wanted.modules) {
            if self.known.contains(&path) {
                continue;
            }
            self.known.push(path.clone());
            let number = self.modules.len();
            if let Some((module, planned)) = functions::plan_all(&self.memory, &path, base, number) {
                self.modules.push(module);
                let (from, to) = self.wanted.part.unwrap_or((0, usize::MAX));
                let mut first = Vec::new();
                for one in planned {
                    let had_its_turn = self.turns.contains(&(path.clone(), one.offset));
                    if (from..to).contains(&self.seen) {
                        if had_its_turn { self.idle.push(one) } else { first.push(one) }
                    }
                    self.seen += 1;
                }
                // Before those that had theirs: a program may be at its end before all have.
                self.idle.splice(0..0, first);
            }
        }
    }

    fn consumers(&mut self, returns: bool) -> Consumers {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        match (self.wanted.what, self.random >> 61) {
            (What::Record, _) => match self.rings {
                Some(rings) => Consumers::Record(rings.record(1).with_arguments()),
                None => Consumers::Count,
            },
            (What::Returns, _) | (What::Mixed, 2..5) if returns => Consumers::CountReturns,
            (What::Latency, _) | (What::Mixed, 5..8) if returns => Consumers::Latency,
            _ => Consumers::Count,
        }
    }

    /// Attaches to what is given; what cannot be attached to is dropped.
    fn place(&mut self, mut planned: Vec<Planned>) {
        let returns: Vec<Planned> = planned.extract_if(.., |one| one.returns).collect();
        for (group, returns) in [(returns, true), (planned, false)] {
            if group.is_empty() {
                continue;
            }
            let consumers = self.consumers(returns);
            let sites: Vec<Site> = group.iter().map(|one| one.site.clone()).collect();
            match tried(|| attach(&sites, consumers)) {
                Ok(probes) => {
                    self.done.attaches += group.len() as u64;
                    for (planned, probe) in group.into_iter().zip(probes) {
                        self.sums.entry((planned.module, planned.offset)).or_default();
                        self.placed.push(Placed { probe, planned });
                    }
                    self.done.placed = self.sums.len();
                }
                Err(error) => {
                    // One site may stand against all the others: it is found by halves, and
                    // dropped.
                    if is_of_one(&error) && group.len() > 1 {
                        let mut begin = group;
                        let rest = begin.split_off(begin.len() / 2);
                        self.place(begin);
                        self.place(rest);
                        continue;
                    }
                    self.done.failed += 1;
                    if self.wanted.say {
                        eprintln!("everything: {error}");
                    }
                    if !is_of_one(&error) {
                        self.idle.extend(group);
                    }
                }
            }
        }
    }

    fn place_idle(&mut self) {
        if !self.idle.is_empty() {
            let idle = std::mem::take(&mut self.idle);
            self.place(idle);
        }
    }

    /// Detaches from these; they are idle then.
    fn remove(&mut self, placed: Vec<Placed>) {
        self.done.detaches += placed.len() as u64;
        let probes: Vec<Probe> = placed.iter().map(|one| one.probe.clone()).collect();
        if let Err(error) = tried(|| detach(&probes)) {
            self.done.failed += 1;
            if self.wanted.say {
                eprintln!("everything: {error}");
            }
        }
        for one in placed {
            self.sums.entry((one.planned.module, one.planned.offset)).or_default().add(one.sum());
            self.idle.push(one.planned);
        }
    }

    /// The next functions have probes, those before have none.
    fn next_group(&mut self) {
        let before = std::mem::take(&mut self.placed);
        if !before.is_empty() {
            self.remove(before);
        }
        let group = self.wanted.group.min(self.idle.len());
        let all = self.idle.len();
        if all == 0 {
            return;
        }
        // Those that were removed are at the end.
        let planned = self.idle.drain(..group).collect();
        self.place(planned);
        self.done.cycles = self.done.attaches / all as u64;
    }

    /// A random part of what is placed goes and comes back.
    fn exchange(&mut self) {
        let count = self.placed.len() as u64;
        if count == 0 {
            return;
        }
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let from = (self.random >> 33) % count;
        let to = (from + 1 + (self.random >> 20) % 64).min(count);
        let gone = self.placed.drain(from as usize..to as usize).collect();
        self.remove(gone);
        self.done.cycles = self.done.detaches / count;
        self.place_idle();
    }

    fn report(&mut self) {
        let mut sums: BTreeMap<_, _> = self.sums.clone();
        for one in &self.placed {
            sums.entry((one.planned.module, one.planned.offset)).or_default().add(one.sum());
        }
        self.done.missed = returns_missed();
        let text = report::text(&self.modules, &self.done, &sums);
        if self.wanted.say {
            eprint!("{text}");
        }
        if let Some(folder) = &self.wanted.report {
            let all = self.wanted.stop || self.wanted.how == How::Each;
            report::write(folder, &text, &sums, all);
        }
    }
}

fn is_of_one(error: &PatchError) -> bool {
    matches!(error, PatchError::Refused { .. } | PatchError::Changed { .. } | PatchError::Taken { .. })
}

/// Tries again while the reason is what threads do at this moment.
fn tried<T>(mut work: impl FnMut() -> Result<T, PatchError>) -> Result<T, PatchError> {
    for _ in 1..TRIES {
        match work() {
            Err(PatchError::BlocksTraps { .. } | PatchError::Silent { .. }) => {}
            done => return done,
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    work()
}
