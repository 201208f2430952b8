//! Expressions as a list of nodes that name their parts by index.

/// An operator between two numbers.
pub(super) type Operator = fn(u64, u64) -> u64;

/// A part of an expression; `u32` is the index of another one, `usize` that of a field.
#[derive(Clone, Debug)]
pub(super) enum Node {
    Number(u64),
    /// A name that is no field: an enumerator that the kernel did not replace by its number.
    Name(String),
    Text(String),
    Field(usize),
    Not(u32),
    Complement(u32),
    Negative(u32),
    Binary(Operator, u32, u32),
    /// `condition ? first : second`.
    Choice(u32, u32, u32),
    /// A cast: how many low bits it keeps of the operand, and how many bits what it points to has.
    Cast {
        bits: u32,
        pointee_bits: u32,
        operand: u32,
    },
    /// An element of an array, read with this many bits if there is a cast.
    Element {
        array: u32,
        index: u32,
        bits: Option<u32>,
    },
    DynamicArray(usize),
    DynamicLength(usize),
    /// A text of the field; the number chooses one of several.
    DynamicText(usize, usize),
    Bitmask(usize),
    CpuList(usize),
    Flags {
        value: u32,
        delimiter: String,
        names: Vec<(Option<u64>, String)>,
    },
    Symbols {
        value: u32,
        names: Vec<(Option<u64>, String)>,
    },
    Hex {
        data: u32,
        length: u32,
        spaced: bool,
    },
    Array {
        data: u32,
        count: u32,
        element_bytes: u32,
    },
}
