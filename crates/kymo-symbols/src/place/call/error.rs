//! Why a parameter has no value that can be read, in one sentence each.

use super::super::syntax::SyntaxError;
use thiserror::Error;

/// Why an expression over the parameters of a function cannot be read at its entry or return.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages name the fields")]
pub enum CallError {
    /// The text is no expression.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// The machine's calling convention is not known to us.
    #[error("arguments are known by name on x86-64 only; name registers, as arg1")]
    Machine,
    /// The module has no debug information.
    #[error(
        "{module} was built without debug information, so the names of its arguments are not known: rebuild it with -g, install its debug symbols, or write arg1 to arg6"
    )]
    NoDebugInfo { module: String },
    /// The debug information is in `.dwo` files.
    #[error(
        "the debug information of {module} is split into .dwo files, which kymo does not read; rebuild without -gsplit-dwarf, or write arg1 to arg6"
    )]
    Split { module: String },
    /// The debug information does not know the function.
    #[error("the debug information of {module} does not know {function}; write arg1 to arg6")]
    NoFunction { module: String, function: String },
    /// The debug information has lines alone.
    #[error(
        "the debug information of {module} has only the lines of {function}, not what it takes: rebuild it with -g, not -g1, or write arg1 to arg6"
    )]
    LinesOnly { module: String, function: String },
    /// No parameter has the name.
    #[error("`{name}` is no parameter of {function}{}", ParameterNames(.known))]
    Unknown { name: String, function: String, known: Vec<String> },
    /// The function returns nothing.
    #[error("{function} returns nothing")]
    Void { function: String },
    /// The parameter is there, and its value is not.
    #[error("`{name}` of {function} cannot be read at its {}: {why}", if *.at_return { "return" } else { "entry" })]
    Lost { name: String, function: String, at_return: bool, why: String },
    /// A type has no such field.
    #[error("{type_name} has no field `{field}`{}", Near(.near))]
    NoField { type_name: String, field: String, near: Vec<String> },
    /// A step cannot be taken.
    #[error("cannot take {wanted} of `{of}`, which is {type_name}: {why}")]
    WrongType { of: String, type_name: String, wanted: String, why: String },
    /// The value is no number, pointer or text.
    #[error("`{of}` is {type_name}, which is more than a number: name a part of it{}", Near(.near))]
    Large { of: String, type_name: String, near: Vec<String> },
    /// What the debug information says makes no sense.
    #[error("the debug information of `{of}` makes no sense: {why}")]
    Damaged { of: String, why: &'static str },
}

struct ParameterNames<'a>(&'a [String]);

impl std::fmt::Display for ParameterNames<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            [] => f.write_str(", which has none"),
            [one] => write!(f, "; its only one is {one}"),
            all => write!(f, "; they are {}", all.join(", ")),
        }
    }
}

struct Near<'a>(&'a [String]);

impl std::fmt::Display for Near<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0.is_empty() { Ok(()) } else { write!(f, " ({})", self.0.join(", ")) }
    }
}
