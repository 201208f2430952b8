//! The processor's counters of each thread that runs tasks: opened when the thread first needs one,
//! closed when it ends.
//!
//! The owner reads its counter in user code; whoever else asks goes through the descriptor, which
//! any thread of the process can read. A counter that cannot be opened or read is remembered, and
//! its numbers are withheld: never a wrong one.
use super::counter::Hardware;
use super::thread_slot;
use crate::sys::lock;
use crate::sys::perf_event::Counter;
use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const KINDS: usize = Hardware::ALL.len();

type Open = Arc<Counter>;

thread_local! {
    static MINE: RefCell<[Option<Open>; KINDS]> = const { RefCell::new([const { None }; KINDS]) };
}

/// Those of all slots, for others to read.
static OPEN: Mutex<Vec<(u32, [Option<Open>; KINDS])>> = Mutex::new(Vec::new());

/// Which kinds missed something on some thread.
static FAILED: [AtomicBool; KINDS] = [const { AtomicBool::new(false) }; KINDS];

/// Whether this machine has such a counter and lets us count with it.
pub(super) fn try_open(counter: Hardware) -> io::Result<()> {
    Counter::open(counter.config()).map(drop)
}

/// Whether some thread could not count this, so that sums are too small.
pub(super) fn has_failed(counter: Hardware) -> bool {
    // Relaxed: a flag that is only ever raised.
    FAILED[counter as usize].load(Ordering::Relaxed)
}

/// What the counter of a slot shows.
pub(super) fn read(number: u32, counter: Hardware) -> u64 {
    let value = if thread_slot::mine() == Some(number) {
        read_mine(number, counter)
    } else {
        read_other(number, counter)
    };
    value.unwrap_or_else(|_| {
        FAILED[counter as usize].store(true, Ordering::Relaxed);
        0
    })
}

fn read_mine(number: u32, counter: Hardware) -> io::Result<u64> {
    MINE.try_with(|mine| {
        let mut mine = mine.borrow_mut();
        let open = match &mut mine[counter as usize] {
            Some(open) => open,
            none => {
                let open = Arc::new(Counter::open(counter.config())?);
                tell(number, counter, Arc::clone(&open));
                none.insert(open)
            }
        };
        open.read_own()
    })
    .unwrap_or_else(|_| Err(io::ErrorKind::NotConnected.into()))
}

fn tell(number: u32, counter: Hardware, open: Open) {
    let mut all = lock(&OPEN);
    let at = all.iter().position(|(slot, _)| *slot == number).unwrap_or_else(|| {
        all.push((number, [const { None }; KINDS]));
        all.len() - 1
    });
    all[at].1[counter as usize] = Some(open);
}

fn read_other(number: u32, counter: Hardware) -> io::Result<u64> {
    let all = lock(&OPEN);
    let open =
        all.iter().find(|(slot, _)| *slot == number).and_then(|(_, open)| open[counter as usize].clone());
    drop(all);
    open.map_or_else(|| Err(io::ErrorKind::NotConnected.into()), |open| open.read_any())
}

/// Closes those of a thread that ends.
pub(super) fn close(number: u32) {
    let _ = MINE.try_with(|mine| *mine.borrow_mut() = [const { None }; KINDS]);
    lock(&OPEN).retain(|(slot, _)| *slot != number);
}
