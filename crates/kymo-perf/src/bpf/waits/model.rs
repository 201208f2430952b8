//! The time of threads by the most obvious code: every event of the scheduler in order, and a list
//! of all waits.
use super::ThreadState;
use std::collections::BTreeMap;

/// Bits of a task's state that mean that it never runs again.
pub(super) const DEAD: u32 = 0x80;

/// What the scheduler does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SchedEvent {
    /// A thread that was there before.
    Enter { pid: i32, tid: i32, state: ThreadState },
    /// A new thread.
    New { pid: i32, tid: i32 },
    /// A CPU goes from one thread to another; 0: it is idle.
    Switch { prev: i32, task_state: u32, preempted: bool, throttled: bool, next: i32 },
    /// A thread wakes another.
    Waking { waker: i32, tid: i32 },
    /// A thread has executed a program; its id was `old` before.
    Exec { old: i32, tid: i32 },
}

/// A wait that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ModelWait {
    pub(super) begun_ns: u64,
    pub(super) task_state: u32,
    pub(super) waker: i32,
    pub(super) blocked_ns: u64,
    pub(super) runnable_ns: u64,
}

/// Where the time of a thread went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ModelTimes {
    pub(super) run_ns: u64,
    pub(super) blocked_ns: u64,
    pub(super) runnable_ns: u64,
    pub(super) waits: u64,
    pub(super) preemptions: u64,
    /// The longest of those that are over.
    pub(super) longest_ns: u64,
}

impl std::ops::AddAssign for ModelTimes {
    fn add_assign(&mut self, other: ModelTimes) {
        self.run_ns += other.run_ns;
        self.blocked_ns += other.blocked_ns;
        self.runnable_ns += other.runnable_ns;
        self.waits += other.waits;
        self.preemptions += other.preemptions;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }
}

/// In a task's state: its cgroup had no quota left.
const THROTTLED: u32 = 1 << 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Runs,
    /// With the state in which it left its CPU, and when and by whom it was woken.
    Waits {
        task_state: u32,
        woken: Option<(u64, i32)>,
    },
    Held,
}

#[derive(Clone, Debug)]
struct Life {
    pid: i32,
    doing: Doing,
    since: u64,
    run_ns: u64,
    waits: Vec<ModelWait>,
}

/// All threads.
#[derive(Debug)]
pub(super) struct WaitModel {
    live: BTreeMap<i32, Life>,
    /// Those that have ended.
    ended: Vec<(i32, Life)>,
    /// So many threads have a place at the same time.
    most: usize,
    /// Threads that had none.
    pub(super) missed: u64,
    /// Threads that have ended and keep their place, as their last record was lost.
    pub(super) gone: std::collections::BTreeSet<i32>,
}

/// How a wait that ends now is divided.
fn divide(since: u64, now: u64, task_state: u32, woken: Option<(u64, i32)>) -> ModelWait {
    let is_ready = task_state & !THROTTLED == 0;
    let until = match woken {
        _ if is_ready => since,
        Some((woken, _)) => woken,
        None => now,
    };
    ModelWait {
        begun_ns: since,
        task_state,
        waker: woken.map_or(0, |(_, waker)| waker),
        blocked_ns: until - since,
        runnable_ns: now - until,
    }
}

impl WaitModel {
    pub(super) fn new(most: usize) -> WaitModel {
        WaitModel { live: BTreeMap::new(), ended: Vec::new(), most, missed: 0, gone: Default::default() }
    }

    pub(super) fn has_room(&self) -> bool {
        self.live.len() + self.gone.len() < self.most
    }

    pub(super) fn apply(&mut self, now: u64, event: SchedEvent) {
        match event {
            SchedEvent::Enter { pid, tid, state } => {
                let doing = match state {
                    ThreadState::Held => Doing::Held,
                    ThreadState::Ready => Doing::Waits { task_state: 0, woken: None },
                    ThreadState::Blocked => Doing::Waits { task_state: 1, woken: None },
                };
                if self.has_room() {
                    self.begin(now, pid, tid, doing);
                }
            }
            SchedEvent::New { pid, tid } if self.has_room() => {
                self.begin(now, pid, tid, Doing::Waits { task_state: 0, woken: None });
            }
            SchedEvent::New { .. } => self.missed += 1,
            SchedEvent::Switch { prev, task_state, preempted, throttled, next } => {
                self.leave(now, prev, if preempted { 0 } else { task_state }, throttled);
                self.come_back(now, next);
            }
            SchedEvent::Waking { waker, tid } => {
                if let Some(life) = self.live.get_mut(&tid)
                    && let Doing::Waits { task_state: 1..THROTTLED, woken: woken @ None } = &mut life.doing
                {
                    *woken = Some((now, waker));
                }
            }
            SchedEvent::Exec { old, tid } => {
                let Some(mut life) = self.live.remove(&old) else { return };
                if life.doing == Doing::Held {
                    (life.doing, life.since) = (Doing::Runs, now);
                }
                self.gone.remove(&tid);
                self.live.insert(tid, life);
            }
        }
    }

