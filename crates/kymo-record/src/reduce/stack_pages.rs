//! Pages of stacks that a program in the kernel read at the sample, beyond the kernel's own copy.
//!
//! They are asked for by thread, when a stack was cut, and come at its next samples, just before
//! each in the same ring. Other threads of the process are asked for at their first sample. Where
//! pages did not help, the thread is not asked for again at once. Where they did, it is asked for
//! as long as [`NEEDED_NS`] more, although its stacks fit into their copies: the next one that does
//! not would be cut.
use kymo_perf::bpf::{PythonWalker, StackPage, StackWish};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// A thread is asked for at so many of its samples, and again at half of them.
const SAMPLES: u32 = 128;
/// So long is it left alone when they did not help, and twice as long each time that follows.
const FIRST_PAUSE_NS: u64 = 20_000_000;
const MOST_PAUSE_NS: u64 = 5_000_000_000;
/// So long after they helped pages are asked for.
const NEEDED_NS: u64 = 2_000_000_000;
/// So many pages of a ring wait for their sample: those of one stack.
const MOST_WAITING: usize = 16;
/// So many threads are remembered.
const MOST_THREADS: usize = 1 << 12;
/// In the place of pages that are not in memory: no program has this address.
const ABSENT_BYTE: u8 = 0x5a;

/// Where pages come from, and those whose samples are still to come.
pub(super) struct StackPages {
    walker: Arc<PythonWalker>,
    copied_bytes: u32,
    waiting: FxHashMap<usize, WaitingPages>,
    threads: FxHashMap<i32, ThreadRequest>,
    /// Processes for one of whose threads pages have helped.
    helped: FxHashSet<i32>,
}

/// Pages of one stack.
#[derive(Debug, Default)]
struct WaitingPages {
    tid: i32,
    pages: Vec<(u64, Vec<u8>)>,
}

/// What was asked for of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct ThreadRequest {
    /// At so many samples that are still to come.
    left: u32,
    /// When it may be asked for again, and how long the last pause was.
    pause_end_ns: u64,
    pause_ns: u64,
    /// Until when it is asked for although its stacks are whole.
    needed_until_ns: u64,
}

impl ThreadRequest {
    /// Takes in what came of a sample; `true`: it is to be asked for again.
    fn sampled(&mut self, time_ns: u64, outcome: StackOutcome) -> bool {
        self.left = self.left.saturating_sub(1);
        match outcome {
            StackOutcome::Whole if time_ns >= self.needed_until_ns => return false,
            StackOutcome::CutWithPages => {
                self.pause_ns = (2 * self.pause_ns).clamp(FIRST_PAUSE_NS, MOST_PAUSE_NS);
                self.pause_end_ns = time_ns.saturating_add(self.pause_ns);
                return false;
            }
            StackOutcome::WholeByPages => {
                self.pause_ns = 0;
                self.needed_until_ns = time_ns.saturating_add(NEEDED_NS);
            }
            StackOutcome::Whole | StackOutcome::Cut => {}
        }
        self.left < SAMPLES / 2 && time_ns >= self.pause_end_ns
    }
}

impl StackPages {
    /// `copied_bytes`: how much of a stack the kernel copies at most.
    pub(super) fn new(walker: Arc<PythonWalker>, copied_bytes: u32) -> StackPages {
        StackPages {
            walker,
            copied_bytes,
            waiting: FxHashMap::default(),
            threads: FxHashMap::default(),
            helped: FxHashSet::default(),
        }
    }

    /// Takes in what was told before a sample of this ring; `false`: it is another record.
    pub(super) fn told(&mut self, ring: usize, tid: i32, raw: &[u8]) -> bool {
        let Some(page) = StackPage::parse(raw) else { return false };
        self.waiting.entry(ring).or_default().add(tid, page);
        true
    }

    /// Takes the pages that came before this thread's sample in this ring.
    pub(super) fn take(&mut self, ring: usize, tid: i32) -> Vec<(u64, Vec<u8>)> {
        let waiting = self.waiting.get_mut(&ring).filter(|waiting| waiting.tid == tid);
        waiting.map(|waiting| std::mem::take(&mut waiting.pages)).unwrap_or_default()
    }

    /// After a thread's sample was unwound: whether pages are wanted at its next ones.
    pub(super) fn unwound(&mut self, (pid, tid, time_ns): (i32, i32, u64), outcome: StackOutcome) {
        let whole = outcome == StackOutcome::Whole;
        if whole && self.helped.is_empty() && self.threads.is_empty() {
            return;
        }
        if self.threads.len() >= MOST_THREADS {
            self.threads.clear();
            self.helped.clear();
        }
        let asked = match self.threads.entry(tid) {
            Entry::Occupied(asked) => asked.into_mut(),
            Entry::Vacant(_) if whole && !self.helped.contains(&pid) => return,
            Entry::Vacant(asked) => {
                let asked = asked.insert(ThreadRequest::default());
                ask(&self.walker, tid, self.copied_bytes, asked);
                return;
            }
        };
        if outcome == StackOutcome::WholeByPages {
            self.helped.insert(pid);
        }
        if asked.sampled(time_ns, outcome) {
            ask(&self.walker, tid, self.copied_bytes, asked);
        }
    }
}

