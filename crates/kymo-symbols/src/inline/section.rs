//! A section of debug information that is read page by page, as questions touch it.
//!
//! A question about one address touches one unit of thousands: to read a section of 100 MB for it
//! would cost more than the answer. Sections that were stored compressed are one page.
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use gimli::{EndianSlice, Error, LittleEndian, Reader, ReaderOffsetId, Result};

use crate::elf::ElfFile;

/// Pages of files have 8 KiB: less than the distance between units, whose headers are read one by
/// one.
const PAGE_SHIFT: u32 = 13;
/// A section in memory is one page, whatever its length.
const ONE_PAGE: u32 = usize::BITS - 1;
/// Distance between the identifiers of sections; more than any has bytes.
const IDENTIFIER_STEP: u64 = 1 << 33;

/// The bytes of a section.
pub(super) struct PagedSection {
    pages: Box<[OnceLock<Box<[u8]>>]>,
    shift: u32,
    len: usize,
    /// Where pages are read from.
    file: Option<(Arc<ElfFile>, u64)>,
    identifier: u64,
}

impl std::fmt::Debug for PagedSection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PagedSection").field("len", &self.len).finish_non_exhaustive()
    }
}

impl PagedSection {
    fn new(pages: Box<[OnceLock<Box<[u8]>>]>, len: usize, file: Option<(Arc<ElfFile>, u64)>) -> PagedSection {
        static SECTIONS: AtomicU64 = AtomicU64::new(0);
        let identifier = SECTIONS.fetch_add(1, Ordering::Relaxed).wrapping_mul(IDENTIFIER_STEP);
        let shift = if file.is_some() { PAGE_SHIFT } else { ONE_PAGE };
        PagedSection { pages, shift, len, file, identifier }
    }

    /// A section that is in memory.
    pub(super) fn of_bytes(bytes: Vec<u8>) -> PagedSection {
        let len = bytes.len();
        PagedSection::new(Box::new([OnceLock::from(bytes.into_boxed_slice())]), len, None)
    }

    /// A section of a file, of which nothing is read yet; nothing if it is not stored.
    pub(super) fn of_file(elf: &Arc<ElfFile>, offset: u64, size: u64) -> Option<PagedSection> {
        let len = elf.readable(offset, size)?;
        let pages = std::iter::repeat_with(OnceLock::new).take(len.div_ceil(1 << PAGE_SHIFT)).collect();
        Some(PagedSection::new(pages, len, Some((Arc::clone(elf), offset))))
    }

    /// The page with this byte, and where the byte is in it.
    #[inline]
    fn page(&self, at: usize) -> Result<(&[u8], usize)> {
        let number = at >> self.shift;
        let into = at & ((1 << self.shift) - 1);
        match self.pages.get(number).and_then(OnceLock::get) {
            Some(page) => Ok((page, into)),
            None => Ok((self.read(number)?, into)),
        }
    }

    #[cold]
    fn read(&self, number: usize) -> Result<&[u8]> {
        let (page, (elf, offset)) = self.pages.get(number).zip(self.file.as_ref()).ok_or(Error::Io)?;
        let start = number << self.shift;
        let size = (self.len - start).min(1 << self.shift);
        let bytes = elf.read(offset + start as u64, size as u64).ok_or(Error::Io)?;
        Ok(page.get_or_init(|| bytes.into_boxed_slice()))
    }
}

/// A part of a section, for gimli.
#[derive(Clone, Debug)]
pub(crate) struct SectionReader {
    section: Arc<PagedSection>,
    start: usize,
    end: usize,
}

impl SectionReader {
    /// All of a section.
    pub(super) fn new(section: PagedSection) -> SectionReader {
        let end = section.len;
        SectionReader { section: Arc::new(section), start: 0, end }
    }

    /// The bytes from `start` on that lie in one page, at least one.
    #[inline]
    fn front_at(&self, start: usize) -> Result<&[u8]> {
        if start >= self.end {
            return Err(Error::UnexpectedEof(self.offset_id()));
        }
        let (page, into) = self.section.page(start)?;
        let rest = page.get(into..).unwrap_or(&[]);
        Ok(rest.get(..self.end - start).unwrap_or(rest))
    }

