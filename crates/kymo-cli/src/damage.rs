//! Damage of the recordings that this process reads: each problem is printed once, whichever verb
//! reads them, and the exit status is decided in one place ([`exit`](crate::exit)).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use kymo_data::Problem;

use crate::terminal::say;

/// So many different sentences are remembered; a recording has a handful.
const REMEMBERED: usize = 10_000;

static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
static DAMAGED: AtomicBool = AtomicBool::new(false);

/// Prints problems on stderr, unless they were printed before.
pub fn tell<'a>(problems: impl IntoIterator<Item = &'a Problem>) {
    for problem in problems {
        let sentence = problem.to_string();
        let mut printed = PRINTED.lock().unwrap_or_else(PoisonError::into_inner);
        if printed.len() < REMEMBERED && printed.insert(sentence.clone()) {
            drop(printed);
            say(&sentence);
        }
    }
}

/// Prints what of this is damage, also where a verb was asked to be quiet: a result that misses
/// something must not look whole. Returns whether there was any.
pub(crate) fn tell_damage<'a>(problems: impl IntoIterator<Item = &'a Problem>) -> bool {
    let mut is_damaged = false;
    let damage = problems.into_iter().filter(|problem| problem.is_damage);
    tell(damage.inspect(|_| is_damaged = true));
    if is_damaged {
        // Relaxed: a flag that the main thread reads at the end.
        DAMAGED.store(true, Ordering::Relaxed);
    }
    is_damaged
}

/// Whether a recording that was opened so far is cut off or damaged.
pub(crate) fn is_known() -> bool {
    DAMAGED.load(Ordering::Relaxed)
}
