//! Where bytes come from and go to: positioned reads and writes, so that threads share a file
//! without a cursor.

use std::io;
use std::time::SystemTime;

/// Bytes that can be read at any offset by several threads at once.
///
/// Positioned reads instead of a file mapping: a file that shrinks while it is read ends in a short
/// read, not in a fatal signal.
pub trait ReadAt: Send + Sync {
    /// Reads some bytes at `offset` into `buf`; 0 means end of file, fewer than asked is normal.
    ///
    /// # Errors
    /// What the operating system says.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Length in bytes.
    ///
    /// # Errors
    /// What the operating system says.
    fn len(&self) -> io::Result<u64>;

    /// Whether there are no bytes at all.
    ///
    /// # Errors
    /// What the operating system says.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// When it was last written, if that is known.
    fn modified(&self) -> Option<SystemTime> {
        None
    }
}

impl ReadAt for std::fs::File {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(self, buf, offset)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn modified(&self) -> Option<SystemTime> {
        self.metadata().ok()?.modified().ok()
    }
}

impl ReadAt for Vec<u8> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset).ok().and_then(|at| self.get(at..)).unwrap_or(&[]);
        let count = rest.len().min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..count), rest.get(..count)) {
            to.copy_from_slice(from);
        }
        Ok(count)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(Vec::len(self) as u64)
    }
}

/// A place that takes bytes at any offset, from several threads at once.
pub trait WriteAt: Send + Sync {
    /// Writes some bytes of `buf` at `offset`; fewer than given is normal.
    ///
    /// # Errors
    /// What the operating system says.
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `buf` at `offset`.
    ///
    /// # Errors
    /// What the operating system says; how much was written is then unknown.
    fn write_all_at(&self, mut buf: &[u8], mut offset: u64) -> io::Result<()> {
        while !buf.is_empty() {
            match self.write_at(buf, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    buf = buf.get(count..).unwrap_or(&[]);
                    offset += count as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl WriteAt for std::fs::File {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::write_at(self, buf, offset)
    }
}

impl<W: WriteAt + ?Sized> WriteAt for &W {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        (**self).write_at(buf, offset)
    }
}

impl<W: WriteAt + ?Sized> WriteAt for std::sync::Arc<W> {
    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        (**self).write_at(buf, offset)
    }
}

/// Fills `buf` from `offset` on; the count is smaller only at the end of the file.
pub(crate) fn read_full(source: &dyn ReadAt, buf: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buf.get_mut(filled..)
        && !rest.is_empty()
    {
        match source.read_at(rest, offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(count) => filled += count.min(rest.len()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Reads `size` bytes at `offset`, which the caller has checked to lie within the file; fewer if
/// the file shrank.
pub(crate) fn read_section(source: &dyn ReadAt, offset: u64, size: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(size).unwrap_or(0)];
    let count = read_full(source, &mut bytes, offset)?;
    bytes.truncate(count);
    Ok(bytes)
}