    /// Reads a number that lies in one page, as nearly all do.
    #[inline]
    fn in_one_page<T>(
        &mut self,
        read: impl FnOnce(&mut EndianSlice<'_, LittleEndian>) -> Result<T>,
    ) -> Option<T> {
        let front = self.front_at(self.start).ok()?;
        let mut rest = EndianSlice::new(front, LittleEndian);
        let value = read(&mut rest).ok()?;
        let taken = front.len() - rest.len();
        self.start += taken;
        Some(value)
    }

    fn need(&self, len: usize) -> Result<()> {
        if len <= self.end - self.start { Ok(()) } else { Err(Error::UnexpectedEof(self.offset_id())) }
    }
}

impl Reader for SectionReader {
    type Endian = LittleEndian;
    type Offset = usize;

    #[inline]
    fn endian(&self) -> LittleEndian {
        LittleEndian
    }

    #[inline]
    fn len(&self) -> usize {
        self.end - self.start
    }

    #[inline]
    fn empty(&mut self) {
        self.end = self.start;
    }

    #[inline]
    fn truncate(&mut self, len: usize) -> Result<()> {
        self.need(len)?;
        self.end = self.start + len;
        Ok(())
    }

    #[inline]
    fn offset_from(&self, base: &SectionReader) -> usize {
        self.start.wrapping_sub(base.start)
    }

    #[inline]
    fn offset_id(&self) -> ReaderOffsetId {
        ReaderOffsetId(self.section.identifier.wrapping_add(self.start as u64))
    }

    fn lookup_offset_id(&self, id: ReaderOffsetId) -> Option<usize> {
        let at = usize::try_from(id.0.wrapping_sub(self.section.identifier)).ok()?;
        (self.start..=self.end).contains(&at).then(|| at - self.start)
    }

    fn find(&self, byte: u8) -> Result<usize> {
        let mut at = self.start;
        loop {
            let front = self.front_at(at)?;
            if let Some(found) = memchr::memchr(byte, front) {
                return Ok(at + found - self.start);
            }
            at += front.len().max(1);
        }
    }

    #[inline]
    fn skip(&mut self, len: usize) -> Result<()> {
        self.need(len)?;
        self.start += len;
        Ok(())
    }

    #[inline]
    fn split(&mut self, len: usize) -> Result<SectionReader> {
        self.need(len)?;
        let mut front = self.clone();
        front.end = front.start + len;
        self.start += len;
        Ok(front)
    }

    fn to_slice(&self) -> Result<Cow<'_, [u8]>> {
        if self.len() == 0 {
            return Ok(Cow::Borrowed(&[]));
        }
        let front = self.front_at(self.start)?;
        if front.len() == self.len() {
            return Ok(Cow::Borrowed(front));
        }
        // Pages are read one by one: a length that the file claims allocates nothing by itself.
        let (mut bytes, mut at) = (Vec::new(), self.start);
        while at < self.end {
            let front = self.front_at(at)?;
            bytes.extend_from_slice(front);
            at += front.len().max(1);
        }
        Ok(Cow::Owned(bytes))
    }