    fn begin(&mut self, now: u64, pid: i32, tid: i32, doing: Doing) {
        self.live.insert(tid, Life { pid, doing, since: now, run_ns: 0, waits: Vec::new() });
    }

    fn leave(&mut self, now: u64, tid: i32, task_state: u32, throttled: bool) {
        let Some(life) = self.live.get_mut(&tid).filter(|life| life.doing != Doing::Held) else { return };
        if let Doing::Waits { task_state: task_state @ 1..THROTTLED, woken } = life.doing {
            // The switch to it was left out.
            let (until, waker) = woken.unwrap_or((now, 0));
            let blocked_ns = until - life.since;
            life.waits.push(ModelWait {
                begun_ns: life.since,
                task_state,
                waker,
                blocked_ns,
                runnable_ns: 0,
            });
            life.since = until;
        }
        life.run_ns += now - life.since;
        life.since = now;
        let is_throttled = task_state == 0 && throttled;
        let task_state = if is_throttled { THROTTLED } else { task_state };
        life.doing = Doing::Waits { task_state, woken: None };
        if task_state & DEAD != 0
            && let Some(life) = self.live.remove(&tid)
        {
            self.ended.push((tid, life));
        }
    }

    fn come_back(&mut self, now: u64, tid: i32) {
        let Some(life) = self.live.get_mut(&tid) else { return };
        if let Doing::Waits { task_state, woken } = life.doing {
            life.waits.push(divide(life.since, now, task_state, woken));
            (life.doing, life.since) = (Doing::Runs, now);
        }
    }

    /// The last wait of a thread that is over, and its process.
    pub(super) fn last_wait(&self, tid: i32) -> Option<(i32, ModelWait)> {
        let life = self.live.get(&tid)?;
        Some((life.pid, *life.waits.last()?))
    }

    /// Since when a thread does what it does, ns.
    pub(super) fn since(&self, tid: i32) -> u64 {
        self.live.get(&tid).map_or(0, |life| life.since)
    }

    /// How long each thread was blocked in waits that are over, by what tells where a wait was that
    /// began at a moment.
    pub(super) fn blocked_at(&self, place: impl Fn(u64) -> i64) -> BTreeMap<(i32, i64), u64> {
        let live = self.live.iter().map(|(tid, life)| (*tid, life));
        let mut all = BTreeMap::new();
        for (tid, life) in live.chain(self.ended.iter().map(|(tid, life)| (*tid, life))) {
            for wait in life.waits.iter().filter(|wait| wait.blocked_ns > 0) {
                *all.entry((tid, place(wait.begun_ns))).or_default() += wait.blocked_ns;
            }
        }
        all
    }

    /// Who has woken a thread that waits, and how long it was blocked until then.
    pub(super) fn woken(&self, tid: i32) -> Option<(i32, u64)> {
        let life = self.live.get(&tid)?;
        match life.doing {
            Doing::Waits { woken: Some((time, waker)), .. } => Some((waker, time - life.since)),
            _ => None,
        }
    }

    /// Whether a thread is off its CPU because it waits for something.
    pub(super) fn is_blocked(&self, tid: i32) -> bool {
        let doing = self.live.get(&tid).map(|life| life.doing);
        matches!(doing, Some(Doing::Waits { task_state: 1..THROTTLED, .. }))
    }

    /// The times of each thread until now. A wait that is not over has a time, but is not counted.
    pub(super) fn times(&self, now: u64) -> BTreeMap<i32, ModelTimes> {
        let mut all: BTreeMap<i32, ModelTimes> = BTreeMap::new();
        let live = self.live.iter().map(|(tid, life)| (*tid, life, true));
        for (tid, life, is_live) in live.chain(self.ended.iter().map(|(tid, life)| (*tid, life, false))) {
            let mut waits = life.waits.clone();
            let longest_ns = waits.iter().map(|wait| wait.blocked_ns).max().unwrap_or(0);
            let mut times = ModelTimes { run_ns: life.run_ns, longest_ns, ..ModelTimes::default() };
            for wait in &waits {
                match wait.task_state & !THROTTLED {
                    0 => times.preemptions += 1,
                    _ => times.waits += 1,
                }
            }
            match life.doing {
                Doing::Runs => times.run_ns += now - life.since,
                Doing::Waits { task_state, woken } if is_live => {
                    waits.push(divide(life.since, now, task_state, woken));
                }
                _ => {}
            }
            times.blocked_ns = waits.iter().map(|wait| wait.blocked_ns).sum();
            times.runnable_ns = waits.iter().map(|wait| wait.runnable_ns).sum();
            *all.entry(tid).or_default() += times;
        }
        all
    }
}
