//! Offsets in the structs of each version of CPython: published by itself from 3.13 on, from its
//! headers before.
use super::code::TextLayout;
use super::lines::LineFormat;
use super::{CodeLayout, PositionKind};
use kymo_perf::bpf::{FrameKind, PythonLayout};
use kymo_symbols::PythonRuntime;

/// A mark of frames that native code has entered, where every frame is.
const NO_MARK: u32 = 256;

/// How CPython of a version keeps what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct VersionLayout {
    pub(super) walk: PythonLayout,
    pub(super) code: CodeLayout,
    /// From the runtime's state to the address of the first interpreter.
    pub(super) interpreters: u64,
}

/// The layout of this runtime.
///
/// # Errors
/// Why its frames are not walked: words that follow "Python 3.13:".
pub(super) fn layout(runtime: &PythonRuntime) -> Result<VersionLayout, String> {
    match runtime.version {
        (3, minor @ 8..=10) => Ok(objects(minor)),
        (3, 11) => Ok(marked()),
        (3, 12) => Ok(separated()),
        (3, minor @ 13..=14) => published(minor, &runtime.offsets),
        _ => Err("only versions 3.8 to 3.14 are known".into()),
    }
}

/// 3.8 to 3.10: frames are objects.
fn objects(minor: u8) -> VersionLayout {
    let (position, lines) = match minor {
        10 => (PositionKind::Instructions, LineFormat::Lengths),
        _ => (PositionKind::Bytes, LineFormat::Steps),
    };
    VersionLayout {
        walk: PythonLayout {
            frames: FrameKind::Object,
            interpreter_next: 0,
            interpreter_threads: 8,
            thread_next: 8,
            thread_id: 176,
            thread_frame: 24,
            inner_frame: None,
            frame_code: 32,
            frame_previous: 24,
            frame_position: if minor == 10 { 96 } else { 104 },
            frame_mark: 0,
            entry_mark: NO_MARK,
            frame_bytes: 112,
            code_names: 104,
        },
        code: CodeLayout {
            position,
            lines,
            text: TextLayout { width_shifts: &[2], ascii_head: 48, head: 72 },
            first_line: 40,
        },
        interpreters: 32,
    }
}

/// 3.11.
fn marked() -> VersionLayout {
    VersionLayout {
        walk: PythonLayout {
            frames: FrameKind::Marked,
            interpreter_next: 0,
            interpreter_threads: 16,
            thread_next: 8,
            thread_id: 152,
            thread_frame: 56,
            inner_frame: Some(8),
            frame_code: 32,
            frame_previous: 48,
            frame_position: 56,
            frame_mark: 68,
            entry_mark: 1,
            frame_bytes: 72,
            code_names: 112,
        },
        code: CodeLayout {
            position: PositionKind::InObject(184),
            lines: LineFormat::Locations,
            text: TextLayout { width_shifts: &[2], ascii_head: 48, head: 72 },
            first_line: 72,
        },
        interpreters: 40,
    }
}

/// 3.12.
fn separated() -> VersionLayout {
    VersionLayout {
        walk: PythonLayout {
            frames: FrameKind::Separated,
            interpreter_next: 0,
            interpreter_threads: 72,
            thread_next: 8,
            thread_id: 136,
            thread_frame: 56,
            inner_frame: Some(0),
            frame_code: 0,
            frame_previous: 8,
            frame_position: 56,
            frame_mark: 70,
            entry_mark: 3,
            frame_bytes: 72,
            code_names: 112,
        },
        code: CodeLayout {
            position: PositionKind::InObject(192),
            lines: LineFormat::Locations,
            text: TextLayout { width_shifts: &[2], ascii_head: 40, head: 56 },
            first_line: 68,
        },
        interpreters: 40,
    }
}

