//! A reader of debug information that counts its steps.
//!
//! gimli follows whatever a file says: a thousand functions may share one list of a million ranges,
//! a unit may name a million files, inlined functions may nest a million deep. All of it goes
//! through the reader: one that refuses to read on ends every such loop and every recursion, with
//! the error of a file that is cut off.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

use gimli::{Error, Reader, ReaderOffsetId, Result};

use super::budget::Work;

/// Steps that are taken from the account at once, so that threads seldom meet there.
const SHARE: i64 = 1 << 16;
/// Deepest stack below the start of a question. Threads have 2 MiB.
const STACK_BYTES: usize = 768 << 10;
/// How much a process may grow during one question, beyond eight times the stored bytes.
const GROWTH_BYTES: u64 = 128 << 20;
/// Growth is looked at once per so many shares.
const SHARES_PER_LOOK: u32 = 16;

/// The account of the question that a thread is at.
struct Meter {
    work: Arc<Work>,
    shares: u32,
    resident_before: u64,
    resident_most: u64,
    is_stopped: bool,
}

thread_local! {
    /// Steps left of the share. Outside of questions nothing is counted.
    static LEFT: Cell<i64> = const { Cell::new(i64::MAX) };
    /// The lowest address that the stack may reach.
    static STACK: Cell<usize> = const { Cell::new(0) };
    static METER: RefCell<Option<Meter>> = const { RefCell::new(None) };
}

/// What a question cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cost {
    /// Bytes that the process has grown by, for what the question made and keeps. An estimate.
    pub(crate) bytes: u64,
    pub(crate) is_stopped: bool,
}

/// Bytes of this process that are in memory; 0 where /proc is not there.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}

/// Asks a question whose readers may take what `work` has left, of a file that stores `stored` bytes.
pub(crate) fn question<T>(work: &Arc<Work>, stored: u64, ask: impl FnOnce() -> T) -> (T, Cost) {
    /// Ends the question, by a panic too.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            LEFT.set(i64::MAX);
            STACK.set(0);
        }
    }
    let marker = 0u8;
    let end = End;
    STACK.set((&raw const marker as usize).saturating_sub(STACK_BYTES));
    LEFT.set(0);
    METER.set(Some(Meter {
        work: Arc::clone(work),
        shares: 0,
        resident_before: 0,
        resident_most: GROWTH_BYTES.saturating_add(stored.saturating_mul(8)),
        is_stopped: false,
    }));
    let answer = ask();
    let left = LEFT.get().max(0);
    drop(end);
    let Some(meter) = METER.take() else { return (answer, Cost::default()) };
    meter.work.give_back(left);
    let steps = i64::from(meter.shares) * SHARE - left;
    // A look at the process costs more than a small answer is worth.
    let bytes = match meter.shares {
        0 | 1 => 16 * steps.unsigned_abs(),
        _ => resident_bytes().saturating_sub(meter.resident_before),
    };
    (answer, Cost { bytes, is_stopped: meter.is_stopped })
}

/// Counts steps; the error says that none are left.
#[inline]
fn steps(count: usize) -> Result<()> {
    let marker = 0u8;
    let left = LEFT.get() - count as i64;
    if left >= 0 && (&raw const marker as usize) > STACK.get() {
        LEFT.set(left);
        return Ok(());
    }
    refill(count as i64, (&raw const marker as usize) > STACK.get())
}

#[cold]
fn refill(count: i64, has_stack: bool) -> Result<()> {
    METER.with_borrow_mut(|meter| {
        let Some(meter) = meter else { return Ok(()) };
        if meter.is_stopped || !has_stack {
            meter.is_stopped = true;
            return Err(Error::Io);
        }
        meter.shares += 1;
        if meter.shares == 2 {
            meter.resident_before = resident_bytes();
        } else if meter.shares.is_multiple_of(SHARES_PER_LOOK) {
            let growth = resident_bytes().saturating_sub(meter.resident_before);
            meter.is_stopped = growth > meter.resident_most;
        }
        if meter.is_stopped || !meter.work.take(SHARE.max(count)) {
            meter.is_stopped = true;
            meter.shares -= 1;
            LEFT.set(-1);
            return Err(Error::Io);
        }
        LEFT.set(SHARE.max(count) - count);
        Ok(())
    })
}

/// Another reader, counted.
#[derive(Clone, Debug)]
pub(crate) struct Metered<R>(pub(crate) R);

