//! Functions of interpreted programs, as marks: addresses in call chains that no file explains.
use super::{FUNCTION, body_of_kind, record_of_kind};
use crate::record::RawRecord;
use crate::words::{u32_at, u64_at};

/// The body before lines and texts: magic, kind, address, six numbers.
const HEAD_BYTES: usize = 48;
/// A record has less than 64 KiB.
const MOST_BODY_BYTES: usize = 65_000;
/// Longer texts are cut.
const MOST_TEXT_BYTES: usize = 4096;

/// A function that an interpreter runs. Its addresses stand for its places in call chains; no
/// process has memory there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterpretedFunction {
    /// The first of its addresses.
    pub address: u64,
    /// How many addresses it has.
    pub size: u32,
    /// The line where it begins.
    pub first_line: u32,
    /// From which offset to its address on it is in which line, by offset; line 0: in none.
    pub lines: Vec<(u32, u32)>,
    /// Its name, as the language qualifies it.
    pub name: String,
    /// Its source file.
    pub file: String,
}

impl InterpretedFunction {
    /// The first address of interpreted functions: in the lower half of all addresses, beyond what
    /// any process gets without asking for more.
    pub const FIRST_ADDRESS: u64 = 1 << 47;
    /// The first address behind them.
    pub const END_ADDRESS: u64 = 1 << 48;

    /// Whether an address is one of an interpreted function.
    pub fn holds(address: u64) -> bool {
        (Self::FIRST_ADDRESS..Self::END_ADDRESS).contains(&address)
    }

    /// The line of one of its addresses.
    pub fn line(&self, address: u64) -> Option<u32> {
        let offset = u32::try_from(address.checked_sub(self.address)?).ok()?;
        let behind = self.lines.partition_point(|(from, _)| *from <= offset);
        let line =
            behind.checked_sub(1).and_then(|at| self.lines.get(at)).map_or(self.first_line, |line| line.1);
        (line > 0).then_some(line)
    }

    /// The function in a record; `None` for all other records.
    pub fn parse(record: &RawRecord<'_>) -> Option<InterpretedFunction> {
        let body = body_of_kind(record, FUNCTION)?;
        let number = |at: usize| u32_at(body, at).and_then(|number| usize::try_from(number).ok());
        let (lines, name, file) = (number(32)?, number(36)?, number(40)?);
        let lines_end = HEAD_BYTES.checked_add(lines.checked_mul(8)?)?;
        let name_end = lines_end.checked_add(name)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let line = |bytes: &[u8]| Some((u32_at(bytes, 0)?, u32_at(bytes, 4)?));
        let (address, size) = (u64_at(body, 16)?, u32_at(body, 24)?);
        if !Self::holds(address) || !Self::holds(address.checked_add(size.into())?) {
            return None;
        }
        Some(InterpretedFunction {
            address,
            size,
            first_line: u32_at(body, 28)?,
            lines: body.get(HEAD_BYTES..lines_end)?.chunks_exact(8).filter_map(line).collect(),
            name: text(body.get(lines_end..name_end)?),
            file: text(body.get(name_end..name_end.checked_add(file)?)?),
        })
    }

    /// The whole record. Texts and lines that find no room are cut.
    pub fn record(&self) -> Vec<u8> {
        let (name, file) = (cut(&self.name), cut(&self.file));
        let room = (MOST_BODY_BYTES - HEAD_BYTES - name.len() - file.len()) / 8;
        let lines = self.lines.get(..room).unwrap_or(&self.lines);
        let lengths = [lines.len(), name.len(), file.len(), 0].map(|length| length as u32);
        let mut fields = vec![0; 4];
        fields.extend(self.address.to_le_bytes());
        let numbers = [self.size, self.first_line].into_iter().chain(lengths);
        let numbers = numbers.chain(lines.iter().flat_map(|&(from, line)| [from, line]));
        fields.extend(numbers.flat_map(u32::to_le_bytes));
        fields.extend(name.as_bytes());
        fields.extend(file.as_bytes());
        // With the magic and the kind whole words.
        fields.resize((fields.len() + 12).next_multiple_of(8) - 12, 0);
        record_of_kind(FUNCTION, &fields)
    }
}

/// The first bytes of a text, as many as a record takes.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(MOST_TEXT_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunk::Records;

    fn parse(bytes: &[u8]) -> Option<InterpretedFunction> {
        match Records::new(bytes, 0).next() {
            Some(Ok(record)) => InterpretedFunction::parse(&record),
            other => panic!("not a record: {other:?}"),
        }
    }

    fn function() -> InterpretedFunction {
        InterpretedFunction {
            address: InterpretedFunction::FIRST_ADDRESS + (5 << 16),
            size: 1 << 16,
            first_line: 10,
            lines: vec![(0, 10), (4, 11), (9, 0), (12, 300)],
            name: "Spinner.run.<locals>.größe".into(),
            file: "/srv/snake.py".into(),
        }
    }

    /// Checks that a function is read back, that every cut of its record is refused or harmless,
    /// and that addresses of programs are not believed.
    #[test]
    fn round_trip_and_damage() {
        let bytes = function().record();
        assert_eq!(parse(&bytes), Some(function()));
        for len in (8..bytes.len()).step_by(8) {
            let mut cut = bytes[..len].to_vec();
            cut[6..8].copy_from_slice(&(len as u16).to_le_bytes());
            assert!(parse(&cut).is_none_or(|cut| cut == function()), "{len} bytes");
        }
        let (first, end) = (InterpretedFunction::FIRST_ADDRESS, InterpretedFunction::END_ADDRESS);
        for address in [0, first - 1, end - 5, u64::MAX] {
            assert_eq!(parse(&InterpretedFunction { address, ..function() }.record()), None, "{address:#x}");
        }
    }

    /// Checks which line an offset is in, and that what is too long for a record is cut.
    #[test]
    fn lines() {
        let function = function();
        let line = |offset: u64| function.line(function.address + offset);
        let expected = [Some(10), Some(10), Some(11), Some(11), None, Some(300)];
        assert_eq!([0, 3, 4, 8, 9, 1 << 15].map(line), expected);
        assert_eq!(function.line(function.address - 1), None);
        let bare = InterpretedFunction { lines: Vec::new(), ..function.clone() };
        assert_eq!(bare.line(bare.address + 7), Some(10));
        let lines = (0..100_000).map(|number| (number, number)).collect();
        let long = InterpretedFunction { lines, name: "ö".repeat(9000), ..function };
        let read = parse(&long.record()).unwrap();
        assert!(read.name.len() == 4096 && read.lines.len() > 7000);
        assert_eq!(read.lines, long.lines[..read.lines.len()]);
    }
}
