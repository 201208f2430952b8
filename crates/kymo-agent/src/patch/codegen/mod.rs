//! Emits machine code: what a site jumps to, the ways from there into this crate, and the
//! description that unwinders read.
pub(crate) mod assembly;
pub(crate) mod callout;
pub(crate) mod context;
mod count;
pub(crate) mod freestanding;
mod moved;
mod predicate;
mod record;
pub(crate) mod slow_path;
pub(crate) mod stub;
pub(crate) mod unwind;
