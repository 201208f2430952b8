//! Python objects as bytes: the few opcodes of pickle protocol 3 that every Python 3 reads.
//!
//! Only kymo writes them and only its own child reads them. Lengths come before texts and bytes, so
//! what a recording contains cannot become an opcode.

/// Objects, one after another.
#[derive(Debug, Default)]
pub(super) struct Pickle {
    bytes: Vec<u8>,
}

impl Pickle {
    /// A pickle with one object on its way.
    pub(super) fn new() -> Pickle {
        Pickle { bytes: vec![0x80, 3] }
    }

    /// A part of one, to be put in with [`Pickle::append`].
    pub(super) fn part() -> Pickle {
        Pickle::default()
    }

    /// The bytes of the finished object.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.push(b'.');
        self.bytes
    }

    pub(super) fn append(&mut self, part: &Pickle) -> &mut Pickle {
        self.bytes.extend_from_slice(&part.bytes);
        self
    }

    pub(super) fn none(&mut self) -> &mut Pickle {
        self.bytes.push(b'N');
        self
    }

    pub(super) fn bool(&mut self, value: bool) -> &mut Pickle {
        self.bytes.push(if value { 0x88 } else { 0x89 });
        self
    }

    pub(super) fn int(&mut self, value: impl Into<i128>) -> &mut Pickle {
        let value = value.into();
        match i32::try_from(value) {
            Ok(small) => {
                self.bytes.push(b'J');
                self.bytes.extend_from_slice(&small.to_le_bytes());
            }
            Err(_) => {
                self.bytes.extend_from_slice(&[0x8a, 16]);
                self.bytes.extend_from_slice(&value.to_le_bytes());
            }
        }
        self
    }

    /// Text; what is no UTF-8 has been replaced by the caller.
    pub(super) fn text(&mut self, text: &str) -> &mut Pickle {
        self.bytes.push(b'X');
        self.sized(text.as_bytes())
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Pickle {
        self.bytes.push(b'B');
        self.sized(bytes)
    }

    /// A `bytearray`.
    pub(super) fn byte_array(&mut self, bytes: &[u8]) -> &mut Pickle {
        self.bytes.extend_from_slice(b"cbuiltins\nbytearray\n");
        self.bytes(bytes);
        // A tuple of one, and the call.
        self.bytes.extend_from_slice(&[0x85, b'R']);
        self
    }

    fn sized(&mut self, bytes: &[u8]) -> &mut Pickle {
        // A record has 64 KiB at most, a name 16 KiB.
        let bytes = &bytes[..bytes.len().min(u32::MAX as usize)];
        self.bytes.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(bytes);
        self
    }

    pub(super) fn tuple(&mut self, fill: impl FnOnce(&mut Pickle)) -> &mut Pickle {
        self.bytes.push(b'(');
        fill(self);
        self.bytes.push(b't');
        self
    }

    pub(super) fn list(&mut self, fill: impl FnOnce(&mut Pickle)) -> &mut Pickle {
        self.bytes.extend_from_slice(b"](");
        fill(self);
        self.bytes.push(b'e');
        self
    }

    /// A dictionary; `fill` puts in a key, a value, a key, a value.
    pub(super) fn dict(&mut self, fill: impl FnOnce(&mut Pickle)) -> &mut Pickle {
        self.bytes.extend_from_slice(b"}(");
        fill(self);
        self.bytes.push(b'u');
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks each kind of object against what Python reads; the bytes here were read by 3.11.
    #[test]
    fn opcodes() {
        let mut pickle = Pickle::new();
        pickle.tuple(|p| {
            p.int(-1).int(u64::MAX).text("é").bytes(&[0, 255]).none().bool(true);
            p.list(|p| {
                p.int(1);
            });
            p.dict(|p| {
                p.text("k").byte_array(b"x");
            });
        });
        let expected = b"\x80\x03(J\xff\xff\xff\xff\x8a\x10\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\0\
            X\x02\0\0\0\xc3\xa9B\x02\0\0\0\0\xffN\x88](J\x01\0\0\0e\
            }(X\x01\0\0\0kcbuiltins\nbytearray\nB\x01\0\0\0x\x85Rut.";
        assert_eq!(pickle.finish(), expected);
    }
}
