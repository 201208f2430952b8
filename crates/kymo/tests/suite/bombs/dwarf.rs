//! Debug information that is well-formed, small, and endless to follow.

use super::elf::{COMPRESSED, Content, PROGBITS, Section, zstd};

/// Numbers of [`ABBREVIATIONS`].
const UNIT: u8 = 1;
const FUNCTION: u8 = 2;
const INLINED: u8 = 3;
const FUNCTION_OF_RANGES: u8 = 4;
const UNIT_WITH_LINES: u8 = 5;

/// What entries consist of: number, tag, children, then attributes and their forms.
#[rustfmt::skip]
const ABBREVIATIONS: &[u8] = &[
    // DW_TAG_compile_unit: low_pc (addr), high_pc (data8).
    UNIT, 0x11, 1, 0x11, 0x01, 0x12, 0x07, 0, 0,
    // DW_TAG_subprogram: the same.
    FUNCTION, 0x2e, 1, 0x11, 0x01, 0x12, 0x07, 0, 0,
    // DW_TAG_inlined_subroutine: nothing.
    INLINED, 0x1d, 1, 0, 0,
    // DW_TAG_subprogram without children: ranges (sec_offset).
    FUNCTION_OF_RANGES, 0x2e, 0, 0x55, 0x17, 0, 0,
    // DW_TAG_compile_unit: low_pc, high_pc, stmt_list (sec_offset).
    UNIT_WITH_LINES, 0x11, 1, 0x11, 0x01, 0x12, 0x07, 0x10, 0x17, 0, 0,
    0,
];

fn place(out: &mut Vec<u8>) {
    out.extend(0x1000u64.to_le_bytes());
    out.extend(0x1000u64.to_le_bytes());
}

/// The head of a unit of version 4 with so many bytes behind what is written here.
fn unit(behind: usize) -> Vec<u8> {
    let mut body = vec![4, 0, 0, 0, 0, 0, 8, UNIT];
    place(&mut body);
    [&((body.len() + behind) as u32).to_le_bytes()[..], &body].concat()
}

/// A unit without functions and with lines.
fn unit_with_lines() -> Vec<u8> {
    let mut body = vec![4, 0, 0, 0, 0, 0, 8, UNIT_WITH_LINES];
    place(&mut body);
    body.extend(0u32.to_le_bytes());
    [&(body.len() as u32).to_le_bytes()[..], &body].concat()
}

fn sections(info: Content, more: Vec<Section>) -> Vec<Section> {
    let flags = if matches!(&info, Content::Bytes(bytes) if bytes.starts_with(&[2, 0, 0, 0, 0, 0, 0, 0])) {
        COMPRESSED
    } else {
        0
    };
    let mut all = vec![
        Section { flags, ..Section::new(".debug_info", PROGBITS, info) },
        Section::new(".debug_abbrev", PROGBITS, Content::Bytes(ABBREVIATIONS.to_vec())),
    ];
    all.extend(more);
    all
}

/// Functions inlined into each other, a million deep.
pub(super) fn deep() -> Vec<Section> {
    const TIMES: u32 = 7;
    let mut function = vec![FUNCTION];
    place(&mut function);
    let mut info = unit(function.len() + ((TIMES as usize) << 17));
    info.extend(function);
    sections(zstd(&info, INLINED, TIMES), Vec::new())
}

/// The same, stored as it is, where nothing was unpacked.
pub(super) fn deep_and_stored() -> Vec<Section> {
    let mut function = vec![FUNCTION];
    place(&mut function);
    function.resize(3 << 20, INLINED);
    let mut info = unit(function.len());
    info.extend(function);
    sections(Content::Bytes(info), Vec::new())
}

/// A hundred thousand functions that share one list of sixty thousand ranges.
pub(super) fn shared_ranges() -> Vec<Section> {
    let functions: Vec<u8> = [FUNCTION_OF_RANGES, 0, 0, 0, 0].repeat(100_000);
    let mut info = unit(functions.len());
    info.extend(functions);
    let mut ranges = Vec::new();
    for number in 0..60_000u64 {
        ranges.extend((0x1000 + number).to_le_bytes());
        ranges.extend((0x1001 + number).to_le_bytes());
    }
    ranges.extend([0; 16]);
    sections(Content::Bytes(info), vec![Section::new(".debug_ranges", PROGBITS, Content::Bytes(ranges))])
}

/// A hundred and fifty thousand units, each of them for all of the code.
pub(super) fn many_units() -> Vec<Section> {
    sections(Content::Bytes(unit(0).repeat(150_000)), Vec::new())
}

/// Two million units of twelve bytes.
pub(super) fn two_million_units() -> Vec<Section> {
    // The length, version 4, abbreviations at 0, addresses of 8 bytes, one entry: nothing.
    let unit = [8, 0, 0, 0, 4, 0, 0, 0, 0, 0, 8, 0];
    sections(Content::Bytes(unit.repeat(2_000_000)), Vec::new())
}

/// A line table with a row per byte: six million.
pub(super) fn many_rows() -> Vec<Section> {
    const ROWS: usize = 6 << 20;
    // minimum_instruction_length, maximum_operations, default_is_stmt, line_base, line_range, opcode_base; lengths of
    // the standard opcodes; no folders; one file.
    let mut head = vec![1, 1, 1, 0, 1, 13, 0, 1, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0];
    head.extend(b"a.c\0\0\0\0\0");
    let mut program = vec![0, 9, 2];
    program.extend(0x1000u64.to_le_bytes());
    // A special opcode: one line further, the same address.
    program.resize(ROWS, 13);
    program.extend([0, 1, 1]);
    let mut line = ((2 + 4 + head.len() + program.len()) as u32).to_le_bytes().to_vec();
    line.extend(4u16.to_le_bytes());
    line.extend((head.len() as u32).to_le_bytes());
    line.extend(head);
    line.extend(program);
    sections(
        Content::Bytes(unit_with_lines()),
        vec![Section::new(".debug_line", PROGBITS, Content::Bytes(line))],
    )
}
