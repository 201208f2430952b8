//! Little-endian integers in bytes that carry no alignment promise.

/// A list of unaligned little-endian `u64`s over borrowed bytes: a callchain, registers, branch
/// entries.
///
/// Nothing is copied. Bytes after the last whole word are ignored.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Words<'a> {
    bytes: &'a [u8],
}

impl<'a> Words<'a> {
    /// Looks at `bytes` as words; a tail shorter than 8 bytes is cut off.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Words<'a> {
        let whole = bytes.len() & !7;
        Words { bytes: bytes.get(..whole).unwrap_or(&[]) }
    }

    /// How many words there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.bytes.len() / 8
    }

    /// Whether there is no word at all.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The word at `index`, or `None` beyond the end.
    #[inline]
    pub fn get(&self, index: usize) -> Option<u64> {
        let start = index.checked_mul(8)?;
        self.bytes.get(start..)?.first_chunk::<8>().map(|c| u64::from_le_bytes(*c))
    }

    /// The words in order.
    #[inline]
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator + Clone + 'a {
        self.bytes.as_chunks::<8>().0.iter().map(|c| u64::from_le_bytes(*c))
    }

    /// The bytes below, a multiple of 8 long: a cheap key to compare or hash whole callchains by.
    #[inline]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

impl std::fmt::Debug for Words<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter().map(|w| format!("{w:#x}"))).finish()
    }
}

/// The `u16` at `at`, if it lies within `bytes`.
#[inline]
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk::<2>().map(|c| u16::from_le_bytes(*c))
}

/// The `u32` at `at`, if it lies within `bytes`.
#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk::<4>().map(|c| u32::from_le_bytes(*c))
}

/// The `u64` at `at`, if it lies within `bytes`.
#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk::<8>().map(|c| u64::from_le_bytes(*c))
}

/// `bytes` up to its first zero byte (all of it when there is none).
#[inline]
pub(crate) fn until_nul(bytes: &[u8]) -> &[u8] {
    let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
    bytes.get(..end).unwrap_or(&[])
}

/// A reading position in bytes that answers `None` at the end instead of panicking.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    /// How many bytes were taken so far.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// The bytes not yet taken.
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or(&[])
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(len)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        u16_at(self.take(2)?, 0)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        u32_at(self.take(4)?, 0)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        u64_at(self.take(8)?, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that words are read unaligned and that a ragged tail is cut off.
    #[test]
    fn unaligned_words() {
        let mut bytes = vec![9u8];
        bytes.extend_from_slice(&7u64.to_le_bytes());
        bytes.extend_from_slice(&8u64.to_le_bytes());
        bytes.extend_from_slice(&[1, 2, 3]);
        let words = Words::new(&bytes[1..]);
        assert_eq!(words.len(), 2);
        assert_eq!(words.iter().collect::<Vec<_>>(), [7, 8]);
        assert_eq!((words.get(1), words.get(2), words.get(usize::MAX)), (Some(8), None, None));
        assert_eq!(words.as_bytes().len(), 16);
    }
}
