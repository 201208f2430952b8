//! What was asked for: an expression, a length, a kind of access.

use std::fmt;

/// Which accesses stop at the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Stores only.
    Write,
    /// Loads and stores. Asking for `r` gives this, too: x86 cannot watch loads alone.
    ReadWrite,
    /// The instruction there is about to run.
    Execute,
}

impl Access {
    /// The letters of an expression: `w`, `rw` or `x`.
    pub fn letters(self) -> &'static str {
        match self {
            Access::Write => "w",
            Access::ReadWrite => "rw",
            Access::Execute => "x",
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.letters())
    }
}

/// One `EXPR[:len][:r|w|rw|x]`, taken apart; [`parse`](super::parse) makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The part before length and access, trimmed.
    pub(super) expression: String,
    pub(super) tree: Expr,
    pub(super) len_bytes: Option<u64>,
    pub(super) access: Option<Access>,
    pub(super) only_reads: bool,
}

impl Request {
    /// The expression alone, without length and access.
    pub fn expression(&self) -> &str {
        &self.expression
    }

    /// Whether the expression is an address and needs no module at all.
    pub fn is_address(&self) -> bool {
        match &self.tree {
            Expr::Address(_) => true,
            Expr::Offset(inner, _) => matches!(**inner, Expr::Address(_)),
            _ => false,
        }
    }
}

/// An expression. Nesting is bounded by the parser, so that walking it cannot exhaust the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expr {
    Address(u64),
    /// A symbol or variable, perhaps of one file only.
    Name {
        file: Option<String>,
        path: String,
    },
    Field(Box<Expr>, String),
    /// `a->b`
    Arrow(Box<Expr>, String),
    Index(Box<Expr>, i64),
    /// `*a`
    Follow(Box<Expr>),
    /// `a+0x10`: bytes, whatever the type.
    Offset(Box<Expr>, i64),
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expr::Address(address) => write!(f, "{address:#x}"),
            Expr::Name { file: Some(file), path } => write!(f, "{file}:{path}"),
            Expr::Name { file: None, path } => f.write_str(path),
            Expr::Field(inner, name) => write!(f, "{}.{name}", Parenthesized(inner)),
            Expr::Arrow(inner, name) => write!(f, "{}->{name}", Parenthesized(inner)),
            Expr::Index(inner, index) => write!(f, "{}[{index}]", Parenthesized(inner)),
            Expr::Follow(inner) => write!(f, "*{}", Parenthesized(inner)),
            Expr::Offset(inner, bytes) if *bytes < 0 => write!(f, "{inner}-{:#x}", bytes.unsigned_abs()),
            Expr::Offset(inner, bytes) => write!(f, "{inner}+{bytes:#x}"),
        }
    }
}

/// An expression below an operator: with parentheses where it needs them.
struct Parenthesized<'a>(&'a Expr);

impl fmt::Display for Parenthesized<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Expr::Follow(_) | Expr::Offset(..) => write!(f, "({})", self.0),
            plain => plain.fmt(f),
        }
    }
}
