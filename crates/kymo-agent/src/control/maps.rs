//! Where the modules of this process are.
use std::io;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct MapsEntry {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) offset: u64,
    pub(super) executable: bool,
    pub(super) writable: bool,
    pub(super) path: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Maps(Vec<MapsEntry>);

fn part(line: &[u8]) -> Option<MapsEntry> {
    let mut words = line.splitn(6, |byte| *byte == b' ');
    let mut word = || std::str::from_utf8(words.next()?).ok();
    let (start, end) = word()?.split_once('-')?;
    let rights = word()?.as_bytes();
    let (executable, writable) = (rights.get(2) == Some(&b'x'), rights.get(1) == Some(&b'w'));
    let offset = word()?;
    let (_device, _inode) = (word()?, word()?);
    let path = words.next()?.trim_ascii_start();
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    Some(MapsEntry {
        start: number(start)?,
        end: number(end)?,
        offset: number(offset)?,
        executable,
        writable,
        path: path.to_vec(),
    })
}

impl Maps {
    pub(super) fn read() -> io::Result<Maps> {
        Ok(Maps::of(&std::fs::read("/proc/self/maps")?))
    }

    fn of(text: &[u8]) -> Maps {
        let parts = text.split(|byte| *byte == b'\n').filter_map(part);
        Maps(parts.filter(|part| !part.path.is_empty()).collect())
    }

    /// The code of a file around a place in it.
    pub(super) fn code(&self, path: &[u8], offset: u64) -> Option<&MapsEntry> {
        self.part(path, offset, |part| part.executable)
    }

    /// The address of a place in a file, in data that the program changes.
    pub(super) fn data(&self, path: &[u8], offset: u64) -> Option<u64> {
        self.part(path, offset, |part| part.writable).map(|part| part.start + (offset - part.offset))
    }

    fn part(&self, path: &[u8], offset: u64, kind: impl Fn(&MapsEntry) -> bool) -> Option<&MapsEntry> {
        let within = |part: &&MapsEntry| {
            part.path == path
                && kind(part)
                && offset.checked_sub(part.offset).is_some_and(|at| at < part.end.saturating_sub(part.start))
        };
        self.0.iter().find(within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a place in a file is found where the file is mapped for the purpose, and nowhere
    /// else; names may have spaces.
    #[test]
    fn places() {
        let maps = Maps::of(
            b"1000-2000 r--p 00000000 08:01 7    /a b.so\n4000-5000 r--p 00003000 08:01 7    /a b.so\n2000-4000 r-xp 00001000 08:01 7    /a b.so\n\
              5000-6000 rw-p 00003000 08:01 7    /a b.so\n7000-8000 rw-p 00000000 00:00 0 \nnonsense\n",
        );
        let code = |path: &[u8], offset| maps.code(path, offset).map(|part| part.start);
        assert_eq!((code(b"/a b.so", 0x1010), code(b"/a b.so", 0x2fff)), (Some(0x2000), Some(0x2000)));
        assert_eq!(
            (code(b"/a b.so", 0x3000), code(b"/a b.so", 0xfff), code(b"/a", 0x1010)),
            (None, None, None)
        );
        // The page is also a part of the first, which nobody writes.
        assert_eq!(maps.data(b"/a b.so", 0x3008), Some(0x5008));
        assert_eq!((maps.data(b"/a b.so", 0x10), maps.data(b"/a", 0x3008)), (None, None));
    }
}
