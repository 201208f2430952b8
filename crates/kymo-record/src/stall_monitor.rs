//! Moves the drain of a CPU to other CPUs where something of a higher priority keeps it from
//! running.
//!
//! A drain is bound to the CPU whose ring it empties, at a low real-time priority. A real-time
//! program of a higher one keeps it waiting there for as long as it computes, and the ring
//! overflows, although other CPUs are idle. To raise the drain's priority would interrupt the
//! program. So a monitor looks at the rings: where one fills up and its reader does not move, the
//! monitor lets the drain's thread run on the other CPUs. The kernel moves it there at once.
//!
//! ```text
//!  CPU 0: idle               CPU 1: real-time program         ring of CPU 1
//!                            drain waits (runnable)           fills up
//!  monitor: ring is a quarter full, and its reader stood still since the last look
//!           sched_setaffinity(drain, other CPUs)
//!  drain runs here  <------- drain                            is emptied
//! ```
//! The thread that reads the ring stays the same, so that a ring has one reader all the time, as
//! `kymo_core::ring` requires. The monitor only looks at two counters ([`Area::fill`]).
//!
//! Where all CPUs are kept busy so, nothing helps; then the monitor tells for how long.
//!
//! [`Area::fill`]: kymo_core::ring::Area::fill
use crate::channel::timespec;
use crate::options::CallGraph;
use crate::plan::RecordingPlan;
use crate::shared::DrainShared;
use kymo_core::ring::Fill;
use kymo_data::Attr;
use kymo_perf::proc;
use kymo_perf::ring::Ring;
use kymo_perf::sys::{self, Kernel};
use rustix::event::{PollFd, PollFlags, poll};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// From the least to the most time between two looks.
const LEAST_INTERVAL: Duration = Duration::from_millis(2);
const MOST_INTERVAL: Duration = Duration::from_millis(250);
/// The same where it is not known how fast rings fill.
const USUAL_INTERVAL: Duration = Duration::from_millis(10);
/// So many looks there are while a busy CPU fills its ring.
const LOOKS_PER_RING: u64 = 10;
/// A sample without its stack takes so many bytes, at most.
const SAMPLE_BYTES: u64 = 1024;
/// A ring is looked after when this part of it is full, at which its drain was woken.
const WATERMARK_SHARE: usize = 4;
/// A drain that can be moved runs again after less than this.
const LONGEST_MOVE: Duration = Duration::from_millis(100);
/// A thread that waits for a CPU for less than this is nothing unusual.
const LEAST_STALL: Duration = Duration::from_millis(20);

/// A drain that is bound to a CPU, and its rings.
pub(crate) struct BoundDrain<'a> {
    pub(crate) cpu: u32,
    pub(crate) rings: Vec<&'a Ring>,
    /// Its thread; 0 before it runs.
    pub(crate) tid: i32,
}

/// A drain that did not run, though there was work for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stall {
    cpu: u32,
    /// For how long it stood still, at most.
    longest: Duration,
}

/// What the monitor saw: threads of the recorder that others kept from running.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    drains: Vec<Stall>,
    /// By how much the monitor itself came too late, at most.
    own: Duration,
}

impl Stalls {
    /// What to say of them if samples were lost in full rings.
    pub(crate) fn remark(&self, ring_full: u64) -> Option<String> {
        if ring_full == 0 {
            return None;
        }
        let longest = self.drains.iter().map(|stall| stall.longest).max().unwrap_or_default();
        let everywhere = longest.max(self.own);
        let cpus: Vec<u32> = self.drains.iter().map(|stall| stall.cpu).collect();
        let cpus = kymo_perf::cpu_list::format(&cpus);
        if everywhere > LONGEST_MOVE {
            let seconds = everywhere.as_secs_f64();
            return Some(format!(
                "other threads, of a higher priority or very many, kept kymo's from all CPUs for up to {seconds:.2} s, and rings ran full: \
                 --call-graph fp makes samples so small that rings may hold them, and larger rings (-m) hold more"
            ));
        }
        (!self.drains.is_empty()).then(|| {
            format!(
                "other threads of a higher priority kept kymo's from CPUs {cpus} for up to {:.3} s, until their rings were emptied \
                 from other CPUs: larger ones (-m) hold what comes until then",
                longest.as_secs_f64()
            )
        })
    }
}

/// The state of one drain between two looks.
struct Watched<'a> {
    drain: BoundDrain<'a>,
    /// At the last look, for each ring.
    fills: Vec<Fill>,
    /// Since when its rings wait and it does not run.
    since: Option<Instant>,
    stall: Option<Stall>,
}

/// Looks after the drains that are bound to CPUs.
pub(crate) struct StallMonitor<'a> {
    drains: Vec<Watched<'a>>,
    interval: Duration,
}

