//! What the walker tells, as raw bytes of samples of a `bpf-output` event.
//!
//! ```text
//!  frames  | 1 u32 | interpreter u32 | how many u64 | frame: code u64, names u32, position u32 (highest bit: entered) ..
//!  code    | 2 u32 | interpreter u32 | code u64 | names u64 | object | file name | name | qualified name | lines
//!  text    | the unicode object's head and characters, cut               lines | length u64 | bytes, cut
//! ```
/// What a frame's record begins with.
pub(super) const FRAMES_KIND: i32 = 1;
pub(super) const CODE_KIND: i32 = 2;
/// So many frames are walked: as many as a call chain can have.
pub(super) const MOST_FRAMES: usize = 128;
/// Bytes of a frame, and of what precedes the first.
pub(super) const FRAME_BYTES: usize = 16;
pub(super) const HEAD_BYTES: usize = 16;
/// How many bytes are copied of a code object: all fields of all versions.
pub(super) const CODE_BYTES: i32 = 192;
pub(super) const CODE_AT: usize = 24;
/// The head of a unicode object at its longest, and how many bytes of characters are copied.
pub(super) const TEXT_HEAD_BYTES: i32 = 72;
pub(super) const TEXT_BYTES: i32 = 512;
const TEXT_ROOM: usize = TEXT_HEAD_BYTES as usize + TEXT_BYTES as usize;
const FIRST_TEXT_AT: usize = CODE_AT + CODE_BYTES as usize;
/// Where the three texts lie.
pub(super) const TEXTS_AT: [usize; 3] =
    [FIRST_TEXT_AT, FIRST_TEXT_AT + TEXT_ROOM, FIRST_TEXT_AT + 2 * TEXT_ROOM];
/// Where the length of the line table lies, before its bytes.
pub(super) const LINES_AT: usize = FIRST_TEXT_AT + 3 * TEXT_ROOM;
/// How many bytes of line tables are copied.
pub(super) const MOST_LINE_BYTES: i32 = 12 << 10;
pub(super) const CODE_RECORD_BYTES: usize = LINES_AT + 8 + MOST_LINE_BYTES as usize;

/// In a frame's position: native code has entered it.
const ENTERED: u32 = 1 << 31;

/// One frame of Python, innermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonFrame {
    /// The address of its code object.
    pub code: u64,
    /// What distinguishes code objects that had this address one after the other.
    pub names: u32,
    /// Where it is in its code, as the version's frames have it.
    pub position: u32,
    /// Native code has entered it: those that follow belong to another native frame.
    pub entered: bool,
}

/// A code object as it lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PythonCode<'a> {
    /// Its address.
    pub address: u64,
    /// As in its frames.
    pub names: u32,
    /// The object.
    pub object: &'a [u8],
    /// Unicode objects: the file's name, the name, and the qualified name.
    pub texts: [&'a [u8]; 3],
    /// The bytes that say which line is where, and whether they are all.
    pub lines: (&'a [u8], bool),
}

/// What the walker tells of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PythonRecord<'a> {
    /// The frames of the thread at the sample that follows.
    Frames {
        /// As which the process was entered.
        interpreter: u32,
        /// 16 bytes each: [`PythonRecord::frames`] reads them.
        frames: &'a [u8],
    },
    /// A code object, before the first frames that run it.
    Code {
        /// As which the process was entered.
        interpreter: u32,
        /// The object.
        code: PythonCode<'a>,
    },
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

impl<'a> PythonRecord<'a> {
    /// Reads the raw bytes of a sample; `None` if they are not what the walker writes.
    pub fn parse(raw: &'a [u8]) -> Option<PythonRecord<'a>> {
        let interpreter = u32_at(raw, 4)?;
        match u32_at(raw, 0)? as i32 {
            FRAMES_KIND => {
                let count = usize::try_from(u64_at(raw, 8)?).ok().filter(|&count| count <= MOST_FRAMES)?;
                let frames = raw.get(HEAD_BYTES..HEAD_BYTES + count * FRAME_BYTES)?;
                Some(PythonRecord::Frames { interpreter, frames })
            }
            CODE_KIND => {
                let text = |at: usize| raw.get(at..at + TEXT_ROOM);
                let length = u64_at(raw, LINES_AT)?;
                let most = length.min(MOST_LINE_BYTES as u64) as usize;
                let lines = raw.get(LINES_AT + 8..LINES_AT + 8 + most)?;
                let code = PythonCode {
                    address: u64_at(raw, 8)?,
                    names: u32_at(raw, 16)?,
                    object: raw.get(CODE_AT..CODE_AT + CODE_BYTES as usize)?,
                    texts: [text(TEXTS_AT[0])?, text(TEXTS_AT[1])?, text(TEXTS_AT[2])?],
                    lines: (lines, most as u64 == length),
                };
                Some(PythonRecord::Code { interpreter, code })
            }
            _ => None,
        }
    }

    /// The frames in the bytes of [`PythonRecord::Frames`].
    pub fn frames(bytes: &[u8]) -> impl Iterator<Item = PythonFrame> {
        bytes.chunks_exact(FRAME_BYTES).filter_map(|frame| {
            let position = u32_at(frame, 12)?;
            Some(PythonFrame {
                code: u64_at(frame, 0)?,
                names: u32_at(frame, 8)?,
                position: position & !ENTERED,
                entered: position & ENTERED != 0,
            })
        })
    }
}
