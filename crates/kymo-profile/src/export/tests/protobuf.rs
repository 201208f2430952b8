//! A reader of Protocol Buffers that knows nothing of the writer.
use std::collections::BTreeMap;

/// A field as it lies in the bytes.
#[derive(Clone, Debug)]
pub(super) enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

/// The fields of a message by number, in their order.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields(BTreeMap<u64, Vec<Field>>);

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().expect("a whole number");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
    }
    panic!("a number of more than ten bytes");
}

fn take(bytes: &mut &[u8], length: usize) -> Vec<u8> {
    let (taken, rest) = bytes.split_at(length);
    *bytes = rest;
    taken.to_vec()
}

impl Fields {
    pub(super) fn of(mut bytes: &[u8]) -> Fields {
        let mut fields = Fields::default();
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let field = match key & 7 {
                0 => Field::Number(varint(&mut bytes)),
                1 => Field::Number(u64::from_le_bytes(take(&mut bytes, 8).try_into().expect("8 bytes"))),
                2 => {
                    let length = varint(&mut bytes) as usize;
                    Field::Bytes(take(&mut bytes, length))
                }
                wire => panic!("wire type {wire}"),
            };
            fields.0.entry(key >> 3).or_default().push(field);
        }
        fields
    }

    fn all(&self, field: u64) -> &[Field] {
        self.0.get(&field).map_or(&[], |fields| fields)
    }

    /// The last number of a field, 0 if there is none.
    pub(super) fn number(&self, field: u64) -> u64 {
        match self.all(field).last() {
            Some(Field::Number(number)) => *number,
            Some(Field::Bytes(_)) => panic!("field {field} is no number"),
            None => 0,
        }
    }

    pub(super) fn all_bytes(&self, field: u64) -> Vec<&[u8]> {
        self.all(field)
            .iter()
            .map(|field| match field {
                Field::Bytes(bytes) => &bytes[..],
                Field::Number(_) => panic!("a number in the place of bytes"),
            })
            .collect()
    }

    pub(super) fn text(&self, field: u64) -> String {
        let last = self.all_bytes(field).last().map_or(&b""[..], |bytes| bytes);
        String::from_utf8(last.to_vec()).expect("UTF-8")
    }

    pub(super) fn texts(&self, field: u64) -> Vec<String> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
        self.all_bytes(field).into_iter().map(text).collect()
    }

    pub(super) fn messages(&self, field: u64) -> Vec<Fields> {
        self.all_bytes(field).into_iter().map(Fields::of).collect()
    }

    pub(super) fn message(&self, field: u64) -> Fields {
        self.messages(field).pop().unwrap_or_default()
    }

    /// A list of numbers that is not packed.
    pub(super) fn separate_numbers(&self, field: u64) -> Vec<u64> {
        let number = |field: &Field| match field {
            Field::Number(number) => *number,
            Field::Bytes(_) => panic!("bytes in the place of a number"),
        };
        self.all(field).iter().map(number).collect()
    }

    /// A packed list of numbers.
    pub(super) fn numbers(&self, field: u64) -> Vec<u64> {
        let mut numbers = Vec::new();
        for mut bytes in self.all_bytes(field) {
            while !bytes.is_empty() {
                numbers.push(varint(&mut bytes));
            }
        }
        numbers
    }
}
