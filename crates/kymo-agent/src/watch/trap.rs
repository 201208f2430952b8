//! The signal handler.
//!
//! # Safety
//! Everything here runs in a signal handler: no allocation, no lock, no thread-local storage, no
//! panic that leaves. The pointers are the kernel's.
#![allow(unsafe_code)]
use super::hit::Hit;
use super::nesting::{HANDING_ON, INSIDE};
use super::slot::{self, SLOTS};
use super::{error::Error, events};
use crate::sys::{clock, signal};
use std::ffi::{c_int, c_void};

/// Makes the handler below the one of SIGTRAP, if it is not (or no longer).
pub(super) fn install() -> Result<(), Error> {
    signal::install(on_signal).map_err(|source| Error::System { what: "handle SIGTRAP", source })
}

extern "C" fn on_signal(number: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    signal::keeping_errno(|| {
        // SAFETY: the kernel's, in a handler with SA_SIGINFO.
        let ours = unsafe { signal::trap(info) }.and_then(|trap| Some((trap, slot::slot_of(trap.data)?)));
        let Some((trap, number_of_slot)) = ours else {
            let thread = clock::own_tid();
            let again = HANDING_ON.has(thread);
            let _stay = HANDING_ON.enter(thread);
            // SAFETY: our own arguments.
            return unsafe { signal::hand_on(number, info, context, again) };
        };
        // SAFETY: as above.
        let ip = unsafe { signal::instruction(context) };
        on_trap(trap, number_of_slot, ip);
    });
}

fn on_trap(trap: signal::Trap, number: usize, ip: u64) {
    let thread = clock::own_tid();
    // An access by a handler itself.
    if INSIDE.has(thread) {
        return;
    }
    let _inside = INSIDE.enter(thread);
    let Some(running) = slot::slot(number).enter(trap.data) else {
        // Stopped meanwhile; or a thread that was being made while the watch was stopped, and
        // inherited it all the same.
        return events::disarm_if_stale(number);
    };
    let tell = |running: &slot::Running<'_>, token| {
        let (range, (old, new)) = (running.range(), running.values());
        running.call(&Hit {
            address: range.address as usize,
            len: range.len_bytes,
            kind: range.kind,
            ip: ip as usize,
            thread,
            old,
            new,
            synchronous: trap.synchronous,
            token,
        });
    };
    let range = running.range();
    if trap.address != range.address {
        // Of the watch that had the slot before: a signal that was under way brings the data of the
        // event as it is aimed now, but the address of the access.
        return;
    }
    tell(&running, trap.data);
    drop(running);
    // The kernel sends one signal for an instruction that hits several watches. Those of the same
    // bytes were hit as well.
    for other in (0..SLOTS).filter(|&other| other != number) {
        let token = slot::slot(other).current();
        if let Some(running) = slot::slot(other).enter(token)
            && running.range() == range
        {
            tell(&running, token);
        }
    }
}
