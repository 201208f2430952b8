//! A block of HotSpot's code cache (`CodeBlob`), and how the frames of its code lie on the stack.
use kymo_symbols::unwind::GeneratedFrame;
use std::ops::Range;

/// Frames beyond this many words are not believed.
const MOST_FRAME_WORDS: u32 = 1 << 16;

/// What lays out the frames of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlobKind {
    /// Compiled code and stubs of the runtime: frames of this many bytes.
    Sized(u32),
    Interpreter,
    /// Stubs that jump on, and have no frame.
    Frameless,
    /// Other stubs keep a frame pointer, the one by which Java is entered among them.
    FramePointer,
}

impl BlobKind {
    pub(super) fn of(name: &[u8], frame_words: u32) -> BlobKind {
        let is = |start: &[u8]| name.starts_with(start);
        match frame_words {
            2..=MOST_FRAME_WORDS => BlobKind::Sized(frame_words * 8),
            _ if is(b"Interpreter") => BlobKind::Interpreter,
            _ if is(b"vtable chunks") || is(b"I2C/C2I adapters") => BlobKind::Frameless,
            _ => BlobKind::FramePointer,
        }
    }
}

/// A block of the code cache.
#[derive(Clone, Debug)]
pub(super) struct CodeBlob {
    pub(super) kind: BlobKind,
    pub(super) range: Range<u64>,
    /// Where its instructions begin.
    pub(super) code: u64,
    /// From this instruction on frames are complete, if it says so.
    pub(super) complete_from: Option<u64>,
    pub(super) instructions: Vec<u8>,
}

/// The return address is on top of the stack.
const JUST_CALLED: GeneratedFrame = GeneratedFrame::ByStackPointer { return_address: 0, frame_pointer: None };
/// The caller's frame pointer is on top of the stack, then the return address.
const JUST_PUSHED: GeneratedFrame =
    GeneratedFrame::ByStackPointer { return_address: 8, frame_pointer: Some(0) };

impl CodeBlob {
    /// The frame of code at an address of the block.
    pub(super) fn frame_at(&self, address: u64, is_innermost: bool) -> GeneratedFrame {
        let incomplete = if is_innermost { self.incomplete_frame(address) } else { None };
        match (incomplete, self.kind) {
            (Some(frame), _) => frame,
            (None, BlobKind::Sized(bytes)) => {
                GeneratedFrame::ByStackPointer { return_address: bytes - 8, frame_pointer: Some(bytes - 16) }
            }
            (None, BlobKind::Interpreter) => GeneratedFrame::ByFramePointer { has_stack_pointer: true },
            (None, BlobKind::FramePointer) => GeneratedFrame::ByFramePointer { has_stack_pointer: false },
            // It called nothing.
            (None, BlobKind::Frameless) if is_innermost => JUST_CALLED,
            (None, BlobKind::Frameless) => GeneratedFrame::Unknown,
        }
    }

    /// The frame of a function that has just begun, or is about to return.
    fn incomplete_frame(&self, address: u64) -> Option<GeneratedFrame> {
        let at = usize::try_from(address.checked_sub(self.code)?).ok()?;
        let (done, next) = self.instructions.split_at_checked(at)?;
        if matches!(self.kind, BlobKind::Sized(_)) && self.complete_from.is_some_and(|from| address < from) {
            // push %rbp, and perhaps mov %rsp,%rbp.
            let pushed: [&[u8]; 3] = [&[0x55], &[0x55, 0x48, 0x8b, 0xec], &[0x55, 0x48, 0x89, 0xe5]];
            let is_pushed = pushed.iter().any(|code| done.ends_with(code));
            return Some(if is_pushed { JUST_PUSHED } else { JUST_CALLED });
        }
        match without_poll(next) {
            // pop %rbp, then the return.
            [0x5d, rest @ ..] if matches!(without_poll(rest), [0xc3 | 0xc2, ..]) => Some(JUST_PUSHED),
            [0xc3 | 0xc2, ..] => Some(JUST_CALLED),
            _ => None,
        }
    }
}

/// What follows the check before a return whether the thread is to stop.
fn without_poll(code: &[u8]) -> &[u8] {
    let rest = match code {
        // cmp offset(%r15),%rsp; since JDK 16.
        [0x49, 0x3b, 0xa7, _, _, _, _, rest @ ..] | [0x49, 0x3b, 0x67, _, rest @ ..] => rest,
        // test %eax,offset(%rip); before.
        [0x85, 0x05, _, _, _, _, rest @ ..] => rest,
        _ => code,
    };
    match rest {
        // ja to where it stops.
        [0x0f, 0x87, _, _, _, _, rest @ ..] => rest,
        _ => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks where frames are looked for in a method's first and last instructions (as C2 of JDK
    /// 17 makes them), in its middle, in callers, and in stubs.
    #[test]
    fn frames_by_instruction() {
        let instructions: Vec<u8> = [
            &[0x89, 0x84, 0x24, 0, 0xc0, 0xfe, 0xff][..],
            &[0x55],
            &[0x48, 0x83, 0xec, 0x20],
            &[0x90, 0x90],
            &[0x48, 0x83, 0xc4, 0x20],
            &[0x5d],
            &[0x49, 0x3b, 0xa7, 0x38, 0x03, 0, 0],
            &[0x0f, 0x87, 1, 0, 0, 0],
            &[0xc3],
        ]
        .concat();
        let blob = |kind, instructions: &[u8]| CodeBlob {
            kind,
            range: 0x1000..0x2000,
            code: 0x1100,
            complete_from: Some(0x110c),
            instructions: instructions.to_vec(),
        };
        let compiled = blob(BlobKind::of(b"nmethod", 6), &instructions);
        let whole = GeneratedFrame::ByStackPointer { return_address: 40, frame_pointer: Some(32) };
        for (offset, expected) in [
            (0, JUST_CALLED),
            (7, JUST_CALLED),
            (8, JUST_PUSHED),
            (12, whole),
            (14, whole),
            (18, JUST_PUSHED),
            (19, JUST_CALLED),
            (26, JUST_CALLED),
            (32, JUST_CALLED),
        ] {
            assert_eq!(compiled.frame_at(0x1100 + offset, true), expected, "{offset}");
            assert_eq!(compiled.frame_at(0x1100 + offset, false), whole, "{offset} of a caller");
        }
        let frame = |name: &[u8], is_innermost| {
            blob(BlobKind::of(name, 0), &[0x90; 16]).frame_at(0x1101, is_innermost)
        };
        let by_frame_pointer = |has_stack_pointer| GeneratedFrame::ByFramePointer { has_stack_pointer };
        assert_eq!(frame(b"Interpreter", false), by_frame_pointer(true));
        assert_eq!(frame(b"StubRoutines (1)", false), by_frame_pointer(false));
        assert_eq!(frame(b"vtable chunks", true), JUST_CALLED);
        assert_eq!(frame(b"vtable chunks", false), GeneratedFrame::Unknown);
        // Numbers that no compiler makes.
        assert_eq!(BlobKind::of(b"nmethod", u32::MAX), BlobKind::FramePointer);
    }
}
