//! Why an expression has no address, in one sentence each, with what to do.

use std::fmt;
use std::path::PathBuf;

use thiserror::Error;

/// A variable of a name that several have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// How it is called in full: `crate::module::STATIC`, `main::counter`.
    pub path: String,
    /// The source file, as the debug information names it.
    pub file: Option<String>,
    /// The line of its declaration, from 1.
    pub line: Option<u64>,
    /// Where it is in the process.
    pub avma: u64,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, "{} ({file}:{line})", self.path),
            (Some(file), None) => write!(f, "{} ({file})", self.path),
            (None, _) => write!(f, "{} (at {:#x})", self.path, self.avma),
        }
    }
}

/// Why a request could not be turned into an address.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum ResolveError {
    /// A module's file cannot be read.
    #[error("cannot look for symbols in {path}: {why}")]
    Module { path: PathBuf, why: String },
    /// No module has the name.
    #[error("no symbol or variable '{name}' in {searched}{}{hint}", DidYouMean(.near))]
    NotFound {
        name: String,
        /// The modules that were searched, in words.
        searched: String,
        /// Names like it, the nearest first; five at most.
        near: Vec<String>,
        /// More about why, starting with punctuation, or nothing.
        hint: String,
    },
    /// Fields or elements were asked for, and there are no types.
    #[error(
        "cannot take {wanted} of '{name}': {module} was built without debug information; rebuild it with -g, or watch {name}+OFFSET:LENGTH"
    )]
    NoDwarf {
        name: String,
        /// What needs a type, for example `.head`.
        wanted: String,
        module: String,
    },
    /// The types are in `.dwo` files, which are not read.
    #[error(
        "cannot take {wanted} of '{name}': the debug information of {module} is split into .dwo files, which kymo does not read; rebuild without -gsplit-dwarf, or watch {name}+OFFSET:LENGTH"
    )]
    SplitDwarf { name: String, wanted: String, module: String },
    /// Several variables have this name.
    #[error("'{name}' is the name of {} variables: {}; write FILE:{name} or the longer path", .candidates.len(), List(.candidates))]
    Ambiguous { name: String, candidates: Vec<Candidate> },
    /// Each thread has its own.
    #[error(
        "'{name}' is thread-local: each thread has one of its own, at an address that only the thread knows; print its address in the program and watch that, for example 0x7f0012345678:8"
    )]
    ThreadLocal { name: String },
    /// A local variable, in a register or on the stack.
    #[error(
        "'{name}' is a local variable of {function}: it has no address until the function runs; watch a static, a symbol or an address"
    )]
    Local { name: String, function: String },
    /// The compiler left no place for it.
    #[error("'{name}' has no place in memory: {why}")]
    NoPlace { name: String, why: String },
    /// The type has no such field.
    #[error("{of} has no field '{field}' ({type_name}){}", DidYouMean(.near))]
    NoField {
        of: String,
        type_name: String,
        field: String,
        /// Fields like it or, where none is like it, the first ones; five at most.
        near: Vec<String>,
    },
    /// A step that the type does not allow.
    #[error("cannot take {wanted} of {of}: its type is {type_name}, {why}")]
    WrongType { of: String, type_name: String, wanted: String, why: String },
    /// Beyond the end of an array.
    #[error("index {index} is out of range: {of} has {count} elements, 0 to {}", (*.count).max(1) - 1)]
    OutOfRange {
        of: String,
        index: i64,
        /// How many elements there are.
        count: u64,
    },
    /// A pointer on the way is null.
    #[error(
        "{of} is null now, so nothing is where it points; watch {of} itself, or try again when it is set"
    )]
    NullPointer { of: String },
    /// The target's memory cannot be read.
    #[error("cannot read {len_bytes} bytes of the target at {avma:#x} to follow {of}: {source}")]
    Memory { of: String, avma: u64, len_bytes: u64, source: std::io::Error },
    /// No register can hold this length.
    #[error("bad length {len_bytes} for {expression}: a watchpoint covers 1, 2, 4 or 8 bytes{hint}")]
    BadLength {
        expression: String,
        len_bytes: u64,
        /// What to write instead, starting with punctuation, or nothing.
        hint: String,
    },
    /// The address is no multiple of the length.
    #[error("{expression} is at {avma:#x}, which is not a multiple of {len_bytes}: a watchpoint has to be aligned to its length; watch {:#x}:{len_bytes} or use a smaller length", .avma - .avma % .len_bytes)]
    Unaligned {
        expression: String,
        avma: u64,
        /// The length, in bytes.
        len_bytes: u64,
    },
    /// The debug information contradicts itself.
    #[error(
        "cannot make sense of the debug information of {module} at '{of}': {why}; watch SYMBOL+OFFSET:LENGTH instead"
    )]
    Damaged { module: String, of: String, why: String },
}

/// `; did you mean 'a', 'b' or 'c'?`, or nothing.
struct DidYouMean<'a>(&'a [String]);

impl fmt::Display for DidYouMean<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, name) in self.0.iter().enumerate() {
            let before = match i {
                0 => "; did you mean ",
                i if i + 1 == self.0.len() => " or ",
                _ => ", ",
            };
            write!(f, "{before}'{name}'")?;
        }
        f.write_str(if self.0.is_empty() { "" } else { "?" })
    }
}

/// Candidates, the first ten.
struct List<'a>(&'a [Candidate]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, candidate) in self.0.iter().take(10).enumerate() {
            write!(f, "{}{candidate}", if i == 0 { "" } else { ", " })?;
        }
        if self.0.len() > 10 { write!(f, " and {} more", self.0.len() - 10) } else { Ok(()) }
    }
}
