//! Copies the contents of rings at one moment, without consuming them.
use kymo_core::ring::backward::{Reader, Window};
use kymo_perf::evlist::{Evlist, Lost, MappedRing};
use kymo_perf::sys;

/// What one ring held.
#[derive(Debug, Default)]
pub(crate) struct RingSnapshot {
    /// The ring's CPU, or -1.
    pub(crate) cpu: i32,
    /// The ring's task, or -1.
    pub(crate) task: i32,
    /// Whole records, the newest first.
    pub(crate) records: Vec<u8>,
    /// Whether older ones were overwritten before.
    pub(crate) wrapped: bool,
    /// Bytes behind them that made no sense.
    pub(crate) corrupt_bytes: u64,
}

/// Looks at the rings of these events that keep the newest records.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SnapshotReader<'a> {
    events: &'a Evlist,
    rings: &'a [MappedRing],
}

impl<'a> SnapshotReader<'a> {
    /// For these rings, all of which keep the newest records.
    pub(crate) fn new(events: &'a Evlist, rings: &'a [MappedRing]) -> SnapshotReader<'a> {
        SnapshotReader { events, rings }
    }

    /// What all rings hold. Each is read on its own CPU, before all ordinary threads where that is
    /// permitted: then nothing is written there meanwhile, and nothing needs to be held up. A ring
    /// that cannot be read like that is paused while it is read.
    pub(crate) fn take(&self) -> Vec<RingSnapshot> {
        // A thread of its own, because it moves and does not come back.
        let taken = std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().spawn_scoped(scope, || self.take_there()).ok()?;
            Some(thread.join().unwrap_or_default())
        });
        // Without one, rings are read from here, which pauses them.
        taken.unwrap_or_else(|| self.rings.iter().map(|ring| self.shoot(ring, |_| false)).collect())
    }

    /// How many samples of these rings the kernel has dropped since the start: those that came
    /// while one was paused.
    pub(crate) fn lost(&self) -> Vec<Lost> {
        let mut lost = self.events.lost();
        lost.retain(|lost| self.events.events[lost.event].request.attr.write_backward() == 1);
        lost
    }

    fn take_there(&self) -> Vec<RingSnapshot> {
        if let Err(error) = sys::run_first() {
            tracing::debug!(%error, "a snapshot is taken at ordinary priority");
        }
        self.rings.iter().map(|ring| self.shoot(ring, |cpu| sys::pin_to(cpu).is_ok())).collect()
    }

    fn shoot(&self, mapped: &MappedRing, move_to: impl Fn(u32) -> bool) -> RingSnapshot {
        let reader = Reader::new(mapped.ring.backward_area());
        let mut bytes = vec![0; reader.size_bytes()];
        let at_home = u32::try_from(mapped.cpu).is_ok_and(move_to);
        let window = if at_home {
            // The kernel has no record half written when a program runs on the CPU.
            reader.window(&mut bytes)
        } else {
            let paused = self.events.pause_output(mapped, true);
            // Who was writing when the ring was paused has come to an end by the second look.
            let window = reader.window(&mut bytes).and_then(|_| reader.window(&mut bytes));
            if let Err(error) = paused.and_then(|()| self.events.pause_output(mapped, false)) {
                tracing::warn!(%error, cpu = mapped.cpu, task = mapped.task, "the ring could not be paused");
            }
            window
        };
        let window = window.unwrap_or_else(|unaligned| {
            tracing::warn!(%unaligned, "skipped");
            Window { corrupt_bytes: bytes.len(), ..Window::default() }
        });
        bytes.truncate(window.records_bytes);
        RingSnapshot {
            cpu: mapped.cpu,
            task: mapped.task,
            records: bytes,
            wrapped: window.wrapped,
            corrupt_bytes: window.corrupt_bytes as u64,
        }
    }
}
