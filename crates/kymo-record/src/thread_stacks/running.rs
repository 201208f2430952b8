//! Stacks of threads that run: each gets an event of its own, whose first sample has its registers
//! and a copy of its stack. Nothing stops.
use super::stack::{ThreadStack, waiting_stack};
use crate::attr::USER_REGS;
use crate::waiting_stacks::{StackReader, WaitingStack};
use kymo_core::ring::Reader;
use kymo_data::{Attr, RecordHeader, Sample, SampleLayout, abi};
use kymo_perf::evlist::{self, EvlistPlan, MappedRing, OpenEngine, Request, Targets};
use kymo_perf::sys::{self, Perf, attr_zeroed};
use kymo_symbols::Arch;
use kymo_symbols::unwind::UserRegs;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the kernel copies of a stack at most.
const STACK_BYTES: u32 = 65_528;
/// Pages of each thread's ring: one sample with its stack.
const RING_PAGES: usize = 32;
/// Threads that are looked at together: their rings are locked memory.
const BATCH: usize = 8;
/// A thread is interrupted after so many ns on a CPU.
const PERIOD_NS: u64 = 100_000;
/// How long threads that are looked at together may take to get a CPU, and all of them.
const PATIENCE: Duration = Duration::from_millis(500);
const MOST_PATIENCE: Duration = Duration::from_secs(2);

/// The first samples of threads that ran.
#[derive(Debug, Default)]
pub(super) struct RunningThreads {
    samples: HashMap<i32, (UserRegs, Vec<u8>)>,
    refused: bool,
}

impl RunningThreads {
    /// Takes a sample of each that runs. Waits [`PATIENCE`] at most for eight of them, and
    /// [`MOST_PATIENCE`] for all.
    pub(super) fn sample(tids: &[i32]) -> RunningThreads {
        let (mut running, until) = (RunningThreads::default(), Instant::now() + MOST_PATIENCE);
        for tids in tids.chunks(BATCH) {
            let until = until.min(Instant::now() + PATIENCE);
            running.refused |= running.batch(tids, until).is_none();
        }
        running
    }

    fn batch(&mut self, tids: &[i32], until: Instant) -> Option<()> {
        let mut attr = attr_zeroed();
        attr.type_ = Perf::SOFTWARE;
        attr.config = Perf::SW_CPU_CLOCK;
        attr.sample_period = PERIOD_NS;
        attr.sample_type = Perf::SAMPLE_TID | Perf::SAMPLE_REGS_USER | Perf::SAMPLE_STACK_USER;
        attr.sample_regs_user = USER_REGS;
        attr.sample_stack_user = STACK_BYTES;
        attr.set_exclude_kernel(1);
        attr.set_exclude_hv(1);
        let plan = EvlistPlan {
            events: vec![Request::new("cpu-clock:u", attr)],
            targets: Targets::per_thread(tids.to_vec()),
        };
        let mut events = evlist::open(Arc::new(sys::Real), plan, OpenEngine::Serial).ok()?;
        let rings = events.map_rings(RING_PAGES, false).ok()?;
        let mut open: Vec<_> = rings.iter().collect();
        while !open.is_empty() && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
            open.retain(|ring| {
                let found = first_sample(ring);
                let is_open = found.is_none();
                self.samples.extend(found);
                is_open
            });
        }
        Some(())
    }

    /// The stack of one of them. One that did not run after all waits by now.
    pub(super) fn stack_of(&mut self, reader: &mut StackReader, pid: i32, tid: i32) -> ThreadStack {
        let reason = match self.refused {
            true => "it runs, and the system permits no event for it (kernel.perf_event_paranoid)",
            false => "it was ready and got no CPU meanwhile, or ran in the kernel",
        };
        let Some((regs, stack)) = self.samples.remove(&tid) else {
            let found = waiting_stack(reader, pid, tid);
            return ThreadStack { reason, ..found };
        };
        let (frames, is_whole) = reader.unwind(pid, &regs, &stack).unwrap_or_default();
        ThreadStack {
            stack: WaitingStack { frames, is_whole, ..WaitingStack::default() },
            reason,
            ..ThreadStack::default()
        }
    }
}

/// The first sample in a ring: its thread, registers and copy of the stack.
fn first_sample(ring: &MappedRing) -> Option<(i32, (UserRegs, Vec<u8>))> {
    let layout = SampleLayout::new(&Attr {
        sample_type: Perf::SAMPLE_TID | Perf::SAMPLE_REGS_USER | Perf::SAMPLE_STACK_USER,
        sample_regs_user: USER_REGS,
        sample_stack_user: STACK_BYTES,
        ..Attr::default()
    });
    let mut reader = Reader::new(ring.ring.area());
    let span = reader.begin().ok()?;
    let mut bytes = vec![0; span.len_bytes()];
    span.copy_to(&mut bytes);
    reader.release(span, bytes.len());
    let mut rest = &bytes[..];
    while let Some(header) = RecordHeader::parse(rest) {
        let record = rest.get(..usize::from(header.size)).filter(|record| record.len() >= 8)?;
        rest = &rest[record.len()..];
        if header.kind != abi::PERF_RECORD_SAMPLE {
            continue;
        }
        let mut sample = Sample::default();
        layout.parse_into(header.misc, &record[8..], &mut sample).ok()?;
        let regs = sample.user_regs?;
        let regs = UserRegs::from_perf(Arch::NATIVE?, regs.abi, regs.mask, regs.values.iter())?;
        return Some((sample.tid?, (regs, sample.user_stack?.to_vec())));
    }
    None
}
