//! Tables of lines in code objects, in the three formats that CPython has had.

/// The format of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineFormat {
    /// 3.8, 3.9: steps of bytes and lines; a line holds from where the step arrives.
    Steps,
    /// 3.10: lengths and steps of lines; a line holds for that length.
    Lengths,
    /// From 3.11 on: entries of variable size with columns.
    Locations,
}

/// A table has no more entries than this.
const MOST_LINES: usize = 8000;

/// From which instruction on (counted in units of two bytes) the code is in which line; 0: in none.
pub(super) fn decode(format: LineFormat, table: &[u8], first_line: u32) -> Vec<(u32, u32)> {
    let mut lines = Vec::new();
    match format {
        LineFormat::Steps => steps(table, first_line, &mut lines),
        LineFormat::Lengths => lengths(table, first_line, &mut lines),
        LineFormat::Locations => locations(table, first_line, &mut lines),
    }
    // What begins where the next begins, or continues the line before, says nothing.
    let mut kept: Vec<(u32, u32)> = Vec::with_capacity(lines.len().min(MOST_LINES));
    for (from, line) in lines {
        kept.pop_if(|last| last.0 == from);
        if kept.last().is_none_or(|last| last.1 != line) && kept.len() < MOST_LINES {
            kept.push((from, line));
        }
    }
    kept
}

fn add(line: u32, step: i64) -> u32 {
    u32::try_from(i64::from(line).saturating_add(step)).unwrap_or(0)
}

fn steps(table: &[u8], first_line: u32, lines: &mut Vec<(u32, u32)>) {
    let (mut byte, mut line) = (0u32, first_line);
    lines.push((0, line));
    for [bytes, step] in table.as_chunks::<2>().0 {
        byte = byte.saturating_add((*bytes).into());
        line = add(line, i64::from(*step as i8));
        lines.push((byte / 2, line));
    }
}

fn lengths(table: &[u8], first_line: u32, lines: &mut Vec<(u32, u32)>) {
    const NO_LINE: i8 = -128;
    let (mut byte, mut line) = (0u32, first_line);
    for [bytes, step] in table.as_chunks::<2>().0 {
        let step = *step as i8;
        if step != NO_LINE {
            line = add(line, step.into());
        }
        if *bytes > 0 {
            lines.push((byte / 2, if step == NO_LINE { 0 } else { line }));
        }
        byte = byte.saturating_add((*bytes).into());
    }
}

/// Each entry: a byte of its form and how many units it is for, then what the form needs.
fn locations(table: &[u8], first_line: u32, lines: &mut Vec<(u32, u32)>) {
    const LONG: u8 = 14;
    const NO_COLUMNS: u8 = 13;
    const NO_LOCATION: u8 = 15;
    let (mut unit, mut line) = (0u32, first_line);
    let mut bytes = table.iter().copied();
    while let Some(first) = bytes.next() {
        let (form, units) = (first >> 3 & 15, u32::from(first & 7) + 1);
        match form {
            NO_LOCATION => {}
            LONG | NO_COLUMNS => {
                let number = varint(&mut bytes);
                let step = (number >> 1) as i64;
                line = add(line, if number & 1 == 1 { -step } else { step });
                for _ in 0..if form == LONG { 3 } else { 0 } {
                    varint(&mut bytes);
                }
            }
            10..=12 => {
                line = add(line, i64::from(form) - 10);
                bytes.nth(1);
            }
            _ => _ = bytes.next(),
        }
        lines.push((unit, if form == NO_LOCATION { 0 } else { line }));
        unit = unit.saturating_add(units);
    }
}

/// Six bits in each byte, the lowest first; another byte follows where the next bit is set.
fn varint(bytes: &mut impl Iterator<Item = u8>) -> u64 {
    let mut value = 0;
    for shift in (0..60).step_by(6) {
        let Some(byte) = bytes.next() else { break };
        value |= u64::from(byte & 63) << shift;
        if byte & 64 == 0 {
            break;
        }
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks each format against tables of the function `def f(a):\n x = a\n\n\n return (x +\n a)`
    /// in line 1, as CPython 3.9, 3.10 and 3.12 made them (`f.__code__.co_lnotab`,
    /// `.co_linetable`), and what `dis.findlinestarts` says of it.
    #[test]
    fn formats() {
        let steps = decode(LineFormat::Steps, &[0, 1, 4, 3, 2, 1, 2, 255], 1);
        assert_eq!(steps, [(0, 2), (2, 5), (3, 6), (4, 5)]);
        let lengths = decode(LineFormat::Lengths, &[4, 1, 2, 3, 2, 1, 4, 255], 1);
        assert_eq!(lengths, [(0, 2), (2, 5), (3, 6), (4, 5)]);
        let table =
            [128, 0, 216, 8, 9, 128, 65, 224, 12, 13, 216, 12, 13, 241, 3, 1, 13, 14, 240, 0, 1, 5, 14];
        let locations = decode(LineFormat::Locations, &table, 1);
        assert_eq!(locations.first(), Some(&(0, 1)));
        assert!(locations.iter().all(|(_, line)| (1..=6).contains(line)), "{locations:?}");
    }

    /// Checks that code without a line, steps below line 0, and tables that end within an entry are
    /// read to their end.
    #[test]
    fn odd_tables() {
        assert_eq!(decode(LineFormat::Lengths, &[2, 128_u8, 2, 1], 7), [(0, 0), (1, 8)]);
        assert_eq!(decode(LineFormat::Steps, &[2, 0x80, 9], 7), [(0, 7), (1, 0)]);
        assert_eq!(decode(LineFormat::Locations, &[0xf8, 0xe8], 7), [(0, 0), (1, 7)]);
        assert_eq!(decode(LineFormat::Locations, &[0xf0, 0x7f, 0x7f], 7).len(), 1);
        let endless = [0xe8, 2].repeat(100_000);
        assert_eq!(decode(LineFormat::Locations, &endless, 1).len(), MOST_LINES);
    }
}
