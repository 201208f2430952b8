//! The pool of slots: starts and ends watches, and reserves registers in the ledger.
//!
//! A slot that was used once stays open in all threads, aimed at nothing: aiming it anew takes half
//! of what opening and closing takes, and new threads inherit it whatever it is aimed at. Whether
//! one may be had is asked of the ledger before the kernel hears of it: to it, this process is a
//! CPU, for whoever runs there.
//!
//! ```text
//!   Free --start--> Taken --armed--> Watching --stop--> Taken --quiet, disarmed, callback freed--> Free
//! ```
//! Locks, in this order: `GROWING`, then one of `EVENTS`; `POOL` alone, and never while the kernel
//! is asked for more than a count. Handlers lock nothing: they try `EVENTS`, and leave what they
//! cannot do to whoever comes next.
use super::error::Error;
use super::events::EVENTS;
use super::nesting::INSIDE;
use super::slot::{self, Callback, Range, SLOTS};
use super::{threads, trap};
use crate::sys::watchpoint::{Aim, Watchpoint, at_fork, free_slots};
use crate::sys::{clock, fork, lock};
use kymo_core::breakpoint::{Config, CpuId, Kind, Ledger, Reservation, Slots, Target};
use std::sync::{Mutex, Once};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Free,
    /// Somebody starts or clears it, and has it for himself.
    Taken,
    /// By the watch of this number; if it was stopped by a handler, it waits to be cleared.
    Watching(u64),
}

struct Pool {
    /// None until the first watch, and when nothing is open: what others hold may have changed.
    ledger: Option<Ledger>,
    states: [SlotState; SLOTS],
    /// Of those that are not free.
    reservations: [Option<Reservation>; SLOTS],
    /// Which of them are open in the kernel.
    open: [bool; SLOTS],
    generation: u32,
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    ledger: None,
    states: [SlotState::Free; SLOTS],
    reservations: [const { None }; SLOTS],
    open: [false; SLOTS],
    generation: 0,
});
static GROWING: Mutex<()> = Mutex::new(());

/// Starts a watch; its number.
pub(super) fn start(range: Range, callback: Box<Callback>) -> Result<u64, Error> {
    if fork::is_child() {
        return Err(Error::Forked);
    }
    if INSIDE.has(clock::own_tid()) {
        return Err(Error::InHandler);
    }
    static FORKS: Once = Once::new();
    FORKS.call_once(|| at_fork(forked));
    trap::install()?;
    while let Some(number) = take_stopped() {
        clear(number);
    }
    let (number, token) = take(range.kind)?;
    arm(number, token, range, callback).inspect_err(|_| _ = clear(number))?;
    lock(&POOL).states[number] = SlotState::Watching(token);
    Ok(token)
}

/// Takes a slot, by the ledger's leave.
fn take(kind: Kind) -> Result<(usize, u64), Error> {
    let mut pool = lock(&POOL);
    if pool.ledger.is_none() {
        let slots = free_slots(clock::own_tid(), SLOTS).map_err(threads::failed)?;
        let made = Ledger::new(Config { cpus: 1, slots: Slots::Shared(slots) });
        let Some(ledger) = (slots > 0).then_some(made).and_then(Result::ok) else {
            return Err(Error::NoSlot { slots: 0, ours: 0 });
        };
        pool.ledger = Some(ledger);
    }
    let reserved = pool.ledger.as_ref().and_then(|ledger| {
        // To the ledger, data and instructions are the same here: a slot may be aimed at either.
        ledger.reserve(Target::Cpu(CpuId(0)), kind).ok()
    });
    let slots = pool.ledger.as_ref().map_or(0, |ledger| ledger.config().slots_for(kind.pool()));
    let free = |number: &usize| pool.states[*number] == SlotState::Free;
    let open = (0..SLOTS).filter(free).find(|&number| pool.open[number]);
    let number = open.or_else(|| (0..SLOTS).find(free));
    let (Some(reservation), Some(number)) = (reserved, number) else {
        let ours = (0..SLOTS).filter(|number| !free(number)).count();
        return Err(Error::NoSlot { slots, ours });
    };
    pool.states[number] = SlotState::Taken;
    pool.reservations[number] = Some(reservation);
    pool.generation = pool.generation.wrapping_add(1).max(1);
    Ok((number, slot::token(number, pool.generation)))
}

/// Aims a slot that was taken at the range, in all threads.
fn arm(number: usize, token: u64, range: Range, callback: Box<Callback>) -> Result<(), Error> {
    if lock(&EVENTS[number]).events.is_empty() {
        let _growing = lock(&GROWING);
        let opened = threads::cover()?;
        lock(&EVENTS[number]).events = opened;
        lock(&POOL).open[number] = true;
    }
    let events = lock(&EVENTS[number]);
    slot::slot(number).start(token, range, callback);
    let aim = Aim {
        address: range.address,
        len_bytes: range.len_bytes as u64,
        access: range.kind.bits(),
        signal_data: token,
    };
    events
        .arm(aim)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => Error::NotOurs { address: range.address as usize },
            _ => threads::failed(error),
        })
        .inspect_err(|_| {
            slot::slot(number).stop(token);
        })
}

/// Stops the watch of this number, if there still is one, waits for its handlers and frees the
/// slot. Not in a handler. Its hits, if there was one.
pub(super) fn finish(token: u64) -> Option<u64> {
    let number = slot::slot_of(token)?;
    let mut pool = lock(&POOL);
    if pool.states[number] != SlotState::Watching(token) {
        return None;
    }
    pool.states[number] = SlotState::Taken;
    drop(pool);
    // Only now that nobody else takes the slot, or its hits would be those of the next watch.
    slot::slot(number).stop(token);
    Some(clear(number))
}

/// A watch that a handler stopped, for the caller to clear.
fn take_stopped() -> Option<usize> {
    let mut pool = lock(&POOL);
    let stopped = |number: &usize| match pool.states[*number] {
        SlotState::Watching(token) => slot::slot(*number).current() != token,
        _ => false,
    };
    let number = (0..SLOTS).find(stopped)?;
    pool.states[number] = SlotState::Taken;
    Some(number)
}

/// Ends what is left of a watch that was stopped, by who has taken its slot; how often it was hit.
fn clear(number: usize) -> u64 {
    lock(&EVENTS[number]).disarm(number);
    while !slot::slot(number).is_quiet() {
        clock::nap();
    }
    let hits = slot::slot(number).last_hits();
    // With no lock held: it is the caller's, and may do anything.
    drop(slot::slot(number).clear());
    let mut pool = lock(&POOL);
    pool.states[number] = SlotState::Free;
    pool.reservations[number] = None;
    hits
}

/// Closes the slots that nobody watches with; how many. They are kept open otherwise, for the next
/// watch, and cannot be had by debuggers.
pub(super) fn release() -> usize {
    if fork::is_child() {
        return 0;
    }
    let _growing = lock(&GROWING);
    let mut pool = lock(&POOL);
    let mut closed = 0;
    for (number, events) in EVENTS.iter().enumerate() {
        if pool.open[number] && pool.states[number] == SlotState::Free {
            pool.open[number] = false;
            lock(events).events.clear();
            closed += 1;
        }
    }
    if pool.open.iter().all(|open| !open) && pool.states.iter().all(|state| *state == SlotState::Free) {
        pool.ledger = None;
    }
    closed
}

/// In a forked child: the parent's slots are to be free when the parent closes them.
extern "C" fn forked() {
    for events in &EVENTS {
        if let Ok(events) = events.try_lock() {
            events.events.iter().for_each(Watchpoint::close_copy);
        }
    }
}
