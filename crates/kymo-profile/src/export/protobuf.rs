//! The encoding of Protocol Buffers: what the formats that use it need.
//!
//! A message is built in memory field by field and written as a field of the message around it.
//! The outermost message is a stream: its fields are written one after another, in any order.
use std::io::{self, Write};

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;

/// The fields of a message.
#[derive(Debug, Default)]
pub(super) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// Takes all fields out; the memory stays for the next message.
    pub(super) fn clear(&mut self) -> &mut Message {
        self.bytes.clear();
        self
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    /// A number. Zero is what readers take for a field that is not there, so it is left out.
    pub(super) fn number(&mut self, field: u64, value: u64) -> &mut Message {
        if value != 0 {
            self.varint(field << 3 | VARINT);
            self.varint(value);
        }
        self
    }

    /// A number that is written even if it is zero: one of a choice of fields, or with a meaning of
    /// its own.
    pub(super) fn present(&mut self, field: u64, value: u64) -> &mut Message {
        self.varint(field << 3 | VARINT);
        self.varint(value);
        self
    }

    /// A number that takes 8 bytes.
    pub(super) fn fixed(&mut self, field: u64, value: u64) -> &mut Message {
        if value != 0 {
            self.varint(field << 3 | FIXED64);
            self.bytes.extend_from_slice(&value.to_le_bytes());
        }
        self
    }

    /// Bytes, or a text in UTF-8, also if it is empty.
    pub(super) fn bytes(&mut self, field: u64, value: &[u8]) -> &mut Message {
        self.varint(field << 3 | BYTES);
        self.varint(value.len() as u64);
        self.bytes.extend_from_slice(value);
        self
    }

    /// A message inside of this one.
    pub(super) fn message(&mut self, field: u64, value: &Message) -> &mut Message {
        self.bytes(field, &value.bytes)
    }

    /// A list of numbers.
    pub(super) fn numbers(&mut self, field: u64, values: impl Iterator<Item = u64> + Clone) -> &mut Message {
        let length: u64 = values.clone().map(varint_length).sum();
        if length > 0 {
            self.varint(field << 3 | BYTES);
            self.varint(length);
            values.for_each(|value| self.varint(value));
        }
        self
    }

    /// A list of numbers of 8 bytes each.
    pub(super) fn fixed_numbers(&mut self, field: u64, values: &[u64]) -> &mut Message {
        if !values.is_empty() {
            self.varint(field << 3 | BYTES);
            self.varint(8 * values.len() as u64);
            values.iter().for_each(|value| self.bytes.extend_from_slice(&value.to_le_bytes()));
        }
        self
    }

    /// Takes in the fields of another message.
    pub(super) fn append(&mut self, other: &Message) -> &mut Message {
        self.bytes.extend_from_slice(&other.bytes);
        self
    }

    /// Writes it as a field of the outermost message.
    pub(super) fn write(&self, field: u64, out: &mut dyn Write) -> io::Result<()> {
        let mut head = Message::default();
        head.varint(field << 3 | BYTES);
        head.varint(self.bytes.len() as u64);
        out.write_all(&head.bytes)?;
        out.write_all(&self.bytes)
    }

    /// Writes its fields as they are.
    pub(super) fn write_fields(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.bytes)
    }
}

fn varint_length(value: u64) -> u64 {
    u64::from((63 - (value | 1).leading_zeros()) / 7 + 1)
}

/// Texts with numbers, each once; the first is empty.
#[derive(Debug)]
pub(super) struct StringTable<'a> {
    list: Vec<std::borrow::Cow<'a, str>>,
    numbers: rustc_hash::FxHashMap<std::borrow::Cow<'a, str>, u64>,
}

impl<'a> StringTable<'a> {
    pub(super) fn new() -> StringTable<'a> {
        let mut table = StringTable { list: Vec::new(), numbers: rustc_hash::FxHashMap::default() };
        table.number("");
        table
    }

    /// The number of a text, which it gets now if it has none.
    pub(super) fn number(&mut self, text: impl Into<std::borrow::Cow<'a, str>>) -> u64 {
        let text = text.into();
        if let Some(number) = self.numbers.get(&text) {
            return *number;
        }
        let number = self.list.len() as u64;
        self.list.push(text.clone());
        self.numbers.insert(text, number);
        number
    }

    /// All of them, by number.
    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|text| &**text)
    }
}
