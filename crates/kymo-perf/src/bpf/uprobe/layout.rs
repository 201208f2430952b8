//! Layouts that the programs share: words of a line of counts, words of keys, stack slots.
use kymo_core::latency::PER_DOUBLING;

/// Words of a line of TABLE: what is counted of one site on one CPU (or some that share it).
pub(super) const HITS: i16 = 0;
pub(super) const RETURNS: i16 = 1;
pub(super) const TOTAL: i16 = 2;
pub(super) const LONGEST: i16 = 3;
/// Returns whose entry is not known, or hits that could not be looked at.
pub(super) const MISSED: i16 = 4;
/// Records that the ring had no place for.
pub(super) const LOST: i16 = 5;
pub(super) const FIRST_BUCKET: i16 = 8;
/// A line of hits alone is as long as a cache line.
pub(super) const SHORT_LINE: usize = 8;
/// Buckets of latencies that a line has: those of 2^41 ns (36 minutes) and more are one.
pub(super) const BUCKETS: u32 = PER_DOUBLING * 39;
pub(super) const LONG_LINE: usize = (FIRST_BUCKET as usize + BUCKETS as usize).next_multiple_of(8);

/// Words of a key of CALLERS: an address, and site and process.
pub(super) const KEY_WORDS: usize = 2;
/// Words of a key of STARTED: where the call's frame begins, site and process, and the goroutine in
/// Go.
pub(super) const CALL_WORDS: usize = 3;

/// Slots of the stack, in bytes from its end.
pub(super) const INDEX: i16 = -4;
pub(super) const WHO: i16 = -8;
/// Three words: the address, then site and process, then the goroutine.
pub(super) const KEY: i16 = -168;
/// What the link tells at a hit: the site, and the bounds of its function.
pub(super) const COOKIE: i16 = -24;
pub(super) const VALUE: i16 = -32;
/// Which values of a record could be read.
pub(super) const MASK: i16 = -40;
/// The latency, or all bits.
pub(super) const LATENCY: i16 = -48;
/// Characters that are compared, with their zero.
pub(super) const CHARACTERS: i16 = -128;
pub(super) const CHARACTERS_BYTES: i16 = 80;
pub(super) const ADDRESS: i16 = -136;
