//! Words on stderr, which may be gone.
//!
//! `std::eprintln!` panics when stderr cannot be written to: its reader went away, its disk is full. A recording must not
//! end for that, and no verb's status may depend on it, so this crate's `eprintln!` and `eprint!` are the ones below: what
//! cannot be said is not said. Data goes to stdout by `write!`, whose errors are the verb's.

use std::fmt::Arguments;
use std::io::Write;

/// Writes to stderr; where that is not possible, nothing happens.
pub fn put(words: Arguments<'_>) {
    let _ = std::io::stderr().lock().write_fmt(words);
}

/// As `std::eprintln!`, but what cannot be said is not said.
#[macro_export]
macro_rules! eprintln {
    ($($word:tt)*) => {
        $crate::stderr::put(format_args!("{}\n", format_args!($($word)*)))
    };
}

/// As `std::eprint!`, but what cannot be said is not said.
#[macro_export]
macro_rules! eprint {
    ($($word:tt)*) => {
        $crate::stderr::put(format_args!($($word)*))
    };
}