impl<'a> StallMonitor<'a> {
    /// `None` where no drain is bound.
    pub(crate) fn new(plan: &RecordingPlan, drains: Vec<BoundDrain<'a>>) -> Option<StallMonitor<'a>> {
        let fills = |drain: &BoundDrain<'_>| drain.rings.iter().map(|ring| ring.area().fill()).collect();
        let drains: Vec<Watched<'a>> = drains
            .into_iter()
            .filter(|drain| drain.tid > 0)
            .map(|drain| Watched { fills: fills(&drain), drain, since: None, stall: None })
            .collect();
        (!drains.is_empty()).then(|| StallMonitor { drains, interval: interval(plan) })
    }

    /// Until the recording ends.
    pub(crate) fn run(mut self, shared: &DrainShared) -> Stalls {
        let _ = rustix::thread::set_name(c"monitor");
        if shared.first
            && let Err(error) = sys::run_early()
        {
            tracing::debug!(%error, "the monitor of drains runs at ordinary priority");
        }
        let permitted = sys::Real.permitted_cpus(0);
        let (mut before, mut own) = (Instant::now(), Duration::ZERO);
        // Acquire: pairs with the Release of whoever ends the recording.
        while !shared.stop.load(Ordering::Acquire) {
            let _ = poll(
                &mut [PollFd::new(shared.stop_notifier.fd(), PollFlags::IN)],
                Some(&timespec(self.interval)),
            );
            let now = Instant::now();
            self.look(before, now, &permitted);
            own = own.max((now - before).saturating_sub(self.interval));
            before = now;
        }
        let drains = self.drains.into_iter().filter_map(|watched| watched.stall);
        Stalls { drains: drains.filter(|stall| stall.longest >= LEAST_STALL).collect(), own }
    }

    /// Moves the drains that do not run. `before`: the time of the last look.
    fn look(&mut self, before: Instant, now: Instant, permitted: &[u32]) {
        let mut stalled = Vec::new();
        for (at, watched) in self.drains.iter_mut().enumerate() {
            if watched.stands_still(before) {
                stalled.push(at);
            } else if let (Some(since), Some(stall)) = (watched.since.take(), &mut watched.stall) {
                stall.longest = stall.longest.max(now - since);
            }
        }
        let of = |at: &usize| self.drains[*at].drain.cpu;
        let busy: Vec<u32> = stalled.iter().map(of).collect();
        let free: Vec<u32> = permitted.iter().copied().filter(|cpu| !busy.contains(cpu)).collect();
        for at in stalled {
            let Watched { drain, since, stall, .. } = &mut self.drains[at];
            let moved = !free.is_empty() && sys::move_thread(drain.tid, &free).is_ok();
            tracing::debug!(cpu = drain.cpu, moved, "a drain does not run");
            let longest = since.map_or(Duration::ZERO, |since| now - since);
            let stall = stall.get_or_insert(Stall { cpu: drain.cpu, longest });
            stall.longest = stall.longest.max(longest);
        }
    }
}

impl Watched<'_> {
    /// Whether a ring was as full at the last look that its drain should have come, and it has not:
    /// it wants to run and does not.
    fn stands_still(&mut self, before: Instant) -> bool {
        let mut still = false;
        for (ring, fill) in self.drain.rings.iter().zip(&mut self.fills) {
            let now = ring.area().fill();
            still |= is_still(*fill, now, ring.size_bytes());
            *fill = now;
        }
        if still {
            self.since.get_or_insert(before);
        }
        // One that has no buffer for what is in the ring sleeps.
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        still && proc::state(own, self.drain.tid).is_none_or(|state| state == 'R')
    }
}

/// Whether the reader of a ring of this size did not come between two looks, though it was woken
/// before the first.
fn is_still(before: Fill, now: Fill, ring_bytes: usize) -> bool {
    let waits = |fill: Fill| fill.bytes >= ring_bytes / WATERMARK_SHARE;
    before.position == now.position && waits(before) && waits(now)
}

/// The time between two looks: several while a busy CPU fills its ring.
fn interval(plan: &RecordingPlan) -> Duration {
    let ring_bytes = (plan.drained_pages() * sys::page_size()) as u64;
    let stack_bytes = match plan.options.call_graph {
        CallGraph::Dwarf { stack_bytes } => u64::from(stack_bytes),
        _ => 0,
    };
    let attrs = plan.open.events.iter().filter_map(|event| Attr::parse(&sys::attr_bytes(&event.attr)));
    let rates: Option<Vec<u64>> =
        attrs.filter(|attr| attr.sample_period > 0).map(|attr| attr.freq()).collect();
    let Some(hz) = rates.map(|rates| rates.iter().sum::<u64>()) else { return USUAL_INTERVAL };
    let bytes_per_second = hz.saturating_mul(SAMPLE_BYTES + stack_bytes).max(1);
    let fill_ns = ring_bytes.saturating_mul(1_000_000_000) / bytes_per_second;
    Duration::from_nanos(fill_ns / LOOKS_PER_RING).clamp(LEAST_INTERVAL, MOST_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a reader stands still only if the ring waited for it at both looks and it did
    /// not move: neither a ring that fills just now, nor one that is read, is a stall.
    #[test]
    fn readers_that_stand_still() {
        let fill = |position, bytes| Fill { position, bytes };
        assert!(is_still(fill(64, 1024), fill(64, 2048), 4096));
        assert!(!is_still(fill(64, 1000), fill(64, 2048), 4096));
        assert!(!is_still(fill(64, 1024), fill(72, 4096), 4096));
        assert!(!is_still(fill(64, 1024), fill(64, 0), 4096));
    }

    /// Checks that threads that stood still are remarked on only if that cost samples, and that the
    /// remark says whether there was another CPU.
    #[test]
    fn remarks() {
        let ms = Duration::from_millis;
        let stalls = |longest, own| {
            let stall = |cpu, longest| Stall { cpu, longest };
            Stalls { drains: vec![stall(0, ms(30)), stall(1, longest)], own }
        };
        assert_eq!(stalls(ms(1200), ms(0)).remark(0), None);
        for everywhere in [stalls(ms(1200), ms(0)), Stalls { drains: Vec::new(), own: ms(1200) }] {
            let text = everywhere.remark(7).unwrap();
            assert!(text.contains("from all CPUs for up to 1.20 s"), "{text}");
        }
        let text = stalls(ms(40), ms(1)).remark(7).unwrap();
        assert!(
            text.contains("CPUs 0-1 for up to 0.040 s, until their rings were emptied from other CPUs"),
            "{text}"
        );
        assert_eq!(Stalls::default().remark(7), None);
    }
}
