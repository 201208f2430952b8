//! What a code object says: its name, file and lines.
use super::{CodeLayout, Interpreter, lines};
use kymo_data::InterpretedFunction;
use kymo_perf::bpf::PythonCode;

/// Where a unicode object has its characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TextLayout {
    /// How many bits of the state precede the width of characters: the first of these where it is
    /// not 0.
    pub(super) width_shifts: &'static [u32],
    /// Bytes before the characters, if all are ASCII, and if not.
    pub(super) ascii_head: usize,
    pub(super) head: usize,
}

const LENGTH_AT: usize = 16;
const STATE_AT: usize = 32;
const TYPE_AT: usize = 8;
/// More text is not shown.
const MOST_CHARACTERS: usize = 512;

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The text of a unicode object, cut to what was copied; `None` if it is none.
fn text(object: &[u8], layout: TextLayout) -> Option<String> {
    let length = usize::try_from(u64_at(object, LENGTH_AT)?).ok().filter(|&length| length > 0)?;
    let state = u32_at(object, STATE_AT)?;
    let state = layout.width_shifts.iter().map(|bits| state >> bits).find(|state| state & 7 != 0)?;
    let (width, is_compact, is_ascii) = ((state & 7) as usize, state & 8 != 0, state & 16 != 0);
    if !is_compact || !matches!(width, 1 | 2 | 4) {
        return None;
    }
    let characters = object.get(if is_ascii { layout.ascii_head } else { layout.head }..)?;
    let characters = characters.chunks_exact(width).take(length.min(MOST_CHARACTERS / width));
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, &byte| number << 8 | u32::from(byte));
    Some(
        characters
            .map(|bytes| char::from_u32(number(bytes)).unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect(),
    )
}

/// The function of a code object, at this address; `None` if it is no code object.
pub(super) fn function(
    interpreter: &Interpreter,
    code: &PythonCode<'_>,
    address: u64,
    size: u32,
) -> Option<InterpretedFunction> {
    let CodeLayout { lines: format, text: layout, first_line, .. } = interpreter.layout;
    if u64_at(code.object, TYPE_AT)? != interpreter.code_type {
        return None;
    }
    let [file, name, qualified] = code.texts.map(|object| text(object, layout));
    let first_line = u32_at(code.object, first_line)?;
    Some(InterpretedFunction {
        address,
        size,
        first_line,
        lines: lines::decode(format, code.lines.0, first_line),
        name: qualified.or(name)?,
        file: file.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: TextLayout = TextLayout { width_shifts: &[2], ascii_head: 40, head: 56 };

    fn object(length: u64, state: u32, at: usize, characters: &[u8]) -> Vec<u8> {
        let mut object = vec![0; 120];
        object[LENGTH_AT..LENGTH_AT + 8].copy_from_slice(&length.to_le_bytes());
        object[STATE_AT..STATE_AT + 4].copy_from_slice(&state.to_le_bytes());
        object[at..at + characters.len()].copy_from_slice(characters);
        object
    }

    /// Checks characters of one, two and four bytes, texts that were cut, and what is no text.
    #[test]
    fn texts() {
        let state = |width: u32, ascii: u32| (width | 8 | ascii << 4) << 2 | 1;
        let read = |object: &[u8]| text(object, LAYOUT);
        assert_eq!(read(&object(4, state(1, 1), 40, b"main")).as_deref(), Some("main"));
        assert_eq!(read(&object(2, state(1, 0), 56, &[0xe4, b'x'])).as_deref(), Some("äx"));
        assert_eq!(read(&object(1, state(2, 0), 56, &[0xac, 0x20])).as_deref(), Some("€"));
        assert_eq!(read(&object(1, state(4, 0), 56, &[0x0d, 0xf4, 1, 0])).as_deref(), Some("🐍"));
        assert_eq!(read(&object(1, state(4, 0), 56, &[0, 0, 0x7f, 0])).as_deref(), Some("\u{fffd}"));
        assert_eq!(read(&object(9000, state(1, 1), 40, b"a")).map(|text| text.len()), Some(80));
        assert_eq!(read(&object(4, state(3, 1), 40, b"main")), None);
        assert_eq!(read(&object(4, 1 << 2, 40, b"main")), None, "not compact");
        assert_eq!(read(&object(0, state(1, 1), 40, b"")), None);
        assert_eq!(read(&object(4, state(1, 1), 40, b"main")[..30]), None);
    }

    /// Checks that both places of the width in versions of 3.14 are found. What lies above the bits
    /// of the state is not cleared.
    #[test]
    fn texts_of_3_14() {
        let layout = TextLayout { width_shifts: &[2, 16], ..LAYOUT };
        let read = |state: u32| text(&object(4, state, 40, b"main"), layout);
        assert_eq!(read(0xffff_ff65).as_deref(), Some("main"), "3.14.10");
        assert_eq!(read(0x0019_0003).as_deref(), Some("main"), "earlier header");
        assert_eq!(read(0x0000_0003), None);
    }
}