    fn to_string(&self) -> Result<Cow<'_, str>> {
        match self.to_slice()? {
            Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed).map_err(|_| Error::BadUtf8),
            Cow::Owned(bytes) => String::from_utf8(bytes).map(Cow::Owned).map_err(|_| Error::BadUtf8),
        }
    }

    fn to_string_lossy(&self) -> Result<Cow<'_, str>> {
        Ok(match self.to_slice()? {
            Cow::Borrowed(bytes) => String::from_utf8_lossy(bytes),
            Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
        })
    }

    #[inline]
    fn read_slice(&mut self, buf: &mut [u8]) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        if let Some(bytes) = self.front_at(self.start)?.get(..buf.len()) {
            buf.copy_from_slice(bytes);
            self.start += buf.len();
            return Ok(());
        }
        self.need(buf.len())?;
        let mut filled = 0;
        while filled < buf.len() {
            let front = self.front_at(self.start)?;
            let part = front.len().min(buf.len() - filled);
            buf[filled..filled + part].copy_from_slice(&front[..part]);
            filled += part;
            self.start += part;
        }
        Ok(())
    }

    #[inline]
    fn read_u8(&mut self) -> Result<u8> {
        let byte = self.front_at(self.start)?.first().copied().ok_or(Error::Io)?;
        self.start += 1;
        Ok(byte)
    }

    #[inline]
    fn skip_leb128(&mut self) -> Result<()> {
        match self.in_one_page(|bytes| bytes.skip_leb128()) {
            Some(()) => Ok(()),
            None => gimli::leb128::read::skip(self),
        }
    }

    #[inline]
    fn read_uleb128(&mut self) -> Result<u64> {
        match self.in_one_page(|bytes| bytes.read_uleb128()) {
            Some(value) => Ok(value),
            None => gimli::leb128::read::unsigned(self),
        }
    }

    #[inline]
    fn read_uleb128_u16(&mut self) -> Result<u16> {
        match self.in_one_page(|bytes| bytes.read_uleb128_u16()) {
            Some(value) => Ok(value),
            None => gimli::leb128::read::u16(self),
        }
    }

    #[inline]
    fn read_sleb128(&mut self) -> Result<i64> {
        match self.in_one_page(|bytes| bytes.read_sleb128()) {
            Some(value) => Ok(value),
            None => gimli::leb128::read::signed(self),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Write as _;

    /// A file of these bytes that begins as an ELF file must, and its section of all bytes.
    fn paged(bytes: &[u8]) -> SectionReader {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        let mut header = [0u8; 64];
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file.write_all(&header).expect("written");
        file.write_all(bytes).expect("written");
        let elf = Arc::new(ElfFile::open(file.path(), &crate::Budget::new()).expect("an ELF file"));
        SectionReader::new(PagedSection::of_file(&elf, 64, bytes.len() as u64).expect("it is stored"))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Checks that a section in pages reads as gimli's own slice does, in any order of reads
        /// and over the edges of pages, up to its end and past it.
        #[test]
        fn pages_read_as_a_slice(
            seed in prop::collection::vec(any::<u8>(), 1..200),
            start in 0usize..80,
            reads in prop::collection::vec((0u8..9, 0usize..30_000), 1..40),
        ) {
            let bytes: Vec<u8> = seed.iter().copied().cycle().take((3 << PAGE_SHIFT) - 40).collect();
            let mut ours = paged(&bytes);
            let mut theirs = EndianSlice::new(&bytes, LittleEndian);
            // Most reads begin near the edge of a page.
            let start = (1 << PAGE_SHIFT) - start;
            prop_assert_eq!(ours.skip(start).is_ok(), theirs.skip(start).is_ok());
            for (kind, size) in reads {
                let (a, b) = (&mut ours, &mut theirs);
                match kind {
                    0 => prop_assert_eq!(a.read_u8().ok(), b.read_u8().ok()),
                    1 => prop_assert_eq!(a.read_u64().ok(), b.read_u64().ok()),
                    2 => prop_assert_eq!(a.read_uleb128().ok(), b.read_uleb128().ok()),
                    3 => prop_assert_eq!(a.read_sleb128().ok(), b.read_sleb128().ok()),
                    4 => prop_assert_eq!(a.read_uleb128_u16().ok(), b.read_uleb128_u16().ok()),
                    5 => prop_assert_eq!(a.skip_leb128().ok(), b.skip_leb128().ok()),
                    6 => prop_assert_eq!(Reader::find(a, seed[0]).ok(), Reader::find(b, seed[0]).ok()),
                    7 => prop_assert_eq!(a.skip(size / 64).ok(), b.skip(size / 64).ok()),
                    _ => {
                        let (a, b) = (a.split(size / 3).ok(), b.split(size / 3).ok());
                        prop_assert_eq!(
                            a.as_ref().map(|a| a.to_slice().expect("read").into_owned()),
                            b.as_ref().map(|b| b.to_slice().expect("read").into_owned())
                        );
                    }
                }
                // What fails leaves a slice anywhere: both begin anew after it.
                if ours.len() != theirs.len() {
                    break;
                }
            }
        }
    }
}