impl<R: Reader<Offset = usize>> Reader for Metered<R> {
    type Endian = R::Endian;
    type Offset = usize;

    #[inline]
    fn endian(&self) -> R::Endian {
        self.0.endian()
    }

    #[inline]
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn empty(&mut self) {
        self.0.empty();
    }

    #[inline]
    fn truncate(&mut self, len: usize) -> Result<()> {
        self.0.truncate(len)
    }

    #[inline]
    fn offset_from(&self, base: &Self) -> usize {
        self.0.offset_from(&base.0)
    }

    #[inline]
    fn offset_id(&self) -> ReaderOffsetId {
        self.0.offset_id()
    }

    #[inline]
    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        self.0.lookup_offset_id(id)
    }

    #[inline]
    fn find(&self, byte: u8) -> Result<usize> {
        let found = self.0.find(byte)?;
        steps(1 + found / 16)?;
        Ok(found)
    }

    #[inline]
    fn skip(&mut self, len: usize) -> Result<()> {
        steps(1)?;
        self.0.skip(len)
    }

    #[inline]
    fn split(&mut self, len: usize) -> Result<Self> {
        steps(1)?;
        self.0.split(len).map(Metered)
    }

    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        steps(1)?;
        self.0.to_slice()
    }

    // Text is copied, and often kept: a step per byte.
    fn to_string(&self) -> Result<Cow<'_, str>> {
        steps(1 + self.0.len())?;
        self.0.to_string()
    }

    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        steps(1 + self.0.len())?;
        self.0.to_string_lossy()
    }

    #[inline]
    fn read_slice(&mut self, buf: &mut [u8]) -> Result<()> {
        steps(1)?;
        self.0.read_slice(buf)
    }

    // Most of debug information are small numbers: a step each, and the reader's own way to read
    // them.
    #[inline]
    fn read_u8(&mut self) -> Result<u8> {
        steps(1)?;
        self.0.read_u8()
    }

    #[inline]
    fn skip_leb128(&mut self) -> Result<()> {
        steps(1)?;
        self.0.skip_leb128()
    }

    #[inline]
    fn read_uleb128(&mut self) -> Result<u64> {
        steps(1)?;
        self.0.read_uleb128()
    }

    #[inline]
    fn read_uleb128_u16(&mut self) -> Result<u16> {
        steps(1)?;
        self.0.read_uleb128_u16()
    }

    #[inline]
    fn read_sleb128(&mut self) -> Result<i64> {
        steps(1)?;
        self.0.read_sleb128()
    }
}

#[cfg(test)]
mod tests {
    use gimli::{EndianSlice, LittleEndian};

    use super::super::budget::Budget;
    use super::*;

    /// Checks that a question ends after the work that is there, that the next one has none either, and that reading
    /// outside of questions goes on.
    #[test]
    fn endless_reading_is_stopped() {
        let work = Arc::new(Budget::new().work(0));
        let read = || {
            let mut read = 0u64;
            while Metered(EndianSlice::new(&[7], LittleEndian)).read_u8().is_ok() {
                read += 1;
            }
            read
        };
        let (first, cost) = question(&work, 0, read);
        assert!(first > 1 << 20 && cost.is_stopped, "{first} {cost:?}");
        assert_eq!(question(&work, 0, read), (0, Cost { bytes: 0, is_stopped: true }));
        assert!(Metered(EndianSlice::new(&[7], LittleEndian)).read_u8().is_ok());
    }

    /// Checks that a recursion is stopped before the stack ends.
    #[test]
    fn deep_nesting_is_stopped() {
        fn down(depth: u64) -> u64 {
            let room = [depth; 64];
            match Metered(EndianSlice::new(&[7], LittleEndian)).read_u8() {
                Ok(_) => std::hint::black_box(room)[0].max(down(depth + 1)),
                Err(_) => depth,
            }
        }
        let work = Arc::new(Budget::new().work(0));
        let (depth, cost) = question(&work, 0, || down(0));
        assert!(depth > 10 && cost.is_stopped, "{depth} {cost:?}");
    }

    /// Checks that small questions pay for what they read only.
    #[test]
    fn what_is_left_of_a_share_is_given_back() {
        let work = Arc::new(Budget::new().work(1));
        for _ in 0..10_000 {
            let (_, cost) = question(&work, 0, || {
                Metered(EndianSlice::new(&[7], LittleEndian)).read_u8().expect("a byte")
            });
            assert_eq!(cost, Cost { bytes: 16, is_stopped: false });
        }
    }
}
