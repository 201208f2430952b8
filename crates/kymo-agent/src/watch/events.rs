//! The kernel's events of each slot, one per thread.
use super::hit::Hit;
use super::slot::{self, SLOTS};
use super::threads::{self, Others};
use crate::sys::watchpoint::{Aim, Watchpoint};
use crate::sys::{clock, fork};
use std::sync::Mutex;

/// A slot in the kernel: one event for each thread that was there when it was opened.
pub(super) struct SlotEvents {
    pub(super) events: Vec<Watchpoint>,
}

/// Those of each slot. Handlers only try these locks: who comes next does what they cannot.
pub(super) static EVENTS: [Mutex<SlotEvents>; SLOTS] =
    [const { Mutex::new(SlotEvents { events: Vec::new() }) }; SLOTS];

impl SlotEvents {
    /// Aims and arms all of them. After an error some are, some are not.
    ///
    /// A thread that is being made copies what its maker's event is aimed at, and whether it is
    /// armed, and is found as its heir a moment later: between the two it is not reached. So each
    /// step goes through all of them more than once; what is done to events that are as they should
    /// be is cheap, and does not disarm them meanwhile. While threads come and go, those that are
    /// being made are given time to appear.
    pub(super) fn arm(&self, aim: Aim) -> std::io::Result<()> {
        let again = match threads::others() {
            Others::None => 0,
            Others::Same => 1,
            Others::Changed => 2,
        };
        let each = |step: &dyn Fn(&Watchpoint) -> std::io::Result<()>| {
            self.events.iter().try_for_each(step)?;
            for _ in 0..again {
                if again > 1 {
                    clock::nap();
                }
                self.events.iter().try_for_each(step)?;
            }
            Ok(())
        };
        each(&|event| event.aim(aim))?;
        each(&Watchpoint::arm)
    }

    pub(super) fn disarm(&self, number: usize) {
        // No watch has the generation 0: signals of nothing are known to be stale.
        let nothing = Aim::nothing(slot::token(number, 0));
        // One that cannot be aimed at nothing is gone, or sends signals that are known to be stale.
        for event in &self.events {
            let _ = event.aim(nothing);
        }
    }
}

impl Hit {
    /// Ends the watch, from within its handler: no handler begins to run for it after this. The
    /// guard's drop then only clears up.
    pub fn stop(&self) {
        stop_in_handler(self.token);
    }
}

/// Stops a watch in a handler, without lock or memory; the next start or end clears the rest.
pub(super) fn stop_in_handler(token: u64) -> bool {
    let Some(number) = slot::slot_of(token) else { return false };
    let stopped = slot::slot(number).stop(token);
    if stopped {
        calm(number);
    }
    stopped
}

/// Called when a signal came that nobody waits for. A thread that was being made when a watch ended
/// may still have it: if there is no other, the events are disarmed once more; and the next one
/// aims them anyway.
pub(super) fn disarm_if_stale(number: usize) {
    if !fork::is_child() {
        calm(number);
    }
}

fn calm(number: usize) {
    // Somebody has it: then he aims it.
    let Ok(events) = EVENTS[number].try_lock() else { return };
    if slot::slot(number).current() == 0 {
        events.disarm(number);
    }
}