/// From 3.13 on: the words behind the cookie. 3.14 has three more before those of threads, and two
/// more before those of code.
fn published(minor: u8, words: &[u64]) -> Result<VersionLayout, String> {
    /// Larger structs are not believed.
    const MOST: u64 = 1 << 20;
    if words.get(1) == Some(&1) {
        return Err("it is built without the global lock (free-threaded)".into());
    }
    // Each struct's words begin with its size; those of code with the first name behind it.
    let (thread, frame, code) = if minor >= 14 { (21, 30, 39) } else { (18, 27, 34) };
    let word = |at: usize| words.get(at).copied().filter(|&word| word < MOST).map(|word| word as u32);
    let damaged = || "its table of offsets is not the one of that version".to_owned();
    let field = |at: usize| word(at).ok_or_else(damaged);
    let names = field(code)?;
    let in_order = (1..4).all(|at| word(code + at) == Some(names + 8 * at as u32));
    let frame_mark = field(frame + 5)?;
    let position = field(frame + 3)?;
    if !in_order || field(thread + 6)? != field(thread + 5)? + 8 || frame_mark >= 127 || position >= 120 {
        return Err(damaged());
    }
    let width_shifts: &[u32] = if minor >= 14 { &[2, 16] } else { &[2] };
    Ok(VersionLayout {
        walk: PythonLayout {
            frames: FrameKind::Separated,
            interpreter_next: field(7)?,
            interpreter_threads: field(8)?,
            thread_next: field(thread + 2)?,
            thread_id: field(thread + 5)?,
            thread_frame: field(thread + 4)?,
            inner_frame: None,
            frame_code: field(frame + 2)?,
            frame_previous: field(frame + 1)?,
            frame_position: position,
            frame_mark,
            entry_mark: 3,
            frame_bytes: (frame_mark + 1).max(position + 8),
            code_names: names,
        },
        code: CodeLayout {
            position: PositionKind::InObject(field(code + 8)?),
            lines: LineFormat::Locations,
            text: TextLayout { width_shifts, ascii_head: 40, head: 56 },
            first_line: field(code + 4)? as usize,
        },
        interpreters: field(4)?.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words that CPython 3.13.0 publishes, from its version on, as far as they are used.
    const WORDS_3_13: [u64; 43] = [
        0x030d_00f0,
        0,
        283_320,
        608,
        632, // runtime
        194_968,
        7272,
        7264,
        7344,
        7400,
        7656,
        7640,
        7648,
        16,
        7752,
        0,
        7768,
        7760, // interpreter
        304,
        0,
        8,
        16,
        72,
        152,
        160,
        232,
        32, // thread
        80,
        8,
        0,
        56,
        72,
        70, // frame
        208,
        112,
        120,
        128,
        136,
        68,
        52,
        96,
        104,
        200, // code
    ];

    /// Checks that published offsets are read, as 3.14 has them, too; and that free-threaded builds
    /// and tables that are not those of the version are refused.
    #[test]
    fn published_offsets() {
        let layout = published(13, &WORDS_3_13).unwrap();
        assert_eq!(
            (layout.interpreters, layout.walk.interpreter_next, layout.walk.thread_id),
            (632, 7264, 152)
        );
        assert_eq!((layout.walk.frame_mark, layout.walk.frame_bytes, layout.walk.code_names), (70, 71, 112));
        assert_eq!(layout.code.position, PositionKind::InObject(200));
        // What 3.14 has more of interpreters and frames.
        let mut newer = WORDS_3_13.to_vec();
        for at in [9, 19, 20, 36, 37] {
            newer.insert(at, 0);
        }
        let newer = published(14, &newer).unwrap();
        assert_eq!(newer.walk, layout.walk);
        assert_eq!(newer.code.text.width_shifts, [2, 16]);
        assert!(published(14, &WORDS_3_13).is_err());
        for at in [4, 8, 22, 23, 30, 32, 35, 42] {
            let mut damaged = WORDS_3_13;
            damaged[at] = 1 << 40;
            assert!(published(13, &damaged).is_err(), "{at}");
        }
        assert!(published(13, &WORDS_3_13[..40]).is_err());
        let mut free = WORDS_3_13;
        free[1] = 1;
        assert!(published(13, &free).unwrap_err().contains("free-threaded"));
    }
}
