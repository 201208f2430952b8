//! Numbers, texts and lists as bytes.
use std::fmt;

/// Bytes that are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed {
    /// What was expected.
    pub expected: &'static str,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the other side sent something that is not {}; are both of the same version of kymo?",
            self.expected
        )
    }
}

impl std::error::Error for Malformed {}

/// A text of another program, for a person to read: every character that steers a terminal or turns
/// the direction of writing is a question mark, every byte that is not UTF-8 a replacement
/// character.
pub fn printable(bytes: &[u8]) -> String {
    let steers = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    String::from_utf8_lossy(bytes).chars().map(|c| if steers(c) { '?' } else { c }).collect()
}

pub(super) struct Packer(Vec<u8>);

impl Packer {
    pub(super) fn new(kind: u16) -> Packer {
        let mut packer = Packer(Vec::with_capacity(64));
        packer.0.extend(kind.to_le_bytes());
        packer.0.extend([0, 0]);
        packer
    }

    pub(super) fn u8(mut self, value: u8) -> Packer {
        self.0.push(value);
        self
    }

    pub(super) fn u16(mut self, value: u16) -> Packer {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn u32(mut self, value: u32) -> Packer {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(super) fn u64(mut self, value: u64) -> Packer {
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Cut off at `most`: a sentence that lost its end is better than none.
    pub(super) fn bytes(self, bytes: &[u8], most: usize) -> Packer {
        let bytes = &bytes[..bytes.len().min(most)];
        let mut packer = self.u32(bytes.len() as u32);
        packer.0.extend(bytes);
        packer
    }

    pub(super) fn list<T>(self, list: &[T], pack: impl Fn(Packer, &T) -> Packer) -> Packer {
        list.iter().fold(self.u32(list.len() as u32), pack)
    }

    pub(super) fn done(self) -> Vec<u8> {
        self.0
    }
}

pub(super) struct Unpacker<'a>(&'a [u8]);

impl<'a> Unpacker<'a> {
    /// The kind and the fields after it.
    pub(super) fn new(bytes: &'a [u8]) -> Result<(u16, Unpacker<'a>), Malformed> {
        let malformed = Malformed { expected: "a message" };
        if bytes.len() > super::MOST_BYTES {
            return Err(malformed);
        }
        match bytes {
            [low, high, 0, 0, rest @ ..] => Ok((u16::from_le_bytes([*low, *high]), Unpacker(rest))),
            _ => Err(malformed),
        }
    }

    fn take(&mut self, count: usize, expected: &'static str) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed { expected })?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N, "a whole message")?);
        Ok(array)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, Malformed> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed { expected: "yes or no" }),
        }
    }

    pub(super) fn bytes(&mut self, most: usize) -> Result<Vec<u8>, Malformed> {
        let expected = "a text of bounded length";
        let count = self.u32()? as usize;
        if count > most {
            return Err(Malformed { expected });
        }
        Ok(self.take(count, expected)?.to_vec())
    }

    pub(super) fn text(&mut self, most: usize) -> Result<String, Malformed> {
        Ok(printable(&self.bytes(most)?))
    }

    pub(super) fn list<T>(
        &mut self,
        unpack: impl Fn(&mut Unpacker<'a>) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Malformed> {
        let count = self.u32()? as usize;
        if count > super::MOST_ENTRIES {
            return Err(Malformed { expected: "a list of bounded length" });
        }
        // Collected as it comes: the packet's own length bounds the memory.
        (0..count).map(|_| unpack(self)).collect()
    }

    /// Nothing may be left.
    pub(super) fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed { expected: "a message without more behind it" })
        }
    }
}