/// Where it is refused, what lies beyond copies is read later (`outer_memory`).
fn ask(walker: &PythonWalker, tid: i32, copied_bytes: u32, asked: &mut ThreadRequest) {
    walker.want_stack_pages(tid, StackWish { samples: SAMPLES, copied_bytes });
    asked.left = SAMPLES;
}

/// What came of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StackOutcome {
    /// The copy had all of it, or its outer frames were known.
    Whole,
    /// It was cut, and no pages had come with it.
    Cut,
    CutWithPages,
    WholeByPages,
}

impl WaitingPages {
    fn add(&mut self, tid: i32, page: StackPage<'_>) {
        // Those of a stack come in the order of their addresses.
        let follows = self.tid == tid && self.pages.last().is_none_or(|(last, _)| *last < page.address);
        if !follows || self.pages.len() >= MOST_WAITING {
            self.pages.clear();
        }
        self.tid = tid;
        self.pages.push((page.address, page.bytes.to_vec()));
    }
}

/// Appends pages to a stack that begins at this stack pointer; in the place of absent ones between
/// them is what no program has as an address. `false`: none lies behind its end.
pub(super) fn append(pages: &[(u64, Vec<u8>)], sp: u64, most: usize, stack: &mut Vec<u8>) -> bool {
    let before = stack.len();
    for (address, bytes) in pages {
        let Some(start) = address.checked_sub(sp).and_then(|start| usize::try_from(start).ok()) else {
            continue;
        };
        if start > most {
            break;
        }
        if start > stack.len() {
            stack.resize(start, ABSENT_BYTE);
        }
        if let Some(beyond) = bytes.get(stack.len() - start..) {
            stack.extend_from_slice(beyond);
        }
    }
    stack.len() > before
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that pages are put behind a copy that ends within one, with gaps filled, and that
    /// those below its end and too far out are left.
    #[test]
    fn pages_behind_a_copy() {
        let page = |address: u64, byte: u8| (address, vec![byte; 4096]);
        let pages = [page(0x1000, 1), page(0x2000, 2), page(0x4000, 4), page(0x40_0000, 9)];
        let mut stack = vec![7; 0x1800];
        assert!(append(&pages, 0x1000, 1 << 20, &mut stack));
        assert_eq!(stack.len(), 0x4000);
        let at = |address: usize| stack[address - 0x1000];
        assert_eq!([at(0x27ff), at(0x2800), at(0x2fff), at(0x3000), at(0x4000)], [7, 2, 2, 0x5a, 4]);
        assert!(!append(&pages[..2], 0x1000, 1 << 20, &mut stack));
        assert!(!append(&[page(0x100, 1)], 0x1000, 1 << 20, &mut stack), "below the stack pointer");
    }

    /// Checks that a thread whose stacks were whole by pages is asked for while they fit into their
    /// copies, for a while; and one whose stacks always fitted, or stay cut, is not.
    #[test]
    fn threads_that_need_pages_now_and_then() {
        let wanted = |first, later: StackOutcome| {
            let mut thread = ThreadRequest { left: SAMPLES, ..ThreadRequest::default() };
            thread.sampled(0, first);
            let mut times = (1..4000_u64).filter(|ms| {
                let is_asked = thread.sampled(ms * 1_000_000, later);
                thread.left = if is_asked { SAMPLES } else { thread.left };
                is_asked
            });
            (times.next(), times.last())
        };
        let (first, last) = wanted(StackOutcome::WholeByPages, StackOutcome::Whole);
        assert_eq!(first, Some(64));
        assert!(last.is_some_and(|ms| (1900..2000).contains(&ms)), "{last:?}");
        assert_eq!(wanted(StackOutcome::Whole, StackOutcome::Whole), (None, None));
        assert_eq!(wanted(StackOutcome::CutWithPages, StackOutcome::CutWithPages), (None, None));
    }

    /// Checks that pages of another stack do not stay, and that they are bounded.
    #[test]
    fn pages_of_one_stack_wait() {
        let mut waiting = WaitingPages::default();
        let bytes = vec![0; 4096];
        let mut add = |tid, address| {
            waiting.add(tid, StackPage { address, bytes: &bytes });
            waiting.pages.len()
        };
        assert_eq!([add(1, 0x2000), add(1, 0x5000), add(1, 0x5000), add(2, 0x9000)], [1, 2, 1, 1]);
        assert!((0..100).all(|n| add(2, 0x10000 + n * 4096) <= MOST_WAITING));
    }
}
