//! The print format of a tracepoint: how the kernel wants its raw bytes to be read.
//!
//! ```text
//!  print fmt: "comm=%s flags=%s", REC->comm, __print_flags(REC->flags, "|", { 1, "A" }, { 2, "B" })
//!             -------------------  ---------  ------------------------------------------------------
//!             pieces: text, conversions       arguments: expressions over the fields
//! ```
//!
//! *You give it* the text of a format ([`PrintFormat::parse`]) and then the raw bytes of samples;
//! *it gives you* the text that libtraceevent, and so `perf script`, prints
//! ([`PrintFormat::print`]). What it cannot parse is an error, and
//! [`Format::print_fields`](crate::tracing_data::Format::print_fields) is the way out, as it is
//! perf's.
//!
//! libtraceevent computes with 64 bits without sign and lets a conversion cut them; so does this.
//! Its known gaps are kept where they decide what is printed: a name that is no number is 0, or in
//! a list of names never matches. These are not kept, because they make the printed text wrong; the
//! kernel's own text (`trace` in tracefs) has these as they are here:
//! - A negative field of 8 or 16 bits keeps its sign (perf 6.1 to 7.2 print 65528 for -8).
//! - `REC->flags & (A | B)` masks by both (perf masks by `A` and adds `B`: `flags=D|P|I` on every
//!   line of `timer:timer_start`).
//! - Arrays without a length, which probe events have, have elements of their type's size (perf
//!   prints 0 for those of 16 to 64 bits), and `__get_str(names[1])` is one of several texts (perf
//!   does not parse it, and perf 7.2 refuses the recording).
//! - `%c` is a character (perf 6.1 prints `>c<`).
//!
//! Formats and bytes come from a file that anyone may have made. Invariants:
//! - I1: parsing takes time and memory proportional to the text, and an expression nests at most
//!   `MAX_DEPTH` deep.
//! - I2: printing reads nothing outside the raw bytes, and stops at `MAX_PRINTED_BYTES`.

mod eval;
mod lex;
mod names;
mod node;
mod parse;
mod printf;
#[cfg(test)]
mod tests;

use crate::tracing_data::Format;
pub use names::FieldNames;
use node::Node;
use printf::FormatPiece;

/// How deep expressions may nest. The kernel's own reach 30.
const MAX_DEPTH: u16 = 120;
/// The longest text of one sample.
const MAX_PRINTED_BYTES: usize = 64 << 10;
/// The longest format that is parsed. The kernel's own reach 10 KiB.
const MAX_FORMAT_BYTES: usize = 256 << 10;

/// Why a print format cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrintFormatError {
    /// A part of it is not understood.
    #[error("byte {at} of the print format: {what}")]
    Syntax {
        /// Where, in bytes of the format.
        at: usize,
        /// What is wrong there.
        what: &'static str,
    },
    /// It has a function that is not known.
    #[error("the print format calls {0}, which is not known")]
    UnknownFunction(String),
    /// It names a field that the tracepoint does not have.
    #[error("the print format has the field {0}, which the tracepoint does not have")]
    UnknownField(String),
    /// It is too long, or nests too deep.
    #[error("the print format is longer than 256 KiB, or nests more than 120 deep")]
    TooLarge,
    /// It has more conversions than arguments.
    #[error("the print format has more conversions than arguments")]
    MissingArgument,
}

/// What a format may ask of the recorded kernel.
pub trait KernelNames {
    /// The function at an address, and how far behind its start the address is.
    fn function(&self, address: u64) -> Option<(String, u64)>;
    /// The text at an address, of those that the kernel lists in `printk_formats`.
    fn text(&self, address: u64) -> Option<String>;
}

/// A kernel of which nothing is known: addresses are printed as numbers.
#[derive(Clone, Copy, Debug)]
pub struct NoKernelNames;

impl KernelNames for NoKernelNames {
    fn function(&self, _: u64) -> Option<(String, u64)> {
        None
    }

    fn text(&self, _: u64) -> Option<String> {
        None
    }
}

/// A print format, ready to print samples.
#[derive(Clone, Debug)]
pub struct PrintFormat {
    pieces: Vec<FormatPiece>,
    arguments: Vec<u32>,
    nodes: Vec<Node>,
}

impl PrintFormat {
    /// Parses the print format of `format`.
    ///
    /// # Errors
    /// [`PrintFormatError`] when a part of it is not understood.
    pub fn parse(format: &Format) -> Result<PrintFormat, PrintFormatError> {
        if format.print_fmt.len() > MAX_FORMAT_BYTES {
            return Err(PrintFormatError::TooLarge);
        }
        let (text, arguments, nodes) = parse::parse(format)?;
        let pieces = printf::pieces(&text);
        let needed: usize = pieces.iter().map(FormatPiece::arguments).sum();
        if needed > arguments.len() {
            return Err(PrintFormatError::MissingArgument);
        }
        Ok(PrintFormat { pieces, arguments, nodes })
    }

    /// The text of a sample with these raw bytes. `format` is the one that this was parsed from.
    pub fn print(&self, format: &Format, raw: &[u8], names: &dyn KernelNames) -> String {
        let sample = eval::Sample { nodes: &self.nodes, fields: &format.fields, raw, names };
        let mut out = String::new();
        let mut arguments = self.arguments.iter().copied();
        for piece in &self.pieces {
            if out.len() >= MAX_PRINTED_BYTES {
                break;
            }
            match piece {
                FormatPiece::Text(text) => out.push_str(text),
                FormatPiece::Conversion(conversion) => sample.convert(conversion, &mut arguments, &mut out),
            }
        }
        let mut end = out.len().min(MAX_PRINTED_BYTES);
        while !out.is_char_boundary(end) {
            end -= 1;
        }
        out.truncate(end);
        out
    }
}
