//! The memory budget of a recording: rings and buffers, within `--max-memory`.
use crate::error::RecordError;
use crate::pool::BufferPool;

/// Bytes of records that may be on their way to the disk if nobody says how many. More only where
/// there are so many drains that each could not have its two buffers.
const QUEUE_BYTES: usize = 128 << 20;
/// The same of a flight recorder, which drains no samples.
const FLIGHT_QUEUE_BYTES: usize = 4 << 20;
/// A ring of so many bytes has buffers of half its size: they hold any record, and drains are woken
/// when a quarter is full.
const LARGE_RING_BYTES: usize = 256 << 10;
/// Each drain keeps one buffer for its next look and can have one on its way.
const LEAST_PER_DRAIN: usize = 2;
/// So many there are for each drain from the start.
const READY_PER_DRAIN: usize = 4;
/// So many one drain's queue has places for, at least, if there are so many.
const LEAST_QUEUED: usize = 64;

/// What is to be recorded, as far as memory goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Rings that are drained, and the size of each.
    pub(crate) rings: usize,
    pub(crate) ring_bytes: usize,
    /// Threads that drain them.
    pub(crate) drains: usize,
    /// Bytes of rings that nobody drains.
    pub(crate) kept_bytes: u64,
    /// Events that are sampled by count copy stacks: these can come at a gigabyte per second from the
    /// start, faster than memory can be had meanwhile.
    pub(crate) stacks: bool,
}

/// The buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    pub(crate) buffer_bytes: usize,
    /// How many there may be.
    pub(crate) buffers: usize,
    /// How many there are from the start.
    pub(crate) ready: usize,
    /// How many of them may wait in the queue of one drain.
    pub(crate) queued: usize,
}

impl Budget {
    /// The buffers for this load. `most`: what rings and buffers may take together, bytes.
    ///
    /// # Errors
    /// [`RecordError::Memory`] if that is not enough for two buffers for each drain; it says what
    /// would be.
    pub(crate) fn new(load: &Load, most: Option<u64>) -> Result<Budget, RecordError> {
        let Load { rings, ring_bytes, drains, kept_bytes, stacks } = *load;
        let buffer_bytes = if ring_bytes < LARGE_RING_BYTES { ring_bytes } else { ring_bytes / 2 };
        let buffer_bytes = buffer_bytes.max(1);
        let least = LEAST_PER_DRAIN * drains.max(1);
        let usual = if kept_bytes > 0 { FLIGHT_QUEUE_BYTES } else { QUEUE_BYTES } / buffer_bytes;
        let buffers = match most {
            None => usual.max(least),
            Some(most) => {
                let taken = kept_bytes + (rings * ring_bytes) as u64;
                let each = BufferPool::bytes_of(1, buffer_bytes);
                let buffers = usize::try_from(most.saturating_sub(taken) / each).unwrap_or(usize::MAX);
                if buffers < least {
                    return Err(RecordError::Memory {
                        rings,
                        ring_bytes,
                        needed: taken + least as u64 * each,
                        most,
                    });
                }
                // More than this never waits for a disk.
                buffers.min(1 << 20)
            }
        };
        let early = if stacks { usual / 2 } else { 0 };
        let ready = early.max(READY_PER_DRAIN * drains).min(buffers);
        // One CPU can have a good share of them all.
        let queued = buffers.min((2 * buffers / drains.max(1)).max(LEAST_QUEUED));
        Ok(Budget { buffer_bytes, buffers, ready, queued })
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, Load, QUEUE_BYTES};

    const TWO_CPUS: Load = Load { rings: 2, ring_bytes: 512 << 10, drains: 2, kept_bytes: 0, stacks: false };

    /// Checks that rings, buffers and small buffers stay within what is allowed, and that what is
    /// too little says what would do.
    #[test]
    fn within_what_is_allowed() {
        for load in
            [TWO_CPUS, Load { kept_bytes: 4 << 20, ..TWO_CPUS }, Load { ring_bytes: 64 << 10, ..TWO_CPUS }]
        {
            let used = |budget: &Budget, buffers: usize| {
                let rings = (load.rings * load.ring_bytes) as u64 + load.kept_bytes;
                // A buffer and its quarter of small ones.
                rings + (buffers * (budget.buffer_bytes + budget.buffer_bytes / 4)) as u64
            };
            let most = 64 << 20;
            let budget = Budget::new(&load, Some(most)).unwrap();
            assert!(used(&budget, budget.buffers) <= most && used(&budget, budget.buffers + 1) > most);
            assert!(budget.ready <= budget.buffers && budget.queued <= budget.buffers);
            let error = Budget::new(&load, Some(1 << 10)).unwrap_err().to_string();
            let needed = used(&budget, 2 * load.drains);
            assert!(error.contains(&format!("need {needed} bytes")), "{error}");
            assert_eq!(Budget::new(&load, Some(needed)).unwrap().buffers, 2 * load.drains);
        }
    }

    /// Checks that without a limit the buffers take 128 MiB and no more on a machine with hundreds
    /// of CPUs or on thousands of threads, half of it at most from the start, and that each drain
    /// can have two.
    #[test]
    fn large_machines() {
        for (rings, drains) in [(2, 2), (256, 256), (5000, 1), (4096, 4096)] {
            let load = Load { rings, drains, stacks: true, ..TWO_CPUS };
            let budget = Budget::new(&load, None).unwrap();
            assert!(budget.buffers >= 2 * drains, "{load:?}");
            let bytes = budget.buffers * budget.buffer_bytes;
            assert!(bytes <= QUEUE_BYTES || budget.buffers == 2 * drains, "{load:?}: {budget:?}");
            assert!(budget.ready <= budget.buffers);
        }
        assert_eq!(Budget::new(&Load { stacks: true, ..TWO_CPUS }, None).unwrap().ready, 256);
        assert_eq!(Budget::new(&TWO_CPUS, None).unwrap().ready, 8);
    }
}
