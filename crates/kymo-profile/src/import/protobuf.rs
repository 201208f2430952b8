//! Protocol Buffers, read field by field from bytes that nobody has checked.
use super::ImportError;

/// A field of a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldValue<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> FieldValue<'a> {
    /// Its number; bytes have none.
    pub(super) fn number(self) -> u64 {
        match self {
            FieldValue::Number(number) => number,
            FieldValue::Bytes(_) => 0,
        }
    }

    /// Its bytes; a number has none.
    pub(super) fn bytes(self) -> &'a [u8] {
        match self {
            FieldValue::Number(_) => &[],
            FieldValue::Bytes(bytes) => bytes,
        }
    }

    /// Adds the numbers of a list, packed or one by one.
    pub(super) fn numbers(self, list: &mut Vec<u64>) -> Result<(), ImportError> {
        match self {
            FieldValue::Number(number) => list.push(number),
            FieldValue::Bytes(mut bytes) => {
                while !bytes.is_empty() {
                    list.push(varint(&mut bytes)?);
                }
            }
        }
        Ok(())
    }
}

/// Calls `each` with every field of a message.
pub(super) fn each_field<'a>(
    mut bytes: &'a [u8],
    mut each: impl FnMut(u64, FieldValue<'a>) -> Result<(), ImportError>,
) -> Result<(), ImportError> {
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let value = match key & 7 {
            0 => FieldValue::Number(varint(&mut bytes)?),
            1 => FieldValue::Bytes(take(&mut bytes, 8)?),
            2 => {
                let length = varint(&mut bytes)?;
                FieldValue::Bytes(take(&mut bytes, length)?)
            }
            5 => FieldValue::Bytes(take(&mut bytes, 4)?),
            _ => return Err(damaged()),
        };
        each(key >> 3, value)?;
    }
    Ok(())
}

fn damaged() -> ImportError {
    ImportError::Damaged("it is no profile of pprof (profile.proto), or it is cut or damaged".to_owned())
}

fn take<'a>(bytes: &mut &'a [u8], length: u64) -> Result<&'a [u8], ImportError> {
    let length = usize::try_from(length).map_err(|_| damaged())?;
    let (taken, rest) = bytes.split_at_checked(length).ok_or_else(damaged)?;
    *bytes = rest;
    Ok(taken)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, ImportError> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first().ok_or_else(damaged)?;
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(damaged())
}
